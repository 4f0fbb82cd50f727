"""Read the section `engine`, and refuse what executors cannot compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from streameval.config.engine import engine_variables
from streameval.config.model import Config
from streameval.errors import ConfigError

BASE: dict[str, Any] = {"policies": {"candidates": ["challenger"]}, "source": {"kind": "kafka", "topic": "clicks"}}


def config(**sections: Any) -> Config:
    return Config.model_validate(BASE | sections)


@pytest.mark.parametrize(
    ("written", "master"),
    [("spark:local[2]", "local[2]"), ("spark", None), ({"kind": "spark", "master": "yarn"}, "yarn")],
)
def test_an_engine_is_a_text_or_a_mapping(written: object, master: str | None) -> None:
    engine = config(engine=written).engine
    assert engine is not None
    assert (engine.kind, engine.master, engine.trigger, engine.most_per_partition) == ("spark", master, 5.0, 200_000)


@pytest.mark.parametrize("written", [None, "off", False])
def test_without_an_engine_nothing_changes(written: object) -> None:
    assert config(engine=written) == config()


def test_an_engine_computes_the_defaults_of_one_process() -> None:
    assert config(engine="spark").evaluator_config() == config().evaluator_config()


def test_command_line_changes_what_it_names(tmp_path: Path) -> None:
    file = tmp_path / "streameval.yaml"
    file.write_text("policies: {candidates: [a]}\nsource: {topic: clicks}\nengine: {kind: spark, trigger: 2s}\n")
    engine = Config.load(file, engine_variables("spark:local[3]")).engine
    assert engine is not None
    assert (engine.master, engine.trigger) == ("local[3]", 2.0)
    file.write_text("policies: {candidates: [a]}\nsource: {topic: clicks}\n")
    engine = Config.load(file, engine_variables("spark")).engine
    assert engine is not None
    assert engine.master is None
    with pytest.raises(ConfigError, match=r"engine\.kind \(STREAMEVAL_ENGINE__KIND\): expected spark, found 'flink'"):
        Config.load(file, engine_variables("flink:local"))


@pytest.mark.parametrize(
    ("sections", "path"),
    [
        ({"source": {"kind": "simulated"}}, "source.kind"),
        ({"source": BASE["source"] | {"rewards": {"topic": "rewards"}}}, "source.rewards"),
        ({"source": BASE["source"] | {"candidates": {"topic": "scores"}}}, "source.candidates"),
        ({"source": BASE["source"] | {"duplicates": 1000}}, "source.duplicates"),
        ({"source": BASE["source"] | {"order": "event_time"}}, "source.order"),
        ({"promotion": "anytime"}, "engine"),
        ({"intervals": {"cumulative": "confidence_sequence"}}, "engine"),
    ],
)
def test_settings_that_executors_cannot_compute_are_refused(
    tmp_path: Path, sections: dict[str, Any], path: str
) -> None:
    file = tmp_path / "streameval.yaml"
    file.write_text(yaml.safe_dump(BASE | {"engine": "spark"} | sections))
    with pytest.raises(ConfigError) as refused:
        Config.load(file, {})
    assert "1 problem" in refused.value.message
    assert f"\n{path} " in refused.value.message
    assert refused.value.hint
