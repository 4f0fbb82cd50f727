"""Start by hand what deploy/compose.yaml starts: its broker, its recommender, its daemon."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from support.deployed import DEPLOY
from support.integration.broker import CLUSTER_ID, LOG4J_PROPERTIES, RealBroker, run
from support.integration.running import daemon

SERVICES = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
RECOMMENDER = DEPLOY.parent / "examples" / "recommender" / "recommender.py"
EVENTS = 4_000
PATIENCE = 120.0

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


class ComposeBroker(RealBroker):
    """Apache Kafka with the environment of the service `kafka`, which its image makes properties of."""

    def _configure(self) -> None:
        ports = {"19092": self.port, "9092": self.secure_port, "9093": self._controller_port}
        lines = []
        for name, value in SERVICES["kafka"]["environment"].items():
            here = re.sub(r":(\d+)\b", lambda match: f":{ports[match[1]]}", str(value)).replace(
                "//kafka:", "//127.0.0.1:"
            )
            lines.append(f"{name.removeprefix('KAFKA_').lower().replace('_', '.')}={here}")
        properties = "\n".join(line for line in lines if not line.startswith(("heap.opts=", "log.dirs=")))
        (self._home / "server.properties").write_text(f"{properties}\nlog.dirs={self._home / 'data'}\n")
        (self._home / "log4j2.properties").write_text(LOG4J_PROPERTIES)
        run(self._java("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", "server.properties"), self._home)


@pytest.fixture
def compose_broker(real_kafka: RealBroker, tmp_path: Path) -> Iterator[ComposeBroker]:
    broker = ComposeBroker(real_kafka.libraries, tmp_path)
    broker.start()
    yield broker
    broker.kill()


def test_the_daemon_of_compose_reads_what_its_recommender_writes(compose_broker: ComposeBroker, tmp_path: Path) -> None:
    arguments = [
        "--kafka",
        compose_broker.bootstrap,
        "--topic",
        "interactions",
        "--rate",
        "4000",
        "--events",
        str(EVENTS),
    ]
    subprocess.run([sys.executable, str(RECOMMENDER), *arguments], check=True, timeout=PATIENCE)
    variables = {
        "STREAMEVAL_SOURCE__BOOTSTRAP_SERVERS": compose_broker.bootstrap,
        "STREAMEVAL_HTTP__HOST": "127.0.0.1",
        "STREAMEVAL_HTTP__PORT": "0",
        "STREAMEVAL_STATE__DIR": str(tmp_path / "state"),
    }
    with daemon(DEPLOY / "compose" / "streameval.yaml", tmp_path / "daemon.log", **variables) as client:
        assert client.get("/").status_code == 200
        metrics = everything(client)
    assert len(re.findall(r"^streameval_consumer_lag_events\{.*partition=", metrics, re.M)) == 2
    assert "streameval_events_rejected_total{" not in re.sub(r"^.*} 0\.0$", "", metrics, flags=re.M)
    for candidate in ("personal", "bold"):
        labels = f'average="mixture",estimator="stratified_dr",policy="{candidate}",reward="reward"'
        assert f"streameval_policy_lift{{{labels}}}" in metrics


def everything(client: httpx.Client) -> str:
    """Return the metrics once all events are in them."""
    deadline = time.monotonic() + PATIENCE
    metrics = ""
    while time.monotonic() < deadline:
        metrics = client.get("/metrics").text
        if f"streameval_events_accepted_total {EVENTS}.0" in metrics:
            return metrics
        time.sleep(0.2)
    pytest.fail(metrics)
