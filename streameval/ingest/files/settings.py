"""The settings of files as the source of events, and of tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from streameval.errors import InputError
from streameval.ingest.base import (
    DEDUPE_WINDOW,
    BackfillStart,
    DedupeWindow,
    Source,
    SourceOffsets,
    SourceSettings,
    StrictModel,
    TopicPartition,
    WireFormat,
)

if TYPE_CHECKING:
    from streameval.ingest.backfill_reader import BackfillReader


class FileSettings(SourceSettings):
    """Files of events as the source.

    >>> FileSettings(path="log.ndjson.gz").path
    ['log.ndjson.gz']
    """

    kind: Literal["file"] = "file"
    path: Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)] = Field(
        min_length=1, description="The files, read one after another; `-` is standard input."
    )
    format: WireFormat = Field(default="json", description="How events are encoded: json, or dsjson (Vowpal Wabbit).")
    follow: bool = Field(default=False, description="Wait for more lines at the end of the last file.")
    on_lost_offsets: Literal["continue", "fail"] = Field(
        default="continue",
        description="When a file is not the one that was read before: count that and read all of it, or stop.",
    )
    duplicates: DedupeWindow = Field(default=0, description=DEDUPE_WINDOW)

    @model_validator(mode="after")
    def _each_file_once(self) -> FileSettings:
        twice = [path for place, path in enumerate(self.path) if path in self.path[:place]]
        if twice:
            raise ValueError(f"expected each file once, and {twice[0]} is listed twice")
        return self

    @property
    def description(self) -> str:
        return f"file, {', '.join(self.path)}{', followed' if self.follow else ''}"

    def identity(self) -> dict[str, Any]:
        return {"kind": self.kind, "path": self.path, "format": self.format}

    def open(self, offsets: SourceOffsets | None = None) -> Source:
        from streameval.ingest.files.source import FileSource

        return FileSource(self.path, follow=self.follow, offsets=offsets, on_lost=self.on_lost_offsets)

    @property
    def wire_format(self) -> WireFormat:
        return self.format

    @property
    def dedupe_window(self) -> int:
        return self.duplicates

    def backfill_start(self, text: str) -> BackfillStart:
        if "-" in self.path:
            raise InputError("standard input cannot be read a second time", hint="leave --backfill out, or name a file")
        return super().backfill_start(text)

    def open_backfill(self, start: BackfillStart, live: Mapping[TopicPartition, int]) -> BackfillReader:
        from streameval.ingest.backfill_reader import BackfillReader

        return BackfillReader(self.open(), start if isinstance(start, int) else 0, ends_are_certain=True)


class ColumnNames(StrictModel):
    """Which column of a table (Parquet, CSV) holds which field. A column named like its field may be absent."""

    event_id: str | None = Field(default=None, description="What identifies an event; without it, rows are numbered.")
    timestamp: str = Field(
        default="timestamp", description="The time of the decision: UTC if it has no zone, or seconds since 1970."
    )
    action: str = Field(default="action", description="The chosen action.")
    propensity: str = Field(default="propensity", description="The logging policy's probability of the action.")
    reward: str | None = Field(default=None, description="The reward; by default the column named like its field.")
    sampling_probability: str = Field(
        default="sampling_probability", description="The probability with which a downsampled log kept the event."
    )
    unit: str = Field(default="unit", description="The user or session that the event belongs to.")
    actions: str = Field(default="actions", description="The list of actions to choose from.")
    propensities: str = Field(default="propensities", description="The list of the logging policy's probabilities.")
    features: str = Field(default="features", description="The list of the features of each action.")
    context: str = Field(default="context", description="What was known at decision time.")
    policies: dict[str, str] = Field(
        default={}, description="By policy, the column of its probability or probabilities; by default its own name."
    )
