"""The loop: poll, decode, update, publish; until it is told to stop."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

import numpy as np
import structlog

from streameval.common.arrays import State
from streameval.errors import SourceError
from streameval.events import REASONS, EventBatch, Rejected
from streameval.ingest.base import Records, Source, SourceStatus
from streameval.ingest.pipeline import Decoder, EventPipeline
from streameval.ope.report import Report
from streameval.service.backfill import PATIENCE, Backfill
from streameval.service.log_summaries import FailureLog, RejectionLog
from streameval.service.status import DaemonStatus, DeadLetterStatus, SnapshotStatus

log = structlog.get_logger("streameval")

POLL_TIMEOUT = 0.5  # seconds; also the longest wait for an orderly stop while nothing comes
GROWN_OLD = 60.0  # seconds after which a Report is made anew though nothing has come: what was fresh may be stale
SHORTEST_IDLE = 0.05  # seconds; a source that has nothing and does not wait must not be asked in a tight loop


class StreamEvaluator(Protocol):
    """What takes events and knows a Report; `streameval.ope.evaluator.evaluator.Evaluator` is one."""

    def update(self, batch: EventBatch) -> None: ...

    def report(self, now: float | None = None) -> Report: ...

    def state(self) -> State: ...


class RejectedMessages(Protocol):
    """Where rejected messages are put aside; `streameval.service.dead_letters.queue.DeadLetterQueue` is one."""

    def put(self, records: Sequence[Records], rejected: Sequence[Rejected]) -> None: ...

    def status(self) -> DeadLetterStatus: ...

    def close(self) -> None: ...


class StateWriter(Protocol):
    """What keeps state over restarts; `streameval.service.snapshots.writer.SnapshotWriter` is one."""

    status: SnapshotStatus

    def turn(self, document: Callable[[], State | None]) -> None:
        """Between two batches: keep `document()` now and then, beside the loop; None is not worth it yet."""

    def finish(self, document: Callable[[], State | None]) -> None:
        """Keep this, and return when it is kept."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Change:
    """What a reload changes: how events are decoded from now on, and for whom the log is read again."""

    events: Decoder
    backfill: Backfill | None = None


