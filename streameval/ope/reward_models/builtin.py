"""Provide the built-in reward models: a table of the mean reward of each action, and ridge regression on features."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import field
from itertools import count, repeat, zip_longest
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, State, decayed_path, ratio
from streameval.common.component import strict
from streameval.events.action_sets import LARGEST_FEATURE, Index
from streameval.ope.evidence.actions import Requirements
from streameval.ope.reward_models.base import LoggedActions, RewardModel

MAX_ACTIONS = 100_000
"""Further actions share the mean of all, so that names that never return cannot fill the memory."""
MAX_NUMBERS = 1 << 22
"""Limit of the numbers in the matrices of blocks that are learned together. With many features, fewer blocks fit."""
MAX_STATE_NUMBERS = 1 << 24
"""Limit of the numbers in the matrices of a state. One event with very many features would fill the memory."""
MAX_POSITIONS = 1_000
"""Limit of the positions that have their own regressions."""
MODEL_HORIZONS = np.array([1_250.0, 2_500.0, 5_000.0, 10_000.0, 40_000.0, np.inf])
"""Horizons of the regressions that a ridge without a horizon chooses from, in events."""
ERROR_HORIZON = 10_000.0
"""Horizon in events of the errors that determine the weights of the regressions."""
RIDGE_TERM = 1e-12
"""Added to the diagonal of a matrix of correlations: more than rounding, too little to matter."""


@dataclass(frozen=True, config=strict)
class Tabular(RewardModel):
    """Predict the mean reward of each action, whatever the context, for catalogues of at most 100,000 actions.

    An action starts with k events of the mean reward of all: `(sum of its rewards + k mean) / (n + k)`. Means change at
    block ends only. Actions are identified by their names in `actions`, or by their positions in arrays.

    Args:
        shrinkage: k > 0
        horizon: old events decay with this horizon, in events

    In the example the second of two events finds action 0 with one reward of 1, drawn half-way to the mean of all:

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
        sums = np.zeros((len(names) + 1, 2))  # the last row is for actions outside the table
        sums[: len(state["sums"])] = state["sums"]
        prediction = np.empty(len(codes))
        block_events = np.split(np.arange(len(reward)), blocks)
        for block_rows, events_of_block, total in zip(log.rows, block_events, before, strict=True):
            mean = total[1] / total[0] if total[0] > 0 else 0.0
            means = (sums[:, 1] + self.shrinkage * mean) / (sums[:, 0] + self.shrinkage)
            means[-1] = mean
            prediction[block_rows] = means[codes[block_rows]]
            sums *= fading
            np.add.at(sums, logged[events_of_block], learned[events_of_block])
        return np.clip(prediction, *log.reward_range), {"names": names, "sums": sums[:-1], "total": totals[-1]}

    def delta(self, before: State, after: State, events: int) -> State:
        fading, sums = (1 - 1 / self.horizon) ** events, after["sums"].copy()
        sums[: len(before["sums"])] -= fading * before["sums"]
        return {"names": after["names"], "sums": sums, "total": after["total"] - fading * before["total"]}

    def apply_delta(self, state: State, delta: State, events: int) -> State:
        fading, rows_by_name = (1 - 1 / self.horizon) ** events, state["names"]
        fresh = [name for name in delta["names"] if name not in rows_by_name][: MAX_ACTIONS - len(rows_by_name)]
        names = {**rows_by_name, **dict(zip(fresh, count(len(rows_by_name)), strict=False))}
        sums = np.zeros((len(names), 2))
        sums[: len(rows_by_name)] = fading * state["sums"]
        rows = np.array([names.get(name, -1) for name in delta["names"]], dtype=np.int64)
        sums[rows[rows >= 0]] += delta["sums"][rows >= 0]
        return {"names": names, "sums": sums, "total": fading * state["total"] + delta["total"]}

    def to_state(self, state: State) -> State:
        return {**state, "names": json.dumps(list(state["names"]))}  # JSON knows integers of any size

    def from_state(self, saved: State) -> State:
        return {**saved, "names": {name: row for row, name in enumerate(json.loads(saved["names"]))}}


def _coded(rows_by_name: Mapping[Any, int], log: LoggedActions) -> tuple[Mapping[Any, int], Index]:
    """Add the logged actions to the rows of the table by name, and look up the row of each action, -1 for none."""
    names = log.names
    logged = [names[row] for row in log.sets.logged[1].tolist()]
    fresh = [name for name in dict.fromkeys(logged) if name not in rows_by_name][: MAX_ACTIONS - len(rows_by_name)]
    table = {**rows_by_name, **dict(zip(fresh, count(len(rows_by_name)), strict=False))} if fresh else rows_by_name
    return table, np.fromiter(map(table.get, names, repeat(-1)), dtype=np.int64, count=len(names))


