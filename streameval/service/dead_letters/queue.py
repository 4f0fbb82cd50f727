"""Rejected messages put aside with reason and origin, beside the loop: a sink in trouble costs letters, not events."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import structlog

from streameval.config.model import AnyDeadLetters, DeadLetterFile
from streameval.events import Rejected
from streameval.ingest.base import Records
from streameval.ingest.settings import KafkaConnection
from streameval.service.status import DeadLetterStatus

MOST_LETTERS, MOST_BYTES = 10_000, 32 * 2**20
"""What waits for the sink at most. Letters that come while so many wait are dropped, and counted."""
LONGEST_VALUE = 512 * 1024
"""Bytes of a message that are kept; a broker takes no more than a megabyte by default, and a disk is not endless."""
AT_ONCE = 500
PAUSE_FIRST, PAUSE_MOST = 0.5, 30.0
CLOSE_TIMEOUT, LEAVE_TIMEOUT = 5.0, 2.0
"""Seconds at the end: in which letters are still written, and then in which the sink may give up what is under way."""
LOG_EVERY = 60.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that is no event, or none that counts: why, where it came from, and its first bytes of `size`.

    Both are empty for one that was rejected long after it was read. `timestamp`: when it was written to its log, in
    milliseconds since 1970; None where the log does not say.
    """

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
        """All that is known of it but its value, by the names under which every sink tells it."""
        return {
            "reason": self.reason,
            "detail": self.detail,
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "timestamp": self.timestamp,
            "size": self.size,
        }


class SinkError(Exception):
    """Trouble of a sink that may pass. `undelivered`: what is to be tried again; the rest is written."""

    def __init__(self, reason: str, undelivered: Sequence[DeadLetter]) -> None:
        super().__init__(reason)
        self.undelivered = list(undelivered)


class Sink(Protocol):
    """Where letters go. `write` returns how many of them it took; the others can never be written there."""

    def write(self, letters: Sequence[DeadLetter]) -> int: ...

    def give_up(self) -> None:
        """Let a `write` that waits fail soon, and all later ones; called from another thread."""

    def close(self) -> None: ...


def letters_of(records: Sequence[Records], rejected: Sequence[Rejected]) -> Iterator[DeadLetter]:
    """What was rejected of these records, or of earlier ones, whose messages are gone by now.

    Origins are told by who rejected them, or found by their places, counted through all records.
    """
    ends = list(accumulate(map(len, records)))
    by_partition: dict[tuple[str, int], list[Records]] = {}
    for part in records:
        by_partition.setdefault((part.topic, part.partition), []).append(part)
    for each in rejected:
        topic, partition, offset = each.origin or _origin(records, ends, each.place)
        value, timestamp = _message(by_partition.get((topic, partition), ()), offset)
        value = each.value or value
        yield DeadLetter(
            reason=each.reason,
            detail=each.detail,
            topic=topic,
            partition=partition,
            offset=offset,
            timestamp=timestamp,
            value=value[:LONGEST_VALUE],
            size=len(value),
        )


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
    """Hands letters to a sink in a thread of its own; `put` neither waits nor fails.

    What the sink cannot take now is tried again, after pauses that double up to half a minute, while at most
    `MOST_LETTERS` and `MOST_BYTES` wait. After a crash the letters since the last snapshot come again with the messages
    that they are about, and their origin tells which are the same; those that waited when it was taken are gone.
    """

    def __init__(self, sink: Sink, clock: Callable[[], float] = time.monotonic) -> None:
        self._sink, self._clock = sink, clock
        self._waiting: deque[DeadLetter] = deque()
        self._bytes = self._written = self._dropped = self._in_hand = 0
        self._trouble = ""
        self._logged_at = -LOG_EVERY
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="streameval-dead-letters", daemon=True)
        self._thread.start()

    def put(self, records: Sequence[Records], rejected: Sequence[Rejected]) -> None:
        """Put aside what was rejected of these records."""
        if not rejected:
            return
        with self._changed:
            for letter in letters_of(records, rejected):
                if len(self._waiting) + self._in_hand < MOST_LETTERS and self._bytes + len(letter.value) <= MOST_BYTES:
                    self._waiting.append(letter)
                    self._bytes += len(letter.value)
                else:
                    self._dropped += 1
            self._changed.notify()

    def status(self) -> DeadLetterStatus:
        """How many were written and dropped in the life of this process, and how many wait."""
        with self._changed:
            waiting = len(self._waiting) + self._in_hand
            return DeadLetterStatus(self._written, self._dropped, waiting, self._trouble)

    def close(self) -> None:
        """Try once more to write what waits, for a few seconds; the rest is lost, and logged."""
        with self._changed:
            self._closed.set()
            self._changed.notify()
        self._thread.join(CLOSE_TIMEOUT)
        if self._thread.is_alive():
            self._sink.give_up()
            self._thread.join(LEAVE_TIMEOUT)
        status = self.status()
        if status.waiting or status.dropped:
            log.warning("dead_letters_lost", waiting=status.waiting, dropped=status.dropped, reason=status.trouble)

    def _run(self) -> None:
        pause = PAUSE_FIRST
        letters: list[DeadLetter] = []
        while letters := letters or self._next():
            is_last = self._closed.is_set()
            try:
                self._count(letters, self._sink.write(letters), [])
                letters, pause = [], PAUSE_FIRST
            except SinkError as error:
                self._count(letters, len(letters) - len(error.undelivered), error.undelivered)
                letters = error.undelivered
                self._tell(str(error))
                if is_last:
                    break
                self._closed.wait(pause)  # not beyond the end: the sink may be well again
                pause = min(2.0 * pause, PAUSE_MOST)
            except Exception as error:  # noqa: BLE001 - it costs these letters, not all that come after them
                self._count(letters, 0, [])
                letters = []
                self._tell(repr(error))
        with suppress(SinkError):
            self._sink.close()

    def _next(self) -> list[DeadLetter]:
        """The letters that waited longest; none when no more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed.is_set())
            letters = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
            self._in_hand = len(letters)
            return letters

    def _count(self, letters: Sequence[DeadLetter], taken: int, undelivered: Sequence[DeadLetter]) -> None:
        with self._changed:
            self._written += taken
            self._dropped += len(letters) - taken - len(undelivered)
            self._in_hand = len(undelivered)
            self._bytes -= sum(len(letter.value) for letter in letters) - sum(len(each.value) for each in undelivered)
            self._trouble = self._trouble if undelivered else ""

    def _tell(self, trouble: str) -> None:
        self._trouble = trouble
        if self._clock() >= self._logged_at + LOG_EVERY:
            self._logged_at = self._clock()
            status = self.status()
            log.warning("dead_letters_not_written", waiting=status.waiting, dropped=status.dropped, reason=trouble)


def open_dead_letters(settings: AnyDeadLetters, connection: KafkaConnection) -> DeadLetterQueue:
    """The dead letters of a configuration, in a file or in a topic of the cluster of `connection`."""
    if isinstance(settings, DeadLetterFile):
        from streameval.service.dead_letters.file import FileSink

        return DeadLetterQueue(FileSink(settings.path, settings.max_bytes, settings.keep))
    from streameval.service.dead_letters.topic import TopicSink

    return DeadLetterQueue(TopicSink(settings.topic, connection))
