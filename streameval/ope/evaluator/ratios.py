"""Estimate ratios of two rewards, such as revenue per click, with Fieller's interval and the delta method.

The core estimates the numerator `a`, the denominator `b` and, in place of the ratio, the weighted sum `a + c b`. The
variance of this sum tells the covariance of both. So all numbers follow from three readings.

Source: Fieller, JRSS B 1954; Deng, Knoblich & Lu, Applying the delta method in metric analytics, KDD 2018.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from streameval.common.arrays import Array, Mask, ratio
from streameval.ope.core import AdaptiveDecay, AdaptiveWindow, Lift, Reading
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.grid import Grid, GridState
from streameval.ope.evaluator.report_rows import known_numbers
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.intervals import DriftAware, Normal
from streameval.ope.intervals.base import is_enough, ratio_bounds
from streameval.ope.intervals.centred import WIDER_UNDER_DRIFT
from streameval.ope.report import Estimate

MOST_LACKING = 1e-3
"""Largest share of events that may have only one of both rewards. The ratio is unknown if more have."""

FOR_RULES = ("lift_variance", "lift_spread_square")
"""Numbers of lifts that rules read, and no row has."""

Part: TypeAlias = tuple[Grid, GridState, Evidence | None]
"""The grid of one reward with its state and the events of the unfinished block."""


class Variances(NamedTuple):
    """Hold variances of one event, or squared errors.

    Args:
        rows: variances of the numerator, of the denominator, and of their weighted sum, each for independent events and
            with the design effect, or of two errors from drift [3, 2, columns]
        weight: the weight of the denominator in the sum
    """

    rows: Array
    weight: float

    @classmethod
    def from_readings(cls, readings: Sequence[Reading], weight: float) -> Variances:
        """Read the variances of terms."""
        effects = [np.where(np.isnan(reading.design_effect), 1.0, reading.design_effect) for reading in readings]
        pairs = zip(readings, effects, strict=True)
        return cls(
            np.array([reading.spread["variance"] * np.stack([0 * effect + 1, effect]) for reading, effect in pairs]),
            weight,
        )

    def of_means(self, shares: Array) -> Variances:
        """Return the variances of means. The covariance has the geometric mean of both shares.

        Args:
            shares: the share of the variance of one event that the mean of each part has [2, columns]
        """
        one, other = np.sqrt(shares)
        above, below, both = self.rows
        mixed = one * other * (both - above - self.weight**2 * below)
        above, below = one**2 * above, other**2 * below
        return Variances(np.array([above, below, above + self.weight**2 * below + mixed]), self.weight)

    def of(self, one: Slope, other: Slope) -> Array:
        """Return the covariance of two weighted sums of the numerator and the denominator [2, columns]."""
        above, below, both = self.rows
        covariance = (both - above - self.weight**2 * below) / (2 * self.weight)
        mixed = one.above * other.below + one.below * other.above
        return np.asarray(one.above * other.above * above + one.below * other.below * below + mixed * covariance)

    def total(self, slope: Slope) -> Array:
        """Return the sum of both errors of a weighted sum. It may not be rounding below 0."""
        return np.asarray(np.maximum(self.of(slope, slope).sum(axis=0), 0.0))


class Slope(NamedTuple):
    """Hold the derivatives of a ratio by its numerator and by its denominator [columns]."""

    above: Array | float
    below: Array | float

    @classmethod
    def of_ratio(cls, above: Array, below: Array) -> Slope:
        """Return the derivatives of `above / below`."""
        return cls(ratio(np.ones_like(below), below), -ratio(above, below**2))


def numbers_of(
    readings: Sequence[Reading], weight: float, late: Mask, estimators: int, z: float
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return numbers and details of all columns by name.

    Args:
        readings: the numerator, the denominator and their weighted sum
        weight: the weight of the denominator in the sum
        late: whether a policy lacks the events before it came [columns]
        estimators: number of columns of a policy
        z: half-width of an interval in standard errors
    """
    above, below = (reading.value for reading in readings[:2])
    own, drift = Variances.from_readings(readings, weight), _drift(readings, weight)
    means, slope = own.of_means(_shares(readings)), Slope.of_ratio(above, below)

    def error_of(one: Slope) -> Array:
        return np.asarray(_largest(means.of(one, one)) + drift.total(one))

    value = np.where(_is_known(readings), ratio(above, below), np.nan)
    of_above, of_below, error = error_of(Slope(1.0, 0.0)), error_of(Slope(0.0, 1.0)), error_of(slope)
    correlation = np.sign(value) * _correlation(of_above, value**2 * of_below, below**2 * error)
    lower, upper = ratio_bounds(_around(above, z, of_above), _around(below, z, of_below), correlation)
    lower, upper = (np.where(np.isnan(value), np.nan, bound) for bound in (lower, upper))

    lifts = [reading.lift(estimators) for reading in readings]
    numbers = _lifts(readings, lifts, own, z)
    is_known = ~np.isnan(value[estimators:] + _for_candidates(value, estimators))
    unknown = np.full(estimators, np.nan)
    compared = {
        name: np.concatenate([unknown, np.where(is_known, column, np.nan)])
        for name, column in numbers.items()
        if name not in FOR_RULES
    }
    lacking = [lift.compared.missing_share for lift in lifts[:2] if lift.compared is not None]
    details = {
        "missing_share": np.where(late, np.nan, np.concatenate([unknown, np.fmax(*lacking)])),
        "numerator": above,
        "denominator": below,
        "design_effect": ratio(own.of(slope, slope)[1], own.of(slope, slope)[0]),
        **{name: compared.pop(name) for name in ("lift_value", "lift_production_value", "lift_deviation")},
    }
    return {
        "value": value,
        "lower": lower,
        "upper": upper,
        "effective_sample_size": readings[1].effective_sample_size,
        "importance_weight_mean": readings[1].importance_weight_mean,
        "importance_weight_max": readings[1].importance_weight_max,
        **compared,
    }, details


