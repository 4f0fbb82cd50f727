"""Run the loop of the daemon: poll, decode, update and publish, until it is stopped."""

from __future__ import annotations

import itertools
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np
import structlog

from streameval.errors import SourceError, StreamevalError
from streameval.events import REASONS, EventBatch
from streameval.ingest.base import NotYetReadableError, Records, Source, SourceStatus
from streameval.ingest.pipeline import Decoder, EventPipeline
from streameval.ingest.stages import BufferStatus, ClockBehindError, PartitionEnds
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.report import Report
from streameval.service.dead_letters import DeadLetterQueue
from streameval.service.decisions import DecisionOutbox
from streameval.service.logging import LogSummaries
from streameval.service.process import stop_on_signals
from streameval.service.reload import BUSY_TIMEOUT_SECONDS, Backfill, Change
from streameval.service.snapshots import Snapshot, SnapshotStore
from streameval.service.status import (
    NO_DELAYS,
    NO_HISTORY,
    DaemonStatus,
    EngineStatus,
    Histogram,
    PushStatus,
    ReloadStatus,
    own_version,
)
from streameval.service.supervisor import Supervisor

log = structlog.get_logger("streameval")

POLL_TIMEOUT_SECONDS = 0.5  # also the longest wait for an orderly stop while no events arrive
STALL_SECONDS = 60.0  # without a turn of the loop, after which the daemon is unhealthy
REPORT_INTERVAL_SECONDS = 60.0  # a Report is made again without new events, since it may have become stale
REPORT_SECONDS = 0.05  # a Report that takes more processor time is made less often in proportion
MAX_WITHHELD = 10_000  # messages that wait while the clock of this machine seems to be behind
MOSTLY_AHEAD = "nearly all events are dated ahead of this machine's clock and count as events of now: check that clock"
NO_EVENTS = "the source has ended, and no message was an event or was rejected: check that it is the right one"
CONNECTING_SECONDS = 5.0
"""Time that a source may take to be reached at the start before a warning is logged."""
EVENTS_TWICE = "events repeat the id of a recent one and count again: set source.duplicates, if they were sent twice"
REWARDS_TWICE = "rewards have the time and value of another one of their decision and count again: log a reward_id"
SPANNING_HINT = "look for stray quotes, which hide rows; if cells hold line breaks, set source.multiline: true"
FOLD_INTERVAL_SECONDS = 0.1  # between two updates with pending blocks while the daemon keeps up with the stream
MIN_FOLDED_BLOCKS = 20
"""The evaluator itself waits for more blocks, which stops the loop for far longer."""
MIN_TURN_SECONDS = 0.25
"""Duration of a turn that leaves fewer than `FEW_UNREAD` events unread, half as long during a backfill. One poll for
many messages costs far less than one poll for each."""
FEW_UNREAD = 250
"""More than zero, because messages of open transactions count as unread until they are committed."""

Reporting = TypeVar("Reporting", bound=Evaluator)


