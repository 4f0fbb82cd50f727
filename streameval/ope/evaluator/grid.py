"""A grid: some estimators, each on some averages, over the same events."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import msgspec
import numpy as np

from streameval.common.arrays import Array, Mask, State, from_plain, to_plain, typed_like
from streameval.ope.core import AnyAverage, Lift, Reading, past
from streameval.ope.core.bank import Bank
from streameval.ope.core.base import Path, terms_of
from streameval.ope.core.drift_rate import DriftRateEstimator, DriftState
from streameval.ope.core.layout import Layout
from streameval.ope.core.mixture import MixtureState
from streameval.ope.core.past import History
from streameval.ope.core.selection import Selection
from streameval.ope.core.summary import BlockSeries, BlockSums
from streameval.ope.estimators import AnyEstimator, Estimator, Terms
from streameval.ope.evidence.actions import FORMS, Form, Requirements
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.intervals import AnyInterval
from streameval.ope.intervals.sequences.tracker import SequenceTracker, TrackedBounds

Pair: TypeAlias = tuple[str, str]
"""The labels of an estimator and an average."""


class RewardState(msgspec.Struct):
    """What a grid knows about one reward; axis 0 of every array counts policies.

    Args:
        estimators: what each estimator has learned, by label
        drift: the memory of each drift rate, by name
        averages: the state of each average, by label
        watched: the state of each confidence sequence, by the label of its average
        history: the last blocks, with which the next ones are compared
    """

    estimators: dict[str, State]
    drift: dict[str, DriftState]
    averages: dict[str, Any]
    watched: dict[str, State]
    history: History


class GridState(msgspec.Struct):
    """The state of a grid: for each reward; and whether a policy has had an event with all fields [P]."""

    seen: Mask
    rewards: list[RewardState]


@dataclass(frozen=True)
class Grid:
    """Every one of `estimators` on every one of `averages`, whose interval is the bound at the same place.

    All estimators of a grid have the same `needs`: events without these fields are missing. `candidates` [policies]:
    whether a policy is one whose behaviour is compared with others. `trackers`: confidence sequences, one for each
    reward, by the label of the average, if its interval is one. `rewards`: how many there are.

    `optional`: the configuration did not ask for these estimators by name. They cost nothing, and have no rows, while
    no event has the required fields: blocks before the first event that has them are left out, and so are all blocks
    without such an event if every average mixes components, as its clock stands still meanwhile. (An average that
    forgets by a window must see the blocks that push the evidence out.)

    `logged`: production is the policy that took the logged actions, and its importance weights are all 1.
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
        """The estimators that have columns for a reward: those to choose from in place of one with `cap: auto`."""
        return tuple(column for estimator in self.estimators for column in estimator.alternatives.values())

    @cached_property
    def bank(self) -> Bank:
        """What all averages share."""
        of_clicks = any(column.of_clicks for column in self.columns)
        layout = Layout(
            columns=self.columns,
            paired=not all(average.mixes_components for average in self.averages),
            mixed=self.mixes_components,
            apart=not self.logged or bool(self.needs),
            unit_production=self.logged and not of_clicks and self.form is None,
        )
        return Bank(layout, self.candidates, self.block)

    @property
    def form(self) -> Form | None:
        """The form in which the estimators need the weights of slates slot by slot; None if they do not."""
        return next((form for form in FORMS if form in self.needs), None)

    @property
    def mixes_components(self) -> bool:
        """Whether an average keeps components apart, and starts from recent evidence."""
        return any(average.mixes_components for average in self.averages)

    @property
    def pairs(self) -> list[Pair]:
        """Every estimator on every average."""
        return [(estimator.label, average.label) for average in self.averages for estimator in self.estimators]

    @cached_property
    def _drifts(self) -> list[DriftRateEstimator | None]:
        """The estimator of the drift rate for each average; None if neither it nor its interval needs one."""
        return [
            average.drift if bound.drift == "include" or not average.drift_on_request else None
            for average, bound in zip(self.averages, self.bounds, strict=True)
        ]

    @cached_property
    def _drift_estimators(self) -> dict[str, DriftRateEstimator]:
        """The estimators of the drift rate, each once, by name."""
        return {drift.name: drift for drift in self._drifts if drift is not None}

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
                    {average.label: average.start(bank) for average in self.averages},
                    {label: of[reward].start(policies) for label, of in self.trackers.items()},
                    past.start_history(policies, len(bank.layout.totals)),
                )
                for reward in range(self.rewards)
            ],
        )

    def fold(
        self, state: GridState, evidence: Sequence[Evidence], lifts: Iterable[Pair] = ()
    ) -> dict[Pair, list[Lift]]:
        """Fold whole blocks into the state; of these lifts, return those of this grid, for each reward.

        Args:
            state: changes
            evidence: of each reward, with the same importance weights
            lifts: pairs of an estimator and an average that mixes components
        """
        own = [pair for pair in lifts if pair in self.pairs]
        kept = self._kept(state, evidence)
        if not kept.any():
            return {pair: self._lifts(pair, kept, [{}] * self.rewards) for pair in own}
        visible = [each.restricted_to(self.needs).of_blocks(kept) for each in evidence]
        state.seen = _seen(state.seen, visible)
        found = [
            self._fold_reward(reward, place, seen)
            for place, (reward, seen) in enumerate(zip(state.rewards, visible, strict=True))
        ]
        return {pair: self._lifts(pair, kept, found) for pair in own}

    def _fold_reward(self, state: RewardState, place: int, seen: Evidence) -> dict[str, Lift | None]:
        """Fold whole blocks into the state of one reward; return the lifts by average."""
        terms, state.estimators = self._terms(state, seen)
        sums, bank = self._sums(state, seen, terms), self.bank
        steps = past.steps_of(state.history, sums, bank.layout)
        rates: dict[str, Array] = {}
        if self._drift_estimators:
            values = terms_of(sums, bank.layout)
            rates = {
                name: drift.fold(state.drift[name], values, self.block)
                for name, drift in self._drift_estimators.items()
            }
        found = {}
        for average, drift in zip(self.averages, self._drifts, strict=True):
            path = Path(sums, steps, None if drift is None else rates[drift.name])
            found[average.label] = average.fold(state.averages[average.label], path, bank)
        for label, trackers in self.trackers.items():
            state.watched[label] = trackers[place].fold(state.watched[label], seen, terms)
        return found

    def _sums(self, state: RewardState, seen: Evidence, terms: Sequence[Terms]) -> BlockSums:
        series = BlockSeries(self.bank.layout, seen, terms)
        views = {average.label: average.view(series, state.averages[average.label]) for average in self.averages}
        return series.sums({label: view for label, view in views.items() if view is not None})

    def _terms(self, state: RewardState, seen: Evidence) -> tuple[list[Terms], dict[str, State]]:
        """Return the terms of all estimators, and what they have learned after the events."""
        computed = [column.terms(seen, state.estimators[column.label]) for column in self.columns]
        after = {column.label: each for column, (_, each) in zip(self.columns, computed, strict=True)}
        return [term for term, _ in computed], after

    def _kept(self, state: GridState, evidence: Sequence[Evidence]) -> Mask:
        """Return which of these blocks are folded, [blocks]."""
        first = evidence[0]
        if not self.optional:
            return np.ones(first.blocks, dtype=bool)
        all_mix, seen = all(average.mixes_components for average in self.averages), bool(state.seen.any())
        if first.actions is None and (all_mix or not seen):  # no event has the required fields
            return np.zeros(first.blocks, dtype=bool)
        used = np.logical_or.reduce([each.restricted_to(self.needs).used_blocks for each in evidence])
        return np.asarray(used if all_mix else np.logical_or.accumulate(used | seen))

    def _lifts(self, pair: Pair, kept: Mask, found: Sequence[Mapping[str, Lift | None]]) -> list[Lift]:
        """Return a lift after each block, of each reward; NaN in blocks that are not kept."""
        first, count = [column.label for column in self.columns].index(pair[0]), len(self.columns)
        lifts = []
        for of_reward in found:
            every, rows = of_reward.get(pair[1]), np.full((4, len(kept), len(self.candidates) - 1), np.nan)
            if every is not None:
                for place, columns in enumerate(every):
                    rows[place, kept] = columns.reshape(len(columns), -1, count)[..., first]
            lifts.append(Lift(*rows))
        return lifts

    def of_reward(self, state: GridState, place: int) -> tuple[Grid, GridState]:
        """Return the grid of one of the rewards alone, with its state."""
        if self.rewards == 1:
            return self, state
        trackers = {label: [of[place]] for label, of in self.trackers.items()}
        return replace(self, trackers=trackers, rewards=1), GridState(state.seen, [state.rewards[place]])

    def shown(self, state: GridState, tail: Evidence | None) -> Mask:
        """Return the policies that have rows, [policies]: of an optional grid, those with an event with all fields."""
        if not self.optional:
            return np.ones(len(self.candidates), dtype=bool)
        return state.seen if tail is None else _seen(state.seen, [tail.restricted_to(self.needs)])

    def read(
        self, state: GridState, tail: Evidence | None, errors: Array, wanted: Collection[str] | None = None
    ) -> Iterator[tuple[AnyAverage, AnyInterval, Reading, TrackedBounds | None]]:
        """Yield each average with its interval, its moments now, and the bounds of its confidence sequence, if any.

        The grid has one reward.

        Args:
            state: of the grid
            tail: the events of the unfinished block
            errors: the probability that a sequence ever misses [policies]
            wanted: the labels of the averages to read, by default all
        """
        (of_reward,), sums, late = state.rewards, None, None
        if tail is not None and self._kept(state, [tail]).any():
            visible = tail.restricted_to(self.needs)
            terms, _ = self._terms(of_reward, visible)
            sums, late = self._sums(of_reward, visible, terms), (visible, terms)
        for average, bound, drift in zip(self.averages, self.bounds, self._drifts, strict=True):
            if wanted is not None and average.label not in wanted:
                continue
            tracked = None
            for watch in self.trackers.get(average.label, ()):
                tracked = watch.read(of_reward.watched[average.label], late, errors)
            rate = None if drift is None else of_reward.drift[drift.name].mean
            yield average, bound, average.read(of_reward.averages[average.label], sums, rate, self.bank), tracked

    def to_state(self, state: GridState) -> State:
        """Return the state as a plain value."""
        plain: State = to_plain(state)
        return {**plain, "kinds": {label: repr(list(of)) for label, of in self.trackers.items()}}

    def from_state(self, saved: State, fresh: GridState) -> GridState:
        """Return the inverse of `to_state`; what `saved` lacks is as in `fresh`, the state before the first event.

        So is a confidence sequence that was kept as another kind.
        """
        state = from_plain(saved)
        kinds = state.pop("kinds")
        rewards = []
        for known, new in zip(state["rewards"], fresh.rewards, strict=True):
            watched = {
                label: known["watched"][label] if kinds.get(label) == repr(list(of)) else new.watched[label]
                for label, of in self.trackers.items()
            }
            rewards.append(
                RewardState(
                    known["estimators"],
                    {name: typed_like(unknown, known["drift"].get(name)) for name, unknown in new.drift.items()},
                    {name: typed_like(each, known["averages"][name]) for name, each in new.averages.items()},
                    watched,
                    typed_like(new.history, known["history"]),
                )
            )
        return GridState(state["seen"], rewards)

    def select(self, state: GridState, part: Grid, index: Sequence[int]) -> GridState:
        """Return the state of `part`, a grid of some of these policies, estimators and averages with the same `needs`.

        `index`: the places of its policies in this grid, production first.

        Raises:
            ValueError: Production is not the first policy of `part`.
        """
        if index[0] != 0:
            raise ValueError("lifts are over production: it must stay the first policy")
        columns = [self.columns.index(column) for column in part.columns]
        selection = Selection(self.bank, part.bank, index)
        return GridState(
            state.seen[list(index)],
            [self._selected(reward, part, selection, columns, place) for place, reward in enumerate(state.rewards)],
        )

    def _selected(
        self, state: RewardState, part: Grid, selection: Selection, columns: Sequence[int], place: int
    ) -> RewardState:
        """Return what `part` has of the state of one reward."""
        lifts = [policy - 1 for policy in selection.policies[1:]]
        averages, same = {}, part.bank.layout.names == self.bank.layout.names
        for average in part.averages:
            before = state.averages[average.label]
            if isinstance(before, MixtureState):
                of_lifts = selection.of_policies([before.lifts, before.history], lifts)
                before = MixtureState(selection.of_policies(before.values), *of_lifts)
            else:
                before = selection.of_policies(before)
            averages[average.label] = before if same else average.select(before, selection)
        drift = selection.of_policies({name: state.drift[name] for name in part._drift_estimators})
        for each in drift.values():
            for name in ("smoothed", "values", "latest", "mean"):
                setattr(each, name, np.ascontiguousarray(getattr(each, name)[:, columns]))
        watched = {
            label: selection.of_policies(of[place].select_groups(state.watched[label]))
            if label in self.trackers
            else of[place].start(len(selection.policies))
            for label, of in part.trackers.items()
        }
        estimators = {column.label: selection.of_policies(state.estimators[column.label]) for column in part.columns}
        history = selection.history(selection.of_policies(state.history))
        return RewardState(estimators, drift, averages, watched, history)


def _seen(seen: Mask, visible: Sequence[Evidence]) -> Mask:
    for each in visible if not seen.all() else ():
        seen = seen | (each.sample_weight != 0).any(axis=0)
    return np.asarray(seen)
