"""Test `streameval init`, and which configuration a command reads."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from streameval.config.model import Config
from streameval.ingest.kafka.settings import KafkaSettings
from support.commands import Run

EVENT = '{"event_id": "a", "timestamp": 1.0, "action": "x", "propensity": 0.5, "reward": 1, "policies": {"b": 0.5}}\n'
CONFIG = "policies: {candidates: [b]}\nestimators: [ips]\naverages: [cumulative]\n"


@pytest.fixture(autouse=True)
def folder(run: Run, tmp_path: Path) -> Path:
    (tmp_path / "log.ndjson").write_text(EVENT)
    return tmp_path


def test_init_writes_a_configuration_that_check_accepts(folder: Path, run: Run) -> None:
    written = run("init")
    assert (written.code, written.err) == (0, "")
    assert "set source and policies.candidates" in written.out
    assert run("check", "--no-broker").code == 0


def test_init_all_writes_every_option(folder: Path, run: Run) -> None:
    assert run("init", "--all", "all.yaml").code == 0
    assert "# Every option of streameval with its default" in (folder / "all.yaml").read_text()
    assert run("check", "all.yaml", "--no-broker").code == 0
    assert Config.load(folder / "all.yaml", {}) == Config.load(_starter(folder, run), {})


def test_comments_of_the_starter_are_options(folder: Path, run: Run) -> None:
    starter = _starter(folder, run)
    text = re.sub(r"^( *)# (?=\w+: )", r"\1", starter.read_text(), flags=re.MULTILINE)
    starter.write_text(text)
    config = Config.load(starter, {})
    assert "country" in config.segments
    assert isinstance(config.source, KafkaSettings)
    assert config.source.rewards is not None


def _starter(folder: Path, run: Run) -> Path:
    assert run("init", "starter.yaml").code == 0
    return folder / "starter.yaml"


def test_init_overwrites_nothing(folder: Path, run: Run) -> None:
    (folder / "my.yaml").write_text("mine")
    outcome = run("init", "my.yaml")
    assert outcome.code == 2
    assert outcome.err == "error: my.yaml exists already\nhint: name another file, as in `streameval init my.yaml`\n"
    assert (folder / "my.yaml").read_text() == "mine"


def test_a_directory_that_does_not_exist_is_named(run: Run) -> None:
    outcome = run("init", "nowhere/my.yaml")
    assert outcome.err.startswith("error: nowhere/my.yaml cannot be written: No such file or directory\nhint: ")


def accepted(run: Run, *arguments: str) -> int:
    outcome = run("replay", *arguments, "--json")
    assert outcome.code == 0, outcome.err
    number: int = json.loads(outcome.out)["events"]["accepted"]
    return number


def test_replay_and_plan_read_the_configuration_of_the_directory(folder: Path, run: Run) -> None:
    (folder / "streameval.yaml").write_text(CONFIG)
    assert accepted(run, "log.ndjson") == 1
    assert accepted(run, "log.ndjson", "log.ndjson") == 2
    assert run("plan", "log.ndjson").err.startswith("error: ") is False


def test_a_variable_names_another_one(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMEVAL_CONFIG", "other.yaml")
    (folder / "other.yaml").write_text(CONFIG)
    assert accepted(run, "log.ndjson") == 1
    assert run("check", "--no-broker").code == 0
    assert run("check", "absent.yaml").err.startswith("error: the configuration absent.yaml does not exist")


def test_the_first_argument_is_the_configuration_unless_it_is_a_file_of_events(folder: Path, run: Run) -> None:
    for name in ("my.yaml", "my.yml", "my"):
        (folder / name).write_text(CONFIG)
        assert accepted(run, name, "log.ndjson") == 1


@pytest.mark.parametrize("name", ["replay", "plan"])
def test_a_configuration_alone_is_not_enough(name: str, run: Run) -> None:
    err = run(name, "my.yaml").err
    assert err.startswith("error: no file of events is named\nhint: ")
    assert "`replay FILE --candidates NAMES`" in err
