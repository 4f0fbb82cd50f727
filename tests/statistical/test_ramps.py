"""Test the error of estimates from one arm of a ramp."""

from __future__ import annotations

from typing import Any

import numpy as np

from streameval import Evaluator, EventBatch
from streameval.ope.report import Report
from support.ramps import three_actions

SHARES = {"production": 0.8, "challenger": 0.2}


def evaluator(**settings: Any) -> Evaluator:
    options: dict[str, Any] = {"estimators": ["ips"], "averages": ["cumulative", "window", "mixture"], "drift": None}
    arms = {"arms": SHARES, "weights": "logged"}
    return Evaluator(["challenger"], **options | {"logging": arms, "production": "production"} | settings)


def report(columns: dict[str, Any], **settings: Any) -> Report:
    instance = evaluator(**settings)
    instance.update(EventBatch.from_arrays(**columns))
    return instance.report()


def test_on_a_mixture_the_error_of_a_small_arm_is_never_many_times_as_uncertain_as_on_all_events() -> None:
    """Start with about five events of the arm in the first block, which may all have earned."""
    widths: dict[str, list[float]] = {"cumulative": [], "mixture": []}
    for seed in range(12):
        columns = three_actions(seed, 10_000, share=0.05)
        for row in report(columns, logging=None, averages=list(widths), promotion=None).calibration:
            if row.policy == "challenger":
                assert row.error_lower is not None
                assert row.error_upper is not None
                widths[row.average].append(row.error_upper - row.error_lower)
    ratios = np.divide(widths["mixture"], widths["cumulative"])
    assert ratios.shape == (12,)
    assert ratios.max() < 6
