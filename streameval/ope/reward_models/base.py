"""The base of all reward models: they predict first, and learn after, at the ends of blocks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, Mask, State
from streameval.common.component import Component, strict
from streameval.events import ActionSets, RawFields
from streameval.ope.evidence.actions import NOTHING, Requirements


class LoggedActions(NamedTuple):
    """Consecutive events for a reward model: whole blocks, or fewer events than one, which it need not learn from.

    `sets`: the actions of n events. `reward`, `weight` [n]: the rewards of the logged actions, and the inverse sampling
    probabilities. `raw_fields`: names of actions and contexts, for models that need them.
    """

    sets: ActionSets
    reward: Array
    weight: Array
    block: int
    reward_range: tuple[float, float]
    raw_fields: RawFields | None = None

    @property
    def blocks(self) -> int:
        """The number of blocks; an unfinished one counts."""
        return max(1, len(self.reward) // self.block)

    def of_blocks(self, kept: Mask) -> LoggedActions:
        """Some of these blocks; `kept` [blocks]."""
        events = np.flatnonzero(np.repeat(kept, self.block))
        return self._replace(
            sets=self.sets.take(events),
            reward=self.reward[events],
            weight=self.weight[events],
            raw_fields=self.raw_fields and self.raw_fields.take(events),
        )

    def of_logged(self, values: Array) -> Array:
        """The value of the logged action of each event, [rows] to [n]; 0 where the event has no set."""
        events, rows = self.sets.logged
        logged = np.zeros(len(self.reward))
        logged[events] = values[rows]
        return logged

    @property
    def rows(self) -> list[slice]:
        """The rows of actions of each block."""
        ends = self.sets.offsets[:: max(1, len(self.sets.index) // self.blocks)].tolist()
        return [slice(first, last) for first, last in pairwise(ends)]

    @property
    def names(self) -> list[Any]:
        """The name of the action in each row; its position where the event has none."""
        if self.raw_fields is None:
            starts = np.repeat(self.sets.offsets[:-1], self.sets.sizes)
            positions: list[Any] = (np.arange(len(self.sets.propensities)) - starts).tolist()
            return positions
        logged = zip(self.raw_fields.values, self.sets.sizes.tolist(), strict=True)
        return list(chain.from_iterable(fields.get("actions") or range(size) for fields, size in logged))


@dataclass(frozen=True, kw_only=True, config=strict)
class RewardModel(Component):
    """Predicts the reward of every action that an event could have shown.

    `needs`: what events must have. `needs_raw_fields`: the model uses names of actions or contexts, which a batch has
    as `raw_fields`. `is_external`: code of the user or of another package, whose state is more than arrays.
    """

    is_external: ClassVar[bool] = False

    @property
    def needs(self) -> Requirements:
        return NOTHING

    @property
    def needs_raw_fields(self) -> bool:
        return False

    def check(self) -> None:
        """Check that the model can be made.

        Raises:
            ConfigError: The model cannot be made.
        """

    def start(self) -> State:
        """The state before the first event."""
        raise NotImplementedError

    def fold(self, state: State, log: LoggedActions) -> tuple[Array, State]:
        """Predictions for all rows of actions, each from the blocks before its own, and the state after these events.

        Predictions are finite and inside the reward range, or 0 for rows that cannot be predicted.
        """
        raise NotImplementedError

    def coefficients(self, state: State) -> Array | None:
        """Of a linear model that has learned, the constant and the coefficients of features, [1 or positions, 1 + d].

        Predictions are those of the line, cut to the reward range.
        """
        return None

    def taught(self, before: State, after: State, events: int) -> State:
        """The state from one block of this many events alone, which has moved a state from `before` to `after`.

        Models whose predictions come from sums have it, and add it to other states by `with_taught`.
        """
        raise NotImplementedError

    def with_taught(self, state: State, taught: State, events: int) -> State:
        """The state `events` later, with the one from these events alone."""
        raise NotImplementedError

    def failures(self, state: State) -> Mapping[str, int]:
        """How often something went wrong, by reason."""
        return {}

    def to_state(self, state: State) -> State:
        """The state as arrays and plain values."""
        return state

    def from_state(self, saved: State) -> State:
        """The inverse of `to_state`."""
        return saved
