"""Read all partitions of a Kafka topic, without a consumer group, from positions kept in snapshots."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Event

import structlog

from streameval.common.text import counted
from streameval.errors import SourceError
from streameval.ingest.background import Background, ConnectionGroup, Worker, backoff
from streameval.ingest.base import (
    DataLoss,
    Offsets,
    PartitionStatus,
    Records,
    Source,
    SourceOffsets,
    SourceStatus,
    TopicPartition,
)
from streameval.ingest.kafka.client import Client, ClientError, OffsetsGoneError
from streameval.ingest.kafka.connection import KafkaTopic, Start
from streameval.ingest.kafka.kafka_python import KafkaPythonClient
from streameval.ingest.kafka.producer import GroupWriter

CONNECT_TIMEOUT = 10.0
COMMIT_TIMEOUT = 2.0  # seconds for the last commit at the end of the program
MAX_COMMITS = 1_000_000  # all that wait are replaced by the newest one
OPENING_TIMEOUT = 120.0
"""Seconds after which a client that is neither connected nor refused is given up. All its requests together take less.
"""
SILENCE_TIMEOUT = 10.0
"""Count the cluster as not reached after this many seconds without an answer."""
PROBE_INTERVAL = 3.0
PROBE_TIMEOUT = 1.0  # a broker may hold the connection for the half second of an empty fetch before it answers
DISCOVERY_INTERVAL = 60.0  # between two requests for new partitions
STALL_TIMEOUT = 30.0
"""Use another client if unread messages exist but none has arrived for this many seconds."""
STALL_SHARE = 0.1
"""Share of the time in which the caller processes messages that counts towards the stall timeout. A partition waits
while messages of others are processed, which may take long if events come faster. A new client would forget these
messages and fetch them again first."""
SLICE_SECONDS = 0.05
"""Wait this long for one source while the others are not polled."""

log = structlog.get_logger(__name__)


class TopicReplacedError(ClientError):
    """Report that the topic was deleted and recreated: the positions belong to a log that no longer exists."""


@dataclass
class PartitionProgress:
    """Hold how far a partition has been read.

    Args:
        position: The next offset.
        moved_at: When it last advanced, in seconds.
        epoch: The leader epoch of the message before. See `Offsets`.
        end: The end of the log, with open transactions.
        readable: The end of the log without open transactions.
        ended_at: When the last request found the partition at its end, in epoch seconds. An open transaction is
            before the end.
        alive_at: When it last advanced or had nothing to read, in seconds. A new client does not change it.
        written_at: When the last message read was written, in epoch seconds.
    """

    position: int
    moved_at: float
    alive_at: float
    epoch: int | None = None
    end: int | None = None
    readable: int | None = None
    ended_at: float | None = None
    written_at: float | None = None

    def move(self, offset: int, now: float) -> None:
        """Note that the partition has been read up to `offset`, and forget the epoch of earlier messages."""
        if offset > self.position:
            self.position, self.moved_at, self.epoch, self.ended_at, self.alive_at = offset, now, None, None, now

    @property
    def lag(self) -> int | None:
        """Return the number of unread messages, None while the end of the log is unknown."""
        ends = [end for end in (self.end, self.readable) if end is not None]
        return max(0, max(ends) - self.position) if ends else None


def connect(settings: KafkaTopic, timeout: float, connections: ConnectionGroup) -> Client:
    """Return a client of the library `settings.client` that has reached a broker.

    Args:
        settings: The topic, and how to reach it.
        timeout: Seconds to wait for a broker.
        connections: Closing them ends the attempt, and all later calls.

    Raises:
        ClientError: No broker answers in time, or `connections` were closed.
    """
    if settings.client == "confluent":
        from streameval.ingest.kafka.confluent import ConfluentClient  # an extra

        return ConfluentClient(settings, timeout, connections)
    return KafkaPythonClient(settings, timeout, connections)


class KafkaSource:
    """Read a topic.

    After any failure a new client continues exactly at the positions, so that no message is lost or read twice:
    everything that may fail comes before positions advance. Partitions that are added later are read from their first
    message: `start` applies to the first start only, because a later one must not skip messages silently.

    Args:
        settings: The topic, and how it is read.
        offsets: The offsets of an earlier source. Without any, reading begins at `settings.start`.
        clock: Returns seconds.
        connect: Makes the client.
        chance: Returns numbers in [0, 1) that spread the reconnects of many daemons.
    """

    def __init__(
        self,
        settings: KafkaTopic,
        offsets: Offsets | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        connect: Callable[[KafkaTopic, float, ConnectionGroup], Client] = connect,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._settings, self._clock, self._connect, self._chance = settings, clock, connect, chance
        saved = offsets or Offsets({})
        now = clock()
        self._partitions = {
            number: PartitionProgress(position, now, now, saved.epochs.get(number))
            for number, position in saved.positions.items()
        }
        self._paused: frozenset[int] = frozenset()
        self._new_start: Start = "earliest" if saved.positions else settings.start
        self._topic_id = saved.identity
        self._client: Client | None = None
        self._opening: Background[tuple[Client, dict[int, int]]] | None = None
        self._connections, self._closed = ConnectionGroup(), Event()
        self._detail = f"connecting to {settings.address}"
        self._started_at = self._polled_at = self._opening_at = self._opened_at = self._answered_at = now
        self._attempts = 0  # clients that were given up; one that connects late closes itself
        self._left_at: float | None = None
        self._retry_at = self._probe_at = self._discover_at = now
        self._failures = self._rebuilds = 0
        self._loss = DataLoss(settings.topic, settings.on_lost_offsets)
        self._committer: Worker[Mapping[int, int]] | None = None
        if settings.group_id:
            writer = GroupWriter(settings, settings.group_id, self._connections)
            self._committer = Worker(
                writer, name="streameval-commits", event="offsets_not_committed", batch=MAX_COMMITS
            )

    @property
    def positions(self) -> dict[int, int]:
        """Return the next offset of each partition. Everything before it has been returned or was lost."""
        return {number: progress.position for number, progress in self._partitions.items()}

    def poll(self, timeout: float) -> list[Records]:
        """Return the messages that come within about `timeout` seconds.

        Raises:
            SourceError: Messages were lost, and `on_lost_offsets` is `fail`.
        """
        self._leave_out(self._clock() - self._polled_at)
        try:
            client = self._client or self._open(timeout)
            return self._read(client, timeout) if client else []
        except TopicReplacedError:
            self._restart_from_earliest()
        except ClientError as error:
            self._drop_client(error)
        finally:
            self._polled_at = self._clock()
        return []

    def _leave_out(self, away: float) -> None:
        """Do not count a long time without a poll as a wait for the source: the process was busy or suspended."""
        if away > SILENCE_TIMEOUT:
            self._started_at += away
            for progress in self._partitions.values():
                progress.alive_at += away

    def status(self) -> SourceStatus:
        now = self._clock()
        silence = now - self._answered_at
        unanswered = self._client is not None and silence >= SILENCE_TIMEOUT
        return SourceStatus(
            reached=self._client is not None and not unanswered,
            partitions=tuple(
                PartitionStatus(self._settings.topic, number, part.position, part.lag, part.ended_at, part.written_at)
                for number, part in sorted(self._partitions.items())
            ),
            detail=f"no answer from {self._settings.address} for {silence:.0f} s" if unanswered else self._detail,
            rebuilds=self._rebuilds,
            lost=self._loss.lost,
            gaps=dict(self._loss.gaps),
            waiting=now - min((part.alive_at for part in self._partitions.values()), default=self._started_at),
        )

    def offsets(self) -> SourceOffsets:
        return {self._settings.topic: Offsets(self.positions, self._topic_id, self._epochs())}

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Stop reading these partitions for now, and read all others. Paused ones do not count as stalled."""
        paused = frozenset(partition for topic, partition in partitions if topic == self._settings.topic)
        if paused != self._paused:
            self._paused = paused
            if self._client is not None:
                self._client.pause(paused)

    def commit(self, offsets: SourceOffsets) -> None:
        """Commit the positions to the group `settings.group_id`, if there is one."""
        committed = offsets.get(self._settings.topic)
        if self._committer is not None and committed is not None and committed.positions:
            self._committer.put([committed.positions])

    def close(self) -> None:
        """Close all connections, also one that is being opened. Status and positions can still be read."""
        self._closed.set()
        if self._committer is not None:
            self._committer.close(COMMIT_TIMEOUT)
        self._disconnect()
        self._connections.close()

    # --- Connecting ---

    def _open(self, timeout: float) -> Client | None:
        """Return the client once a background thread has connected it, None before and after a failure."""
        if self._opening is None:
            pause = self._retry_at - self._clock()
            if pause > 0:
                self._closed.wait(min(pause, timeout))
                return None
            self._opening_at = self._clock()
            self._opening = Background(partial(self._connect_to_topic, self._attempts))
        opened = self._opening.result(timeout)
        if opened is None:
            if self._clock() - self._opening_at > OPENING_TIMEOUT:  # a thread of the library may have ended
                raise ClientError(f"the client has not connected for {OPENING_TIMEOUT:.0f} s")
            return None
        self._opening = None
        self._client, positions = client, positions = opened
        topic, ids_are_known = self._settings.topic, self._topic_id is not None and client.topic_id() is not None
        self._check_topic(client)
        gone = sorted(self._partitions.keys() - positions.keys())
        if gone and ids_are_known:
            raise ClientError(f"the broker does not list the partitions {gone} of {topic}")
        if gone:  # a topic never loses any
            raise TopicReplacedError(f"{topic} has no partitions {gone} any more: it was recreated")
        self._new_start = "earliest"
        client.pause(self._paused)
        self._set_positions(positions, self._epochs())
        self._see_epochs(client)
        now = self._opened_at = self._answered_at = self._clock()
        self._probe_at, self._discover_at = now + PROBE_INTERVAL, now + DISCOVERY_INTERVAL
        self._detail = f"reading {counted(len(positions), 'partition')} of {topic}"
        log.info("kafka_connected", servers=self._settings.address, topic=topic, positions=self.positions)
        return client

    def _connect_to_topic(self, attempt: int) -> tuple[Client, dict[int, int]]:
        """Return a client of all partitions, and its positions. Run in the background, and change nothing here."""
        client = self._connect(self._settings, CONNECT_TIMEOUT, self._connections)
        try:
            partitions = set(client.partitions(CONNECT_TIMEOUT))
            if not partitions:
                raise ClientError(f"the topic {self._settings.topic!r} does not exist yet")
            positions = {number: at for number, at in self.positions.items() if number in partitions}
            if added := partitions - positions.keys():
                positions |= client.offsets(added, self._new_start, CONNECT_TIMEOUT)
            client.assign(positions, self._epochs())
            if self._closed.is_set() or attempt != self._attempts:
                raise ClientError("the source was closed meanwhile, or tries again")
        except BaseException:
            with suppress(ClientError):
                client.close()
            raise
        return client, positions

    def _check_topic(self, client: Client) -> None:
        """Raise TopicReplacedError if another topic has this name now."""
        topic_id = client.topic_id()
        if topic_id and self._topic_id and topic_id != self._topic_id:
            raise TopicReplacedError(f"the topic {self._settings.topic} was deleted and recreated")
        self._topic_id = self._topic_id or topic_id

    def _restart_from_earliest(self) -> None:
        """Read a topic that replaced the old one of its name from its first message.

        Only ends that came with messages certainly belong to the old topic: requests for ends give only the name.
        """
        unread = sum(max(0, (progress.end or 0) - progress.position) for progress in self._partitions.values())
        self._loss.record("replaced", unread, old_topic=self._topic_id, positions=self.positions)
        self._disconnect()
        self._topic_id, self._partitions, self._started_at = None, {}, self._clock()

    def _drop_client(self, error: ClientError) -> None:
        """Drop the client, and open the next one after a pause that about doubles with each failure."""
        now = self._clock()
        if now - self._opened_at > SILENCE_TIMEOUT and self._client is not None:
            self._failures = 0
        pause = backoff(self._failures, self._chance)
        self._failures += 1
        self._rebuilds += self._client is not None
        self._disconnect()
        self._retry_at = now + pause
        self._detail = f"cannot read from {self._settings.address}: {error}"
        log.warning("kafka_not_reached", detail=self._detail, rebuilds=self._rebuilds)

    def _disconnect(self) -> None:
        client, self._client, self._opening = self._client, None, None
        self._left_at = None
        self._attempts += 1
        with suppress(ClientError):  # it may be broken
            if client is not None:
                client.close()

    # --- Reading ---

    def _read(self, client: Client, timeout: float) -> list[Records]:
        if self._left_at is not None:
            for progress in self._partitions.values():
                progress.moved_at += (1.0 - STALL_SHARE) * (self._clock() - self._left_at)
            self._left_at = None
        try:
            if self._clock() >= self._probe_at:
                self._check_broker(client)
            records = client.poll(timeout)
        except OffsetsGoneError as gone:
            self._skip_lost(client, gone.resume)
            return []
        self._check_topic(client)
        for part in records:
            if part.offsets and part.offsets[0] < self._partitions[part.partition].position:
                raise ClientError(f"partition {part.partition} was read a second time from offset {part.offsets[0]}")
        for number, progress in self._partitions.items():
            end = client.highwater(number)  # lower than before in a truncated log
            progress.end = progress.end if end is None else end
        if records:
            self._move_past(records)
            self._see_epochs(client)
            self._answered_at = self._left_at = self._clock()
        return records

    def _move_past(self, records: Sequence[Records]) -> None:
        for part in records:
            if part.offsets:
                self._partitions[part.partition].move(part.offsets[-1] + 1, self._clock())
            if part.timestamps:
                self._partitions[part.partition].written_at = part.timestamps[-1] / 1000
            if part.unreadable:
                where = {"topic": part.topic, "partition": part.partition, "offset": part.offsets[0]}
                log.warning("unreadable_batch", **where, lost=len(part), reason=part.unreadable)

    def _epochs(self) -> dict[int, int]:
        return {number: progress.epoch for number, progress in self._partitions.items() if progress.epoch is not None}

    def _see_epochs(self, client: Client) -> None:
        """Take over the epochs that the client knows, and keep the others."""
        for number, epoch in client.epochs().items():
            self._partitions[number].epoch = epoch

    def _set_positions(self, positions: Mapping[int, int], epochs: Mapping[int, int] | None = None) -> None:
        """Move partitions to these offsets. The ends of their logs are then unknown."""
        now, epochs, before = self._clock(), epochs or {}, self._partitions
        for number, at in positions.items():
            is_same = number in before and before[number].position == at
            alive_at, written_at = (before[number].alive_at, before[number].written_at) if is_same else (now, None)
            self._partitions[number] = PartitionProgress(at, now, alive_at, epochs.get(number), written_at=written_at)

    def _check_broker(self, client: Client) -> None:
        """Raise ClientError if the broker has not answered, or a partition has not moved, for the stall timeout."""
        now, allowed = self._clock(), STALL_TIMEOUT
        self._probe_at = now + PROBE_INTERVAL
        try:
            self._probe(client)
        except OffsetsGoneError:
            raise
        except ClientError as error:
            if now - self._answered_at > allowed:
                raise ClientError(f"no answer for {now - self._answered_at:.0f} s: {error}") from error
            return
        for number, progress in self._partitions.items():
            if (progress.readable or 0) <= progress.position or number in self._paused:
                progress.moved_at = progress.alive_at = now
        stalled = [number for number, progress in self._partitions.items() if now - progress.moved_at > allowed]
        if stalled:
            client.unblock(stalled)

    def _probe(self, client: Client) -> None:
        """Request the ends of the logs: an empty poll does not distinguish a quiet topic from a dead cluster."""
        asked_at = time.time()
        ends = client.offsets(self._partitions.keys(), "latest", PROBE_TIMEOUT)
        self._answered_at = now = self._clock()
        for number, progress in self._partitions.items():
            progress.move(client.position(number), self._clock())
            progress.readable = ends[number]
            progress.ended_at = asked_at if progress.lag == 0 else None
        self._see_epochs(client)
        if now >= self._discover_at:
            fresh = set(client.partitions(PROBE_TIMEOUT)) - self._partitions.keys()
            if fresh:
                self._set_positions(client.offsets(fresh, "earliest", PROBE_TIMEOUT))
                client.assign(self.positions, self._epochs())
                log.info("kafka_partitions_added", topic=self._settings.topic, partitions=sorted(fresh))
            self._discover_at = now + DISCOVERY_INTERVAL

    def _skip_lost(self, client: Client, resume: Mapping[int, int | None]) -> None:
        """Continue at messages that the log still has, and count those that it no longer has."""
        client.partitions(CONNECT_TIMEOUT)
        self._check_topic(client)
        first = client.offsets(resume, "earliest", CONNECT_TIMEOUT)
        end = client.offsets(resume, "latest", CONNECT_TIMEOUT)
        for number, diverged_at in resume.items():
            position, same_log = self._partitions[number].position, client.topic_id() is not None
            kind, lost, resume_at = find_gap(position, diverged_at, first[number], end[number], same_log=same_log)
            if resume_at != position:  # else a false alarm, as from a new leader that has not caught up
                self._loss.record(kind, lost, partition=number, position=position, resume_at=resume_at)
            self._set_positions({number: resume_at}, self._epochs() if resume_at <= position else None)
        client.assign(self.positions, self._epochs())


