"""The trust check of clusters: logs without a `unit` whose sessions show in their rewards."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from streameval import Cumulative, Evaluator, EventBatch, StratifiedIPS
from streameval.ope.evidence import Evidence
from streameval.ope.promotion import clusters
from streameval.ope.promotion.clusters import ClusterState
from streameval.ope.report import TrustCheck

Array = NDArray[np.float64]
EVENTS, BLOCK, ERROR = 100_000, 100, 0.01


def sessions(rng: np.random.Generator, events: int = EVENTS, at_a_time: int = 50) -> NDArray[np.int64]:
    """The session of each event, of 20 events on average."""
    return np.arange(events) // (20 * at_a_time) * at_a_time + rng.integers(at_a_time, size=events)


def correlated_rewards(session: NDArray[np.int64], rng: np.random.Generator, mean: Array | float = 0.3) -> Array:
    """Rewards of 0 or 1 whose correlation within a session is .2."""
    shared, own = rng.random(int(session.max()) + 1)[session], rng.random(len(session))
    return (np.where(rng.random(len(session)) < 0.2**0.5, shared, own) < mean).astype(float)


def still(rng: np.random.Generator, events: int) -> Array:
    return (rng.random(events) < 0.3).astype(float)


def rare(rng: np.random.Generator, events: int) -> Array:
    return (rng.random(events) < 0.02).astype(float)


def heavy_tailed(rng: np.random.Generator, events: int) -> Array:
    return rng.lognormal(0, 1.5, events)


def waving(rng: np.random.Generator, events: int) -> Array:
    return (rng.random(events) < 0.2 + 0.2 * np.sin(8 * np.pi * np.arange(events) / events)).astype(float)


def cycling(rng: np.random.Generator, events: int) -> Array:
    """As on a site whose rewards rise and fall by half, ten times in a log."""
    return (rng.random(events) < 0.3 + 0.15 * np.sin(20 * np.pi * np.arange(events) / events)).astype(float)


def jumping(rng: np.random.Generator, events: int) -> Array:
    return (rng.random(events) < np.repeat(rng.uniform(0.1, 0.5, 5), events // 5)).astype(float)


def folded(reward: Array, state: ClusterState | None = None, block: int = BLOCK) -> ClusterState:
    means = clusters.mean_rewards(Evidence.from_numbers(np.ones((len(reward), 1)), reward, block))
    return clusters.fold(state or clusters.start(), means, block, named=False)


def failures(rewards: list[Array], block: int = BLOCK) -> int:
    """The number of logs of 1,000 blocks that fail the check at the end of any tenth."""
    count = 0
    for reward in rewards:
        state, verdicts = clusters.start(), []
        for part in np.split(reward, 10):
            state = folded(part, state, block)
            verdicts += [passes for _, passes, _ in clusters.check(state, block, ERROR)]
        count += not all(verdicts)
    return count


@pytest.mark.parametrize("world", [still, rare, heavy_tailed, waving, cycling, jumping])
def test_at_most_one_in_a_hundred_logs_without_clusters_fails(
    world: Callable[[np.random.Generator, int], Array],
) -> None:
    rng = np.random.default_rng(101)
    assert failures([world(rng, EVENTS // 10) for _ in range(100)], BLOCK // 10) <= 1


@pytest.mark.parametrize("mean", [0.3, 0.03])
def test_nine_in_ten_logs_of_fifty_sessions_at_a_time_fail(mean: float) -> None:
    rng = np.random.default_rng(102)
    assert failures([correlated_rewards(sessions(rng), rng, mean) for _ in range(20)]) >= 18


def test_sessions_one_after_the_other_pass_as_blocks_account_for_them() -> None:
    rng = np.random.default_rng(103)
    assert failures([correlated_rewards(sessions(rng, at_a_time=1), rng) for _ in range(20)]) == 0


def checked(reward: Array, unit: list[str] | None) -> tuple[TrustCheck, str]:
    """The check of a Report on a candidate, and the reason of its decision."""
    evaluator = Evaluator(["new"], [StratifiedIPS()], [Cumulative()], drift=None, promotion="bsea")
    weight = np.random.default_rng(104).choice([0.5, 1.5], len(reward))
    propensity = np.full(len(reward), 0.5)
    evaluator.update(
        EventBatch.from_arrays(reward=reward, propensity=propensity, policies={"new": weight / 2}, unit=unit)
    )
    report = evaluator.report()
    check = next(row for row in report.trust if (row.policy, row.check) == ("new", "clusters"))
    return check, report.promotion[0].reason


def test_the_check_asks_for_units_blocks_promotion_and_passes_once_events_log_them() -> None:
    rng = np.random.default_rng(105)
    session = sessions(rng, 40_000, 30)
    reward = correlated_rewards(session, rng)
    blind, reason = checked(reward, None)
    assert not blind.ok
    assert blind.reason.startswith("rewards of events that are 100 to 1,000 apart have a design effect of ")
    assert blind.reason.endswith(", which intervals allow for only in part: log a `unit`")
    assert reason == blind.reason
    named, reason = checked(reward, [str(number) for number in session])
    assert (named.ok, named.reason) == (True, "events log their `unit`")
    assert "unit" not in reason


def test_a_short_log_has_no_such_check() -> None:
    reward = still(np.random.default_rng(106), EVENTS)
    assert not list(clusters.check(folded(reward[:29_900]), BLOCK, ERROR))
    assert [name for name, _, _ in clusters.check(folded(reward[:30_000]), BLOCK, ERROR)] == ["clusters"]


@pytest.mark.parametrize("reward", [0.0, 0.3, 1e300])
def test_rewards_that_never_vary_are_not_correlated(reward: float) -> None:
    state = folded(np.full(EVENTS, reward))
    assert state.sums[0] == 0.0
    assert [passes for _, passes, _ in clusters.check(state, BLOCK, ERROR)] == [True]


def test_clusters_of_long_ago_are_forgotten() -> None:
    rng = np.random.default_rng(108)
    state = folded(correlated_rewards(sessions(rng), rng))
    assert not all(passes for _, passes, _ in clusters.check(state, BLOCK, ERROR))
    for _ in range(10):
        state = folded(still(rng, EVENTS), state)
    assert all(passes for _, passes, _ in clusters.check(state, BLOCK, ERROR))
