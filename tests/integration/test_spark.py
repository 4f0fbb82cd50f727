"""Evaluation on Spark: a topic with transactions, read by executors, for drivers and executors that are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import confluent_kafka
import numpy as np
import pytest

from streameval.config.model import Config
from streameval.events import JsonDecoder
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evaluator.summaries import PartitionedEvaluator, Summariser
from streameval.ope.report import Report
from streameval.service.startup import pipeline_of
from support.asking import asking
from support.factories import wait_until
from support.integration.broker import RealBroker
from support.integration.ci import skip_unless_ci
from support.integration.daemon_runs import RUN, DaemonRuns, is_running
from support.paths import ROOT

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

EVENTS, PARTITIONS, IN_TRANSACTION, ABORTED, REJECTED = 1_000_000, 4, 2_000, 4, 1_000
"""Of each `IN_TRANSACTION` events; before every `ABORTED`th transaction comes one that is aborted. One in `REJECTED` is
not JSON."""
CANDIDATES = ["bold", "shy", "even"]
PATIENCE = 300.0


@dataclass
class Topic:
    """Hold a topic, its configuration without an engine, and what one process makes of its events."""

    config: dict[str, Any]
    ends: dict[int, int]
    values: list[bytes]

    @property
    def name(self) -> str:
        return str(self.config["source"]["topic"])

    def spark_config(self, **engine: Any) -> dict[str, Any]:
        options = {"spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        return self.config | {"engine": {"kind": "spark", "trigger": "10ms", "options": options} | engine}

    @cached_property
    def process_report(self) -> Report:
        """Return the cumulative values of all events, by the evaluator of a daemon without an engine."""
        evaluator = Evaluator(CANDIDATES, ["ips", "snips"], ["cumulative"], drift=None, promotion=None)
        evaluator.update(JsonDecoder(policies=CANDIDATES).decode_batch(self.values))
        return evaluator.report()

    @cached_property
    def range_report(self) -> Report:
        """Return every number, from one range of each partition."""
        config = Config.model_validate(self.spark_config())
        plan, pipeline = config.evaluator_config(), pipeline_of(config)
        assert config.source is not None
        summarisers = {partition: Summariser(plan, partition, 0) for partition in self.ends}
        with closing(config.source.open()) as source:
            while source.offsets()[self.name].positions != self.ends:
                for batch in source.poll(1.0):
                    summarisers[batch.partition].update(pipeline.take([batch], {}, 1.8e9))
        evaluator = PartitionedEvaluator.from_config(plan)
        evaluator.fold([summariser.summary(self.ends[partition]) for partition, summariser in summarisers.items()])
        return evaluator.report()

    def require(self, report: dict[str, Any]) -> None:
        """Require exact counts, the values of one process, and every number of one range."""
        assert report["events"]["accepted"] == EVENTS - EVENTS // REJECTED
        assert report["events"]["rejected"] == {"malformed": EVENTS // REJECTED}
        estimates = {(row["policy"], row["estimator"], row["average"]): row for row in report["estimates"]}
        for row in self.process_report.estimates:
            assert estimates[row.policy, row.estimator, row.average]["value"] == pytest.approx(row.value, rel=1e-9)
        for row in self.range_report.estimates:
            mine = estimates[row.policy, row.estimator, row.average]
            for name in ("value", "lower", "upper", "lift", "lift_lower", "lift_upper"):
                expected = getattr(row, name)
                assert mine[name] == (None if expected is None else pytest.approx(expected, rel=1e-9)), (row, name)


def events(first: int, count: int) -> Iterator[bytes]:
    chance = np.random.default_rng(first)
    shares, propensities = chance.random((count, 3)) / 2, chance.uniform(0.1, 0.5, count)
    rewards = (chance.random(count) < 0.1).astype(int)
    for index in range(count):
        number = first + index
        event = {
            "event_id": number,
            "timestamp": 1.7e9 + number / 2_000,
            "action": "a",
            "propensity": propensities[index],
            "reward": int(rewards[index]),
            "policies": dict(zip(CANDIDATES, shares[index].tolist(), strict=True)),
        }
        yield json.dumps(event).encode() if number % REJECTED else b"{"


@pytest.fixture(scope="module")
def topic(broker: RealBroker) -> Topic:
    if find_spec("pyspark") is None:
        skip_unless_ci("pyspark is not installed (make .venv-test/spark)")
    if not isinstance(broker, RealBroker):
        skip_unless_ci(f"needs transactions, which the {broker.kind} does not have")
    name = f"spark-{uuid4().hex[:8]}"
    broker.create_topic(name, PARTITIONS)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    producer.init_transactions(PATIENCE)
    sent: list[bytes] = []
    for number, first in enumerate(range(0, EVENTS, IN_TRANSACTION)):
        values = list(events(first, IN_TRANSACTION))
        if number % ABORTED == 1:
            producer.begin_transaction()
            for index, value in enumerate(values[:300]):
                producer.produce(name, value.replace(b'"reward": 0', b'"reward": 1'), partition=index % PARTITIONS)
            producer.flush(PATIENCE)  # so that the messages are in the log
            producer.abort_transaction(PATIENCE)
        producer.begin_transaction()
        for index, value in enumerate(values):
            producer.produce(name, value, partition=index % PARTITIONS)
        producer.commit_transaction(PATIENCE)
        sent += values
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": name})
    ends = {
        number: consumer.get_watermark_offsets(confluent_kafka.TopicPartition(name, number), PATIENCE)[1]
        for number in range(PARTITIONS)
    }
    consumer.close()
    assert sum(ends.values()) > EVENTS + EVENTS // IN_TRANSACTION, "markers and aborted messages take offsets"
    source = {"kind": "kafka", "topic": name, "bootstrap_servers": broker.bootstrap, "client": "confluent"}
    averages = ["cumulative", "window", "adaptive_window", {"kind": "decay", "half_life": "10s"}]
    config = {
        "source": source,
        "policies": {"candidates": CANDIDATES},
        "estimators": ["ips", "snips"],
        "averages": averages,
        "http": {"port": 0},
    }
    return Topic(config, ends, sent)


def test_from_the_command_line_to_the_metrics_spark_gives_the_numbers_of_one_process(
    topic: Topic, tmp_path: Path
) -> None:
    rejected = tmp_path / "rejected.ndjson"
    config = topic.config | {"dead_letters": {"kind": "file", "path": str(rejected)}}
    runs = DaemonRuns(tmp_path / "runs", config)
    runs.start("--engine", "spark:local[2]")
    report = runs.report_of(EVENTS - EVENTS // REJECTED)
    with asking(runs.logged("serving")[-1]["url"]) as client:
        wait_until(lambda: client.get("/readyz").status_code == 200, PATIENCE)
        metrics = client.get("/metrics").text
    runs.end()
    topic.require(report)
    shown = dict(
        re.findall(
            r'^streameval_policy_value\{average="cumulative",estimator="ips",policy="(\w+)".*\} (\S+)$', metrics, re.M
        )
    )
    for row in topic.process_report.estimates:
        if row.estimator == "ips":
            assert float(shown[row.policy]) == pytest.approx(row.value, rel=1e-9)
    assert f"streameval_events_accepted_total {float(EVENTS - EVENTS // REJECTED)}" in metrics
    assert re.search(r"^streameval_engine_batch_duration_seconds_count [1-9]", metrics, re.M)
    assert "streameval_engine_executors_lost_total 0.0" in metrics
    lines = [json.loads(line) for line in rejected.read_text().splitlines()]
    assert len({(line["partition"], line["offset"]) for line in lines}) == EVENTS // REJECTED
    assert {line["value"] for line in lines} == {"{"}


def test_a_driver_that_is_killed_before_and_after_a_snapshot_counts_each_event_once(
    topic: Topic, tmp_path: Path
) -> None:
    runs = DaemonRuns(tmp_path / "runs", topic.spark_config(master="local[2]", most_per_partition=3_000))
    runs.start(env=os.environ | {"STREAMEVAL_STATE__INTERVAL": "1h"})
    counted = runs.report_of(1)["events"]["accepted"]
    runs.kill()  # the only snapshot is that of the start
    runs.start(env=os.environ | {"STREAMEVAL_STATE__INTERVAL": "1s"})
    runs.report_of(1)
    following = int(runs.snapshots()[-1].stem) + 2
    wait_until(lambda: int(runs.snapshots()[-1].stem) >= following, PATIENCE)
    runs.kill()
    runs = DaemonRuns(tmp_path / "runs", topic.spark_config(master="local[2]"))
    topic.require(runs.finish(EVENTS - EVENTS // REJECTED))
    before, after = (entry["events"] for entry in runs.logged("continued"))
    assert before < counted
    assert after > before


@pytest.mark.parametrize("submitted", [False, True], ids=["run", "spark-submit"])
def test_a_driver_ends_when_spark_does_and_continues_at_its_snapshot(
    topic: Topic, tmp_path: Path, submitted: bool
) -> None:
    """Spark is the driver's child, or spark-submit is its parent and gets a signal, which it does not pass on."""
    config = topic.spark_config(master="local[2]", most_per_partition=3_000)
    runs = DaemonRuns(tmp_path / "runs", config, spark_submit() if submitted else RUN)
    runs.start()
    counted = runs.report_of(1)["events"]["accepted"]
    (java,), processes = runs.java("SparkSubmit"), runs.processes()
    os.kill(java, signal.SIGTERM)
    assert runs.process is not None
    assert runs.process.wait(PATIENCE) == (128 + signal.SIGTERM if submitted else 1)
    assert submitted or "the engine has ended" in runs.log.read_text()  # spark-submit carries the log, and is gone
    wait_until(lambda: not any(map(is_running, processes)), PATIENCE)
    if not submitted:
        continued = DaemonRuns(tmp_path / "runs", topic.spark_config(master="local[2]"))
        topic.require(continued.finish(EVENTS - EVENTS // REJECTED))
        assert continued.logged("continued")[-1]["events"] >= counted


def spark_submit() -> list[str]:
    """Return the command of deploy/operate.md that runs streameval by spark-submit, with the same Python."""
    pyspark = find_spec("pyspark")
    assert pyspark is not None
    assert pyspark.origin is not None
    script, program = Path(pyspark.origin).parent / "bin" / "spark-submit", ROOT / "deploy" / "spark" / "run.py"
    return [str(script), "--conf", f"spark.pyspark.python={sys.executable}", str(program)]


def test_an_executor_that_is_killed_in_the_middle_of_a_batch_loses_and_repeats_nothing(
    topic: Topic, tmp_path: Path
) -> None:
    master = {"master": "local-cluster[2,1,1024]", "most_per_partition": 25_000}
    runs = DaemonRuns(tmp_path / "runs", topic.spark_config(**master))
    runs.start()
    runs.report_of(1)
    os.kill(runs.java("CoarseGrainedExecutorBackend")[0], signal.SIGKILL)
    report = runs.report_of(EVENTS - EVENTS // REJECTED)
    with asking(runs.logged("serving")[-1]["url"]) as client:
        wait_until(lambda: "streameval_engine_executors_lost_total 1.0" in client.get("/metrics").text, PATIENCE)
    runs.end()
    topic.require(report)
