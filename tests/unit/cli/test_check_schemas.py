"""Test `check` with Avro and Protobuf: it compares the newest schema of the topic with the columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streameval.cli.check import Finding, schema_findings
from streameval.config.model import Config
from streameval.errors import StreamevalError
from streameval.ingest.kafka.settings import KafkaSettings
from support.schema_registry import EVENT_COLUMNS, schema_registry


def findings(form: dict[str, str], **columns: Any) -> list[Finding]:
    source = {"kind": "kafka", "topic": "decisions", "format": form}
    parts = {"source": source, "policies": {"candidates": ["challenger"]}, "columns": EVENT_COLUMNS | columns}
    config = Config.model_validate(parts)
    settings = config.required_source()
    assert isinstance(settings, KafkaSettings)
    return list(schema_findings(config, settings))


@pytest.mark.parametrize("kind", ["avro", "protobuf"])
def test_the_schema_of_the_topic_and_the_fields_that_it_lacks_are_found(kind: str) -> None:
    with schema_registry() as registry:
        if kind == "avro":
            registry.register(7, subject="decisions-value")
        else:
            pytest.importorskip("google.protobuf")
            from support.protobuf_messages import choice_file, event_file, serialized

            registry.register(6, serialized(choice_file()), "choice", schemaType="PROTOBUF")
            choice = {"name": "choice.proto", "subject": "choice", "version": 1}
            options = {"schemaType": "PROTOBUF", "references": [choice]}
            registry.register(7, serialized(event_file()), "decisions-value", **options)
        form = {"kind": kind, "registry": registry.url}
        (finding,) = findings(form)
        _, lacking = findings(form, action="choice.baner")
    assert (finding.level, finding.message) == ("ok", "the schema registry has a schema 'decisions-value'")
    assert (lacking.level, lacking.hint) == ("error", "did you mean 'choice.banner'?")
    assert lacking.message == "the schema 'decisions-value' has no field 'choice.baner' for action"


def test_a_registry_without_the_schema_is_a_warning_and_one_that_does_not_answer_an_error() -> None:
    with schema_registry() as registry:
        form = {"kind": "avro", "registry": registry.url}
        (warning,) = findings(form)
    assert (warning.level, warning.message) == ("warning", "the schema registry has no schema 'decisions-value'")
    with pytest.raises(StreamevalError, match=r"cannot be used: \[Errno 111\] Connection refused"):
        findings(form)


def test_the_fields_that_the_type_of_a_file_lacks_are_found(tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf")
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    from support.protobuf_messages import choice_file, event_file

    (tmp_path / "schemas.pb").write_bytes(FileDescriptorSet(file=[choice_file(), event_file()]).SerializeToString())
    form = {"kind": "protobuf", "descriptor": str(tmp_path / "schemas.pb"), "message": "shop.Decision"}
    assert findings(form) == []
    (lacking,) = findings(form, action="choice.baner")
    expected = ("error", "the schema of shop.Decision has no field 'choice.baner' for action")
    assert (lacking.level, lacking.message) == expected
