"""Buffered events, which leave by their time, in memory outside the heap.

Buffered events live longer than the arrays that decoding needs for a moment. On the heap they fragment the space
between these: in a soak of a daemon that reads two topics, resident memory grew by 58 MiB an hour.
"""

from __future__ import annotations

import math
import mmap
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from streameval.common.arrays import State
from streameval.events import EventBatch

T = TypeVar("T")

MAX_PARTS = 512
"""With more parts than this, neighbours are merged."""
LEAST_SHARE = 8
"""A part of which less than one event in so many is left is copied, so that the memory of the others is freed."""


@dataclass
class PartitionBuffer:
    """Events in the order of time, outside the heap; those before the row `start` have been taken."""

    events: EventBatch
    start: int = 0

    def __post_init__(self) -> None:
        self.events = off_heap(self.events)

    def __len__(self) -> int:
        return len(self.events) - self.start

    @property
    def left(self) -> EventBatch:
        """The events that have not been taken."""
        return self.events[self.start :]

    def take(self, stop: int) -> EventBatch:
        """The next events, up to the row `stop`."""
        taken = self.events[self.start : stop]
        self.start = stop
        return taken


class HeldEvents:
    """Buffered events; those before a time are taken together, ordered by (timestamp, partition, offset)."""

    def __init__(self) -> None:
        self._parts: list[PartitionBuffer] = []
        self.nbytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def add(self, batch: EventBatch) -> None:
        """Buffer these events, too."""
        if len(batch):
            self._parts.append(PartitionBuffer(in_order(replace(batch, rejected=()) if batch.rejected else batch)))
            self.nbytes += batch.nbytes
        if len(self._parts) > MAX_PARTS:
            pairs = (self._parts[first : first + 2] for first in range(0, len(self._parts), 2))
            self._keep([PartitionBuffer(in_order(EventBatch.concat([part.left for part in pair]))) for pair in pairs])

    def take(self, before: float = math.inf) -> EventBatch:
        """Remove and return the events before this time."""
        due = [
            part.take(int(part.events.timestamp.searchsorted(before)))
            for part in self._parts
            if part.events.timestamp[part.start] < before
        ]
        if not due:
            return EventBatch.concat([])
        self._keep([_trimmed(part) for part in self._parts if len(part)])
        return due[0] if len(due) == 1 else in_order(EventBatch.concat(due))

    def take_beyond(self, time: float) -> EventBatch:
        """Remove and return the events after this time."""
        beyond, kept = [], []
        for part in self._parts:
            left = part.left
            stop = int(left.timestamp.searchsorted(time, side="right"))
            beyond.append(left[stop:])
            kept += [PartitionBuffer(left.take(np.arange(stop)))] if stop else []
        self._keep(kept)
        return EventBatch.concat(beyond)

    def update_from(self, other: HeldEvents) -> None:
        """Replace events by those of `other` with the same origin, if `other` has columns of more policies.

        A policy that was added after an event was decoded here has no column in it.
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

    def origins(self) -> set[tuple[str, int, int]]:
        """Topic, partition and offset of each event."""
        events = EventBatch.concat([part.left for part in self._parts])
        return set() if events.origin is None else {events.origin.place(row) for row in range(len(events))}

    def drop_policies(self, policies: Collection[str]) -> None:
        """Remove the columns of these policies."""
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
        """All events as plain values, views of the memory they are in."""
        return [part.left.to_state() for part in self._parts]

    def restore(self, state: Sequence[State]) -> None:
        """Continue from a state."""
        self._keep([PartitionBuffer(EventBatch.from_state(part)) for part in state])


def in_order(batch: EventBatch) -> EventBatch:
    """The events ordered by (timestamp, partition, offset)."""
    if (batch.timestamp[1:] > batch.timestamp[:-1]).all():
        return batch
    assert batch.origin is not None, "events must be decoded with their origin"
    return batch.take(np.lexsort((batch.origin.offset, batch.origin.partition, batch.timestamp)))


def _trimmed(part: PartitionBuffer) -> PartitionBuffer:
    if len(part) * LEAST_SHARE > len(part.events):
        return part
    return PartitionBuffer(part.events.take(np.arange(part.start, len(part.events))))


# --- Memory outside the heap ---

BLOCK = 16384
"""Bytes: memory is mapped in multiples of it, and smaller values stay on the heap."""
ALIGNMENT = 64
"""Bytes: arrays start at multiples of it."""
POOL_SIZE, LARGEST_POOLED = 16, 1 << 19
"""How many mappings are kept for reuse, and the largest of them in bytes: page faults of new ones are expensive."""

_pool: deque[mmap.mmap] = deque(maxlen=POOL_SIZE)  # any thread appends, at any moment


def off_heap(value: T) -> T:
    """A dataclass like `value` with copies of all its arrays, also of nested dataclasses, in one mapping."""
    size = sum(map(_aligned, _arrays(value)))
    if size < BLOCK:
        return value
    memory, used = _memory(size), 0

    def moved(array: NDArray[Any]) -> NDArray[Any]:
        nonlocal used
        place = memory[used : used + array.nbytes].view(array.dtype)
        used += _aligned(array)
        by_column = array.ndim > 1 and array.strides[0] < array.strides[-1]
        copy = place.reshape(array.T.shape).T if by_column else place.reshape(array.shape)
        np.copyto(copy, array)
        return copy

    copied: T = _changed(value, moved)
    return copied


def _memory(size: int) -> NDArray[np.uint8]:
    """At least so many bytes, the caller's for as long as any view of them exists."""
    wanted = -(-size // BLOCK) * BLOCK
    mapping = _pooled(wanted) or mmap.mmap(-1, wanted, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = np.frombuffer(mapping, np.uint8)
    if len(mapping) <= LARGEST_POOLED:
        finalize(memory, _pool.append, mapping).atexit = False
    return memory


def _pooled(wanted: int) -> mmap.mmap | None:
    """An unused mapping of about this size."""
    with suppress(IndexError):  # the pool is empty
        for _ in range(len(_pool)):
            mapping = _pool.popleft()
            if wanted <= len(mapping) <= 1.5 * wanted:
                return mapping
            _pool.append(mapping)
    return None


def _aligned(array: NDArray[Any]) -> int:
    return -(-array.nbytes // ALIGNMENT) * ALIGNMENT


def _arrays(value: Any) -> Iterator[NDArray[Any]]:
    if isinstance(value, np.ndarray):
        yield value
    for name in _parts(value.__class__):
        yield from _arrays(getattr(value, name))


def _changed(value: Any, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Any:
    if isinstance(value, np.ndarray):
        return change(value)
    names = _parts(value.__class__)
    return replace(value, **{name: _changed(getattr(value, name), change) for name in names}) if names else value


@cache
def _parts(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
