"""Test how batches of ranges are planned, and that positions advance by whole batches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streameval.engines.client import EngineClient
from streameval.ingest.base import Records
from streameval.ingest.kafka.client import ClientError, OffsetsGoneError
from support.executors import Executors, batch_task, config_of, fill
from support.factories import wait_until
from support.fake_kafka import TOPIC, FakeCluster


class Bench:
    """Hold a client over two partitions of 1,000 messages, with a clock that moves by hand."""

    def __init__(self, most: int | None = None, **engine: object) -> None:
        self.cluster, self.now = FakeCluster(), 0.0
        for partition in (0, 1):
            fill(self.cluster, partition, 1000)
        self.executors = Executors(self.cluster)
        config = config_of(engine={"kind": "spark", "trigger": "5s", "most_per_partition": 300, **engine})
        requests = self.cluster.connect(config.source, 1.0, None)  # type: ignore[arg-type]
        self.client = EngineClient(
            *(config, self.executors, requests, lambda: replace(batch_task(config), most=most)),
            clock=lambda: self.now,
        )
        self.client.assign({0: 0, 1: 900}, {})

    def batch(self) -> list[Records]:
        """Wait for the next batch, which may start now, and return its records."""
        records: list[Records] = []
        wait_until(lambda: bool(records.extend(self.client.poll(0.0)) or records))
        return records

    def ranges(self) -> list[list[tuple[int, int, int]]]:
        return [
            [(task.range.partition, task.range.start, task.range.end) for task in batch]
            for batch in self.executors.batches
        ]


def test_a_batch_takes_available_offsets_up_to_a_limit_per_partition() -> None:
    bench = Bench()
    records = bench.batch()
    assert [(part.topic, part.partition, part.offsets) for part in records] == [
        (TOPIC, 0, range(300)),
        (TOPIC, 1, range(900, 1000)),
    ]
    assert (bench.client.position(0), bench.client.position(1)) == (300, 1000)
    assert (bench.client.highwater(0), bench.client.highwater(1)) == (1000, 1000)
    bench.now = 5.0
    bench.batch()
    assert bench.ranges() == [[(0, 0, 300), (1, 900, 1000)], [(0, 300, 600)]]


def test_a_batch_waits_for_the_trigger_and_ends_before_open_transactions() -> None:
    bench = Bench()
    bench.batch()
    bench.now = 4.9
    assert bench.client.poll(0.01) == []
    assert len(bench.executors.batches) == 1
    bench.cluster.hidden, bench.now = 600, 5.0
    bench.cluster.logs[1] += [b"{"] * 600
    bench.batch()
    assert bench.ranges()[1:] == [[(0, 300, 400)]]


def test_a_task_may_limit_a_batch_and_the_next_one_starts_at_once_until_all_is_read() -> None:
    bench = Bench(most=90)
    bench.client.assign({0: 0}, {})
    bench.cluster.hidden = 800
    for _ in range(3):
        bench.batch()
    assert bench.ranges() == [[(0, 0, 90)], [(0, 90, 180)], [(0, 180, 200)]]
    bench.cluster.hidden = 0
    assert bench.client.poll(0.01) == []


def test_a_batch_that_fails_has_read_nothing() -> None:
    bench = Bench()
    bench.executors.faults = [ClientError("an executor cannot reach the broker")]
    with pytest.raises(ClientError, match="an executor cannot reach the broker"):
        bench.batch()
    assert bench.client.position(0) == 0
    bench.client.assign({0: 0, 1: 900}, {})
    bench.now = 5.0
    bench.batch()
    assert bench.ranges()[0] == bench.ranges()[1]


def test_a_log_that_lost_its_start_or_its_end_is_reported_before_a_batch_starts() -> None:
    bench = Bench()
    bench.cluster.first[0] = 10
    del bench.cluster.logs[1][800:]
    with pytest.raises(OffsetsGoneError) as gone:
        bench.batch()
    assert gone.value.resume == {0: None, 1: None}
    assert bench.executors.batches == []


def test_a_log_that_loses_messages_while_they_are_read_is_reported_and_nothing_counts() -> None:
    bench = Bench()
    bench.executors.free.clear()
    bench.client.poll(0.0)
    bench.cluster.first[0] = 10
    bench.executors.free.set()
    with pytest.raises(OffsetsGoneError) as gone:
        bench.batch()
    assert gone.value.resume == {0: None}
    assert (bench.client.position(0), bench.client.position(1)) == (0, 900)


def test_paused_partitions_are_not_in_a_batch() -> None:
    bench = Bench()
    bench.client.pause([0])
    assert {part.partition for part in bench.batch()} == {1}


def test_closing_cancels_the_running_batch_and_keeps_the_engine() -> None:
    bench = Bench()
    bench.executors.free.clear()
    assert bench.client.poll(0.05) == []
    bench.client.unblock([0])  # has no effect during a batch
    bench.client.close()
    assert bench.executors.free.is_set()
    assert not bench.executors.closed
    assert bench.cluster.clients[0].closed
