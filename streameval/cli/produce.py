"""Send the events of a file as messages, without those that an evaluator would reject."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import typer

from streameval.cli.replay import config_for
from streameval.cli.terminal import progress_of_bytes, say, silence_logs, warn
from streameval.common.text import counted
from streameval.config.model import Config
from streameval.errors import InputError, missing_package
from streameval.events import EventBatch, Fault, JsonDecoder, RankingDecoder
from streameval.events.defects import Rejections
from streameval.events.fields import FieldNames
from streameval.events.origin import Origin
from streameval.ingest.files.lines import TABLES, table_format
from streameval.ingest.files.remote import expand
from streameval.ingest.files.source import Advance, read_records
from streameval.ingest.files.tables import read_rows
from streameval.ingest.kafka.connection import KafkaConnection
from streameval.ingest.kafka.formats import ArrowFormat
from streameval.ingest.kafka.producer import produce
from streameval.ingest.kafka.settings import KafkaSettings

__all__ = ["destination", "messages", "run_produce"]

Batch: TypeAlias = tuple[Sequence[bytes], Callable[[], EventBatch]]
"""Messages, and a function that decodes them as an evaluator would."""


def run_produce(
    file: str,
    topic: str | None,
    config_path: Path | None,
    candidates: str | None,
    events_format: str | None,
    connection: Mapping[str, Any],
    *,
    partitions: int,
    validate: bool,
    batch: int,
) -> None:
    """Send a file of events to a topic, up to `batch` in a message, and print what was sent and left out.

    Raises:
        InputError: An option or the file cannot be used.
        SourceError: The cluster does not take the messages.
        typer.Exit: Some events were left out.
    """
    silence_logs()
    config = None
    if config_path is not None:
        config = Config.load(config_path)
        warn(config)
    elif candidates is not None:
        config = config_for(candidates, file, events_format)
    pack = _packer(config, topic, events_format, batch) if batch > 1 else None
    cluster, topic = destination(config, topic, connection)
    rejections, numbers = Rejections(), count()
    with progress_of_bytes() as advance:
        found = rejections if validate else None
        read = chain.from_iterable(messages(one, config, events_format, advance, found) for one in expand([file]))
        values = (value for value, _ in zip(read, numbers, strict=False))  # numbers the events that are sent
        sent = produce(pack(values) if pack else values, topic, cluster, partitions=partitions)
    events = next(numbers)
    for line in rejections.lines(events):
        say(line)
    packed = f" in {counted(sent, 'message')}" if pack else ""
    say(f"{counted(events, 'event')} sent{packed} to {topic} at {cluster.address}")
    if rejections:
        raise typer.Exit(1)


def _packer(
    config: Config | None, topic: str | None, events_format: str | None, batch: int
) -> Callable[[Iterable[bytes]], Iterator[bytes]]:
    """Return a function that packs events in Arrow messages, and leaves events that are no table as JSON.

    Args:
        config: reads the topic, if it is the one in its source
        topic: replaces the topic
        events_format: format of the file, if it is given
        batch: maximum number of events in a message

    Raises:
        InputError: pyarrow is not installed, or the messages could not be read.
    """
    source = config.source if config is not None else None
    if (
        isinstance(source, KafkaSettings)
        and topic in (None, source.topic)
        and not isinstance(source.format, ArrowFormat)
    ):
        hint = "write `format: {kind: arrow}` in source, which reads JSON, too"
        raise InputError("--batch writes messages that the configuration does not read", hint=hint)
    if events_format == "dsjson":
        raise InputError("--batch takes no decision logs of Vowpal Wabbit", hint="leave --batch out")
    try:
        from streameval.event_logger.packing import pack
        from streameval.event_logger.sinks import Message
    except ImportError as error:
        raise missing_package("--batch", "pyarrow", "columnar") from error

    def packed(values: Iterable[bytes]) -> Iterator[bytes]:
        rest = iter(values)
        while some := [Message("decision", "", value) for value in islice(rest, batch)]:
            yield from (message.value for message, _ in pack(some))

    return packed


def destination(config: Config | None, topic: str | None, changes: Mapping[str, Any]) -> tuple[KafkaConnection, str]:
    """Return where to send messages.

    Args:
        config: gives the connection and the topic, if its source is Kafka, or None for a local broker
        topic: replaces the topic
        changes: options of the connection to replace, unless None

    Raises:
        InputError: Neither the configuration nor `topic` names a topic.
    """
    source = config.source if config is not None else None
    options = source.model_dump(include=set(KafkaConnection.model_fields)) if isinstance(source, KafkaSettings) else {}
    options |= {name: value for name, value in changes.items() if value is not None}
    connection = KafkaConnection.model_validate(options)
    topic = topic or (source.topic if isinstance(source, KafkaSettings) else None)
    if topic is None:
        raise InputError("no topic is named", hint="name it after the file, or use --config with a Kafka source")
    return connection, topic


def messages(
    file: str, config: Config | None, written: str | None, advance: Advance, rejections: Rejections | None
) -> Iterator[bytes]:
    """Yield the lines of a file as messages, or the rows of a table as JSON with the names in `columns`.

    In a table without ids, the id of a row is its number. In a table without times, its time is now.

    Args:
        file: NDJSON or CSV (plain or compressed), Parquet or Arrow, or `-` for stdin
        config: names columns, rewards and candidates. None accepts any in lines
        written: format of the file, by default from its extension, else from the configuration, else `json`
        advance: is called with the bytes read so far and the total
        rejections: counts the events that an evaluator would reject, which are left out, or None to send them too

    Raises:
        InputError: The file cannot be read, or lacks a required column.
    """
    written = written or table_format(file) or (config.written_to_files if config else "json")
    read = _rows if written in TABLES else _lines
    for values, decode in read(file, config, written, advance):
        left_out = set[int]()
        if rejections is not None:
            rejected = decode().rejected
            rejections.add(rejected)
            left_out = {event.place for event in rejected}
        yield from (value for index, value in enumerate(values) if value and index not in left_out)


def _lines(file: str, config: Config | None, written: str, advance: Advance) -> Iterator[Batch]:
    decoder = None if config is None else config.event_format(written)
    for lines in read_records([file], advance=advance):
        values = [value or b"" for value in lines.values]
        decoder = decoder or _decoder_of(values)
        yield values, partial(decoder.decode_batch, values, Origin.from_parts(file, [(0, lines.offsets)]))


def _rows(file: str, config: Config | None, written: str, advance: Advance) -> Iterator[Batch]:
    if config is None:
        hint = "add --candidates with their names, or --config with a configuration"
        raise InputError(f"{file} is a table, and no column of a candidate is named", hint=hint)
    decoder, first, name = config.event_format("json"), 1, Path(file).name
    names = FieldNames.from_columns(config.columns, [reward.field for reward in config.reward_fields])
    for table_rows in read_rows(file, written, config.columns, decoder, advance):
        origin = Origin.from_parts(file, [(0, range(first, first + len(table_rows)))])
        rows = [
            row if isinstance(row, Fault) else {"event_id": f"{name}:{number}", "timestamp": time.time(), **row}
            for number, row in enumerate(table_rows, first)
        ]
        first += len(rows)
        yield [_encode(row, names) for row in rows], partial(decoder.decode_rows, rows, origin)


def _decoder_of(values: Sequence[bytes]) -> JsonDecoder:
    """Return the decoder for the form of the first event."""
    for value in values:
        try:
            event = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, ValueError):
            continue
        return RankingDecoder() if "ranking" in event and "action" not in event else JsonDecoder()
    return JsonDecoder()


def _encode(row: Any, names: FieldNames) -> bytes:
    if isinstance(row, Fault):
        return b""
    record = names.record(row)
    return msgspec.json.encode({field: value for field, value in record.items() if value is not None})
