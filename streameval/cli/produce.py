"""The verb `produce`: the events of a file as messages, without those that an evaluator would reject."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from streameval.cli.log_warnings import Rejections
from streameval.config.model import Config
from streameval.errors import InputError
from streameval.events import EventBatch, Fault, JsonDecoder, RankingDecoder
from streameval.events.origin import Origin
from streameval.ingest.files.lines import table_format
from streameval.ingest.files.source import Advance, read_records
from streameval.ingest.files.tables import read_rows
from streameval.ingest.kafka.connection import KafkaConnection
from streameval.ingest.kafka.settings import KafkaSettings

__all__ = ["FileMessages", "connection_of"]


def connection_of(config: Config | None, topic: str | None, changes: Mapping[str, Any]) -> tuple[KafkaConnection, str]:
    """The connection and the topic of a configuration, with changes that are not None; by default, a local broker.

    Raises:
        InputError: Neither the configuration nor `topic` names a topic.
    """
    source = config.source if config is not None else None
    given = source.model_dump(include=set(KafkaConnection.model_fields)) if isinstance(source, KafkaSettings) else {}
    connection = KafkaConnection.model_validate(given | {k: v for k, v in changes.items() if v is not None})
    topic = topic or (source.topic if isinstance(source, KafkaSettings) else None)
    if topic is None:
        raise InputError("no topic is named", hint="name it after the file, or use --config with a Kafka source")
    return connection, topic


class FileMessages:
    """The messages of a file of events: its lines, or the rows of a table as JSON.

    A table without a column of ids gives each row its number as its id; one without a column of times, the time of now.

    Args:
        file: NDJSON or CSV, plain, gzip or zstd, or Parquet; `-` is standard input
        config: has the names of columns, the reward and the candidates; None = lines may hold any candidates and reward
        written: the format of the file; by default from its suffix, else that of the configuration, else `json`
        is_validated: leave out events that an evaluator rejects; `rejections` counts them
    """

    def __init__(self, file: str, config: Config | None, written: str | None, *, is_validated: bool = True) -> None:
        self._file, self._config, self._is_validated = file, config, is_validated
        self._written = written or table_format(file) or (config.written_to_files if config else "json")
        self.rejections = Rejections()

    def read(self, advance: Advance) -> Iterator[bytes]:
        """Yield the messages; `advance` is called with the bytes read so far and in all.

        Raises:
            InputError: The file cannot be read, or lacks a required column.
        """
        if self._written in ("csv", "parquet"):
            yield from self._of_table(advance)
            return
        decoder = None if self._config is None else self._config.event_format(self._written)
        for lines in read_records([self._file], advance=advance):
            values = [value or b"" for value in lines.values]
            decoder = decoder or _decoder_of(values)
            origin = Origin.of(self._file, [(0, lines.offsets)])
            yield from self._accepted(values, decoder.decode_batch(values, origin) if self._is_validated else None)

    def _of_table(self, advance: Advance) -> Iterator[bytes]:
        if self._config is None:
            hint = "add --candidates with their names, or --config with a configuration"
            raise InputError(f"{self._file} is a table, and no column of a candidate is named", hint=hint)
        columns, decoder = self._config.columns, self._config.event_format("json")
        first, name = 1, Path(self._file).name
        for given in read_rows(self._file, self._written, columns, decoder, advance):
            origin = Origin.of(self._file, [(0, range(first, first + len(given)))])
            rows = [
                row if isinstance(row, Fault) else {"event_id": f"{name}:{number}", "timestamp": time.time(), **row}
                for number, row in enumerate(given, first)
            ]
            first += len(rows)
            batch = decoder.decode_rows(rows, origin) if self._is_validated else None
            yield from self._accepted(list(map(_encoded, rows)), batch)

    def _accepted(self, messages: Sequence[bytes], batch: EventBatch | None) -> Iterator[bytes]:
        """Yield the messages without empty ones and, with a batch, without those that it rejects."""
        left_out = set[int]()
        if batch is not None:
            self.rejections.add(batch.rejected)
            left_out = {rejected.place for rejected in batch.rejected}
        yield from (message for place, message in enumerate(messages) if message and place not in left_out)


def _decoder_of(values: Sequence[bytes]) -> JsonDecoder:
    """The decoder of the form that the first event among these lines has."""
    for value in values:
        try:
            event = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, ValueError):
            continue
        return RankingDecoder() if "ranking" in event and "action" not in event else JsonDecoder()
    return JsonDecoder()


def _encoded(row: Any) -> bytes:
    if isinstance(row, Fault):
        return b""
    return msgspec.json.encode({field: value for field, value in row.items() if value is not None})
