"""Backfill: reads the log again for a new candidate, a slice per poll, until it reaches the live position."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import structlog

from streameval.errors import StreamevalError
from streameval.events import EventBatch
from streameval.ingest.backfill_reader import BackfillReader
from streameval.ingest.base import SourceStatus, TopicPartition
from streameval.ingest.pipeline import EventPipeline
from streameval.service.status import BackfillStatus

SLICE = 0.2
"""Seconds that a slice takes, unless it takes longer to catch up with a busy live stream."""
PATIENCE = 0.05  # seconds to wait in a slice for messages

log = structlog.get_logger("streameval")


class LateCandidate(Protocol):
    """New candidates, which get earlier events until they have all, or the log cannot be read; then they join."""

    @property
    def policies(self) -> Sequence[str]: ...

    @property
    def awaited(self) -> bool:
        """Whether one of them is still configured."""

    def update(self, batch: EventBatch) -> None: ...

    def join(self, *, from_zero: bool) -> None:
        """Get all live events from now on; `from_zero`: forget the earlier ones."""


class Backfill:
    """Gives a late candidate each event from the start of `open` to the live position once, then lets it join.

    The daemon calls `slice` between two polls of the live source. Each slice reads more events than the live loop did
    since the last one, so the live position is reached.
    """

    def __init__(self, late: LateCandidate, open: Callable[[Mapping[TopicPartition, int]], BackfillReader]) -> None:
        self._late, self._open = late, open
        self._reader: BackfillReader | None = None
        self._pipeline: EventPipeline | None = None
        self._read = 0

    def slice(self, pipeline: EventPipeline, live: SourceStatus, at_least: int) -> bool:
        """Read for `SLICE` seconds, and `at_least` so many events while there are some; True when it has ended."""
        policies = list(self._late.policies)
        if not self._late.awaited:
            log.info("backfill_given_up", policies=policies, reason="no longer configured")
            return self._end()
        positions = live.positions
        if not positions:
            return False
        try:
            caught_up = self._advance(pipeline, live, at_least)
        except StreamevalError as error:
            log.error("backfill_failed", policies=policies, error=error.message, hint=error.hint)
            self._late.join(from_zero=True)
            return self._end()
        if caught_up:
            log.info("backfill_done", policies=policies, events=self._read)
            self._late.join(from_zero=False)
            return self._end()
        if self._reader is not None:
            log.info("backfill_continues", policies=policies, events=self._read, waiting=self._reader.behind(positions))
        return False

    def progress(self, live: SourceStatus) -> BackfillStatus:
        """The events read, and those still to read."""
        waiting = self._reader.behind(live.positions) if self._reader else None
        return BackfillStatus(tuple(self._late.policies), self._read, waiting)

    def close(self) -> None:
        """Close the second reader."""
        if self._reader is not None:
            self._reader.close()

    def _advance(self, pipeline: EventPipeline, live: SourceStatus, at_least: int) -> bool:
        """Read on; at the end also give what is held back here and was not held back from the others."""
        positions = live.positions
        self._reader = self._reader or self._open(positions)
        self._pipeline = self._pipeline or pipeline.fresh()
        self._pipeline.events = pipeline.events
        there = SourceStatus(True, partitions=tuple(replace(part, ended_at=None) for part in live.partitions))
        end, least = time.monotonic() + SLICE, self._read + at_least
        while not self._reader.caught_up(positions):
            records = self._reader.poll(positions, PATIENCE)
            self._late.update(self._pipeline.take(records, there, time.time()))
            self._read += sum(map(len, records))
            if not records or (time.monotonic() > end and self._read >= least):
                break
        if not self._reader.caught_up(positions):
            return False
        self._late.update(self._pipeline.buffered_beyond(pipeline))
        return True

    def _end(self) -> bool:
        self.close()
        return True
