"""The same real log, replayed from its file and read back from Kafka by the daemon."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "open_bandit"
STREAMEVAL = str(Path(sys.executable).parent / "streameval")
LOG = EXAMPLE / "data" / "random_all.ndjson.gz"
PATIENCE = 60.0

pytestmark = pytest.mark.kafka


def streameval(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [STREAMEVAL, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )


@contextmanager
def daemon(log: Path, **environment: str) -> Iterator[httpx.Client]:
    """`streameval run` with the example's configuration, on any free port; yields a client of its server."""
    command = [STREAMEVAL, "run", str(EXAMPLE / "kafka.yaml"), "--log-format", "json"]
    with log.open("w") as stderr, subprocess.Popen(command, env=os.environ | environment, stderr=stderr) as process:
        try:
            with httpx.Client(base_url=served_at(log, process)) as client:
                yield client
        finally:
            process.terminate()
            assert process.wait(PATIENCE) == 0, log.read_text()


def served_at(log: Path, process: subprocess.Popen[bytes]) -> str:
    """The address that the daemon has logged."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        if found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text()):
            return found[0]
        time.sleep(0.05)
    pytest.fail(f"the daemon serves nothing:\n{log.read_text()}")


def lag(client: httpx.Client) -> list[float]:
    """The lag of each partition, as /metrics shows it."""
    metrics = client.get("/metrics").text
    return [float(value) for value in re.findall(r"^streameval_consumer_lag_events\{[^}]*\} (\S+)$", metrics, re.M)]


def wait_for(client: httpx.Client, events: int) -> dict[str, Any]:
    """The Report when so many events are in it and no partition has more."""
    deadline = time.monotonic() + PATIENCE
    seen: Any = None
    while time.monotonic() < deadline:
        answer = client.get("/api/v1/report")
        seen = answer.json()
        if answer.status_code == 200 and seen["events"]["accepted"] >= events and lag(client) == [0.0] * 4:
            report: dict[str, Any] = client.get("/api/v1/report").json()
            return report
        time.sleep(0.1)
    pytest.fail(f"lag {lag(client)}, report {seen}")


def cumulative(report: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {
        (row["policy"], row["estimator"]): row["value"] for row in report["estimates"] if row["average"] == "cumulative"
    }


def test_a_log_through_kafka_gives_the_values_of_its_replay(kafka: str, tmp_path: Path) -> None:
    topic = f"open-bandit-{uuid.uuid4().hex}"
    source = {"STREAMEVAL_SOURCE__TOPIC": topic, "STREAMEVAL_SOURCE__BOOTSTRAP_SERVERS": kafka}
    sent = streameval("produce", str(LOG), topic, "--bootstrap-servers", kafka, "--partitions", "4")
    assert sent.stderr == f"10,000 events sent to {topic} at {kafka}\n"

    checked = streameval("check", str(EXAMPLE / "kafka.yaml"), **source)
    assert "reached: 10,000 events in 4 partitions\nof the first 100 events 100 can be used\n" in checked.stdout

    replayed = json.loads(streameval("replay", str(EXAMPLE / "bts_prior.yaml"), str(LOG), "--json").stdout)
    with daemon(tmp_path / "log", STREAMEVAL_HTTP__PORT="0", **source) as client:
        read = wait_for(client, 10_000)
        metrics = client.get("/metrics").text

    assert read["events"] == replayed["events"]
    assert cumulative(read).keys() == cumulative(replayed).keys()
    assert cumulative(read) == pytest.approx(cumulative(replayed), rel=1e-9)
    for (policy, estimator), value in cumulative(replayed).items():
        labels = rf'(?=[^}}]*policy="{policy}")(?=[^}}]*estimator="{estimator}")(?=[^}}]*average="cumulative")[^}}]*'
        (shown,) = re.findall(rf"^streameval_policy_value\{{{labels}\}} (\S+)$", metrics, re.M)
        assert float(shown) == pytest.approx(value, rel=1e-9)


def test_check_says_that_a_topic_is_not_there(kafka: str) -> None:
    source = {"STREAMEVAL_SOURCE__TOPIC": "no-such-topic", "STREAMEVAL_SOURCE__BOOTSTRAP_SERVERS": kafka}
    with pytest.raises(subprocess.CalledProcessError) as failed:
        streameval("check", str(EXAMPLE / "kafka.yaml"), **source)
    assert failed.value.returncode == 1
    assert f"the topic 'no-such-topic' does not exist at {kafka}" in failed.value.stderr
    assert failed.value.stderr.splitlines()[-1].startswith("hint: ")
