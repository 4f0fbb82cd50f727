"""Turn messages into the events that count: decoded, without duplicates, in event-time order, joined with rewards."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
from msgspec import structs

from streameval.common.arrays import Array, State, bytes_in, from_plain, require_fit
from streameval.events import EventBatch, RewardBatch, RewardDecoder
from streameval.events.fields import reward_decoder
from streameval.events.further_rewards import RewardField
from streameval.events.origin import Origin
from streameval.events.tables import ColumnNames
from streameval.ingest.base import Records, StageSettings, TopicPartition
from streameval.ingest.groups import grouped_messages
from streameval.ingest.stages import BufferStatus, Deduplication, EventOrder, PartitionEnds, ReaderClock
from streameval.ingest.stages.buffer import HeldEvents

MAX_DECODED_BYTES = 16 * 2**20  # of messages that are decoded together, unless one is longer
ORDER = "order"
REWARD_BUFFERS = {
    "waiting": "rewards whose event has not arrived",
    "released": "ids of counted events, to recognise late rewards",
}
ID_BUFFERS = {
    "duplicates": "ids of events, to recognise duplicates",
    "later_duplicates": "the same, in event-time order",
}
"""What the buffers in a state hold, for people."""
SCORE_BUFFERS = {
    "waiting": "scores whose event has not arrived",
    "released": "ids of counted events, to recognise late scores",
}

WATCHED_IDS = 100_000
"""Latest events among which a repeated id is recognised, although it counts."""
WATCHED_SHARE = 10
"""One in so many times `WATCHED_IDS` events is watched, because ids take a fourth of the time of decoding."""

B = TypeVar("B", EventBatch, RewardBatch)


class Decoder(Protocol):
    """Decode message values into columns.

    Attributes:
        clipped_events: events so far with a number beyond its range by rounding alone
        identified: whether events with an origin have the fingerprint of their id
    """

    clipped_events: int
    identified: bool

    def decode_batch(self, values: Iterable[bytes | None], origin: Origin | None = None) -> EventBatch:
        """Decode messages. `origin` tells where they come from, if anything needs it."""


class EventPipeline:
    """Decode messages and pass them through the stages that the settings of the source ask for.

    The stages are: drop duplicates as read (copies that a producer sends again are not late events), order by event
    time and join rewards, drop duplicates again in the order of time (copies in two partitions may be read far apart).
    Whether events are ordered by time may depend on the number of partitions. It is decided when that is known for the
    first time, and kept.

    Call `take` with each of the `groups` of a poll, then `source.pause(pipeline.ahead())`: messages too far ahead stay
    in the log.

    Args:
        events: decodes events
        settings: decide which stages there are
        reward_field: the field of rewards that come separately
        reward_range: the range of joined rewards. Decoders check the other rewards
        further: further rewards, with their fields and ranges

    Attributes:
        repeated_events: events that count although an event of the last 100,000 has their id. The first 100,000 of
            every million events are watched
    """

    def __init__(
        self,
        events: Decoder,
        settings: StageSettings | None = None,
        reward_field: str = "reward",
        reward_range: tuple[float, float] = (-math.inf, math.inf),
        further: Sequence[RewardField] = (),
    ) -> None:
        self.events, self._settings = events, settings or StageSettings()
        self._reward_field, self._reward_range, self._further = reward_field, reward_range, tuple(further)
        topic = self._settings.reward_topic
        self._rewards = self._of_batches(
            reward_decoder(reward_field, self._further, dict(topic.columns) if topic else None)
        )
        self._scores: RewardDecoder | None = None
        self._clock = ReaderClock(self._settings.clock_tolerance)
        self._clipped_joined = self.repeated_events = 0
        self._duplicates = self._deduplication()
        self._identified = events.identified
        self._watched = Deduplication(WATCHED_IDS)  # not in the state: it and the next two only count
        self._messages = self._decoded_events = 0
        self._order: EventOrder | None = None
        self._later_duplicates: Deduplication | None = None
        self._left = HeldEvents()  # from an order by time before a restart, until the next events come
        self._is_decided = False

    @property
    def ahead_of_clock(self) -> int:
        """Count the events and rewards that were dated too far ahead of the reader's clock."""
        return self._clock.ahead

    @property
    def clipped_events(self) -> int:
        """Count the events with a number beyond its range by rounding alone, which was set to the end of the range."""
        return self.events.clipped_events + self._clipped_joined

    @property
    def mostly_ahead(self) -> bool:
        """Tell whether more of the last events were dated ahead than one producer with a wrong clock may write."""
        return self._clock.mostly_ahead

    @property
    def events_per_message(self) -> float:
        """Return the mean number of events in a message, at least 1."""
        return max(1.0, self._decoded_events / max(1, self._messages))

    def second_reading(self) -> SecondReading:
        """Return a pipeline with the same stages that reads the log again, and passes on no event buffered here."""
        return SecondReading(self)

    def decide(self, partitions: Collection[TopicPartition]) -> None:
        """Decide whether events are ordered by time, if that is still open and the partitions are known."""
        if not self._is_decided and partitions:
            self._decide(len(partitions))

    @property
    def by_time(self) -> bool:
        """Tell whether events may be due without new messages, so that `take` must also be called then."""
        return self._order is not None or len(self._left) > 0

    def groups(self, records: Sequence[Records], partitions: PartitionEnds) -> Iterator[list[Records]]:
        """Yield the messages of a poll in groups that fit in memory.

        In order of time there is one group: its last messages may have the oldest events, and rewards of the first.
        """
        self.decide(partitions)
        yield from grouped_messages(records, self.events) if self._order is None else [list(records)]

    def take(self, records: Sequence[Records], partitions: PartitionEnds, now: float = math.inf) -> EventBatch:
        """Return the events that count now, with everything rejected on the way.

        Args:
            records: the messages of a poll, or a group of them
            partitions: all partitions, and when they were found at their end
            now: seconds since 1970. An event dated more than `clock_tolerance` of the source later counts as of now

        Raises:
            ClockBehindError: `now` is more than a day behind the events, and none of the messages is taken.
        """
        self.decide(partitions)
        watches = self._duplicates is None and self._decoded_events // WATCHED_IDS % WATCHED_SHARE == 0
        self.events.identified = self._identified or watches
        batch, rewards = self._decode(records)
        self._decoded_events += len(batch)
        self._messages += sum(map(len, records))
        self._clock.require([batch, *rewards], now)
        if self._order is not None:
            self._clock.ahead += self._order.redate(self._clock.latest(now), now)
        batch, rewards = self._clock.redated(batch, now), [self._clock.redated(part, now) for part in rewards]
        if self._duplicates is not None:
            batch = self._duplicates.take(batch)
        elif watches and batch.origin is not None:
            self.repeated_events += len(batch) - len(self._watched.take(batch))
        if self._order is not None:
            self._order.expect(partitions)
            ended = {partition: time for partition, time in partitions.items() if time is not None}
            batch = self._order.take(batch, rewards, ended, self._limit)
        elif len(self._left):
            batch = EventBatch.concat([self._left.take(), batch])
        return self._finished(batch)

    def _finished(self, batch: EventBatch) -> EventBatch:
        """Return the events that count, from events in their order."""
        if self._settings.reward_topic or self._settings.candidates_topic:  # decoders count the other numbers
            batch, are_clipped = batch.clipped(self._reward_range, self._further)
            self._clipped_joined += int(np.count_nonzero(are_clipped))
        batch = batch.with_rewards_in(*self._reward_range, self._further)
        return batch if self._later_duplicates is None else self._later_duplicates.take(batch)

    def ahead(self) -> Collection[TopicPartition]:
        """Return the partitions not to read for now: they are so far ahead of the others that the buffer is full."""
        return () if self._order is None else self._order.ahead()

    def buffered(self) -> BufferStatus | None:
        """Describe the buffers, for people and metrics, or None if no stage has a buffer."""
        if self._order is not None:
            return self._order.buffered()
        return BufferStatus(len(self._left)) if len(self._left) else None

    def drop_policies(self, policies: Collection[str]) -> None:
        """Remove policies from buffered events: they have been retrained since."""
        (self._left if self._order is None else self._order).drop_policies(policies)

    def flush(self) -> EventBatch:
        """Return all buffered events: nothing more will come."""
        return self._finished(self._left.take() if self._order is None else self._order.flush())

    def state(self) -> State:
        """Return all that is remembered and buffered, as a plain value."""
        order = {"by_time": False, "held": self._left.state()} if self._order is None else self._order.state()
        return {
            "is_decided": self._is_decided,
            "clock": self._clock.state(),
            ORDER: order,
            **{name: None if stage is None else stage.state() for name, stage in self._deduplications.items()},
        }

    def restore(self, state: State) -> None:
        """Continue from a state, which may have been saved with other settings.

        Events that are buffered and need not wait any more are passed on with the next ones.

        Raises:
            DamagedError: The state has another form.
        """
        require_fit(state, EventPipeline(self.events).state())
        self._clock.restore(state["clock"])
        order = state[ORDER]
        if state["is_decided"]:
            self._decide(2 if order["by_time"] else 1)
        if self._order is not None and order["by_time"]:
            require_fit(order, self._order.state(), ORDER)
            self._order.restore(order)
        else:
            self._held.restore(order["held"])
        for name, stage in self._deduplications.items():
            if stage is not None and state[name] is not None:
                require_fit(state[name], stage.state(), name)
                stage.restore(state[name])

    @property
    def _limit(self) -> float:
        """Return the time from which on events wait in any case."""
        return math.inf

    @property
    def _held(self) -> HeldEvents:
        return self._left if self._order is None else self._order.held

    @property
    def _deduplications(self) -> dict[str, Deduplication | None]:
        return {"duplicates": self._duplicates, "later_duplicates": self._later_duplicates}

    def _decide(self, partitions: int) -> None:
        """Compose the stages for this many partitions."""
        self._is_decided = True
        self._order = self._settings.event_order(partitions)
        self._later_duplicates = None if self._order is None else self._deduplication()

    def _deduplication(self) -> Deduplication | None:
        window = self._settings.dedupe_window
        return Deduplication(window) if window else None

    def _decode(self, records: Sequence[Records]) -> tuple[EventBatch, list[RewardBatch]]:
        """Decode the events, and what comes separately."""
        joined = self._joined_decoders()
        decisions = [part for part in records if part.topic not in joined]
        rewards = [
            _with_unreadable(joined[part.topic].decode_batch(part.values, _origin([part])), [part])
            for part in records
            if part.topic in joined
        ]
        if not decisions:
            return EventBatch.concat([]), rewards
        values = list(chain.from_iterable(part.values for part in decisions))
        return _with_unreadable(_decoded(self.events, values, _origin(decisions)), decisions), rewards

    def _joined_decoders(self) -> dict[str, RewardDecoder]:
        """Return the decoder of each topic with messages that are joined to events."""
        rewards, scores = self._settings.reward_topic, self._settings.candidates_topic
        decoders = {} if rewards is None else {rewards.topic: self._rewards}
        if scores is not None:
            policies = getattr(self.events, "policies", ())  # a reload changes them
            if self._scores is None or self._scores.policies != policies:
                self._scores = self._of_batches(reward_decoder(columns=dict(scores.columns), policies=policies))
            decoders[scores.topic] = self._scores
        return decoders

    def _of_batches(self, decoder: RewardDecoder) -> RewardDecoder:
        return self._settings.of_batches(decoder, ColumnNames())


