"""Offsets for tools that show lag: written to a group beside the loop, never read back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any, Protocol

import structlog
from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import NoError
from kafka.structs import OffsetAndMetadata

from streameval.ingest.background import ConnectionGroup
from streameval.ingest.kafka.client import ClientError
from streameval.ingest.kafka.kafka_python import connected, connection_options, translated_errors
from streameval.ingest.settings import KafkaSettings

CONNECT_TIMEOUT = 10.0
CLOSE_TIMEOUT = 2.0
"""Seconds that the last commit gets at the end of the program."""
LOG_EVERY = 60.0

log = structlog.get_logger(__name__)


class Writer(Protocol):
    """A connection that writes the offsets of a group; raises `ClientError`."""

    def write(self, positions: Mapping[int, int]) -> None: ...

    def close(self) -> None: ...


class OffsetCommitter:
    """Writes the newest positions in a thread of its own: whoever commits neither waits nor fails.

    While one writing is under way, only the last positions of those that come are kept. The consumer that reads could
    do it, but while it looks for the coordinator of a group it does not read; this thread may hang, and nothing else.
    """

    def __init__(self, connect: Callable[[], Writer], clock: Callable[[], float] = time.monotonic) -> None:
        self._connect, self._clock = connect, clock
        self._latest: Mapping[int, int] | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._failures = 0
        self._logged_at = -LOG_EVERY

    def commit(self, positions: Mapping[int, int]) -> None:
        """Write these positions soon, unless newer ones come before."""
        with self._changed:
            self._latest = dict(positions)
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="streameval-commits", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Write what was committed last, if that does not take long."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT)

    def _run(self) -> None:
        writer: Writer | None = None
        while (positions := self._next()) is not None:
            try:
                writer = writer or self._connect()
                writer.write(positions)
            except ClientError as error:
                self._tell(error)
                _close(writer)
                writer = None
        _close(writer)

    def _next(self) -> Mapping[int, int] | None:
        """The newest positions, once there are some; None when no more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._latest is not None or self._closed)
            positions, self._latest = self._latest, None
            return positions

    def _tell(self, error: ClientError) -> None:
        self._failures += 1
        if self._clock() >= self._logged_at + LOG_EVERY:
            log.warning("offsets_not_committed", failures=self._failures, error=str(error))
            self._logged_at, self._failures = self._clock(), 0


class GroupWriter:
    """Writes the offsets of one topic by kafka-python's administrator."""

    def __init__(self, settings: KafkaSettings, group: str, lifeline: ConnectionGroup) -> None:
        self._topic, self._group = settings.topic, group
        with translated_errors():
            options = connection_options(settings)
            self._administrator, _ = connected(KafkaAdminClient, options, CONNECT_TIMEOUT, lifeline)

    def write(self, positions: Mapping[int, int]) -> None:
        """Write them all, or raise ClientError with what was refused."""
        offsets = {
            TopicPartition(self._topic, partition): OffsetAndMetadata(offset, "", -1)
            for partition, offset in positions.items()
        }
        with translated_errors():
            answers: dict[Any, Any] = self._administrator.alter_group_offsets(self._group, offsets)
        refused = {key.partition: error.__name__ for key, error in answers.items() if error is not NoError}
        if refused:
            raise ClientError(f"the group {self._group} of {self._topic} refused offsets: {refused}")

    def close(self) -> None:
        """Leave the cluster."""
        with translated_errors(), closing(self._administrator):
            pass


def _close(writer: Writer | None) -> None:
    if writer is not None:
        with suppress(ClientError):
            writer.close()
