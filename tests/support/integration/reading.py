"""Poll a source, and count how often each message came."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from streameval.ingest.base import Offsets, SourceStatus
from streameval.ingest.kafka.connection import KafkaConnection
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.kafka.source import KafkaSource
from streameval.service.logging import RateLimit


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


@contextmanager
def reading(
    connection: KafkaConnection, topic: str, bookmark: Offsets | None = None, **changes: object
) -> Iterator[Reading]:
    settings = KafkaSettings.model_validate(connection.model_dump() | {"topic": topic} | changes)
    with closing(KafkaSource(settings, bookmark)) as source:
        yield Reading(source)


class Reading:
    """Poll a source and count how often each value came."""

    def __init__(self, source: KafkaSource) -> None:
        self.source = source
        self.seen: Counter[bytes | None] = Counter()

    @property
    def status(self) -> SourceStatus:
        return self.source.status()

    def poll_until(self, done: Callable[[], bool], timeout: float = 120.0) -> float:
        """Poll until `done()`, and return how long that took. Fail with the source's status."""
        started_at = time.monotonic()
        while not done():
            if time.monotonic() - started_at > timeout:
                pytest.fail(f"after {timeout} s: {self.seen.total()} messages, {self.status}")
            for records in self.source.poll(0.2):
                self.seen.update(records.values)
        return time.monotonic() - started_at

    def poll_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.poll_until(lambda: time.monotonic() > end, seconds + 60.0)

    def poll_to_the_end(self) -> None:
        self.poll_until(lambda: self.status.lag == 0)


@contextmanager
def log_lines() -> Iterator[list[str]]:
    """Collect the log of the client library during the block, with the daemon's rate limit."""
    lines: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    collector = Collector(logging.WARNING)
    collector.addFilter(RateLimit())
    logging.getLogger().addHandler(collector)
    try:
        yield lines
    finally:
        logging.getLogger().removeHandler(collector)