def find_gap(position: int, diverged_at: int | None, first: int, end: int, *, same_log: bool) -> tuple[str, int, int]:
    """Find why a log no longer has a position, and where to continue.

    A log that ends before `position` was truncated there. Unless it is certainly the same log, it is treated as a new
    one, and read whole. A truncation loses no unread message as far as is known: the lost end had been read. Messages
    that were written and lost again in the meantime cannot be seen.

    Args:
        position: The next offset.
        diverged_at: Where the client found the log truncated. None if unknown.
        first: The first offset of the log.
        end: The offset after its last message.
        same_log: Whether a topic id shows that the log is the same.

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
    """Join several sources, such as topics of decisions and rewards. An error of one is an error of all."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)
        self._failure: SourceError | None = None

    def poll(self, timeout: float) -> list[Records]:
        if self._failure is not None:
            raise self._failure
        deadline = time.monotonic() + timeout
        records = self._poll_each(0.0)
        while not records and (left := deadline - time.monotonic()) > 0:
            records = self._poll_each(min(SLICE_SECONDS, left))
        return records

    def _poll_each(self, timeout: float) -> list[Records]:
        """Return messages polled before an error, and raise the error later: they would not be read again."""
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
        states = [source.status() for source in self._sources]
        unreached = [status for status in states if not status.reached]
        return SourceStatus(
            reached=not unreached,
            exhausted=all(status.exhausted for status in states),
            partitions=tuple(partition for status in states for partition in status.partitions),
            detail="; ".join(dict.fromkeys(status.detail for status in unreached or states)),
            rebuilds=sum(status.rebuilds for status in states),
            lost=sum(status.lost for status in states),
            gaps=dict(sum((Counter(status.gaps) for status in states), Counter())),
            waiting=max((status.waiting for status in states), default=0.0),
        )

    def offsets(self) -> SourceOffsets:
        return {topic: offsets for source in self._sources for topic, offsets in source.offsets().items()}

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        for source in self._sources:
            source.pause(partitions)

    def commit(self, offsets: SourceOffsets) -> None:
        for source in self._sources:
            source.commit(offsets)

    def close(self) -> None:
        for source in self._sources:
            source.close()
