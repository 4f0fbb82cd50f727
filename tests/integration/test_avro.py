"""Test a topic of Avro messages with a schema registry, from the broker to the Report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streameval.ingest.kafka.producer import produce
from support.asking import report_of
from support.commands import command
from support.factories import wait_until
from support.integration.broker import Broker
from support.integration.running import daemon
from support.schema_registry import EVENT_COLUMNS, PASSWORD, USER, encoded, event, schema_registry

pytestmark = pytest.mark.kafka


def test_the_daemon_reads_what_check_has_found(
    broker: Broker, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMEVAL_SOURCE__FORMAT__PASSWORD", PASSWORD)
    config = tmp_path / "streameval.yaml"
    with schema_registry(needs_login=True) as registry:
        registry.register(7, subject="avro-decisions-value")
        messages = [encoded(event(number), 7) for number in range(200)]
        assert produce([*messages, b"not Avro"], "avro-decisions", broker.connection, partitions=1) == 201
        form = {"kind": "avro", "registry": registry.url, "username": USER}
        source = broker.connection.model_dump(exclude_defaults=True) | {"topic": "avro-decisions", "format": form}
        parts = {"source": source, "policies": {"candidates": ["challenger"]}, "columns": EVENT_COLUMNS}
        parts |= {"http": {"port": 0}, "state": {"dir": str(tmp_path / "state")}}
        config.write_text(json.dumps(parts, default=str))
        checked = command(capfd, "check", str(config))
        assert checked.code == 0, checked.out + checked.err
        assert "the schema registry has a schema 'avro-decisions-value'" in checked.out
        with daemon(config, tmp_path / "log") as client:
            wait_until(lambda: (report_of(client) or {"events": {}})["events"].get("accepted") == 200)
            report = report_of(client)
    assert report is not None
    assert report["events"]["rejected"] == {"malformed": 1}
