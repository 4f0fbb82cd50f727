"""Provide a source in memory, so that only our own work is measured, and the work of a daemon that reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import orjson
from measuring import Work

from streameval import Evaluator, EventBatch
from streameval.events import JsonDecoder
from streameval.ingest.base import Records, SourceStatus
from streameval.ingest.pipeline import Decoder
from streameval.service.daemon import Daemon

POLL = 2_000


class MemorySource:
    """Deliver messages once, in polls of 2,000."""

    def __init__(self, values: Sequence[bytes]) -> None:
        self.values, self.offset = values, 0

    def poll(self, timeout: float) -> list[Records]:
        values = list(self.values[self.offset : self.offset + POLL])
        offsets = range(self.offset, self.offset + len(values))
        self.offset += len(values)
        return [Records("memory", 0, offsets, values)] if values else []

    def status(self) -> SourceStatus:
        return SourceStatus(reached=True, exhausted=self.offset >= len(self.values))

    def close(self) -> None:
        pass


def daemon(values: Sequence[bytes], decoder: JsonDecoder, evaluator: Evaluator) -> Work:
    """Return the work of the daemon's loop: decode, evaluate and publish all messages again with one evaluator."""
    return Work(lambda: Daemon(MemorySource(values), decoder, evaluator, stop_when_exhausted=True).run(), len(values))


def parsing(values: Sequence[bytes]) -> Work:
    """Return the work of `orjson.loads` alone, the yardstick."""

    def parse() -> None:
        for value in values:
            orjson.loads(value)

    return Work(parse, len(values))


def decoding(values: Sequence[bytes], decoder: Decoder, poll: int = POLL) -> Work:
    """Return the work of decoding alone, in polls."""
    return Work(lambda: decoded(values, decoder.decode_batch, poll), len(values))


def decoded(values: Sequence[bytes], decode: Callable[[list[bytes]], EventBatch], poll: int = POLL) -> list[EventBatch]:
    """Return the batches of all polls."""
    return [decode(list(values[first : first + poll])) for first in range(0, len(values), poll)]
