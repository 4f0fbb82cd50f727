"""Test a topic of Protobuf messages, with a schema registry and without one, from the broker to the Report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.protobuf")

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from streameval.ingest.kafka.producer import produce
from support.asking import report_of
from support.commands import command
from support.factories import wait_until
from support.integration.broker import Broker
from support.integration.running import daemon
from support.protobuf_messages import choice_file, decision, event_file, framed, serialized
from support.schema_registry import EVENT_COLUMNS, schema_registry

pytestmark = pytest.mark.kafka

EVENTS = [decision(number) for number in range(200)]


@pytest.mark.parametrize(("has_registry", "client"), [(True, "kafka-python"), (False, "confluent")])
def test_the_daemon_reads_what_check_has_found(
    broker: Broker, tmp_path: Path, capfd: pytest.CaptureFixture[str], has_registry: bool, client: str
) -> None:
    topic, schemas = f"protobuf-{client}-{has_registry}", tmp_path / "schemas.pb"
    schemas.write_bytes(FileDescriptorSet(file=[choice_file(), event_file()]).SerializeToString())
    form: dict[str, Any] = {"kind": "protobuf", "descriptor": str(schemas), "message": "shop.Decision"}
    messages = [framed(event, 7) if has_registry else event.SerializeToString() for event in EVENTS]
    assert produce([*messages, b"\xff\xff"], topic, broker.connection, partitions=1) == 201
    with schema_registry() as registry:
        registry.register(6, serialized(choice_file()), "choice", schemaType="PROTOBUF")
        references = [{"name": "choice.proto", "subject": "choice", "version": 1}]
        registry.register(7, serialized(event_file()), f"{topic}-value", schemaType="PROTOBUF", references=references)
        form = {"kind": "protobuf", "registry": registry.url} if has_registry else form
        source = broker.connection.model_dump(exclude_defaults=True) | {
            "topic": topic,
            "format": form,
            "client": client,
        }
        parts = {"source": source, "policies": {"candidates": ["challenger"]}, "columns": EVENT_COLUMNS}
        parts |= {"http": {"port": 0}, "state": {"dir": str(tmp_path / "state")}}
        config = tmp_path / "streameval.yaml"
        config.write_text(json.dumps(parts, default=str))
        checked = command(capfd, "check", str(config))
        assert checked.code == 0, checked.out + checked.err
        with daemon(config, tmp_path / "log") as client_of:
            wait_until(lambda: (report_of(client_of) or {"events": {}})["events"].get("accepted") == 200)
            report = report_of(client_of)
    assert report is not None
    assert report["events"]["rejected"] == {"malformed": 1}
