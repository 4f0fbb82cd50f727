"""How far event time has come in each partition of a topic, and what comes too late."""

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
"""So many events in a row must have reached a time before the clock of their partition shows it: the clocks of some
hosts run ahead, and one event from the next century must not make all that follow too late."""
NEVER = -math.inf

Place: TypeAlias = tuple[str, int]
"""A topic, and one of its partitions."""


class Watermarks:
    """A clock for each partition: the newest time that `CONFIRMED_BY` of its events in a row have all reached.

    An event is late that is more than `max_lateness` (seconds) behind the clock of its own partition. That depends on
    nothing but the partition, so it is the same however partitions are read side by side. `watermark`: no event from
    before it will come any more, but for late ones.

    A partition that has nothing to read would hold up all the others. When it is found at its end, its clock is put
    forward to `idle_timeout` before the clock that is furthest ahead.

    A newcomer is a partition that was added when others had come far: what had been written to it before anybody knew
    of it is older than the watermark, and none the worse for that. See `on_time`.
    """

    def __init__(self, max_lateness: float, idle_timeout: float) -> None:
        self._max_lateness, self._idle_timeout = max_lateness, idle_timeout
        self._clocks: dict[int, float] = {}
        self._put_forward: dict[int, float] = {}
        self._asked: dict[int, float] = {}
        self._following: set[int] = set()
        self._last: dict[int, Array] = {}
        self._newcomers: dict[int, float] = {}

    def expect(self, partitions: Iterable[int], passed: float = NEVER) -> None:
        """These partitions exist: there is no watermark before each has a time, or is found at its end.

        Others no longer do, as when a topic was made anew with fewer; nobody waits for them. Only while a topic is away
        none is known. New ones are newcomers where the time `passed` is over.
        """
        known = set(partitions)
        for partition in known - self._clocks.keys():
            self._clocks[partition] = NEVER
            if passed > NEVER:
                self._newcomers[partition] = passed
        for partition in (self._clocks.keys() - known) if known else ():
            self._forget(partition)

    def _forget(self, partition: int) -> None:
        for known in (self._clocks, self._put_forward, self._asked, self._last, self._newcomers):
            known.pop(partition, None)
        self._following.discard(partition)

    def advance(self, partition: Index, timestamp: Array) -> Mask:
        """Take the next events, in the order of their partitions: which of them are late, [n]."""
        late = np.zeros(len(timestamp), dtype=bool)
        for number in np.unique(partition).tolist():
            rows = np.flatnonzero(partition == number)
            late[rows] = self._advance(number, timestamp[rows])
        return late

    def _advance(self, partition: int, timestamp: Array) -> Mask:
        self._asked.pop(partition, None)
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

    def on_time(self, batch: EventBatch, passed: float, *, admit: bool = False) -> EventBatch:
        """The next events without those that are late, or from before the time `passed`, which is over.

        `admit`: newcomers may tell of a time that is over, until they have come to where the others were.
        """
        batch = batch.reject(np.isnan(batch.timestamp), "missing_field", lambda _: "timestamp: missing")
        if not len(batch):
            return batch
        assert batch.origin is not None, "events must be decoded with their origin"
        partition, over = batch.origin.partition, batch.timestamp < passed
        if admit and self._newcomers:
            over &= ~np.isin(partition, list(self._newcomers))
        late = self.advance(partition, batch.timestamp) | over
        return batch.reject(
            late, "too_late", lambda row: f"timestamp: {batch.timestamp[row]:.6f} is over, others went on"
        )

    def rest(self, ended: Mapping[int, float], newest: float = NEVER, live_within: float = 0.0) -> float:
        """These partitions were found at their end by a question asked at this time, after all events so far were read.

        The same answer tells nothing new later: events may have come in between. Clocks are put forward to the clock
        that is furthest ahead, here or elsewhere (`newest`), or to the time of the question where that is not more than
        `live_within` later. Returns when all partitions were found at their end, minus infinity if not all were.
        """
        newest = max(newest, self.newest)
        for partition, asked in ended.items():
            if self._asked.get(partition) != asked:
                is_live = asked - newest <= live_within
                forward = (asked if is_live else newest) - self._idle_timeout
                self._put_forward[partition] = max(self._forward(partition), forward)
                self._asked[partition] = asked
                (self._following.discard if is_live else self._following.add)(partition)
                self._newcomers.pop(partition, None)
        return min(ended.values()) if ended and ended.keys() >= self._clocks.keys() else NEVER

    @property
    def newest(self) -> float:
        """The time of the clock that is furthest ahead."""
        return max(self._clocks.values(), default=NEVER)

    @property
    def watermark(self) -> float:
        """The time that all partitions have left behind."""
        return min(map(self.watermark_of, self._clocks), default=NEVER)

    def watermark_of(self, partition: int) -> float:
        """The time that one partition has left behind."""
        return max(self._clocks[partition], self._forward(partition)) - self._max_lateness

    def read_up_to(self) -> dict[int, float]:
        """The times that partitions have left behind, without those at their end that follow the clocks of others.

        Also where such a clock is ahead now: nothing makes it go on but the others, so these must not wait for it.
        """
        return {partition: self.watermark_of(partition) for partition in self._clocks.keys() - self._following}

    def _forward(self, partition: int) -> float:
        return self._put_forward.get(partition, NEVER)

    def state(self) -> State:
        """What is known of each partition, as plain numbers."""
        return {
            "partitions": list(self._clocks),
            "clocks": list(self._clocks.values()),
            "put_forward": list(map(self._forward, self._clocks)),
            "last": [self._last[partition].tolist() if partition in self._last else None for partition in self._clocks],
            "newcomers": [list(pair) for pair in self._newcomers.items()],
        }

    def restore(self, state: State) -> None:
        """Go on from a state."""
        numbers = state["partitions"]
        self._clocks = dict(zip(numbers, state["clocks"], strict=True))
        self._put_forward = dict(zip(numbers, state["put_forward"], strict=True))
        pairs = zip(numbers, state["last"], strict=True)
        self._last = {partition: np.array(last) for partition, last in pairs if last is not None}
        self._newcomers = dict(state.get("newcomers", []))


def just_after(time: float) -> float:
    """The least time that is later."""
    return math.nextafter(time, math.inf)
