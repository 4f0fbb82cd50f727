"""How far event time has advanced in each partition of a topic, and which events come too late."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from streameval.common.arrays import Array, Mask, State
from streameval.events import EventBatch
from streameval.events.action_sets import Index

CONFIRMED_BY = 10
"""A partition has reached a time when so many events in a row are dated at or after it: a single event from the next
century must not make all later ones too late."""
NEVER = -math.inf

TopicPartition: TypeAlias = tuple[str, int]
"""A topic (or the path of a file), and the number of a partition in it."""


class Watermarks:
    """A clock per partition: the newest time that `CONFIRMED_BY` of its events in a row have all reached.

    An event is late if it is more than `max_lateness` (seconds) behind the clock of its own partition, so lateness does
    not depend on how partitions are read side by side. `watermark`: only late events before it are still to come.

    A partition with nothing to read would hold up the others. When it is found at its end, its clock is put forward to
    `idle_timeout` before the newest clock.

    A partition is `new` if it was created after the watermark had advanced. Its first events may be older than the
    watermark; they are accepted. See `on_time`.
    """

    def __init__(self, max_lateness: float, idle_timeout: float) -> None:
        self._max_lateness, self._idle_timeout = max_lateness, idle_timeout
        self._clocks: dict[int, float] = {}
        self._put_forward: dict[int, float] = {}
        self._asked_at: dict[int, float] = {}
        self._following: set[int] = set()
        self._last: dict[int, Array] = {}
        self._newcomers: dict[int, float] = {}

    def expect(self, partitions: Iterable[int], passed: float = NEVER) -> None:
        """Exactly these partitions exist: there is no watermark before each has a time, or is found at its end.

        Others are dropped, as when a topic was created again with fewer; an empty list drops none, as a topic without
        partitions is unavailable. Added ones count as new if events up to the time `passed` have been released.
        """
        known = set(partitions)
        for partition in known - self._clocks.keys():
            self._clocks[partition] = NEVER
            if passed > NEVER:
                self._newcomers[partition] = passed
        for partition in (self._clocks.keys() - known) if known else ():
            for values in (self._clocks, self._put_forward, self._asked_at, self._last, self._newcomers):
                values.pop(partition, None)
            self._following.discard(partition)

    def advance(self, partition: Index, timestamp: Array) -> Mask:
        """Advance the clocks by the next events, in the order of each partition: which are late, [n]."""
        late = np.zeros(len(timestamp), dtype=bool)
        for number in np.unique(partition).tolist():
            rows = np.flatnonzero(partition == number)
            late[rows] = self._advance(number, timestamp[rows])
        return late

    def _advance(self, partition: int, timestamp: Array) -> Mask:
        self._asked_at.pop(partition, None)
        self._following.discard(partition)
        before = self._clocks.get(partition, NEVER)
        last = self._last.get(partition)
        if last is None:
            last = np.full(CONFIRMED_BY - 1, NEVER)
        run = np.concatenate([last, timestamp])
        reached = sliding_window_view(run, CONFIRMED_BY).min(axis=1)
        clock = np.maximum.accumulate(np.concatenate([[before], reached]))
        self._clocks[partition], self._last[partition] = float(clock[-1]), run[len(timestamp) :]
        if self._clocks[partition] - self._max_lateness >= self._newcomers.get(partition, math.inf):
            del self._newcomers[partition]
        return np.asarray(timestamp < clock[:-1] - self._max_lateness)

    def on_time(self, batch: EventBatch, passed: float) -> EventBatch:
        """The next events without those that are late, or dated before `passed`.

        New partitions may have events before `passed` until they reach the time that was `passed` when they were added.
        """
        batch = batch.reject(np.isnan(batch.timestamp), "missing_field", lambda _: "timestamp: missing")
        if not len(batch):
            return batch
        assert batch.origin is not None, "events must be decoded with their origin"
        partition, released = batch.origin.partition, batch.timestamp < passed
        if self._newcomers:
            released &= ~np.isin(partition, list(self._newcomers))
        late = self.advance(partition, batch.timestamp) | released
        return batch.reject(
            late, "too_late", lambda row: f"timestamp: {batch.timestamp[row]:.6f} is too far behind other events"
        )

    def at_end(self, ended: Mapping[int, float], newest: float = NEVER, live_within: float = 0.0) -> float:
        """These partitions were found at their end by requests sent at these times, after all events so far were read.

        An answer counts once: events may have come since. Clocks are put forward to the newest clock, here or elsewhere
        (`newest`), or to the time of the request where that is at most `live_within` later. Returns the time at which
        all partitions were found at their end, minus infinity if not all were.
        """
        newest = max(newest, self.newest)
        for partition, asked in ended.items():
            if self._asked_at.get(partition) != asked:
                is_live = asked - newest <= live_within
                forward = (asked if is_live else newest) - self._idle_timeout
                self._put_forward[partition] = max(self._forward(partition), forward)
                self._asked_at[partition] = asked
                (self._following.discard if is_live else self._following.add)(partition)
                self._newcomers.pop(partition, None)
        return min(ended.values()) if ended and ended.keys() >= self._clocks.keys() else NEVER

    @property
    def newest(self) -> float:
        """The time of the newest clock."""
        return max(self._clocks.values(), default=NEVER)

    @property
    def watermark(self) -> float:
        """The time that all partitions have passed."""
        return min(map(self.watermark_of, self._clocks), default=NEVER)

    def watermark_of(self, partition: int) -> float:
        """The time that one partition has passed."""
        return max(self._clocks[partition], self._forward(partition)) - self._max_lateness

    def read_up_to(self) -> dict[int, float]:
        """The times that partitions have passed, without those at their end, whose clocks follow the others.

        Also where such a clock is ahead now: only the others advance it, so they must not wait for it.
        """
        return {partition: self.watermark_of(partition) for partition in self._clocks.keys() - self._following}

    def _forward(self, partition: int) -> float:
        return self._put_forward.get(partition, NEVER)

    def state(self) -> State:
        """The clocks as plain numbers."""
        return {
            "partitions": list(self._clocks),
            "clocks": list(self._clocks.values()),
            "put_forward": list(map(self._forward, self._clocks)),
            "last": [self._last[partition].tolist() if partition in self._last else None for partition in self._clocks],
            "newcomers": [list(pair) for pair in self._newcomers.items()],
        }

    def restore(self, state: State) -> None:
        """Continue from a state."""
        numbers = state["partitions"]
        self._clocks = dict(zip(numbers, state["clocks"], strict=True))
        self._put_forward = dict(zip(numbers, state["put_forward"], strict=True))
        pairs = zip(numbers, state["last"], strict=True)
        self._last = {partition: np.array(last) for partition, last in pairs if last is not None}
        self._newcomers = dict(state["newcomers"])


def just_after(time: float) -> float:
    """The next larger float."""
    return math.nextafter(time, math.inf)
