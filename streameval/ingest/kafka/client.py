"""Separate a source from the client library that it reads through."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from streameval.ingest.base import Records
from streameval.ingest.kafka.connection import Start


class ClientError(Exception):
    """Report a failure that a new client may not have."""


class OffsetsGoneError(ClientError):
    """Report that the log no longer has the next messages.

    Args:
        resume: Where to continue, by partition. None if unknown.
    """

    def __init__(self, resume: Mapping[int, int | None]) -> None:
        super().__init__(f"offsets are gone in partitions {sorted(resume)}")
        self.resume = resume


SCHEMA_ID_HEADER = "__value_schema_id"


def with_schema_id(value: bytes | None, headers: Sequence[tuple[str, bytes | None]] | None) -> bytes | None:
    """Return a value after the id of its schema in the headers, as newer serializers of Confluent write it."""
    number = next((content for name, content in reversed(headers or ()) if name == SCHEMA_ID_HEADER), None)
    return number + value if number and value is not None else value


class Client(Protocol):
    """Read one topic without a consumer group. Every method may raise `ClientError`. Timeouts are seconds."""

    def topic_id(self) -> str | None:
        """Return the id that distinguishes the topic from a later one of its name, None if the broker gives none."""

    def partitions(self, timeout: float) -> Collection[int]:
        """Request the partitions that exist now, none if the topic does not exist."""

    def offsets(self, partitions: Collection[int], at: Start, timeout: float) -> dict[int, int]:
        """Request the offset of the first or next message, or of the first message since a time."""

    def assign(self, positions: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        """Read these partitions, and no others. The ends of their logs are unknown until brokers answer again.

        Args:
            positions: The next offset of each partition.
            epochs: Leader epochs of the messages before them, if known. If the log has another epoch there, `poll`
                raises `OffsetsGoneError` with the first offset that differs.
        """

    def pause(self, partitions: Collection[int]) -> None:
        """Pause these partitions, assigned or not, and resume all others."""

    def poll(self, timeout: float) -> list[Records]:
        """Return the messages that have come.

        Raises:
            OffsetsGoneError: The log no longer has the next messages.
            ClientError: The brokers cannot be reached or refuse.
        """

    def unblock(self, partitions: Collection[int]) -> None:
        """Restart fetching for partitions that have unread messages but deliver none.

        Raises:
            ClientError: The client cannot read on.
        """

    def position(self, partition: int) -> int:
        """Return the next offset, past markers of transactions, which are not messages."""

    def epochs(self) -> dict[int, int]:
        """Return the leader epochs of the messages before the next offsets, if known. See `Offsets`."""

    def highwater(self, partition: int) -> int | None:
        """Return the end of the log in the last answer of the broker, None before one."""

    def close(self) -> None:
        """Leave the cluster."""