def _lifts(readings: Sequence[Reading], lifts: Sequence[Reading], own: Variances, z: float) -> dict[str, Array]:
    """Return the numbers of lifts of all candidates, with the parts on the events that both policies have.

    The covariance of a candidate and production follows from the variances of both and of their difference.
    """
    weight, estimators = own.weight, len(readings[0].value) - len(lifts[0].value)
    candidate, production = own.rows[..., estimators:], _for_candidates(own.rows, estimators)
    if "production_variance" in lifts[0].spread:
        exact = np.array([lift.spread["production_variance"] for lift in lifts])  # of the events of both
        production = production * np.nan_to_num(ratio(exact, production[:, 0]), nan=1.0)[:, None]
    paired = Variances.from_readings(lifts, weight).rows
    shared = Variances((candidate + production - paired) / 2, weight)
    bases = [lift.compared.production for lift in lifts[:2] if lift.compared is not None]
    now, base = [base + lift.value for base, lift in zip(bases, lifts, strict=False)], ratio(*bases)
    mine, its = Slope.of_ratio(*now), Slope.of_ratio(*bases)
    every = Variances(candidate, weight), Variances(production, weight), shared
    lift, drift = ratio(*now) - base, _drift(lifts, weight).total(its)

    def sampled(mine_of: Variances, its_of: Variances, shared_of: Variances) -> tuple[Array, Array, Array]:
        """Return the variances of the lift, of production, and of the candidate."""
        own, other = mine_of.of(mine, mine), its_of.of(its, its)
        return _largest(own + other - 2 * shared_of.of(mine, its)), _largest(other), _largest(own)

    shares = _shares(lifts)
    sampling, of_base, of_candidate = sampled(*(one.of_means(shares) for one in every))
    drift_of_base = Variances(_for_candidates(_drift(readings, weight).rows, estimators), weight)
    error, of_base = sampling + drift, of_base + drift_of_base.total(its)
    sign = np.where(base < 0, -1.0, 1.0)
    correlation = -sign * _correlation(error, of_base, of_candidate + drift)
    spread = _drift(lifts, weight, ("spread",)).total(its)
    relative = ratio_bounds(_around(lift, z, error), _around(sign * base, z, of_base), correlation)
    return {
        "lift": lift,
        "lift_lower": lift - z * np.sqrt(error),
        "lift_upper": lift + z * np.sqrt(error),
        "lift_ratio": np.where(np.isnan(relative[0]), np.nan, ratio(lift, np.abs(base))),
        "lift_ratio_lower": relative[0],
        "lift_ratio_upper": relative[1],
        "lift_value": ratio(*now),
        "lift_production_value": base,
        "lift_deviation": np.sqrt(sampled(*every)[0]),
        "lift_variance": sampling,
        "lift_spread_square": spread,
    }


def lift_after(paths: Sequence[Lift], weight: float, columns: Sequence[str], label: str) -> Lift:
    """Return the lift of a ratio after each block, for rules that judge by the lift alone.

    Args:
        paths: the lifts of the numerator, the denominator and their weighted sum. The ratio has the events of the sum
        weight: the weight of the denominator in the sum
        columns: labels of the columns of a policy
        label: the column of the estimator
    """
    above, below, path = paths
    value, variance, spread, deviation = rows = np.full((4, *path.value.shape), np.nan)
    readings, kept = [path.reading for path in paths if path.reading is not None], ~np.isnan(path.events).any(axis=1)
    if readings:
        estimators = len(columns) * int(kept.sum())  # each block has columns of its own
        own = Variances.from_readings(readings, weight)
        numbers = _lifts(readings, [reading.lift(estimators) for reading in readings], own, 1.0)
        unknown = np.where(_is_known(readings), 0.0, np.nan)  # which a sum hands on
        unknown = unknown[estimators:] + _for_candidates(unknown, estimators)
        noise = numbers["lift_deviation"] * readings[1].value[estimators:]
        for row, number in zip(rows, (*(numbers[name] for name in ("lift", *FOR_RULES)), noise), strict=True):
            by_block = (number + unknown).reshape(path.value.shape[1], -1, len(columns))
            row[kept] = by_block[..., columns.index(label)].T
    block = above.block and above.block._replace(noise=deviation**2)
    return Lift(value, variance, spread, path.events, block, divisor=below.block)


