"""The events of all partitions of a topic, merged into the order of time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from streameval.common.arrays import State
from streameval.events import EventBatch
from streameval.ingest.stages.buffer import EventBuffer
from streameval.ingest.stages.watermark import NEVER, Place, Watermarks, just_after


class EventTimeOrder(EventBuffer):
    """Passes events on in the order of (timestamp, partition, offset); those that come too late are rejected.

    An event waits until every partition has come to a time that is `max_lateness` (seconds) after its own: see
    `Watermarks`, also for `idle_timeout`. What waits takes `most_bytes` of memory: with more, partitions that are ahead
    must not be read on (`ahead`). If with twice as much that has not helped, the older half is passed on, counted as
    `hurried`, and what is still older comes too late.

    Of partitions that are added later, what had been written before they were found is passed on as it comes, though
    others of its time have been passed on before.
    """

    def __init__(self, topic: str, max_lateness: float, idle_timeout: float, most_bytes: int) -> None:
        super().__init__(most_bytes)
        self._topic, self._patience = topic, max_lateness + idle_timeout
        self._clocks = Watermarks(max_lateness, idle_timeout)

    @property
    def watermark(self) -> float:
        """The time (seconds since 1970) before which nothing is waited for; minus infinity before there is one."""
        return max(self._passed, self._clocks.watermark)

    def expect(self, places: Iterable[Place]) -> None:
        """These partitions exist, and no others: nothing comes out before each had events or was found at its end."""
        self._clocks.expect((partition for topic, partition in places if topic == self._topic), self._passed)

    def take(self, batch: EventBatch) -> EventBatch:
        """The next events, those of a partition in its order; what is due comes back, with all that is rejected."""
        on_time = self._clocks.on_time(batch, self._passed, admit=True)
        self._held.add(on_time)
        due = self._due()
        if self._held.nbytes > 2 * self._most_bytes:
            due = EventBatch.concat([due, self._relief()])
        return replace(due, rejected=on_time.rejected + due.rejected)

    def rest(self, ended: Mapping[Place, float]) -> EventBatch:
        """These partitions were found at their end, by a question asked at this time (seconds since 1970).

        When an answer is given for the first time, it was asked after everything given to `take` so far had been read;
        later it counts no more: an answer from before a long pause must not let a partition count as quiet during the
        pause. When all partitions are at their end, time goes on without events, and what is as old as `max_lateness +
        idle_timeout` comes back.
        """
        now = self._clocks.rest({partition: at for (topic, partition), at in ended.items() if topic == self._topic})
        due = self._due()
        last = self._held.take(now - self._patience)
        if len(last):
            self._passed = max(self._passed, just_after(last.timestamp[-1]))
        return EventBatch.concat([due, last])

    def flush(self) -> EventBatch:
        """All events that wait: nothing more will come."""
        self._passed = max(self._passed, self._clocks.newest)
        return self._held.take()

    def ahead(self) -> frozenset[Place]:
        """Partitions that must not be read on for now, because the memory for what waits is full."""
        marks = self._clocks.read_up_to() if self._fills_up() else {}
        last = min(marks.values(), default=NEVER)
        return frozenset((self._topic, number) for number, mark in marks.items() if mark > last)

    def _due(self) -> EventBatch:
        self._passed = self.watermark
        return self._held.take(self._passed)

    def _relief(self) -> EventBatch:
        """What must go because the memory is full, although others are not read on."""
        future = self._held.take_beyond(self._clocks.newest + self._patience)
        given_up = future.reject(
            np.arange(len(future)), "too_early", lambda _: "timestamp: far ahead of all other events"
        )
        if self._held.nbytes <= self._most_bytes:
            return given_up
        self._passed = max(self._passed, just_after(self._held.time_of(self.held // 2)))
        hurried = self._held.take(self._passed)
        self.hurried += len(hurried)
        return replace(hurried, rejected=given_up.rejected)

    def state(self) -> State:
        """All that it remembers, and the events that wait."""
        return {
            "clocks": self._clocks.state(),
            "held": self._held.state(),
            "passed": self._passed,
            "hurried": self.hurried,
        }

    def restore(self, state: State) -> None:
        """Go on from a state."""
        self._clocks.restore(state["clocks"])
        self._held.restore(state["held"])
        self._passed, self.hurried = state["passed"], state["hurried"]
