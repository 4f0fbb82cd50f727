"""Test the trust check of clusters on logs without a `unit` that have sessions in their rewards."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from streameval import Cumulative, Evaluator, EventBatch, StratifiedIPS
from streameval.errors import ConfigError
from streameval.ope.evidence import Evidence
from streameval.ope.promotion import clusters
from streameval.ope.promotion.clusters import ClusterState
from streameval.ope.report import TrustCheck
from support.session_logs import correlated_rewards, sessions

Array = NDArray[np.float64]
EVENTS, BLOCK, ERROR = 100_000, 100, 0.01


def folded(reward: Array, state: ClusterState | None = None, block: int = BLOCK) -> ClusterState:
    means = clusters.mean_rewards(Evidence.from_numbers(np.ones((len(reward), 1)), reward, block))
    return clusters.fold(state or clusters.start(), means, block, named=False)


def checked(reward: Array, unit: list[str] | None) -> tuple[TrustCheck, str]:
    """Return the check of a Report on a candidate, and the reason of its decision."""
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
    reward = (np.random.default_rng(106).random(EVENTS) < 0.3).astype(float)
    assert not list(clusters.check(folded(reward[:29_900]), BLOCK, ERROR))
    assert [name for name, _, _ in clusters.check(folded(reward[:30_000]), BLOCK, ERROR)] == ["clusters"]


@pytest.mark.parametrize("reward", [0.0, 0.3, 1e300])
def test_rewards_that_never_vary_are_not_correlated(reward: float) -> None:
    state = folded(np.full(EVENTS, reward))
    assert state.sums[0] == 0.0
    assert [passes for _, passes, _ in clusters.check(state, BLOCK, ERROR)] == [True]


@pytest.mark.parametrize("error", [5e-324, 1e-300, 1e-20, 0.01])
def test_the_check_has_a_limit_for_any_error(error: float) -> None:
    reward = (np.random.default_rng(107).random(EVENTS) < 0.3).astype(float)
    assert [passes for _, passes, _ in clusters.check(folded(reward), BLOCK, error)] == [True]


def test_a_confidence_that_rounds_to_certainty_is_refused() -> None:
    """Its quantile is infinite, and a daemon must not learn this when it makes its first report."""
    with pytest.raises(ConfigError, match="confidence: expected a number less than"):
        Evaluator(["new"], confidence=1 - 2**-53)


def test_clusters_of_long_ago_are_forgotten() -> None:
    rng = np.random.default_rng(108)
    state = folded(correlated_rewards(sessions(rng, EVENTS), rng))
    assert not all(passes for _, passes, _ in clusters.check(state, BLOCK, ERROR))
    for _ in range(10):
        state = folded((rng.random(EVENTS) < 0.3).astype(float), state)
    assert all(passes for _, passes, _ in clusters.check(state, BLOCK, ERROR))
