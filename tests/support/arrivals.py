"""Make logs of several partitions and ways to read them side by side, and compute what should come of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np
from hypothesis import strategies as st

from streameval.common.arrays import State
from streameval.events import EventBatch, Origin, fingerprints
from streameval.ingest.stages import EventOrder

TOPIC = "interactions"
LATENESS, IDLE = 5.0, 10.0
PLENTY = 1 << 30
"""Options of an `EventOrder`."""


class Arrival(NamedTuple):
    """Represent one message of a log."""

    timestamp: float
    partition: int
    offset: int
    event_id: str = ""


def fresh(max_bytes: int = PLENTY, partitions: int = 0) -> EventOrder:
    """Return an order before the first event, for some partitions."""
    ordering = EventOrder(TOPIC, max_lateness=LATENESS, idle_timeout=IDLE, max_bytes=max_bytes)
    ordering.expect([(TOPIC, partition) for partition in range(partitions)])
    return ordering


def steady(partition: int, count: int, every: float = 0.1, start: float = 0.0) -> list[Arrival]:
    """Return messages of a partition at equal distances in time."""
    return [Arrival(start + every * number, partition, number) for number in range(count)]


def batch_of(arrivals: Sequence[Arrival]) -> EventBatch:
    """Make a batch of the arrivals. Each has a different reward."""
    n = len(arrivals)
    batch = EventBatch.from_arrays(
        reward=[arrival.offset + arrival.partition / 8 for arrival in arrivals],
        propensity=np.full(n, 0.5),
        policies={"challenger": np.full(n, 0.25)},
        timestamp=[arrival.timestamp for arrival in arrivals],
    )
    origin = Origin(
        TOPIC,
        np.array([arrival.partition for arrival in arrivals], dtype=np.int64),
        np.array([arrival.offset for arrival in arrivals], dtype=np.int64),
        fingerprints([arrival.event_id for arrival in arrivals]),
    )
    return replace(batch, origin=origin)


def arrivals_of(batch: EventBatch) -> list[tuple[float, int, int]]:
    """Return timestamp, partition and offset of each event of a batch."""
    if not len(batch):
        return []
    assert batch.origin is not None
    columns = batch.timestamp, batch.origin.partition, batch.origin.offset
    return list(zip(*[column.tolist() for column in columns], strict=True))


def through_a_file(state: State) -> State:
    """Return the state after it was written and read, as at a restart."""
    restored: State = msgspec.msgpack.decode(msgspec.msgpack.encode(state))
    return restored


@st.composite
def logs(draw: st.DrawFn, most: int = 60, most_late: int = 5) -> list[list[Arrival]]:
    """Draw one to four partitions with times that rise, stand still or jump.

    Args:
        most: Largest number of messages of a partition.
        most_late: Largest delay of an event, in seconds.
    """
    partitions = []
    for partition in range(draw(st.integers(1, 4))):
        steps = draw(st.lists(st.sampled_from([0, 0, 1, 1, 1, 2, 3, 40]), max_size=most))
        delay = st.sampled_from([0, 0, 0, 0, 1, 2, most_late])
        delays = draw(st.lists(delay, min_size=len(steps), max_size=len(steps)))
        times = np.cumsum(np.array(steps, dtype=float)) - np.array(delays, dtype=float)
        partitions.append([Arrival(time, partition, offset) for offset, time in enumerate(times.tolist())])
    return partitions


@st.composite
def readings(draw: st.DrawFn, partitions: Sequence[Sequence[Arrival]]) -> list[list[Arrival]]:
    """Draw one way to read the logs: polls of consecutive messages of some partitions."""
    left = [deque(log) for log in partitions]
    polls = []
    while any(left):
        poll: list[Arrival] = []
        for log in left:
            poll += [log.popleft() for _ in range(min(len(log), draw(st.sampled_from([0, 1, 3, 20]))))]
        polls.append(poll)
        if not poll:
            log = next(log for log in left if log)
            polls.append([log.popleft()])
    return polls
