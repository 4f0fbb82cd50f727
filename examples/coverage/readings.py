"""Readings of averages at every look of a run, all looks at once.

The columns of such a reading are policy by policy, then look by look: [policies, looks, estimators]. An evaluator that
reports after each look gives the same result (a test compares the two), but takes eight times as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from worlds import LOGGING, Floats

from streameval.events import EventBatch
from streameval.ope.core import AnyAverage, Cumulative, Reading, Window
from streameval.ope.core.past import start_signs, unit_signs
from streameval.ope.estimators import IPS, SNIPS, AnyEstimator, StratifiedIPS
from streameval.ope.evaluator.grid import Grid
from streameval.ope.evidence import Evidence, start_recent
from streameval.ope.intervals import ConfidenceSequence, EmpiricalLikelihood
from streameval.ope.intervals.sequences import (
    COUNT,
    LIFT_LOWER,
    SIDES,
    TOTAL,
    VALUE_LOWER,
    TrackedBounds,
    measure,
)

BLOCK = 100
REWARDS = (0.0, 1.0)
PLAIN: tuple[AnyEstimator, ...] = (IPS(), SNIPS())
MIXED: tuple[AnyEstimator, ...] = (StratifiedIPS(),)


class Known(NamedTuple):
    """Readings of the values of all policies, and of the lifts of all except the first, production."""

    value: Reading
    lift: Reading


def evidence_of(batch: EventBatch, policies: Sequence[str]) -> Evidence:
    """The evidence of a run about these policies."""
    marks, _ = unit_signs(start_signs(), batch.unit, len(batch), BLOCK)
    plain = Evidence.from_batch(batch, policies, BLOCK)
    return replace(plain.with_recent_means(start_recent(len(policies)))[0], signs=marks)


@dataclass(frozen=True)
class Averaging:
    """An average of some estimators about policies, production first."""

    average: AnyAverage
    policies: Sequence[str]
    estimators: tuple[AnyEstimator, ...] = PLAIN

    def read(self, evidence: Evidence, every: int) -> Iterator[Reading]:
        """Yield the reading after every so many blocks."""
        grid, errors = self._grid, np.zeros(len(self.policies))
        state, of_look = grid.start(), np.arange(evidence.blocks) // every
        for look in range(evidence.blocks // every):
            grid.fold(state, [evidence.select_blocks(of_look == look)])
            now = deepcopy(state)  # a reading may share arrays with the state, which changes
            for *_, reading, _ in grid.read(now, None, errors):
                yield reading

    def known(self, readings: Sequence[Reading]) -> Known:
        """Join the readings of all looks."""
        value = Reading.side_by_side(readings, len(self.policies))
        return Known(value, value.lift(len(readings) * len(self.estimators)))

    @property
    def _grid(self) -> Grid:
        return Grid(
            estimators=self.estimators,
            averages=(self.average,),
            bounds=(EmpiricalLikelihood(),),
            candidates=tuple(policy != LOGGING for policy in self.policies),
            needs=frozenset(),
            trackers={},
            block=BLOCK,
            logged=self.policies[0] == LOGGING,
        )


def watched(
    average: Cumulative | Window, evidence: Evidence, logging: bool, errors: Floats, every: int
) -> TrackedBounds:
    """The confidence sequences by number of blocks; their columns are those of the plain estimators."""
    sequences = ConfidenceSequence().tracker(average, PLAIN, REWARDS, BLOCK, logging)
    (group,) = sequences.groups
    policies = len(errors)
    before, each_block = np.zeros((policies, len(SIDES), 2)), [1] * evidence.blocks
    sums, _ = measure(group.process, group.observed(evidence, []), before, each_block)
    span, kept, shares = sequences.span, [], []
    state = span.start(np.zeros_like(sums[0]))
    for block in sums:
        state = span.add(state, block, 1)
        kept.append(span.sums(state))
        shares.append(span.share(state))
    seen = np.moveaxis(np.array(kept[every - 1 :: every]), 0, -2)  # policies, sides, looks, sums
    error = errors[:, None, None] / 2 * np.array(shares[every - 1 :: every])
    each = np.broadcast_to(error, seen.shape[:-1])
    means = group.process.lower(seen.reshape(-1, seen.shape[-1]), each.ravel()).reshape(seen.shape[:-1])
    bounds, estimates = group.scale.bounds(means), group.scale.bounds(seen[..., TOTAL] / seen[..., COUNT])
    bounds[LIFT_LOWER:, 0] = np.nan
    details = {"interval_events": np.repeat(seen[:, VALUE_LOWER, :, COUNT], len(PLAIN), axis=0)}
    bounds, estimates = (np.repeat(sides, len(PLAIN), axis=1) for sides in (bounds, estimates))
    both = np.stack([bounds, estimates])
    value, lift = (both[:, sides].reshape(4, *both.shape[2:]) for sides in (slice(0, 2), slice(2, 4)))
    return TrackedBounds(value, lift, details)
