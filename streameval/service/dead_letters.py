"""Write rejected messages with their reason and origin to a file or a topic, outside the loop."""

from __future__ import annotations

import base64
import errno
import os
import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import ClassVar

import msgspec
import structlog

from streameval.config.model import AnyDeadLetters, DeadLetterFile
from streameval.errors import InputError, without_secrets
from streameval.events import Rejected
from streameval.ingest.appended import open_to_append
from streameval.ingest.background import RetryError, Sink, Worker, WorkerStatus
from streameval.ingest.base import Records
from streameval.ingest.kafka.connection import KafkaConnection

MAX_BYTES = 32 * 2**20  # memory of the queue; further dead letters are dropped and counted
OWN_BYTES = 1024  # memory of a dead letter without its value and detail, at most
MAX_VALUE_BYTES = 512 * 1024  # a broker takes no more than a megabyte by default
BATCH_SIZE = 500
CLOSE_TIMEOUT, ABORT_TIMEOUT = 5.0, 2.0  # seconds to write the queue at the end, and then to abort a write

log = structlog.get_logger(__name__)
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Hold a rejected message.

    Args:
        reason: Reason of the rejection.
        detail: What is wrong, in words.
        topic: Topic of the message.
        partition: Partition of the message.
        offset: Offset of the message.
        timestamp: When the message was written, in milliseconds since 1970, None if its log does not record that.
        value: First bytes of the message, empty if it was rejected long after it was read.
        size: Bytes of the whole message.
    """

    key: ClassVar[None] = None
    """Key of the Kafka message."""

    reason: str
    detail: str
    topic: str
    partition: int
    offset: int
    timestamp: int | None
    value: bytes
    size: int

    @property
    def nbytes(self) -> int:
        """Return the memory that the dead letter takes, at most."""
        return OWN_BYTES + len(self.value) + sys.getsizeof(self.detail)

    @property
    def origin(self) -> dict[str, str | int | None]:
        """Return everything but the value."""
        names = ("reason", "detail", "topic", "partition", "offset", "timestamp", "size")
        return {name: getattr(self, name) for name in names}

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        """Return reason and origin as headers of a Kafka message."""
        return [(f"streameval.{name}", str(value).encode()) for name, value in self.origin.items() if value is not None]

    @property
    def line(self) -> bytes:
        """Return the dead letter as a line of JSON. A value that is not UTF-8 is in base64."""
        try:
            value = {"value": self.value.decode()}
        except UnicodeDecodeError:
            value = {"value_base64": base64.b64encode(self.value).decode()}
        return _encoder.encode(self.origin | value) + b"\n"


def dead_letters_of(records: Sequence[Records], rejected: Sequence[Rejected]) -> Iterator[DeadLetter]:
    """Yield the dead letters of rejected messages.

    Args:
        records: The records that were read last.
        rejected: What was rejected from them, or from earlier ones, which are in memory no longer. With origins.
    """
    by_partition: dict[tuple[str, int], list[Records]] = {}
    for batch in records if rejected else ():
        by_partition.setdefault((batch.topic, batch.partition), []).append(batch)
    last = None
    for event in rejected:
        assert event.origin is not None, "events must be decoded with their origin"
        if not event.value and event.origin == last:
            continue  # a message of many events, which is kept once
        last = event.origin
        topic, partition, offset = event.origin
        value, timestamp = _message(by_partition.get((topic, partition), ()), offset)
        value = event.value or value
        stored = value[:MAX_VALUE_BYTES]
        place = without_secrets(topic), partition, offset
        yield DeadLetter(event.reason, event.detail, *place, timestamp, stored, len(value))


def _message(batches: Sequence[Records], offset: int) -> tuple[bytes, int | None]:
    """Return the value at an offset and its time, empty and None if these records lack it."""
    for batch in batches:
        row = bisect_left(batch.offsets, offset)
        if row < len(batch) and batch.offsets[row] == offset:
            return batch.values[row] or b"", None if batch.timestamps is None else batch.timestamps[row]
    return b"", None


class DeadLetterQueue:
    """Write dead letters to a sink in a thread. `put` neither waits nor fails.

    After a crash, the dead letters since the last snapshot are written again, because their messages are read again.
    Their origin identifies repetitions. Dead letters that were queued when the snapshot was taken are lost.
    """

    def __init__(self, sink: Sink[DeadLetter]) -> None:
        self._worker: Worker[DeadLetter] = Worker(
            sink,
            name="streameval-dead-letters",
            event="dead_letters_not_written",
            batch=BATCH_SIZE,
            max_bytes=MAX_BYTES,
            size=lambda dead_letter: dead_letter.nbytes,
        )

    def put(self, records: Sequence[Records], rejected: Sequence[Rejected]) -> None:
        """Queue what was rejected from these records."""
        if rejected:
            self._worker.put(dead_letters_of(records, rejected))

    def add(self, dead_letters: Sequence[DeadLetter], dropped: int) -> None:
        """Queue dead letters of executors.

        Args:
            dead_letters: The dead letters.
            dropped: Number of others that the executors have dropped.
        """
        self._worker.put(dead_letters, dropped=dropped)

    def status(self) -> WorkerStatus:
        """Return how many dead letters this process has written and dropped, and how many are queued."""
        return self._worker.status()

    def close(self) -> None:
        """Try once more to write what is queued, for a few seconds. Log the loss of the rest."""
        status = self._worker.close(CLOSE_TIMEOUT, ABORT_TIMEOUT)
        if status.waiting or status.dropped:
            log.warning("dead_letters_lost", waiting=status.waiting, dropped=status.dropped, reason=status.trouble)


class FileSink:
    """Append dead letters to a file as lines of JSON.

    The file is opened for each batch, since other programs may move, delete or empty it. A write that fails, as on a
    full disk, is undone, so that the file has complete lines only.

    Args:
        path: The file. A full one is renamed to NAME.1, and the older ones to NAME.2 and so on.
        max_bytes: Size of a full file.
        keep: Number of full files that are kept.

    Raises:
        InputError: The file cannot be opened at the start.
    """

    def __init__(self, path: Path, max_bytes: int = 100 * 2**20, keep: int = 3) -> None:
        self._path, self._max_bytes, self._keep = path, max_bytes, keep
        self._rotation = RotatingFileHandler(path, backupCount=keep, delay=True)  # renames files, and never opens one
        try:
            self._append(b"")
        except OSError as error:
            raise _unwritable(path, error.strerror) from error

    def write(self, dead_letters: Sequence[DeadLetter]) -> int:
        """Append all of these dead letters, or none.

        Raises:
            RetryError: The file cannot be written, and has none of them.
        """
        lines = b"".join(dead_letter.line for dead_letter in dead_letters)
        try:
            size = self._path.stat().st_size if self._path.exists() else 0
            if size and size + len(lines) > self._max_bytes:
                if not self._keep:
                    self._path.unlink()
                self._rotation.doRollover()
            self._append(lines)
        except OSError as error:
            raise RetryError(f"{self._path}: {error.strerror or error}", dead_letters) from error
        return len(dead_letters)

    def abort(self) -> None:
        """Do nothing: no write waits for another party."""

    def close(self) -> None:
        """Do nothing: no file is open between two writes."""

    def _append(self, lines: bytes) -> None:
        descriptor = open_to_append(self._path, 0o640)
        try:
            size = os.fstat(descriptor).st_size
            rest = memoryview(lines)
            try:
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)


def unwritable(path: Path) -> InputError | None:
    """Return the error that a `FileSink` with this path would raise, or None. Nothing is opened."""
    existing = path if path.exists() else path.parent
    if not existing.exists() or path.is_dir():
        return _unwritable(path, os.strerror(errno.EISDIR if existing.exists() else errno.ENOENT))
    return None if os.access(existing, os.W_OK) else _unwritable(path, os.strerror(errno.EACCES))


def _unwritable(path: Path, reason: str | None) -> InputError:
    hint = "create its directory, and allow this user to write there"
    return InputError(f"dead_letters.path: {path} cannot be written: {reason}", hint=hint)


def open_dead_letters(settings: AnyDeadLetters, connection: KafkaConnection) -> DeadLetterQueue:
    """Open the dead letters of a configuration.

    Args:
        settings: A file or a topic.
        connection: The cluster of the topic.
    """
    if isinstance(settings, DeadLetterFile):
        return DeadLetterQueue(FileSink(settings.path))
    from streameval.ingest.kafka.producer import MessageSender

    return DeadLetterQueue(MessageSender(settings.topic, connection))
