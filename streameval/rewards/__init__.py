"""Reward models: what reward an action is expected to earn. They predict first and learn after."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from streameval.rewards.base import RewardModel
from streameval.rewards.foreign import FAILURES
from streameval.rewards.python_model import PythonModel
from streameval.rewards.ridge import Ridge
from streameval.rewards.river_model import RiverModel
from streameval.rewards.tabular import Tabular

AnyRewardModel = Annotated[Ridge | Tabular | RiverModel | PythonModel, Field(discriminator="kind")]

__all__ = ["FAILURES", "AnyRewardModel", "PythonModel", "RewardModel", "Ridge", "RiverModel", "Tabular"]
