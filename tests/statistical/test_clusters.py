"""Simulate the trust check of clusters: how often it blames logs without sessions, and finds sessions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from streameval.ope.evidence import Evidence
from streameval.ope.promotion import clusters
from support.session_logs import correlated_rewards, sessions

Array = NDArray[np.float64]
EVENTS, BLOCK, ERROR = 100_000, 100, 0.01


def still(rng: np.random.Generator, events: int) -> Array:
    return (rng.random(events) < 0.3).astype(float)


def rare(rng: np.random.Generator, events: int) -> Array:
    return (rng.random(events) < 0.02).astype(float)


def heavy_tailed(rng: np.random.Generator, events: int) -> Array:
    return rng.lognormal(0, 1.5, events)


def waving(rng: np.random.Generator, events: int) -> Array:
    return (rng.random(events) < 0.2 + 0.2 * np.sin(8 * np.pi * np.arange(events) / events)).astype(float)


def cycling(rng: np.random.Generator, events: int) -> Array:
    """Draw rewards that rise and fall by half, ten times in a log."""
    return (rng.random(events) < 0.3 + 0.15 * np.sin(20 * np.pi * np.arange(events) / events)).astype(float)


def jumping(rng: np.random.Generator, events: int) -> Array:
    return (rng.random(events) < np.repeat(rng.uniform(0.1, 0.5, 5), events // 5)).astype(float)


def failures(rewards: list[Array], block: int = BLOCK) -> int:
    """Count the logs of 1,000 blocks that fail the check at the end of any tenth."""
    count = 0
    for reward in rewards:
        state, verdicts = clusters.start(), []
        for part in np.split(reward, 10):
            means = clusters.mean_rewards(Evidence.from_numbers(np.ones((len(part), 1)), part, block))
            state = clusters.fold(state, means, block, named=False)
            verdicts += [passes for _, passes, _ in clusters.check(state, block, ERROR)]
        count += not all(verdicts)
    return count


@pytest.mark.parametrize("world", [still, rare, heavy_tailed, waving, cycling, jumping])
def test_at_most_one_in_a_hundred_logs_without_clusters_fails(
    world: Callable[[np.random.Generator, int], Array],
) -> None:
    rng = np.random.default_rng(101)
    assert failures([world(rng, EVENTS // 10) for _ in range(300)], BLOCK // 10) <= 3


@pytest.mark.parametrize("mean", [0.3, 0.03])
def test_nine_in_ten_logs_of_fifty_sessions_at_a_time_fail(mean: float) -> None:
    rng = np.random.default_rng(102)
    assert failures([correlated_rewards(sessions(rng, EVENTS), rng, mean) for _ in range(50)]) >= 45


def test_sessions_one_after_the_other_pass_because_blocks_account_for_them() -> None:
    rng = np.random.default_rng(103)
    assert failures([correlated_rewards(sessions(rng, EVENTS, at_a_time=1), rng) for _ in range(50)]) <= 1
