"""Test `check` with Protobuf: it compares the newest schema of the topic with the columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.protobuf")

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from streameval.cli.check import schema_findings
from streameval.config.model import Config
from streameval.ingest.kafka.settings import KafkaSettings
from support.protobuf_messages import choice_file, event_file, serialized
from support.schema_registry import EVENT_COLUMNS, schema_registry

CHOICE = {"name": "choice.proto", "subject": "choice", "version": 1}


def findings(url: str, **columns: Any) -> list[tuple[str, str]]:
    return findings_of({"kind": "protobuf", "registry": url}, **columns)


def findings_of(form: dict[str, str], **columns: Any) -> list[tuple[str, str]]:
    source = {"kind": "kafka", "topic": "decisions", "format": form}
    parts = {"source": source, "policies": {"candidates": ["challenger"]}, "columns": EVENT_COLUMNS | columns}
    config = Config.model_validate(parts)
    settings = config.required_source()
    assert isinstance(settings, KafkaSettings)
    return [(finding.level, finding.message) for finding in schema_findings(config, settings)]


def test_the_schema_of_the_topic_and_the_fields_that_it_lacks_are_found() -> None:
    with schema_registry() as registry:
        registry.register(6, serialized(choice_file()), "choice", schemaType="PROTOBUF")
        options = {"schemaType": "PROTOBUF", "references": [CHOICE]}
        registry.register(7, serialized(event_file()), "decisions-value", **options)
        whole = findings(registry.url)
        lacking = findings(registry.url, action="choice.baner")
    assert whole == [("ok", "the schema registry has a schema 'decisions-value'")]
    assert lacking[1:] == [("error", "the schema 'decisions-value' has no field 'choice.baner' for action")]


def test_the_fields_that_the_type_of_a_file_lacks_are_found(tmp_path: Path) -> None:
    (tmp_path / "schemas.pb").write_bytes(FileDescriptorSet(file=[choice_file(), event_file()]).SerializeToString())
    form = {"kind": "protobuf", "descriptor": str(tmp_path / "schemas.pb"), "message": "shop.Decision"}
    assert findings_of(form) == []
    lacking = [("error", "the schema of shop.Decision has no field 'choice.baner' for action")]
    assert findings_of(form, action="choice.baner") == lacking
