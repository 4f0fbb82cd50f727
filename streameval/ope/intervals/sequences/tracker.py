"""The watch of one grid and one average: confidence sequences of all values and lifts in it.

What watches a stream for a confidence sequence: it folds blocks, and reads intervals that hold at all times.

What watches look at: events as the observations of each group of estimators, gone through once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from streameval.common.arrays import Array, Mask, State, ratio
from streameval.ope.estimators import Terms
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.intervals.sequences import powers
from streameval.ope.intervals.sequences.bounded import ROUNDING
from streameval.ope.intervals.sequences.heavy_tailed import LARGEST_OBSERVATION
from streameval.ope.intervals.sequences.measuring import measure
from streameval.ope.intervals.sequences.observations import (
    LIFT_LOWER,
    SIDES,
    VALUE_LOWER,
    ObservationScale,
    fold_sampling,
    of_terms,
    of_weights,
    presence,
    start_sampling,
)
from streameval.ope.intervals.sequences.powers import PowerSums, Present
from streameval.ope.intervals.sequences.restarts import RestartSchedule
from streameval.ope.intervals.sequences.wealth import COUNT, TOTAL, WealthProcess


@dataclass(frozen=True)
class TrackedGroup:
    """Estimators that share their sequences. `of`: the estimator whose terms are observed; None: the weights are."""

    engine: WealthProcess
    scale: ObservationScale
    estimators: tuple[int, ...]
    of: int | None = None

    def observed(self, evidence: Evidence, terms: Sequence[Terms], side: int) -> Array:
        """The observations of a side, [policies, events]."""
        if self.of is None:
            observed = of_weights(evidence, side, self.scale)
            return np.minimum(observed, LARGEST_OBSERVATION, out=observed)
        return of_terms(terms[self.of].u, side, self.scale)

    def powers(self, evidence: Evidence, terms: Sequence[Terms], present: Present) -> PowerSums:
        """What the observations of each block add up to."""
        if self.of is None:
            return powers.of_weights(evidence, self.scale, self.engine.order, self.engine.limit, present)
        return powers.of_terms(terms[self.of].u, self.scale, evidence.blocks, ROUNDING, present)


class BlockView:
    """Some blocks of events, or the one that is not finished, as watches see them: each group is looked at once,
    however many averages are watched."""

    def __init__(self, evidence: Evidence, terms: Sequence[Terms]) -> None:
        self.evidence, self.terms = evidence, terms
        self._powers: dict[TrackedGroup, PowerSums] = {}

    @cached_property
    def present(self) -> Present:
        """Which events count for values and for lifts."""
        return presence(self.evidence)

    def powers(self, group: TrackedGroup) -> PowerSums:
        """What the observations of a group add up to."""
        if group not in self._powers:
            self._powers[group] = group.powers(self.evidence, self.terms, self.present)
        return self._powers[group]

    def one_by_one(self, group: TrackedGroup, block: int) -> Iterator[tuple[Array, Mask | None]]:
        """The observations of one block, side by side, [policies, events], and which are present; others are 0."""
        events = len(self.evidence.reward) // self.evidence.blocks
        part = slice(block * events, (block + 1) * events)
        weights = self.evidence.importance_weight[part], self.evidence.averaging_weight[part]
        evidence = replace(
            self.evidence, importance_weight=weights[0], averaging_weight=weights[1], reward=self.evidence.reward[part]
        )
        terms = [Terms(each.u[part]) for each in self.terms]
        for side in range(SIDES):
            mask = self.present[side >= LIFT_LOWER]
            mask = None if mask is None else mask[:, part]
            observed = group.observed(evidence, terms, side)
            yield (observed, None) if mask is None else (np.where(mask, observed, 0.0), mask)


class TrackedBounds(NamedTuple):
    """The intervals of values and of lifts over production, [columns], NaN where withheld; not cut to any range.

    Column `policy * E + estimator`; policy 0 is production, which has no lift. `details`: what else is to be said.
    `estimates` [4, columns]: what each of the four bounds lies below, or above. They are not the same for both ends:
    the lower one is about weighted rewards, the upper one about weighted losses.
    """

    lower: Array
    upper: Array
    lift_lower: Array
    lift_upper: Array
    details: Mapping[str, Array]
    estimates: Array | None = None


class SequenceTracker(Protocol):
    """A frozen value; what it remembers is handed in and comes back as plain values."""

    def start(self, policies: int, block: int) -> State:
        """The state before the first event."""
        ...

    def fold(self, state: State, look: BlockView) -> State:
        """The state after these whole blocks."""
        ...

    def without_lifts(self, state: State) -> State:
        """The state when production changes: values go on, lifts begin anew."""
        ...

    def of_some(self, state: State, whole: Any, kept: Sequence[int]) -> State:
        """The state of this watch, of that of one of more estimators: of those at these places there."""
        ...

    def read(self, state: State, tail: BlockView | None, error: Array) -> TrackedBounds:
        """The intervals now, the unfinished block included. `error` [policies]: that an interval of this policy,
        two-sided, ever misses."""
        ...


@dataclass(frozen=True)
class BlockSequenceTracker:
    """Confidence sequences for every policy under `estimators` estimators, some of which share theirs.

    Of an estimator that is in no group nothing is known beforehand, and its intervals are withheld.
    """

    groups: tuple[TrackedGroup, ...]
    span: RestartSchedule
    estimators: int

    def start(self, policies: int, block: int) -> State:
        return {
            "block": block,
            "sampling": start_sampling(policies),
            "centres": [np.zeros((SIDES, policies, 2)) for _ in self.groups],
            "spans": [self.span.start(np.zeros((SIDES, policies, group.engine.width))) for group in self.groups],
        }

    def fold(self, state: State, look: BlockView) -> State:
        block, centres, spans, evidence = state["block"], [], [], look.evidence
        for group, centre, span in zip(self.groups, state["centres"], state["spans"], strict=True):
            parts = list(self.span.parts(span, evidence.blocks))
            sums, after = _measure(group, look, centre, parts)
            for part, added in zip(parts, sums, strict=True):
                span = self.span.add(span, added, part)
            centres.append(after)
            spans.append(span)
        sampling = fold_sampling(state["sampling"], evidence.averaging_weight)
        return {"block": block, "sampling": sampling, "centres": centres, "spans": spans}

    def without_lifts(self, state: State) -> State:
        return {**state, "centres": _values_only(state["centres"]), "spans": _values_only(state["spans"])}

    def of_some(self, state: State, whole: BlockSequenceTracker, kept: Sequence[int]) -> State:
        groups = [
            next(place for place, other in enumerate(whole.groups) if _observes(group, other, kept))
            for group in self.groups
        ]
        return {**state, **{name: [state[name][place] for place in groups] for name in ("centres", "spans")}}

    def read(self, state: State, tail: BlockView | None, error: Array) -> TrackedBounds:
        policies = len(error)
        bounds, estimates = (np.full((SIDES, policies, self.estimators), np.nan) for _ in range(2))
        counts = np.full((policies, self.estimators), np.nan)
        for group, sums, share in self._current(state, tail):
            each = np.broadcast_to(error / 2 * share, (SIDES, policies))
            means = group.engine.lower(sums.reshape(-1, group.engine.width), each.ravel()).reshape(SIDES, policies)
            bounds[:, :, group.estimators] = group.scale.bounds(means)[..., None]
            averages = ratio(sums[..., TOTAL], sums[..., COUNT])
            estimates[:, :, group.estimators] = group.scale.bounds(averages)[..., None]
            counts[:, group.estimators] = sums[VALUE_LOWER, :, COUNT, None]
        sampling = (
            state["sampling"] if tail is None else fold_sampling(state["sampling"], tail.evidence.averaging_weight)
        )
        uneven = sampling["uneven"]
        bounds[:, uneven] = np.nan
        bounds[LIFT_LOWER:, uneven | uneven[0]] = np.nan
        bounds[LIFT_LOWER:, 0] = np.nan
        details = {"interval_events": counts.ravel()}
        if uneven.any():
            details["uneven_sampling"] = np.repeat(np.where(uneven, 1.0, np.nan), self.estimators)
        lower, upper, lift_lower, lift_upper = bounds.reshape(SIDES, -1)
        return TrackedBounds(lower, upper, lift_lower, lift_upper, details, estimates.reshape(SIDES, -1))

    def _current(self, state: State, tail: BlockView | None) -> Iterator[tuple[TrackedGroup, Array, float]]:
        """Of each group the sums over its stretch, [4, policies, width], and the share of the error that is left."""
        for group, centre, span in zip(self.groups, state["centres"], state["spans"], strict=True):
            sums = self.span.sums(span)
            if tail is not None:
                sums = sums + _measure(group, tail, centre, [1])[0][0]
            yield group, sums, self.span.share(span)


def _observes(group: TrackedGroup, other: TrackedGroup, kept: Sequence[int]) -> bool:
    """Whether it is the same as another group, when these of the estimators are left."""
    return other.of == (None if group.of is None else kept[group.of])


def _values_only(memory: Any) -> Any:
    """The same, [4, ...] arrays with nothing in the rows of lifts."""
    if isinstance(memory, list):
        return [_values_only(each) for each in memory]
    if isinstance(memory, dict):
        return {key: _values_only(each) for key, each in memory.items()}
    if not isinstance(memory, np.ndarray):
        return memory
    kept = memory.copy()
    kept[LIFT_LOWER:] = 0.0
    return kept


def _measure(group: TrackedGroup, look: BlockView, before: Array, parts: Sequence[int]) -> tuple[Array, Array]:
    """The sums of parts of so many blocks each, [parts, 4, policies, width], and the centres' state after them."""

    def one_by_one(block: int) -> Iterator[tuple[Array, Mask | None]]:
        return look.one_by_one(group, block)

    return measure(group.engine, look.powers(group), before, parts, one_by_one)
