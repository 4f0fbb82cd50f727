"""A connected client reading one topic: hands out records, and looks around now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import structlog

from streameval.ingest.background import ConnectionGroup
from streameval.ingest.base import Offsets, Records
from streameval.ingest.kafka.client import Beginning, ClientError, Connect, KafkaClient, OffsetsGoneError
from streameval.ingest.kafka.progress import ReadProgress
from streameval.ingest.settings import KafkaSettings

CONNECT_TIMEOUT = 10.0
PROBE_INTERVAL = 3.0
BUSY = 0.1
"""Share of the time that whoever polls is at work which counts against a partition that does not move. Its turn comes
when what the client has of others is handed out, which may take long where events come faster than they are worked
through; and a new client, which forgets all that, would begin with the same others."""
PROBE_TIMEOUT = 1.0  # a broker may hold the connection for the half second of an empty fetch before it answers

log = structlog.get_logger(__name__)


class TopicReplacedError(ClientError):
    """The topic was deleted and made anew: positions belong to a log that is no more."""


class TopicReader:
    """Reads a topic into a `ReadProgress` for as long as its client works; any `ClientError` ends it.

    Everything that may fail comes before records are taken, so that records taken are always handed out.
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
        """Go on in `progress`, which takes the positions that this reader begins at."""
        now = self._clock()
        self._progress = progress
        self.client.pause(progress.paused)
        self._probe_at, self._discover_at = now + PROBE_INTERVAL, now + self._settings.discovery_interval
        progress.place(self.positions, self._patience())
        progress.epochs = self.client.epochs()

    def read(self, timeout: float) -> list[Records]:
        """Messages that have come within about `timeout` seconds; raises `ClientError` and `OffsetsGoneError`."""
        if self._left_at is not None:
            self._forgiven += (1.0 - BUSY) * (self._clock() - self._left_at)
            self._left_at = None
        if self._clock() >= self._probe_at:
            self._look_around()
        records = self.client.poll(timeout)
        self._check(records)
        self._progress.see_ends({partition: self.client.highwater(partition) for partition in self.positions})
        if records:
            self.answered_at = self._clock()
            self._progress.take(records, self._patience())
            self._progress.epochs = self.client.epochs()
            self._left_at = self.answered_at
        return records

    def _patience(self) -> float:
        """A clock by which partitions must move: it is slow while whoever polls is at work."""
        return self._clock() - self._forgiven

    def seek(self, positions: Mapping[int, int]) -> None:
        """Read some partitions from other offsets, and all others from where they are."""
        self._progress.place(positions, self._patience())
        here = {partition: self._progress.positions[partition] for partition in self.positions}
        self.client.assign(here, self._progress.epochs)

    def check_successor(self, topic_id: str | None, positions: Mapping[int, int]) -> None:
        """Raises TopicReplacedError when this is not the topic that had this id or these partitions: none ever goes."""
        gone = sorted(positions.keys() - self.positions.keys())
        if topic_id and self.topic_id and topic_id != self.topic_id:
            raise TopicReplacedError(f"the topic {self._settings.topic} was deleted and made anew")
        if gone and topic_id and self.topic_id:
            raise ClientError(f"the broker does not list the partitions {gone} of {self._settings.topic}")
        if gone:
            raise TopicReplacedError(f"{self._settings.topic} has no partitions {gone} any more: it was made anew")

    def check_topic(self) -> None:
        """Raises TopicReplacedError when the broker now knows another topic by this name."""
        if self.client.topic_id() not in (None, self.topic_id):
            raise TopicReplacedError(f"the topic {self._settings.topic} was deleted and made anew")

    def _check(self, records: list[Records]) -> None:
        self.check_topic()
        for part in records:
            if part.offsets and part.offsets[0] < self._progress.positions[part.partition]:
                raise ClientError(f"partition {part.partition} came a second time from offset {part.offsets[0]}")

    def _look_around(self) -> None:
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
        stalled = self._progress.stalled(self._patience(), self._settings.stall_timeout)
        if stalled:
            raise ClientError(f"events wait in partitions {stalled} but none comes")

    def _probe(self, now: float) -> None:
        """An empty poll does not tell a quiet topic from a dead cluster: ask."""
        asked_at = time.time()
        ends = self.client.offsets(self.positions, "latest", PROBE_TIMEOUT)
        self.answered_at = self._clock()
        for partition in self.positions:
            self._progress.move(partition, self.client.position(partition), self._patience())
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
    lifeline: ConnectionGroup,
) -> TopicReader:
    """A reader of all partitions from where they are known, and from `newcomers` where not; raises `ClientError`."""
    client = connect(settings, CONNECT_TIMEOUT, lifeline)
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
    """Where to begin in each of the partitions: where it is known, or at `newcomers`."""
    fresh = partitions - known.keys()
    found = client.offsets(fresh, newcomers, timeout) if fresh else {}
    return {partition: known.get(partition, found.get(partition, 0)) for partition in partitions}


def close_quietly(client: KafkaClient) -> None:
    """Close a client that may be broken already."""
    with suppress(ClientError):
        client.close()
