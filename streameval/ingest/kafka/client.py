"""The little that `KafkaSource` needs of a Kafka client library: any that offers this can stand behind it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Literal, Protocol

from streameval.ingest.background import ConnectionGroup
from streameval.ingest.base import Records
from streameval.ingest.settings import KafkaSettings

Beginning = Literal["earliest", "latest"] | datetime


class ClientError(Exception):
    """Trouble that may pass; the remedy is a new client."""


class OffsetsGoneError(ClientError):
    """The log no longer has what we want to read next. `resume`: where to go on per partition, None when unknown."""

    def __init__(self, resume: Mapping[int, int | None]) -> None:
        super().__init__(f"offsets are gone in partitions {sorted(resume)}")
        self.resume = resume


class KafkaClient(Protocol):
    """One topic, read without a group. Every method may raise `ClientError`; timeouts are seconds."""

    def topic_id(self) -> str | None:
        """What tells a topic from its successor of the same name; None when the broker does not say."""

    def partitions(self, timeout: float) -> Collection[int]:
        """Asks the cluster which partitions there are now; none when the topic does not exist."""

    def offsets(self, partitions: Collection[int], at: Beginning, timeout: float) -> dict[int, int]:
        """Asks for the offsets of the first and next message, or of the first message since a time."""

    def assign(self, positions: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        """Read these partitions, each from its offset on.

        `epochs`: of the messages before, where they are known. Where the log has another one there, `poll` raises
        `OffsetsGoneError` with the offset from which on they differ.
        """

    def poll(self, timeout: float) -> list[Records]:
        """Messages that have come; also raises `OffsetsGoneError`."""

    def pause(self, partitions: Collection[int]) -> None:
        """From now on hand out nothing of these, and of all others again; what was assigned does not matter."""

    def position(self, partition: int) -> int:
        """The offset to be read next; beyond markers of transactions, which are no messages."""

    def epochs(self) -> dict[int, int]:
        """Those of a `Bookmark` at the offsets to be read next."""

    def highwater(self, partition: int) -> int | None:
        """The offset that the next message will get, as the broker said last."""

    def close(self) -> None: ...


Connect = Callable[[KafkaSettings, float, ConnectionGroup], KafkaClient]
"""Makes a connected client within so many seconds, or raises `ClientError`; also when its lifeline is cut meanwhile."""