class DaemonLoop(ABC, Generic[Reporting]):
    """Read a source into an evaluator, and publish the status as `published`, which any thread may read.

    A Report is made at most once per `publish_interval`, when the source has no more events, and at the end. One that
    takes long is made less often, but at least once a minute. When the source is exhausted (a file at its end), the
    daemon serves its last Report until it is stopped.

    Args:
        source: Where messages are read.
        events: Decoder of messages, or a whole pipeline.
        evaluator: Takes the events.
        publish_interval: Seconds between two Reports.
        stop_when_exhausted: Whether to return when the source is exhausted.
        stall_after: Seconds after which a source that is not reached, or gives no unread message, needs a new process.
        clock: Returns epoch seconds.
        reload: Called between two batches after `reload()`. Returns the change, or raises StreamevalError.
        snapshots: Stores the state with the offsets that it was computed from.
        dead_letters: Stores rejected messages.
        decisions: Sends a message for each transition of a promotion rule.
        backfills: Backfills of candidates that were added before the start.
        name: Name of the daemon in its status.
    """

    def __init__(
        self,
        source: Source,
        events: Decoder | EventPipeline,
        evaluator: Reporting,
        *,
        publish_interval: float = 1.0,
        stop_when_exhausted: bool = False,
        stall_after: float = math.inf,
        clock: Callable[[], float] = time.time,
        reload: Callable[[], Change] | None = None,
        snapshots: SnapshotStore | None = None,
        dead_letters: DeadLetterQueue | None = None,
        decisions: DecisionOutbox | None = None,
        backfills: Iterable[Backfill] = (),
        name: str = "",
    ) -> None:
        self._source, self._evaluator = source, evaluator
        self._snapshots, self._dead_letters, self._decisions = snapshots, dead_letters, decisions
        self._pipeline = events if isinstance(events, EventPipeline) else EventPipeline(events)
        self._publish_interval, self._stop_when_exhausted = publish_interval, stop_when_exhausted
        self._stall_after, self._was_stalled = stall_after, False
        self._clock, self._reload = clock, reload
        self._requests, self._asked = itertools.count(1), deque[int]()
        self._backfills = list(backfills)
        self._reloaded = ReloadStatus(succeeded_at=clock())
        self.pushes: PushStatus | None = None  # a thread that pushes metrics counts here
        self._supervisor = Supervisor()
        self._stopping = False
        self._turned = self._alive_at = time.monotonic()
        evaluator.on_fold = self._note_fold
        self._published_at = self._reported_at = self._folded_at = self._next_report_at = -math.inf
        self._to_publish: SourceStatus | None = None  # the status of the source for the Report of the next turn
        self._unreported = True  # an empty Report is one too: readiness does not wait for the first event
        self._reached: bool | None = None
        self._connecting_until: float | None = None
        self._summaries = LogSummaries()
        history = NO_HISTORY if snapshots is None else snapshots.history
        self.published = DaemonStatus(source=source.status(), at=clock(), history=history, name=name)
        self._late, self._mostly_ahead = 0, False
        self._spanning, self._is_empty = 0, False
        self._twice: Mapping[str, int] = {}
        self._withheld: list[Records] = []
        self._withheld_because = ""
        self._accepted, self._rejected = 0, dict.fromkeys(REASONS, 0)
        self._batch_duration, self._event_delay = self.published.batch_duration, self.published.event_delay

    def run(self) -> None:
        """Work until `stop()` and, in the main thread, until SIGTERM or SIGINT. The current batch is finished first.

        A second signal ends the process at once.

        Raises:
            SourceError: The source cannot continue.
        """
        log.info("started", source=type(self._source).__name__)
        with stop_on_signals(self.stop):
            try:
                self._loop()
                self._write_last_snapshot()
            except SourceError as error:
                self._publish(failure=error.message)
                self._write_last_snapshot()
                raise
            finally:
                for closing in (self._snapshots, self._dead_letters, self._decisions, *self._backfills, self._source):
                    if closing is not None:
                        closing.close()
                self._summaries.write(self.published.report)
                log.info("stopped", accepted=self._accepted, rejected=sum(self._rejected.values()))

    def stop(self) -> None:
        """Ask the loop to finish the current batch and return. Signal handlers and other threads may call this."""
        self._supervisor.tell("STOPPING=1")
        self._stopping = True

    def reload(self) -> int:
        """Ask the loop to reload before its next batch. Signal handlers and other threads may call this.

        Returns:
            The number of this request: `published.reload.requests` reaches it.
        """
        request = next(self._requests)
        self._asked.append(request)
        return request

    @property
    def stalled_for(self) -> float:
        """Return the seconds since the last turn of the loop started, or blocks of events were evaluated in it."""
        return time.monotonic() - self._alive_at

    @property
    def healthy(self) -> bool:
        """Return whether the loop has gone on within the last `STALL_SECONDS`."""
        return self.stalled_for < STALL_SECONDS

    @property
    def source_stalled(self) -> str:
        """Return why a new process should read the source, or nothing while it works or may recover by itself."""
        return self._reason_stalled(self.published.source)

    def _reason_stalled(self, status: SourceStatus) -> str:
        if status.waiting < self._stall_after:
            return ""
        problem = "has unread messages and returns none" if status.reached else "is not reached"
        return f"the source {problem}, for {status.waiting:.0f} s: {status.detail}"

    def _loop(self) -> None:
        taken = 0
        self._supervisor.tell("READY=1")
        while not self._stopping:
            self._turned = time.monotonic()
            self._beat()
            self._reload_when_asked()
            self._backfill(min_events=2 * taken)
            if self._snapshots is not None:
                self._snapshots.maybe_write(self._take_snapshot)
            is_busy = self._backfills or not self.published.ready  # do not wait for events before a first Report
            records = self._withheld + self._source.poll(BUSY_TIMEOUT_SECONDS if is_busy else POLL_TIMEOUT_SECONDS)
            taken = sum(map(len, records))
            if self._to_publish is not None:
                self._publish(self._to_publish)
            if records or self._pipeline.by_time:
                self._take(records)
            if records:
                if time.monotonic() >= self._published_at + self._publish_interval:
                    self._publish_soon()
            elif self._publish().exhausted and self._stop_when_exhausted and not self._backfills:
                return
            unread = self._source.status().lag if records else 0
            if unread is not None and unread * self._pipeline.events_per_message < FEW_UNREAD:
                self._rest()
        self._publish()

    def _rest(self) -> None:
        """Sleep until the turn ends. A Report that waits is made halfway, so that it holds up no poll."""
        end = self._turned + MIN_TURN_SECONDS / (2 if self._backfills else 1)
        if self._to_publish is not None:
            time.sleep(max(0.0, (end - time.monotonic()) / 2))
            self._publish(self._to_publish)
        time.sleep(max(0.0, end - time.monotonic()))

    def _beat(self) -> None:
        """Note that the loop goes on."""
        self._alive_at = time.monotonic()
        self._supervisor.turned()

    def _note_fold(self) -> None:
        """Note that blocks were evaluated."""
        self._beat()
        self._folded_at = self._alive_at

    def _reload_when_asked(self) -> None:
        if not self._asked or self._reload is None:
            return
        requests = self._reloaded.requests
        while self._asked:
            requests = max(requests, self._asked.popleft())
        self._supervisor.reloading()
        try:
            change = self._reload()
        except StreamevalError as error:
            log.error("reload_failed", error=error.message, hint=error.hint)
            self._reloaded = replace(self._reloaded, requests=requests, problem=f"{error.message}\nhint: {error.hint}")
        else:
            self._reloaded = ReloadStatus(requests, succeeded_at=self._clock())
            self._pipeline.events = change.events
            self._unreported, self._next_report_at = True, -math.inf
            self._backfills += [change.backfill] if change.backfill else []
        self._supervisor.tell("READY=1")

    def _backfill(self, min_events: int) -> None:
        """Let backfills read on. Candidates that have caught up get the live events from then on.

        While messages are withheld, no backfill reads on: they are before the positions of the source, and count later.
        """
        for backfill in () if self._withheld else tuple(self._backfills):
            if backfill.slice(self._pipeline, self._source.status(), min_events):
                self._backfills.remove(backfill)
                self._unreported, self._next_report_at = True, -math.inf

    @abstractmethod
    def _take(self, records: list[Records]) -> None:
        """Give the evaluator these messages, and count them."""

    def _publish_soon(self) -> None:
        """Publish a Report now, or set `_to_publish`, so that it follows later, before other messages are taken."""
        self._publish()

    def _count(self, events: int, delays: Histogram, rejected: Mapping[str, int]) -> None:
        """Count what the evaluator took."""
        self._unreported = True
        self._event_delay = self._event_delay.merged(delays)
        self._accepted += events
        for reason, count in rejected.items():
            self._rejected[reason] += count

    def _log_problems(self, problems: Iterable[str]) -> None:
        for problem in problems:
            log.error("estimators_without_events", detail=problem)

    def _collect(self) -> None:
        """Report new transitions and new frozen copies of policies that learn."""
        versions = self._evaluator.take_versions()
        for new in versions:
            log.info("version_made", policy=new.policy, of=new.of, events=new.event, retired=list(new.retired))
        if self._decisions is not None:
            self._decisions.collect(self._evaluator, versions, self.published.report)

    def _through_pipeline(self, records: list[Records], ends: PartitionEnds) -> EventBatch:
        """Return the events that count now. Messages are withheld while their schema or the right time is unknown.

        Args:
            records: the messages
            ends: all partitions, and when they were found at their end
        """
        try:
            batch = self._pipeline.take(records, ends, self._clock())
        except (ClockBehindError, NotYetReadableError) as error:
            if not self._withheld:
                kind = "clock_behind" if isinstance(error, ClockBehindError) else "messages_unreadable"
                log.error(kind, detail=str(error))
            self._withheld, self._withheld_because = records, str(error)
            time.sleep(POLL_TIMEOUT_SECONDS)
            return EventBatch.concat([])
        if self._withheld or self._pipeline.by_time:
            self._source.pause(self._pipeline.ahead())
        self._withheld, self._withheld_because = [], ""
        return batch

    def _write_last_snapshot(self) -> None:
        if self._snapshots is not None:
            self._snapshots.write_last(self._take_snapshot)

    def _take_snapshot(self) -> Snapshot | None:
        """Return the whole state with the offsets after its last messages.

        Return None while no log has been reached, or while messages before the offsets are withheld.
        """
        offsets = self._source.offsets()
        if self._snapshots is None or self._withheld or not any(part.positions for part in offsets.values()):
            return None
        self._collect()
        return Snapshot(
            version=own_version(),
            written=self._clock(),
            fingerprint=self._snapshots.fingerprint,
            decisions=[] if self._decisions is None else self._decisions.state(),
            offsets={topic: log_offsets.to_state() for topic, log_offsets in offsets.items()},
            pipeline=self._pipeline.state(),
            evaluator=self._evaluator.state(),
            history=self.published.history.state(),
        )

    def _publish(self, status: SourceStatus | None = None, failure: str = "") -> SourceStatus:
        """Replace `published`, with a new Report if events have arrived since the last one, or if that is old.

        Args:
            status: Status of the source when the last messages were taken, by default the present one.
            failure: Why the daemon is not ready.
        """
        status = status or self._source.status()
        failure = failure or self._withheld_because or self._reason_stalled(status)
        at, buffered = self._clock(), self._pipeline.buffered()
        report = self.published.report
        may_report = self._stopping or status.exhausted or time.monotonic() >= self._next_report_at
        due = (self._unreported and may_report) or at >= self._reported_at + REPORT_INTERVAL_SECONDS
        if due and (status.reached or self._accepted):
            self._evaluator.fold_pending()
            started = time.thread_time()
            report = self._evaluator.report(at, None if buffered is None else buffered.unmatched_share)
            self._unreported, self._reported_at = False, at
            slowness = (time.thread_time() - started) / REPORT_SECONDS
            wait = min(self._publish_interval * slowness, REPORT_INTERVAL_SECONDS) if slowness > 1 else 0.0
            self._next_report_at = time.monotonic() + wait
        self.published = DaemonStatus(
            source=status,
            at=at,
            report=report,
            ready=status.reached and report is not None and not failure,
            detail=failure
            or _reason_unready(status, report)
            or (MOSTLY_AHEAD if self._pipeline.mostly_ahead else NO_EVENTS if _is_empty(status, report) else "")
            or "; ".join(f"{count:,} {what}" for what, count in self._delivered_twice(buffered).items() if count),
            accepted=self._accepted,
            rejected=dict(self._rejected),
            batch_duration=self._batch_duration,
            event_delay=self._event_delay,
            backfills=tuple(backfill.progress(status) for backfill in self._backfills),
            snapshots=None if self._snapshots is None else self._snapshots.status,
            dead_letters=None if self._dead_letters is None else self._dead_letters.status(),
            decisions=None if self._decisions is None else self._decisions.status(),
            buffered=buffered,
            ahead_of_clock=self._pipeline.ahead_of_clock,
            repeated_events=self._pipeline.repeated_events,
            clipped_events=self._pipeline.clipped_events,
            history=self.published.history.after(at, report),
            margin=self._evaluator.config.margin,
            heaviest=self._evaluator.heaviest,
            engine=self._engine_status(at),
            name=self.published.name,
            reload=self._reloaded,
            pushes=self.pushes,
        )
        self._published_at, self._to_publish = time.monotonic(), None
        self._log_reached(status)
        self._log_ahead()
        self._log_late(buffered)
        self._log_oddities(status, report)
        self._log_delivered_twice(buffered)
        self._summaries.write_when_due(report)
        return status

    def _engine_status(self, at: float) -> EngineStatus | None:
        """Return the status of the engine that evaluates in other processes, if any."""
        return None

    def _log_reached(self, status: SourceStatus) -> None:
        now = time.monotonic()
        self._connecting_until = self._connecting_until or now + CONNECTING_SECONDS
        is_connecting = self._reached is None and now < self._connecting_until
        if status.reached and not self._reached:
            detail = {"detail": status.detail} if status.detail else {}
            log.info("source_reached", **detail, partitions=len(status.partitions))
        elif not status.reached and self._reached is not False and not is_connecting:
            log.warning("source_lost" if self._reached else "source_not_reached", detail=status.detail)
        self._reached = None if is_connecting and not status.reached else status.reached
        stalled = self._reason_stalled(status)
        if stalled and not self._was_stalled:
            log.error(
                "source_stalled", detail=stalled, hint="/livez fails from now on: the process should be restarted"
            )
        self._was_stalled = bool(stalled)

    def _log_ahead(self) -> None:
        if self._pipeline.mostly_ahead and not self._mostly_ahead:
            log.warning("events_ahead", count=self._pipeline.ahead_of_clock, detail=MOSTLY_AHEAD)
        self._mostly_ahead = self._pipeline.mostly_ahead

    def _log_late(self, buffered: BufferStatus | None) -> None:
        """Log that events count out of order, and how long the source must wait to keep it."""
        if buffered is not None and buffered.late > self._late:
            lateness = max(buffered.lateness.values(), default=0.0)
            hint = f"increase source.max_lateness to {buffered.sufficient_lateness}s to keep the order"
            log.warning("events_late", count=buffered.late - self._late, seconds=round(lateness, 1), hint=hint)
        self._late = 0 if buffered is None else buffered.late

    def _log_oddities(self, status: SourceStatus, report: Report | None) -> None:
        """Log what would otherwise lose events in silence: rows over several lines, and a source without any event."""
        if status.spanning_rows > self._spanning:
            log.warning("rows_over_several_lines", count=status.spanning_rows - self._spanning, hint=SPANNING_HINT)
        if _is_empty(status, report) and not self._is_empty:
            log.warning("no_events", detail=NO_EVENTS)
        self._spanning, self._is_empty = status.spanning_rows, _is_empty(status, report)

    def _delivered_twice(self, buffered: BufferStatus | None) -> dict[str, int]:
        """Count what seems to have been delivered more than once, and counts each time."""
        repeats = None if buffered is None else buffered.repeats
        return {EVENTS_TWICE: self._pipeline.repeated_events, REWARDS_TWICE: repeats.suspicious if repeats else 0}

    def _log_delivered_twice(self, buffered: BufferStatus | None) -> None:
        """Log each kind of repeated messages once."""
        twice = self._delivered_twice(buffered)
        for what, count in twice.items():
            if count and not self._twice.get(what):
                log.warning("delivered_twice", count=count, detail=what)
        self._twice = twice


