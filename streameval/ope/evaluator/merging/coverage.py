"""The offsets of some events, and how far event time has come in them.

The clock of a partition shows the newest timestamp that a tenth of a stretch of its offsets has reached, as that of one
process does for a block of events: a few timestamps far in the future do not make all other events old. Stretches start
at multiples of their length, so that the clock does not depend on where a range starts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from streameval.common.arrays import Array, State
from streameval.common.text import counted
from streameval.errors import StateError
from streameval.events import EventBatch
from streameval.events.action_sets import Index

Partition: TypeAlias = tuple[str, int]
"""A topic and the number of one of its partitions."""
OffsetSpan: TypeAlias = tuple[int, int]
"""The first offset, and the one after the last."""
Stretch: TypeAlias = tuple[str, int, int]
"""A partition, and the number of a stretch of its offsets."""

STRETCH = 100
"""Offsets of a stretch."""
NEWEST_KEPT = 10
"""The events of a stretch that must have reached a time."""
NEVER = -math.inf


@dataclass(frozen=True)
class Coverage:
    """Ranges of offsets by partition, in ascending order; neighbours are one range.

    `reached`: the clock of each partition, from its complete stretches. `unfinished`: of each stretch that is covered
    in part, how many offsets are, and its newest timestamps in ascending order.
    """

    ranges: Mapping[Partition, Sequence[OffsetSpan]] = field(default_factory=dict)
    reached: Mapping[Partition, float] = field(default_factory=dict)
    unfinished: Mapping[Stretch, tuple[int, Sequence[float]]] = field(default_factory=dict)

    @classmethod
    def of(cls, ranges: Mapping[Partition, OffsetSpan], batch: EventBatch) -> Coverage:
        """From one range of each partition, and the events in them.

        Raises:
            ValueError: A range is empty, or an event lies in none of them.
        """
        for (topic, partition), (first, stop) in ranges.items():
            if not 0 <= first < stop:
                raise ValueError(f"the range {first} to {stop} of {topic}-{partition} has no offsets")
        reached, unfinished, found = {}, {}, 0
        for (topic, partition), (first, stop) in ranges.items():
            offsets, times = _within(batch, topic, partition, (first, stop), len(ranges))
            found += len(offsets)
            newest = NEVER
            for stretch, times_of_stretch in _newest(offsets, times):
                covered = min(stop, (stretch + 1) * STRETCH) - max(first, stretch * STRETCH)
                if covered == STRETCH:
                    newest = max(newest, _reached(times_of_stretch))
                else:
                    unfinished[topic, partition, stretch] = covered, times_of_stretch
            for stretch in {first // STRETCH, (stop - 1) // STRETCH}:  # without events
                covered = min(stop, (stretch + 1) * STRETCH) - max(first, stretch * STRETCH)
                if covered < STRETCH:
                    unfinished.setdefault((topic, partition, stretch), (covered, []))
            reached[topic, partition] = newest
        if found < len(batch):
            raise ValueError(f"{counted(len(batch) - found, 'event')} of the batch are in none of the ranges")
        return cls({partition: (part,) for partition, part in ranges.items()}, reached, unfinished)

    def merge(self, other: Coverage) -> Coverage:
        """The offsets of both.

        Raises:
            StateError: Both have some offsets.
        """
        ranges, reached = dict(self.ranges), dict(self.reached)
        for partition, parts in other.ranges.items():
            ranges[partition] = _joined(partition, [*ranges.get(partition, ()), *parts])
        for partition, time in other.reached.items():
            reached[partition] = max(reached.get(partition, NEVER), time)
        unfinished = dict(self.unfinished)
        for stretch, (covered, times) in other.unfinished.items():
            before, known = unfinished.pop(stretch, (0, ()))
            newest = sorted([*known, *times])[-NEWEST_KEPT:]
            if before + covered < STRETCH:
                unfinished[stretch] = before + covered, newest
            else:
                reached[stretch[:2]] = max(reached[stretch[:2]], _reached(newest))
        return Coverage(ranges, reached, unfinished)

    @property
    def _clocks(self) -> dict[Partition, float]:
        """The clock of each partition, from unfinished stretches too if enough events are known."""
        clocks = dict(self.reached)
        for (topic, number, _), (_, times) in self.unfinished.items():
            if len(times) == NEWEST_KEPT:
                clocks[topic, number] = max(clocks[topic, number], _reached(times))
        return clocks

    @property
    def now(self) -> float:
        """The newest clock of all partitions, epoch seconds; minus infinity if no event has a time."""
        newest = max(self._clocks.values(), default=NEVER)
        return (
            newest if newest > NEVER else max((_reached(times) for _, times in self.unfinished.values()), default=NEVER)
        )

    @property
    def behind(self) -> float:
        """The oldest clock of all partitions."""
        return min(self._clocks.values(), default=NEVER)

    def to_state(self) -> State:
        return {
            "ranges": [[*partition, [list(part) for part in parts]] for partition, parts in self.ranges.items()],
            "reached": [[*partition, time] for partition, time in self.reached.items()],
            "unfinished": [[*stretch, covered, list(times)] for stretch, (covered, times) in self.unfinished.items()],
        }

    @classmethod
    def from_state(cls, state: State) -> Coverage:
        return cls(
            {
                (topic, number): tuple((first, stop) for first, stop in parts)
                for topic, number, parts in state["ranges"]
            },
            {(topic, number): float(time) for topic, number, time in state["reached"]},
            {(*stretch,): (covered, times) for *stretch, covered, times in state["unfinished"]},
        )


def place_of(partition: Partition, offset: int) -> str:
    """An offset of a partition in words.

    >>> place_of(("clicks", 3), 1200)
    'offset 1,200 of clicks-3'
    """
    topic, number = partition
    return f"offset {offset:,} of {topic}-{number}"


def _joined(partition: Partition, parts: Iterable[OffsetSpan]) -> tuple[OffsetSpan, ...]:
    joined: list[OffsetSpan] = []
    for first, stop in sorted(parts):
        if joined and first < joined[-1][1]:
            raise StateError(
                f"two partial results count {place_of(partition, first)}", hint="merge results of other offsets only"
            )
        if joined and first == joined[-1][1]:
            first = joined.pop()[0]
        joined.append((first, stop))
    return tuple(joined)


def _within(batch: EventBatch, topic: str, partition: int, part: OffsetSpan, count: int) -> tuple[Index, Array]:
    """The offsets and times of the events of a partition within a range."""
    if batch.origin is None:
        if count > 1 or len(batch) > part[1] - part[0]:
            raise ValueError("events of several partitions, or with gaps, need their `origin`")
        return np.arange(part[0], part[0] + len(batch)), batch.timestamp
    origin = batch.origin
    own = (origin.partition == partition) & (origin.offset >= part[0]) & (origin.offset < part[1])
    if origin.topic != topic:
        own &= False
    return origin.offset[own], batch.timestamp[own]


def _newest(offsets: Index, times: Array) -> Iterator[tuple[int, list[float]]]:
    """Each stretch with events, and its newest times in ascending order."""
    known = ~np.isnan(times)
    numbers, times = offsets[known] // STRETCH, times[known]
    order = np.lexsort((times, numbers))
    numbers, times = numbers[order], times[order]
    ends = np.flatnonzero(np.diff(numbers, append=-1))
    first: Any = 0
    for end in (ends + 1).tolist():
        yield int(numbers[first]), times[max(first, end - NEWEST_KEPT) : end].tolist()
        first = end


def _reached(newest: Sequence[float]) -> float:
    """The time that all of the newest events of a stretch have reached."""
    return newest[0] if newest else NEVER
