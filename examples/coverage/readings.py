"""Read averages at all looks of a run at once.

The columns of such a reading are ordered by policy, look and estimator. An evaluator that reports after each look gives
equal results, which a test checks, but takes eight times as long.
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


class Readings(NamedTuple):
    """Hold readings of the values of all policies, and of the lifts of all except production, which is first."""

    value: Reading
    lift: Reading


def evidence_of(batch: EventBatch, policies: Sequence[str]) -> Evidence:
    """Return the evidence of a run about these policies."""
    marks, _ = unit_signs(start_signs(), batch.unit, len(batch), BLOCK)
    plain = Evidence.from_batch(batch, policies, BLOCK)
    return replace(plain.with_recent_means(start_recent(len(policies)))[0], signs=marks)


@dataclass(frozen=True)
class Averaging:
    """Read an average of some estimators.

    Args:
        average: The average.
        policies: Names of the policies, production first.
        estimators: The estimators.
    """

    average: AnyAverage
    policies: Sequence[str]
    estimators: tuple[AnyEstimator, ...] = PLAIN

    def read(self, evidence: Evidence, every: int) -> Iterator[Reading]:
        """Yield a reading after every `every` blocks."""
        grid, errors = self._grid, np.zeros(len(self.policies))
        state, look_index = grid.start(), np.arange(evidence.blocks) // every
        for look in range(evidence.blocks // every):
            grid.fold(state, [evidence.select_blocks(look_index == look)])
            now = deepcopy(state)  # a reading may share arrays with the state, which changes
            for *_, reading, _ in grid.read(now, None, errors):
                yield reading

    def join(self, readings: Sequence[Reading]) -> Readings:
        """Join the readings of all looks."""
        value = Reading.side_by_side(readings, len(self.policies))
        return Readings(value, value.lift(len(readings) * len(self.estimators)))

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
    """Return the confidence sequences of the plain estimators at every look.

    Args:
        average: Average of the sequences.
        evidence: Evidence of the run.
        logging: Whether production is the logging policy.
        errors: Error probability of each policy.
        every: Blocks between two looks.
    """
    sequences = ConfidenceSequence().tracker(average, PLAIN, REWARDS, BLOCK, logging)
    (group,) = sequences.groups
    policies = len(errors)
    before, block_sizes = np.zeros((policies, len(SIDES), 2)), [1] * evidence.blocks
    sums, _ = measure(group.process, group.observed(evidence, []), before, block_sizes)
    span, kept, shares = sequences.span, [], []
    state = span.start(np.zeros_like(sums[0]))
    for block in sums:
        state = span.add(state, block, 1)
        kept.append(span.sums(state))
        shares.append(span.share(state))
    seen = np.moveaxis(np.array(kept[every - 1 :: every]), 0, -2)  # policies, sides, looks, sums
    error = errors[:, None, None] / 2 * np.array(shares[every - 1 :: every])
    error_shares = np.broadcast_to(error, seen.shape[:-1])
    means = group.process.lower(seen.reshape(-1, seen.shape[-1]), error_shares.ravel()).reshape(seen.shape[:-1])
    bounds, estimates = group.scale.bounds(means), group.scale.bounds(seen[..., TOTAL] / seen[..., COUNT])
    bounds[LIFT_LOWER:, 0] = np.nan
    details = {"interval_events": np.repeat(seen[:, VALUE_LOWER, :, COUNT], len(PLAIN), axis=0)}
    bounds, estimates = (np.repeat(sides, len(PLAIN), axis=1) for sides in (bounds, estimates))
    both = np.stack([bounds, estimates])
    value, lift = (both[:, sides].reshape(4, *both.shape[2:]) for sides in (slice(0, 2), slice(2, 4)))
    return TrackedBounds(value, lift, details)
