"""Turn messages into the events that count: decoded, without duplicates, in event-time order, joined with rewards."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Protocol, TypeVar

from msgspec import structs

from streameval.common.arrays import State, require_fit
from streameval.events import EventBatch, RewardBatch, RewardDecoder
from streameval.events.further_rewards import RewardField
from streameval.events.origin import Origin
from streameval.ingest.base import Records, StageSettings, TopicPartition
from streameval.ingest.stages import (
    ArrivalOrder,
    BufferStatus,
    Deduplication,
    EventOrder,
    PartitionEnds,
    ReaderClock,
    Stage,
)

ORDER = "order"
STAGES = ("duplicates", ORDER, "later_duplicates")
"""The entries of the stages in the state, in the order in which events pass them."""

B = TypeVar("B", EventBatch, RewardBatch)


class Decoder(Protocol):
    """Decode message values into columns."""

    def decode_batch(self, values: Iterable[bytes | None], origin: Origin | None = None) -> EventBatch:
        """Decode messages; `origin` tells where they come from, if anything needs it."""


class EventPipeline:
    """Decode messages and pass them through the stages that the settings of the source ask for.

    The stages are: drop duplicates as read (copies that a producer sends again are not late events), order by event
    time and join rewards, drop duplicates again in the order of time (copies in two partitions may be read far apart).
    Only the order is always there. Whether it is event time may depend on the number of partitions; it is decided when
    that is known for the first time, and kept.

    Call `take` after every poll, then `source.pause(pipeline.ahead())`: messages too far ahead stay in the log.

    Args:
        events: decodes events
        settings: decide which stages there are
        reward_field: the field of rewards that come separately
        reward_range: the range of joined rewards; decoders check the other rewards
        further: further rewards, with their fields and ranges
        located: events keep their origin, even if no stage needs it
    """

    def __init__(
        self,
        events: Decoder,
        settings: StageSettings | None = None,
        reward_field: str = "reward",
        reward_range: tuple[float, float] = (-math.inf, math.inf),
        further: Sequence[RewardField] = (),
        *,
        located: bool = False,
    ) -> None:
        self.located = located
        self.events, self._settings = events, settings or StageSettings()
        self._reward_field, self._reward_range, self._further = reward_field, reward_range, tuple(further)
        self._rewards = RewardDecoder(reward_field, self._further)
        self._clock = ReaderClock(self._settings.clock_tolerance)
        self._order: ArrivalOrder | EventOrder = ArrivalOrder()
        self._before, self._after = self._deduplication("duplicates"), dict[str, Stage]()
        self._is_decided = False

    @property
    def ahead_of_clock(self) -> int:
        """Count the events and rewards that were dated too far ahead of the reader's clock."""
        return self._clock.ahead

    @property
    def mostly_ahead(self) -> bool:
        """Tell whether more of the last events were dated ahead than one producer with a wrong clock may write."""
        return self._clock.mostly_ahead

    def second_reading(self) -> SecondReading:
        """Return a pipeline with the same stages that reads the log again, and passes on no event buffered here."""
        other = SecondReading(self.events, self._settings, self._reward_field, self._reward_range, self._further)
        other.follow(self)
        return other

    def decide(self, partitions: Collection[TopicPartition]) -> None:
        """Decide whether events are ordered by time, if that is still open and the partitions are known."""
        if not self._is_decided and partitions:
            self._decide(len(partitions))

    @property
    def by_time(self) -> bool:
        """Tell whether events may be due without new messages, so that `take` must also be called then."""
        return self._order.by_time or len(self._order.held) > 0

    def take(self, records: Sequence[Records], partitions: PartitionEnds, now: float = math.inf) -> EventBatch:
        """Return the events that count now, with everything rejected on the way.

        Args:
            records: the messages of a poll
            partitions: all partitions, and when they were found at their end
            now: seconds since 1970; an event dated more than `max_ahead` of the source later counts as of now

        Raises:
            ClockBehindError: `now` is more than a day behind the events; none of the messages is taken.
        """
        self.decide(partitions)
        batch, rewards = self._decode(records)
        self._clock.require([batch, *rewards], now)
        self._clock.ahead += self._order.redate(self._clock.latest(now), now)
        batch, rewards = self._clock.redated(batch, now), [self._clock.redated(part, now) for part in rewards]
        for stage in self._before.values():
            batch = stage.pass_on(batch)
        return self._finished(self._order.pass_on(batch, partitions, rewards, self._limit))

    def _finished(self, batch: EventBatch) -> EventBatch:
        """Return the events that count, from events in their order."""
        batch = batch.with_rewards_in(*self._reward_range, self._further)
        for stage in self._after.values():
            batch = stage.pass_on(batch)
        return batch

    def ahead(self) -> Collection[TopicPartition]:
        """Return the partitions not to read for now: they are so far ahead of the others that the buffer is full."""
        return self._order.ahead()

    def buffered(self) -> BufferStatus | None:
        """Describe the buffers, for people and metrics; None if no stage has a buffer."""
        return self._order.buffered()

    def drop_policies(self, policies: Collection[str]) -> None:
        """Remove policies from buffered events: they have been retrained since."""
        self._order.held.drop_policies(policies)

    def flush(self) -> EventBatch:
        """Return all buffered events: nothing more will come."""
        return self._finished(self._order.flush())

    def state(self) -> State:
        """Return all that is remembered and buffered, as a plain value."""
        stages = dict.fromkeys(STAGES) | {name: stage.state() for name, stage in self._stages.items()}
        return {"is_decided": self._is_decided, "clock": self._clock.state(), **stages}

    @staticmethod
    def describe(state: State) -> State:
        """Describe a state by values that JSON has.

        Returns:
            `waiting`: a row per buffer that is not empty, with `what`, `count`, `oldest` and `newest` (epoch seconds;
            None without times) and `bytes`. `watermark`: the event time up to which everything has come, None if
            events count as they arrive. `released_early`: the number of events released before the watermark.
            `rewards`: the counts of separate rewards by outcome.
        """
        order = EventOrder.describe(state[ORDER])
        stages = {
            "duplicates": "ids of events, to recognise duplicates",
            "later_duplicates": "the same, in event-time order",
        }
        ids = [Deduplication.describe(state[name], what) for name, what in stages.items() if state[name] is not None]
        return {**order, "waiting": [row for row in (*order["waiting"], *ids) if row["count"]]}

    def restore(self, state: State) -> None:
        """Continue from a state, which may have been saved with other settings.

        Events that are buffered and need not wait any more are passed on with the next ones.

        Raises:
            DamagedError: The state has another form.
        """
        require_fit(state, EventPipeline(self.events).state())
        self._clock.restore(state["clock"])
        if state["is_decided"]:
            self._decide(2 if state[ORDER]["by_time"] else 1)
        for name, stage in self._stages.items():
            saved = state[name]
            if saved is not None:
                is_other_order = name == ORDER and saved["by_time"] != self._order.by_time
                require_fit(saved, ArrivalOrder().state() if is_other_order else stage.state(), name)
                stage.restore(saved)

    @property
    def _limit(self) -> float:
        """Return the time from which on events wait in any case."""
        return math.inf

    @property
    def _stages(self) -> dict[str, Stage]:
        return {**self._before, ORDER: self._order, **self._after}

    def _decide(self, partitions: int) -> None:
        """Compose the stages for this many partitions."""
        self._is_decided = True
        order = self._settings.event_order(partitions)
        if order is not None:
            self._order = order
            self._after = self._deduplication("later_duplicates")

    def _deduplication(self, name: str) -> dict[str, Stage]:
        """Return the stage with this name, if duplicates are to be dropped."""
        window = self._settings.dedupe_window
        return {name: Deduplication(window)} if window else {}

    def _decode(self, records: Sequence[Records]) -> tuple[EventBatch, list[RewardBatch]]:
        """Decode the events, and the rewards that come separately."""
        topic = None if self._settings.reward_topic is None else self._settings.reward_topic.topic
        decisions = [part for part in records if part.topic != topic]
        rewards = [
            _with_unreadable(self._rewards.decode_batch(part.values, _origin([part])), [part])
            for part in records
            if part.topic == topic
        ]
        if not decisions:
            return EventBatch.concat([]), rewards
        located = self.located or any(stage.needs_origin for stage in self._stages.values())
        origin = _origin(decisions) if located else None
        values = chain.from_iterable(part.values for part in decisions)
        return _with_unreadable(self.events.decode_batch(values, origin), decisions), rewards


