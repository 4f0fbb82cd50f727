"""Hold the rewards after the first one, and check them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from streameval.common.arrays import Array, Mask, within
from streameval.events.action_sets import Columns
from streameval.events.validation import BrokenRule, finite, reward_within


class RewardField(NamedTuple):
    """Describe a reward: its name, its field in messages, and its range [low, high]."""

    name: str
    field: str
    low: float
    high: float


@dataclass(frozen=True, slots=True, eq=False)
class FurtherRewards(Columns):
    """Hold the further rewards of n events.

    Attributes:
        names: one per column
        values: [n, rewards] NaN if an event lacks the reward
    """

    EVENTS: ClassVar[Mapping[str, Any]] = {"values": None}

    names: Sequence[str]
    values: Array

    def index(self, name: str) -> int | None:
        """Return the index of the column of this name, if there is one."""
        return list(self.names).index(name) if name in self.names else None

    def column(self, name: str) -> Array:
        """Return the reward of this name, [n], NaN without such a column."""
        index = self.index(name)
        return np.full(len(self.values), np.nan) if index is None else np.asarray(self.values[:, index])

    def clipped(self, ranges: Sequence[RewardField]) -> tuple[FurtherRewards, Mask]:
        """Set rewards that exceed their range by rounding alone to its ends, and return the events with one [n]."""
        values, events = self.values, np.zeros(len(self.values), dtype=bool)
        for reward in ranges:
            index = self.index(reward.name)
            if index is not None:
                column, which = within(values[:, index], reward.low, reward.high)
                values = np.column_stack([values[:, :index], column, values[:, index + 1 :]]) if which.any() else values
                events |= which
        return replace(self, values=values), events

    def infinite(self) -> Iterator[BrokenRule]:
        """Yield a rule per reward: no value is infinite."""
        for name, column in zip(self.names, self.values.T, strict=True):
            yield finite(name, column, np.isinf(column))

    def outside(self, ranges: Sequence[RewardField]) -> Iterator[BrokenRule]:
        """Yield a rule per range: rewards that are given lie in it."""
        for reward in ranges:
            column = self.column(reward.name)
            broken, reason, detail = reward_within(column, reward.low, reward.high, reward.name)
            yield broken & ~np.isnan(column), reason, detail
