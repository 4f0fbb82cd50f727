"""A grid: some estimators, each on some averages, over the same events."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from streameval.common.arrays import Array, Mask, State, from_plain, take_columns, to_plain
from streameval.ope.averages import AnyAverage, Lift, Reading
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.drift_rate import UNKNOWN_DRIFT_RATE, DriftRateEstimator
from streameval.ope.estimators import AnyEstimator, Estimator, Terms
from streameval.ope.evidence.actions import FORMS, Form, Requirements
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.intervals import AnyInterval
from streameval.ope.intervals.sequences.tracker import SequenceTracker, TrackedBounds

Pair: TypeAlias = tuple[str, str]
"""The labels of an estimator and an average."""


@dataclass(frozen=True)
class Grid:
    """Every one of `estimators` on every one of `averages`, whose interval is the bound at the same place.

    All estimators of a grid have the same `needs`: events without these fields are missing. `candidates` [policies]:
    whether a policy is one whose behaviour is compared with that of others. `trackers`: those of confidence sequences,
    one for each reward, by the label of the average, where its interval is one.

    `rewards`: how many there are. Each has the columns of all estimators, next to those of the reward before it.

    `optional`: the configuration did not ask for these estimators by name. They cost nothing, and have no rows, while
    no event has the required fields: blocks before the first event that has them are left out, and so are all blocks
    without such an event where every average mixes components, as its clock stands still meanwhile. (An average that
    forgets by a window must see the blocks that push the evidence out.)

    A state holds dictionaries: of averages by label, of drift rates by the estimator's name; and for each reward those
    of estimators and of trackers by label.
    """

    estimators: tuple[AnyEstimator, ...]
    averages: tuple[AnyAverage, ...]
    bounds: tuple[AnyInterval, ...]
    candidates: tuple[bool, ...]
    needs: Requirements
    trackers: Mapping[str, Sequence[SequenceTracker]]
    optional: bool = False
    rewards: int = 1

    @cached_property
    def columns(self) -> tuple[Estimator, ...]:
        """The estimators that have columns for a reward: those to choose from in place of one with `cap: auto`."""
        return tuple(column for estimator in self.estimators for column in estimator.alternatives.values())

    @property
    def form(self) -> Form | None:
        """The form in which the estimators need the weights of slates slot by slot; None where they do not."""
        return next((form for form in FORMS if form in self.needs), None)

    @property
    def mixes_components(self) -> bool:
        """Whether an average keeps components apart, and starts from recent evidence."""
        return any(average.mixes_components for average in self.averages)

    @property
    def pairs(self) -> list[Pair]:
        """Every estimator on every average."""
        return [(estimator.label, average.label) for average in self.averages for estimator in self.estimators]

    @property
    def _drifts(self) -> list[DriftRateEstimator | None]:
        """The estimator of the drift rate for each average; None where neither it nor its interval needs one."""
        return [
            average.drift if bound.drift == "include" or not average.drift_on_request else None
            for average, bound in zip(self.averages, self.bounds, strict=True)
        ]

    @property
    def _drift_estimators(self) -> dict[str, DriftRateEstimator]:
        """The estimators of the drift rate, each once, by name."""
        return {drift.name: drift for drift in self._drifts if drift is not None}

    def start(self, block: int) -> State:
        """The state before the first event."""
        policies, components = len(self.candidates), [column.parts for column in self.columns] * self.rewards
        columns = policies * len(components)
        return {
            "seen": np.zeros(policies, dtype=bool),
            "estimators": [
                {column.label: column.start(policies) for column in self.columns} for _ in range(self.rewards)
            ],
            "drift": {name: drift.start(columns, block) for name, drift in self._drift_estimators.items()},
            "averages": {
                average.label: average.start(components, self.candidates, block, self.rewards)
                for average in self.averages
            },
            "watched": {label: [watch.start(policies) for watch in of] for label, of in self.trackers.items()},
        }

    def fold(
        self, state: State, evidence: Sequence[Evidence], lifts: Iterable[Pair] = ()
    ) -> tuple[State, dict[Pair, list[Lift]]]:
        """The state after these whole blocks, and of these lifts those that belong to this grid, for each reward.

        `evidence`: of each reward, with the same importance weights. `lifts`: pairs of an estimator and an average that
        mixes components.
        """
        own = [pair for pair in lifts if pair in self.pairs]
        kept = self._kept(state, evidence)
        if not kept.any():
            return state, {pair: self._lifts(pair, kept, {}) for pair in own}
        visible = [each.restricted_to(self.needs).of_blocks(kept) for each in evidence]
        terms, estimators, blocks = self._compute_terms(state, visible)
        rates: dict[DriftRateEstimator | None, Array] = {None: UNKNOWN_DRIFT_RATE}
        drift = {}
        for name, estimator in self._drift_estimators.items():
            rates[estimator], drift[name] = estimator.fold(state["drift"][name], blocks)
        averages, found = {}, {}
        for average, measured in zip(self.averages, self._drifts, strict=True):
            averages[average.label], found[average.label] = average.fold(
                state["averages"][average.label], blocks, rates[measured]
            )
        after = {
            "seen": _seen(state, visible),
            "estimators": estimators,
            "drift": drift,
            "averages": averages,
            "watched": {
                label: [
                    watch.fold(before, seen, own)
                    for watch, before, seen, own in zip(of, state["watched"][label], visible, terms, strict=True)
                ]
                for label, of in self.trackers.items()
            },
        }
        return after, {pair: self._lifts(pair, kept, found) for pair in own}

    def _kept(self, state: State, evidence: Sequence[Evidence]) -> Mask:
        """Which of these blocks are folded, [blocks]."""
        first = evidence[0]
        if not self.optional:
            return np.ones(first.blocks, dtype=bool)
        all_mix, seen = all(average.mixes_components for average in self.averages), bool(state["seen"].any())
        if first.actions is None and (all_mix or not seen):  # no event has the required fields
            return np.zeros(first.blocks, dtype=bool)
        used = np.logical_or.reduce([each.restricted_to(self.needs).used_blocks for each in evidence])
        return np.asarray(used if all_mix else np.logical_or.accumulate(used | seen))

    def _lifts(self, pair: Pair, kept: Mask, found: Mapping[str, Lift | None]) -> list[Lift]:
        """A lift after each block, of each reward; NaN in blocks that are not kept. `found`: all lifts, by average."""
        lifts = np.full((self.rewards, 4, len(kept), len(self.candidates) - 1), np.nan)
        every = found.get(pair[1])
        if every is not None:
            first, count = [column.label for column in self.columns].index(pair[0]), len(self.columns)
            for place, columns in enumerate(every):
                by_reward = columns.reshape(-1, len(self.candidates) - 1, self.rewards, count)[..., first]
                lifts[:, place, kept] = np.moveaxis(by_reward, -1, 0)
        return [Lift(*lift) for lift in lifts]

    def of_reward(self, state: State, place: int) -> tuple[Grid, State]:
        """The grid of one of the rewards alone, with its state."""
        if self.rewards == 1:
            return self, state
        trackers = {label: [of[place]] for label, of in self.trackers.items()}
        part, policies = replace(self, trackers=trackers, rewards=1), range(len(self.candidates))
        return part, self._selected(state, part, policies, [place], range(len(self.columns)))

    def shown(self, state: State, tail: Evidence | None) -> Mask:
        """The policies that have rows, [policies]: of an optional grid, those with an event that has all fields."""
        if not self.optional:
            return np.ones(len(self.candidates), dtype=bool)
        return np.asarray(state["seen"]) if tail is None else _seen(state, [tail.restricted_to(self.needs)])

    def read(
        self, state: State, tail: Evidence | None, errors: Array, wanted: Collection[str] | None = None
    ) -> Iterator[tuple[AnyAverage, AnyInterval, Reading, TrackedBounds | None]]:
        """Each average with its interval, its moments now, and the bounds of its confidence sequence, if it has one.

        The grid has one reward.

        `tail`: the events of the unfinished block. `errors` [policies]: the probability that a sequence ever misses.
        `wanted`: the labels of the averages to read, by default all.
        """
        blocks, late = None, None
        if tail is not None and self._kept(state, [tail]).any():
            visible = tail.restricted_to(self.needs)
            (terms,), _, blocks = self._compute_terms(state, [visible])
            late = (visible, terms)
        rates: dict[DriftRateEstimator | None, Array] = {None: UNKNOWN_DRIFT_RATE}
        rates |= {drift: drift.read(state["drift"][name]) for name, drift in self._drift_estimators.items()}
        for average, bound, measured in zip(self.averages, self.bounds, self._drifts, strict=True):
            if wanted is not None and average.label not in wanted:
                continue
            tracked = None
            for watch in self.trackers.get(average.label, ()):
                tracked = watch.read(state["watched"][average.label][0], late, errors)
            reading = average.read(state["averages"][average.label], blocks, rates[measured])
            yield average, bound, reading, tracked

    def _compute_terms(
        self, state: State, evidence: Sequence[Evidence]
    ) -> tuple[list[list[Terms]], list[State], Blocks]:
        """The terms of all estimators for each reward, the estimators' states after them, and all terms as blocks."""
        terms, after = [], []
        for seen, before in zip(evidence, state["estimators"], strict=True):
            computed = [column.terms(seen, before[column.label]) for column in self.columns]
            terms.append([term for term, _ in computed])
            after.append({column.label: each for column, (_, each) in zip(self.columns, computed, strict=True)})
        every = [each for each in evidence for _ in self.columns]
        blocks = Blocks.of(
            every,
            [term for of_reward in terms for term in of_reward],
            paired=not all(average.mixes_components for average in self.averages),
            components=self.mixes_components,
        )
        return terms, after, blocks

    def to_state(self, state: State) -> State:
        """The state as a plain value."""
        kinds = {label: repr(list(of)) for label, of in self.trackers.items()}
        plain: State = to_plain({**state, "kinds": kinds})
        return plain

    def from_state(self, saved: State, fresh: State) -> State:
        """The inverse of `to_state`; what `saved` lacks is as in `fresh`, the state before the first event.

        So is a confidence sequence that was kept as another kind.
        """
        state = from_plain(saved)
        kinds = state.pop("kinds")
        watched = {
            label: (state if kinds.get(label) == repr(list(of)) else fresh)["watched"][label]
            for label, of in self.trackers.items()
        }
        drift = {name: state["drift"].get(name, unknown) for name, unknown in fresh["drift"].items()}
        return {**state, "drift": drift, "watched": watched}

    def select(self, state: State, part: Grid, index: Sequence[int]) -> State:
        """The state of `part`, a grid of some of these policies, estimators and averages with the same `needs`.

        `index`: the places of its policies in this grid, production first.

        Raises:
            ValueError: Production is not the first policy of `part`.
        """
        if index[0] != 0:
            raise ValueError("lifts are over production: it must stay the first policy")
        columns = [self.columns.index(column) for column in part.columns]
        return self._selected(state, part, index, range(self.rewards), columns)

    def _selected(
        self, state: State, part: Grid, index: Sequence[int], rewards: Sequence[int], columns: Sequence[int]
    ) -> State:
        """The state of `part`, which has some of the policies, of the rewards and of the columns of a reward."""
        policies, every = len(self.candidates), len(self.columns)
        kept = [reward * every + column for reward in rewards for column in columns]
        return {
            "seen": state["seen"][list(index)],
            "estimators": [
                {
                    column.label: take_columns(state["estimators"][reward][column.label], policies, index)
                    for column in part.columns
                }
                for reward in rewards
            ],
            "drift": {
                name: take_columns(state["drift"][name], policies, index, kept) for name in part._drift_estimators
            },
            "averages": {
                average.label: average.select(state["averages"][average.label], policies, index, kept)
                for average in part.averages
            },
            "watched": {
                label: [
                    take_columns(watch.select_groups(state["watched"][label][reward]), policies, index)
                    if label in self.trackers
                    else watch.start(len(index))
                    for reward, watch in zip(rewards, of, strict=True)
                ]
                for label, of in part.trackers.items()
            },
        }


def _seen(state: State, visible: Sequence[Evidence]) -> Mask:
    seen: Mask = state["seen"]
    for each in visible if not seen.all() else ():
        seen = seen | (each.sample_weight != 0).any(axis=0)
    return np.asarray(seen)