class Daemon(DaemonLoop[Evaluator]):
    """Decode and evaluate in this process."""

    def _take(self, records: list[Records]) -> None:
        ends = self._source.status().ended_at
        groups = list(self._pipeline.groups(records, ends))
        for index, group in enumerate(groups):
            self._take_group(group, ends)
            if self._withheld:
                self._withheld = [part for rest in groups[index:] for part in rest]
                if sum(map(len, self._withheld)) >= MAX_WITHHELD:  # a producer with a wrong clock may write fewer
                    self._source.pause(self._source.status().positions)
                return

    def _take_group(self, records: list[Records], ends: PartitionEnds) -> None:
        started = time.perf_counter()
        batch = self._through_pipeline(records, ends)
        if self._dead_letters is not None:
            self._dead_letters.put(records, batch.rejected)
        if not len(batch) and not batch.rejected:
            return
        # Events that were buffered before a reload lack the columns of new segments.
        self._evaluator.update(replace(batch, segments=self._evaluator.config.columns_of(batch)))
        if time.monotonic() >= self._folded_at + FOLD_INTERVAL_SECONDS:
            self._evaluator.fold_pending(MIN_FOLDED_BLOCKS)
        self._collect()
        if len(batch) and not self._accepted:
            log.info("first_event", policies=list(batch.policies))
            self._log_problems(f"{problem}; {problem.hint}" for problem in self._evaluator.missing_fields(batch))
        self._count(len(batch), NO_DELAYS.add(self._clock() - batch.timestamp), self._summaries.add(batch.rejected))
        self._batch_duration = self._batch_duration.add(np.array([time.perf_counter() - started]))

    def _publish_soon(self) -> None:
        """Make the Report later if blocks were updated in this turn: each takes about ten milliseconds."""
        if self._evaluator.fold_pending() or self._folded_at >= self._turned:
            self._to_publish = self._source.status()
        else:
            self._publish()


def _is_empty(status: SourceStatus, report: Report | None) -> bool:
    """Tell whether a source has ended without an event, accepted or rejected."""
    return status.exhausted and report is not None and not (report.events.accepted or any(report.events.rejected))


def _reason_unready(status: SourceStatus, report: Report | None) -> str:
    if not status.reached:
        return status.detail or "the source has not been reached"
    return "" if report else "no report has been made yet"