class SecondReading(EventPipeline):
    """Read the log again, up to the events that the live pipeline still buffers."""

    def follow(self, live: EventPipeline) -> None:
        """Pass on no event that `live` buffers."""
        self._live = live
        self._only_live_until = -math.inf  # the newest time of an event that only `live` buffered
        if live._is_decided:
            self._decide(2 if live._order.by_time else 1)

    @property
    def _limit(self) -> float:
        return self._live._order.held.oldest

    def hand_over(self) -> EventBatch | None:
        """End the reading, which has read what the live pipeline has.

        Events that both buffer stay in the live pipeline as they were decoded here: the live pipeline may have decoded
        them before some policies were added.

        Returns:
            The events that only this reading still buffers. None while the live pipeline buffers events that are not
            here: they were passed on here, or are no longer in the log.
        """
        ours, theirs = self._order.held, self._live._order.held
        if theirs.oldest <= self._only_live_until:
            return None
        events = ours.take()
        shared, self._only_live_until = theirs.update_from(events)
        has_all = self._only_live_until == -math.inf
        ours.add(events.take(~shared) if has_all else events)
        return self.flush() if has_all else None


def _origin(records: Sequence[Records]) -> Origin:
    return Origin.of(records[0].topic, [(part.partition, part.offsets) for part in records])


def _with_unreadable(batch: B, records: Sequence[Records]) -> B:
    """Give messages of batches that cannot be unpacked the right reason of their rejection."""
    if not any(part.unreadable for part in records):
        return batch
    causes = [part.unreadable for part in records for _ in range(len(part))]
    rejected = [
        structs.replace(message, reason="unreadable_batch", detail=cause)
        if (cause := causes[message.place])
        else message
        for message in batch.rejected
    ]
    return replace(batch, rejected=tuple(rejected))
