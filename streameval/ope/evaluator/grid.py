"""Evaluate some estimators, each on some averages, over the same events."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import msgspec
import numpy as np

from streameval.common.arrays import Array, Mask, decayed_path, split_blocks
from streameval.ope.core import AnyAverage, BlockLift, Lift, Reading, past
from streameval.ope.core.bank import Bank
from streameval.ope.core.base import Path, terms_of
from streameval.ope.core.drift_rate import DriftRateEstimator, DriftState, ShortSpans, SpansState, largest
from streameval.ope.core.layout import Layout
from streameval.ope.core.past import History
from streameval.ope.core.selection import Selection
from streameval.ope.core.state import Company, joined, select_policies
from streameval.ope.core.summary import BlockSeries, BlockSums
from streameval.ope.estimators import AnyEstimator, Estimator, Terms
from streameval.ope.evidence.actions import FORMS, Form, Requirements
from streameval.ope.evidence.evidence import Evidence, RecentMoments, fading_of
from streameval.ope.intervals import AnyInterval
from streameval.ope.intervals.sequences.tracker import SequenceTracker, TrackedBounds, TrackerState

__all__ = ["Grid", "GridState", "GridSums", "Pair"]

Pair: TypeAlias = tuple[str, str]
"""The labels of an estimator and an average."""


class RewardSums(msgspec.Struct, frozen=True, eq=False):
    """Hold the sums of half 1 for one reward.

    Attributes:
        sums: sums of the blocks that are folded
        lessons: what each block teaches each estimator, by label and by field of its state
        observed: events and terms for confidence sequences, which follow single events. None without one.
    """

    sums: BlockSums
    lessons: dict[str, dict[str, Array]]
    observed: Any = None


class GridSums(msgspec.Struct, frozen=True, eq=False):
    """Hold what whole blocks add to the state of a grid in half 1.

    Attributes:
        kept: [blocks]. Whether a block is folded.
        seen: [kept blocks, P]. Whether a policy has an event with all fields.
        rewards: sums for each reward, empty if no block is folded
    """

    kept: Mask
    seen: Mask
    rewards: tuple[RewardSums, ...]


class RewardState(msgspec.Struct):
    """Hold the state of a grid for one reward. Axis 0 of every array counts policies.

    Attributes:
        estimators: what each estimator has learned, by label
        drift: memory of each drift rate, by name
        spans: memory of the drift rates over short spans, by name
        averages: state of each average, by label
        watched: state of each confidence sequence, by the label of its average
        history: the last blocks, which the next ones are compared with
    """

    estimators: dict[str, Any]
    drift: dict[str, DriftState]
    spans: dict[str, SpansState]
    averages: dict[str, Any]
    watched: dict[str, TrackerState]
    history: History


class GridState(msgspec.Struct):
    """Hold the state for each reward, and whether a policy has had an event with all fields [P]."""

    seen: Mask
    rewards: list[RewardState]


@dataclass(frozen=True)
class Grid:
    """Combine every one of `estimators` with every one of `averages` and its interval.

    Args:
        estimators: estimators with equal `needs`. Events without these fields are missing.
        averages: averages, each with the interval at its index
        candidates: [policies]. Whether a policy is compared with others.
        trackers: confidence sequences by the label of the average, one for each reward
        rewards: number of rewards
        optional: the configuration did not ask for these estimators by name. While no event has the required fields,
            they cost nothing and have no rows. Blocks before the first such event are left out. If every average mixes
            components, all blocks without such an event are left out, since its clock stands still meanwhile. (An
            average that forgets by a window must see the blocks that push the evidence out.)
        logged: production is the policy that took the logged actions, with importance weights of 1
    """

    estimators: tuple[AnyEstimator, ...]
    averages: tuple[AnyAverage, ...]
    bounds: tuple[AnyInterval, ...]
    candidates: tuple[bool, ...]
    needs: Requirements
    trackers: Mapping[str, Sequence[SequenceTracker]]
    block: int
    optional: bool = False
    rewards: int = 1
    logged: bool = False

    @cached_property
    def columns(self) -> tuple[Estimator, ...]:
        """Return the estimators that have columns for a reward. `cap: auto` has a column for each possible cap."""
        return tuple(column for estimator in self.estimators for column in estimator.alternatives.values())

    @cached_property
    def bank(self) -> Bank:
        """Return what all averages share."""
        has_clicks = any(column.uses_clicks for column in self.columns)
        layout = Layout(
            columns=self.columns,
            paired=not all(average.mixes_components for average in self.averages),
            mixed=self.mixes_components,
            apart=not self.logged or bool(self.needs) or has_clicks,
            unit_production=self.logged and not has_clicks and self.form is None,
        )
        return Bank(layout, self.candidates, self.block)

    @property
    def form(self) -> Form | None:
        """Return the form of slot weights of slates that the estimators need, or None."""
        return next((form for form in FORMS if form in self.needs), None)

    @property
    def mixes_components(self) -> bool:
        """Return whether an average keeps components apart, and starts from recent evidence."""
        return any(average.mixes_components for average in self.averages)

    @property
    def pairs(self) -> list[Pair]:
        """Return every pair of an estimator and an average."""
        return [(estimator.label, average.label) for average in self.averages for estimator in self.estimators]

    @cached_property
    def _drifts(self) -> list[DriftRateEstimator | None]:
        """Return the drift-rate estimator for each average, or None if neither it nor its interval needs one."""
        return [
            average.drift if bound.drift == "include" or not average.drift_on_request else None
            for average, bound in zip(self.averages, self.bounds, strict=True)
        ]

    @cached_property
    def _drift_estimators(self) -> dict[str, DriftRateEstimator]:
        """Return the drift-rate estimators by name, each once."""
        return {drift.name: drift for drift in self._drifts if drift is not None}

    @cached_property
    def _short_spans(self) -> dict[str, ShortSpans]:
        """Return the estimators of drift rates over short spans by name, each once."""
        estimators = [ShortSpans(drift.span) for drift in self._drifts if drift is not None and drift.short]
        return {estimator.name: estimator for estimator in estimators}

    def start(self) -> GridState:
        """Start before the first event."""
        policies, bank = len(self.candidates), self.bank
        return GridState(
            np.zeros(policies, dtype=bool),
            [
                RewardState(
                    {column.label: column.start(policies) for column in self.columns},
                    {
                        name: drift.start(policies, bank.columns, self.block)
                        for name, drift in self._drift_estimators.items()
                    },
                    {
                        name: spans.start(policies, bank.columns, self.block)
                        for name, spans in self._short_spans.items()
                    },
                    {average.label: average.start(bank) for average in self.averages},
                    {label: trackers[reward].start(policies) for label, trackers in self.trackers.items()},
                    past.start_history(policies, len(bank.layout.totals)),
                )
                for reward in range(self.rewards)
            ],
        )

    def fold(
        self, state: GridState, evidence: Sequence[Evidence], lifts: Iterable[Pair] = ()
    ) -> dict[Pair, list[Lift]]:
        """Fold whole blocks into the state, both halves in one call, see `fold_sums`.

        Args:
            state: the state, which changes
            evidence: evidence for each reward, with the same importance weights and with recent means
            lifts: pairs of an estimator and an average that mixes components
        """
        recent = [reward_evidence.restricted_to(self.needs).recent for reward_evidence in evidence]
        return self.fold_sums(state, self.summarise(state, evidence), recent, lifts)

    def summarise(self, state: GridState, evidence: Sequence[Evidence]) -> GridSums:
        """Sum up whole blocks (half 1).

        Args:
            state: a state at some time before these blocks, which decides about learned coefficients and does not
                change
            evidence: evidence for each reward, with the same importance weights
        """
        kept = self._kept(state, evidence)
        if not kept.any():
            return GridSums(kept, np.zeros((0, len(self.candidates)), dtype=bool), ())
        visible = [reward_evidence.restricted_to(self.needs).select_blocks(kept) for reward_evidence in evidence]
        if state.seen.all():
            present = np.ones((int(kept.sum()), len(self.candidates)), dtype=bool)
        else:
            present = np.asarray(np.logical_or.reduce([_present(reward_evidence) for reward_evidence in visible]))
        rewards = []
        for reward_state, seen in zip(state.rewards, visible, strict=True):
            added, terms = self._added(reward_state, seen)
            rewards.append(msgspec.structs.replace(added, observed=(seen, terms) if self.trackers else None))
        return GridSums(kept, present, tuple(rewards))

    def fold_sums(
        self,
        state: GridState,
        sums: GridSums,
        recent: Sequence[RecentMoments],
        lifts: Iterable[Pair] = (),
        read: Collection[int] = (),
    ) -> dict[Pair, list[Lift]]:
        """Fold the sums of whole blocks into the state (half 2), and return the lifts that belong to this grid.

        Args:
            state: the state, which changes
            sums: what `summarise` returned
            recent: recent means for each reward after each block. Unused unless an average mixes components.
            lifts: pairs of an estimator and an average that mixes components
            read: indices of the rewards with lifts that need a reading after each block
        """
        own = [pair for pair in lifts if pair in self.pairs]
        if not sums.rewards:
            return {pair: self._lifts(pair, sums.kept, [{}] * self.rewards) for pair in own}
        state.seen = state.seen | sums.seen.any(axis=0)
        reward_lifts = []
        for index, (reward, added) in enumerate(zip(state.rewards, sums.rewards, strict=True)):
            means = recent[index].select_blocks(sums.kept) if self.mixes_components else None
            reward_lifts.append(self._fold_reward(reward, index, added, means, bool(own) and index in read))
        return {pair: self._lifts(pair, sums.kept, reward_lifts) for pair in own}

    def _fold_reward(
        self, state: RewardState, index: int, added: RewardSums, recent: RecentMoments | None, reads: bool
    ) -> dict[str, Lift | None]:
        """Fold whole blocks into the state of one reward, and return the lifts by average."""
        bank, paths = self.bank, self._learned(state, added)
        sums = self._with_priors(added.sums, paths, recent)
        state.estimators = _last(state.estimators, paths)
        steps = past.steps_of(state.history, sums, bank.layout)
        rates, short = {}, {}
        if self._drift_estimators:
            values = terms_of(sums, bank.layout)
            rates = {
                name: one.fold(state.drift[name], values, self.block) for name, one in self._drift_estimators.items()
            }
            short = {name: one.fold(state.spans[name], values, self.block) for name, one in self._short_spans.items()}
        lifts = {}
        for average, drift in zip(self.averages, self._drifts, strict=True):
            path = Path(sums, steps, _rate(drift, rates, short), reads)
            lifts[average.label] = average.fold(state.averages[average.label], path, bank)
        for label, trackers in self.trackers.items():
            state.watched[label] = trackers[index].fold(state.watched[label], *added.observed)
        return lifts

    def learn(self, state: GridState, sums: GridSums) -> None:
        """Update only what half 1 of the next blocks needs."""
        for reward, added in zip(state.rewards, sums.rewards, strict=False):
            reward.estimators = _last(reward.estimators, self._learned(reward, added))
        state.seen = state.seen | sums.seen.any(axis=0)

    def _learned(self, state: RewardState, added: RewardSums) -> dict[str, dict[str, Array]]:
        """Return the states of estimators after each of these blocks, [blocks, P, ...]."""
        fading = fading_of(self.block)
        return {
            label: {
                name: decayed_path(getattr(state.estimators[label], name), rows, fading)
                for name, rows in lesson.items()
            }
            for label, lesson in added.lessons.items()
        }

    def _with_priors(
        self, sums: BlockSums, paths: Mapping[str, dict[str, Array]], recent: RecentMoments | None
    ) -> BlockSums:
        """Return the sums with what averages start from.

        Args:
            sums: sums of blocks
            paths: states of estimators after each block
            recent: recent means
        """
        if recent is None:
            return sums
        mean = recent.reward[:, None]
        values = [prior for column in self.columns for prior in column.priors(mean, paths[column.label])]
        return sums.with_priors(values, recent)

    def _added(self, state: RewardState, seen: Evidence) -> tuple[RewardSums, list[Terms]]:
        """Sum up whole blocks, or the unfinished one, and return the terms of all estimators too."""
        terms = [column.terms(seen, state.estimators[column.label])[0] for column in self.columns]
        series = BlockSeries(self.bank.layout, seen, terms)
        views = {average.label: average.view(series, state.averages[average.label]) for average in self.averages}
        sums = series.sums({label: view for label, view in views.items() if view is not None})
        lessons = {column.label: dict(term.lesson) for column, term in zip(self.columns, terms, strict=True)}
        return RewardSums(sums, lessons), terms

    def _kept(self, state: GridState, evidence: Sequence[Evidence]) -> Mask:
        """Return which of these blocks are folded, [blocks]."""
        first = evidence[0]
        if not self.optional:
            return np.ones(first.blocks, dtype=bool)
        all_mix, seen = all(average.mixes_components for average in self.averages), bool(state.seen.any())
        if first.actions is None and (all_mix or not seen):  # no event has the required fields
            return np.zeros(first.blocks, dtype=bool)
        used = np.logical_or.reduce(
            [reward_evidence.restricted_to(self.needs).used_blocks for reward_evidence in evidence]
        )
        return np.asarray(used if all_mix else np.logical_or.accumulate(used | seen))

    def _lifts(self, pair: Pair, kept: Mask, reward_lifts: Sequence[Mapping[str, Lift | None]]) -> list[Lift]:
        """Return the lifts after each block, for each reward, NaN in blocks that are not kept."""
        first, count = [column.label for column in self.columns].index(pair[0]), len(self.columns)
        lifts = []
        for by_average in reward_lifts:
            every, rows = by_average.get(pair[1]), np.full((10, len(kept), len(self.candidates) - 1), np.nan)
            rows[4:7] = rows[8:] = 0.0
            if every is not None:
                for index, columns in enumerate((*every[:4], *(every.block or ()))):
                    rows[index, kept] = columns.reshape(len(columns), -1, count)[..., first]
            value, variance, drift, events = rows[:4]
            reading = None if every is None else every.reading
            lifts.append(Lift(value, variance, drift, events, BlockLift(*rows[4:]), reading=reading))
        return lifts

    def select_reward(self, state: GridState, index: int) -> tuple[Grid, GridState]:
        """Return the grid of one reward alone, with its state."""
        if self.rewards == 1:
            return self, state
        trackers = {label: [sequences[index]] for label, sequences in self.trackers.items()}
        return replace(self, trackers=trackers, rewards=1), GridState(state.seen, [state.rewards[index]])

    def shown(self, state: GridState, tail: Evidence | None) -> Mask:
        """Return the policies that have rows, [policies]. In an optional grid, only if an event has all fields."""
        if not self.optional:
            return np.ones(len(self.candidates), dtype=bool)
        return state.seen if tail is None else state.seen | _present(tail.restricted_to(self.needs))[-1]

    def read(
        self, state: GridState, tail: Evidence | None, errors: Array, wanted: Collection[str] | None = None
    ) -> Iterator[tuple[AnyAverage, AnyInterval, Reading, TrackedBounds | None]]:
        """Yield each average with its interval, its moments now, and the bounds of its confidence sequence, if any.

        The grid has one reward.

        Args:
            state: the state of the grid
            tail: events of the unfinished block
            errors: [policies]. Probability that a sequence ever misses.
            wanted: labels of the averages to read, by default all
        """
        (reward_state,), sums, late = state.rewards, None, None
        if tail is not None and self._kept(state, [tail]).any():
            visible = tail.restricted_to(self.needs)
            added, terms = self._added(reward_state, visible)
            means = visible.recent if self.mixes_components else None
            sums, late = self._with_priors(added.sums, self._learned(reward_state, added), means), (visible, terms)
        for average, bound, drift in zip(self.averages, self.bounds, self._drifts, strict=True):
            if wanted is not None and average.label not in wanted:
                continue
            tracked = None
            for watch in self.trackers.get(average.label, ()):
                tracked = watch.read(reward_state.watched[average.label], late, errors)
            rates = {name: memory.mean for name, memory in reward_state.drift.items()}
            rate = _rate(drift, rates, {name: memory.rate for name, memory in reward_state.spans.items()})
            yield average, bound, average.read(reward_state.averages[average.label], sums, rate, self.bank), tracked

    def resume(self, before: Grid, state: GridState) -> GridState:
        """Return the state of the grid `before`, which has the same averages. What it lacks starts from zero.

        A confidence sequence of another kind starts from zero too.
        """
        same = [
            label for label, trackers in self.trackers.items() if list(before.trackers.get(label, ())) == list(trackers)
        ]
        rewards = [
            RewardState(
                before_state.estimators,
                {name: before_state.drift.get(name, unknown) for name, unknown in new.drift.items()},
                {name: before_state.spans.get(name, unknown) for name, unknown in new.spans.items()},
                {label: before_state.averages[label] for label in new.averages},
                {
                    label: before_state.watched[label] if label in same else tracker_state
                    for label, tracker_state in new.watched.items()
                },
                before_state.history,
            )
            for before_state, new in zip(state.rewards, self.start().rewards, strict=True)
        ]
        return GridState(state.seen, rewards)

    def join(self, state: GridState, late: GridState, company: Company) -> GridState:
        """Return the state with the new policies of a late state, which may change. Averages of only one are kept."""
        rewards = []
        for own, other in zip(state.rewards, late.rewards, strict=True):
            averages = {**other.averages, **own.averages}
            for average in self.averages:
                if average.label in own.averages and average.label in other.averages:
                    both = own.averages[average.label], other.averages[average.label]
                    averages[average.label] = average.join(*both, company, self.bank)
            first, second = (msgspec.structs.replace(reward_state, averages={}) for reward_state in (own, other))
            rewards.append(msgspec.structs.replace(joined(first, second, company), averages=averages))
        return GridState(joined(state.seen, late.seen, company), rewards)

    def select(self, state: GridState, part: Grid, index: Sequence[int]) -> GridState:
        """Return the state of `part`, a grid of some of these policies, estimators and averages with the same `needs`.

        Args:
            state: the state of this grid
            part: the smaller grid
            index: indices of its policies in this grid, production first

        Raises:
            ValueError: Production is not the first policy of `part`.
        """
        if index[0] != 0:
            raise ValueError("lifts are over production: it must stay the first policy")
        columns = [self.columns.index(column) for column in part.columns]
        selection = Selection(self.bank, part.bank, index)
        return GridState(
            select_policies(state.seen, index),
            [self._selected(reward, part, selection, columns, number) for number, reward in enumerate(state.rewards)],
        )

    def _selected(
        self, state: RewardState, part: Grid, selection: Selection, columns: Sequence[int], number: int
    ) -> RewardState:
        """Return the state of one reward for `part`."""
        index, averages = selection.policies, {}
        same = part.bank.layout.names == self.bank.layout.names
        for average in part.averages:
            before = average.select_policies(state.averages[average.label], index)
            averages[average.label] = before if same else average.select(before, selection)
        drift = select_policies({name: state.drift[name] for name in part._drift_estimators}, index)
        spans = select_policies({name: state.spans[name] for name in part._short_spans}, index)
        for memory in (*drift.values(), *spans.values()):
            for name in memory.__struct_fields__:
                if name != "blocks":  # all columns share it
                    setattr(memory, name, np.ascontiguousarray(getattr(memory, name)[:, columns]))
        watched = {
            label: select_policies(trackers[number].select_groups(state.watched[label]), index)
            if label in self.trackers
            else trackers[number].start(len(index))
            for label, trackers in part.trackers.items()
        }
        estimators = {column.label: select_policies(state.estimators[column.label], index) for column in part.columns}
        history = selection.history(select_policies(state.history, index))
        return RewardState(estimators, drift, spans, averages, watched, history)


def _rate(drift: DriftRateEstimator | None, rates: Mapping[str, Array], short: Mapping[str, Array]) -> Array | None:
    """Return the drift rate of an average, from the rates over spans and over short spans by name."""
    if drift is None:
        return None
    rate = rates[drift.name]
    return largest(rate, short[ShortSpans(drift.span).name]) if drift.short else rate


def _last(before: Mapping[str, Any], paths: Mapping[str, dict[str, Array]]) -> dict[str, Any]:
    """Return the states of estimators with the last values on their paths."""
    states = {}
    for label, state in before.items():
        last = {name: path[-1] for name, path in paths[label].items()}
        states[label] = msgspec.structs.replace(state, **last) if last else state
    return states


def _present(visible: Evidence) -> Mask:
    """Return whether each policy has an event in each block, [blocks, P]."""
    return np.asarray((split_blocks(visible.sample_weight, visible.blocks) != 0).any(axis=-1))
