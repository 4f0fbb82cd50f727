"""Readings of averages at every look of a run, all looks at once: arrays are [columns, looks].

An evaluator that reports after each look gives the same result (a test compares the two), but takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from worlds import Floats

from streameval.events import EventBatch
from streameval.ope.averages import Blocks, Cumulative, Decay, Reading, Window
from streameval.ope.averages import variance as spreads
from streameval.ope.averages.moments import fold, merge, nothing, total
from streameval.ope.averages.variance import LONGER, start_signs, unit_signs
from streameval.ope.estimators import IPS, SNIPS, Estimator
from streameval.ope.evidence import Evidence, start_recent
from streameval.ope.intervals import ConfidenceSequence
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
PLAIN: tuple[Estimator, ...] = (IPS(), SNIPS())
Plain = Cumulative | Window | Decay


class Known(NamedTuple):
    """Readings of the values of all policies, and of the lifts of all except the first, production."""

    value: Reading
    lift: Reading


def evidence_of(batch: EventBatch, policies: Sequence[str]) -> Evidence:
    """The evidence of a run about these policies."""
    marks, _ = unit_signs(start_signs(), batch.unit, len(batch), BLOCK)
    plain = Evidence.from_batch(batch, policies, BLOCK)
    return replace(plain.with_recent_means(start_recent(len(policies)))[0], signs=marks)


def on_average(average: Plain, blocks: Blocks, every: int) -> Known:
    """The readings of a plain average by number of blocks."""
    moments = np.array(list(_moments(average, blocks, every)))
    horizon = _horizon(average)
    reading = reading_of(moments, spreads_of(spreads.start(moments.shape[1]), blocks, horizon, every))
    return Known(reading, reading.lift(len(PLAIN)))


def blocks_of(evidence: Evidence) -> Blocks:
    """The terms of the plain estimators, block by block."""
    terms = [estimator.terms(evidence, {})[0] for estimator in PLAIN]
    return Blocks.of(evidence, terms)


def spreads_of(start: dict[str, Floats], blocks: Blocks, horizon: float, every: int) -> dict[str, Floats]:
    """The sums of variances at each look."""
    path = spreads.path(start, blocks, horizon)
    return {name: rows[every - 1 :: every] for name, rows in path.items()}


def _moments(average: Plain, blocks: Blocks, every: int) -> Iterator[Floats]:
    """The moments at each look."""
    looks = range(every, len(blocks) + 1, every)
    if isinstance(average, Window):
        held = average.tau // BLOCK
        yield from (total(blocks.moments[max(0, last - held) : last]) for last in looks)
        return
    state = nothing(blocks.moments.shape[1])
    fading = 1.0 if isinstance(average, Cumulative) else average.decay
    new, factors = blocks.moments if fading == 1.0 else blocks.decayed(fading), np.full(every, fading**BLOCK)
    for last in looks:
        some = new[last - every : last]
        state = merge(state, total(some)) if fading == 1.0 else fold(state, some, factors)
        yield state


def _horizon(average: Plain) -> float:
    """Horizon of the variances."""
    if isinstance(average, Cumulative):
        return np.inf
    return LONGER * average.tau if isinstance(average, Window) else LONGER / (1 - average.decay)


def reading_of(moments: Floats, spread: dict[str, Floats], parts: dict[str, Floats] | None = None) -> Reading:
    """One reading of arrays [looks, columns, rows]."""
    by_column = moments.swapaxes(0, 1)
    bias = np.full(by_column.shape[:2], np.nan)
    variances = {name: rows.swapaxes(0, 1) for name, rows in spread.items()}
    return Reading(by_column, variances, tail=None, bias=bias, parts=parts or {})


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
