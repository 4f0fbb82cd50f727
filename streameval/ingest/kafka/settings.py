"""Configure Kafka as a source of events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import AwareDatetime, BaseModel, Discriminator, Field, Tag, TypeAdapter

from streameval.errors import InputError
from streameval.events.records import RecordDecoder
from streameval.events.tables import ColumnNames
from streameval.ingest.base import (
    JSON_FORMATS,
    BackfillReader,
    BackfillStart,
    D,
    Offsets,
    Source,
    SourceOffsets,
    TopicPartition,
    WireFormat,
)
from streameval.ingest.joined import JoinedSettings
from streameval.ingest.kafka.connection import KafkaTopic
from streameval.ingest.kafka.formats import (
    ArrowFormat,
    AvroFormat,
    DescribedProtobuf,
    GlueFormat,
    ProtobufFormat,
    RegistryFormat,
)

if TYPE_CHECKING:
    from streameval.ingest.kafka.protobuf import DescribedReader
    from streameval.ingest.kafka.schemas import SchemaReader


def _kind_of_format(value: Any) -> str:
    """Return which member of the union of formats a value is."""
    keys = value if isinstance(value, Mapping) else type(value).model_fields if isinstance(value, BaseModel) else ()
    named = {"descriptor": "described", "schemas": "glue"}
    return "name" if isinstance(value, str) else next((named[key] for key in named if key in keys), "mapping")


def reader_of(settings: AvroFormat | ProtobufFormat | GlueFormat | DescribedProtobuf) -> SchemaReader | DescribedReader:
    """Return the reader of a format.

    Raises:
        InputError: The libraries that it needs are not installed, or a file does not have the schema.
    """
    try:
        if settings.kind == "avro":
            from streameval.ingest.kafka.avro import AvroReader, GlueAvroReader  # an extra, as the ones below

            return GlueAvroReader(settings) if isinstance(settings, GlueFormat) else AvroReader(settings)
        from streameval.ingest.kafka.protobuf import DescribedReader, GlueProtobufReader, ProtobufReader
    except ImportError as error:
        message = f"source.format: {settings.kind} needs a package that is not installed: {error}"
        raise InputError(message, hint=f"pip install 'streameval[{settings.kind}]'") from error
    if isinstance(settings, GlueFormat):
        return GlueProtobufReader(settings)
    return DescribedReader(settings) if isinstance(settings, DescribedProtobuf) else ProtobufReader(settings)


class KafkaSettings(KafkaTopic, JoinedSettings):
    """Read events from a Kafka topic, alone or with topics of rewards and of candidates' probabilities."""

    kind: Literal["kafka"] = "kafka"
    format: Annotated[
        Annotated[Literal["json", "dsjson"], Tag("name")]
        | Annotated[Annotated[ArrowFormat | AvroFormat | ProtobufFormat, Field(discriminator="kind")], Tag("mapping")]
        | Annotated[DescribedProtobuf, Tag("described")]
        | Annotated[GlueFormat, Tag("glue")],
        Discriminator(_kind_of_format),
    ] = Field(
        "json",
        description=f"{JSON_FORMATS}; or {{kind: arrow}}, batches of events in Arrow, also among "
        "JSON; or avro or protobuf with a schema registry, e.g. {{kind: avro, registry: URL}}; "
        "or protobuf with a file of schemas, {kind: protobuf, descriptor: FILE, message: NAME}; "
        "or either in the frame of AWS Glue with a folder of schemas, {kind: avro, schemas: FOLDER}.",
    )

    @property
    def decisions_topic(self) -> str:
        return self.topic

    @property
    def topics(self) -> tuple[str, ...]:
        return self.log_topics

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
    def reads_schema_ids(self) -> bool:
        return isinstance(self.format, RegistryFormat)

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
