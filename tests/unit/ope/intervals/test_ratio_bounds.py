"""Test the interval of a ratio, and relative lifts in Reports by Fieller for intervals of any kind."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streameval as se
from streameval.ope.intervals.base import ratio_bounds

Z = NormalDist().inv_cdf(0.975)
numbers = st.floats(-2, 2)
width = st.floats(0.001, 3)


def bounds(value: tuple[float, ...], base: tuple[float, ...], correlation: float) -> tuple[float, float]:
    columns = [tuple(np.array([number]) for number in interval) for interval in (value, base)]
    lower, upper = ratio_bounds(*columns, np.array([correlation]))
    return float(lower[0]), float(upper[0])


def around(value: float, below: float, above: float | None = None) -> tuple[float, float, float]:
    return value, value - below, value + (below if above is None else above)


def fieller(value: float, base: float, variances: tuple[float, float], covariance: float) -> tuple[float, float]:
    """Compute the textbook formula, with `g = z^2 var(base) / base^2`."""
    first, second = variances
    ratio, g = value / base, Z**2 * second / base**2
    root = np.sqrt(first - 2 * ratio * covariance + ratio**2 * second - g * (first - covariance**2 / second))
    centre = ratio - g * covariance / second
    return (centre - Z / base * root) / (1 - g), (centre + Z / base * root) / (1 - g)


@given(numbers, st.floats(0.5, 3), width, st.floats(0.01, 0.2), st.floats(-0.95, 0.95))
def test_the_interval_of_a_ratio_of_normal_intervals_equals_fieller(
    value: float, base: float, error: float, base_error: float, correlation: float
) -> None:
    interval = bounds(around(value, Z * error), around(base, Z * base_error), correlation)
    assert interval == pytest.approx(
        fieller(value, base, (error**2, base_error**2), correlation * error * base_error), 1e-6
    )


@given(numbers, width, width, st.floats(1, 3), st.floats(0.001, 0.9), st.floats(0.001, 5), st.floats(-1, 1))
def test_the_interval_of_a_ratio_has_the_sign_of_the_interval_of_the_value(
    value: float, below: float, above: float, base: float, least: float, most: float, correlation: float
) -> None:
    lower, upper = bounds(around(value, below, above), around(base, least, most), correlation)
    assert lower - 1e-12 <= value / base <= upper + 1e-12
    assert (lower > 0, upper < 0) == (value - below > 0, value + above < 0)


def test_a_certain_base_divides_the_bounds() -> None:
    assert bounds(around(0.5, 0.2, 0.3), around(2.0, 0.0), 0.7) == (0.15, 0.4)


def test_a_certain_ratio_is_its_own_interval() -> None:
    assert bounds(around(0.0, 0.0), around(2.0, 0.3), 0.0) == (0.0, 0.0)


@pytest.mark.parametrize("base", [(0.1, -0.01, 0.2), (0.1, 0.0, 0.2), (0.1, 0.2, 0.15), (np.nan, np.nan, np.nan)])
def test_the_interval_of_a_ratio_is_withheld_unless_the_interval_of_the_base_is_above_zero(
    base: tuple[float, ...],
) -> None:
    assert np.isnan(bounds(around(0.5, 0.2), base, 0.0)).all()


# --- Reports ---


def log(events: int, seed: int, rewards: tuple[float, float] = (0.3, 0.6), sign: float = 1.0) -> se.EventBatch:
    """Draw two actions. The first is logged in 70 of 100 events, and the challenger takes it in 30."""
    rng = np.random.default_rng(seed)
    is_first = rng.random(events) < 0.7
    reward = rng.random(events) < np.where(is_first, *rewards)
    return se.EventBatch.from_arrays(
        reward=sign * reward,
        propensity=np.where(is_first, 0.7, 0.3),
        policies={"challenger": np.where(is_first, 0.3, 0.7)},
    )


def estimates(batch: se.EventBatch, **options: object) -> dict[str, se.Estimate]:
    """Return the challenger's estimates by estimator."""
    settings = {"estimators": ["ips", "snips"], "averages": ["cumulative"], "promotion": "off", "drift": None}
    evaluator = se.Evaluator(["challenger"], **{**settings, **options})  # type: ignore[arg-type]
    evaluator.update(batch)
    return {
        estimate.estimator: estimate for estimate in evaluator.report().estimates if estimate.policy == "challenger"
    }


def test_a_report_has_the_interval_of_fieller_with_the_covariance_of_both_terms() -> None:
    batch = log(4_000, seed=5)
    estimate = estimates(batch, intervals={"cumulative": "normal"})["ips"]
    own, production = batch.reward * np.where(batch.propensity > 0.5, 0.3 / 0.7, 0.7 / 0.3), batch.reward
    (first, covariance), (_, second) = np.cov(own - production, production) / len(batch)
    assert estimate.lift_ratio == pytest.approx((own - production).mean() / production.mean(), 1e-12)
    expected = fieller((own - production).mean(), production.mean(), (first, second), covariance)
    # the design effects of the lift and of production widen their intervals
    assert (estimate.lift_ratio_lower, estimate.lift_ratio_upper) == pytest.approx(expected, rel=0.05)


def test_the_ratio_of_losses_is_positive_if_less_is_lost() -> None:
    gains, losses = (
        estimates(log(4_000, 5, sign=sign), reward_range=(min(0, sign), max(0, sign)))["ips"] for sign in (1.0, -1.0)
    )
    assert gains.lift_ratio > 0.2
    assert gains.lift_ratio == pytest.approx(-losses.lift_ratio)
    assert gains.lift_ratio_lower == pytest.approx(-losses.lift_ratio_upper)
    assert gains.lift_ratio_upper == pytest.approx(-losses.lift_ratio_lower)


def test_a_relative_lift_is_withheld_if_the_value_of_production_may_be_zero() -> None:
    for estimate in estimates(log(4_000, 5, rewards=(0.0, 0.001))).values():
        assert estimate.lift is not None
        assert (estimate.lift_ratio, estimate.lift_ratio_lower, estimate.lift_ratio_upper) == (None, None, None)


def test_production_has_no_relative_lift() -> None:
    evaluator = se.Evaluator(["challenger"])
    evaluator.update(log(2_000, 5))
    production_rows = [estimate for estimate in evaluator.report().estimates if estimate.policy == "logging"]
    assert {(row.lift_ratio, row.lift_ratio_upper) for row in production_rows} == {(None, None)}


def test_a_relative_lift_divides_the_lift_by_the_value_of_production_on_every_average() -> None:
    evaluator = se.Evaluator(["challenger"])
    evaluator.update(log(5_000, 6))
    report = evaluator.report()
    compared = [estimate for estimate in report.estimates if estimate.policy == "challenger"]
    for row in compared:
        production = row.details["lift_production_value"]
        assert row.lift_ratio == pytest.approx(row.lift / production)
        if row.average != "mixture":  # a mixture of lifts has its own weights
            assert production == pytest.approx(report.get("logging", row.estimator, row.average).value)
        assert row.lift_ratio_lower < row.lift_ratio < row.lift_ratio_upper
    assert {row.average for row in compared} >= {"cumulative", "mixture", "adaptive_window"}
