"""A Kafka topic as a source: all partitions, without a consumer group, from positions kept in snapshots."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Event

import structlog

from streameval.common.text import counted
from streameval.errors import SourceError
from streameval.ingest.background import Background, ConnectionGroup
from streameval.ingest.base import DataLoss, Offsets, Records, Source, SourceOffsets, SourceStatus, TopicPartition
from streameval.ingest.kafka.kafka_python import KafkaPythonClient
from streameval.ingest.kafka.offset_commits import GroupWriter, OffsetCommitter
from streameval.ingest.kafka.reader import (
    CONNECT_TIMEOUT,
    Beginning,
    ClientError,
    Connect,
    OffsetsGoneError,
    ReadProgress,
    TopicReader,
    TopicReplacedError,
    close_quietly,
    open_topic,
)
from streameval.ingest.kafka.settings import KafkaSettings

BACKOFF_FIRST, BACKOFF_MOST, JITTER = 0.25, 5.0, 0.5
REACHED_FOR = 10.0
"""Seconds without an answer after which the cluster counts as not reached."""
SLICE = 0.05
"""Seconds to wait for one source while the others are not polled."""

log = structlog.get_logger(__name__)


class KafkaSource:
    """Reads a topic from `offsets`, or from `settings.start` without any.

    After any failure a new client continues exactly at the positions, so that nothing is lost and nothing read twice.
    Partitions that are added later are read from their first message: `start` applies to the first start only, and a
    later one must not skip messages silently.

    Args:
        settings: Which topic to read, and how.
        offsets: Where an earlier source stopped.
        clock: Counts seconds.
        connect: Makes the client.
        chance: In [0, 1); spreads the reconnects of many daemons over time.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        offsets: Offsets | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        connect: Connect = KafkaPythonClient,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._connect = connect
        self._chance = chance
        self._progress = ReadProgress()
        known = offsets or Offsets({})
        self._progress.place(known.positions, clock())
        self._progress.epochs = dict(known.epochs)
        self._newcomers: Beginning = "earliest" if known.positions else settings.start
        self._topic_id = known.identity
        self._reader: TopicReader | None = None
        self._opening: Background[TopicReader] | None = None
        self._connections, self._closed = ConnectionGroup(), Event()
        self._detail = f"connecting to {settings.address}"
        self._retry_at = self._opened_at = clock()
        self._failures = self._rebuilds = 0
        self._loss = DataLoss(settings.topic, settings.on_lost_offsets)
        group = settings.group_id
        self._committer = OffsetCommitter(lambda: GroupWriter(settings, group, self._connections)) if group else None

    @property
    def positions(self) -> dict[int, int]:
        """The next offset of each partition; everything before it has been returned or was lost."""
        return dict(self._progress.positions)

    def poll(self, timeout: float) -> list[Records]:
        """Messages that have come, within about `timeout` seconds.

        Raises SourceError when messages were lost and `on_lost_offsets` is `fail`, or when the codec is not installed.
        """
        try:
            reader = self._reader or self._open(timeout)
            return self._read(reader, timeout) if reader else []
        except TopicReplacedError:
            self._restart_from_beginning()
        except ClientError as error:
            self._drop_client(error)
        return []

    def status(self) -> SourceStatus:
        """The state of the source, without a round trip."""
        silence = self._clock() - self._reader.answered_at if self._reader else 0.0
        reached = self._reader is not None and silence < REACHED_FOR
        unanswered = self._reader is not None and not reached
        return SourceStatus(
            reached=reached,
            partitions=self._progress.status(self._settings.topic),
            detail=f"no answer from {self._settings.address} for {silence:.0f} s" if unanswered else self._detail,
            rebuilds=self._rebuilds,
            lost=self._loss.lost,
            gaps=dict(self._loss.gaps),
        )

    def offsets(self) -> SourceOffsets:
        """The next offset of each partition, the id of the topic, and its leader epochs."""
        return {self._settings.topic: Offsets(self.positions, self._topic_id, dict(self._progress.epochs))}

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Do not read these partitions for now; they do not count as stalled."""
        paused = frozenset(partition for topic, partition in partitions if topic == self._settings.topic)
        if paused != self._progress.paused:
            self._progress.paused = paused
            if self._reader is not None:
                self._reader.client.pause(paused)

    def commit(self, offsets: SourceOffsets) -> None:
        """Commit the positions to the group `settings.group_id`, if there is one."""
        committed = offsets.get(self._settings.topic)
        if self._committer is not None and committed is not None and committed.positions:
            self._committer.commit(committed.positions)

    def close(self) -> None:
        """Close all connections, also one that is being opened; status and positions can still be read."""
        self._closed.set()
        if self._committer is not None:
            self._committer.close()
        self._disconnect()
        self._connections.close()

    def _open(self, timeout: float) -> TopicReader | None:
        """The reader once a background thread has opened it; None before, and in the pause after a failure."""
        if self._opening is None:
            pause = self._retry_at - self._clock()
            if pause > 0:
                self._closed.wait(min(pause, timeout))
                return None
            self._opening = Background(self._open_in_background)
        reader = self._opening.result(timeout)
        if reader is not None:
            self._opening = None
            self._start(reader)
        return reader

    def _open_in_background(self) -> TopicReader:
        known, newcomers = self.offsets()[self._settings.topic], self._newcomers
        reader = open_topic(self._connect, self._settings, known, newcomers, self._clock, self._connections)
        if self._closed.is_set():
            close_quietly(reader.client)
        return reader

    def _start(self, reader: TopicReader) -> None:
        self._reader = reader
        reader.check_successor(self._topic_id, self.positions)
        self._topic_id = reader.topic_id or self._topic_id
        self._newcomers = "earliest"
        reader.start(self._progress)
        self._opened_at = self._clock()
        self._detail = f"reading {counted(len(reader.positions), 'partition')} of {self._settings.topic}"
        where = {"servers": self._settings.address, "topic": self._settings.topic}
        log.info("kafka_connected", **where, positions=self.positions)

    def _read(self, reader: TopicReader, timeout: float) -> list[Records]:
        try:
            return reader.read(timeout)
        except OffsetsGoneError as gone:
            self._skip_lost(reader, gone.resume)
            return []

    def _skip_lost(self, reader: TopicReader, resume: Mapping[int, int | None]) -> None:
        """Continue where the log still has messages, and count those that it no longer has."""
        reader.client.partitions(CONNECT_TIMEOUT)
        reader.check_topic()
        first = reader.client.offsets(resume, "earliest", CONNECT_TIMEOUT)
        end = reader.client.offsets(resume, "latest", CONNECT_TIMEOUT)
        for partition, diverged_at in resume.items():
            position = self._progress.positions[partition]
            kind, lost, resume_at = find_gap(
                position, diverged_at, first[partition], end[partition], same_log=reader.topic_id is not None
            )
            if resume_at != position:  # else a false alarm, as from a new leader that has not caught up
                self._loss.record(kind, lost, partition=partition, position=position, resume_at=resume_at)
            reader.seek({partition: resume_at})

    def _restart_from_beginning(self) -> None:
        """The topic is another one of the same name: read it from its first message."""
        self._loss.record("replaced", self._progress.known_lag, old_topic=self._topic_id, positions=self.positions)
        self._disconnect()
        self._topic_id, self._progress = None, ReadProgress(paused=self._progress.paused)

    def _drop_client(self, error: ClientError) -> None:
        """Drop the client, and open the next one after a pause that about doubles with each failure."""
        now = self._clock()
        if now - self._opened_at > REACHED_FOR and self._reader is not None:
            self._failures = 0
        pause = min(BACKOFF_FIRST * 2.0 ** min(self._failures, 10), BACKOFF_MOST) * (1.0 - JITTER * self._chance())
        self._failures += 1
        self._rebuilds += self._reader is not None
        self._disconnect()
        self._retry_at = now + pause
        self._detail = f"cannot read from {self._settings.address}: {error}"
        log.warning("kafka_not_reached", detail=self._detail, rebuilds=self._rebuilds)

    def _disconnect(self) -> None:
        self._opening = None
        if self._reader is not None:
            close_quietly(self._reader.client)
            self._reader = None


def find_gap(position: int, diverged_at: int | None, first: int, end: int, *, same_log: bool) -> tuple[str, int, int]:
    """Why a log of the offsets `first` to `end` (exclusive) no longer has `position`, and where to continue.

    A log that ends before `position` was truncated there; unless it is known to be the same log, it is treated as a
    successor, all of which is new. Truncation loses no unread message as far as is known: the lost end had been read.
    Messages written since may reach back before that end, but this cannot be seen from what was read.

    Args:
        position: The next offset to read.
        diverged_at: The offset at which the client found the log truncated; None = unknown.
        first: The first offset of the log.
        end: The next offset of the log.
        same_log: Whether the log is known to be the one that was read.

    Returns:
        One of `GAPS`, how many messages are known to be lost, and the offset at which to continue.

    >>> find_gap(3, None, first=10, end=20, same_log=True)
    ('deleted', 7, 10)
    >>> find_gap(30, None, first=10, end=20, same_log=True)
    ('cut', 0, 20)
    >>> find_gap(30, None, first=10, end=20, same_log=False)
    ('replaced', 0, 10)
    """
    if diverged_at is not None:
        return "cut" if diverged_at < position else "deleted", max(0, diverged_at - position), diverged_at
    if position <= end:
        return "deleted", max(0, first - position), max(position, first)
    return ("cut", 0, end) if same_log else ("replaced", 0, first)


class MultiSource:
    """Several sources as one, as a topic of decisions and a topic of rewards; an error of one is an error of all.

    A source that is not reached does not keep the others from being read: pause those that are ahead.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)
        self._failure: SourceError | None = None

    def poll(self, timeout: float) -> list[Records]:
        """The messages that have come to any source, waiting for each in turn."""
        if self._failure is not None:
            raise self._failure
        deadline = time.monotonic() + timeout
        records = self._poll_each(0.0)
        while not records and (left := deadline - time.monotonic()) > 0:
            records = self._poll_each(min(SLICE, left))
        return records

    def _poll_each(self, timeout: float) -> list[Records]:
        """Messages polled before an error come first: they would not be read again."""
        records: list[Records] = []
        try:
            for source in self._sources:
                records += source.poll(timeout)
        except SourceError as error:
            if not records:
                raise
            self._failure = error
        return records

    def status(self) -> SourceStatus:
        """Reached when all sources are; the detail is of those that are not, or of all."""
        states = [source.status() for source in self._sources]
        unreached = [status for status in states if not status.reached]
        gaps: Counter[str] = Counter()
        for status in states:
            gaps.update(status.gaps)
        return SourceStatus(
            reached=not unreached,
            exhausted=all(status.exhausted for status in states),
            partitions=tuple(partition for status in states for partition in status.partitions),
            detail="; ".join(dict.fromkeys(status.detail for status in unreached or states)),
            rebuilds=sum(status.rebuilds for status in states),
            lost=sum(status.lost for status in states),
            gaps=dict(gaps),
        )

    def offsets(self) -> SourceOffsets:
        offsets: dict[str, Offsets] = {}
        for source in self._sources:
            offsets |= source.offsets()
        return offsets

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        for source in self._sources:
            source.pause(partitions)

    def commit(self, offsets: SourceOffsets) -> None:
        for source in self._sources:
            source.commit(offsets)

    def close(self) -> None:
        for source in self._sources:
            source.close()
