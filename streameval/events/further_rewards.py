"""Rewards after the first one: their fields in messages, and their columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from streameval.common.arrays import Array
from streameval.events.action_sets import Columns
from streameval.events.validation import BrokenRule, finite, reward_within


class RewardField(NamedTuple):
    """A reward: its name, the field of messages that holds it, and the range in which it lies."""

    name: str
    field: str
    low: float
    high: float


@dataclass(frozen=True, slots=True, eq=False)
class FurtherRewards(Columns):
    """The further rewards of n events.

    names: of the columns
    values: [n, rewards] NaN where an event lacks the reward
    """

    EVENTS: ClassVar[Mapping[str, Any]] = {"values": None}

    names: Sequence[str]
    values: Array

    def place(self, name: str) -> int | None:
        """The number of the column of this name, if there is one."""
        return list(self.names).index(name) if name in self.names else None

    def of(self, name: str) -> Array:
        """The reward of this name, [n]; NaN without such a column."""
        place = self.place(name)
        return np.full(len(self.values), np.nan) if place is None else np.asarray(self.values[:, place])

    def infinite(self) -> Iterator[BrokenRule]:
        """The rules that no reward is infinite."""
        for name, column in zip(self.names, self.values.T, strict=True):
            yield finite(name, column, np.isinf(column))

    def outside(self, ranges: Sequence[RewardField]) -> Iterator[BrokenRule]:
        """The rules that each known reward lies in its range."""
        for each in ranges:
            column = self.of(each.name)
            broken, reason, detail = reward_within(column, each.low, each.high, each.name)
            yield broken & ~np.isnan(column), reason, detail
