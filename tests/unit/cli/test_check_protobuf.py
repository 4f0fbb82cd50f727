"""`check` of Protobuf: the newest schema of the topic, compared with the columns."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("google.protobuf")

from streameval.cli.check import schema_findings
from streameval.config.model import Config
from streameval.ingest.kafka.settings import KafkaSettings
from support.protobuf_messages import choice_file, event_file, serialized
from support.schema_registry import EVENT_COLUMNS, schema_registry

CHOICE = {"name": "choice.proto", "subject": "choice", "version": 1}


def findings(url: str, **columns: Any) -> list[tuple[str, str]]:
    source = {"kind": "kafka", "topic": "decisions", "format": {"kind": "protobuf", "registry": url}}
    parts = {"source": source, "policies": {"candidates": ["challenger"]}, "columns": EVENT_COLUMNS | columns}
    config = Config.model_validate(parts)
    settings = config.required_source()
    assert isinstance(settings, KafkaSettings)
    return [(each.level, each.message) for each in schema_findings(config, settings)]


def test_the_schema_of_the_topic_and_the_fields_that_it_lacks_are_found() -> None:
    with schema_registry() as registry:
        registry.register(6, serialized(choice_file()), "choice", schemaType="PROTOBUF")
        options = {"schemaType": "PROTOBUF", "references": [CHOICE]}
        registry.register(7, serialized(event_file()), "decisions-value", **options)
        whole = findings(registry.url)
        lacking = findings(registry.url, action="choice.baner")
    assert whole == [("ok", "the schema registry has a schema 'decisions-value'")]
    assert lacking[1:] == [("error", "the schema 'decisions-value' has no field 'choice.baner' for action")]
