"""A source that lies in memory, so that what is measured is ours."""

from __future__ import annotations

from streameval.ingest.base import Records, SourceStatus

POLL = 2_000


class MemorySource:
    """The same messages, in polls of 2,000; again and again until `events` have been handed out, or just once."""

    def __init__(self, values: list[bytes], events: int | None = None) -> None:
        self.polls = [values[first : first + POLL] for first in range(0, len(values), POLL)]
        self.left, self.offset = len(values) if events is None else events, 0

    def poll(self, timeout: float) -> list[Records]:
        if self.left <= 0:
            return []
        values = self.polls[(self.offset // POLL) % len(self.polls)]
        offsets = range(self.offset, self.offset + len(values))
        self.offset, self.left = self.offset + len(values), self.left - len(values)
        return [Records("memory", 0, offsets, values)]

    def status(self) -> SourceStatus:
        return SourceStatus(reached=True, exhausted=self.left <= 0)

    def close(self) -> None:
        pass
