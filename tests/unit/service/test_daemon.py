from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
from structlog.testing import capture_logs

from streameval.errors import SourceError
from streameval.events import REASONS, EventBatch, Rejected
from streameval.events.origin import Origin
from streameval.ingest import groups
from streameval.ingest.background import WorkerStatus
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.pipeline import EventPipeline
from streameval.ingest.stages import BufferStatus
from streameval.ope.report import Report
from streameval.service.daemon import FEW_UNREAD, MIN_TURN_SECONDS, NO_EVENTS, Daemon
from streameval.service.logging import LogSummaries
from streameval.service.reload import Change
from streameval.service.status import NO_DELAYS, DaemonStatus, Histogram, History, SnapshotStatus
from support.factories import ListSource, NumberFormat, Recorder, records, running, wait_until


def make_daemon(polls: list[Any], **options: Any) -> tuple[Daemon, ListSource, Recorder]:
    source, recorder = ListSource(polls), Recorder()
    options = {"stop_when_exhausted": True, "clock": lambda: 100.0} | options
    return Daemon(source, NumberFormat(), recorder, **options), source, recorder


def test_records_of_several_partitions_are_taken_in_order_of_arrival() -> None:
    daemon, source, recorder = make_daemon([[records(b"1", b"2", partition=1), records(b"3")], [records(b"4")]])
    daemon.run()
    assert recorder.rewards == [1.0, 2.0, 3.0, 4.0]
    assert daemon.published.accepted == 4
    assert source.closed


def test_bad_events_are_counted_by_reason_and_the_others_pass() -> None:
    daemon, _, recorder = make_daemon([[records(b"1", b"?", None, b"2")]])
    daemon.run()
    assert recorder.rewards == [1.0, 2.0]
    assert daemon.published.rejected == dict.fromkeys(REASONS, 0) | {"malformed": 2}


def test_a_busy_source_is_reported_at_the_first_batch_and_at_the_end_not_at_every_poll() -> None:
    daemon, _, recorder = make_daemon([[records(b"1")] for _ in range(500)], publish_interval=60.0)
    daemon.run()
    assert recorder.reports == 2
    assert daemon.published.report is not None
    assert daemon.published.report.events.accepted == 500


@pytest.mark.parametrize(("seconds", "most"), [(0.01, 12), (0.5, 4)])
def test_a_report_that_takes_long_is_made_less_often(
    monkeypatch: pytest.MonkeyPatch, seconds: float, most: int
) -> None:
    elapsed = 0.0
    for clock in ("monotonic", "thread_time"):
        monkeypatch.setattr(time, clock, lambda: elapsed)

    class Slow(Recorder):
        def report(self, now: float | None = None, unmatched_share: float | None = None) -> Report:
            nonlocal elapsed
            elapsed += seconds
            return super().report(now, unmatched_share)

    def polls() -> Iterator[Any]:
        nonlocal elapsed
        while elapsed < 10.0:
            elapsed += 0.1
            yield [records(b"1")]

    slow = Slow()
    Daemon(ListSource(polls()), NumberFormat(), slow, stop_when_exhausted=True, clock=lambda: 100.0).run()
    assert most - 2 <= slow.reports <= most


