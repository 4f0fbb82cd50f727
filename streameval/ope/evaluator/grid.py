"""A grid: some estimators, each on some averages, over the same events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from streameval.common.arrays import Array, Mask, State, from_plain, take_columns, to_plain
from streameval.ope.averages import AnyAverage, Reading
from streameval.ope.averages.base import ColumnLayout, MixturePath
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.drift_rate import UNKNOWN_DRIFT_RATE, DriftRate, DriftRateEstimator
from streameval.ope.estimators import AnyEstimator, Terms
from streameval.ope.evidence.actions import Requirements
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.intervals import AnyInterval
from streameval.ope.intervals.sequences.tracker import SequenceTracker, TrackedBounds


class GridReading(NamedTuple):
    """The moments of an average for all policies and for the lifts of all but production; and the interval for both.

    `watched`: the bounds that were kept all along, where the interval is a confidence sequence.
    """

    average: AnyAverage
    bound: AnyInterval
    reading: Reading
    lift: Reading
    watched: TrackedBounds | None


class Folded(NamedTuple):
    """A grid after some whole blocks.

    `lift_paths`: by label, the path of the lifts on each average that mixes components, over the blocks that were
    folded; `kept` [blocks]: which ones these are.
    """

    state: State
    lift_paths: dict[str, MixturePath]
    kept: Mask


@dataclass(frozen=True)
class Grid:
    """Every one of `estimators` on every one of `averages`, whose interval is the bound at the same place.

    All estimators of a grid have the same `needs`: events without these fields are missing. `candidates` [policies]:
    whether a policy is one whose behaviour is compared with that of others. `watches`: the trackers of the confidence
    sequences of each average, where its interval is one.

    `optional`: the configuration did not ask for these estimators by name. They cost nothing, and have no rows, while
    no event has what they need: blocks before the first event that has it are left out, and so are all blocks without
    such an event where every average mixes components, as its clock stands still meanwhile. (An average that forgets by
    a window must see the blocks that push the evidence out.)

    A state holds dictionaries: of estimators, averages and trackers by label, of drift rates by the place of their
    estimator.
    """

    estimators: tuple[AnyEstimator, ...]
    averages: tuple[AnyAverage, ...]
    bounds: tuple[AnyInterval, ...]
    candidates: tuple[bool, ...]
    needs: Requirements
    watches: tuple[SequenceTracker | None, ...]
    optional: bool = False

    @property
    def layout(self) -> ColumnLayout:
        """The columns of this grid."""
        return ColumnLayout(tuple(estimator.parts for estimator in self.estimators), self.candidates)

    @property
    def mixes_components(self) -> bool:
        """Whether an average keeps components apart, and starts from recent evidence."""
        return any(average.mixes_components for average in self.averages)

    @property
    def _all_mix(self) -> bool:
        return all(average.mixes_components for average in self.averages)

    @property
    def _drift_estimators(self) -> dict[str, DriftRateEstimator]:
        """The estimators of the drift rate that the averages need, each once, by name."""
        needed = (average.drift for average in self.averages)
        return {drift.name: drift for drift in needed if drift is not None}

    @property
    def _trackers(self) -> dict[str, SequenceTracker]:
        """The trackers of confidence sequences, by the label of the average."""
        pairs = zip(self.averages, self.watches, strict=True)
        return {average.label: watch for average, watch in pairs if watch is not None}

    def start(self, block: int) -> State:
        """The state before the first event."""
        policies = len(self.candidates)
        return {
            "seen": np.zeros(policies, dtype=bool),
            "estimators": {estimator.label: estimator.start(policies) for estimator in self.estimators},
            "drift": {name: drift.start(self.layout.columns, block) for name, drift in self._drift_estimators.items()},
            "averages": {average.label: average.start(self.layout, block) for average in self.averages},
            "watched": {label: watch.start(policies) for label, watch in self._trackers.items()},
        }

    def fold(self, state: State, evidence: Evidence) -> Folded:
        """The state after these whole blocks, and the paths of the lifts on averages that mix components."""
        if self._is_idle(state, evidence):
            return Folded(state, {}, np.zeros(evidence.blocks, dtype=bool))
        visible = evidence.restricted_to(self.needs)
        kept = self._kept(state, visible)
        if not kept.any():
            return Folded(state, {}, kept)
        visible = visible.of_blocks(kept)
        terms, estimators, blocks = self._compute_terms(state, visible)
        rates: dict[DriftRateEstimator | None, DriftRate] = {None: UNKNOWN_DRIFT_RATE}
        drift = {}
        for name, estimator in self._drift_estimators.items():
            rates[estimator], drift[name] = estimator.fold(state["drift"][name], blocks)
        averages, lift_paths = {}, {}
        for average in self.averages:
            averages[average.label], path = average.fold(
                state["averages"][average.label], blocks, self.layout, rates[average.drift]
            )
            if path is not None:
                lift_paths[average.label] = path
        watched = {
            label: watch.fold(state["watched"][label], visible, terms) for label, watch in self._trackers.items()
        }
        after = {
            "seen": _seen(state, visible),
            "estimators": estimators,
            "drift": drift,
            "averages": averages,
            "watched": watched,
        }
        return Folded(after, lift_paths, kept)

    def _is_idle(self, state: State, evidence: Evidence) -> bool:
        """Whether no block is folded, as no event has a set of actions: known without a look at the events."""
        return self.optional and evidence.actions is None and (self._all_mix or not state["seen"].any())

    def _kept(self, state: State, visible: Evidence) -> Mask:
        """Which of these blocks are folded, [blocks]."""
        if not self.optional:
            return np.ones(visible.blocks, dtype=bool)
        used = visible.used_blocks
        return used if self._all_mix else np.asarray(np.logical_or.accumulate(used | state["seen"].any()))

    def seen(self, state: State, tail: Evidence | None) -> Mask:
        """Whether a policy has had an event with what is needed, the unfinished block included, [policies]."""
        return np.asarray(state["seen"]) if tail is None else _seen(state, tail.restricted_to(self.needs))

    def read(self, state: State, tail: Evidence | None, errors: Array) -> Iterator[GridReading]:
        """The moments of each average now, with its interval; including the unfinished block.

        `errors` [policies]: the probability that a confidence sequence ever misses.
        """
        blocks, late = None, None
        if tail is not None:
            visible = tail.restricted_to(self.needs)
            if self._kept(state, visible).any():
                terms, _, blocks = self._compute_terms(state, visible)
                late = (visible, terms)
        rates: dict[DriftRateEstimator | None, DriftRate] = {None: UNKNOWN_DRIFT_RATE}
        rates |= {drift: drift.read(state["drift"][name]) for name, drift in self._drift_estimators.items()}
        watched = {label: watch.read(state["watched"][label], late, errors) for label, watch in self._trackers.items()}
        for average, bound in zip(self.averages, self.bounds, strict=True):
            reading = average.read(state["averages"][average.label], blocks, self.layout, rates[average.drift])
            lift = reading.lift(len(self.estimators))
            yield GridReading(average, bound, reading, lift, watched.get(average.label))

    def _compute_terms(self, state: State, evidence: Evidence) -> tuple[list[Terms], State, Blocks]:
        """The terms of all estimators, the estimators' states after them, and the terms side by side as blocks."""
        terms, after = [], {}
        for estimator in self.estimators:
            computed, after[estimator.label] = estimator.terms(evidence, state["estimators"][estimator.label])
            terms.append(computed)
        return terms, after, Blocks.of(evidence, terms)

    def to_state(self, state: State) -> State:
        """The state as a plain value."""
        kinds = {label: repr(watch) for label, watch in self._trackers.items()}
        plain: State = to_plain({**state, "kinds": kinds})
        return plain

    def from_state(self, saved: State, block: int) -> State:
        """The inverse of `to_state`. A confidence sequence that was not kept, or as another kind, starts now."""
        state = from_plain(saved)
        kinds = state.pop("kinds")
        watched = {
            label: state["watched"][label] if kinds.get(label) == repr(watch) else watch.start(len(self.candidates))
            for label, watch in self._trackers.items()
        }
        return {**state, "watched": watched}

    def select(self, state: State, part: Grid, index: Sequence[int]) -> State:
        """The state of `part`, a grid of some of these policies, estimators and averages.

        Args:
            state: of this grid
            part: a grid with the same `needs` and production
            index: the places of its policies in this grid, production first
        """
        if index[0] != 0:
            raise ValueError("lifts are over production: it must stay the first policy")
        policies, kept = len(self.candidates), [self.estimators.index(estimator) for estimator in part.estimators]
        return {
            "seen": state["seen"][list(index)],
            "estimators": {
                estimator.label: take_columns(state["estimators"][estimator.label], policies, index)
                for estimator in part.estimators
            },
            "drift": {
                name: take_columns(state["drift"][name], policies, index, kept) for name in part._drift_estimators
            },
            "averages": {
                average.label: average.select(state["averages"][average.label], self.layout, index, kept)
                for average in part.averages
            },
            "watched": {
                label: take_columns(watch.select_groups(state["watched"][label]), policies, index)
                if label in self._trackers
                else watch.start(len(index))
                for label, watch in part._trackers.items()
            },
        }


def _seen(state: State, visible: Evidence) -> Mask:
    seen: Mask = state["seen"]
    return seen if seen.all() else np.asarray(seen | (visible.sample_weight != 0).any(axis=0))
