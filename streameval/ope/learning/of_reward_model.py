"""Provide the policy that the reward model recommends."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, Mask, State
from streameval.common.component import strict
from streameval.events import Fault
from streameval.ope.policies import policy_file
from streameval.ope.policies.base import Answer, Copied, LearningPolicy, Log

TIED = 1e-9
"""Scores this close to the highest one, relative to it, count as highest, so that rounding decides nothing."""
NO_PREDICTION = Fault("missing_field", "features: missing, and the reward model needs them")


def are_highest(scores: Array, highest: Array) -> Mask:
    """Return which scores are the highest ones of their event, given the highest one at each row."""
    return np.asarray(scores >= highest - TIED * np.abs(highest))


@dataclass(frozen=True, config=strict)
class OfRewardModel(LearningPolicy):
    """Take the best actions by the reward model that `dr` uses, which learns from a block after predicting it.

    The distribution is `epsilon / K + (1 - epsilon) softmax(q(a) / temperature)` for K actions with predictions `q(a)`.

    Args:
        epsilon: the probability of a random action
        temperature: 0 takes the best action, or several best ones with equal shares. High values treat all actions
            alike.

    >>> from streameval.events import ActionSets
    >>> sets = ActionSets(np.array([0, 4]), np.array([0]), np.full(4, 0.25), None, np.empty((4, 0)))
    >>> log = Log(sets, np.full(1, 0.25), np.ones(1), np.ones(1), 100, prediction=np.array([0.1, 0.3, 0.2, 0.3]))
    >>> OfRewardModel().fold({}, log)[0][0]
    array([0. , 0.5, 0. , 0.5])
    >>> OfRewardModel(epsilon=0.2).fold({}, log)[0][0].round(2)
    array([0.05, 0.45, 0.05, 0.45])
    """

    epsilon: Annotated[float, Field(ge=0, le=1, description="the probability of a random action")] = 0.0
    temperature: Annotated[NonNegativeFloat, Field(description="0: the best action; high: all alike")] = 0.0
    kind: Literal["of_reward_model"] = field(default="of_reward_model", kw_only=True, repr=False)

    @property
    def needs_prediction(self) -> bool:
        return True

    @property
    def follows_model(self) -> bool:
        return True

    def fold(self, state: State, log: Log) -> tuple[Answer, State]:
        sets, prediction = log.sets, log.prediction
        assert prediction is not None
        filled = sets.sizes > 0
        starts, sizes = sets.offsets[:-1][filled], sets.sizes[filled]
        if not len(starts):
            return (prediction, {}), state
        highest = np.repeat(np.maximum.reduceat(prediction, starts), sizes)
        if self.temperature:
            with np.errstate(over="ignore"):
                share = np.exp((prediction - highest) / self.temperature)
        else:
            share = are_highest(prediction, highest).astype(float)
        with np.errstate(divide="ignore", invalid="ignore"):  # of NaN
            scale = (1 - self.epsilon) / np.add.reduceat(share, starts)
            rows = np.repeat(scale, sizes) * share + np.repeat(self.epsilon / sizes, sizes)
        lacking = np.flatnonzero(filled)[np.isnan(highest[starts])]
        return (rows, dict.fromkeys(lacking.tolist(), NO_PREDICTION)), state

    def file_content(self, state: State, copied: Copied) -> bytes | None:
        """Return the content of a file of the reward model it follows, or None if the model has no coefficients."""
        coefficients = copied.coefficients(state["model"])
        return (
            None
            if coefficients is None
            else policy_file.model_to_bytes(self, coefficients, copied.reward_range, copied.events)
        )
