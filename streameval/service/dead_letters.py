"""Dead letters: rejected messages with reason and origin, written to a file or a topic outside the loop."""

from __future__ import annotations

import base64
import errno
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import ClassVar

import msgspec
import structlog

from streameval.config.model import AnyDeadLetters, DeadLetterFile
from streameval.errors import InputError
from streameval.events import Rejected
from streameval.ingest.background import RetryError, Sink, Worker, WorkerStatus
from streameval.ingest.base import Records
from streameval.ingest.kafka.connection import KafkaConnection

MAX_DEAD_LETTERS, MAX_BYTES = 10_000, 32 * 2**20  # in the queue; further dead letters are dropped and counted
MAX_VALUE_BYTES = 512 * 1024  # of a message; a broker takes no more than a megabyte by default, and a disk is finite
BATCH_SIZE = 500
CLOSE_TIMEOUT, ABORT_TIMEOUT = 5.0, 2.0  # seconds at the end: to write the queue, and then to abort a write

log = structlog.get_logger(__name__)
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A rejected message: the reason, its origin, and its first bytes of `size`.

    The value is empty for one that was rejected long after it was read. `timestamp`: when it was written to its log, in
    milliseconds since 1970; None where the log does not record that.
    """

    key: ClassVar[None] = None
    """Of the Kafka message; dead letters have none."""

    reason: str
    detail: str
    topic: str
    partition: int
    offset: int
    timestamp: int | None
    value: bytes
    size: int

    @property
    def origin(self) -> dict[str, str | int | None]:
        """Everything but the value, by the names that every sink uses."""
        names = ("reason", "detail", "topic", "partition", "offset", "timestamp", "size")
        return {name: getattr(self, name) for name in names}

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        """Reason and origin as the headers of a Kafka message."""
        return [(f"streameval.{name}", str(value).encode()) for name, value in self.origin.items() if value is not None]

    @property
    def line(self) -> bytes:
        """The dead letter as a line of JSON; its value as text, or in base64 where it is not UTF-8."""
        try:
            value = {"value": self.value.decode()}
        except UnicodeDecodeError:
            value = {"value_base64": base64.b64encode(self.value).decode()}
        return _encoder.encode(self.origin | value) + b"\n"


def dead_letters_of(records: Sequence[Records], rejected: Sequence[Rejected]) -> Iterator[DeadLetter]:
    """The dead letters of messages rejected from these records, or from earlier ones, whose bytes are gone by now."""
    ends = list(accumulate(map(len, records)))
    by_partition: dict[tuple[str, int], list[Records]] = {}
    for part in records:
        by_partition.setdefault((part.topic, part.partition), []).append(part)
    for each in rejected:
        topic, partition, offset = each.origin or _origin(records, ends, each.place)
        value, timestamp = _message(by_partition.get((topic, partition), ()), offset)
        value = each.value or value
        kept = value[:MAX_VALUE_BYTES]
        yield DeadLetter(each.reason, each.detail, topic, partition, offset, timestamp, kept, len(value))


def _origin(records: Sequence[Records], ends: Sequence[int], place: int) -> tuple[str, int, int]:
    part = bisect_right(ends, place)
    source = records[part]
    return source.topic, source.partition, source.offsets[place - ends[part] + len(source)]


def _message(parts: Sequence[Records], offset: int) -> tuple[bytes, int | None]:
    """The value at an offset and when it was written, where it is among these records."""
    for part in parts:
        row = bisect_left(part.offsets, offset)
        if row < len(part) and part.offsets[row] == offset:
            return part.values[row] or b"", None if part.timestamps is None else part.timestamps[row]
    return b"", None


class DeadLetterQueue:
    """Writes dead letters to a sink in its own thread; `put` neither waits nor fails.

    After a crash the dead letters since the last snapshot are written again, because their messages are read again;
    their origin identifies repetitions. Dead letters that were queued when the snapshot was taken are lost.
    """

    def __init__(self, sink: Sink[DeadLetter]) -> None:
        self._worker: Worker[DeadLetter] = Worker(
            sink.write,
            name="streameval-dead-letters",
            event="dead_letters_not_written",
            close=sink.close,
            abort=sink.abort,
            batch=BATCH_SIZE,
            max_items=MAX_DEAD_LETTERS,
            max_bytes=MAX_BYTES,
            size=lambda dead_letter: len(dead_letter.value),
        )

    def put(self, records: Sequence[Records], rejected: Sequence[Rejected]) -> None:
        """Queue what was rejected of these records."""
        if rejected:
            self._worker.put(dead_letters_of(records, rejected))

    def add(self, dead_letters: Sequence[DeadLetter], dropped: int) -> None:
        """Queue dead letters of executors, which have `dropped` others."""
        self._worker.put(dead_letters, dropped=dropped)

    def status(self) -> WorkerStatus:
        """How many dead letters this process has written and dropped, and how many are queued."""
        return self._worker.status()

    def close(self) -> None:
        """Try once more to write what is queued, for a few seconds; the rest is lost, and logged."""
        status = self._worker.close(CLOSE_TIMEOUT, ABORT_TIMEOUT)
        if status.waiting or status.dropped:
            log.warning("dead_letters_lost", waiting=status.waiting, dropped=status.dropped, reason=status.trouble)


class NoDeadLetters:
    """Keeps no dead letter: rejected messages are only counted."""

    def put(self, records: Sequence[Records], rejected: Sequence[Rejected]) -> None:
        """Do nothing."""

    def add(self, dead_letters: Sequence[DeadLetter], dropped: int) -> None:
        """Do nothing."""

    def status(self) -> None:
        """No status: nothing is written."""

    def close(self) -> None:
        """Do nothing."""


class FileSink:
    """Appends dead letters as JSON to `path`, which together with `.1` to `.keep` never holds much more than the limit.

    A write that fails, as on a full disk, is undone to the end of the last whole line and tried again as a whole. A
    file that others moved away, deleted or emptied is recreated.

    Raises:
        InputError: The file cannot be opened at the start.
    """

    def __init__(self, path: Path, max_bytes: int, keep: int) -> None:
        self._path, self._max_bytes, self._keep = path, max_bytes, keep
        self._descriptor = -1
        try:
            self._open()
        except OSError as error:
            raise _unwritable(path, error.strerror) from error

    def write(self, dead_letters: Sequence[DeadLetter]) -> int:
        """Append these dead letters; all or none of them.

        Raises:
            RetryError: The file cannot be written to; it has none of them.
        """
        lines = b"".join(dead_letter.line for dead_letter in dead_letters)
        try:
            if self._descriptor < 0 or not self._is_in_place():
                self.close()
                self._open()
            if self._size and self._size + len(lines) > self._max_bytes:
                self._rotate()
            self._append(lines)
        except OSError as error:
            raise RetryError(f"{self._path}: {error.strerror or error}", dead_letters) from error
        return len(dead_letters)

    def abort(self) -> None:
        """Nothing to do: no write waits for another party."""

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o640)
        self._size = os.fstat(self._descriptor).st_size
        if self._size and os.pread(self._descriptor, 1, self._size - 1) != b"\n":  # a crash in the middle of a line
            self._append(b"\n")

    def _is_in_place(self) -> bool:
        """Whether the open file still has its name: another program that rotates files may have moved or emptied it."""
        opened = os.fstat(self._descriptor)
        self._size = opened.st_size
        try:
            return os.path.samestat(opened, self._path.stat())
        except FileNotFoundError:
            return False

    def _append(self, lines: bytes) -> None:
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(lines)

    def _rotate(self) -> None:
        self.close()
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self._keep + 1))]
        for older, newer in zip(names[::-1], names[-2::-1], strict=False):
            if newer.exists():
                newer.replace(older)
        if not self._keep:
            self._path.unlink()
        self._open()


def unwritable(path: Path) -> InputError | None:
    """The error of a `FileSink` with this path, which is not opened; None if it can be written."""
    place = path if path.exists() else path.parent
    if not place.exists() or path.is_dir():
        return _unwritable(path, os.strerror(errno.EISDIR if place.exists() else errno.ENOENT))
    return None if os.access(place, os.W_OK) else _unwritable(path, os.strerror(errno.EACCES))


def _unwritable(path: Path, reason: str | None) -> InputError:
    hint = "create its directory, and allow this user to write there"
    return InputError(f"dead_letters.path: {path} cannot be written: {reason}", hint=hint)


def open_dead_letters(settings: AnyDeadLetters, connection: KafkaConnection) -> DeadLetterQueue:
    """The dead letters of a configuration, in a file or in a topic of the cluster of `connection`."""
    if isinstance(settings, DeadLetterFile):
        return DeadLetterQueue(FileSink(settings.path, settings.max_bytes, settings.keep))
    from streameval.ingest.kafka.producer import MessageSender

    return DeadLetterQueue(MessageSender(settings.topic, connection))
