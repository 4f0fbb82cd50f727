"""Measure the whole daemon on a real broker: in one process, and on Spark with one worker and with two."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers of the tests

import confluent_kafka
from measuring import Benchmark, Ratio, Work
from messages import CANDIDATES, compact

from streameval.ingest.kafka.producer import produce
from support.integration.broker import RealBroker, real_broker
from support.integration.daemon_runs import DaemonRuns

PARTITIONS, PATIENCE = 4, 300.0
FIRST = 2 / 7
"""Share of the events that a daemon takes before it is measured, because Spark has started by then."""


def seconds_of(broker: RealBroker, values: Sequence[bytes], master: str | None) -> float:
    """Measure the processor time of a daemon and its workers.

    The events that count are in a transaction, which ends when the others have been read.

    Args:
        broker: The broker.
        values: Messages.
        master: Master of Spark, None for one process.
    """
    topic, first = f"cost-{uuid4().hex[:8]}", int(FIRST * len(values))
    broker.create_topic(topic, PARTITIONS)
    produce(values[:first], topic, broker.connection)
    limits = {"transaction.timeout.ms": 900_000, "queue.buffering.max.messages": 0}
    servers = {"bootstrap.servers": broker.bootstrap, "transactional.id": topic}
    producer = confluent_kafka.Producer({**servers, **limits})
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    for index, value in enumerate(values[first:]):
        producer.produce(topic, value, partition=index % PARTITIONS)
    producer.flush(PATIENCE)
    source = {"kind": "kafka", "topic": topic, "client": "confluent", "order": "arrival"}
    config: dict[str, Any] = {
        "source": source | {"bootstrap_servers": broker.bootstrap},
        "policies": {"candidates": list(CANDIDATES)},
        "estimators": ["ips", "snips"],
        "averages": ["cumulative", {"kind": "decay", "half_life": "1h"}],
        "drift": "off",
        "promotion": "off",
        "state": "off",
        "http": {"port": 0},
    }
    if master is not None:
        options = {"spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        engine = {"kind": "spark", "trigger": "10ms", "most_per_partition": 50_000, "options": options}
        config["engine"] = {**engine, "master": master}
    with tempfile.TemporaryDirectory() as folder:
        runs = DaemonRuns(Path(folder), config)
        runs.start()
        runs.report_of(first)
        before = runs.processor_seconds()
        producer.commit_transaction(PATIENCE)
        runs.report_of(len(values))
        spent = runs.processor_seconds() - before
        runs.end()
    return spent


def benchmark(events: int = 700_000) -> Benchmark:
    running = ExitStack()
    atexit.register(running.close)
    broker, values = running.enter_context(real_broker()), compact(events)
    counted = len(values) - int(FIRST * len(values))
    masters = {"one process": None, "one worker": "local[1]", "two workers": "local[2]"}
    works = {
        name: Work(lambda master=master: seconds_of(broker, values, master), counted)
        for name, master in masters.items()
    }
    ratios = [Ratio("one worker", "one process", 2.0), Ratio("two workers", "one worker", 1.15)]
    return Benchmark("The daemon on Spark, two estimators on two averages", works, ratios)
