"""Ridge regression on the features of actions."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, State
from streameval.common.component import strict
from streameval.ope.evidence.actions import Requirement, Requirements
from streameval.ope.reward_models.base import LoggedActions, RewardModel

LARGEST_FEATURE = 1e30
"""Beyond this a sum of squares may leave the floating-point range: the action counts as one without features."""
ROUNDING = 1e-12
"""Added to the diagonal of a matrix of correlations: more than rounding, too little to matter."""


@dataclass(frozen=True, config=strict)
class Ridge(RewardModel):
    """Online ridge regression of the reward on `[1, features of the action]`, over all logged events.

    Old events decay with `horizon` (events), `penalty` keeps coefficients small while there are few events. The
    coefficients change at block ends only, so no reward affects its own prediction.

    Source: Hoerl & Kennard 1970; with exponential forgetting, Haykin, Adaptive filter theory, ch. 10.
    """

    horizon: Annotated[float, Field(ge=100)] = 10_000.0
    penalty: PositiveFloat = 1.0
    kind: Literal["ridge"] = field(default="ridge", kw_only=True, repr=False)

    @property
    def needs(self) -> Requirements:
        return frozenset({Requirement.FEATURES})

    def start(self) -> State:
        """The state before the first event; the number of features is unknown."""
        return {"square": None, "product": None}

    def fold(self, state: State, log: LoggedActions) -> tuple[Array, State]:
        """Rows without features are predicted as 0, and nothing is learned from them."""
        sets, reward = log.sets, log.reward
        if sets.features is None:
            return np.zeros(len(sets.propensities)), state
        design = _design(sets.features, state)
        known = np.asarray(~np.isnan(design).any(axis=1))
        design = np.where(known[:, None], design, 0.0)
        events, rows = sets.logged
        learned = np.zeros((len(reward), design.shape[1]))
        learned[events] = design[rows] * known[rows, None]
        by_block = learned.reshape(log.blocks, -1, design.shape[1])
        weighted = (learned * log.weight[:, None]).reshape(by_block.shape)
        squares = np.matmul(weighted.swapaxes(1, 2), by_block)
        products = np.einsum("bnd,bn->bd", weighted, reward.reshape(log.blocks, -1))
        coefficients, state = self._follow(state, squares, products, log.block)
        prediction = np.empty(len(design))
        for part, solution in zip(log.rows, coefficients, strict=True):
            prediction[part] = design[part] @ solution
        low, high = log.reward_range
        return np.where(known, np.clip(prediction, low, high), 0.0), state

    def _follow(self, state: State, squares: Array, products: Array, block: int) -> tuple[Array, State]:
        """Coefficients before each block, and the sums after the last."""
        width = products.shape[1]
        square = np.zeros((width, width)) if state["square"] is None else state["square"]
        product = np.zeros(width) if state["product"] is None else state["product"]
        fading = (1 - 1 / self.horizon) ** block
        before = np.empty_like(squares), np.empty_like(products)
        for index in range(len(squares)):
            before[0][index], before[1][index] = square, product
            square, product = square * fading + squares[index], product * fading + products[index]
        solvable = before[0] + self.penalty * np.eye(width)
        return _solved(solvable, before[1]), {"square": square, "product": product}


def _design(features: Array, state: State) -> Array:
    """The features with a leading 1, as wide as those learned so far; NaN where the width differs."""
    width = features.shape[1] if state["product"] is None else len(state["product"]) - 1
    design = np.full((len(features), width + 1), np.nan)
    design[:, 0] = 1.0
    if features.shape[1] == width:
        design[:, 1:] = features
    return np.where(np.abs(design) <= LARGEST_FEATURE, design, np.nan)


def _solved(squares: Array, products: Array) -> Array:
    """The coefficients of each of some regressions, from [blocks, d, d] and [blocks, d].

    With large features (times, identifiers) the penalty is lost in rounding, and collinear features make the matrix
    singular. So features are scaled first, and their correlations kept a little below 1.
    """
    scale = np.sqrt(np.diagonal(squares, axis1=1, axis2=2))
    correlations = squares / (scale[:, :, None] * scale[:, None, :]) + ROUNDING * np.eye(scale.shape[1])
    solution = np.linalg.solve(correlations, (products / scale)[..., None])[..., 0]
    return np.asarray(solution / scale, dtype=np.float64)
