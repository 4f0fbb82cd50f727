"""Snapshots beside the loop: one at a time, on a thread, and none that fails stops anything."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

import structlog

from streameval.common.arrays import State
from streameval.common.snapshot_buffer import Room
from streameval.errors import StateError
from streameval.ingest.background import Background
from streameval.service.snapshots.store import SnapshotStore
from streameval.service.status import NEVER, SnapshotStatus

FAILURES_LOGGED_EVERY = 60.0  # seconds

log = structlog.get_logger("streameval.snapshots")


class SnapshotWriter:
    """Keeps what the loop knows in `snapshots`: at once, every `interval` seconds after that, and at the end.

    `header`: what is the same in all of them. `status`: of those written so far, as it is shown. `after` is called by
    the loop with each document that is on disk. `clock` gives epoch seconds. `capacity`: bytes that the large arrays of
    a document may take; room for their copies is made before they are taken, beside the loop.
    """

    def __init__(
        self,
        snapshots: SnapshotStore,
        interval: float,
        header: State | None = None,
        status: SnapshotStatus = NEVER,
        after: Callable[[State], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
        capacity: Callable[[], int] = lambda: 0,
    ) -> None:
        self.status = status
        self._room, self._capacity = Room(), capacity
        self._needed = self._capacity()
        self._room.reserve(self._needed)
        self._snapshots, self._interval, self._after, self._clock = snapshots, interval, after, clock
        self._header = header or {}
        self._due = self._log_due = -math.inf
        self._document: State = {}
        self._writing: Background[bool] | None = None

    def turn(self, document: Callable[[], State | None]) -> None:
        """Begin to write `document()` when the interval is over and nothing is being written.

        It must not change any more. None: there is nothing to write yet; it is asked for again at the next turn.
        """
        self._settle(timeout=0.0)
        if self._writing is None and time.monotonic() >= self._due:
            self._begin(document)

    def finish(self, document: Callable[[], State | None]) -> None:
        """Write a last one, after the one that is being written, and wait for it."""
        self._settle(threading.TIMEOUT_MAX)
        self._begin(document)
        self._settle(threading.TIMEOUT_MAX)

    def close(self) -> None:
        """Let others have the directory, as soon as nothing is being written any more."""
        self._settle(threading.TIMEOUT_MAX)
        self._snapshots.close()

    def _begin(self, document: Callable[[], State | None]) -> None:
        try:
            with self._room.used():
                taken = document()
        except StateError as error:  # what is to be kept cannot be
            self._due = time.monotonic() + self._interval
            self._tell(error)
            return
        if taken is None:
            return
        self._due = time.monotonic() + self._interval
        self._document = self._header | {"written": self._clock()} | taken
        self._needed = self._capacity()
        self._snapshots.step("taken")
        self._writing = Background(self._write)

    def _settle(self, timeout: float) -> None:
        """Take note of the outcome, if there is one within `timeout` seconds."""
        written = None if self._writing is None else self._writing.result(timeout)
        if written is None:
            return
        self._writing, document, self._document = None, self._document, {}
        if written:
            self._after(document)
            self._snapshots.step("committed")

    def _write(self) -> bool:
        started = time.perf_counter()
        try:
            path = self._snapshots.write(self._document)
        except (OSError, MemoryError) as error:
            self._tell(error)
            return False
        seconds = time.perf_counter() - started
        self.status = self.status.after(self._document["written"], seconds)
        log.debug("snapshot_written", path=str(path), seconds=round(seconds, 3))
        self._room.reserve(self._needed)
        return True

    def _tell(self, error: OSError | MemoryError | StateError) -> None:
        self.status = self.status.failed()
        if time.monotonic() >= self._log_due:
            self._log_due = time.monotonic() + FAILURES_LOGGED_EVERY
            reason = getattr(error, "strerror", None) or str(error)
            directory, failures = str(self._snapshots.directory), self.status.failures
            log.error("snapshot_failed", directory=directory, reason=reason, failures=failures)
