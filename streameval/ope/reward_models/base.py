"""The base of all reward models: they predict first, and learn after, at the ends of blocks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, ClassVar

import numpy as np
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, State, from_plain, to_plain
from streameval.common.component import Component, strict
from streameval.events import ActionSets, RawFields
from streameval.ope.evidence.requirements import NOTHING, Requirements


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
        """ConfigError when the model cannot be made."""

    def start(self) -> State:
        """The state before the first event."""
        raise NotImplementedError

    def fold(
        self,
        state: State,
        sets: ActionSets,
        reward: Array,
        weight: Array,
        block: int,
        reward_range: tuple[float, float],
        raw_fields: RawFields | None = None,
    ) -> tuple[Array, State]:
        """Predictions for all rows of `sets`, each from the blocks before its own, and the state after these events.

        `reward` and `weight` are [n]. The events are whole blocks, or fewer than one, from which nothing
        needs to be learned. Predictions are finite and inside the reward range, or 0 for rows that cannot be predicted.
        """
        raise NotImplementedError

    def failures(self, state: State) -> Mapping[str, int]:
        """How often something went wrong, by reason."""
        return {}

    def to_state(self, state: State) -> State:
        """The state as a plain value."""
        plain: State = to_plain(state)
        return plain

    def from_state(self, saved: State) -> State:
        """The inverse of `to_state`."""
        state: State = from_plain(saved)
        return state


def block_ends(sets: ActionSets, blocks: int) -> list[int]:
    """The first row of each block, and the end of the last one."""
    ends: list[int] = sets.offsets[:: max(1, len(sets.index) // blocks)].tolist()
    return ends


def action_names(sets: ActionSets, raw_fields: RawFields | None) -> list[Any]:
    """The name of the action in each row; its position where the event has none."""
    if raw_fields is None:
        places: list[Any] = (np.arange(len(sets.propensities)) - np.repeat(sets.offsets[:-1], sets.sizes)).tolist()
        return places
    named = zip(raw_fields.actions, sets.sizes.tolist(), strict=True)
    return list(chain.from_iterable(actions or range(size) for actions, size in named))
