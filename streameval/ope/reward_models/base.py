"""Define the base of all reward models: they predict first, and learn afterwards, at the ends of blocks."""

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
    """Hold consecutive events for a reward model: whole blocks, or fewer events than one block.

    A model need not learn from an unfinished block.

    Attributes:
        sets: the actions of n events
        reward: the rewards of the logged actions [n]
        weight: the inverse sampling probabilities [n]
        block: the number of events in a block
        reward_range: the lowest and the highest reward
        raw_fields: names of actions and contexts, for models that need them
    """

    sets: ActionSets
    reward: Array
    weight: Array
    block: int
    reward_range: tuple[float, float]
    raw_fields: RawFields | None = None

    @property
    def blocks(self) -> int:
        """Return the number of blocks. An unfinished one counts."""
        return max(1, len(self.reward) // self.block)

    def select_blocks(self, is_selected: Mask) -> LoggedActions:
        """Select blocks by a mask [blocks]."""
        events = np.flatnonzero(np.repeat(is_selected, self.block))
        return self._replace(
            sets=self.sets.take(events),
            reward=self.reward[events],
            weight=self.weight[events],
            raw_fields=self.raw_fields and self.raw_fields.take(events),
        )

    def logged_values(self, values: Array) -> Array:
        """Return the value of the logged action of each event, [rows] to [n]. It is 0 for an event without a set."""
        events, rows = self.sets.logged
        logged = np.zeros(len(self.reward))
        logged[events] = values[rows]
        return logged

    @property
    def rows(self) -> list[slice]:
        """Return the rows of actions of each block."""
        ends = self.sets.offsets[:: max(1, len(self.sets.index) // self.blocks)].tolist()
        return [slice(first, last) for first, last in pairwise(ends)]

    @property
    def names(self) -> list[Any]:
        """Return the name of the action in each row, or its position if the event has no names."""
        if self.raw_fields is None:
            starts = np.repeat(self.sets.offsets[:-1], self.sets.sizes)
            positions: list[Any] = (np.arange(len(self.sets.propensities)) - starts).tolist()
            return positions
        logged = zip(self.raw_fields.values, self.sets.sizes.tolist(), strict=True)
        return list(chain.from_iterable(fields.get("actions") or range(size) for fields, size in logged))


@dataclass(frozen=True, kw_only=True, config=strict)
class RewardModel(Component):
    """Predict the reward of every action that an event could have shown.

    Attributes:
        is_external: whether it is code of the user or of another package, with a state that is more than arrays
    """

    is_external: ClassVar[bool] = False

    @property
    def needs(self) -> Requirements:
        """Return what events must have."""
        return NOTHING

    @property
    def needs_raw_fields(self) -> bool:
        """Tell whether the model uses names of actions or contexts, the `raw_fields` of a batch."""
        return False

    def check(self) -> None:
        """Check that the model can be made.

        Raises:
            ConfigError: The model cannot be made.
        """

    def start(self) -> State:
        """Return the state before the first event."""
        raise NotImplementedError

    def fold(self, state: State, log: LoggedActions) -> tuple[Array, State]:
        """Predict all rows of actions, each from the blocks before its own, and return the state after these events.

        Predictions are finite and inside the reward range, or 0 for rows that cannot be predicted.

        Returns:
            The predictions [rows], and the state.
        """
        raise NotImplementedError

    def coefficients(self, state: State) -> Array | None:
        """Return the constant and the coefficients of a linear model that has learned [1 or positions, 1 + d].

        Predictions are the values of the line, cut to the reward range.
        """
        return None

    def delta(self, before: State, after: State, events: int) -> State:
        """Return what one block alone adds to a state.

        Models with predictions from sums support this. `apply_delta` adds the result to other states.

        Args:
            before: the state before the block
            after: the state after the block
            events: the number of events in the block
        """
        raise NotImplementedError

    def apply_delta(self, state: State, delta: State, events: int) -> State:
        """Return a state faded by `events`, plus what these events add to it."""
        raise NotImplementedError

    def failures(self, state: State) -> Mapping[str, int]:
        """Return how often something went wrong, by reason."""
        return {}

    def to_state(self, state: State) -> State:
        """Return the state as arrays and plain values."""
        return state

    def from_state(self, saved: State) -> State:
        """Invert `to_state`."""
        return saved
