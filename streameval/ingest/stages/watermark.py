"""How far event time has advanced in each partition, and which events come too late."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from streameval.common.arrays import Array, Mask
from streameval.events import EventBatch
from streameval.events.origin import Origin

CONFIRMED_BY = 10
"""A partition has reached a time when so many events in a row are dated at or after it: a single event from the next
century must not make all later ones too late."""
NEVER = -math.inf

TopicPartition: TypeAlias = tuple[str, int]
"""A topic (or the path of a file), and the number of a partition in it."""


@dataclass(slots=True)
class PartitionClock:
    """The event time of one partition.

    time: the newest time that `CONFIRMED_BY` of its events in a row have all reached
    put_forward: the time that it has passed at least, as it was found at its end
    new_until: events before this time may still come, as the partition was created after others had passed it
    last: times of its last events
    asked_at: when its end was asked for, if it was at its end then and no event has come since
    follows: whether it is at its end, and its time follows that of the others
    """

    time: float = NEVER
    put_forward: float = NEVER
    new_until: float = NEVER
    last: Array = field(default_factory=lambda: np.full(CONFIRMED_BY - 1, NEVER))
    asked_at: float | None = None
    follows: bool = False

    def advance(self, timestamp: Array, max_lateness: float) -> Mask:
        """Advance by the next events: which are late, [n]."""
        self.asked_at, self.follows = None, False
        run = np.concatenate([self.last, timestamp])
        reached = sliding_window_view(run, CONFIRMED_BY).min(axis=1)
        times = np.maximum.accumulate(np.concatenate([[self.time], reached]))
        self.time, self.last = float(times[-1]), run[len(timestamp) :]
        if self.time - max_lateness >= self.new_until:
            self.new_until = NEVER
        return np.asarray(timestamp < times[:-1] - max_lateness)


class Watermarks:
    """A clock per partition, and the time before which nothing is missing.

    An event is late if it is more than `max_lateness` (seconds) behind the clock of its own partition, so lateness does
    not depend on how partitions are read side by side.

    A partition with nothing to read would hold up the others. When it is found at its end, its clock is put forward to
    `idle_timeout` before the newest clock.

    `waits`: the topics, each with the seconds by which its messages may be dated after the events they belong to.
    """

    def __init__(self, waits: Mapping[str, float], max_lateness: float, idle_timeout: float) -> None:
        self._waits, self._max_lateness, self._idle_timeout = waits, max_lateness, idle_timeout
        self._clocks: dict[TopicPartition, PartitionClock] = {}

    def expect(self, partitions: Iterable[TopicPartition], passed: float = NEVER) -> None:
        """Exactly these partitions exist: there is no watermark before each has a time, or is found at its end.

        Others of the same topics are dropped, as when a topic was created again with fewer; a topic without partitions
        is unavailable. Added ones may have events before the time `passed`, up to which others have been released.
        """
        known = set(partitions)
        topics = {topic for topic, _ in known}
        for place in known - self._clocks.keys():
            self._clocks[place] = PartitionClock(new_until=passed)
        for place in self._clocks.keys() - known:
            if place[0] in topics:
                del self._clocks[place]

    def advance(self, origin: Origin, timestamp: Array) -> Mask:
        """Advance the clocks by the next messages, in the order of each partition: which are late, [n]."""
        late = np.zeros(len(timestamp), dtype=bool)
        for number in np.unique(origin.partition).tolist():
            rows = np.flatnonzero(origin.partition == number)
            clock = self._clocks.setdefault((origin.topic, number), PartitionClock())
            late[rows] = clock.advance(timestamp[rows], self._max_lateness)
        return late

    def on_time(self, batch: EventBatch, passed: float) -> EventBatch:
        """The next events without those that are late, or dated before `passed` in a partition that is not new."""
        batch = batch.reject(np.isnan(batch.timestamp), "missing_field", lambda _: "timestamp: missing")
        if not len(batch):
            return batch
        assert batch.origin is not None, "events must be decoded with their origin"
        released = batch.timestamp < passed
        new = [number for (_, number), clock in self._clocks.items() if clock.new_until > NEVER]
        if new:
            released &= ~np.isin(batch.origin.partition, new)
        late = self.advance(batch.origin, batch.timestamp) | released
        return batch.reject(
            late, "too_late", lambda row: f"timestamp: {batch.timestamp[row]:.6f} is too far behind other events"
        )

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
                clock.asked_at, clock.new_until = asked, NEVER
        if not self._is_complete() or not ended.keys() >= self._clocks.keys():
            return NEVER
        return min(asked - self._waits[topic] for (topic, _), asked in ended.items())

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

    def state(self) -> list[Any]:
        """The clocks as plain numbers."""
        return [
            [*place, clock.time, clock.put_forward, clock.new_until, clock.last.tolist()]
            for place, clock in self._clocks.items()
        ]

    def restore(self, state: Iterable[Any]) -> None:
        """Continue from a state."""
        self._clocks = {
            (topic, number): PartitionClock(time, put_forward, new_until, np.array(last))
            for topic, number, time, put_forward, new_until, last in state
        }
