"""A Kafka topic as a source: all partitions, without a group, from positions that we keep ourselves."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Mapping
from threading import Event

import structlog

from streameval.common.text import counted
from streameval.ingest.background import Background, ConnectionGroup
from streameval.ingest.base import Offsets, Records, SourceOffsets, SourceStatus, TopicPartition
from streameval.ingest.data_loss import Gaps, going_on
from streameval.ingest.kafka.client import Beginning, ClientError, Connect, OffsetsGoneError
from streameval.ingest.kafka.kafka_python import KafkaPythonClient
from streameval.ingest.kafka.offset_commits import GroupWriter, OffsetCommitter
from streameval.ingest.kafka.progress import ReadProgress
from streameval.ingest.kafka.reader import (
    CONNECT_TIMEOUT,
    TopicReader,
    TopicReplacedError,
    close_quietly,
    open_topic,
)
from streameval.ingest.settings import KafkaSettings

BACKOFF_FIRST, BACKOFF_MOST, JITTER = 0.25, 5.0, 0.5
REACHED_FOR = 10.0
TELL_AGAIN, MOST_TROUBLES = 60.0, 20

log = structlog.get_logger(__name__)


class KafkaSource:
    """Reads a topic from a bookmark, or from `settings.start` when there is none.

    The positions are the truth: after any trouble a new client goes on exactly there, so that nothing is lost and
    nothing read twice. Partitions that appear later are read from their beginning: `start` is about what was there at
    the first start, and leaving out what came since would be a silent jump. `clock` counts seconds; `connect` makes the
    client; `chance` in [0, 1) spreads the pauses of many daemons whose broker went away at one moment.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        bookmark: Offsets | None = None,
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
        positions = bookmark.positions if bookmark else {}
        self._progress.place(positions, clock())
        self._progress.epochs = dict(bookmark.epochs) if bookmark else {}
        self._newcomers: Beginning = "earliest" if positions else settings.start
        self._topic_id = bookmark.identity if bookmark else None
        self._reader: TopicReader | None = None
        self._opening: Background[TopicReader] | None = None
        self._lifeline, self._closed = ConnectionGroup(), Event()
        self._told: dict[str, float] = {}
        self._detail = f"connecting to {settings.address}"
        self._retry_at = self._opened_at = clock()
        self._failures = self._rebuilds = 0
        self._gaps = Gaps(settings.topic, settings.on_lost_offsets)
        group = settings.group_id
        self._committer = OffsetCommitter(lambda: GroupWriter(settings, group, self._lifeline)) if group else None

    @property
    def positions(self) -> dict[int, int]:
        """The next offset of each partition; everything before it has been handed out or was lost."""
        return dict(self._progress.positions)

    def poll(self, timeout: float) -> list[Records]:
        """Messages that have come, within about `timeout` seconds.

        Raises SourceError when messages were lost and `on_lost_offsets` is `fail`, or when they cannot be unpacked.
        """
        try:
            reader = self._reader or self._open(timeout)
            return self._read(reader, timeout) if reader else []
        except TopicReplacedError:
            self._start_over()
        except ClientError as error:
            self._give_up(error)
        return []

    def status(self) -> SourceStatus:
        """Where we are; no round trip."""
        silence = self._clock() - self._reader.answered_at if self._reader else 0.0
        reached = self._reader is not None and silence < REACHED_FOR
        unanswered = self._reader is not None and not reached
        return SourceStatus(
            reached=reached,
            partitions=self._progress.status(self._settings.topic),
            detail=f"no answer from {self._settings.address} for {silence:.0f} s" if unanswered else self._detail,
            rebuilds=self._rebuilds,
            lost=self._gaps.lost,
            gaps=dict(self._gaps.kinds),
        )

    def bookmarks(self) -> SourceOffsets:
        """The next offset of each partition, the topic's id, and the epochs of its leaders."""
        return {self._settings.topic: self._bookmark()}

    def _bookmark(self) -> Offsets:
        return Offsets(self.positions, self._topic_id, dict(self._progress.epochs))

    def pause(self, places: Collection[TopicPartition]) -> None:
        """Leave these partitions in the log for now; they do not count as stuck."""
        paused = frozenset(partition for topic, partition in places if topic == self._settings.topic)
        if paused != self._progress.paused:
            self._progress.paused = paused
            if self._reader is not None:
                self._reader.client.pause(paused)

    def commit(self, bookmarks: SourceOffsets) -> None:
        """Show the positions as those of `settings.group_id`, if there is one."""
        bookmark = bookmarks.get(self._settings.topic)
        if self._committer is not None and bookmark is not None and bookmark.positions:
            self._committer.commit(bookmark.positions)

    def close(self) -> None:
        """Leave the cluster, or give up looking for it; status and positions can still be read."""
        self._closed.set()
        if self._committer is not None:
            self._committer.close()
        self._leave()
        self._lifeline.close()

    def _open(self, timeout: float) -> TopicReader | None:
        """The reader that is being opened beside the loop; None while that takes longer, and in the pauses between."""
        if self._opening is None:
            pause = self._retry_at - self._clock()
            if pause > 0:
                self._closed.wait(min(pause, timeout))
                return None
            self._opening = Background(self._open_beside)
        reader = self._opening.result(timeout)
        if reader is not None:
            self._opening = None
            self._begin(reader)
        return reader

    def _open_beside(self) -> TopicReader:
        known, newcomers = self._bookmark(), self._newcomers
        reader = open_topic(self._connect, self._settings, known, newcomers, self._clock, self._lifeline)
        if self._closed.is_set():
            close_quietly(reader.client)
        return reader

    def _begin(self, reader: TopicReader) -> None:
        self._reader = reader
        reader.check_successor(self._topic_id, self.positions)
        self._topic_id = reader.topic_id or self._topic_id
        self._newcomers = "earliest"
        reader.start(self._progress)
        self._opened_at = self._clock()
        self._detail = f"reading {counted(len(reader.positions), 'partition')} of {self._settings.topic}"
        if self._is_news("connected"):
            where = {"servers": self._settings.address, "topic": self._settings.topic}
            log.info("kafka_connected", **where, positions=self.positions)

    def _read(self, reader: TopicReader, timeout: float) -> list[Records]:
        try:
            return reader.read(timeout)
        except OffsetsGoneError as gone:
            self._skip(reader, gone.resume)
            return []

    def _skip(self, reader: TopicReader, resume: Mapping[int, int | None]) -> None:
        """Go on where the log still has messages, and count those that it no longer has."""
        reader.client.partitions(CONNECT_TIMEOUT)
        reader.check_topic()
        first = reader.client.offsets(resume, "earliest", CONNECT_TIMEOUT)
        end = reader.client.offsets(resume, "latest", CONNECT_TIMEOUT)
        for partition, place in resume.items():
            position = self._progress.positions[partition]
            gap = going_on(position, place, first[partition], end[partition], same_log=reader.topic_id is not None)
            if gap.place != position:  # else a false alarm: a new leader that has not caught up says that, too
                self._gaps.found(gap.kind, gap.lost, partition=partition, position=position, goes_on_at=gap.place)
            reader.seek({partition: gap.place})

    def _start_over(self) -> None:
        """The topic is another one of the same name: all of it is new to us."""
        self._gaps.found("replaced", self._progress.known_lag, old_topic=self._topic_id, positions=self.positions)
        self._leave()
        self._topic_id, self._progress = None, ReadProgress(paused=self._progress.paused)

    def _give_up(self, error: ClientError) -> None:
        """Drop the client; the next one comes after a pause that about doubles from failure to failure."""
        now = self._clock()
        if now - self._opened_at > REACHED_FOR and self._reader is not None:
            self._failures = 0
        pause = min(BACKOFF_FIRST * 2.0 ** min(self._failures, 10), BACKOFF_MOST) * (1.0 - JITTER * self._chance())
        self._failures += 1
        self._rebuilds += self._reader is not None
        self._leave()
        self._retry_at = now + pause
        self._tell(f"cannot read from {self._settings.address}: {error}")

    def _tell(self, detail: str) -> None:
        if self._is_news(detail):
            log.warning("kafka_not_reached", detail=detail, rebuilds=self._rebuilds)
        self._detail = detail

    def _is_news(self, told: str) -> bool:
        """Whether something is to be logged: once a minute, so that trouble that comes and goes fills no disk."""
        now = self._clock()
        if now < self._told.get(told, -math.inf) + TELL_AGAIN:
            return False
        if len(self._told) > MOST_TROUBLES:
            self._told.clear()
        self._told[told] = now
        return True

    def _leave(self) -> None:
        self._opening = None
        if self._reader is not None:
            close_quietly(self._reader.client)
            self._reader = None
