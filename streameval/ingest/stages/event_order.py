"""Order events by event time, and with a topic of rewards let them count once these have come."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from streameval.common.arrays import State
from streameval.events import EventBatch, Rejected, RewardBatch
from streameval.ingest.stages.buffer import HeldEvents
from streameval.ingest.stages.reward_store import RewardCounts, RewardRepeats, RewardStore
from streameval.ingest.stages.watermark import NEVER, TopicPartition, Watermarks

SWEEPS = 16
"""How many times per window rewards without a decision are dropped."""
MICROSECOND = 1e-6

PartitionEnds: TypeAlias = Mapping[TopicPartition, float | None]
"""When each partition was found at its end, in seconds since 1970; None for one that was not."""


@dataclass(frozen=True, slots=True)
class BufferStatus:
    """Describe the events that are buffered until their turn or until their rewards have come.

    Counts start with the state.

    Attributes:
        events: the number of buffered events
        watermark: the event time (epoch seconds) up to which everything has come, or None before there is one
        late: events that came after the watermark had passed them
        released_early: events released before the watermark passed them because the buffer was full
        lateness: by partition, the most seconds by which recent events came after the watermark
        rewards: counts of separate rewards by outcome
        repeats: counts of separate rewards that seem to have been delivered more than once
        window: seconds that an event waits for its rewards and scores
        unmatched_share: the share of recent rewards without a decision
        max_lateness: seconds that an event waits for others of its partition
        scores: counts of separate probabilities of candidates by outcome
        unmatched_scores: the share of recent probabilities without a decision
    """

    events: int
    watermark: float | None = None
    late: int = 0
    released_early: int = 0
    lateness: Mapping[TopicPartition, float] = field(default_factory=dict)
    rewards: RewardCounts | None = None
    repeats: RewardRepeats | None = None
    window: float = 0.0
    unmatched_share: float | None = None
    max_lateness: float = 0.0
    scores: RewardCounts | None = None
    unmatched_scores: float | None = None

    @property
    def sufficient_lateness(self) -> int:
        """Return the `max_lateness`, in whole seconds, that would have kept the order of recent events."""
        return math.ceil(self.max_lateness + max(self.lateness.values(), default=0.0))


class EventOrder:
    """Release events in the order of (timestamp, partition, offset), as far as they come in time.

    An event waits until every partition has reached a time `max_lateness` after its own (see `Watermarks`). An event
    that comes later than that is released at once. Beyond `max_bytes` of memory, partitions that are ahead must not be
    read (`ahead`). Beyond twice as much, the older half is released early.

    With `rewards`, an event is a decision. It waits until the partitions of the rewards have also passed the end of its
    window, and then gets the rewards of that topic. A reward in its own message is ignored. A decision that comes when
    its rewards have been dropped is too late, and is rejected. When rewards come long after many decisions, `ahead`
    leaves decisions in the log. With `scores`, it gets probabilities of candidates from another topic in the same way,
    and is missing for candidates without one. With both, it waits for the longer window.

    Args:
        topic: the topic of the events
        max_lateness: seconds that an event waits for others of its partition
        idle_timeout: seconds that an event waits for a partition without anything to read
        max_bytes: memory for events and rewards
        rewards: joins the rewards of another topic, or None if events have their own rewards
        scores: joins the probabilities of another topic, or None if events have their own

    Attributes:
        patience: the longest wait for events while their partition has nothing else to read, in seconds
    """

    def __init__(
        self,
        topic: str,
        *,
        max_lateness: float,
        idle_timeout: float,
        max_bytes: int,
        rewards: RewardStore | None = None,
        scores: RewardStore | None = None,
    ) -> None:
        self.held = HeldEvents()
        self.late = self.released_early = 0
        self._rewards, self._scores, self._max_bytes = rewards, scores, max_bytes
        self._stores = {store.topic: store for store in (rewards, scores) if store is not None}
        self.patience = max_lateness + idle_timeout
        self._window = max((store.window for store in self._stores.values()), default=0.0)
        waits = {topic: 0.0} | {store.topic: store.window + MICROSECOND for store in self._stores.values()}
        self.max_lateness = max_lateness
        self._watermarks = Watermarks(waits, max_lateness, idle_timeout)
        # events up to the first of these times were due because all before the second one seemed to have come
        self._last_at_end = self._complete_until = NEVER
        self._swept = NEVER  # rewards of decisions before this time have been dropped
        self._is_full = False

    @property
    def nbytes(self) -> int:
        """Return the memory of all that is buffered."""
        return self.held.nbytes + sum(store.nbytes for store in self._stores.values())

    @property
    def watermark(self) -> float:
        """Return the event time (epoch seconds) up to which everything has come, at first minus infinity."""
        return self._watermarks.watermark

    def expect(self, partitions: Iterable[TopicPartition]) -> None:
        """Set the partitions. No event is released before each has events or was found at its end."""
        self._watermarks.expect(partitions)

    def take(
        self,
        batch: EventBatch | None = None,
        rewards: Sequence[RewardBatch] = (),
        ended: Mapping[TopicPartition, float] = MappingProxyType({}),
        limit: float = math.inf,
    ) -> EventBatch:
        """Add the events and rewards of a poll, and return the events due, with all that are rejected.

        When all partitions are at their end, time passes without events: those older than `max_lateness + idle_timeout`
        are due.

        Args:
            batch: the events, in the order of each partition
            rewards: the rewards, and the probabilities that come separately, in the order of each partition
            ended: by partition, when its end was asked for, in epoch seconds: after everything passed so far had been
                read. An answer counts once, so that an answer from before a long pause does not make a partition count
                as idle during the pause
            limit: events from this time on wait in any case
        """
        complete_until = min(self._watermarks.advance_ended(ended) - self.patience, limit)
        rejected = () if batch is None else self._add(batch)
        for part in rewards:
            rejected += self._add_rewards(part)
        passed = min(self.watermark, limit)
        due = self._joined(self.held.take(max(passed, complete_until)))
        is_at_end = len(due) > 0 and due.timestamp[-1] >= passed
        if is_at_end:
            passed = self._last_at_end = float(due.timestamp[-1])
            self._complete_until = complete_until
        is_overfull = self.nbytes > 2 * self._max_bytes
        if is_at_end or is_overfull or passed > self._swept + self._window / SWEEPS:
            rejected += self._sweep(passed)
        if is_overfull:
            due = EventBatch.concat([due, self._relieve()])
        return _rejecting(due, rejected)

    def _add(self, batch: EventBatch) -> tuple[Rejected, ...]:
        """Buffer events, and return all that are rejected."""
        batch = batch.reject(np.isnan(batch.timestamp), "missing_field", lambda _: "timestamp: missing")
        is_late = batch.timestamp < self._swept
        if is_late.any():
            assert batch.origin is not None, "events must be decoded with their origin"
            assert batch.origin.identity is not None, "events must be decoded as `identified`"
            have_counted = [store.have_counted(batch.origin.identity) for store in self._stores.values()]
            copies = is_late & np.any(have_counted, axis=0)
            batch = batch.reject(copies, "duplicate", lambda _: "event_id: repeats the id of an event that counted")
        batch = batch.reject(
            batch.timestamp < self._swept,
            "too_late",
            lambda row: (
                f"timestamp: {batch.timestamp[row]:.6f} is far behind the others: what belongs to it was dropped"
            ),
        )
        if len(batch):
            assert batch.origin is not None, "events must be decoded with their origin"
            self.late += int(np.count_nonzero(batch.timestamp < max(self.watermark, self._last_at_end)))
            self._watermarks.advance(batch.origin, batch.timestamp, self._last_at_end, self._complete_until)
            self.held.add(batch)
        return batch.rejected

    def _add_rewards(self, rewards: RewardBatch) -> tuple[Rejected, ...]:
        """Keep rewards, and return the messages that are none."""
        self._watermarks.advance(rewards.origin, rewards.timestamp)
        self._stores[rewards.origin.topic].add(rewards)
        return rewards.rejected

    def redate(self, latest: float, now: float) -> int:
        """Date at `now` what is buffered and dated after `latest`, and return the number of events and rewards.

        They were read while the reader's clock was ahead, too. Clocks that they put forward start again.
        """
        self._watermarks.forget_after(latest)
        if self._last_at_end > latest:
            self._last_at_end = NEVER
        if self._swept > latest:
            self._swept = now - self._window - self.patience
        return self.held.redate(latest, now) + sum(store.redate(latest, now) for store in self._stores.values())

    def drop_policies(self, policies: Collection[str]) -> None:
        """Remove policies from what is buffered."""
        self.held.drop_policies(policies)
        for store in self._stores.values():
            store.drop(policies)

    def flush(self) -> EventBatch:
        """Return all buffered events: nothing more will come."""
        last = self._joined(self.held.take())
        return _rejecting(last, self._sweep(math.inf))

    def ahead(self) -> Collection[TopicPartition]:
        """Return the partitions not to read while the buffer is full, until half of the memory is free again."""
        self._is_full = self.nbytes > self._max_bytes / (2 if self._is_full else 1)
        times = self._watermarks.read_up_to() if self._is_full else {}
        slowest = min(times.values(), default=NEVER)
        return frozenset(partition for partition, time in times.items() if time > slowest)

    def buffered(self) -> BufferStatus:
        """Describe the buffers, for people and metrics."""
        return BufferStatus(
            len(self.held),
            self.watermark if math.isfinite(self.watermark) else None,
            self.late,
            self.released_early,
            self._watermarks.lateness(),
            None if self._rewards is None else self._rewards.counts,
            None if self._rewards is None else self._rewards.repeats,
            self._window,
            None if self._rewards is None else self._rewards.unmatched_share,
            self.max_lateness,
            None if self._scores is None else self._scores.counts,
            None if self._scores is None else self._scores.unmatched_share,
        )

    def state(self) -> State:
        """Return all that is remembered and buffered, as a plain value."""
        return {
            "by_time": True,
            "watermark": self.watermark,  # for people: it depends on settings that are not in the state
            "watermarks": self._watermarks.state(),
            "held": self.held.state(),
            "late": self.late,
            "released_early": self.released_early,
            "swept": self._swept,
            "rewards": None if self._rewards is None else self._rewards.state(),
            **({} if self._scores is None else {"scores": self._scores.state()}),
        }

    def restore(self, state: State) -> None:
        """Continue from a state."""
        self.held.restore(state["held"])
        self._watermarks.restore(state["watermarks"])
        self.late, self.released_early, self._swept = state["late"], state["released_early"], state["swept"]
        if self._rewards is not None:
            self._rewards.restore(state["rewards"])
        if self._scores is not None:
            self._scores.restore(state["scores"])

    def _relieve(self) -> EventBatch:
        """Release the older half: the buffer is overfull."""
        released = EventBatch.concat([])
        rejected: tuple[Rejected, ...] = ()
        if self.held.nbytes > self._max_bytes:
            middle = math.nextafter(self.held.time_of(len(self.held) // 2), math.inf)
            released = self._joined(self.held.take(middle))
            self.released_early += len(released)
            rejected = self._sweep(middle)
        for store in self._stores.values():
            if store.nbytes > self._max_bytes:
                rejected += store.reject_older_half()
        return _rejecting(released, rejected)

    def _joined(self, events: EventBatch) -> EventBatch:
        """Return events that are released now with their rewards and probabilities."""
        if not self._stores or not len(events):
            return events
        assert events.origin is not None, "events must be decoded with their origin"
        assert events.origin.identity is not None, "events must be decoded as `identified`"
        identity, timestamp, further = events.origin.identity, events.timestamp, events.further
        if self._scores is not None:
            events = events.with_scores(self._scores.join(identity, timestamp, events.policies)[1:].T)
        if self._rewards is not None:
            rewards = self._rewards.join(identity, timestamp, () if further is None else further.names)
            events = replace(events, reward=rewards[0], further=further and replace(further, values=rewards[1:].T))
        return events

    def _sweep(self, before: float) -> tuple[Rejected, ...]:
        """Drop rewards for which no decision will come, now that decisions before this time have been released."""
        if not self._stores or before <= self._swept:
            return ()
        self._swept = before
        return tuple(chain.from_iterable(store.sweep(before) for store in self._stores.values()))


def _rejecting(batch: EventBatch, rejected: tuple[Rejected, ...]) -> EventBatch:
    return replace(batch, rejected=rejected + batch.rejected) if rejected else batch
