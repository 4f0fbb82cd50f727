"""Add an event source: messages that are written in the configuration itself."""

from collections.abc import Collection
from typing import Any, Literal

from streameval.ingest.base import Records, Source, SourceOffsets, SourceSettings, SourceStatus, TopicPartition


class LiteralSettings(SourceSettings):
    """Hold the list of messages."""

    kind: Literal["literal"] = "literal"
    messages: list[str]

    @property
    def description(self) -> str:
        return f"{len(self.messages)} messages of the configuration"

    def identity(self) -> dict[str, Any]:
        return {"messages": self.messages}

    def open(self, offsets: SourceOffsets | None = None) -> Source:
        return LiteralSource(self.messages)


class LiteralSource:
    """Return all messages at the first poll."""

    def __init__(self, messages: list[str]) -> None:
        self._messages = [message.encode() for message in messages]

    def poll(self, timeout: float) -> list[Records]:
        messages, self._messages = self._messages, []
        return [Records("literal", 0, range(len(messages)), messages)] if messages else []

    def status(self) -> SourceStatus:
        return SourceStatus(reached=True, exhausted=not self._messages)

    def offsets(self) -> SourceOffsets:
        return {}

    def pause(self, partitions: Collection[TopicPartition]) -> None: ...

    def commit(self, offsets: SourceOffsets) -> None: ...

    def close(self) -> None: ...
