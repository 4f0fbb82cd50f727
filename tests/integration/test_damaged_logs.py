"""Test the daemon on a damaged log: it counts what is lost, and continues."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from kafka import KafkaProducer

from streameval.ingest.kafka.producer import create_topic, produce
from streameval.ingest.kafka.source import PROBE_INTERVAL
from support.integration.broker import RealBroker
from support.integration.running import daemon, wait_for
from support.messages import message

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.parametrize("client", ["confluent"], indirect=True)]
"""One client: test_kafka_source.py damages logs under the sources of both."""


def events(count: int, first: int = 0) -> list[bytes]:
    return [message(number, timestamp=1e9 + number, policies={"a": 0.5}) for number in range(first, first + count)]


@pytest.fixture
def topic(real_kafka: RealBroker) -> str:
    name = f"damaged-{uuid4().hex[:8]}"
    create_topic(name, 4, real_kafka.connection)
    return name


@pytest.fixture
def config(real_kafka: RealBroker, client: str, topic: str, tmp_path: Path) -> Path:
    path = tmp_path / "streameval.yaml"
    source = {
        "bootstrap_servers": real_kafka.bootstrap,
        "topic": topic,
        "order": "arrival",
        "client": client,
    }
    parts = {"source": source, "policies": {"candidates": ["a"]}, "drift": "off", "http": {"port": 0}}
    path.write_text(json.dumps(parts))
    return path


def metric(client: httpx.Client, name: str, labels: str) -> float:
    match = re.search(rf"^streameval_{name}\{{{labels}\}} (\S+)$", client.get("/metrics").text, re.M)
    return float(match[1]) if match else 0.0


def skipped(log: Path) -> list[dict[str, Any]]:
    """Return the log entries of skipped batches."""
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    return [entry for entry in entries if entry["event"] == "unreadable_batch"]


def test_a_log_truncated_and_refilled_between_three_runs_is_counted_whole(
    real_kafka: RealBroker, topic: str, config: Path
) -> None:
    """Between two truncations the daemon runs once without an event."""
    log, count = config.with_name("log"), 0
    for life in range(1, 4):
        if life > 1:
            with daemon(config, log) as client:
                wait_for(client, count)
                time.sleep(PROBE_INTERVAL + 1.0)
            real_kafka.stop()
            real_kafka.lose_messages(topic)
            real_kafka.start()
        produce(events(400 * life, first=count), topic, real_kafka.connection)
        count += 400 * life
        with daemon(config, log) as client:
            report = wait_for(client, count)
            assert metric(client, "consumer_gaps_total", 'kind="cut"') == (4 if life > 1 else 0)
        assert report["events"]["accepted"] == count


def test_a_batch_that_cannot_be_unpacked_is_counted_and_the_daemon_continues(
    real_kafka: RealBroker, topic: str, config: Path
) -> None:
    producer = KafkaProducer(bootstrap_servers=real_kafka.bootstrap, compression_type="snappy", linger_ms=60_000)
    for batch in range(3):
        for value in events(100, first=100 * batch):
            producer.send(topic, value, partition=0)
        producer.flush()
    producer.close()

    def undefined_codec(batch: bytearray) -> None:
        batch[22] |= 7

    real_kafka.stop()
    real_kafka.alter_batch(topic, 1, undefined_codec)
    real_kafka.start()
    log = config.with_name("log")
    with daemon(config, log) as client:
        report = wait_for(client, 200)
        assert metric(client, "events_rejected_total", 'reason="unreadable_batch"') == 100
    assert report["events"]["accepted"] == 200
    (entry,) = skipped(log)
    assert (entry["partition"], entry["offset"], entry["lost"]) == (0, 100, 100)
    produce(events(100, first=300), topic, real_kafka.connection)
    with daemon(config, log) as client:
        assert wait_for(client, 300)["events"]["accepted"] == 300
    assert skipped(log) == []