class SecondReading(EventPipeline):
    """Read the log again, up to the events that a live pipeline still buffers."""

    def __init__(self, live: EventPipeline) -> None:
        super().__init__(live.events, live._settings, live._reward_field, live._reward_range, live._further)
        self._live = live
        self._only_live_until = -math.inf  # the newest time of an event that only `live` buffered
        if live._is_decided:
            self._decide(1 if live._order is None else 2)

    @property
    def _limit(self) -> float:
        return self._live._held.oldest

    def hand_over(self) -> EventBatch | None:
        """End the reading, which has read what the live pipeline has.

        Events that both buffer stay in the live pipeline as they were decoded here: the live pipeline may have decoded
        them before some policies were added.

        Returns:
            The events that only this reading still buffers. None while the live pipeline buffers events that are not
            here: they were passed on here, or are no longer in the log.
        """
        ours, theirs = self._held, self._live._held
        if theirs.oldest <= self._only_live_until:
            return None
        events = ours.take()
        shared, self._only_live_until = theirs.update_from(events)
        has_all = self._only_live_until == -math.inf
        ours.add(events.take(~shared) if has_all else events)
        return self.flush() if has_all else None


# --- States for people ---


def describe_state(state: State) -> State:
    """Describe a state of a pipeline by values that JSON has.

    Returns:
        `waiting`: a row per buffer that is not empty, with `what`, `count`, `oldest` and `newest` (epoch seconds;
        None without times) and `bytes`. `watermark`: the event time up to which everything has come, None if
        events count as they arrive. `released_early`: the number of events released before the watermark.
        `rewards`, `scores`: the counts of separate rewards and scores by outcome.
    """
    order = state[ORDER]
    watermark = order.get("watermark", -math.inf)
    stores = [(order.get("rewards"), REWARD_BUFFERS), (order.get("scores"), SCORE_BUFFERS)]
    held = [EventBatch.from_state(events).timestamp for events in order["held"]]
    waiting = [_described("buffered events", order["held"], held)]
    for store, buffers in stores:
        for name, what in buffers.items() if store else ():
            runs = from_plain(store[name]["runs"])
            waiting.append(_described(what, store[name], [run["timestamp"] for run in runs]))
    for name, what in ID_BUFFERS.items():
        if state[name] is not None:
            ids = from_plain(state[name]["remembered"])
            waiting.append({"what": what, "count": len(ids), "oldest": None, "newest": None, "bytes": ids.nbytes})
    return {
        "waiting": [row for row in waiting if row["count"]],
        "watermark": watermark if math.isfinite(watermark) else None,
        "released_early": order.get("released_early", 0),
        **{name: order.get(name) and order[name]["counts"] for name in ("rewards", "scores")},
    }


