"""From messages to the events that count: decoded, without duplicates, in the order of time, with their rewards."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol, TypeVar

import numpy as np

from streameval.common.arrays import State
from streameval.events import EventBatch, RewardBatch, RewardDecoder
from streameval.events.origin import Origin
from streameval.ingest.base import Records, SourceStatus, TopicPartition
from streameval.ingest.settings import FileSettings, KafkaSettings, SimulatedSettings
from streameval.ingest.stages import Deduplication, EventTimeOrder, RewardCounts, RewardJoin


@dataclass(frozen=True, slots=True)
class BufferStatus:
    """Events that wait for their turn, or for their rewards.

    `watermark`: the time (epoch seconds) before which nothing is waited for any more; None before there is one.
    `hurried`: events that were passed on before their time because memory was full. `rewards`: what has become of those
    that came apart. Both count since the state began. `window`: seconds that an event waits for its rewards.
    """

    events: int
    watermark: float | None = None
    hurried: int = 0
    rewards: RewardCounts | None = None
    window: float = 0.0


FAR = 366 * 86400.0  # seconds
B = TypeVar("B", EventBatch, RewardBatch)


class Decoder(Protocol):
    """Turns message values into columns, e.g. `streameval.events.JsonDecoder`."""

    def decode_batch(self, values: Iterable[bytes | None], origin: Origin | None = None) -> EventBatch: ...


@dataclass(frozen=True)
class PipelineSettings:
    """What lies between decoding and counting. `topic`: that of the decisions. `kafka`: what is configured of a topic.

    `duplicates`: ids that are remembered. `reward_field`: of rewards that come apart. `reward_range`: what they may be
    when they have been joined; None = anything.
    """

    duplicates: int = 0
    kafka: KafkaSettings | None = None
    reward_field: str = "reward"
    reward_range: tuple[float, float] | None = None

    @classmethod
    def of(
        cls,
        settings: KafkaSettings | FileSettings | SimulatedSettings,
        reward_field: str,
        reward_range: tuple[float, float] | None = None,
    ) -> PipelineSettings:
        """Those that a source needs."""
        kafka = settings if isinstance(settings, KafkaSettings) else None
        return cls(getattr(settings, "duplicates", 0), kafka, reward_field, reward_range)

    def merging(self, partitions: int) -> EventTimeOrder | RewardJoin | None:
        """What merges so many partitions, or decisions and rewards; None where events count as they arrive."""
        kafka = self.kafka
        if kafka is None:
            return None
        patience: dict[str, Any] = {"max_lateness": kafka.max_lateness, "idle_timeout": kafka.idle_timeout}
        patience["most_bytes"] = kafka.held_max_bytes
        if kafka.rewards is not None:
            late = kafka.rewards
            how: dict[str, Any] = {"window": late.window, "default": late.default, "combine": late.combine}
            return RewardJoin(kafka.topic, late.topic, **how, **patience)
        by_time = kafka.order == "event_time" or (kafka.order is None and partitions > 1)
        return EventTimeOrder(kafka.topic, **patience) if by_time else None


PLAIN = PipelineSettings()


class EventPipeline:
    """Turns what a source hands out into the events that are to be counted now.

    It is a value: `state()` is all that it remembers and all events that it holds back. Whether partitions are merged,
    where that is not configured, is decided when they are first known.

    Duplicates are looked for as events come, and once more in the order of time where partitions are merged: who comes
    later reads one partition far before another, and copies in both would be too far apart.
    """

    def __init__(self, events: Decoder, stages: PipelineSettings = PLAIN) -> None:
        self.events, self._stages = events, stages
        self._duplicates = Deduplication(stages.duplicates) if stages.duplicates else None
        self._copies: Deduplication | None = None
        self._merging: EventTimeOrder | RewardJoin | None = None
        self._decided, self._passing_on = stages.kafka is None, False
        rewards = None if stages.kafka is None else stages.kafka.rewards
        self._rewards = RewardDecoder(stages.reward_field) if rewards is not None else None
        self._reward_topic = None if rewards is None else rewards.topic

    def fresh(self) -> EventPipeline:
        """One that has seen nothing, and does the same."""
        other = EventPipeline(self.events, self._stages)
        if self._decided:
            other._decide(2 if self._merging is not None else 1)
        return other

    def decode_with(self, events: Decoder) -> None:
        """From now on, read messages so."""
        self.events = events

    @property
    def by_time(self) -> bool:
        """Whether events wait for their turn: `take` is then to be called also when nothing has come."""
        return self._merging is not None

    def take(self, records: Sequence[Records], status: SourceStatus, now: float = math.inf) -> EventBatch:
        """The events that are to be counted now that these have come, and what was rejected on the way.

        `status`: of the source, after the records. `now`: seconds since 1970. Where time gives the order, ten events in
        a row from the next century would make all that follow in their partition too late, for good: what is dated more
        than `FAR` after now is rejected as `too_early`.
        """
        places = [(part.topic, part.partition) for part in status.partitions]
        if not self._decided and places:
            self._decide(len(places))
        if self._merging is None:
            return self._decoded(records)
        if self._passing_on:
            held, self._merging = self._checked(self._merging.flush()), None
            return EventBatch.concat([held, self._decoded(records)])
        self._merging.expect(places)
        passed = [self._time_passes(status)]
        decisions = [part for part in records if part.topic != self._reward_topic]
        if decisions:
            passed.append(self._merging.take(_of_our_time(self._decoded(decisions), now)))
        if isinstance(self._merging, RewardJoin) and self._rewards is not None:
            for part in records:
                if part.topic == self._reward_topic:
                    origin = Origin.of(part.topic, [(part.partition, part.offsets)])
                    rewards = self._rewards.decode_batch(part.values, origin)
                    passed.append(self._merging.take_rewards(_of_our_time(rewards, now)))
        return self._checked(EventBatch.concat(passed))

    def _checked(self, merged: EventBatch) -> EventBatch:
        """The merged events without copies of those before, and without those whose joined rewards cannot be."""
        if isinstance(self._merging, RewardJoin) and self._stages.reward_range is not None:
            merged = merged.with_rewards_in(*self._stages.reward_range)
        return merged if self._copies is None or not len(merged) else self._copies.take(merged)

    def ahead(self) -> Collection[TopicPartition]:
        """Partitions that are so far ahead of the others that they must not be read on for now."""
        return () if self._merging is None else self._merging.ahead()

    def forget(self, policies: Collection[str]) -> None:
        """What is held back tells nothing of these policies, which are others from now on."""
        if self._merging is not None:
            self._merging.waiting.forget(policies)

    def held_beyond(self, other: EventPipeline) -> EventBatch:
        """The events that are held back here and not by the other one, which has read the same.

        What both hold back, the other one then holds as it was decoded here: it may have been read there before the
        policies were asked for that it is now to tell of.
        """
        if self._merging is None or other._merging is None:
            return EventBatch.concat([])
        other._merging.waiting.renew(self._merging.waiting)
        held = self._merging.flush()
        there = _held_in(other.state())
        kept = [row for row in range(len(held)) if held.origin is None or held.origin.place(row) not in there]
        return self._checked(held.take(np.array(kept, dtype=np.int64)))

    def holding(self) -> BufferStatus | None:
        """What is held back, for people and metrics; None where nothing ever is."""
        merging = self._merging
        if merging is None:
            return None
        held = BufferStatus(merging.held, getattr(merging, "watermark", None), getattr(merging, "hurried", 0))
        return replace(held, rewards=merging.counts, window=merging.window) if isinstance(merging, RewardJoin) else held

    def state(self) -> State:
        """All that is remembered and held back, as a plain value."""
        return {
            "decided": self._decided,
            "duplicates": None if self._duplicates is None else self._duplicates.state(),
            "copies": None if self._copies is None else self._copies.state(),
            "merging": None if self._merging is None else self._merging.state(),
        }

    @classmethod
    def from_state(cls, state: State, events: Decoder, stages: PipelineSettings = PLAIN) -> EventPipeline:
        """Go on from a state, with the settings of today.

        Where events no longer wait for their turn, those that do are passed on with the next ones.
        """
        intake = cls(events, stages)
        if intake._duplicates is not None and state["duplicates"] is not None:
            intake._duplicates.restore(state["duplicates"])
        if not state["decided"]:
            return intake
        merged = state["merging"] is not None
        intake._decide(2 if merged else 1)
        if merged and intake._merging is None and stages.kafka is not None:
            intake._merging = replace(stages, kafka=stages.kafka.model_copy(update={"order": "event_time"})).merging(2)
            intake._passing_on = True
        if merged and intake._merging is not None:
            intake._merging.restore(state["merging"])
        if intake._copies is not None and state.get("copies") is not None:
            intake._copies.restore(state["copies"])
        return intake

    def _decide(self, partitions: int) -> None:
        self._decided, self._merging = True, self._stages.merging(partitions)
        if self._merging is not None and self._stages.duplicates:
            self._copies = Deduplication(self._stages.duplicates)

    def _decoded(self, records: Sequence[Records]) -> EventBatch:
        values = chain.from_iterable(part.values for part in records)
        if self._duplicates is None and self._merging is None:
            return self.events.decode_batch(values)
        topic = records[0].topic if records else ""
        origin = Origin.of(topic, [(part.partition, part.offsets) for part in records])
        batch = self.events.decode_batch(values, origin)
        return batch if self._duplicates is None else self._duplicates.take(batch)

    def _time_passes(self, status: SourceStatus) -> EventBatch:
        """What is due because nothing waits in some partitions, as it was known before these records came."""
        ended = {(part.topic, part.partition): part.ended_at for part in status.partitions}
        known = {place: at for place, at in ended.items() if at is not None}
        return EventBatch.concat([]) if self._merging is None else self._merging.rest(known)


def _of_our_time(batch: B, now: float) -> B:
    def detail(row: int) -> str:
        return f"timestamp: {batch.timestamp[row]:.0f} is more than a year from now"

    return batch.reject(batch.timestamp > now + FAR, "too_early", detail)


def _held_in(state: Mapping[str, Any]) -> set[tuple[str, int, int]]:
    batch = EventBatch.concat(map(EventBatch.from_state, state["merging"]["held"]))
    return set() if batch.origin is None else {batch.origin.place(row) for row in range(len(batch))}
