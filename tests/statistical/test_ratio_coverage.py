"""Intervals of relative lifts cover the true ratio as often as they state."""

from __future__ import annotations

import numpy as np
import pytest

import streameval as se

PRODUCTION, CHALLENGER = 0.7 * 0.02 + 0.3 * 0.05, 0.3 * 0.02 + 0.7 * 0.05


def log(events: int, seed: int) -> se.EventBatch:
    """Rare clicks: production is worth .029, the challenger .041, and both values come from the same clicks."""
    rng = np.random.default_rng(seed)
    is_first = rng.random(events) < 0.7
    return se.EventBatch.from_arrays(
        reward=(rng.random(events) < np.where(is_first, 0.02, 0.05)).astype(float),
        propensity=np.where(is_first, 0.7, 0.3),
        policies={"challenger": np.where(is_first, 0.3, 0.7)},
    )


def coverage(average: str, interval: str, streams: int, events: int, first_seed: int) -> dict[str, tuple[float, float]]:
    """Return the shares of streams with an interval that has the true ratio, and the true lift, by estimator."""
    lift = CHALLENGER - PRODUCTION
    hits: dict[str, list[tuple[bool, bool]]] = {}
    for seed in range(first_seed, first_seed + streams):
        intervals = {average: interval}
        evaluator = se.Evaluator(
            ["challenger"], ["ips", "snips"], [average], intervals=intervals, promotion="off", drift=None
        )
        evaluator.update(log(events, seed))
        for estimate in evaluator.report().estimates:
            if estimate.policy == "challenger":
                lower, upper = np.array([estimate.lift_ratio_lower, estimate.lift_ratio_upper], dtype=float)
                is_hit = bool(lower <= lift / PRODUCTION <= upper), estimate.lift_lower <= lift <= estimate.lift_upper
                hits.setdefault(estimate.estimator, []).append(is_hit)
    return {name: tuple(np.mean(pairs, axis=0).tolist()) for name, pairs in hits.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("average", "interval", "streams"),
    [("cumulative", "normal", 1_000), ("cumulative", "empirical_likelihood", 1_000), ("mixture", "drift_aware", 300)],
)
def test_intervals_of_ratios_cover_as_often_as_those_of_lifts(average: str, interval: str, streams: int) -> None:
    for ratio_share, lift_share in coverage(average, interval, streams, events=10_000, first_seed=70_000).values():
        assert ratio_share == pytest.approx(lift_share, abs=0.012)
        assert ratio_share >= 0.94


def test_a_few_intervals_of_ratios_cover() -> None:
    shares = coverage("cumulative", "normal", streams=60, events=5_000, first_seed=71_000)
    assert all(ratio_share >= 0.85 for ratio_share, _ in shares.values()), shares
