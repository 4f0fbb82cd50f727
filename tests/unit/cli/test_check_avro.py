"""Test `check` with Avro: it compares the newest schema of the topic with the columns."""

from __future__ import annotations

from typing import Any

import pytest

from streameval.cli.check import Finding, schema_findings
from streameval.config.model import Config
from streameval.errors import StreamevalError
from streameval.ingest.kafka.settings import KafkaSettings
from support.schema_registry import EVENT_COLUMNS, schema_registry


def findings(url: str, **columns: Any) -> list[Finding]:
    source = {"kind": "kafka", "topic": "decisions", "format": {"kind": "avro", "registry": url}}
    parts = {"source": source, "policies": {"candidates": ["challenger"]}, "columns": EVENT_COLUMNS | columns}
    config = Config.model_validate(parts)
    settings = config.required_source()
    assert isinstance(settings, KafkaSettings)
    return list(schema_findings(config, settings))


def test_the_schema_of_the_topic_and_the_fields_that_it_lacks_are_found() -> None:
    with schema_registry() as registry:
        registry.register(7, subject="decisions-value")
        (finding,) = findings(registry.url)
        _, lacking = findings(registry.url, action="choice.baner")
    assert (finding.level, finding.message) == ("ok", "the schema registry has a schema 'decisions-value'")
    assert (lacking.level, lacking.hint) == ("error", "did you mean 'choice.banner'?")
    assert lacking.message == "the schema 'decisions-value' has no field 'choice.baner' for action"


def test_a_registry_without_the_schema_is_a_warning_and_one_that_does_not_answer_an_error() -> None:
    with schema_registry() as registry:
        (warning,) = findings(registry.url)
    assert (warning.level, warning.message) == ("warning", "the schema registry has no schema 'decisions-value'")
    with pytest.raises(StreamevalError, match=r"cannot be used: \[Errno 111\] Connection refused"):
        findings(registry.url)
