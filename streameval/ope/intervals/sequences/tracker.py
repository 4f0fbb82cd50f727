"""Confidence sequences of all values and lifts in a grid, on one average: they fold blocks and read intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from streameval.common.arrays import Array, State, ratio
from streameval.ope.estimators import Terms
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.intervals.sequences.observations import (
    LIFT_LOWER,
    SIDES,
    VALUE_LOWER,
    Observations,
    ObservationScale,
    fold_sampling,
    of_terms,
    of_weights,
    start_sampling,
)
from streameval.ope.intervals.sequences.restarts import RestartSchedule
from streameval.ope.intervals.sequences.wealth import COUNT, TOTAL, WealthProcess, measure

AT_ONCE = 20
"""Blocks that are measured at once: few enough for the cache."""


@dataclass(frozen=True)
class TrackedGroup:
    """Estimators that share their sequences. `of`: the one whose terms are observed; None: importance weights are.

    `label`: the key of its state. `estimators`: their places in the grid.
    """

    label: str
    process: WealthProcess
    scale: ObservationScale
    estimators: tuple[int, ...]
    of: int | None = None

    def observed(self, evidence: Evidence, terms: Sequence[Terms], blocks: slice = slice(None)) -> Observations:
        """The observations of some blocks."""
        if self.of is None:
            return of_weights(evidence, self.scale, blocks)
        return of_terms(evidence, terms[self.of].numerator, self.scale, blocks)


class TrackedBounds(NamedTuple):
    """The bounds of values and of lifts over production, and further columns of the Report.

    `value`, `lift` [4, columns]: the lower bound, the upper bound, and the estimate that each of them belongs to: the
    lower bound is about weighted rewards, the upper one about weighted losses. They are not cut to any range, and NaN
    where withheld. Column `policy * E + estimator`; policy 0 is production, which has no lift.
    """

    value: Array
    lift: Array
    details: Mapping[str, Array]

    @classmethod
    def by_side(cls, bounds: Array, estimates: Array, details: Mapping[str, Array]) -> TrackedBounds:
        """From the bounds and estimates of the four sides, [sides, columns]."""
        value, lift = (np.concatenate([bounds[sides], estimates[sides]]) for sides in (slice(0, 2), slice(2, 4)))
        return cls(value, lift, details)


@dataclass(frozen=True)
class SequenceTracker:
    """Confidence sequences for every policy under `estimators` estimators, some of which share theirs.

    The intervals of an estimator that is in no group are withheld.
    """

    groups: tuple[TrackedGroup, ...]
    span: RestartSchedule
    estimators: int

    def start(self, policies: int) -> State:
        """The state before the first event."""
        groups = {
            group.label: {
                "centre": np.zeros((policies, len(SIDES), 2)),
                "span": self.span.start(np.zeros((policies, len(SIDES), group.process.width))),
            }
            for group in self.groups
        }
        return {"sampling": start_sampling(policies), "groups": groups}

    def fold(self, state: State, evidence: Evidence, terms: Sequence[Terms]) -> State:
        """The state after these whole blocks, of which `terms` are those of each estimator."""
        groups = {}
        for group in self.groups:
            centre, span = state["groups"][group.label]["centre"], state["groups"][group.label]["span"]
            for first in range(0, evidence.blocks, AT_ONCE):
                seen = group.observed(evidence, terms, slice(first, first + AT_ONCE))
                parts = list(self.span.parts(span, len(seen.values)))
                sums, centre = measure(group.process, seen, centre, parts)
                for part, added in zip(parts, sums, strict=True):
                    span = self.span.add(span, added, part)
            groups[group.label] = {"centre": centre, "span": span}
        return {"sampling": fold_sampling(state["sampling"], evidence.sample_weight), "groups": groups}

    def select_groups(self, state: State) -> State:
        """The state of this tracker, taken from that of one with more estimators."""
        return {**state, "groups": {group.label: state["groups"][group.label] for group in self.groups}}

    def read(self, state: State, tail: tuple[Evidence, Sequence[Terms]] | None, error: Array) -> TrackedBounds:
        """The intervals now.

        Args:
            state: the state after the whole blocks
            tail: evidence and terms of the unfinished block, None without one
            error: [policies] the chance that the two-sided interval of a policy ever misses
        """
        policies = len(error)
        bounds, estimates = (np.full((len(SIDES), policies, self.estimators), np.nan) for _ in range(2))
        counts = np.full((policies, self.estimators), np.nan)
        for group in self.groups:
            kept = state["groups"][group.label]
            sums = self.span.sums(kept["span"])
            if tail is not None:
                sums = sums + measure(group.process, group.observed(*tail), kept["centre"], [1])[0][0]
            share = np.broadcast_to((error / 2 * self.span.share(kept["span"]))[:, None], sums.shape[:-1])
            means = group.process.lower(sums.reshape(-1, group.process.width), share.ravel()).reshape(share.shape)
            bounds[:, :, group.estimators] = group.scale.bounds(means)[..., None]
            averages = ratio(sums[..., TOTAL], sums[..., COUNT])
            estimates[:, :, group.estimators] = group.scale.bounds(averages)[..., None]
            counts[:, group.estimators] = sums[:, VALUE_LOWER, COUNT, None]
        sampling = state["sampling"]
        uneven = (sampling if tail is None else fold_sampling(sampling, tail[0].sample_weight))["uneven"]
        bounds[:, uneven] = np.nan
        bounds[LIFT_LOWER:, uneven | uneven[0]] = np.nan
        bounds[LIFT_LOWER:, 0] = np.nan
        details = {"interval_events": counts.ravel()}
        if uneven.any():
            details["uneven_sampling"] = np.repeat(np.where(uneven, 1.0, np.nan), self.estimators)
        return TrackedBounds.by_side(bounds.reshape(len(SIDES), -1), estimates.reshape(len(SIDES), -1), details)
