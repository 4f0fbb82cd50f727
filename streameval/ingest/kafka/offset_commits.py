"""Offsets of a consumer group, for tools that show lag: written beside the loop, never read back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, Protocol

from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import NoError
from kafka.structs import OffsetAndMetadata

from streameval.ingest.background import ConnectionGroup, RetryError, Worker
from streameval.ingest.kafka.kafka_python import connected, connection_options, translated_errors
from streameval.ingest.kafka.reader import ClientError
from streameval.ingest.kafka.settings import KafkaSettings

CONNECT_TIMEOUT = 10.0
CLOSE_TIMEOUT = 2.0
"""Seconds for the last commit at the end of the program."""


class Writer(Protocol):
    """A connection that writes the offsets of a group; raises `ClientError`."""

    def write(self, positions: Mapping[int, int]) -> None: ...

    def close(self) -> None: ...


class OffsetCommitter:
    """Writes the newest positions in its own thread: `commit` neither waits nor fails.

    The consumer that reads could commit, but while it looks for the coordinator of a group it does not read.
    """

    def __init__(self, connect: Callable[[], Writer]) -> None:
        self._connect = connect
        self._writer: Writer | None = None
        self._worker: Worker[Mapping[int, int]] = Worker(
            self._write, name="streameval-commits", event="offsets_not_committed", close=self._disconnect
        )

    def commit(self, positions: Mapping[int, int]) -> None:
        """Write these positions soon, unless newer ones follow before."""
        self._worker.put([dict(positions)], newest_only=True)

    def close(self) -> None:
        """Write the last positions, if that takes no longer than `CLOSE_TIMEOUT` seconds."""
        self._worker.close(CLOSE_TIMEOUT)

    def _write(self, batch: Sequence[Mapping[int, int]]) -> int:
        try:
            self._writer = self._writer or self._connect()
            for positions in batch:
                self._writer.write(positions)
        except ClientError as error:
            self._disconnect()
            raise RetryError(str(error), batch) from error
        return len(batch)

    def _disconnect(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(ClientError):
                writer.close()


class GroupWriter:
    """Writes the offsets of one topic with kafka-python's administrator."""

    def __init__(self, settings: KafkaSettings, group: str, connections: ConnectionGroup) -> None:
        self._topic, self._group = settings.topic, group
        with translated_errors():
            options = connection_options(settings)
            self._administrator, _ = connected(KafkaAdminClient, options, CONNECT_TIMEOUT, connections)

    def write(self, positions: Mapping[int, int]) -> None:
        """Write the offset of each partition; ClientError names those that were refused."""
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
