"""Test the daemon with an engine: every event counts once, whatever ends when."""

from __future__ import annotations

import json
import shutil
import threading
import time
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from streameval.cli.show import shown
from streameval.config.model import Config
from streameval.engines import daemon as daemon_module
from streameval.engines.daemon import EngineDaemon
from streameval.engines.ranges import OffsetRange, RangeEvaluator, RangeResult
from streameval.errors import ConfigError, SourceError, StateError
from streameval.event_logger.packing import pack
from streameval.event_logger.sinks import Message
from streameval.events.arrow_messages import is_arrow
from streameval.ingest.kafka import source as kafka_source
from streameval.ingest.kafka.client import ClientError
from streameval.ope.evaluator.summaries import PartitionedEvaluator, Summary
from streameval.ope.report import Report
from streameval.service.metrics import metrics_text
from support.executors import batch_task, config_of, engine_daemon, fill
from support.factories import running, wait_until
from support.fake_kafka import TOPIC, FakeCluster

EVENTS = 2 * 990


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster(markers=2)
    for partition in (0, 1):
        fill(cluster, partition, 1000)
    return cluster


def reported(daemon: EngineDaemon, events: int) -> Report:
    """Wait until a running daemon has counted this number of events, and return its Report."""
    wait_until(lambda: daemon.published.report is not None and daemon.published.report.events.accepted >= events)
    assert daemon.published.report is not None
    assert daemon.published.report.events.accepted == events
    return daemon.published.report


def expected(cluster: FakeCluster, config: Config) -> Report:
    """Return the Report of all messages at once."""
    return evaluated(cluster, config, 0).report()


def evaluated(cluster: FakeCluster, config: Config, start: int) -> PartitionedEvaluator:
    """Return the evaluator of all messages from this offset on, read in one batch."""
    summaries = []
    for partition, log in cluster.logs.items():
        offsets = OffsetRange(TOPIC, partition, start, len(log))
        result = RangeEvaluator(config, cluster.connect)(offsets, 1e9, batch_task(config))
        assert isinstance(result, RangeResult)
        summaries.append(Summary.from_bytes(result.summary))
    evaluator = PartitionedEvaluator.from_config(config.evaluator_config())
    evaluator.fold(summaries)
    return evaluator


def assert_same(one: Report, other: Report) -> None:
    assert one.events == other.events
    for mine, theirs in zip(one.estimates, other.estimates, strict=True):
        numbers = [[row.value, row.lower, row.upper, row.lift, row.lift_lower] for row in (mine, theirs)]
        np.testing.assert_allclose(*np.array(numbers, dtype=float), rtol=1e-9)


def test_executors_read_batches_of_arrow_among_json_with_the_numbers_of_json(cluster: FakeCluster) -> None:
    averages = ["cumulative", {"kind": "window", "tau": 500}, "adaptive_window", "mixture"]
    alone = expected(cluster, config_of(averages=averages))
    for log in cluster.logs.values():
        parts = [log[start : start + 40] for start in range(0, len(log), 40)]
        packed = [pack([Message("decision", "", value or b"") for value in part]) for part in parts]
        log[:] = [message.value for message, _ in chain.from_iterable(packed)]
        assert 0 < sum(map(is_arrow, log)) < len(log) < 700
    source = {"kind": "kafka", "topic": TOPIC, "format": {"kind": "arrow"}}
    engine = {"kind": "spark", "trigger": "1ms", "most_per_partition": 7}
    daemon, executors = engine_daemon(cluster, config_of(source=source, averages=averages, engine=engine))
    with running(daemon):
        assert_same(reported(daemon, EVENTS), alone)
    assert len(executors.batches) > 9


