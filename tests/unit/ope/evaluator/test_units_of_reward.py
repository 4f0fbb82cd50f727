"""Tests that numbers scale with the unit of the reward."""

from typing import Any

import numpy as np
import pytest

import streameval as se
from streameval.ope.report import Report

EVENTS, CHANGE = 6_000, 3_000


def evaluated(scale: float, **options: Any) -> Report:
    """Evaluate a log in which the better action changes, with rewards from 0 to `scale`."""
    rng = np.random.default_rng(0)
    is_a = rng.random(EVENTS) < 0.7
    rate = np.where(np.arange(EVENTS) < CHANGE, np.where(is_a, 0.1, 0.2), np.where(is_a, 0.3, 0.15))
    reward = (rng.random(EVENTS) < rate) * rng.choice([0.5, 1.0], EVENTS) * scale
    evaluator = se.Evaluator(candidates=["candidate"], reward_range=(0.0, scale), **options)
    evaluator.update(
        se.EventBatch.from_arrays(
            reward=reward,
            propensity=np.where(is_a, 0.7, 0.3),
            policies={"candidate": np.where(is_a, 0.2, 0.8)},
            timestamp=1.79e9 + np.arange(EVENTS),
        )
    )
    return evaluator.report()


def numbers(report: Report, scale: float) -> np.ndarray[Any, Any]:
    """Return the numbers of all estimates and decisions that are in units of the reward, over the scale."""
    rows = [
        (row.value, row.lower, row.upper, row.lift, row.lift_lower, row.lift_upper, row.details.get("se"))
        for row in report.estimates
    ]
    decided = [(decision.lift, decision.lower) for decision in report.promotion]
    return np.array([*sum(rows, ()), *sum(decided, ())], dtype=float) / scale


@pytest.mark.parametrize("scale", [1e-5, 1e-3, 1e6])
def test_every_number_scales_with_the_unit_of_the_reward(scale: float) -> None:
    averages = ["adaptive_window", {"kind": "adaptive_decay", "objective": "published"}, "mixture"]
    options: dict[str, Any] = {"averages": averages, "promotion": ["paired", "anytime", "sea"]}
    options["estimators"] = ["ips", "snips", "stratified_ips", {"kind": "clipped_ips", "cap": "auto"}]
    expected, found = (numbers(evaluated(unit, **options), unit) for unit in (1.0, scale))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-13)


def test_small_rewards_in_a_wide_range_do_not_widen_the_interval_of_a_mixture() -> None:
    rng = np.random.default_rng(1)
    reward, options = (rng.random(EVENTS) < 0.2).astype(float), {"propensity": np.full(EVENTS, 0.5)}
    widths = []
    for largest in (1.0, 1e6):
        evaluator = se.Evaluator(candidates=["candidate"], reward_range=(0.0, largest))
        policies = {"candidate": np.full(EVENTS, 0.5)}
        evaluator.update(se.EventBatch.from_arrays(reward=reward * 1e-4, policies=policies, **options))
        row = evaluator.report().get("logging", "stratified_ips", "mixture")
        assert row.lower is not None
        assert row.upper is not None
        widths.append(row.upper - row.lower)
    assert widths[0] == pytest.approx(widths[1]) == pytest.approx(2.5 * 2 * 1.96e-4 * (0.16 / EVENTS) ** 0.5, rel=0.5)
