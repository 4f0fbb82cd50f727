"""From messages to the events that count: decoded, without duplicates, ordered by event time, joined with rewards."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Protocol, TypeVar

import numpy as np
from msgspec import structs

from streameval.common.arrays import Array, State, require_fit
from streameval.common.text import in_words
from streameval.events import EventBatch, RewardBatch, RewardDecoder
from streameval.events.origin import Origin
from streameval.ingest.base import Records, SourceSettings, SourceStatus, TopicPartition
from streameval.ingest.stages import BufferStatus, Deduplication, EventOrder
from streameval.ingest.stages.buffer import HeldEvents

CLOCK_BEHIND = 86_400.0
"""Seconds. When events are dated further ahead of the reader's clock, it is that clock that is wrong."""
CLOCK_EVIDENCE = 20
"""Events that decide whose clock is wrong. Fewer may all come from one producer with a wrong clock."""
CLOCK_PATIENCE = 600.0
"""Seconds for which fewer events are withheld: the few events of a quiet topic must not stop the daemon for ever."""
CLOCKS_AHEAD = 0.9
"""Share of events that one producer with a wrong clock may write; when more are ahead, the reader's clock is behind."""

B = TypeVar("B", EventBatch, RewardBatch)


class ClockBehindError(Exception):
    """The clock of this machine is so many seconds behind the events, none of which was taken."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the clock of this machine is {in_words(seconds)} behind the events")


class Decoder(Protocol):
    """Decodes message values into columns; `origin` is where the messages come from, if anything needs it."""

    def decode_batch(self, values: Iterable[bytes | None], origin: Origin | None = None) -> EventBatch: ...


class EventPipeline:
    """Decodes messages and passes them through the stages that the settings of the source ask for.

    The stages, each of which may be absent: drop duplicates as read, order by event time and join rewards, check the
    range of joined rewards, drop duplicates again in the order of time (copies in two partitions may be read far
    apart). Whether events are ordered by time may depend on the number of partitions; it is decided when that is known
    for the first time, and kept.

    Call `take` after every poll, then `source.pause(pipeline.ahead())`: messages too far ahead stay in the log.

    `reward_field`, `reward_range`: the field of rewards that come separately, and the range of joined ones.
    `ahead_of_clock`: how many events and rewards were dated too far ahead of the reader's clock. `mostly_ahead`:
    whether more of the last ones were than one producer with a wrong clock may write.
    """

    def __init__(
        self,
        events: Decoder,
        source: SourceSettings | None = None,
        reward_field: str = "reward",
        reward_range: tuple[float, float] | None = None,
    ) -> None:
        self.events, self._source = events, source
        self._reward_field, self._reward_range = reward_field, reward_range
        rewards = None if source is None else source.reward_topic
        self._duplicates = self._deduplication()
        self._later_duplicates: Deduplication | None = None
        self._order: EventOrder | None = None
        self._is_decided = False
        self._released = HeldEvents()  # by an order in which events no longer wait
        self._live: EventPipeline | None = None
        self._only_live_until = -math.inf  # the newest time of an event that only `_live` buffered
        self._clock_tolerance = math.inf if source is None else source.clock_tolerance
        self._newest, self._behind_since = -math.inf, math.inf
        self.ahead_of_clock, self.mostly_ahead = 0, False
        self._judged = np.zeros(2)  # events and rewards since `mostly_ahead` was set, and those of them that were ahead
        self._reward_topic = None if rewards is None else rewards.topic
        self._rewards = None if rewards is None else RewardDecoder(reward_field)

    def second_reading(self) -> EventPipeline:
        """A pipeline with the same stages for another reading of the log; it passes on no event buffered here."""
        other = EventPipeline(self.events, self._source, self._reward_field, self._reward_range)
        other._live = self
        if self._is_decided:
            other._decide(1 if self._order is None else 2)
        return other

    def decide(self, status: SourceStatus) -> None:
        """Decide whether events are ordered by time, if that is still open and the partitions are known."""
        if not self._is_decided and status.partitions:
            self._decide(len(status.partitions))

    @property
    def by_time(self) -> bool:
        """Whether events may be due without new messages, so that `take` must also be called then."""
        return self._order is not None or len(self._released) > 0

    def take(self, records: Sequence[Records], status: SourceStatus, now: float = math.inf) -> EventBatch:
        """The events that count now, with everything rejected on the way.

        Args:
            records: The messages of a poll.
            status: The status of the source after the poll.
            now: Seconds since 1970; an event dated more than `max_ahead` of the source later counts as one of now.

        Raises:
            ClockBehindError: `now` is more than a day behind the events; none of the messages is taken.
        """
        self.decide(status)
        decisions = [part for part in records if part.topic != self._reward_topic]
        batch = self._decode(decisions) if decisions else EventBatch.concat([])
        rewards = [self._decode_rewards(part) for part in records if part.topic == self._reward_topic]
        self._require_clock(np.concatenate([part.timestamp for part in (batch, *rewards)]), now)
        batch = self._not_ahead(batch, now)
        if self._duplicates is not None and len(batch):
            batch = self._duplicates.take(batch)
        if self._order is None:
            return EventBatch.concat([self._released.take(), batch]) if len(self._released) else batch
        if self._live is not None:
            self._order.limit = self._live._held.oldest
        self.ahead_of_clock += self._order.redate(now + self._clock_tolerance, now)
        self._order.expect((part.topic, part.partition) for part in status.partitions)
        ended = {(part.topic, part.partition): part.ended_at for part in status.partitions}
        due = [self._order.at_end({partition: time for partition, time in ended.items() if time is not None})]
        if decisions:
            due.append(self._order.take(batch))
        due += [self._order.take_rewards(self._not_ahead(part, now)) for part in rewards]
        return self._checked(EventBatch.concat([batch for batch in due if len(batch) or batch.rejected]))

    def ahead(self) -> Collection[TopicPartition]:
        """Partitions not to be read for now: they are so far ahead of the others that the buffer is full."""
        return () if self._order is None else self._order.ahead()

    def buffered(self) -> BufferStatus | None:
        """The state of the buffers, for people and metrics; None for stages without a buffer."""
        if self._order is not None:
            return self._order.buffered()
        return BufferStatus(len(self._released)) if len(self._released) else None

    def drop_policies(self, policies: Collection[str]) -> None:
        """Remove these policies from buffered events: they have been retrained since."""
        self._held.drop_policies(policies)

    def flush(self) -> EventBatch:
        """All buffered events: nothing more will come."""
        return self._checked(self._held.take() if self._order is None else self._order.flush())

    def hand_over(self) -> EventBatch | None:
        """End a second reading that has read what the live pipeline has: the events that only this one still buffers.

        None while the live pipeline buffers events that are not here: they were passed on here, or are no longer in the
        log. Events that both buffer stay there as they were decoded here: the live pipeline may have decoded them
        before some policies were added.
        """
        assert self._live is not None, "only a second reading is handed over"
        if self._live._held.oldest <= self._only_live_until:
            return None
        ours = self._held.take()
        shared, self._only_live_until = self._live._held.update_from(ours)
        has_all = self._only_live_until == -math.inf
        self._held.add(ours.take(~shared) if has_all else ours)
        return self.flush() if has_all else None

    def state(self) -> State:
        """All that is remembered and buffered, as a plain value."""
        stages = {"duplicates": self._duplicates, "later_duplicates": self._later_duplicates, "order": self._order}
        state: State = {name: None if stage is None else stage.state() for name, stage in stages.items()}
        more = {"is_decided": self._is_decided, "released": self._released.state(), "newest": self._newest}
        return state | more

    @staticmethod
    def describe(state: State) -> State:
        """The buffers, the watermark and the counts of rewards in a state, as values that JSON has.

        `waiting`: a row per buffer that is not empty, with `what`, `count`, `oldest` and `newest` (epoch seconds; None
        without times) and `bytes`. `watermark`: the event time up to which everything has come; `released_early`: the
        number of events released before it; None and 0 if events count as they arrive.
        """
        order: State = {"watermark": None, "released_early": 0, "rewards": None}
        if state["order"] is None:
            order["waiting"] = [HeldEvents.describe(state["released"])]
        else:
            order = EventOrder.describe(state["order"])
        stages = {
            "duplicates": "ids of events, to recognise duplicates",
            "later_duplicates": "the same, in event-time order",
        }
        ids = [Deduplication.describe(state[name], what) for name, what in stages.items() if state[name] is not None]
        return {**order, "waiting": [row for row in (*order["waiting"], *ids) if row["count"]]}

    def restore(self, state: State) -> None:
        """Continue from a state, which may be that of other settings.

        Events that are buffered and need not wait any more are passed on with the next ones.

        Raises:
            DamagedError: The state is not one of these stages.
        """
        require_fit(state, EventPipeline(self.events).state())
        order, self._newest = state["order"], float(state["newest"])
        if state["is_decided"]:
            self._decide(1 if order is None else 2)
        if self._order is None or order is None:
            require_fit(order, order and {"held": []}, "order")
            self._held.restore(state["released"] if order is None else order["held"])
        stages = {"duplicates": self._duplicates, "later_duplicates": self._later_duplicates, "order": self._order}
        for name, stage in stages.items():
            if stage is not None and state[name] is not None:
                require_fit(state[name], stage.state(), name)
                stage.restore(state[name])

    @property
    def _held(self) -> HeldEvents:
        return self._released if self._order is None else self._order.held

    def _decide(self, partitions: int) -> None:
        self._is_decided = True
        if self._source is not None:
            self._order = self._source.event_order(partitions)
        if self._order is not None:
            self._later_duplicates = self._deduplication()

    def _deduplication(self) -> Deduplication | None:
        window = 0 if self._source is None else self._source.dedupe_window
        return Deduplication(window) if window else None

    def _decode(self, records: Sequence[Records]) -> EventBatch:
        values = chain.from_iterable(part.values for part in records)
        if self._duplicates is None and self._order is None:
            return _with_unreadable(self.events.decode_batch(values), records)
        topic = records[0].topic if records else ""
        origin = Origin.of(topic, [(part.partition, part.offsets) for part in records])
        return _with_unreadable(self.events.decode_batch(values, origin), records)

    def _decode_rewards(self, part: Records) -> RewardBatch:
        assert self._rewards is not None, "messages of this topic are read with a decoder of rewards only"
        origin = Origin.of(part.topic, [(part.partition, part.offsets)])
        return _with_unreadable(self._rewards.decode_batch(part.values, origin), [part])

    def _require_clock(self, timestamp: Array, now: float) -> None:
        """Raise ClockBehindError if these times show that it is not the time of `now`, but much later.

        Those of this poll and earlier ones must both show it, where there are both: either may have a wrong clock.
        Where there are no earlier ones and few of this poll, `now` is right after all once they have waited long.
        """
        times = timestamp[~np.isnan(timestamp)]
        if self._clock_tolerance == math.inf or (not len(times) and self._newest - now <= CLOCK_BEHIND):
            return
        rank = int((1.0 - CLOCKS_AHEAD) * len(times))
        seen = float(np.partition(times, rank)[rank]) if len(times) else math.inf
        is_first = self._newest == -math.inf
        known = seen if is_first else min(seen, self._newest)
        self._behind_since = min(self._behind_since, now) if known - now > CLOCK_BEHIND else math.inf
        has_waited = is_first and len(times) < CLOCK_EVIDENCE and now - self._behind_since >= CLOCK_PATIENCE
        if known - now > CLOCK_BEHIND and not has_waited:
            raise ClockBehindError(known - now)
        self._newest = min(max(seen, self._newest), now)

    def _not_ahead(self, batch: B, now: float) -> B:
        """The events or rewards; those dated too far ahead of the reader's clock get its time."""
        is_ahead = batch.timestamp > now + self._clock_tolerance
        self._judged += np.array([len(batch), np.count_nonzero(is_ahead)], dtype=np.float64)
        if self._judged[0] >= CLOCK_EVIDENCE:
            self.mostly_ahead = bool(self._judged[1] > CLOCKS_AHEAD * self._judged[0])
            self._judged[:] = 0.0
        if not is_ahead.any():
            return batch
        self.ahead_of_clock += int(np.count_nonzero(is_ahead))
        return replace(batch, timestamp=np.where(is_ahead, now, batch.timestamp))

    def _checked(self, due: EventBatch) -> EventBatch:
        """The due events without those whose joined reward is out of range, and without later duplicates."""
        if self._reward_topic is not None and self._reward_range is not None:
            due = due.with_rewards_in(*self._reward_range)
        return due if self._later_duplicates is None or not len(due) else self._later_duplicates.take(due)


def _with_unreadable(batch: B, records: Sequence[Records]) -> B:
    """The batch of these records, with the right reason for messages of batches that cannot be unpacked."""
    if not any(part.unreadable for part in records):
        return batch
    causes = [part.unreadable for part in records for _ in range(len(part))]
    rejected = [
        structs.replace(each, reason="unreadable_batch", detail=causes[each.place]) if causes[each.place] else each
        for each in batch.rejected
    ]
    return replace(batch, rejected=tuple(rejected))