@pytest.mark.parametrize(("lag", "before_polls"), [(None, [0, 0, 1, 2, 3, 4, 5]), (0, [0, 1, 2, 3, 4, 5, 6])])
def test_many_pending_blocks_and_a_report_hold_up_different_turns(
    lag: int | None, before_polls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Report comes before the events of the next turn, and before its poll if the daemon rests between the two."""
    monkeypatch.setattr("streameval.service.daemon.MIN_TURN_SECONDS", 0.01)

    class Folding(Recorder):
        """Take each event as a block, and note after how many events blocks were folded and a Report was made."""

        def __init__(self) -> None:
            super().__init__()
            self.pending, self.folded_at, self.reported_at = 0, list[int](), list[int]()
            self.on_fold: Callable[[], None]

        def update(self, batch: EventBatch) -> None:
            super().update(batch)
            self.pending += len(batch)

        def fold_pending(self, least: int = 1) -> bool:
            folds = self.pending >= least
            if folds and self.pending > 1:
                self.folded_at.append(len(self.rewards))
            self.pending = 0 if folds else self.pending
            if folds:
                self.on_fold()
            return folds

        def report(self, now: float | None = None, unmatched_share: float | None = None) -> Report:
            self.reported_at.append(len(self.rewards))
            return super().report(now, unmatched_share)

    folding = Folding()
    polled: list[int] = []

    def poll() -> list[Any]:
        polled.append(len(folding.reported_at))
        return [] if len(polled) > 6 else [records(*[b"1"] * (20 if 1 < len(polled) < 6 else 1))]

    source = ListSource([poll] * 7)
    source.lag = lag
    Daemon(source, NumberFormat(), folding, publish_interval=0.0, stop_when_exhausted=True, clock=lambda: 100.0).run()
    assert polled == before_polls
    assert folding.reported_at[:4] == [1, 21, 41, 61], "before other events"
    assert folding.folded_at[:3] == [21, 41, 61], "no block is left to fold in the turn of a Report"


def test_a_source_without_messages_is_reported_at_once_if_it_had_any() -> None:
    daemon, _, recorder = make_daemon([[records(b"1")], [records(b"2")], [], [], [], []], publish_interval=60.0)
    daemon.run()
    assert recorder.reports == 2


def test_an_old_report_is_renewed_without_new_events() -> None:
    clock = iter(range(0, 100_000, 25))
    daemon, _, recorder = make_daemon([[records(b"1")], *[[] for _ in range(12)]], clock=lambda: float(next(clock)))
    daemon.run()
    assert 4 <= recorder.reports <= 7  # about 350 seconds by this clock, and a report each minute


def test_an_empty_log_is_ready_as_soon_as_it_is_reached() -> None:
    daemon, source, _ = make_daemon([[], []], stop_when_exhausted=False)
    source.reached, source.detail = False, "no broker answers"
    with running(daemon):
        wait_until(lambda: daemon.published.detail == "no broker answers")
        assert not daemon.published.ready
        assert daemon.published.report is None
        source.reached = True
        wait_until(lambda: daemon.published.ready)
        assert daemon.published.detail == ""


@pytest.mark.parametrize(("message", "detail"), [([], NO_EVENTS), ([records(b"1")], "")])
def test_a_source_that_ends_without_an_event_is_reported_once(message: list[Any], detail: str) -> None:
    daemon, _, _ = make_daemon([message, [], []], publish_interval=0.0)
    with capture_logs() as logs:
        daemon.run()
    assert daemon.published.detail == detail
    assert [entry["event"] for entry in logs].count("no_events") == (detail != "")


def test_a_lost_source_makes_the_daemon_unready_and_keeps_the_report() -> None:
    daemon, source, _ = make_daemon([[records(b"1")]], stop_when_exhausted=False)
    with capture_logs() as logs, running(daemon):
        wait_until(lambda: daemon.published.ready)
        source.reached = False
        wait_until(lambda: not daemon.published.ready)
        assert daemon.published.report is not None
        source.reached = True
        wait_until(lambda: daemon.published.ready)
    message = [entry["event"] for entry in logs]
    assert message == ["started", "first_event", "source_reached", "source_lost", "source_reached", "stopped"]


@pytest.mark.parametrize(("patience", "logged"), [(600.0, []), (0.0, ["source_not_reached"])])
def test_a_source_that_is_not_reached_is_logged_unless_it_still_connects(
    monkeypatch: pytest.MonkeyPatch, patience: float, logged: list[str]
) -> None:
    monkeypatch.setattr("streameval.service.daemon.CONNECTING_SECONDS", patience)
    daemon, source, _ = make_daemon([[], []], stop_when_exhausted=False)
    source.reached, source.detail = False, "no broker answers"
    with capture_logs() as logs, running(daemon):
        wait_until(lambda: daemon.published.detail == "no broker answers")
        source.reached = True
        wait_until(lambda: daemon.published.ready)
    messages = [entry["event"] for entry in logs if entry["event"].startswith("source")]
    assert messages == [*logged, "source_reached"]


def test_a_reload_is_shown_without_waiting_for_an_event() -> None:
    daemon = Daemon(ListSource([[records(b"1")]]), NumberFormat(), Recorder(), reload=lambda: Change(NumberFormat()))
    with running(daemon):
        wait_until(lambda: daemon.published.ready)
        before = daemon.published.report
        daemon.reload()
        wait_until(lambda: daemon.published.report is not before)


def test_an_exhausted_source_leaves_the_daemon_serving_until_it_is_stopped() -> None:
    daemon, source, _ = make_daemon([[records(b"1")]], stop_when_exhausted=False)
    with running(daemon):
        wait_until(lambda: daemon.published.source.exhausted)
        time.sleep(0.2)
        assert not source.closed
        assert daemon.published.ready
    assert source.closed


@pytest.mark.parametrize(("polled", "lag"), [([], None), ([records(b"1")], 0), ([records(b"1")], FEW_UNREAD - 1)])
def test_a_source_with_few_unread_messages_is_not_polled_in_a_tight_loop(polled: list[Any], lag: int | None) -> None:
    polls = 0

    def poll() -> list[Any]:
        nonlocal polls
        polls += 1
        return polled

    daemon, source, _ = make_daemon([poll] * 10_000)
    source.lag = lag
    started = time.monotonic()
    with running(daemon):
        wait_until(lambda: polls >= 5)
    assert polls <= 2 + (time.monotonic() - started) / MIN_TURN_SECONDS


@pytest.mark.parametrize(("lag", "in_message"), [(FEW_UNREAD, 1), (None, 1), (1, FEW_UNREAD)])
def test_turns_do_not_wait_while_many_events_are_unread(
    lag: int | None, in_message: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Repeated(NumberFormat):
        def decode_batch(self, values: Iterable[bytes | None], origin: Origin | None = None) -> EventBatch:
            return super().decode_batch([value for value in values for _ in range(in_message)])

    monkeypatch.setattr("streameval.service.daemon.MIN_TURN_SECONDS", 3600.0)
    source, recorder = ListSource([[records(b"1")] for _ in range(3)]), Recorder()
    source.lag = lag
    Daemon(source, Repeated(), recorder, stop_when_exhausted=True, clock=lambda: 100.0).run()
    assert recorder.rewards == [1.0] * 3 * in_message


def test_a_lasting_failure_ends_the_run_with_its_reason_and_closes_the_source() -> None:
    daemon, source, _ = make_daemon([[records(b"1")], SourceError("the topic is gone", hint="create it")])
    with pytest.raises(SourceError, match="the topic is gone"):
        daemon.run()
    assert source.closed
    assert not daemon.published.ready
    assert daemon.published.detail == "the topic is gone"
    assert daemon.published.accepted == 1


def test_a_bug_is_not_swallowed() -> None:
    daemon, source, _ = make_daemon([ZeroDivisionError("a bug")])
    with pytest.raises(ZeroDivisionError):
        daemon.run()
    assert source.closed


def test_a_published_status_does_not_change() -> None:
    shown: list[DaemonStatus] = []

    def keep_what_is_shown() -> list[Any]:
        shown.append(daemon.published)
        return [records(b"?")]

    daemon, _, _ = make_daemon([keep_what_is_shown] * 3, publish_interval=0.0)
    daemon.run()
    assert [status.rejected["malformed"] for status in [*shown, daemon.published]] == [0, 1, 2, 3]


def test_delays_and_batch_durations_are_counted_for_every_event_and_batch() -> None:
    daemon, _, _ = make_daemon([[records(b"99", b"40", b"200")], [records(b"5")]])
    daemon.run()
    delay = daemon.published.event_delay
    assert delay.count == 4
    assert delay.total == pytest.approx(1 + 60 + 0 + 95)
    assert delay.cumulative()[0] == 1, "an event from the future counts in the lowest bucket"
    assert daemon.published.batch_duration.count == 2


def test_events_without_a_time_have_no_delay() -> None:
    assert NO_DELAYS.add(np.array([np.nan, 1.0])).count == 1


def test_a_histogram_bucket_holds_its_upper_bound() -> None:
    histogram = Histogram.from_bounds((1.0, 2.0)).add(np.array([0.0, 1.0, 1.5, 2.0, 2.5]))
    assert histogram.counts == (2, 2, 1)
    assert histogram.cumulative() == (2, 4, 5)
    assert histogram.mean == pytest.approx(7.0 / 5)
    assert Histogram.from_bounds((1.0,)).mean is None


def test_a_loop_that_hangs_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = True

    def poll() -> list[Any]:
        while hanging:
            time.sleep(0.01)
        return []

    assert make_daemon([poll])[0].healthy
    monkeypatch.setattr("streameval.service.daemon.STALL_SECONDS", 0.5)
    daemon, _, _ = make_daemon([poll], stop_when_exhausted=False)
    with running(daemon):
        wait_until(lambda: not daemon.healthy)
        hanging = False
        wait_until(lambda: daemon.healthy)


def test_a_turn_that_evaluates_blocks_one_after_the_other_is_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    elapsed, stalled = 0.0, list[float]()
    monkeypatch.setattr(time, "monotonic", lambda: elapsed)

    class Slow(Recorder):
        def update(self, batch: EventBatch) -> None:
            nonlocal elapsed
            super().update(batch)
            for _ in batch.reward:
                elapsed += 20.0
                stalled.append(daemon.stalled_for)
                self.on_fold()

    daemon = Daemon(ListSource([[records(*[b"1"] * 10)]]), NumberFormat(), Slow(), stop_when_exhausted=True)
    daemon.run()
    assert stalled == [20.0] * 10


def test_events_out_of_order_are_logged_with_a_sufficient_lateness() -> None:
    class Late(EventPipeline):
        def buffered(self) -> BufferStatus:
            return BufferStatus(0, late=3, lateness={("t", 0): 2.0, ("t", 1): 12.4}, max_lateness=5.0)

    with capture_logs() as logs:
        Daemon(ListSource([[records(b"1")], []]), Late(NumberFormat()), Recorder(), stop_when_exhausted=True).run()
    (entry,) = [entry for entry in logs if entry["event"] == "events_late"]
    assert (entry["count"], entry["seconds"]) == (3, 12.4)
    assert entry["hint"] == "increase source.max_lateness to 18s to keep the order"


def test_rejections_are_logged_as_a_summary_per_reason_with_one_example() -> None:
    log = LogSummaries()
    many = [Rejected("malformed", f"no JSON at byte {number}", b"?") for number in range(1000)]
    with capture_logs() as logs:
        for _ in range(50):
            log.add([*many, Rejected("not_finite", "reward is NaN" + "!" * 1000, b"?")])
            log.write_when_due(None)
        assert [(entry["reason"], entry["count"]) for entry in logs] == [("malformed", 1000), ("not_finite", 1)]
        log.write(None)
    assert [(entry["reason"], entry["count"]) for entry in logs[2:]] == [("malformed", 49_000), ("not_finite", 49)]
    assert logs[0]["example"].startswith("no JSON at byte")
    assert len(logs[1]["example"]) == 200


def signalling(number: signal.Signals, times: int) -> tuple[Daemon, Recorder]:
    """Return a daemon that gets signals while it takes its first batch of two."""

    class Signalled(Recorder):
        def update(self, batch: EventBatch) -> None:
            for _ in range(times):
                os.kill(os.getpid(), number)
            super().update(batch)

    recorder = Signalled()
    return Daemon(ListSource([[records(b"1", b"2")], [records(b"3")]]), NumberFormat(), recorder), recorder


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_and_reports_the_batch(number: signal.Signals) -> None:
    daemon, recorder = signalling(number, times=1)
    before = signal.getsignal(number)
    daemon.run()
    assert recorder.rewards == [1.0, 2.0]
    assert daemon.published.report is not None
    assert daemon.published.report.events.accepted == 2
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_stops_the_daemon_at_once(
    number: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", leave)
    daemon, recorder = signalling(number, times=2)
    with pytest.raises(SystemExit) as left:
        daemon.run()
    assert (left.value.code, recorder.rewards) == (code, [])


class Writer:
    """Take every snapshot it can get."""

    def __init__(self) -> None:
        self.status, self.fingerprint, self.history = SnapshotStatus(), {"block": 1}, History()
        self.kept: list[Any] = []
        self.closed = False

    def maybe_write(self, take: Any) -> None:
        self.kept.append(take())

    write_last = maybe_write

    def close(self) -> None:
        self.closed = True


def test_the_state_contains_everything_learned_from_released_events() -> None:
    writer = Writer()
    daemon, _, _ = make_daemon([[records(b"1", b"2")], [], [records(b"3")]], snapshots=writer)
    daemon.run()
    first, *later = writer.kept
    assert first is None, "nothing is kept while the log has not been reached"
    assert [(taken.offsets["interactions"]["positions"], taken.evaluator["rewards"]) for taken in later] == [
        ([[0, 1]], [1.0, 2.0]),
        ([[0, 2]], [1.0, 2.0]),
        ([[0, 3]], [1.0, 2.0, 3.0]),
        ([[0, 3]], [1.0, 2.0, 3.0]),
    ]
    assert writer.closed
    assert daemon.published.snapshots == SnapshotStatus()


def test_the_state_is_written_after_a_failed_source_and_not_after_a_bug() -> None:
    for trouble, kept in ((SourceError("gone", hint=""), 3), (ZeroDivisionError("a bug"), 2)):
        writer = Writer()
        daemon, _, _ = make_daemon([[records(b"1")], trouble], snapshots=writer)
        with pytest.raises(type(trouble)):
            daemon.run()
        assert len(writer.kept) == kept
        assert writer.closed


@pytest.mark.parametrize("size", [1, 5, 30])
def test_a_clock_far_behind_the_events_withholds_them_and_saves_no_offset(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "MAX_NUMBERS", 2 * groups.OTHER_NUMBERS)  # two events are taken together
    monkeypatch.setattr("streameval.service.daemon.MAX_WITHHELD", 20)
    writer, learner, now = Writer(), Recorder(), [1.0]
    pipeline = EventPipeline(NumberFormat(), KafkaSettings(topic="interactions"))
    source = ListSource([[records(*[b"1000000"] * size)]], exhausted=False)
    source.lag = 0
    daemon = Daemon(source, pipeline, learner, clock=lambda: now[0], snapshots=writer)
    with running(daemon):
        wait_until(lambda: "behind the events" in daemon.published.detail)
        wait_until(lambda: bool(source.paused) == (size >= 20))
        assert not daemon.published.ready
        assert not learner.rewards
        assert not any(writer.kept), "an offset would skip the events after a restart"
        now[0] = 1_000_001.0
        wait_until(lambda: daemon.published.ready and len(learner.rewards) == size)
    assert not source.paused
    assert writer.kept[-1] is not None
    assert daemon.published.batch_duration.count == math.ceil(size / 2)


@pytest.mark.parametrize("size", [1, 40])
def test_a_clock_an_hour_behind_nearly_all_events_is_reported_once(size: int) -> None:
    polls = [[records(*[b"3600"] * size)] for _ in range(40 // size)]
    right = [[records(*[b"1"] * 3, *[b"3600"] * 17)]]
    options: dict[str, Any] = {"clock": lambda: 1.0, "publish_interval": 0.0, "stop_when_exhausted": True}
    for after, is_ahead in (([], True), (right, False)):
        learner, pipeline = Recorder(), EventPipeline(NumberFormat(), KafkaSettings(topic="interactions"))
        daemon = Daemon(ListSource(polls + after), pipeline, learner, **options)
        with capture_logs() as logs:
            daemon.run()
        assert daemon.published.ready
        assert ("dated ahead of this machine's clock" in daemon.published.detail) == is_ahead
        assert len(learner.rewards) == 40 + 20 * len(after)
        assert len([entry for entry in logs if entry["event"] == "events_ahead"]) == 1


def test_rejected_messages_are_stored_with_their_records() -> None:
    class DeadLetterLog:
        stored: ClassVar[list[Any]] = []
        closed = False

        def put(self, records: Any, rejected: Any) -> None:
            self.stored.append((len(records), [event.value for event in rejected]))

        def status(self) -> WorkerStatus:
            return WorkerStatus(done=len(self.stored))

        def close(self) -> None:
            self.closed = True

    queue = DeadLetterLog()
    daemon, _, _ = make_daemon([[records(b"1", b"?"), records(b"!")], [records(b"2")]], dead_letters=queue)
    daemon.run()
    assert queue.stored == [(2, [b"?", b"!"]), (1, [])]
    assert queue.closed
    assert daemon.published.dead_letters == WorkerStatus(done=2)
