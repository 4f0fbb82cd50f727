"""Rewards that come as separate messages, and a join that waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from streameval.events import Origin, RewardBatch, fingerprints
from streameval.ingest.stages import EventOrder, RewardStore
from support.arrivals import TOPIC

REWARDS = "rewards"
WINDOW, LATENESS, IDLE = 20.0, 5.0, 10.0
PLENTY = 1 << 30


class Earned(NamedTuple):
    """One message of a log of rewards."""

    timestamp: float
    partition: int
    offset: int
    event_id: str
    reward: float = 1.0


def fresh(combine: Any = "first", max_bytes: int = PLENTY, partitions: tuple[int, int] = (1, 1)) -> EventOrder:
    limits: dict[str, Any] = {"max_lateness": LATENESS, "max_bytes": max_bytes}
    rewards = RewardStore(REWARDS, window=WINDOW, default=-1.0, combine=combine, **limits)
    joining = EventOrder(TOPIC, idle_timeout=IDLE, rewards=rewards, **limits)
    joining.expect([(TOPIC, number) for number in range(partitions[0])])
    joining.expect([(REWARDS, number) for number in range(partitions[1])])
    return joining


def rewards_of(earned: Sequence[Earned]) -> RewardBatch:
    origin = Origin(
        REWARDS,
        np.array([each.partition for each in earned], dtype=np.int64),
        np.array([each.offset for each in earned], dtype=np.int64),
        fingerprints([each.event_id for each in earned]),
    )
    times, rewards = ([float(getattr(each, name)) for each in earned] for name in ("timestamp", "reward"))
    return RewardBatch(np.array(rewards), np.array(times), origin)
