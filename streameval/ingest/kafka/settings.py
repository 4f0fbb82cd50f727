"""Configure Kafka as a source of events."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from pydantic import AwareDatetime, Discriminator, Field, PositiveInt, Tag, TypeAdapter, model_validator

from streameval.common.text import Seconds
from streameval.errors import InputError
from streameval.events.records import RecordDecoder
from streameval.events.tables import ColumnNames
from streameval.ingest.base import (
    JSON_FORMATS,
    BackfillReader,
    BackfillStart,
    CandidatesTopic,
    D,
    JoinedTopic,
    LogSettings,
    Offsets,
    RewardTopic,
    Source,
    SourceOffsets,
    TopicPartition,
    WireFormat,
)
from streameval.ingest.kafka.connection import KafkaTopic
from streameval.ingest.kafka.formats import ArrowFormat, AvroFormat, DescribedProtobuf, ProtobufFormat
from streameval.ingest.stages import EventOrder, RewardStore

if TYPE_CHECKING:
    from streameval.ingest.kafka.protobuf import DescribedReader
    from streameval.ingest.kafka.registry import SchemaReader


def _kind_of_format(value: Any) -> str:
    """Return which member of the union of formats a value is."""
    is_described = isinstance(value, DescribedProtobuf) or (isinstance(value, Mapping) and "descriptor" in value)
    return "name" if isinstance(value, str) else "described" if is_described else "mapping"


def reader_of(settings: AvroFormat | ProtobufFormat | DescribedProtobuf) -> SchemaReader | DescribedReader:
    """Return the reader of a format.

    Raises:
        InputError: The libraries that it needs are not installed, or a file does not have the schema.
    """
    try:
        if settings.kind == "avro":
            from streameval.ingest.kafka.avro import AvroReader  # an extra, as the two below

            return AvroReader(settings)
        from streameval.ingest.kafka.protobuf import DescribedReader, ProtobufReader
    except ImportError as error:
        message = f"source.format: {settings.kind} needs a package that is not installed: {error}"
        raise InputError(message, hint=f"pip install 'streameval[{settings.kind}]'") from error
    return DescribedReader(settings) if isinstance(settings, DescribedProtobuf) else ProtobufReader(settings)


class KafkaSettings(KafkaTopic, LogSettings):
    """Read events from a Kafka topic, alone or with topics of rewards and of candidates' probabilities."""

    keeps_position: ClassVar[bool] = True

    kind: Literal["kafka"] = "kafka"
    format: Annotated[
        Annotated[Literal["json", "dsjson"], Tag("name")]
        | Annotated[Annotated[ArrowFormat | AvroFormat | ProtobufFormat, Field(discriminator="kind")], Tag("mapping")]
        | Annotated[DescribedProtobuf, Tag("described")],
        Discriminator(_kind_of_format),
    ] = Field(
        "json",
        description=f"{JSON_FORMATS}; or {{kind: arrow}}, batches of events in Arrow, also among "
        "JSON; or avro or protobuf with a schema registry, e.g. {{kind: avro, registry: URL}}; "
        "or protobuf with a file of schemas, {kind: protobuf, descriptor: FILE, message: NAME}.",
    )
    order: Literal["event_time", "arrival"] | None = Field(
        None,
        description="Merge partitions by event time, or take events as they arrive; the default is event_time if "
        "the topic has several partitions when it is first read.",
    )
    max_lateness: Seconds = Field(
        5.0,
        description="How long an event waits for earlier events of its partition. Events that are later still "
        "count at once, out of order.",
    )
    idle_timeout: Seconds = Field(
        10.0, description="How much longer events of other partitions wait for an idle partition."
    )
    max_ahead: Seconds = Field(
        300.0,
        description="How far an event may be dated ahead of this machine's clock; later ones count as events of now.",
    )
    held_max_bytes: PositiveInt = Field(
        128 * 2**20, description="Memory for buffered events; beyond it, partitions that are ahead are not read."
    )
    stall_after: Seconds = Field(
        600.0,
        description="/livez fails once no broker has answered, or unread messages have not come, for this long, so "
        "that the process is restarted. New clients are made long before.",
    )
    rewards: RewardTopic | None = Field(
        None, description="A topic of delayed rewards in JSON, joined to their decisions by event_id."
    )
    candidates: CandidatesTopic | None = Field(
        None,
        description="A topic of probabilities in JSON that production does not log, joined to decisions by event_id.",
    )

    @model_validator(mode="after")
    def _topics_can_be_joined(self) -> KafkaSettings:
        if len(set(self.topics)) < len(self.topics):
            own = ", each in its own" if len(self.topics) > 2 else ""
            raise ValueError(f"{self._joined} must be in another topic than the decisions{own}")
        if self._joined and self.order == "arrival":
            raise ValueError(f"{self._joined} are joined in event time: order cannot be arrival")
        return self

    @property
    def _joined(self) -> str:
        """Return what is joined to decisions, for people."""
        names = {"rewards": self.rewards, "candidates": self.candidates}
        return " and ".join(name for name, topic in names.items() if topic is not None)

    @property
    def longest_wait(self) -> float:
        return self.stall_after

    @property
    def description(self) -> str:
        return f"kafka, topic {self.topic} at {self.address}, from {self.start}"

    @property
    def name(self) -> str:
        return self.topic

    def identity(self) -> dict[str, Any]:
        options = {"kind": self.kind, "topic": self.topic, "format": self.wire_format}
        for name, topic in (("rewards", self.rewards), ("candidates", self.candidates)):
            joined = {} if topic is None else topic.model_dump(mode="json", exclude={"columns"})
            options |= {f"{name}.{key}": value for key, value in joined.items()}
        return options

    def open(self, offsets: SourceOffsets | None = None) -> Source:
        from streameval.ingest.kafka.source import KafkaSource, MultiSource

        saved = offsets or {}
        sources = [KafkaSource(self.model_copy(update={"topic": topic}), saved.get(topic)) for topic in self.topics]
        return MultiSource(sources) if len(sources) > 1 else sources[0]

    @property
    def wire_format(self) -> WireFormat:
        form = self.format
        return form if isinstance(form, str) else "json" if isinstance(form, ArrowFormat) else form.kind

    def record_decoder(self, columns: ColumnNames) -> Callable[..., RecordDecoder] | None:
        form = self.format
        return None if isinstance(form, str | ArrowFormat) else partial(RecordDecoder, reader_of(form), columns)

    def of_batches(self, decoder: D, columns: ColumnNames) -> D:
        if not isinstance(self.format, ArrowFormat):
            return decoder
        try:
            from streameval.events.arrow_messages import ArrowDecoder  # needs pyarrow
        except ImportError as error:
            message = f"source.format: arrow needs a package that is not installed: {error}"
            raise InputError(message, hint="pip install 'streameval[columnar]'") from error
        return cast(D, ArrowDecoder(decoder, columns))

    @property
    def clock_tolerance(self) -> float:
        return self.max_ahead

    @property
    def reward_topic(self) -> RewardTopic | None:
        return self.rewards

    @property
    def candidates_topic(self) -> CandidatesTopic | None:
        return self.candidates

    @property
    def topics(self) -> tuple[str, ...]:
        joined: tuple[JoinedTopic | None, ...] = (self.rewards, self.candidates)
        return (self.topic, *(topic.topic for topic in joined if topic is not None))

    def event_order(self, partitions: int) -> EventOrder | None:
        limits: dict[str, Any] = {"max_lateness": self.max_lateness, "max_bytes": self.held_max_bytes}
        rewards = (
            None if self.rewards is None else RewardStore(**self.rewards.model_dump(exclude={"columns"}), **limits)
        )
        joined: dict[str, Any] = {"default": math.nan, "combine": "first", "by_name": True, **limits}
        scores = None
        if self.candidates is not None:
            scores = RewardStore(self.candidates.topic, window=self.candidates.window, **joined)
        is_joined = rewards is not None or scores is not None
        if not is_joined and (self.order == "arrival" or (self.order is None and partitions == 1)):
            return None
        return EventOrder(self.topic, idle_timeout=self.idle_timeout, rewards=rewards, scores=scores, **limits)

    def for_check(self) -> KafkaSettings:
        return self.model_copy(update={"start": "earliest", "rewards": None, "candidates": None})

    def backfill_start(self, text: str) -> BackfillStart:
        if text == "earliest" or text.isdecimal():
            return super().backfill_start(text)
        try:
            return TypeAdapter(AwareDatetime).validate_python(text)
        except ValueError:
            hint = "write earliest, an offset such as 120000, or a time such as 2026-01-31T00:00:00Z"
            raise InputError(f"--backfill: found '{text}'", hint=hint) from None

    def open_backfill(self, start: BackfillStart, live: Mapping[TopicPartition, int]) -> BackfillReader:
        """Open a second reader from `start` to `live`. An offset applies to decisions, not to rewards."""
        if not isinstance(start, int):
            return BackfillReader(self.model_copy(update={"start": start}).open(), first_of=self.topic)
        positions = {partition: position for (topic, partition), position in live.items() if topic == self.topic}
        decisions = Offsets({partition: min(start, position) for partition, position in positions.items()})
        source = self.model_copy(update={"start": "earliest"}).open({self.topic: decisions})
        return BackfillReader(source, start, first_of=self.topic)
