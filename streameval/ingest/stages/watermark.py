"""Track how far event time has advanced in each partition, and by how much its events come late."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from streameval.common.arrays import Array
from streameval.events.origin import Origin

CONFIRMED_BY = 10
"""A partition has reached a time when this many events in a row are dated at or after it. If one event were enough, all
events after one from the next century would count out of order."""
NEVER = -math.inf

TopicPartition: TypeAlias = tuple[str, int]
"""A topic (or the path of a file), and the number of a partition in it."""


LATENESS_HALF_LIFE = 10_000
"""After this many events of a partition, its largest lateness counts half."""


@dataclass(slots=True)
class PartitionClock:
    """Keep the event time of one partition.

    Attributes:
        time: the newest time that `CONFIRMED_BY` events in a row have all reached
        put_forward: a time that it has passed, because it was found at its end, no later than any later event
        lateness: the most seconds by which recent events came after the watermark
        last: times of its last events
        asked_at: when its end was asked for, if it was at its end then and no event has come since
        follows: it is at its end, and its time follows the other partitions
    """

    time: float = NEVER
    put_forward: float = NEVER
    lateness: float = 0.0
    last: Array = field(default_factory=lambda: np.full(CONFIRMED_BY - 1, NEVER))
    asked_at: float | None = None
    follows: bool = False

    def advance(self, timestamp: Array, max_lateness: float) -> None:
        """Advance by the next events.

        The clock goes back when `CONFIRMED_BY` events in a row are all dated more than `max_lateness` before it: the
        events that put it forward came from a host with a clock that was ahead.
        """
        self.asked_at, self.follows = None, False
        self.put_forward = min(self.put_forward, float(timestamp.max()))
        sequence = np.concatenate([self.last, timestamp])
        self.last = sequence[len(timestamp) :].copy()
        reached = _sliding(np.minimum, sequence)
        while len(reached):
            times = np.maximum.accumulate(np.maximum(reached, self.time))
            self.time = float(times[-1])
            if (timestamp >= times - max_lateness).all():
                return
            newest = _sliding(np.maximum, sequence)
            is_wrong = newest < times - max_lateness
            if not is_wrong.any():
                return
            first = int(is_wrong.argmax())
            self.time = float(newest[first])
            sequence, reached, timestamp = sequence[first + 1 :], reached[first + 1 :], timestamp[first + 1 :]


def _sliding(extreme: np.ufunc, times: Array) -> Array:
    """Return the smallest or largest of each `CONFIRMED_BY` times in a row.

    >>> _sliding(np.minimum, np.arange(12.0))
    array([0., 1., 2.])
    """
    width = 1
    while width < CONFIRMED_BY:
        step = min(width, CONFIRMED_BY - width)
        times = extreme(times[:-step], times[step:])
        width += step
    return times


class Watermarks:
    """Keep a clock per partition, and the time before which nothing is missing unless it comes late.

    A partition with nothing to read would hold up the others. When it is found at its end, its clock is put forward to
    `idle_timeout` before the newest clock.

    Args:
        waits: by topic, the seconds by which its messages may be dated after the events they belong to
        max_lateness: seconds for which an event is waited for, by the clock of its own partition
        idle_timeout: seconds for which a partition at its end is waited for
    """

    def __init__(self, waits: Mapping[str, float], max_lateness: float, idle_timeout: float) -> None:
        self._waits, self._max_lateness, self._idle_timeout = waits, max_lateness, idle_timeout
        self._clocks: dict[TopicPartition, PartitionClock] = {}

    def expect(self, partitions: Iterable[TopicPartition]) -> None:
        """Set the partitions: there is no watermark before each has a time, or is found at its end.

        Other partitions of these topics are dropped: the topic was recreated with fewer. A topic without partitions is
        unavailable now, and keeps its clocks.
        """
        current = set(partitions)
        topics = {topic for topic, _ in current}
        for partition in current - self._clocks.keys():
            self._clocks[partition] = PartitionClock()
        for partition in self._clocks.keys() - current:
            if partition[0] in topics:
                del self._clocks[partition]

    def advance(self, origin: Origin, timestamp: Array, last: float = NEVER, complete_until: float = NEVER) -> None:
        """Advance the clocks by the next messages, in the order of each partition.

        Args:
            origin: where the messages come from
            timestamp: [n] their times
            last: the newest event that was released because its partition was at its end
            complete_until: all events before this time seemed to have come then
        """
        watermark = self.watermark
        for number in np.flatnonzero(np.bincount(origin.partition)).tolist():
            rows = np.flatnonzero(origin.partition == number)
            clock = self._clocks.setdefault((origin.topic, number), PartitionClock())
            oldest = float(timestamp[rows].min())
            late_by = (complete_until if oldest < last else watermark) - oldest
            clock.lateness = max(late_by, clock.lateness * 0.5 ** (len(rows) / LATENESS_HALF_LIFE))
            clock.advance(timestamp[rows], self._max_lateness)

    def advance_ended(self, ended: Mapping[TopicPartition, float]) -> float:
        """Put forward the clocks of partitions that were found at their end.

        They follow the newest clock. If their messages belong to earlier events, they follow the time of the request,
        unless it is much later.

        Args:
            ended: by partition, when its end was asked for, after all events so far had been read. An answer counts
                once: events may have come since

        Returns:
            The time up to which all events have come, or minus infinity if a partition is not at its end.
        """
        newest = self.newest
        for partition, asked in ended.items():
            clock = self._clocks.setdefault(partition, PartitionClock())
            if clock.asked_at != asked:
                wait = self._waits[partition[0]]
                # events left in the log are read as much later
                live_within = 2 * (wait + self._max_lateness + self._idle_timeout) if wait else 0.0
                clock.follows = asked - newest > live_within
                forward = (newest if clock.follows else asked) - self._idle_timeout
                clock.put_forward = max(clock.put_forward, forward)
                clock.asked_at = asked
        if not self._is_complete() or not ended.keys() >= self._clocks.keys():
            return NEVER
        return min(asked - self._waits[topic] for (topic, _), asked in ended.items())

    def forget_after(self, latest: float) -> None:
        """Let clocks that are after `latest` start again: they are wrong."""
        for clock in self._clocks.values():
            if max(clock.time, clock.put_forward) > latest:
                clock.time = clock.put_forward = NEVER
                clock.last = np.where(clock.last > latest, NEVER, clock.last)

    def _is_complete(self) -> bool:
        """Tell whether each topic has partitions."""
        return {topic for topic, _ in self._clocks} == self._waits.keys()

    @property
    def newest(self) -> float:
        """Return the time of the newest clock."""
        return max((clock.time for clock in self._clocks.values()), default=NEVER)

    @property
    def watermark(self) -> float:
        """Return the time before which all events have come, with their rewards, except late ones."""
        return min(map(self._passed, self._clocks)) if self._is_complete() else NEVER

    def _passed(self, partition: TopicPartition) -> float:
        clock = self._clocks[partition]
        return max(clock.time, clock.put_forward) - self._max_lateness - self._waits[partition[0]]

    def read_up_to(self) -> dict[TopicPartition, float]:
        """Return the times that partitions have passed, without partitions at their end that follow the others.

        Only the others advance such a clock, so they must not wait for it, even if it is ahead now.
        """
        return {partition: self._passed(partition) for partition, clock in self._clocks.items() if not clock.follows}

    def lateness(self) -> dict[TopicPartition, float]:
        """Return the most seconds by which recent messages of each partition came after the watermark."""
        return {partition: clock.lateness for partition, clock in self._clocks.items()}

    def state(self) -> list[Any]:
        """Return the clocks as plain numbers."""
        return [
            [*partition, clock.time, clock.put_forward, clock.lateness, clock.last.tolist()]
            for partition, clock in self._clocks.items()
        ]

    def restore(self, state: Iterable[Any]) -> None:
        """Continue from a state.

        Raises:
            ValueError: A clock holds a text.
        """
        self._clocks = {
            (topic, int(number)): PartitionClock(
                float(time), float(forward), float(lateness), np.array(last, dtype=float)
            )
            for topic, number, time, forward, lateness, last in state
        }
