"""The interface between a source and a client library."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from streameval.ingest.base import Records
from streameval.ingest.kafka.connection import Start


class ClientError(Exception):
    """A transient failure; the remedy is a new client."""


class OffsetsGoneError(ClientError):
    """The log no longer has the next messages. `resume`: by partition, where to continue; None when unknown."""

    def __init__(self, resume: Mapping[int, int | None]) -> None:
        super().__init__(f"offsets are gone in partitions {sorted(resume)}")
        self.resume = resume


class Client(Protocol):
    """One topic, read without a group. Every method may raise `ClientError`; timeouts are seconds."""

    def topic_id(self) -> str | None:
        """The id that distinguishes the topic from a later one of its name; None when the broker does not give one."""

    def partitions(self, timeout: float) -> Collection[int]:
        """Request the partitions that exist now; none when the topic does not exist."""

    def offsets(self, partitions: Collection[int], at: Start, timeout: float) -> dict[int, int]:
        """Request the offset of the first or next message, or of the first message since a time."""

    def assign(self, positions: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        """Read these partitions, each from its offset on.

        `epochs`: leader epochs of the messages before, where known. Where the log has another epoch there, `poll`
        raises `OffsetsGoneError` with the first offset that differs. The ends of the logs are unknown until
        brokers answer again.
        """

    def pause(self, partitions: Collection[int]) -> None:
        """Return no messages of these from now on, and those of all others again; also before they are assigned."""

    def poll(self, timeout: float) -> list[Records]:
        """Messages that have come.

        Raises:
            OffsetsGoneError: The log no longer has the next messages.
            ClientError: The brokers cannot be reached or refuse.
        """

    def unblock(self, partitions: Collection[int]) -> None:
        """Let `poll` return messages of partitions that have unread ones, of which none comes.

        Raises:
            ClientError: The client cannot read on.
        """

    def position(self, partition: int) -> int:
        """The offset to be read next, past markers of transactions, which are not messages."""

    def epochs(self) -> dict[int, int]:
        """The leader epochs at the offsets to be read next, where known; see `Offsets`."""

    def highwater(self, partition: int) -> int | None:
        """The offset that the next message will get, in the last answer of the broker; None before one."""

    def close(self) -> None:
        """Leave the cluster."""
