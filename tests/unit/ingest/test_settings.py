"""Test that a new kind of source needs a settings model with three answers, and a class that reads."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from streameval.errors import InputError
from streameval.ingest.base import Source, SourceOffsets, SourceSettings
from streameval.ingest.files.source import FileSettings
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.pipeline import EventPipeline
from streameval.ingest.simulated import SimulatedSettings
from support.factories import ListSource, NumberFormat, records


class ListSettings(SourceSettings):
    """Configure a source of two polls."""

    kind: Literal["list"] = "list"
    first: int = 1

    @property
    def description(self) -> str:
        return "a list"

    def identity(self) -> dict[str, Any]:
        return {"kind": self.kind}

    def open(self, offsets: SourceOffsets | None = None) -> Source:
        return ListSource([[records(b"%d" % self.first)], [records(b"2", b"3")]])


def test_three_answers_are_enough_to_read_a_source_twice() -> None:
    settings = ListSettings()
    pipeline, source = EventPipeline(NumberFormat(), settings), settings.for_check().open()
    read = [pipeline.take(source.poll(0.0), source.status().ended_at) for _ in range(2)]
    assert [batch.reward.tolist() for batch in read] == [[1.0], [2.0, 3.0]]
    assert not pipeline.by_time
    assert pipeline.buffered() is None
    again = settings.open_backfill("earliest", {("interactions", 0): 1})
    assert [list(chunk.values) for chunk in again.poll({("interactions", 0): 1}, 0.0)] == [[b"1"]]


def test_the_defaults_describe_a_json_log_that_a_restart_reads_from_its_start() -> None:
    settings = ListSettings()
    assert (settings.wire_format, settings.dedupe_window, settings.reward_topic) == ("json", 0, None)
    assert (settings.topics, settings.keeps_position) == ((), False)
    assert settings.backfill_start("7") == 7
    with pytest.raises(InputError, match="only a Kafka topic can be read from a point in time"):
        settings.backfill_start("2026-01-31T00:00:00Z")


def test_a_source_without_its_answers_is_refused() -> None:
    class Nothing(SourceSettings):
        """Give no answer."""

    with pytest.raises(TypeError, match="abstract"):
        Nothing()  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        (KafkaSettings(topic="t"), {"kind", "topic", "format"}),
        (
            KafkaSettings.model_validate({"topic": "t", "rewards": {"topic": "r"}}),
            {"kind", "topic", "format", "rewards.topic", "rewards.window", "rewards.default", "rewards.combine"},
        ),
        (FileSettings(path=["log"]), {"kind", "path", "format"}),
        (SimulatedSettings(), SimulatedSettings.model_fields.keys() - {"events", "rate", "cycle"}),
    ],
)
def test_the_identity_of_a_source_has_the_options_that_select_events(
    settings: SourceSettings, options: set[str]
) -> None:
    assert settings.identity().keys() == options
