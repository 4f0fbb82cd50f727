"""Balanced weights during a ramp: a third of the error of the logged propensities, with honest intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from streameval import Evaluator, EventBatch
from streameval.ope.report import Estimate
from support.ramps import ARMS, ramp

RUNS = 400


def estimate(columns: dict[str, Any], arms: Mapping[str, float] | Sequence[str]) -> Estimate:
    evaluator = Evaluator(
        ["challenger"],
        ["ips"],
        ["cumulative"],
        production="production",
        promotion=None,
        drift=None,
        logging={"arms": arms, "weights": "balanced"},
    )
    evaluator.update(EventBatch.from_arrays(**columns))
    return evaluator.report().get("challenger", "ips", "cumulative")


@pytest.mark.slow
@pytest.mark.parametrize("arms", [{"production": 0.9, "challenger": 0.1}, ARMS], ids=["configured", "measured"])
def test_balanced_weights_have_a_third_of_the_error_and_their_intervals_cover(
    arms: Mapping[str, float] | Sequence[str],
) -> None:
    """With the logged propensities, `ips` is the mean of `w r`."""
    errors: dict[str, list[float]] = {"balanced": [], "logged": []}
    covered = 0
    for seed in range(RUNS):
        columns, value = ramp(seed)
        estimated = estimate(columns, arms)
        assert estimated.value is not None
        assert estimated.lower is not None
        assert estimated.upper is not None
        errors["balanced"].append(estimated.value - value)
        weighted = columns["policies"]["challenger"] / columns["propensity"] * columns["reward"]
        errors["logged"].append(weighted.mean() - value)
        covered += estimated.lower <= value <= estimated.upper
    balanced, logged = (float(np.sqrt(np.mean(np.square(values)))) for values in errors.values())
    print(f"RMSE {balanced:.5f} against {logged:.5f}, coverage {covered / RUNS:.3f}")
    assert balanced <= logged / 3
    assert covered / RUNS >= 0.94
