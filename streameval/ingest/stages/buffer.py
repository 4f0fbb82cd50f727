"""Events that wait for their turn."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from streameval.common.arrays import State
from streameval.events import EventBatch
from streameval.ingest.off_heap import apart
from streameval.ingest.stages.watermark import NEVER

MOST_PARTS = 512
"""With more parts than this, neighbours are put together."""
LEAST_SHARE = 8
"""A part of which less than one in so many events is left is copied, so that the others leave the memory."""


@dataclass
class PartitionBuffer:
    """Events in the order of time, of which those before the row `start` are gone; in memory of their own."""

    events: EventBatch
    start: int = 0

    def __post_init__(self) -> None:
        self.events = apart(self.events)

    def __len__(self) -> int:
        return len(self.events) - self.start

    @property
    def first(self) -> float:
        """Time of the next event."""
        return float(self.events.timestamp[self.start])

    @property
    def left(self) -> EventBatch:
        """Those that are not gone."""
        return self.events[self.start :]

    def take(self, stop: int) -> EventBatch:
        """The next events, up to the row `stop`."""
        taken = self.events[self.start : stop]
        self.start = stop
        return taken


class HeldEvents:
    """Events that wait; those before some time are taken out together, ordered by (timestamp, partition, offset)."""

    def __init__(self) -> None:
        self._parts: list[PartitionBuffer] = []
        self.nbytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def add(self, batch: EventBatch) -> None:
        """Keep these events, too."""
        if len(batch):
            self._parts.append(PartitionBuffer(in_order(replace(batch, rejected=()))))
            self.nbytes += batch.nbytes
        if len(self._parts) > MOST_PARTS:
            self._keep([_merged(self._parts[first : first + 2]) for first in range(0, len(self._parts), 2)])

    def take(self, before: float = math.inf) -> EventBatch:
        """The events before this time, which are then no longer kept."""
        due = [
            part.take(int(part.events.timestamp.searchsorted(before))) for part in self._parts if part.first < before
        ]
        if not due:
            return EventBatch.concat([])
        self._keep([_trimmed(part) for part in self._parts if len(part)])
        return due[0] if len(due) == 1 else in_order(EventBatch.concat(due))

    def take_beyond(self, time: float) -> EventBatch:
        """The events after this time, which are then no longer kept."""
        beyond, kept = [], []
        for part in self._parts:
            left = part.left
            stop = int(left.timestamp.searchsorted(time, side="right"))
            beyond.append(left[stop:])
            kept += [PartitionBuffer(left.take(np.arange(stop)))] if stop else []
        self._keep(kept)
        return EventBatch.concat(beyond)

    def renew(self, other: HeldEvents) -> None:
        """Keep the same events as the other one has them, where it has them and where they say more there.

        That is so when policies were added meanwhile: what waits here was decoded before, and does not tell of them.
        """
        theirs = EventBatch.concat([part.left for part in other._parts])
        if theirs.origin is None or all(part.events.policies == theirs.policies for part in self._parts):
            return
        ours = EventBatch.concat([part.left for part in self._parts])
        assert ours.origin is not None, "events must be decoded with their origin"
        row_of = {theirs.origin.place(row): row for row in range(len(theirs))}
        rows = [row_of.get(ours.origin.place(row), -1) for row in range(len(ours))]
        self._keep([])
        self.add(theirs.take(np.array([row for row in rows if row >= 0], dtype=np.int64)))
        self.add(ours.take(np.flatnonzero(np.array(rows) < 0)))

    def forget(self, policies: Collection[str]) -> None:
        """Keep the same events as if they did not tell of these policies."""
        for part in self._parts:
            part.events = part.events.with_policies(name for name in part.events.policies if name not in policies)
        self._keep(self._parts)

    def time_of(self, count: int) -> float:
        """The time of the oldest but `count` events, of which there are more."""
        return float(np.partition(np.concatenate([part.left.timestamp for part in self._parts]), count)[count])

    def _keep(self, parts: list[PartitionBuffer]) -> None:
        self._parts = parts
        self.nbytes = sum(part.events.nbytes for part in parts)

    def state(self) -> list[State]:
        """All of them as plain values: as they lie in memory, since this takes a while."""
        return [part.left.to_state() for part in self._parts]

    def restore(self, state: Sequence[State]) -> None:
        """Go on from a state."""
        self._keep([PartitionBuffer(EventBatch.from_state(part)) for part in state])


class EventBuffer:
    """A stage in which events wait for their turn, in `most_bytes` of memory."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held = HeldEvents()
        self._passed = NEVER  # what lies before this time has been passed on
        self._is_full = False
        self.hurried = 0

    @property
    def waiting(self) -> HeldEvents:
        """The events that wait."""
        return self._held

    @property
    def held(self) -> int:
        """How many events wait."""
        return len(self._held)

    @property
    def held_bytes(self) -> int:
        """Memory that all takes which waits."""
        return self._held.nbytes

    def _fills_up(self) -> bool:
        """Whether others must not be read on for now: until half of the memory is free again."""
        self._is_full = self.held_bytes > self._most_bytes / (2 if self._is_full else 1)
        return self._is_full


def in_order(batch: EventBatch) -> EventBatch:
    """The events ordered by (timestamp, partition, offset)."""
    if (batch.timestamp[1:] > batch.timestamp[:-1]).all():
        return batch
    assert batch.origin is not None, "events must be decoded with their origin"
    return batch.take(np.lexsort((batch.origin.offset, batch.origin.partition, batch.timestamp)))


def _merged(parts: Sequence[PartitionBuffer]) -> PartitionBuffer:
    return PartitionBuffer(in_order(EventBatch.concat([part.left for part in parts])))


def _trimmed(part: PartitionBuffer) -> PartitionBuffer:
    if len(part) * LEAST_SHARE > len(part.events):
        return part
    return PartitionBuffer(part.events.take(np.arange(part.start, len(part.events))))
