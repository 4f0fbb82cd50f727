"""Buffer events, which leave by their time, in memory outside the heap.

Buffered events live longer than the arrays that decoding needs for a moment. On the heap they keep the memory between
these from going back to the system: after 200 MB had waited for a partition and left, 219 MB stayed with the process,
and 17 MB with the events outside the heap.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from streameval.common.arrays import Mask, State
from streameval.events import EventBatch
from streameval.events.action_sets import Columns

C = TypeVar("C", bound=Columns)

MAX_PARTS = 512
"""With more parts than this, neighbours are merged."""
MIN_SHARE = 8
"""A part is copied once less than one event in this many is left."""


@dataclass
class PartitionBuffer:
    """Hold events in the order of time, outside the heap. Events before the row `start` have been taken."""

    events: EventBatch
    start: int = 0
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = self.events.nbytes
        self.events = off_heap(self.events)

    def __len__(self) -> int:
        return len(self.events) - self.start

    @property
    def left(self) -> EventBatch:
        """Return the events that have not been taken."""
        return self.events[self.start :]

    def trimmed(self) -> PartitionBuffer:
        """Copy the events if few are left, so that the memory of the others is freed."""
        if len(self) * MIN_SHARE > len(self.events):
            return self
        return PartitionBuffer(self.left.take(np.arange(len(self))))


class HeldEvents:
    """Buffer events, and return events before a time together, ordered by (timestamp, partition, offset)."""

    def __init__(self) -> None:
        self._parts: list[PartitionBuffer] = []

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def nbytes(self) -> int:
        """Return the memory of the events, and of taken events next to them."""
        return sum(part.nbytes for part in self._parts)

    @property
    def oldest(self) -> float:
        """Return the time of the oldest event, or infinity without events."""
        return min((float(part.events.timestamp[part.start]) for part in self._parts), default=math.inf)

    def add(self, batch: EventBatch) -> None:
        """Buffer events."""
        if len(batch):
            self._parts.append(PartitionBuffer(time_ordered(replace(batch, rejected=()) if batch.rejected else batch)))
        if len(self._parts) > MAX_PARTS:
            pairs = (self._parts[first : first + 2] for first in range(0, len(self._parts), 2))
            self._parts = [
                PartitionBuffer(time_ordered(EventBatch.concat([part.left for part in pair]))) for pair in pairs
            ]

    def take(self, before: float = math.inf) -> EventBatch:
        """Remove and return the events before this time."""
        due = []
        for part in self._parts:
            if part.events.timestamp[part.start] < before:
                stop = int(part.events.timestamp.searchsorted(before))
                due.append(part.events[part.start : stop])
                part.start = stop
        if not due:
            return EventBatch.concat([])
        self._parts = [part.trimmed() for part in self._parts if len(part)]
        return due[0] if len(due) == 1 else time_ordered(EventBatch.concat(due))

    def redate(self, latest: float, now: float) -> int:
        """Date the events after `latest` at `now`, and return their number."""
        ahead = [part.left for part in self._parts if part.events.timestamp[-1] > latest]
        if ahead:
            self._parts = [part for part in self._parts if part.events.timestamp[-1] <= latest]
            for events in ahead:
                self.add(replace(events, timestamp=np.where(events.timestamp > latest, now, events.timestamp)))
        return sum(int(np.count_nonzero(events.timestamp > latest)) for events in ahead)

    def update_from(self, batch: EventBatch) -> tuple[Mask, float]:
        """Replace events by events of `batch` with the same origin.

        Args:
            batch: may have columns of policies that were added after an event was decoded here

        Returns:
            Which rows of `batch` are here, too, and the newest time of an event that `batch` lacks.
        """
        row_of = {mark: row for row, mark in enumerate(_marks(batch))}
        ours = EventBatch.concat([part.left for part in self._parts])
        rows = np.array([row_of.get(mark, -1) for mark in _marks(ours)], dtype=np.int64)
        self._parts = []
        self.add(batch.take(rows[rows >= 0]))
        self.add(ours.take(rows < 0))
        return np.isin(np.arange(len(batch)), rows), float(ours.timestamp[rows < 0].max(initial=-math.inf))

    def drop_policies(self, policies: Collection[str]) -> None:
        """Remove the columns of policies."""
        for part in self._parts:
            part.events = part.events.with_policies(name for name in part.events.policies if name not in policies)
            part.nbytes = part.events.nbytes

    def time_of(self, count: int) -> float:
        """Return the time of the (count + 1)-th oldest event."""
        return float(np.partition(np.concatenate([part.left.timestamp for part in self._parts]), count)[count])

    def state(self) -> list[State]:
        """Return all events as plain values, uncopied."""
        return [part.left.to_state() for part in self._parts]

    def restore(self, state: Sequence[State]) -> None:
        """Continue from a state."""
        self._parts = [PartitionBuffer(EventBatch.from_state(part)) for part in state]


def _marks(batch: EventBatch) -> Iterator[tuple[float, ...]]:
    """Yield a value for each event that no other event has, not even at its offset in a topic that was recreated."""
    origin = batch.origin
    if origin is None:
        return iter(())
    content = [batch.reward, np.nan_to_num(batch.propensity)] if origin.identity is None else [origin.identity]
    row = np.zeros(len(batch), dtype=np.int64) if origin.row is None else origin.row
    return zip(*(column.tolist() for column in (origin.partition, origin.offset, row, *content)), strict=True)


def time_ordered(batch: EventBatch) -> EventBatch:
    """Order events by (timestamp, partition, offset)."""
    if (batch.timestamp[1:] > batch.timestamp[:-1]).all():
        return batch
    assert batch.origin is not None, "events must be decoded with their origin"
    return batch.take(np.lexsort((batch.origin.offset, batch.origin.partition, batch.timestamp)))


# --- Memory outside the heap ---

MIN_MAPPED_BYTES = 16384
"""Smaller batches stay on the heap."""
ALIGNMENT, ROOM_TO_ALIGN = 64, 64 * 64
"""Bytes: arrays start at multiples of the first; the second is enough for 64 arrays."""


def off_heap(batch: EventBatch) -> EventBatch:
    """Copy all arrays of events into one mapping, which lives as long as any view of them."""
    size = batch.nbytes + ROOM_TO_ALIGN
    if size < MIN_MAPPED_BYTES:
        return batch
    mapping, used = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), 0

    def moved(array: NDArray[Any]) -> NDArray[Any]:
        nonlocal used
        by_column = array.ndim > 1 and array.strides[0] < array.strides[-1]
        copy: NDArray[Any] = np.ndarray(array.shape, array.dtype, mapping, used, order="F" if by_column else "C")
        copy[...] = array
        used += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        return copy

    return _changed(batch, moved)


def _changed(columns: C, change: Callable[[NDArray[Any]], NDArray[Any]]) -> C:
    values = {entry.name: getattr(columns, entry.name) for entry in fields(columns)}
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            values[name] = change(value)
        elif isinstance(value, Columns):
            values[name] = _changed(value, change)
    return replace(columns, **values)
