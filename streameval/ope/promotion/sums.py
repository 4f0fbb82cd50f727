"""Hold what the monitor reads of blocks of events (half 1 of promotion), a pure function of the events.

All are sums and maxima over single blocks, so they may come from another process. Two parts are single events, because
their bets follow the blocks before: `mean_weight.Bets.surprise` and `RewardSums.lifts`.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from streameval.common.arrays import Array, Mask
from streameval.events.origin import Origin
from streameval.ope.core.summary import time_reached
from streameval.ope.intervals.sequences.tracker import LiftObservations
from streameval.ope.promotion.block_sums import BlockSums
from streameval.ope.promotion.mean_weight import Bets


class Times(Struct, frozen=True, eq=False):
    """Hold the times of blocks.

    Attributes:
        reached: the time that a tenth of each block has reached, minus infinity if unknown [blocks]
        missing: the share of events without a timestamp [blocks]
    """

    reached: Array
    missing: Array

    @classmethod
    def from_timestamps(cls, timestamp: Array, block: int) -> Times:
        """Sum up the timestamps of whole blocks [events]."""
        times = timestamp.reshape(-1, block)
        unknown = np.isnan(times)
        return cls(time_reached(np.where(unknown, -np.inf, times), block), unknown.mean(axis=1))


class RewardSums(Struct, frozen=True, eq=False):
    """Hold what rules read of the blocks of one reward.

    Attributes:
        sums: the sums of the blocks
        lifts: the observations of single events, None if no rule bets on them
        times: the times of the blocks
    """

    sums: BlockSums
    lifts: LiftObservations | None = None
    times: Times | None = None


class MonitorSums(Struct, frozen=True, eq=False):
    """Hold what the monitor reads of some whole blocks.

    Attributes:
        block: the number of events in a block
        times: the newest event time, NaN if unknown [blocks]
        ends: the offsets of the last events, if known
        rewards: the mean of the primary reward over the logged events [blocks]
        named: whether an event has had a unit
        bets: bets against a mean weight of 1, None for weights of another mean
        differ: see `block_sums.differing` [blocks, candidates]
        goal: the sums of the primary reward
        guardrails: the sums of other rewards by name
        moved_gains: see `Clicks.moved_gains`, None for other events [blocks, candidates, 2]
    """

    block: int
    times: Array
    ends: Origin | None
    rewards: Array
    named: bool
    bets: Bets | None
    differ: Mask
    goal: RewardSums
    guardrails: dict[str, RewardSums]
    moved_gains: Array | None = None

    def __len__(self) -> int:
        return len(self.times)