def _for_candidates(rows: Array, estimators: int) -> Array:
    """Repeat the columns of production for each candidate."""
    policies = rows.shape[-1] // estimators
    return np.tile(rows[..., :estimators], policies - 1)


def _largest(variances: Array) -> Array:
    """Return the variance with the design effect, or for independent events if that is larger."""
    return np.asarray(np.maximum(np.fmax(*variances), 0.0))  # a difference may be rounding below 0


def _around(value: Array, z: float, variance: Array) -> tuple[Array, Array, Array]:
    width = z * np.sqrt(variance)
    return value, value - width, value + width


def _correlation(one: Array, other: Array, difference: Array) -> Array:
    """Return the correlation of two estimates from the variances of both and of their difference, 0 if unknown."""
    return np.asarray(np.clip(np.nan_to_num(ratio(one + other - difference, 2 * np.sqrt(one * other))), -1.0, 1.0))


def _shares(readings: Sequence[Reading]) -> Array:
    """Return the share of the variance of an event that the mean of each part has, 0 for a part without variance."""
    rows = []
    for reading in readings[:2]:
        variance, error = reading.spread["variance"], reading.parts.get("se")
        share = ratio(np.ones_like(variance), reading.count) if error is None else ratio(error**2, variance)
        rows.append(np.where(variance > 0, share, 0.0))
    return np.array(rows)


def _drift(readings: Sequence[Reading], weight: float, names: Sequence[str] = ("spread", "drift")) -> Variances:
    """Return the squared errors from drift, 0 for averages that do not measure them.

    The error of the sum tells whether both parts drift together. Its bounds are the sum and the difference of theirs.
    """
    nothing = np.zeros_like(readings[0].value)
    above, below, both = (np.nan_to_num([reading.parts.get(name, nothing) for name in names]) for reading in readings)
    below_in_sum = weight * below
    both = np.clip(both, np.abs(above - below_in_sum), above + below_in_sum)
    return Variances(np.square([above, below, both]), weight)


def _is_known(readings: Sequence[Reading]) -> Mask:
    """Return whether both parts have the same events, and enough of them for a variance."""
    counts = [reading.spread["count"] for reading in readings]
    enough = [is_enough(reading.nonzero) & is_enough(reading.count) for reading in readings[:2]]
    return np.asarray(np.logical_and(*enough) & (np.min(counts, axis=0) >= (1 - MOST_LACKING) * np.max(counts, axis=0)))


def estimates(config: EvaluatorConfig, parts: Sequence[Part], late: Mask) -> Iterator[Estimate]:
    """Yield the rows of a ratio.

    Averages with a memory of their own for each reward have no ratio, because its parts would be of different events.
    Estimators that choose among several caps have none either.

    Args:
        config: a config with the ratio as its only reward
        parts: the numerator, the denominator and their weighted sum
        late: whether a policy came after the first event [policies]
    """
    reward, (grid, state, tail) = config.rewards[0], parts[2]
    _, weight = reward.of.values()
    shown, columns = grid.shown(state, tail), [column.label for column in grid.columns]
    averages = [one.label for one in grid.averages if not isinstance(one, AdaptiveDecay | AdaptiveWindow)]
    read = (grid.read(state, tail, config.errors, averages) for grid, state, tail in parts)
    for three in zip(*read, strict=True):
        average, readings = three[0][0], [reading for _, _, reading, _ in three]
        interval, factor = (DriftAware(), WIDER_UNDER_DRIFT) if average.mixes_components else (Normal(), 1.0)
        z = factor * NormalDist().inv_cdf(0.5 + config.confidence / 2)
        numbers, details = map(
            known_numbers, numbers_of(readings, weight, np.repeat(late, len(columns)), len(columns), z)
        )
        for policy, name in enumerate(config.policies):
            for estimator in grid.estimators:
                if not shown[policy] or len(estimator.alternatives) > 1:
                    continue
                index = policy * len(columns) + columns.index(next(iter(estimator.alternatives.values())).label)
                row: dict[str, Any] = {key: column[index] for key, column in numbers.items()}
                yield Estimate(
                    policy=name,
                    estimator=estimator.label,
                    average=average.label,
                    kind=interval.kind,
                    anytime=False,
                    covers="estimand" if estimator.is_biased_by_design else interval.covers,
                    details={key: column[index] for key, column in details.items()},
                    reward=reward.name,
                    propensity=config.origin_of_propensities,
                    **row,
                )
