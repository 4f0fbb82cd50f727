"""Define reward models, and evaluators that use them."""

from __future__ import annotations

from typing import Any

import numpy as np

from streameval import Evaluator
from streameval.events import EventBatch
from streameval.ope.core import Cumulative
from streameval.ope.estimators import DM, DR, AnyEstimator
from streameval.ope.reward_models import (
    AnyRewardModel,
    RiverModel,
)
from support.bandits import CANDIDATE, Bandit, logging_with

BLOCK = 20
ESTIMATORS: list[AnyEstimator] = [DM(), DR()]
LINEAR = RiverModel(model="linear_model.BayesianLinearRegression")
TREES = RiverModel(
    model="ensemble.BaggingRegressor",
    parameters={"model": {"model": "tree.HoeffdingTreeRegressor"}, "n_models": 2, "seed": 3},
)


REWARDING = Bandit(
    logging_with(0.1, 4, 3), np.full((3, 4), 0.25), np.array([[0.1, 0.2, 0.8, 0.9], [0.1, 0.3, 0.7, 0.9], [0, 0, 1, 1]])
)


def evaluator(model: AnyRewardModel, **options: Any) -> Evaluator:
    settings_ = {"estimators": ESTIMATORS, "averages": [Cumulative()], "block": BLOCK, "reward_model": model}
    return Evaluator([CANDIDATE], **settings_ | options)


def fed(model: AnyRewardModel, *batches: EventBatch, **options: Any) -> Evaluator:
    made = evaluator(model, **options)
    for batch in batches:
        made.update(batch)
    return made


def dm(report: Any) -> float:
    value = report.get(CANDIDATE, "dm", "cumulative").value
    assert value is not None
    return float(value)
