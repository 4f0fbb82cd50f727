"""Decisions and their rewards, which come as messages of their own, joined by their ids in event time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from streameval.common.arrays import State
from streameval.events import EventBatch, Rejected, RewardBatch
from streameval.events.origin import NO_IDENTITY
from streameval.ingest.stages.buffer import EventBuffer
from streameval.ingest.stages.reward_store import RewardCounts, RewardStore
from streameval.ingest.stages.watermark import NEVER, Place, Watermarks, just_after

SHARE_OF_THE_REMEMBERED = 0.25
"""Memory for decisions that were passed on, as a share of that for what waits."""
SWEEPS = 16
"""Rewards that nobody waits for are let go so many times a window."""
A_MICROSECOND = 1e-6


class RewardJoin(EventBuffer):
    """Gives every decision the rewards dated up to `window` (seconds) after it, and passes it on, in the order of time.

    A decision waits until the watermarks of both topics say that no such reward will come any more (`Watermarks`), then
    gets the rewards with its id: the `first`, their `sum` or the `last`, by (timestamp, partition, offset), and without
    any `default`. What its own message says of a reward does not count. Rewards that come before their decision wait,
    too; one may be dated up to `max_lateness` before it, since clocks differ. Later ones are rejected as `too_late`.

    What waits takes `most_bytes` of memory; with more, partitions that are ahead must not be read on (`ahead`). Where
    rewards come long after many decisions, these then wait in the log. If with twice as much that has not helped, the
    older half is passed on with the rewards that are there, and counted as `hurried`. What was passed on is remembered,
    to tell late rewards from those without a decision, in another quarter of `most_bytes`.

    Other arguments and methods: as those of `Ordering`, with the partitions of both topics. When a partition is added
    later, decisions in it from before what has been passed on are too late: some of their rewards are gone. There are
    none where the window is longer than it takes to find the partition.
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
        most_bytes: int,
    ) -> None:
        super().__init__(most_bytes)
        self._topic, self._rewards_topic = topic, rewards_topic
        self.window, self._patience = window, max_lateness + idle_timeout
        self._clocks = Watermarks(max_lateness, idle_timeout)
        self._reward_clocks = Watermarks(max_lateness, idle_timeout)
        self._rewards = RewardStore(window, default, combine, max_lateness, SHARE_OF_THE_REMEMBERED * most_bytes)
        self._swept = NEVER

    @property
    def counts(self) -> RewardCounts:
        """What has become of rewards so far."""
        return self._rewards.counts

    @property
    def held_bytes(self) -> int:
        """Memory that decisions and rewards take."""
        return self._held.nbytes + self._rewards.nbytes

    @property
    def watermark(self) -> float:
        """The time (seconds since 1970) before which decisions have all their rewards; minus infinity at first."""
        by_rewards = self._reward_clocks.watermark - self.window - A_MICROSECOND
        return max(self._passed, min(self._clocks.watermark, by_rewards))

    def expect(self, places: Iterable[Place]) -> None:
        """These partitions exist, and no others of a topic of which one is known: see `Ordering.expect`."""
        known = list(places)
        self._clocks.expect(partition for topic, partition in known if topic == self._topic)
        self._reward_clocks.expect(partition for topic, partition in known if topic == self._rewards_topic)

    def take(self, batch: EventBatch) -> EventBatch:
        """The next decisions, those of a partition in its order; what is due comes back, with all that is rejected."""
        on_time = self._clocks.on_time(batch, self._passed)
        self._held.add(on_time)
        return self._due(on_time.rejected)

    def take_rewards(self, rewards: RewardBatch) -> EventBatch:
        """The next rewards, those of a partition in its order; decisions that are due come back."""
        late = self._reward_clocks.advance(rewards.origin.partition, rewards.timestamp)
        nameless = ~late & (rewards.origin.identity == NO_IDENTITY)
        detail = "timestamp: too far behind others of its partition"
        rejected = [
            Rejected("too_late", detail, b"", origin=rewards.origin.place(row)) for row in np.flatnonzero(late).tolist()
        ]
        self._rewards.count(late=len(rejected), unmatched=int(np.count_nonzero(nameless)))
        self._rewards.add(rewards.take(~late & ~nameless))
        return self._due((*rewards.rejected, *rejected))

    def rest(self, ended: Mapping[Place, float]) -> EventBatch:
        """These partitions were found at their end by a question asked at this time; see `Ordering.rest`."""
        newest = max(self._clocks.newest, self._reward_clocks.newest)
        decided = {partition: at for (topic, partition), at in ended.items() if topic == self._topic}
        rewarded = {partition: at for (topic, partition), at in ended.items() if topic == self._rewards_topic}
        live_within = 2 * (self.window + self._patience)  # decisions that wait in the log are read as much later
        rewards_read = self._reward_clocks.rest(rewarded, newest, live_within)
        read = min(self._clocks.rest(decided, newest), rewards_read - self.window)
        due = self._due()
        last = self._held.take(read - self._patience)
        if len(last):
            self._passed = max(self._passed, just_after(last.timestamp[-1]))
        complete = self._rewarded(last)  # before their rewards are swept away
        rejected = self._sweep(self._passed)
        return replace(EventBatch.concat([due, complete]), rejected=due.rejected + rejected)

    def flush(self) -> EventBatch:
        """All decisions that wait, with the rewards that are known: nothing more will come."""
        self._passed = max(self._passed, self._clocks.newest)
        last = self._rewarded(self._held.take())
        return replace(last, rejected=self._rewards.sweep(np.inf, self._rewards_topic))

    def ahead(self) -> frozenset[Place]:
        """Partitions that must not be read on for now, because the memory for what waits is full."""
        if not self._fills_up():
            return frozenset()
        marks = {(self._topic, number): mark for number, mark in self._clocks.read_up_to().items()}
        for number, mark in self._reward_clocks.read_up_to().items():
            marks[self._rewards_topic, number] = mark - self.window
        last = min(marks.values(), default=NEVER)
        return frozenset(place for place, mark in marks.items() if mark > last)

    def _due(self, rejected: tuple[Rejected, ...] = ()) -> EventBatch:
        self._passed = self.watermark
        due = self._rewarded(self._held.take(self._passed))
        if self.held_bytes > 2 * self._most_bytes:
            rejected += self._sweep(self._passed)
            due = EventBatch.concat([due, self._relief()])
        elif self._passed > self._swept + self.window / SWEEPS:
            rejected += self._sweep(self._passed)
        return replace(due, rejected=rejected + due.rejected)

    def _rewarded(self, decisions: EventBatch) -> EventBatch:
        if not len(decisions):
            return decisions
        assert decisions.origin is not None, "events must be decoded with their origin"
        assert decisions.origin.identity is not None, "events must be decoded as `identified`"
        return replace(decisions, reward=self._rewards.of(decisions.origin.identity, decisions.timestamp))

    def _sweep(self, before: float) -> tuple[Rejected, ...]:
        self._swept = before
        return self._rewards.sweep(before, self._rewards_topic)

    def _relief(self) -> EventBatch:
        """What must go because the memory is full, although what is ahead is not read on."""
        newest = max(self._clocks.newest, self._reward_clocks.newest)
        future = self._held.take_beyond(newest + self._patience)
        given_up = future.reject(np.arange(len(future)), "too_early", lambda _: "timestamp: far ahead of all others")
        rejected = given_up.rejected + self._rewards.give_up_beyond(newest + self._patience, self._rewards_topic)
        hurried = EventBatch.concat([])
        if self._held.nbytes > self._most_bytes:
            self._passed = max(self._passed, just_after(self._held.time_of(self.held // 2)))
            hurried = self._rewarded(self._held.take(self._passed))
            self.hurried += len(hurried)
            rejected += self._sweep(self._passed)
        if self._rewards.nbytes > self._most_bytes:
            rejected += self._rewards.give_up_older_half(self._rewards_topic)
        return replace(hurried, rejected=rejected)

    def state(self) -> State:
        """All that it remembers, and all that waits."""
        return {
            "clocks": self._clocks.state(),
            "reward_clocks": self._reward_clocks.state(),
            "held": self._held.state(),
            "rewards": self._rewards.state(),
            "passed": self._passed,
            "swept": self._swept,
            "hurried": self.hurried,
        }

    def restore(self, state: State) -> None:
        """Go on from a state."""
        self._clocks.restore(state["clocks"])
        self._reward_clocks.restore(state["reward_clocks"])
        self._held.restore(state["held"])
        self._rewards.restore(state["rewards"])
        self._passed, self._swept, self.hurried = state["passed"], state["swept"], state["hurried"]
