"""Test how an executor evaluates a range of offsets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streameval.engines import ranges
from streameval.engines.ranges import OffsetRange, RangeEvaluator, RangeGone, RangeResult, messages_of
from streameval.events import EventBatch
from streameval.ingest.background import ConnectionGroup
from streameval.ingest.kafka.client import ClientError
from streameval.ope.evaluator.summaries import PartitionedEvaluator, Summary
from support.executors import batch_task, config_of, fill
from support.fake_kafka import TOPIC, FakeCluster

NOW = 1e6
TASK = batch_task(config_of())


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    fill(cluster, 0, 1000)
    return cluster


def result_of(evaluator: RangeEvaluator, start: int, end: int, epoch: int | None = None) -> RangeResult:
    result = evaluator(OffsetRange(TOPIC, 0, start, end, epoch), NOW, TASK)
    assert isinstance(result, RangeResult)
    return result


def test_a_range_has_its_messages_and_no_other(cluster: FakeCluster) -> None:
    result = result_of(RangeEvaluator(config_of(), cluster.connect), 150, 420)
    assert result.events == 267
    assert result.rejected == {"malformed": 3}
    assert result.examples["malformed"].startswith("not JSON")
    assert result.delays.count == 267
    summary = summary_of(result)
    assert summary.events.accepted == 267
    assert (summary.partition, summary.start, summary.end) == (0, 150, 420)
    assert summary.blocks is not None
    assert len(summary.blocks.times) == 2
    assert summary.rest is not None
    assert len(EventBatch.from_state(summary.rest)) == 67


def summary_of(result: RangeResult) -> Summary:
    return Summary.from_bytes(result.summary)


@pytest.mark.parametrize("at_once", [70, 10_000])
@pytest.mark.parametrize("cut", [333, 90])
def test_no_number_depends_on_how_ranges_and_their_messages_are_cut(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, cut: int, at_once: int
) -> None:
    config = config_of()
    whole, parts = (PartitionedEvaluator.from_config(config.evaluator_config()) for _ in range(2))
    whole.fold([summary_of(result_of(RangeEvaluator(config, cluster.connect), 0, 1000))])
    monkeypatch.setattr(ranges, "EVENTS_AT_ONCE", at_once)
    evaluator = RangeEvaluator(config, cluster.connect)
    for start in range(0, 1000, cut):
        task = replace(TASK, knowledge=parts.knowledge(), rests=parts.rests())
        result = evaluator(OffsetRange(TOPIC, 0, start, min(start + cut, 1000)), NOW, task)
        assert isinstance(result, RangeResult)
        parts.fold([summary_of(result)])
    assert parts.offset(0) == whole.offset(0) == 1000
    for one, other in zip(whole.report().estimates, parts.report().estimates, strict=True):
        assert (other.value, other.lower, other.upper) == pytest.approx((one.value, one.lower, one.upper), rel=1e-9)


def test_a_range_may_end_with_a_part_that_is_evaluated_at_once(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "EVENTS_AT_ONCE", 250)
    result = result_of(RangeEvaluator(config_of(), cluster.connect), 0, 500)
    assert result.events == 495
    assert summary_of(result).end == 500


def test_nothing_more_is_fetched_while_the_last_messages_of_a_range_are_evaluated(cluster: FakeCluster) -> None:
    settings = config_of(source={"kind": "kafka", "topic": TOPIC, "max_poll_records": 200}).required_source()
    client = cluster.connect(settings, 1.0, ConnectionGroup())  # type: ignore[arg-type]
    paused = [client.paused for _ in messages_of(client, OffsetRange(TOPIC, 0, 0, 500), 30.0)]
    assert paused == [frozenset(), frozenset(), {0}]
    assert sum(map(len, messages_of(client, OffsetRange(TOPIC, 0, 500, 700), 30.0))) == 200


@pytest.mark.parametrize(
    ("client", "option"), [("kafka-python", "max_partition_fetch_bytes"), ("confluent", "max.partition.fetch.bytes")]
)
def test_an_executor_fetches_little_beyond_its_range_unless_configured_otherwise(
    cluster: FakeCluster, client: str, option: str
) -> None:
    limits: list[Any] = []

    def connect(settings: Any, *others: Any) -> Any:
        limits.append(settings.client_options[option])
        return cluster.connect(settings, *others)

    for options in ({}, {option: 500_000}):
        source = {"kind": "kafka", "topic": TOPIC, "client": client, "client_options": options}
        result_of(RangeEvaluator(config_of(source=source), connect), 0, 100)
    assert limits[0] < 200_000
    assert limits[1] == 500_000


def test_a_range_may_end_with_offsets_without_messages(cluster: FakeCluster) -> None:
    cluster.markers = 3
    result = result_of(RangeEvaluator(config_of(), cluster.connect), 990, 1003)
    assert result.events == 10
    assert summary_of(result).end == 1003
    empty = result_of(RangeEvaluator(config_of(), cluster.connect), 1000, 1002)
    assert empty.events == 0
    assert (summary_of(empty).start, summary_of(empty).end) == (1000, 1002)


def test_rejected_messages_become_dead_letters_with_their_origin(cluster: FakeCluster, tmp_path: Path) -> None:
    config = config_of(dead_letters={"kind": "file", "path": str(tmp_path / "rejected")})
    result = result_of(RangeEvaluator(config, cluster.connect), 150, 420)
    assert [(letter.topic, letter.partition, letter.offset) for letter in result.dead_letters] == [
        (TOPIC, 0, 200),
        (TOPIC, 0, 300),
        (TOPIC, 0, 400),
    ]
    assert {letter.value for letter in result.dead_letters} == {b"{"}
    assert result.dropped == 0
    assert result_of(RangeEvaluator(config_of(), cluster.connect), 150, 420).dead_letters == []


def test_a_range_returns_dead_letters_up_to_a_limit_and_counts_the_others(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(dead_letters={"kind": "file", "path": str(tmp_path / "rejected")})
    first, *_ = result_of(RangeEvaluator(config, cluster.connect), 0, 1000).dead_letters
    monkeypatch.setattr(ranges, "MAX_REJECTED_BYTES", 4 * first.nbytes)
    result = result_of(RangeEvaluator(config, cluster.connect), 0, 1000)
    assert (len(result.dead_letters), result.dropped) == (4, 6)


def test_a_range_that_the_log_has_lost_is_reported(cluster: FakeCluster) -> None:
    cluster.first[0] = 500
    assert RangeEvaluator(config_of(), cluster.connect)(OffsetRange(TOPIC, 0, 100, 200), NOW, TASK) == RangeGone(
        {0: None}
    )


def test_epochs_show_that_a_log_was_cut_and_has_grown_again() -> None:
    cluster = FakeCluster({0: []})
    for value in [b"{"] * 20:
        cluster.append(0, value)
    evaluator = RangeEvaluator(config_of(), cluster.connect)
    assert result_of(evaluator, 0, 15).epoch == 0
    cluster.cut(0, 10)
    for value in [b"{"] * 20:
        cluster.append(0, value)
    assert evaluator(OffsetRange(TOPIC, 0, 15, 25, epoch=0), NOW, TASK) == RangeGone({0: 10})


def test_after_a_failure_the_next_range_connects_again(cluster: FakeCluster) -> None:
    evaluator = RangeEvaluator(config_of(), cluster.connect)
    cluster.faults = [ClientError("the leader moved")]
    with pytest.raises(ClientError, match="the leader moved"):
        evaluator(OffsetRange(TOPIC, 0, 0, 100), NOW, TASK)
    assert cluster.clients[0].closed
    assert result_of(evaluator, 0, 100).events == 99
    assert result_of(evaluator, 100, 200).events == 99
    assert len(cluster.clients) == 2


def test_a_clock_far_behind_the_events_fails_the_range(cluster: FakeCluster) -> None:
    cluster.logs[0] = [event.replace(b'"timestamp": ', b'"timestamp": 17000000') for event in cluster.logs[0]]
    with pytest.raises(ClientError, match="the clock of this machine is"):
        RangeEvaluator(config_of(), cluster.connect)(OffsetRange(TOPIC, 0, 0, 100), NOW, TASK)


def test_a_partition_without_messages_fails_after_the_stall_timeout(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.deaf = {0}
    monkeypatch.setattr("streameval.engines.ranges.STALL_TIMEOUT", 0.05)
    with pytest.raises(ClientError, match="no message comes"):
        RangeEvaluator(config_of(), cluster.connect)(OffsetRange(TOPIC, 0, 0, 100), NOW, TASK)
