"""Test a topic of Avro messages with a schema registry, from the broker to the Report."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest
from confluent_kafka import Producer

from streameval.config.model import Config
from streameval.ingest.kafka.producer import produce
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.pipeline import EventPipeline
from streameval.service.daemon import Daemon
from support.asking import report_of
from support.commands import command
from support.factories import ListSource, Recorder, records, running, wait_until
from support.integration.broker import Broker
from support.integration.running import daemon
from support.ports import free_port
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


@pytest.mark.parametrize("client", ["kafka-python", "confluent"])
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_the_id_of_a_schema_may_be_in_a_header(broker: Broker, client: str, compression: str) -> None:
    topic = f"headers-{client}-{compression}"
    produce([encoded(event(0), 7)], topic, broker.connection, partitions=1)
    number, record = b"\1" + UUID(int=7).bytes, encoded(event(1), 7)[5:]
    writer = Producer({"bootstrap.servers": broker.connection.address, "compression.type": compression})
    writer.produce(topic, record, headers=[("__value_schema_id", b"old"), ("x", None), ("__value_schema_id", number)])
    writer.produce(topic, encoded(event(2), 7), headers=[("x", b"y" * 70)])
    writer.produce(topic, None, headers=[("__value_schema_id", number)])
    assert writer.flush(30.0) == 0
    own = broker.connection.model_dump(exclude_defaults=True) | {"topic": topic, "client": client}
    with_ids = [encoded(event(0), 7), number + record, encoded(event(2), 7), None]
    avro = {"kind": "avro", "registry": "http://none"}
    assert values_of(KafkaSettings.model_validate(own | {"format": avro}), 4) == with_ids
    assert values_of(KafkaSettings.model_validate(own), 4) == [encoded(event(0), 7), record, *with_ids[2:]]


def values_of(settings: KafkaSettings, count: int) -> list[bytes | None]:
    """Read messages of a topic."""
    values = list[bytes | None]()
    with closing(settings.open()) as source:
        wait_until(lambda: values.extend(v for part in source.poll(0.1) for v in part.values) or len(values) == count)
    return values


def test_a_daemon_waits_for_the_registry_and_loses_no_message() -> None:
    port, learner = free_port(), Recorder()
    form = {"kind": "avro", "registry": f"http://127.0.0.1:{port}"}
    config = Config.model_validate(
        {
            "source": {"kind": "kafka", "topic": "decisions", "format": form},
            "policies": {"candidates": ["challenger"]},
            "columns": EVENT_COLUMNS,
        }
    )
    source = ListSource([[records(encoded(event(number), 7))] for number in range(2)], exhausted=False)
    waiting = Daemon(source, EventPipeline(config.event_format(), config.required_source()), learner)
    with running(waiting):
        wait_until(lambda: "the schema registry at" in waiting.published.detail)
        assert not waiting.published.ready
        assert not learner.rewards
        with schema_registry(port) as registry:
            registry.register(7)
            wait_until(lambda: waiting.published.ready and len(learner.rewards) == 2)