class Daemon:
    """Reads `source` with `events` into `evaluator` and shows the outcome as `published`.

    A Report is made at most once per `publish_interval` seconds, when the source ran dry, and at the end; never per
    poll. `published` may be read from any thread at any time. A source that is exhausted (a file at its end) leaves the
    daemon serving its last Report until it is stopped, unless `stop_when_exhausted`. `stall_after`: seconds without a
    turn of the loop after which the daemon no longer calls itself healthy. `clock` gives epoch seconds. `examine` sees
    the first events, and what it has to say of them is logged. `reload` is called between two batches after `reload()`
    or SIGHUP, and says what changes; None is nothing. `keeper` is given all that is known, with the place in the log
    that it was learned from, now and then and at the end. `letters` is given what was rejected. `backfills`: who came
    late before the daemon began.
    """

    def __init__(
        self,
        source: Source,
        events: Decoder | EventPipeline,
        evaluator: StreamEvaluator,
        *,
        publish_interval: float = 1.0,
        stop_when_exhausted: bool = False,
        stall_after: float = 60.0,
        clock: Callable[[], float] = time.time,
        examine: Callable[[EventBatch], Iterable[str]] = lambda _: (),
        reload: Callable[[], Change | None] | None = None,
        keeper: StateWriter | None = None,
        letters: RejectedMessages | None = None,
        backfills: Iterable[Backfill] = (),
    ) -> None:
        self._source, self._evaluator, self._keeper, self._letters = source, evaluator, keeper, letters
        self._intake = events if isinstance(events, EventPipeline) else EventPipeline(events)
        self._publish_interval, self._stop_when_exhausted = publish_interval, stop_when_exhausted
        self._stall_after, self._clock, self._examine = stall_after, clock, examine
        self._reload, self._reload_asked = reload, False
        self._backfills = list(backfills)
        self._stopping = False
        self._turned = time.monotonic()
        self._published_at = -math.inf
        self._unreported = True  # an empty Report is one too: readiness does not wait for the first event
        self._reported_at = -math.inf
        self._reached: bool | None = None
        self._rejections, self._failures = RejectionLog(), FailureLog()
        self.published = DaemonStatus(source=source.status(), at=clock())
        self._accepted, self._rejected = 0, dict.fromkeys(REASONS, 0)
        self._batch_duration, self._event_delay = self.published.batch_duration, self.published.event_delay

    def run(self) -> None:
        """Work until `stop()`, SIGTERM or SIGINT (when called in the main thread); the batch in hand is finished first.

        A second signal ends the process at once. Raises SourceError when the source cannot go on.
        """
        log.info("started", source=type(self._source).__name__)
        with _stop_on_signals(self.stop), _on_hangup(self._reload and self.reload):
            try:
                self._loop()
                self._keep_last()
            except SourceError as error:
                self._publish(failure=error.message)
                self._keep_last()
                raise
            finally:
                for closing in (self._keeper, self._letters):
                    if closing is not None:
                        closing.close()
                for backfill in self._backfills:
                    backfill.close()
                self._source.close()
                self._rejections.write()
                log.info("stopped", accepted=self._accepted, rejected=sum(self._rejected.values()))

    def stop(self) -> None:
        """Ask the loop to finish what it has in hand and return; safe in signal handlers and other threads."""
        self._stopping = True

    def reload(self) -> None:
        """Ask the loop to call `reload` before its next batch; safe in signal handlers and other threads."""
        self._reload_asked = True

    @property
    def stalled_for(self) -> float:
        """Seconds since the loop began its last turn."""
        return time.monotonic() - self._turned

    @property
    def healthy(self) -> bool:
        """Whether the loop has turned within the last `stall_after` seconds."""
        return self.stalled_for < self._stall_after

    def _loop(self) -> None:
        taken = 0
        while not self._stopping:
            self._turned = time.monotonic()
            self._reload_when_asked()
            self._fill_back(at_least=2 * taken)
            if self._keeper is not None:
                self._keeper.turn(self._document)
            records = self._source.poll(PATIENCE if self._backfills else POLL_TIMEOUT)
            taken = sum(map(len, records))
            if records or self._intake.by_time:
                self._take(records)
            if records:
                if time.monotonic() >= self._published_at + self._publish_interval:
                    self._publish()
            elif self._publish().exhausted and self._stop_when_exhausted and not self._backfills:
                return
            else:
                time.sleep(max(0.0, SHORTEST_IDLE - self.stalled_for))
        self._publish()

    def _reload_when_asked(self) -> None:
        if self._reload_asked and self._reload is not None:
            self._reload_asked = False
            change = self._reload()
            if change is not None:
                self._intake.decode_with(change.events)
                self._unreported = True
                self._backfills += [change.backfill] if change.backfill else []

    def _fill_back(self, at_least: int) -> None:
        """Let those who came late read on; who has caught up gets the live events from the next ones on."""
        for backfill in tuple(self._backfills):
            if backfill.slice(self._intake, self._source.status(), at_least):
                self._backfills.remove(backfill)
                self._unreported = True

    def _take(self, records: Sequence[Records]) -> None:
        started = time.perf_counter()
        batch = self._intake.take(records, self._source.status(), self._clock())
        if self._intake.by_time:
            self._source.pause(self._intake.ahead())
        if self._letters is not None:
            self._letters.put(records, batch.rejected)
        if not len(batch) and not batch.rejected:
            return
        self._evaluator.update(batch)
        self._unreported = True
        self._batch_duration = self._batch_duration.add(np.array([time.perf_counter() - started]))
        self._event_delay = self._event_delay.add(self._clock() - batch.timestamp)
        if len(batch) and not self._accepted:
            log.info("first_event", policies=list(batch.policies))
            for trouble in self._examine(batch):
                log.error("estimators_without_events", detail=trouble)
        self._accepted += len(batch)
        for reason, count in self._rejections.add(batch.rejected).items():
            self._rejected[reason] += count

    def _document(self) -> State | None:
        """All that is known, and where to go on; None while no log has been reached."""
        bookmarks = self._source.bookmarks()
        if not any(mark.positions for mark in bookmarks.values()):
            return None
        return {
            "bookmarks": {topic: mark.to_state() for topic, mark in bookmarks.items()},
            "intake": self._intake.state(),
            "roster": self._evaluator.state(),
        }

    def _keep_last(self) -> None:
        if self._keeper is not None:
            self._keeper.finish(self._document)

    def _publish(self, failure: str = "") -> SourceStatus:
        """Replace `published`, with a new Report if events have come since the last one, or if that has grown old."""
        status = self._source.status()
        report = self.published.report
        at = self._clock()
        due = self._unreported or at >= self._reported_at + GROWN_OLD
        if due and (status.reached or self._accepted):
            report, self._unreported, self._reported_at = self._evaluator.report(at), False, at
        self.published = DaemonStatus(
            source=status,
            at=at,
            report=report,
            ready=status.reached and report is not None and not failure,
            detail=failure or _reason_unready(status, report),
            accepted=self._accepted,
            rejected=dict(self._rejected),
            batch_duration=self._batch_duration,
            event_delay=self._event_delay,
            backfills=tuple(backfill.progress(status) for backfill in self._backfills),
            snapshots=None if self._keeper is None else self._keeper.status,
            dead_letters=None if self._letters is None else self._letters.status(),
            holding=self._intake.holding(),
            history=self.published.history.after(at, report),
        )
        self._published_at = time.monotonic()
        self._log_reached(status)
        self._rejections.write_when_due()
        self._failures.write_when_due(report)
        return status

    def _log_reached(self, status: SourceStatus) -> None:
        if status.reached and not self._reached:
            detail = {"detail": status.detail} if status.detail else {}
            log.info("source_reached", **detail, partitions=len(status.partitions))
        elif not status.reached and self._reached is not False:
            log.warning("source_lost" if self._reached else "source_not_reached", detail=status.detail)
        self._reached = status.reached


def _reason_unready(status: SourceStatus, report: Report | None) -> str:
    if not status.reached:
        return status.detail or "the source has not been reached"
    return "" if report else "no report has been made yet"


@contextmanager
def _stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """The first SIGTERM or SIGINT calls `stop`, a second one leaves at once. Only the main thread can do this."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            os._exit(128 + number)
        asked = True
        stop()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class EarlyHangups:
    """SIGHUPs that come before there is a loop to heed them: without this, they end the process."""

    def __init__(self) -> None:
        self._came = False
        self._call: Callable[[], None] | None = None

    def note(self, *_: object) -> None:
        """One has come."""
        self._came = True
        if self._call is not None:
            self._call()

    def hand_to(self, call: Callable[[], None]) -> None:
        """From now on each calls this, and so does one that came before."""
        self._call = call
        if self._came:
            call()


@contextmanager
def early_hangups() -> Iterator[EarlyHangups]:
    """Keeps what comes meanwhile."""
    early = EarlyHangups()
    with _on_hangup(early.note):
        yield early


@contextmanager
def _on_hangup(call: Callable[[], None] | None) -> Iterator[None]:
    """SIGHUP calls `call`; without one it ends the process, as ever. Only the main thread can do this."""
    if call is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGHUP, lambda *_: call())
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, previous)