def _described(what: str, buffer: Any, times: Sequence[Array]) -> State:
    """Describe a buffer of entries with these times."""
    all_times = np.concatenate([[], *times])
    oldest, newest = (float(all_times.min()), float(all_times.max())) if len(all_times) else (None, None)
    return {"what": what, "count": len(all_times), "oldest": oldest, "newest": newest, "bytes": bytes_in(buffer)}


def _decoded(decoder: Decoder, values: Sequence[bytes | None], origin: Origin) -> EventBatch:
    """Decode messages, long ones a few at a time, as Python values take many times the memory of their columns."""
    ends = np.cumsum([0, *(len(value or b"") for value in values)]) // MAX_DECODED_BYTES
    starts: list[int] = [0, *(np.flatnonzero(np.diff(ends[:-1])) + 1).tolist()]
    if len(starts) == 1:
        return decoder.decode_batch(values, origin)
    batches = []
    for start, stop in pairwise([*starts, len(values)]):
        batch = decoder.decode_batch(values[start:stop], origin.take(slice(start, stop)))
        rejected = [structs.replace(message, place=message.place + start) for message in batch.rejected]
        batches.append(replace(batch, rejected=tuple(rejected)))
    return EventBatch.concat(batches)


def _origin(records: Sequence[Records]) -> Origin:
    return Origin.from_parts(records[0].topic, [(part.partition, part.offsets) for part in records])


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
