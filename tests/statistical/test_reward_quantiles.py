"""Intervals of quantiles of a reward cover the quantiles under a candidate."""

from __future__ import annotations

import numpy as np
import pytest

import streameval as se
from streameval.ope.report import QuantileEstimate

LOGGED, CHALLENGER = np.array([0.7, 0.3]), np.array([0.3, 0.7])
QUANTILES, EVENTS, RUNS = (0.5, 0.95), 4_000, 200


def latency(rng: np.random.Generator, action: np.ndarray) -> np.ndarray:
    return np.exp(0.5 * rng.normal(size=len(action)) + 0.5 * action)


def run(seed: int) -> dict[float, QuantileEstimate]:
    rng = np.random.default_rng(seed)
    action = (rng.random(EVENTS) >= LOGGED[0]).astype(int)
    evaluator = se.Evaluator(
        ["challenger"],
        ["ips"],
        ["cumulative"],
        reward_range={"max": 1_000, "quantiles": list(QUANTILES)},
        promotion=None,
        drift=None,
    )
    policies = {"challenger": CHALLENGER[action]}
    evaluator.update(
        se.EventBatch.from_arrays(reward=latency(rng, action), propensity=LOGGED[action], policies=policies)
    )
    return {row.quantile: row for row in evaluator.report().quantiles if row.policy == "challenger"}


def test_intervals_cover_the_quantiles_of_the_candidate() -> None:
    rng = np.random.default_rng(0)
    exact = np.quantile(latency(rng, (rng.random(2_000_000) >= CHALLENGER[0]).astype(int)), QUANTILES)
    runs = [run(seed) for seed in range(90_000, 90_000 + RUNS)]
    for quantile, value in zip(QUANTILES, exact.tolist(), strict=True):
        rows = [estimates[quantile] for estimates in runs]
        covered = sum((row.lower or np.inf) <= value <= (row.upper or -np.inf) for row in rows)
        assert covered >= 0.95 * RUNS - 3 * np.sqrt(0.05 * 0.95 * RUNS)
        assert np.mean([row.value or np.nan for row in rows]) == pytest.approx(value, rel=0.01)