@dataclass(frozen=True, config=strict)
class Ridge(RewardModel):
    """Regress the reward on `[1, features of the action]` by online ridge regression, over all logged events.

    Without a `horizon` there are six regressions, with horizons from 1,250 to 40,000 events and of all events. Their
    coefficients are averaged with weights `om_h ~ exp(-(L_h - min L) / (2 s))`. `L_h` is the sum of the squared errors
    of regression h over the last 10,000 events (exponentially decayed), and `s` the smallest of their means. So the
    model forgets as fast as rewards change. Weights and coefficients change at block ends only, so no reward affects
    its own prediction. Actions with so many features that the matrices of all regressions would take more than 134 MB
    (1,671 features, or 4,095 with a `horizon`) are predicted as 0.

    Args:
        horizon: old events decay with this horizon, in events, >= 100
        penalty: keeps coefficients small while there are few events, > 0
        per_action: whether each position in the list of actions has its own regressions, for features that describe the
            context alone. Lists must then be equally long in all events.

    Source: Hoerl & Kennard 1970; with exponential forgetting, Haykin, Adaptive filter theory, ch. 10; for the weights,
    Vovk, COLT 1990.
    """

    horizon: Annotated[float, Field(ge=100)] | None = None
    penalty: PositiveFloat = 1.0
    per_action: bool = False
    kind: Literal["ridge"] = field(default="ridge", kw_only=True, repr=False)

    @property
    def needs(self) -> Requirements:
        return frozenset({"features"})

    @property
    def horizons(self) -> Array:
        """Return the horizons of the regressions, in events."""
        return MODEL_HORIZONS if self.horizon is None else np.array([self.horizon])

    def start(self) -> State:
        """Return the state before the first event, with an unknown number of features.

        `errors` holds the recent sum of weights, then the recent squared errors of each regression. With `per_action`
        there is such a state for each position.
        """
        return {"positions": []} if self.per_action else self._start()

    def _start(self) -> State:
        return {"square": None, "product": None, "errors": np.zeros(1 + len(self.horizons))}

    def fold(self, state: State, log: LoggedActions) -> tuple[Array, State]:
        """Predict 0 for actions with another number of features than the first, and do not learn from them.

        With `per_action`, this includes the actions of events with another number of actions. The first event is the
        first with features that keep the regressions within `MAX_STATE_NUMBERS`.
        """
        sets, positions = log.sets, log.sets.sizes if self.per_action else 1
        numbers = positions * len(self.horizons) * (sets.widths + 1.0) ** 2
        fits = (sets.widths > 0) & (numbers <= MAX_STATE_NUMBERS) & (positions <= MAX_POSITIONS)
        first = int(fits.argmax()) if fits.any() else None
        width = 0 if first is None else int(sets.widths[first])
        if not self.per_action:
            return self._fold(state, log, width)
        return self._fold_positions(state, log, 0 if first is None else int(sets.sizes[first]), width)

    def _fold_positions(self, state: State, log: LoggedActions, size: int, width: int) -> tuple[Array, State]:
        states, prediction = state["positions"], np.zeros(len(log.sets.propensities))
        states = states or [self._start() for _ in range(size)]
        learned = []
        for position_state, (rows, single) in zip(states, log.sets.by_position(len(states)), strict=True):
            prediction[rows], after = self._fold(position_state, log._replace(sets=single), width)
            learned.append(after)
        return prediction, {"positions": learned}

    def _fold(self, state: State, log: LoggedActions, width: int) -> tuple[Array, State]:
        """Fold the actions with `width` features, or with the number of features that the state has."""
        sets, reward = log.sets, log.reward
        prediction = np.zeros(len(sets.propensities))
        width = width if state["product"] is None else state["product"].shape[1] - 1
        if not width:
            return prediction, state
        is_known, features = sets.features_of_width(width)
        usable = (np.abs(features) <= LARGEST_FEATURE).all(axis=1)
        is_known[is_known] = usable
        known, design = np.flatnonzero(is_known), np.ones((np.count_nonzero(usable), width + 1))
        design[:, 1:] = features if usable.all() else features[usable]
        events, rows = (column[is_known[sets.logged[1]]] for column in sets.logged)
        learned, weight = np.zeros((len(reward), width + 1)), np.zeros(len(reward))
        learned[events], weight[events] = design[np.searchsorted(known, rows)], log.weight[events]
        by_block = (column.reshape(log.blocks, -1, *column.shape[1:]) for column in (learned, reward, weight))
        solutions, state = self._learn(state, log, *by_block)
        for block_rows, solution in zip(log.rows, solutions, strict=True):
            first, last = np.searchsorted(known, (block_rows.start, block_rows.stop))
            prediction[known[first:last]] = np.clip(design[first:last] @ solution, *log.reward_range)
        return prediction, state

    def delta(self, before: State, after: State, events: int) -> State:
        return self._add_positions(after, before, events, -1.0)

    def apply_delta(self, state: State, delta: State, events: int) -> State:
        return self._add_positions(delta, state, events, 1.0)

    def coefficients(self, state: State) -> Array | None:
        states = state["positions"] if self.per_action else [state]
        if not states or any(position_state["square"] is None for position_state in states):
            return None
        return np.stack([self._coefficients(position_state) for position_state in states])

    def _coefficients(self, state: State) -> Array:
        """Return the averaged coefficients of one position."""
        solved = _solved(state["square"] + self.penalty * np.eye(state["square"].shape[-1]), state["product"])
        shares, _ = _shares(state["errors"], np.zeros(1), np.zeros((1, len(solved))), block=0)
        return np.asarray(shares[0] @ solved)

    def _add_positions(self, new: State, old: State, events: int, sign: float) -> State:
        """Apply `_add` to each position. A position without a state yet is as before the first event."""
        if not self.per_action:
            return self._add(new, old, events, sign)
        pairs = zip_longest(new["positions"], old["positions"])
        return {
            "positions": [self._add(one or self._start(), other or self._start(), events, sign) for one, other in pairs]
        }

    def _add(self, new: State, old: State, events: int, sign: float) -> State:
        """Add `sign` times the sums of a state that is `events` older. Ignore it if the numbers of features differ."""
        fading = (1 - 1 / self.horizons) ** events
        errors = new["errors"] + sign * math.exp(-events / ERROR_HORIZON) * old["errors"]
        if old["product"] is None or new["product"] is None or old["product"].shape != new["product"].shape:
            latest = old if new["product"] is None and sign > 0 else new
            return {"square": latest["square"], "product": latest["product"], "errors": errors}
        square = new["square"] + sign * fading[:, None, None] * old["square"]
        return {"square": square, "product": new["product"] + sign * fading[:, None] * old["product"], "errors": errors}

    def _learn(
        self, state: State, log: LoggedActions, design: Array, reward: Array, weight: Array
    ) -> tuple[Array, State]:
        """Learn from the logged actions of some blocks.

        Args:
            state: before the first block
            log: the events
            design: [blocks, events, d]
            reward: [blocks, events]
            weight: [blocks, events]

        Returns:
            The averaged coefficients before each block [blocks, d], and the state after the last block.
        """
        weighted, width = design * weight[..., None], design.shape[2]
        chunk_size = max(1, MAX_NUMBERS // (len(self.horizons) * width**2))
        solutions: list[Array] = []
        for first in range(0, len(design), chunk_size):
            chunk = slice(first, first + chunk_size)
            squares = np.matmul(weighted[chunk].swapaxes(1, 2), design[chunk])
            products = np.einsum("bnd,bn->bd", weighted[chunk], reward[chunk])
            solved, state = self._follow(state, squares, products, log.block)
            predicted = np.clip(np.matmul(design[chunk], solved.swapaxes(1, 2)), *log.reward_range)
            errors = np.einsum("bn,bnh->bh", weight[chunk], (reward[chunk][..., None] - predicted) ** 2)
            shares, after = _shares(state["errors"], weight[chunk].sum(axis=1), errors, log.block)
            state |= {"errors": after}
            solutions += list(np.einsum("bh,bhd->bd", shares, solved))
        return np.array(solutions), state

    def _follow(self, state: State, squares: Array, products: Array, block: int) -> tuple[Array, State]:
        """Return coefficients before each block [blocks, regressions, d], and the sums after the last block."""
        fading = (1 - 1 / self.horizons[:, None]) ** block
        shape = len(fading), products.shape[1]
        square = np.zeros((*shape, shape[1])) if state["square"] is None else state["square"]
        product = np.zeros(shape) if state["product"] is None else state["product"]
        before = np.empty((len(squares), *square.shape)), np.empty((len(squares), *product.shape))
        for index in range(len(squares)):
            before[0][index], before[1][index] = square, product
            square, product = square * fading[..., None] + squares[index], product * fading + products[index]
        solved = _solved(before[0] + self.penalty * np.eye(shape[1]), before[1])
        return solved, {**state, "square": square, "product": product}


def _shares(state: Array, weight: Array, errors: Array, block: int) -> tuple[Array, Array]:
    """Return the weight of each regression before each block, and the recent sums after the last block.

    Args:
        state: recent sums of weights and of the squared errors of each regression [1 + regressions]
        weight: sums of weights in each block [blocks]
        errors: sums of squared errors in each block [blocks, regressions]
        block: the number of events in a block
    """
    path = decayed_path(state, np.column_stack([weight, errors]), np.exp(-block / ERROR_HORIZON))
    before = np.concatenate([state[None], path[:-1]])
    least = before[:, 1:].min(axis=1, keepdims=True)
    worse, noise = before[:, 1:] - least, 2 * ratio(least, before[:, :1])
    with np.errstate(divide="ignore"):
        shares = np.exp(-np.divide(worse, noise, out=np.zeros_like(worse), where=worse > 0))
    return shares / shares.sum(axis=1, keepdims=True), path[-1]


def _solved(squares: Array, products: Array) -> Array:
    """Solve for the coefficients of several regressions, [..., d, d] and [..., d] to [..., d].

    With large features (times, identifiers) the penalty is lost in rounding, and collinear features make the matrix
    singular. So features are scaled first, and their correlations kept a little below 1.
    """
    scale = np.sqrt(np.diagonal(squares, axis1=-2, axis2=-1))
    correlations = squares / (scale[..., :, None] * scale[..., None, :]) + RIDGE_TERM * np.eye(scale.shape[-1])
    solution = np.linalg.solve(correlations, (products / scale)[..., None])[..., 0]
    return np.asarray(solution / scale, dtype=np.float64)
