"""How far event time has advanced in each partition, and by how much its events come late."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from streameval.common.arrays import Array
from streameval.events.origin import Origin

CONFIRMED_BY = 10
"""A partition has reached a time when this many events in a row are dated at or after it: after a single event from the
next century, all later ones would count out of order."""
NEVER = -math.inf

TopicPartition: TypeAlias = tuple[str, int]
"""A topic (or the path of a file), and the number of a partition in it."""


LATENESS_HALF_LIFE = 10_000
"""Events of a partition after which its largest lateness counts half."""


@dataclass(slots=True)
class PartitionClock:
    """The event time of one partition.

    time: the newest time that `CONFIRMED_BY` of its events in a row have all reached
    put_forward: the time that it has passed at least, as it was found at its end; no later than any event after that
    lateness: the most seconds by which recent events came after the watermark
    last: times of its last events
    asked_at: when its end was asked for, if it was at its end then and no event has come since
    follows: whether it is at its end, and its time follows that of the others
    """

    time: float = NEVER
    put_forward: float = NEVER
    lateness: float = 0.0
    last: Array = field(default_factory=lambda: np.full(CONFIRMED_BY - 1, NEVER))
    asked_at: float | None = None
    follows: bool = False

    def advance(self, timestamp: Array, max_lateness: float) -> None:
        """Advance by the next events.

        The clock goes back when `CONFIRMED_BY` events in a row are all dated more than `max_lateness` before it: those
        that put it forward had a clock that was ahead.
        """
        self.asked_at, self.follows = None, False
        self.put_forward = min(self.put_forward, float(timestamp.max()))
        in_a_row = np.concatenate([self.last, timestamp])
        self.last = in_a_row[len(timestamp) :].copy()
        reached = _of_windows(np.minimum, in_a_row)
        while len(reached):
            times = np.maximum.accumulate(np.maximum(reached, self.time))
            self.time = float(times[-1])
            if (timestamp >= times - max_lateness).all():
                return
            newest = _of_windows(np.maximum, in_a_row)
            is_wrong = newest < times - max_lateness
            if not is_wrong.any():
                return
            first = int(is_wrong.argmax())
            self.time = float(newest[first])
            in_a_row, reached, timestamp = in_a_row[first + 1 :], reached[first + 1 :], timestamp[first + 1 :]


def _of_windows(extreme: np.ufunc, times: Array) -> Array:
    """The smallest or largest of each `CONFIRMED_BY` times in a row.

    >>> _of_windows(np.minimum, np.arange(12.0))
    array([0., 1., 2.])
    """
    width = 1
    while width < CONFIRMED_BY:
        step = min(width, CONFIRMED_BY - width)
        times = extreme(times[:-step], times[step:])
        width += step
    return times


class Watermarks:
    """A clock per partition, and the time before which nothing is missing unless it comes late.

    An event is waited for until the clock of its own partition is `max_lateness` (seconds) after it.

    A partition with nothing to read would hold up the others. When it is found at its end, its clock is put forward to
    `idle_timeout` before the newest clock.

    `waits`: the topics, each with the seconds by which its messages may be dated after the events they belong to.
    """

    def __init__(self, waits: Mapping[str, float], max_lateness: float, idle_timeout: float) -> None:
        self._waits, self._max_lateness, self._idle_timeout = waits, max_lateness, idle_timeout
        self._clocks: dict[TopicPartition, PartitionClock] = {}

    def expect(self, partitions: Iterable[TopicPartition]) -> None:
        """Exactly these partitions exist: there is no watermark before each has a time, or is found at its end.

        Others of the same topics are dropped, as when a topic was recreated with fewer; a topic without partitions
        is unavailable.
        """
        known = set(partitions)
        topics = {topic for topic, _ in known}
        for place in known - self._clocks.keys():
            self._clocks[place] = PartitionClock()
        for place in self._clocks.keys() - known:
            if place[0] in topics:
                del self._clocks[place]

    def advance(self, origin: Origin, timestamp: Array, last: float = NEVER, complete_until: float = NEVER) -> None:
        """Advance the clocks by the next messages, in the order of each partition.

        Events up to the time `last` were released because all before `complete_until` seemed to have come.
        """
        watermark = self.watermark
        for number in np.flatnonzero(np.bincount(origin.partition)).tolist():
            rows = np.flatnonzero(origin.partition == number)
            clock = self._clocks.setdefault((origin.topic, number), PartitionClock())
            oldest = float(timestamp[rows].min())
            late_by = (complete_until if oldest < last else watermark) - oldest
            clock.lateness = max(late_by, clock.lateness * 0.5 ** (len(rows) / LATENESS_HALF_LIFE))
            clock.advance(timestamp[rows], self._max_lateness)

    def at_end(self, ended: Mapping[TopicPartition, float]) -> float:
        """These partitions were found at their end by requests sent at these times, after all events so far were read.

        An answer counts once: events may have come since. Clocks are put forward to the newest clock; those of messages
        that belong to earlier events, to the time of the request, where that is not much later. Returns the time up to
        which all events have come as all partitions were found at their end; minus infinity if not all were.
        """
        newest = self.newest
        for place, asked in ended.items():
            clock = self._clocks.setdefault(place, PartitionClock())
            if clock.asked_at != asked:
                wait = self._waits[place[0]]
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
        """Whether each topic has partitions."""
        return {topic for topic, _ in self._clocks} == self._waits.keys()

    @property
    def newest(self) -> float:
        """The time of the newest clock."""
        return max((clock.time for clock in self._clocks.values()), default=NEVER)

    @property
    def watermark(self) -> float:
        """The time before which all events have come, with the messages that belong to them, except late ones."""
        return min(map(self._passed, self._clocks)) if self._is_complete() else NEVER

    def _passed(self, place: TopicPartition) -> float:
        clock = self._clocks[place]
        return max(clock.time, clock.put_forward) - self._max_lateness - self._waits[place[0]]

    def read_up_to(self) -> dict[TopicPartition, float]:
        """The times that partitions have passed, without those at their end, whose clocks follow the others.

        Also where such a clock is ahead now: only the others advance it, so they must not wait for it.
        """
        return {place: self._passed(place) for place, clock in self._clocks.items() if not clock.follows}

    def lateness(self) -> dict[TopicPartition, float]:
        """The most seconds by which recent messages of each partition came after the watermark."""
        return {place: clock.lateness for place, clock in self._clocks.items()}

    def state(self) -> list[Any]:
        """The clocks as plain numbers."""
        return [
            [*place, clock.time, clock.put_forward, clock.lateness, clock.last.tolist()]
            for place, clock in self._clocks.items()
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
