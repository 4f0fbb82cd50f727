"""Test that the numbers of an estimator do not depend on which others are configured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streameval import Evaluator, EventBatch
from streameval.ope.report import Estimate

EVENTS = 6_150
AVERAGES = ["cumulative", "window", "adaptive_decay", "adaptive_window", "mixture"]


def estimates(*estimators: str, averages: list[str]) -> dict[tuple[str, str, str], Estimate]:
    rng = np.random.default_rng(0)
    is_a = rng.random(EVENTS) < 0.7
    evaluator = Evaluator(["new"], estimators=estimators, averages=averages)
    batch = EventBatch.from_arrays(
        reward=(rng.random(EVENTS) < np.where(is_a, 0.1, 0.2)).astype(float),
        propensity=np.where(is_a, 0.7, 0.3),
        policies={"new": np.where(is_a, 0.2, 0.8)},
        unit=[f"user {event // 10 % 50}" for event in range(EVENTS)],
    )
    evaluator.update(batch)
    return {(row.policy, row.estimator, row.average): row for row in evaluator.report().estimates}


@pytest.mark.parametrize("alone", ["stratified_ips", "snips", "ips", "control_variate"])
@pytest.mark.parametrize("other", ["snips", "ips", "stratified_ips"])
def test_another_estimator_changes_no_number(alone: str, other: str) -> None:
    together: dict[Any, Estimate] = estimates(*dict.fromkeys([other, alone]), averages=AVERAGES)
    for labels, row in estimates(alone, averages=AVERAGES).items():
        assert together[labels] == row
