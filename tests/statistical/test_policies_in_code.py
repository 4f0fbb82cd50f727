"""Test that policies in code that learn become better than the logging policy."""

from __future__ import annotations

import pytest

from support.coded_learners import EVERY, evaluated, log, value

GAIN = {"contextual bandit": 0.25, "classes": 0.1, "two classes": 0.1, "random bandit": -0.1}
"""Least gain over the logging policy by kind. A policy that ignores the context gains little."""


@pytest.mark.parametrize("name", EVERY)
def test_a_policy_in_code_becomes_better_than_the_logging_policy(name: str) -> None:
    report = evaluated(EVERY[name], log(3_000)).report()
    (learner,) = report.learners
    assert (learner.steps, learner.failures) == (30, 0)
    assert report.policies[1].failures == ()
    assert value(report) > value(report, "logging") + GAIN.get(name, 0.03)
