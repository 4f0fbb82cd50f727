"""Predict the reward that an action is expected to earn. Models predict first and learn afterwards."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from streameval.ope.reward_models.base import RewardModel
from streameval.ope.reward_models.builtin import Ridge, Tabular
from streameval.ope.reward_models.external import FAILURES, PythonModel, RiverModel

AnyRewardModel = Annotated[Ridge | Tabular | RiverModel | PythonModel, Field(discriminator="kind")]

__all__ = ["FAILURES", "AnyRewardModel", "PythonModel", "RewardModel", "Ridge", "RiverModel", "Tabular"]
