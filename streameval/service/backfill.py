"""What has happened, for somebody who came late: a second reading of the log in slices, until it meets the live one."""

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
"""Seconds that a slice takes, if it need not be longer to come nearer to a busy live stream."""
PATIENCE = 0.05  # seconds to wait in a slice for messages to come
LOG_EVERY = 10.0  # seconds

log = structlog.get_logger("streameval")


class LateCandidate(Protocol):
    """Who is given what has happened, until it has seen all, or the log cannot be read; then it joins the others."""

    @property
    def policies(self) -> Sequence[str]: ...

    @property
    def awaited(self) -> bool:
        """Whether anybody still wants to know."""

    def update(self, batch: EventBatch) -> None: ...

    def join(self, *, anew: bool) -> None:
        """From now on it gets what the others get; `anew`: it is to forget what it has seen."""


class Backfill:
    """Gives a latecomer every event from `open`'s beginning to the live position, then lets it join: each event once.

    The daemon calls `slice` between two polls of the live source, with whose positions the second reading ends: nothing
    has come between when they are equal. Each slice reads more than the live loop did meanwhile, so the end is reached.
    """

    def __init__(
        self, latecomer: LateCandidate, open: Callable[[Mapping[TopicPartition, int]], BackfillReader]
    ) -> None:
        self._latecomer, self._open = latecomer, open
        self._reading: BackfillReader | None = None
        self._intake: EventPipeline | None = None
        self._read = 0
        self._logged_at = time.monotonic()

    def slice(self, intake: EventPipeline, live: SourceStatus, at_least: int) -> bool:
        """Read for a while, and at least so many events while there are some; True when there is no more to do."""
        if not self._latecomer.awaited:
            log.info("backfill_given_up", policies=list(self._latecomer.policies), reason="no longer configured")
            return self._end()
        positions = live.positions
        if not positions:
            return False
        try:
            caught_up = self._advance(intake, live, at_least)
        except StreamevalError as error:
            log.error("backfill_failed", policies=list(self._latecomer.policies), error=error.message, hint=error.hint)
            self._latecomer.join(anew=True)
            return self._end()
        if caught_up:
            log.info("backfill_done", policies=list(self._latecomer.policies), events=self._read)
            self._latecomer.join(anew=False)
            return self._end()
        self._tell(positions)
        return False

    def progress(self, live: SourceStatus) -> BackfillStatus:
        """How far it is."""
        positions = live.positions
        waiting = self._reading.behind(positions) if self._reading else None
        return BackfillStatus(tuple(self._latecomer.policies), self._read, waiting)

    def close(self) -> None:
        """Close the second reading."""
        if self._reading is not None:
            self._reading.close()

    def _advance(self, intake: EventPipeline, live: SourceStatus, at_least: int) -> bool:
        """Read on; at the end also give what is held back here and was not held back from the others."""
        positions = live.positions
        self._reading = self._reading or self._open(positions)
        self._intake = self._intake or intake.fresh()
        self._intake.decode_with(intake.events)
        there = SourceStatus(True, partitions=tuple(replace(part, ended_at=None) for part in live.partitions))
        end, least = time.monotonic() + SLICE, self._read + at_least
        while not self._reading.caught_up(positions):
            records = self._reading.poll(positions, PATIENCE)
            self._latecomer.update(self._intake.take(records, there, time.time()))
            self._read += sum(map(len, records))
            if not records or (time.monotonic() > end and self._read >= least):
                break
        if not self._reading.caught_up(positions):
            return False
        self._latecomer.update(self._intake.buffered_beyond(intake))
        return True

    def _tell(self, positions: Mapping[TopicPartition, int]) -> None:
        if self._reading is not None and time.monotonic() > self._logged_at + LOG_EVERY:
            self._logged_at = time.monotonic()
            waiting = self._reading.behind(positions)
            log.info("backfill_goes_on", policies=list(self._latecomer.policies), events=self._read, waiting=waiting)

    def _end(self) -> bool:
        self.close()
        return True
