"""Replay a real log from its file, and read it back from Kafka by the daemon."""

from __future__ import annotations

import json
import re
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

from support.integration.running import daemon, streameval, wait_for
from support.paths import ROOT

EXAMPLE = ROOT / "examples" / "open_bandit"
LOG = EXAMPLE / "data" / "random_all.ndjson.gz"

pytestmark = pytest.mark.kafka

ANY_PORT = {"STREAMEVAL_HTTP__PORT": "0"}


def cumulative(report: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {
        (row["policy"], row["estimator"]): row["value"] for row in report["estimates"] if row["average"] == "cumulative"
    }


@pytest.mark.slow
def test_a_log_through_kafka_gives_the_values_of_its_replay(kafka: str, tmp_path: Path) -> None:
    topic = f"open-bandit-{uuid.uuid4().hex}"
    source = {"STREAMEVAL_SOURCE__TOPIC": topic, "STREAMEVAL_SOURCE__BOOTSTRAP_SERVERS": kafka} | ANY_PORT
    sent = streameval("produce", str(LOG), topic, "--bootstrap-servers", kafka, "--partitions", "4")
    assert sent.stderr == f"10,000 events sent to {topic} at {kafka}\n"

    checked = streameval("check", str(EXAMPLE / "kafka.yaml"), **source)
    assert "reached: 10,000 events in 4 partitions\nof the first 100 events 100 can be used\n" in checked.stdout
    assert re.search(r"^warning: events are written up to .+ after their timestamp", checked.stderr, re.M)
    assert re.search(r"^hint: increase source.max_lateness to \d+s to keep the order$", checked.stderr, re.M)

    replayed = json.loads(streameval("replay", str(EXAMPLE / "bts_prior.yaml"), str(LOG), "--json").stdout)
    with daemon(EXAMPLE / "kafka.yaml", tmp_path / "log", **source) as client:
        read = wait_for(client, 10_000)
        metrics = client.get("/metrics").text

    assert read["events"] == replayed["events"]
    assert cumulative(read).keys() == cumulative(replayed).keys()
    assert cumulative(read) == pytest.approx(cumulative(replayed), rel=1e-9)
    for (policy, estimator), value in cumulative(replayed).items():
        labels = rf'(?=[^}}]*policy="{policy}")(?=[^}}]*estimator="{estimator}")(?=[^}}]*average="cumulative")[^}}]*'
        (shown,) = re.findall(rf"^streameval_policy_value\{{{labels}\}} (\S+)$", metrics, re.M)
        assert float(shown) == pytest.approx(value, rel=1e-9)


def test_check_reports_a_missing_topic(kafka: str) -> None:
    source = {"STREAMEVAL_SOURCE__TOPIC": "no-such-topic", "STREAMEVAL_SOURCE__BOOTSTRAP_SERVERS": kafka} | ANY_PORT
    with pytest.raises(subprocess.CalledProcessError) as failed:
        streameval("check", str(EXAMPLE / "kafka.yaml"), **source)
    assert failed.value.returncode == 1
    assert "source.topic: the topic 'no-such-topic' does not exist" in failed.value.stderr
    assert failed.value.stderr.splitlines()[-1].startswith("hint: ")
