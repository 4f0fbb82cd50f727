"""Rows of the Report: what an average has read, as one estimate for each policy under each estimator."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from streameval.common.arrays import Array, Mask, ratio
from streameval.ope.averages.moments import MomentRow
from streameval.ope.estimators import TermRange
from streameval.ope.evaluator.grid import Grid, GridReading
from streameval.ope.evaluator.plan import Plan
from streameval.ope.evidence.slate_weights import mean_ratios
from streameval.ope.report import Estimate


def report_rows(
    plan: Plan,
    grid: Grid,
    read: GridReading,
    largest_weight: Array,
    supported: Mask,
    seen: Mask,
    slot_ratios: Array | None,
) -> Iterator[Estimate]:
    """The estimates of one average, with their intervals; estimators vary fastest.

    Args:
        largest_weight: [policies] the largest importance weight since the start
        supported: [policies] whether every event has the whole logging distribution, so that the unsupported
            probability is known
        seen: [policies] the policies that have rows
        slot_ratios: [policies, slots, 2] sums of the importance ratios in each slot; None without slates
    """
    interval, reading = read.bound, read.reading
    terms = _term_range(plan, grid, read, largest_weight)
    tracked = None if read.watched is None else read.watched.value
    bounds = _clipped(*interval.bounds(reading, terms, plan.confidence, tracked), plan.reward_range)
    moments = reading.moments
    largest = np.where(moments.count > 0, moments[MomentRow.LARGEST_IMPORTANCE], np.nan)
    numbers = (moments.value, *bounds, moments.effective_sample_size, moments.importance_weight_mean, largest)
    rows = zip(*map(_known, numbers), strict=True)
    lifts = [(None, None, None)] * len(grid.estimators) + _lifts(plan, grid, read, terms, float(largest_weight[0]))
    details = {name: _known(column) for name, column in _details(grid, read, supported).items()}
    pairs = [(place, estimator) for place in range(len(plan.policies)) for estimator in grid.estimators]
    for column, ((place, estimator), row, lift) in enumerate(zip(pairs, rows, lifts, strict=True)):
        if not seen[place]:
            continue
        value, lower, upper, effective_sample_size, weight_mean, weight_max = row
        lift_value, lift_lower, lift_upper = lift
        slots = {} if slot_ratios is None else {"slot_ratio_means": _known(np.array(mean_ratios(slot_ratios[place])))}
        yield Estimate(
            plan.policies[place],
            estimator.label,
            read.average.label,
            value,
            lower,
            upper,
            interval.kind,
            interval.anytime,
            "estimand" if estimator.is_biased_by_design else interval.covers,
            effective_sample_size,
            weight_mean,
            weight_max,
            lift_value,
            lift_lower,
            lift_upper,
            details={
                **{name: numbers[column] for name, numbers in details.items()},
                **interval.details(),
                **({"design_effect_of": "units"} if reading.knows_units else {}),
                **slots,
            },
        )


def _term_range(plan: Plan, grid: Grid, read: GridReading, largest_weight: Array) -> TermRange:
    limit = read.bound.largest_weight(largest_weight)
    known = np.repeat(limit > 0, len(grid.estimators))  # not of a policy that was never logged
    terms = TermRange.by_column(grid.estimators, plan.reward_range, limit)
    return terms._replace(width=np.where(known, terms.width, np.nan))


def _lifts(
    plan: Plan, grid: Grid, read: GridReading, terms: TermRange, heaviest: float
) -> list[tuple[float | None, float | None, float | None]]:
    """Value and interval of each lift, within plus and minus the width of the reward range."""
    estimators = len(grid.estimators)
    scaled = ratio(terms.width, read.reading.moments.mean_denominator)
    scaled = np.where(scaled < 0, np.nan, scaled)  # a mean weight below 0 limits no term
    differences = terms.over_production(estimators, heaviest, scaled)
    tracked = None if read.watched is None else read.watched.lift[:, estimators:]
    width = plan.reward_range[1] - plan.reward_range[0]
    bounds = _clipped(*read.bound.bounds(read.lift, differences, plan.confidence, tracked), (-width, width))
    return list(zip(*map(_known, (read.lift.moments.value, *bounds)), strict=True))


def _details(grid: Grid, read: GridReading, supported: Mask) -> dict[str, Array]:
    reading, lift = read.reading, read.lift
    estimators = len(grid.estimators)
    production = np.full(estimators, np.nan)
    unsupported = np.where(np.repeat(supported, estimators), reading.moments.unsupported_probability, np.nan)
    return {
        **reading.details,
        **reading.parts,
        **(read.watched.details if read.watched else {}),
        **{f"lift_{name}": np.concatenate([production, part]) for name, part in lift.parts.items()},
        "bias_bound": reading.bias,
        "design_effect": reading.design_effect,
        "largest_term_share": reading.moments.largest_term_share,
        "lift_deviation": np.concatenate([production, np.sqrt(lift.spread.variance)]),
        "lift_design_effect": np.concatenate([production, lift.design_effect]),
        "unsupported_probability": unsupported,
    }


def _known(column: Array) -> list[float | None]:
    """The finite numbers, None for the others."""
    return [number if known else None for number, known in zip(column.tolist(), np.isfinite(column), strict=True)]


def _clipped(lower: Array, upper: Array, reward_range: tuple[float, float]) -> tuple[Array, Array]:
    """The interval inside the reward range; unchanged where they do not overlap."""
    low, high = reward_range
    rounding = 1e-9 * (high - low)
    overlaps = (lower <= high + rounding) & (upper >= low - rounding)
    return np.where(overlaps, np.clip(lower, low, high), lower), np.where(overlaps, np.clip(upper, low, high), upper)