def test_the_daemon_reports_all_events_and_exports_metrics_of_the_engine(cluster: FakeCluster) -> None:
    averages = ["cumulative", {"kind": "window", "tau": 500}, "adaptive_window", "adaptive_decay", "mixture"]
    config = config_of(estimators=["ips", "snips", "stratified_ips"], averages=averages)
    daemon, executors = engine_daemon(cluster, config)
    with running(daemon):
        assert_same(reported(daemon, EVENTS), expected(cluster, config))
        wait_until(lambda: daemon.published.source.lag == 0)
        assert daemon.published.report is not None
        assert {check.policy for check in daemon.published.report.trust} >= {"bold", "shy"}
        executors.lost = 1
        wait_until(lambda: daemon.published.engine is not None and daemon.published.engine.executors_lost == 1)
        status = daemon.published
    assert status.ready
    assert status.rejected["malformed"] == 20
    assert status.event_delay.count == EVENTS
    assert [part.position for part in status.source.partitions] == [1002, 1002]
    assert executors.closed
    metrics = metrics_text(status).decode()
    assert f"streameval_engine_batch_duration_seconds_count {len(executors.batches)}.0" in metrics
    assert "streameval_engine_executors_lost_total 1.0" in metrics
    for name in ("batch_events", "age_seconds"):
        assert f"\nstreameval_engine_{name} " in metrics


def test_a_batch_is_small_enough_for_the_sums_of_all_policies(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_module, "MAX_SUMS", 6)
    daemon, executors = engine_daemon(cluster, config_of())
    with running(daemon):
        reported(daemon, EVENTS)
    assert {sum(task.range.end - task.range.start for task in batch) for batch in executors.batches} == {200, 4}


@pytest.mark.parametrize("counted", [0, 495])
def test_each_event_counts_once_after_a_kill(cluster: FakeCluster, tmp_path: Path, counted: int) -> None:
    config, cluster.markers = config_of(tmp_path / "state"), 0
    logs, cluster.logs = cluster.logs, {number: log[:counted] for number, log in cluster.logs.items()}
    first, _ = engine_daemon(cluster, config)
    with running(first):  # it writes a snapshot when it ends
        wait_until(lambda: first.published.source.lag == 0)
    cluster.logs = logs
    saved = shutil.copytree(tmp_path / "state", tmp_path / "saved", ignore=shutil.ignore_patterns("lock"))
    killed, _ = engine_daemon(cluster, config)
    with running(killed):  # its counts are lost with its snapshot
        reported(killed, EVENTS)
    last, executors = engine_daemon(cluster, config_of(saved))
    with running(last):
        assert_same(reported(last, EVENTS), expected(cluster, config))
    assert {task.range.start for task in executors.batches[0]} == {counted}


def test_a_batch_that_fails_is_repeated(cluster: FakeCluster) -> None:
    config = config_of()
    daemon, executors = engine_daemon(cluster, config)
    executors.faults = [ClientError("an executor cannot reach the broker")]
    with running(daemon):
        assert_same(reported(daemon, EVENTS), expected(cluster, config))
    assert daemon.published.source.rebuilds == 1


def test_deleted_messages_are_counted_as_lost_and_the_others_count(cluster: FakeCluster) -> None:
    daemon, executors = engine_daemon(
        cluster, config_of(engine={"trigger": "1ms", "most_per_partition": 100, "kind": "spark"})
    )
    executors.free.clear()
    with running(daemon):
        wait_until(lambda: bool(executors.batches))
        cluster.first[0] = 500
        executors.free.set()
        reported(daemon, 990 + 495)
        wait_until(lambda: daemon.published.source.lag == 0)
        status = daemon.published.source
    assert status.lost == 500
    assert status.gaps["deleted"] == 1


def test_messages_deleted_after_others_were_counted_leave_a_gap(cluster: FakeCluster) -> None:
    rest, cluster.logs[0] = cluster.logs[0][400:], cluster.logs[0][:400]
    daemon, _ = engine_daemon(cluster, config_of())
    with running(daemon):
        reported(daemon, 990 + 396)
        cluster.first[0] = 600
        cluster.logs[0] = cluster.logs[0] + rest
        reported(daemon, 990 + 396 + 396)
    assert daemon.published.source.gaps["deleted"] == 1


