"""The order in which events count: as they arrive, by event time, or by event time once their rewards have come."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from streameval.common.arrays import State
from streameval.events import EventBatch, Rejected, RewardBatch
from streameval.events.origin import NO_IDENTITY
from streameval.ingest.stages.buffer import HeldEvents
from streameval.ingest.stages.reward_store import RewardCounts, RewardStore
from streameval.ingest.stages.watermark import NEVER, TopicPartition, Watermarks, just_after

REMEMBERED_SHARE = 0.25
"""Memory for the ids of decisions that were released, as a share of the memory for the buffer."""
SWEEPS = 16
"""Rewards without a decision are dropped so many times per window."""
MICROSECOND = 1e-6


@dataclass(frozen=True, slots=True)
class BufferStatus:
    """Events that are buffered until their turn or until their rewards have come.

    `watermark`: the event time (epoch seconds) up to which everything has come; None before there is one.
    `released_early`: events released before the watermark passed them because the buffer was full. `rewards`: counts
    of separate rewards by outcome. Both count since the state was created. `window`: seconds that an event waits for
    its rewards.
    """

    events: int
    watermark: float | None = None
    released_early: int = 0
    rewards: RewardCounts | None = None
    window: float = 0.0


class EventOrder:
    """Decides when events count; here as they arrive. `held`: the events that are buffered until their turn.

    Also releases, with the next events, those that the restored state of another order had buffered.
    """

    def __init__(self) -> None:
        self.held = HeldEvents()
        self._restored: State = {}

    @property
    def is_timed(self) -> bool:
        """Whether events may become due without new messages."""
        return len(self.held) > 0

    def expect(self, partitions: Iterable[TopicPartition]) -> None:
        """Exactly these partitions exist; no event is released before each has events or was found at its end."""

    def at_end(self, ended: Mapping[TopicPartition, float]) -> EventBatch:
        """The events due now that these partitions were found at their end, by requests sent at these times.

        The times are epoch seconds. The first answer with a given time must belong to a request sent after everything
        passed to `take` so far had been read. Later the same answer has no effect: an answer from before a long pause
        must not make a partition count as idle during the pause. When all partitions are at their end, time passes
        without events: those older than `max_lateness + idle_timeout` are released.
        """
        return EventBatch.concat([])

    def take(self, batch: EventBatch) -> EventBatch:
        """Add the next events, in the order of each partition. Returns those due, with all that are rejected."""
        return EventBatch.concat([self.held.take(), batch]) if len(self.held) else batch

    def take_rewards(self, rewards: RewardBatch) -> EventBatch:
        """Add the next rewards, in the order of each partition. Returns the events due."""
        return EventBatch.concat([])

    def flush(self) -> EventBatch:
        """All buffered events: nothing more will come."""
        return self.held.take()

    def ahead(self) -> Collection[TopicPartition]:
        """Partitions not to be read for now because the buffer is full."""
        return ()

    def buffered(self) -> BufferStatus | None:
        """The state of the buffers, for people and metrics; None for stages without a buffer."""
        return BufferStatus(len(self.held)) if len(self.held) else None

    def state(self) -> State:
        """All that is remembered and buffered, as a plain value."""
        return self._restored if len(self.held) else {"held": []}

    def restore(self, state: State) -> None:
        """Continue from a state."""
        self._restored = state
        self.held.restore(state["held"])


class EventTimeOrder(EventOrder):
    """Releases events in the order of (timestamp, partition, offset); those that come too late are rejected.

    An event waits until every partition has reached a time `max_lateness` (seconds) after its own: see `Watermarks`,
    also for `idle_timeout`. Beyond `max_bytes` of memory, partitions that are ahead must not be read (`ahead`). Beyond
    twice as much, the older half is released early, and events that are older still are then too late.

    Events written to a new partition before it was discovered are released as they come, although others of their time
    have been released before.
    """

    def __init__(self, topic: str, *, max_lateness: float, idle_timeout: float, max_bytes: int) -> None:
        super().__init__()
        self._topic, self._max_bytes, self._patience = topic, max_bytes, max_lateness + idle_timeout
        self._watermarks = Watermarks(max_lateness, idle_timeout)
        self.released_early = 0
        self._released_until = NEVER  # all events before this time have been released
        self._is_full = False
        self._swept, self._sweep_interval = NEVER, 0.0

    @property
    def is_timed(self) -> bool:
        return True

    @property
    def nbytes(self) -> int:
        """Memory of all that is buffered."""
        return self.held.nbytes

    @property
    def watermark(self) -> float:
        """The event time (epoch seconds) up to which everything has come; minus infinity at first."""
        return max(self._released_until, self._watermarks.watermark)

    @property
    def _newest(self) -> float:
        return self._watermarks.newest

    def expect(self, partitions: Iterable[TopicPartition]) -> None:
        self._watermarks.expect((number for topic, number in partitions if topic == self._topic), self._released_until)

    def take(self, batch: EventBatch) -> EventBatch:
        on_time = self._watermarks.on_time(batch, self._released_until)
        self.held.add(on_time)
        return self._due(on_time.rejected)

    def at_end(self, ended: Mapping[TopicPartition, float]) -> EventBatch:
        read = self._all_read(ended)
        due = self._due()
        last = self.held.take(read - self._patience)
        if len(last):
            self._released_until = max(self._released_until, just_after(last.timestamp[-1]))
        last = self._complete(last)  # before rewards are swept away
        last = _rejecting(last, self._sweep(self._released_until))
        return EventBatch.concat([due, last]) if len(last) or last.rejected else due

    def flush(self) -> EventBatch:
        self._released_until = max(self._released_until, self._watermarks.newest)
        last = self._complete(self.held.take())
        return _rejecting(last, self._sweep(math.inf))

    def ahead(self) -> Collection[TopicPartition]:
        """Partitions not to be read for now because the buffer is full: until half of the memory is free again."""
        self._is_full = self.nbytes > self._max_bytes / (2 if self._is_full else 1)
        times = self._read_up_to() if self._is_full else {}
        slowest = min(times.values(), default=NEVER)
        return frozenset(partition for partition, time in times.items() if time > slowest)

    def buffered(self) -> BufferStatus:
        known = self.watermark
        return BufferStatus(len(self.held), known if math.isfinite(known) else None, self.released_early)

    def state(self) -> State:
        return {
            "watermarks": self._watermarks.state(),
            "held": self.held.state(),
            "released_until": self._released_until,
            "released_early": self.released_early,
            "swept": self._swept,
        }

    def restore(self, state: State) -> None:
        self._watermarks.restore(state["watermarks"])
        self.held.restore(state["held"])
        self._released_until, self.released_early = state["released_until"], state["released_early"]
        self._swept = state["swept"]

    def _due(self, rejected: tuple[Rejected, ...] = ()) -> EventBatch:
        self._released_until = self.watermark
        due = self._complete(self.held.take(self._released_until))
        is_overfull = self.nbytes > 2 * self._max_bytes
        if is_overfull or self._released_until > self._swept + self._sweep_interval:
            rejected += self._sweep(self._released_until)
        if is_overfull:
            due = EventBatch.concat([due, self._relieve()])
        return _rejecting(due, rejected)

    def _relieve(self) -> EventBatch:
        """Rejects events from the far future and releases the older half, because the buffer is overfull."""
        rejected = self._reject_beyond(self._newest + self._patience)
        released = EventBatch.concat([])
        if self.held.nbytes > self._max_bytes:
            self._released_until = max(self._released_until, just_after(self.held.time_of(len(self.held) // 2)))
            released = self._complete(self.held.take(self._released_until))
            self.released_early += len(released)
        return replace(released, rejected=rejected)

    def _reject_beyond(self, time: float) -> tuple[Rejected, ...]:
        future = self.held.take_beyond(time)
        all_rows = np.arange(len(future))
        return future.reject(all_rows, "too_early", lambda _: "timestamp: far ahead of all other events").rejected

    def _all_read(self, ended: Mapping[TopicPartition, float]) -> float:
        """When all partitions were last found at their end; minus infinity if not all were."""
        return self._watermarks.at_end(_of_topic(ended, self._topic), self._newest)

    def _read_up_to(self) -> dict[TopicPartition, float]:
        return {(self._topic, number): time for number, time in self._watermarks.read_up_to().items()}

    def _complete(self, events: EventBatch) -> EventBatch:
        return events

    def _sweep(self, before: float) -> tuple[Rejected, ...]:
        return ()


class RewardJoin(EventTimeOrder):
    """Gives each decision its rewards dated up to `window` (seconds) later, and releases it in the order of time.

    A decision waits until the watermarks of both topics have passed the end of its window. It then gets the rewards
    with its id: the `first`, their `sum` or the `last`, by (timestamp, partition, offset), or `default` without any. A
    reward in its own message is ignored. Rewards that come before their decision wait for it; they may be dated up to
    `max_lateness` before it, since clocks differ. Later ones are rejected as `too_late`.

    `max_bytes` covers decisions and rewards. When rewards come long after many decisions, `ahead` leaves decisions in
    the log. The ids of released decisions, which tell late rewards from those without a decision, take another quarter
    of `max_bytes`.

    The partitions are those of both topics. Decisions in a new partition dated before the last release are too late:
    some of their rewards are gone. There are none where the window is longer than it takes to discover the partition.
    """

    def __init__(
        self,
        topic: str,
        rewards_topic: str,
        *,
        window: float,
        default: float,
        combine: Literal["first", "sum", "last"],
        max_lateness: float,
        idle_timeout: float,
        max_bytes: int,
    ) -> None:
        super().__init__(topic, max_lateness=max_lateness, idle_timeout=idle_timeout, max_bytes=max_bytes)
        self._rewards_topic, self._window, self._sweep_interval = rewards_topic, window, window / SWEEPS
        self._reward_watermarks = Watermarks(max_lateness, idle_timeout)
        remembered = REMEMBERED_SHARE * max_bytes
        self._rewards = RewardStore(rewards_topic, window, default, combine, max_lateness, remembered)

    @property
    def counts(self) -> RewardCounts:
        """Counts of the rewards by outcome."""
        return self._rewards.counts

    @property
    def nbytes(self) -> int:
        return self.held.nbytes + self._rewards.nbytes

    @property
    def watermark(self) -> float:
        """The time (epoch seconds) before which decisions have all their rewards; minus infinity at first."""
        by_rewards = self._reward_watermarks.watermark - self._window - MICROSECOND
        return max(self._released_until, min(self._watermarks.watermark, by_rewards))

    @property
    def _newest(self) -> float:
        return max(self._watermarks.newest, self._reward_watermarks.newest)

    def expect(self, partitions: Iterable[TopicPartition]) -> None:
        known = list(partitions)
        self._watermarks.expect(number for topic, number in known if topic == self._topic)
        self._reward_watermarks.expect(number for topic, number in known if topic == self._rewards_topic)

    def take_rewards(self, rewards: RewardBatch) -> EventBatch:
        late = self._reward_watermarks.advance(rewards.origin.partition, rewards.timestamp)
        nameless = ~late & (rewards.origin.identity == NO_IDENTITY)
        detail = "timestamp: too far behind others of its partition"
        rejected = [
            Rejected("too_late", detail, b"", origin=rewards.origin.place(row)) for row in np.flatnonzero(late).tolist()
        ]
        self._rewards.count(late=len(rejected), unmatched=int(np.count_nonzero(nameless)))
        self._rewards.add(rewards.take(~late & ~nameless))
        return self._due((*rewards.rejected, *rejected))

    def buffered(self) -> BufferStatus:
        return replace(super().buffered(), rewards=self.counts, window=self._window)

    def state(self) -> State:
        rewards = {"reward_watermarks": self._reward_watermarks.state(), "rewards": self._rewards.state()}
        return super().state() | rewards

    def restore(self, state: State) -> None:
        super().restore(state)
        self._reward_watermarks.restore(state["reward_watermarks"])
        self._rewards.restore(state["rewards"])

    def _all_read(self, ended: Mapping[TopicPartition, float]) -> float:
        newest = self._newest
        live_within = 2 * (self._window + self._patience)  # decisions left in the log are read as much later
        rewards = self._reward_watermarks.at_end(_of_topic(ended, self._rewards_topic), newest, live_within)
        return min(self._watermarks.at_end(_of_topic(ended, self._topic), newest), rewards - self._window)

    def _read_up_to(self) -> dict[TopicPartition, float]:
        rewards = self._reward_watermarks.read_up_to().items()
        return super()._read_up_to() | {(self._rewards_topic, number): time - self._window for number, time in rewards}

    def _complete(self, decisions: EventBatch) -> EventBatch:
        if not len(decisions):
            return decisions
        assert decisions.origin is not None, "events must be decoded with their origin"
        assert decisions.origin.identity is not None, "events must be decoded as `identified`"
        return replace(decisions, reward=self._rewards.join(decisions.origin.identity, decisions.timestamp))

    def _sweep(self, before: float) -> tuple[Rejected, ...]:
        self._swept = before
        return self._rewards.sweep(before)

    def _reject_beyond(self, time: float) -> tuple[Rejected, ...]:
        return super()._reject_beyond(time) + self._rewards.reject_beyond(time)

    def _relieve(self) -> EventBatch:
        released = super()._relieve()
        rejected = released.rejected + self._sweep(self._released_until)
        if self._rewards.nbytes > self._max_bytes:
            rejected += self._rewards.reject_older_half()
        return replace(released, rejected=rejected)


def _rejecting(batch: EventBatch, rejected: tuple[Rejected, ...]) -> EventBatch:
    return replace(batch, rejected=rejected + batch.rejected) if rejected else batch


def _of_topic(times: Mapping[TopicPartition, float], topic: str) -> dict[int, float]:
    return {number: time for (name, number), time in times.items() if name == topic}
