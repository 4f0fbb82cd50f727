"""Test that reward models come near the truth."""

from __future__ import annotations

import pytest

from streameval.ope.reward_models import (
    AnyRewardModel,
    Ridge,
    Tabular,
)
from support.reward_models import LINEAR, REWARDING, TREES, dm, fed


@pytest.mark.parametrize("model", [Ridge(), Tabular(), LINEAR, TREES], ids=lambda model: model.label)
def test_a_model_that_learns_beats_the_mean_and_comes_near_the_truth(model: AnyRewardModel) -> None:
    report = fed(model, REWARDING.log(2_000, seed=5)).report()
    errors = report.reward_model
    assert errors is not None
    assert errors.squared_error is not None
    assert errors.baseline_squared_error is not None
    assert errors.squared_error < 0.75 * errors.baseline_squared_error
    assert dm(report) == pytest.approx(REWARDING.value, abs=0.06)