def started(daemon: EngineDaemon) -> tuple[threading.Thread, list[SourceError]]:
    """Start a daemon in a thread. Return the thread, and a list that gets the error of the daemon when it fails."""
    failures: list[SourceError] = []

    def run() -> None:
        try:
            daemon.run()
        except SourceError as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, failures


def test_a_recreated_topic_stops_the_daemon(cluster: FakeCluster) -> None:
    daemon, executors = engine_daemon(cluster, config_of())
    thread, failures = started(daemon)
    reported(daemon, EVENTS)
    cluster.create_again()
    for partition in (0, 1):
        fill(cluster, partition, 300)
    thread.join(60.0)
    assert "--reset" in failures[0].hint
    assert executors.closed


def test_the_end_of_the_engine_ends_the_daemon_and_the_snapshot_has_all_counted_events(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    daemon, executors = engine_daemon(cluster, config_of(tmp_path))
    thread, failures = started(daemon)
    reported(daemon, EVENTS)
    executors.ended = True
    thread.join(60.0)
    assert failures[0].message == "the engine has ended"
    again, _ = engine_daemon(cluster, config_of(tmp_path))
    with running(again):
        reported(again, EVENTS)


def test_dead_letters_are_written_by_the_driver(cluster: FakeCluster, tmp_path: Path) -> None:
    path = tmp_path / "rejected.ndjson"
    daemon, _ = engine_daemon(cluster, config_of(dead_letters={"kind": "file", "path": str(path)}))
    with running(daemon):
        reported(daemon, EVENTS)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    rejected = {(line["partition"], line["offset"]) for line in lines}
    assert rejected == {(partition, offset) for partition in (0, 1) for offset in range(0, 1000, 100)}
    assert {line["value"] for line in lines} == {"{"}


def test_a_snapshot_of_other_estimators_or_of_no_engine_is_refused(cluster: FakeCluster, tmp_path: Path) -> None:
    daemon, _ = engine_daemon(cluster, config_of(tmp_path))
    with running(daemon):
        reported(daemon, EVENTS)
    other: dict[str, Any] = {"estimators": ["ips"]}
    with pytest.raises(StateError, match="other estimators or averages"):
        engine_daemon(cluster, config_of(tmp_path, **other))
    afresh, _ = engine_daemon(cluster, config_of(tmp_path, **other), reset=True)
    with running(afresh):
        reported(afresh, EVENTS)


def test_a_snapshot_shows_the_report(cluster: FakeCluster, tmp_path: Path) -> None:
    daemon, _ = engine_daemon(cluster, config_of(tmp_path))
    with running(daemon):
        report = reported(daemon, EVENTS)
    snapshot = shown(tmp_path, lambda contents: contents)
    assert snapshot["report"].estimates == report.estimates
    assert snapshot["policies"] == ["logging", "bold", "shy"]


def test_without_a_state_there_is_nothing_to_reset(cluster: FakeCluster) -> None:
    with pytest.raises(ConfigError, match="no state to reset"):
        engine_daemon(cluster, config_of(), reset=True)


def test_an_idle_topic_makes_no_estimate_old(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_source, "PROBE_INTERVAL", 0.05)
    daemon, _ = engine_daemon(cluster, config_of())

    def age() -> float:
        assert daemon.published.engine is not None
        return daemon.published.engine.age

    with running(daemon):
        reported(daemon, EVENTS)
        wait_until(lambda: daemon.published.source.lag == 0)
        counted = time.time()
        wait_until(lambda: time.time() - counted > age() + 0.5)


class Candidates:
    """Hold a configuration and its daemon, and change the candidates while the daemon runs."""

    def __init__(self, cluster: FakeCluster, folder: Path, **sections: Any) -> None:
        self._cluster, self._folder = cluster, folder
        self.config = config_of(folder, **sections)
        self.daemon = self.started()

    def started(self) -> EngineDaemon:
        """Make another daemon with the present configuration."""
        return engine_daemon(self._cluster, self.config, load=lambda: self.config)[0]

    def change(self, *names: str, **sections: Any) -> None:
        """Reload with these candidates."""
        self.config = config_of(self._folder, policies={"candidates": list(names)}, **sections)
        self.daemon.reload()

    def rows(self) -> set[str]:
        """Return the policies that have estimates in the Report."""
        report = self.daemon.published.report
        return {row.policy for row in report.estimates} if report else set()

    def events(self) -> dict[str, int]:
        """Return the number of events of each policy in the Report."""
        report = self.daemon.published.report
        return {policy.policy: policy.events for policy in report.policies} if report else {}


def test_a_reload_adds_candidates_from_the_next_batch_on_and_removes_others(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    rest = {number: log[400:] for number, log in cluster.logs.items()}
    cluster.markers, cluster.logs = 0, {number: log[:400] for number, log in cluster.logs.items()}
    averages: dict[str, Any] = {"averages": ["cumulative", "adaptive_window", {"kind": "decay", "half_life": 500}]}
    candidates = Candidates(cluster, tmp_path, policies={"candidates": ["bold"]}, **averages)
    with running(candidates.daemon):
        reported(candidates.daemon, 2 * 396)
        candidates.change("shy", "bold", **averages)
        wait_until(lambda: candidates.rows() == {"logging", "bold", "shy"})
        cluster.logs = {number: log + rest[number] for number, log in cluster.logs.items()}
        reported(candidates.daemon, EVENTS)
        assert candidates.events() == {"logging": EVENTS, "bold": EVENTS, "shy": EVENTS - 2 * 396}
        late = candidates.daemon.published.report
        candidates.change("shy", **averages)
        wait_until(lambda: candidates.rows() == {"logging", "shy"})
    whole = evaluated(cluster, config_of(policies={"candidates": ["shy"]}, **averages), 400)
    assert late is not None
    for row in whole.report().estimates:
        if row.policy == "shy":
            alike = row.average in (
                "cumulative",
                "adaptive_window",
            )  # the others depend on blocks and on values at start
            value = late.get(row.policy, row.estimator, row.average).value
            assert value == pytest.approx(row.value, rel=1e-9 if alike else 1e-2), row.average


def test_candidates_that_changed_while_the_daemon_was_down_start_from_zero(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    more = {number: log[600:] for number, log in cluster.logs.items()}
    cluster.markers, cluster.logs = 0, {number: log[:600] for number, log in cluster.logs.items()}
    candidates = Candidates(cluster, tmp_path, policies={"candidates": ["bold"]})
    with running(candidates.daemon):
        reported(candidates.daemon, 2 * 594)
        candidates.change("bold", "shy")
        wait_until(lambda: "shy" in candidates.rows())
    candidates.config = config_of(tmp_path, policies={"candidates": ["shy", "third"]})
    candidates.daemon = candidates.started()
    cluster.logs = {number: log + more[number] for number, log in cluster.logs.items()}
    with running(candidates.daemon):
        reported(candidates.daemon, EVENTS)
        assert candidates.events() == {"logging": EVENTS, "shy": 2 * 396, "third": 0}


@pytest.mark.parametrize("change", [{"estimators": ["ips"]}, {"confidence": 0.9}])
def test_a_reload_that_changes_more_than_candidates_is_refused_and_logged(
    cluster: FakeCluster, tmp_path: Path, change: dict[str, Any]
) -> None:
    candidates = Candidates(cluster, tmp_path)
    with capture_logs() as logs, running(candidates.daemon):
        reported(candidates.daemon, EVENTS)
        candidates.change("bold", **change)
        wait_until(lambda: any(entry["event"] == "reload_failed" for entry in logs))
        assert candidates.rows() == {"logging", "bold", "shy"}
