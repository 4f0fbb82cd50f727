"""Intervals of heavy-tailed rewards cover the clipped value, and the Report knows how much is clipped."""

from __future__ import annotations

import numpy as np
import pytest

import streameval as se
from streameval.ope.report import Report

SHAPE, MAX, EVENTS = 1.5, 50.0, 20_000
QUANTILE = 0.999
SCALE = {"plain": 1.0, "rich": 2.0}
"""Rewards are Pareto(1.5) from this one on."""
LOGGED, CHALLENGER = np.array([0.7, 0.3]), np.array([0.4, 0.6])


def clipped_mean(scale: float, limit: float = MAX) -> float:
    """Return the mean of min(X, limit) for a Pareto variable X >= scale: an infinite variance becomes a small one."""
    tail = (scale / limit) ** SHAPE
    return SHAPE / (SHAPE - 1) * (scale - limit * tail) + limit * tail


def share_above(limit: float) -> float:
    """Return the share of rewards of the log above a limit."""
    return float(LOGGED @ (np.array(list(SCALE.values())) / limit) ** SHAPE)


def run(seed: int, **reward_range: object) -> Report:
    rng = np.random.default_rng(seed)
    action = (rng.random(EVENTS) >= LOGGED[0]).astype(int)
    reward = np.array(list(SCALE.values()))[action] * (1.0 + rng.pareto(SHAPE, EVENTS))
    evaluator = se.Evaluator(["challenger"], ["ips", "snips"], ["cumulative", "mixture"], reward_range=reward_range)
    log = se.EventBatch.from_arrays(
        reward=reward,
        propensity=LOGGED[action],
        policies={"challenger": CHALLENGER[action]},
        timestamp=np.arange(EVENTS, dtype=float),
    )
    evaluator.update(log)
    return evaluator.report()


def test_intervals_cover_the_clipped_value_and_the_clipped_share_is_right() -> None:
    means = np.array([clipped_mean(scale) for scale in SCALE.values()])
    value, lift = CHALLENGER @ means, (CHALLENGER - LOGGED) @ means
    share = share_above(MAX)
    reports = [run(seed, max=MAX, above="clip") for seed in range(80_000, 80_040)]
    for estimator, average in (("ips", "cumulative"), ("snips", "cumulative"), ("ips", "mixture")):
        rows = [report.get("challenger", estimator, average) for report in reports]
        assert sum((row.lower or np.inf) <= value <= (row.upper or -np.inf) for row in rows) >= 36
        assert sum((row.lift_lower or np.inf) <= lift <= (row.lift_upper or -np.inf) for row in rows) >= 36
    shares = np.array([report.clipped[0].share for report in reports], dtype=float)
    error = np.sqrt(share * (1 - share) / EVENTS)
    assert np.abs(shares - share).max() < 4 * error
    assert shares.mean() == pytest.approx(share, abs=3 * error / np.sqrt(len(shares)))
    assert all(check.ok for report in reports for check in report.trust if check.check == "clipped_share")


def test_a_learned_limit_stays_near_its_quantile_and_intervals_cover_the_clipped_value() -> None:
    exact = (LOGGED @ np.array(list(SCALE.values())) ** SHAPE / (1 - QUANTILE)) ** (1 / SHAPE)
    assert share_above(exact) == pytest.approx(1 - QUANTILE)
    means = np.array([clipped_mean(scale, exact) for scale in SCALE.values()])
    value, lift = CHALLENGER @ means, (CHALLENGER - LOGGED) @ means
    reports = [run(seed, max="auto", quantile=QUANTILE) for seed in range(80_000, 80_040)]
    shares = np.array([share_above(report.limits[0].limit or np.nan) for report in reports])
    assert np.abs(shares - (1 - QUANTILE)).max() <= 0.001
    assert shares.mean() == pytest.approx(1 - QUANTILE, rel=0.15)
    for estimator, average in (("ips", "cumulative"), ("snips", "cumulative"), ("ips", "mixture")):
        rows = [report.get("challenger", estimator, average) for report in reports]
        assert sum((row.lower or np.inf) <= value <= (row.upper or -np.inf) for row in rows) >= 36
        assert sum((row.lift_lower or np.inf) <= lift <= (row.lift_upper or -np.inf) for row in rows) >= 36
    clipped = np.array([report.clipped[0].share for report in reports], dtype=float)
    assert np.abs(clipped - (1 - QUANTILE)).max() <= 0.001 + 4 * np.sqrt((1 - QUANTILE) / EVENTS)


def test_rejecting_them_instead_is_named_by_a_trust_check() -> None:
    report = run(80_000, max=MAX, above="reject")
    assert report.events.rejected["reward_range"] > 0
    assert not any(check.ok for check in report.trust if check.check == "rejected_share")
