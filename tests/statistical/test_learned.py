"""Test that policies that learn become better than the logging policy, and follow the world."""

from __future__ import annotations

import pytest

from streameval.ope.learning.learned import Learned
from support.learned_policies import EVERY, evaluated, value
from support.learning import log


@pytest.mark.parametrize("name", EVERY)
def test_a_policy_that_learns_becomes_better_than_the_logging_policy(name: str) -> None:
    report = evaluated(EVERY[name], log(6_000)).report()
    logging = report.get("logging", "ips", "cumulative").value or 1.0
    if name != "per action":  # the position of an action means nothing in this log
        assert value(report) > logging + 0.1
    assert report.get("apprentice", "ips", "cumulative").importance_weight_mean == pytest.approx(1, abs=0.1)


def test_a_policy_that_forgets_follows_a_world_that_turns_around() -> None:
    batch, values = log(12_000), []
    turned = log(12_000, seed=2)
    turned = log(12_000, seed=2, reward=1 - turned.reward)
    for policy in (Learned(step=0.05), Learned(step=0.05, horizon=1_000)):
        evaluator = evaluated(policy, batch)
        evaluator.fold_pending()
        before = value(evaluator.report())
        evaluator.update(turned)
        values.append(2 * value(evaluator.report()) - before)
    assert values[1] > values[0]
