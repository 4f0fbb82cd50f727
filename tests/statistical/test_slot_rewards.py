"""Test that intervals of estimates from rewards of slots cover the truth."""

from __future__ import annotations

import numpy as np
import pytest

from streameval import (
    IIPS,
    RIPS,
    Cumulative,
    Evaluator,
    EventBatch,
)

POLICY = "candidate"
BOTH = [IIPS(), RIPS()]


def coins(n: int, seed: int = 1, slots: int = 3) -> EventBatch:
    """Draw slates of coins that the candidate throws with a bias. A slot earns its share of 1 if it shows heads."""
    heads = np.random.default_rng(seed).integers(0, 2, (n, slots))
    policies = {POLICY: np.where(heads == 1, 0.7, 0.3)}
    return EventBatch.from_arrays(reward=heads / slots, propensity=np.full((n, slots), 0.5), policies=policies)


@pytest.mark.parametrize("kind", ["empirical_likelihood", "empirical_bernstein", "normal"])
def test_intervals_cover_the_value_in_most_streams(kind: str) -> None:
    covered = 0
    for seed in range(20):
        evaluator = Evaluator(
            [POLICY], BOTH, [Cumulative()], intervals={"cumulative": kind}, promotion=None, drift=None
        )
        evaluator.update(coins(600, seed))
        for estimate in evaluator.report().estimates:
            if estimate.policy == POLICY:
                assert estimate.lower is not None
                assert estimate.upper is not None
                covered += estimate.lower <= 0.7 <= estimate.upper
    assert covered >= 0.9 * 40
