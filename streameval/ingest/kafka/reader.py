"""Reads one topic through a connected client, and tracks how far each partition has been read."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

import structlog

from streameval.ingest.background import ConnectionGroup
from streameval.ingest.base import Offsets, PartitionStatus, Records
from streameval.ingest.kafka.settings import KafkaSettings

CONNECT_TIMEOUT = 10.0
PROBE_INTERVAL = 3.0
BUSY = 0.1
"""Share of the caller's time between two polls that counts towards the stall timeout. A partition waits while messages
fetched from others are processed, which may take long when events come faster than that; a new client would forget
these messages and fetch the same ones first."""
PROBE_TIMEOUT = 1.0  # a broker may hold the connection for the half second of an empty fetch before it answers

log = structlog.get_logger(__name__)

Beginning = Literal["earliest", "latest"] | datetime


class ClientError(Exception):
    """A transient failure; the remedy is a new client."""


class OffsetsGoneError(ClientError):
    """The log no longer has the next messages. `resume`: by partition, where to continue; None when unknown."""

    def __init__(self, resume: Mapping[int, int | None]) -> None:
        super().__init__(f"offsets are gone in partitions {sorted(resume)}")
        self.resume = resume


class KafkaClient(Protocol):
    """One topic, read without a group. Every method may raise `ClientError`; timeouts are seconds."""

    def topic_id(self) -> str | None:
        """The id that distinguishes the topic from a later one of its name; None when the broker does not give one."""

    def partitions(self, timeout: float) -> Collection[int]:
        """Request the partitions that exist now; none when the topic does not exist."""

    def offsets(self, partitions: Collection[int], at: Beginning, timeout: float) -> dict[int, int]:
        """Request the offset of the first or next message, or of the first message since a time."""

    def assign(self, positions: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        """Read these partitions, each from its offset on.

        `epochs`: leader epochs of the messages before, where known. Where the log has another epoch there, `poll`
        raises `OffsetsGoneError` with the first offset that differs.
        """

    def poll(self, timeout: float) -> list[Records]:
        """Messages that have come; may raise `OffsetsGoneError`."""

    def pause(self, partitions: Collection[int]) -> None:
        """Return no messages of these from now on, and those of all others again; also before they are assigned."""

    def position(self, partition: int) -> int:
        """The offset to be read next, past markers of transactions, which are no messages."""

    def epochs(self) -> dict[int, int]:
        """The leader epochs at the offsets to be read next; see `Offsets`."""

    def highwater(self, partition: int) -> int | None:
        """The offset that the next message will get, in the last answer of the broker."""

    def close(self) -> None: ...


Connect = Callable[[KafkaSettings, float, ConnectionGroup], KafkaClient]
"""Makes a connected client within so many seconds; raises `ClientError` else, or when its group is closed meanwhile."""


@dataclass
class ReadProgress:
    """The next offset of each partition, the known end of its log, and when it last advanced (seconds).

    `ends` includes open transactions, `readable` does not. `paused`: partitions not to be read for now. `ended`: of
    partitions found at their end by the last request, its time (epoch seconds); an open transaction is before the end.
    `epochs`: see `Offsets`.

    >>> progress = ReadProgress()
    >>> progress.place({0: 10}, now=0.0)
    >>> progress.see_readable({0: 12})
    >>> progress.lag(0), progress.stalled(now=31.0, after=30.0)
    (2, [0])
    """

    positions: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    readable: dict[int, int] = field(default_factory=dict)
    moved_at: dict[int, float] = field(default_factory=dict)
    paused: frozenset[int] = frozenset()
    ended: dict[int, float] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)

    def place(self, positions: Mapping[int, int], now: float) -> None:
        """Move partitions to these offsets; the ends of their logs are then unknown."""
        for partition, offset in positions.items():
            self.positions[partition] = offset
            self.moved_at[partition] = now
            self.ends.pop(partition, None)
            self.readable.pop(partition, None)
            self.ended.pop(partition, None)
            self.epochs.pop(partition, None)

    def take(self, records: Iterable[Records], now: float) -> None:
        """These records are returned and will not be read again."""
        for part in records:
            if part.offsets:
                self.move(part.partition, part.offsets[-1] + 1, now)

    def move(self, partition: int, offset: int, now: float) -> None:
        """The partition has been read up to `offset`."""
        if offset > self.positions[partition]:
            self.positions[partition] = offset
            self.moved_at[partition] = now
            self.ended.pop(partition, None)

    def see_ends(self, ends: Mapping[int, int | None]) -> None:
        """The offsets that the next messages will get (None = unknown); lower than before in a truncated log."""
        self.ends.update({partition: end for partition, end in ends.items() if end is not None})

    def see_readable(self, ends: Mapping[int, int], asked_at: float = 0.0) -> None:
        """The offsets up to which messages can be read now, requested at this time (epoch seconds)."""
        self.readable.update(ends)
        self.ended = {partition: asked_at for partition in ends if self.lag(partition) == 0}

    def lag(self, partition: int) -> int | None:
        """Unread messages of the partition; None while the end of its log is unknown."""
        ends = [known[partition] for known in (self.ends, self.readable) if partition in known]
        return max(0, max(ends) - self.positions[partition]) if ends else None

    @property
    def known_lag(self) -> int:
        """Known unread messages of all partitions."""
        return sum(self.lag(partition) or 0 for partition in self.positions)

    def stalled(self, now: float, after: float) -> list[int]:
        """Partitions with readable and wanted messages of which none has come for `after` seconds."""
        for partition, position in self.positions.items():
            if self.readable.get(partition, 0) <= position or partition in self.paused:
                self.moved_at[partition] = now
        return [partition for partition, moved in self.moved_at.items() if now - moved > after]

    def status(self, topic: str) -> tuple[PartitionStatus, ...]:
        """The partitions, by number."""
        return tuple(
            PartitionStatus(topic, partition, position, self.lag(partition), self.ended.get(partition))
            for partition, position in sorted(self.positions.items())
        )


class TopicReplacedError(ClientError):
    """The topic was deleted and created again: the positions are those of a log that no longer exists."""


class TopicReader:
    """Reads a topic and updates a `ReadProgress` until its client fails with a `ClientError`.

    Everything that may fail comes before positions advance, so that no message is counted as read and then dropped.
    """

    def __init__(
        self, client: KafkaClient, positions: Mapping[int, int], settings: KafkaSettings, clock: Callable[[], float]
    ) -> None:
        self.client = client
        self.topic_id = client.topic_id()
        self.positions = dict(positions)
        self.answered_at = clock()
        self._settings = settings
        self._clock = clock
        self._progress = ReadProgress()
        self._probe_at = self._discover_at = 0.0
        self._left_at: float | None = None
        self._forgiven = 0.0

    def start(self, progress: ReadProgress) -> None:
        """Update `progress` from now on, starting with the positions of this reader."""
        now = self._clock()
        self._progress = progress
        self.client.pause(progress.paused)
        self._probe_at, self._discover_at = now + PROBE_INTERVAL, now + self._settings.discovery_interval
        progress.place(self.positions, self._stall_clock())
        progress.epochs = self.client.epochs()

    def read(self, timeout: float) -> list[Records]:
        """Messages that have come within about `timeout` seconds; raises `ClientError` and `OffsetsGoneError`."""
        if self._left_at is not None:
            self._forgiven += (1.0 - BUSY) * (self._clock() - self._left_at)
            self._left_at = None
        if self._clock() >= self._probe_at:
            self._check_broker()
        records = self.client.poll(timeout)
        self._check(records)
        self._progress.see_ends({partition: self.client.highwater(partition) for partition in self.positions})
        if records:
            self.answered_at = self._clock()
            self._progress.take(records, self._stall_clock())
            self._progress.epochs = self.client.epochs()
            self._left_at = self.answered_at
        return records

    def _stall_clock(self) -> float:
        """The clock of stalls, which is slower while the caller processes messages."""
        return self._clock() - self._forgiven

    def seek(self, positions: Mapping[int, int]) -> None:
        """Read these partitions from other offsets."""
        self._progress.place(positions, self._stall_clock())
        here = {partition: self._progress.positions[partition] for partition in self.positions}
        self.client.assign(here, self._progress.epochs)

    def check_successor(self, topic_id: str | None, positions: Mapping[int, int]) -> None:
        """Raises TopicReplacedError when this topic has another id, or fewer partitions, which a topic never loses."""
        gone = sorted(positions.keys() - self.positions.keys())
        if topic_id and self.topic_id and topic_id != self.topic_id:
            raise TopicReplacedError(f"the topic {self._settings.topic} was deleted and created again")
        if gone and topic_id and self.topic_id:
            raise ClientError(f"the broker does not list the partitions {gone} of {self._settings.topic}")
        if gone:
            raise TopicReplacedError(f"{self._settings.topic} has no partitions {gone} any more: it was created again")

    def check_topic(self) -> None:
        """Raises TopicReplacedError when another topic has this name now."""
        if self.client.topic_id() not in (None, self.topic_id):
            raise TopicReplacedError(f"the topic {self._settings.topic} was deleted and created again")

    def _check(self, records: list[Records]) -> None:
        self.check_topic()
        for part in records:
            if part.offsets and part.offsets[0] < self._progress.positions[part.partition]:
                raise ClientError(f"partition {part.partition} was read a second time from offset {part.offsets[0]}")

    def _check_broker(self) -> None:
        now = self._clock()
        self._probe_at = now + PROBE_INTERVAL
        try:
            self._probe(now)
        except OffsetsGoneError:
            raise
        except ClientError as error:
            if now - self.answered_at > self._settings.stall_timeout:
                raise ClientError(f"no answer for {now - self.answered_at:.0f} s: {error}") from error
            return
        stalled = self._progress.stalled(self._stall_clock(), self._settings.stall_timeout)
        if stalled:
            raise ClientError(f"partitions {stalled} have unread events but none comes")

    def _probe(self, now: float) -> None:
        """Request the ends of the logs: an empty poll does not distinguish a quiet topic from a dead cluster."""
        asked_at = time.time()
        ends = self.client.offsets(self.positions, "latest", PROBE_TIMEOUT)
        self.answered_at = self._clock()
        for partition in self.positions:
            self._progress.move(partition, self.client.position(partition), self._stall_clock())
        self._progress.epochs = self.client.epochs()
        self._progress.see_readable(ends, asked_at)
        if now >= self._discover_at:
            self._discover()
            self._discover_at = now + self._settings.discovery_interval

    def _discover(self) -> None:
        fresh = set(self.client.partitions(PROBE_TIMEOUT)) - self.positions.keys()
        if fresh:
            found = starting_positions(self.client, fresh, self._progress.positions, "earliest", PROBE_TIMEOUT)
            self.positions |= found
            self.seek(found)
            log.info("kafka_partitions_added", topic=self._settings.topic, partitions=sorted(fresh))


def open_topic(
    connect: Connect,
    settings: KafkaSettings,
    known: Offsets,
    newcomers: Beginning,
    clock: Callable[[], float],
    connections: ConnectionGroup,
) -> TopicReader:
    """A reader of all partitions, from `known` offsets or else from `newcomers`; raises `ClientError`."""
    client = connect(settings, CONNECT_TIMEOUT, connections)
    try:
        partitions = set(client.partitions(CONNECT_TIMEOUT))
        if not partitions:
            raise ClientError(f"the topic {settings.topic!r} does not exist yet")
        begin = starting_positions(client, partitions, known.positions, newcomers, CONNECT_TIMEOUT)
        client.assign(begin, known.epochs)
        return TopicReader(client, begin, settings, clock)
    except BaseException:
        close_quietly(client)
        raise


def starting_positions(
    client: KafkaClient, partitions: set[int], known: Mapping[int, int], newcomers: Beginning, timeout: float
) -> dict[int, int]:
    """The offset to start at in each partition: the known one, or that of `newcomers`."""
    fresh = partitions - known.keys()
    found = client.offsets(fresh, newcomers, timeout) if fresh else {}
    return {partition: known.get(partition, found.get(partition, 0)) for partition in partitions}


def close_quietly(client: KafkaClient) -> None:
    """Close a client that may be broken."""
    with suppress(ClientError):
        client.close()
