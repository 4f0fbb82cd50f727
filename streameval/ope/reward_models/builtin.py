"""The built-in reward models: a table of the mean reward of each action, and ridge regression on features."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from itertools import count, repeat
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, State, decayed_path
from streameval.common.component import strict
from streameval.events.action_sets import Index
from streameval.ope.evidence.actions import Requirement, Requirements
from streameval.ope.reward_models.base import LoggedActions, RewardModel

MOST_ACTIONS = 100_000
"""Actions beyond this number share the mean of all, so that names that never return cannot fill the memory."""
LARGEST_FEATURE = 1e30
"""Beyond this a sum of squares may leave the floating-point range: the action counts as one without features."""
NUMBERS_AT_ONCE = 1 << 22
"""Numbers in the matrices of the blocks that are learned together: beyond it, with many features, fewer blocks are."""
ROUNDING = 1e-12
"""Added to the diagonal of a matrix of correlations: more than rounding, too little to matter."""


@dataclass(frozen=True, config=strict)
class Tabular(RewardModel):
    """The mean reward of each action, whatever the context; for catalogues of no more than 100,000 actions.

    `shrinkage` k > 0: an action starts with k events of the mean reward of all, `(sum of its rewards + k mean) / (n +
    k)`. Old events decay with `horizon` (events). Means change at block ends only. Actions are identified by their
    names in `actions`, or by their positions where events came as arrays.

    Two events of two actions: the second one finds action 0 with one reward of 1, drawn half-way to the mean of all.

    >>> from streameval.events import ActionSets
    >>> sets = ActionSets(np.array([0, 2, 4]), np.array([0, 0]), np.full(4, 0.5), None, np.empty((4, 0)))
    >>> table = Tabular(shrinkage=1)
    >>> start, reward, weight = table.start(), np.array([1.0, 0.0]), np.ones(2)
    >>> table.fold(start, LoggedActions(sets, reward, weight, block=1, reward_range=(0, 1)))[0]
    array([0., 0., 1., 1.])

    Source: Efron & Morris 1975, for why means that are drawn together err less.
    """

    shrinkage: PositiveFloat = 10.0
    horizon: Annotated[float, Field(ge=100)] = 10_000.0
    kind: Literal["tabular"] = field(default="tabular", kw_only=True, repr=False)

    @property
    def needs_raw_fields(self) -> bool:
        return True

    def start(self) -> State:
        return {"names": {}, "sums": np.zeros((0, 2)), "total": np.zeros(2)}

    def fold(self, state: State, log: LoggedActions) -> tuple[Array, State]:
        sets, reward, weight, blocks = log.sets, log.reward, log.weight, log.blocks
        names, codes = _coded(state["names"], log)
        events, rows = sets.logged
        learned = np.stack([weight, weight * reward], axis=1)
        learned[sets.index < 0] = 0.0
        logged = np.zeros(len(reward), dtype=np.int64)
        logged[events] = codes[rows]
        fading = (1 - 1 / self.horizon) ** log.block
        totals = decayed_path(state["total"], learned.reshape(blocks, -1, 2).sum(axis=1), fading)
        before = np.concatenate([state["total"][None], totals[:-1]])
        sums = np.zeros((len(names) + 1, 2))  # the last row is for all that are not in the table
        sums[: len(state["sums"])] = state["sums"]
        prediction = np.empty(len(codes))
        parts = np.split(np.arange(len(reward)), blocks)
        for inside, part, total in zip(log.rows, parts, before, strict=True):
            mean = total[1] / total[0] if total[0] > 0 else 0.0
            means = (sums[:, 1] + self.shrinkage * mean) / (sums[:, 0] + self.shrinkage)
            means[-1] = mean
            prediction[inside] = means[codes[inside]]
            sums *= fading
            np.add.at(sums, logged[part], learned[part])
        return np.clip(prediction, *log.reward_range), {"names": names, "sums": sums[:-1], "total": totals[-1]}

    def to_state(self, state: State) -> State:
        return {**state, "names": json.dumps(list(state["names"]))}  # JSON knows integers of any size

    def from_state(self, saved: State) -> State:
        return {**saved, "names": {name: row for row, name in enumerate(json.loads(saved["names"]))}}


def _coded(known: Mapping[Any, int], log: LoggedActions) -> tuple[Mapping[Any, int], Index]:
    """The rows of the table by name, including the logged actions, and the row of each action: -1 for none."""
    names = log.names
    logged = [names[row] for row in log.sets.logged[1].tolist()]
    fresh = [name for name in dict.fromkeys(logged) if name not in known][: MOST_ACTIONS - len(known)]
    table = {**known, **dict(zip(fresh, count(len(known)), strict=False))} if fresh else known
    return table, np.fromiter(map(table.get, names, repeat(-1)), dtype=np.int64, count=len(names))


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
        """Actions with another number of features than the first are predicted as 0, and are not learned from."""
        sets, reward = log.sets, log.reward
        prediction = np.zeros(len(sets.propensities))
        width = sets.first_width if state["product"] is None else len(state["product"]) - 1
        if not width:
            return prediction, state
        known, features = sets.features_of_width(width)
        usable = (np.abs(features) <= LARGEST_FEATURE).all(axis=1)
        known[known] = usable
        design, place = np.insert(features[usable], 0, 1.0, axis=1), np.cumsum(known) - 1
        events, rows = (each[known[sets.logged[1]]] for each in sets.logged)
        learned = np.zeros((len(reward), width + 1))
        learned[events] = design[place[rows]]
        by_block = learned.reshape(log.blocks, -1, width + 1)
        weighted = (learned * log.weight[:, None]).reshape(by_block.shape)
        rewards, at_once = reward.reshape(log.blocks, -1), max(1, NUMBERS_AT_ONCE // (width + 1) ** 2)
        coefficients: list[Array] = []
        for first in range(0, log.blocks, at_once):
            some = slice(first, first + at_once)
            squares = np.matmul(weighted[some].swapaxes(1, 2), by_block[some])
            products = np.einsum("bnd,bn->bd", weighted[some], rewards[some])
            solved, state = self._follow(state, squares, products, log.block)
            coefficients += list(solved)
        for part, solution in zip(log.rows, coefficients, strict=True):
            rows = np.arange(part.start, part.stop)[known[part]]
            prediction[rows] = np.clip(design[place[rows]] @ solution, *log.reward_range)
        return prediction, state

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


def _solved(squares: Array, products: Array) -> Array:
    """The coefficients of each of some regressions, from [blocks, d, d] and [blocks, d].

    With large features (times, identifiers) the penalty is lost in rounding, and collinear features make the matrix
    singular. So features are scaled first, and their correlations kept a little below 1.
    """
    scale = np.sqrt(np.diagonal(squares, axis1=1, axis2=2))
    correlations = squares / (scale[:, :, None] * scale[:, None, :]) + ROUNDING * np.eye(scale.shape[1])
    solution = np.linalg.solve(correlations, (products / scale)[..., None])[..., 0]
    return np.asarray(solution / scale, dtype=np.float64)
