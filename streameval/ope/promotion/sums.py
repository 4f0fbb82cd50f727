"""Half 1 of promotion: what the monitor reads of blocks of events, a pure function of the events.

All are sums and maxima over single blocks, so they may come from another process. Two parts are events themselves, as
their bets follow the blocks before: `mean_weight.Bets.surprise` and `RewardSums.lifts`.
"""

from __future__ import annotations

from msgspec import Struct

from streameval.common.arrays import Array, Mask
from streameval.events.origin import Origin
from streameval.ope.intervals.sequences.tracker import LiftObservations
from streameval.ope.promotion.block_sums import BlockSums
from streameval.ope.promotion.mean_weight import Bets


class RewardSums(Struct, frozen=True, eq=False):
    """What rules read of the blocks of one reward.

    `lifts`: the observations of single events, None if no rule bets on them.
    """

    sums: BlockSums
    lifts: LiftObservations | None = None


class MonitorSums(Struct, frozen=True, eq=False):
    """What the monitor reads of some whole blocks of `block` events.

    `times` [blocks]: the newest event, NaN if unknown. `ends`: the origins of the last events, if they are known.
    `rewards` [blocks]: the means of the goal over the logged events. `named`: whether an event has had a unit. `bets`:
    those against a mean weight of 1, None for weights of another mean. `differ` [blocks, candidates]: see
    `block_sums.differing`.
    `guardrails`: of their rewards, by name.
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

    def __len__(self) -> int:
        return len(self.times)
