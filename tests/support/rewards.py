"""Make rewards that come as separate messages, a join that waits for them, and comparisons of estimates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from streameval.events import Origin, RewardBatch, fingerprints
from streameval.ingest.stages import EventOrder, RewardStore
from streameval.ope.report import Estimate
from support.arrivals import TOPIC

REWARDS = "rewards"
WINDOW, LATENESS, IDLE = 20.0, 5.0, 10.0
PLENTY = 1 << 30


class Earned(NamedTuple):
    """Represent one message of a log of rewards."""

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
        np.array([message.partition for message in earned], dtype=np.int64),
        np.array([message.offset for message in earned], dtype=np.int64),
        fingerprints([message.event_id for message in earned]),
    )
    times, rewards = ([float(getattr(message, name)) for message in earned] for name in ("timestamp", "reward"))
    return RewardBatch(np.array(rewards), np.array(times), origin)


def assert_equal(actual: Estimate, expected: Estimate, tolerance: float = 1e-12) -> None:
    """Assert that all numbers are equal, in units of the width of the reward range."""
    for name, number in msgspec.to_builtins(expected).items():
        other = getattr(actual, name)
        if name == "details":
            assert other.keys() == number.keys()
            for key, value in number.items():
                assert other[key] == (pytest.approx(value, rel=1e-9, abs=1e-9) if value is not None else None), key
        elif name != "reward" and isinstance(number, float):
            size = 200.0 if actual.reward == "revenue" else 1.0
            assert other == pytest.approx(number, rel=tolerance, abs=tolerance * size), name
        elif name != "reward":
            assert other == number
