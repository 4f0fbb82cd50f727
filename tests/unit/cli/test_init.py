"""Test `streameval init`, and which configuration a command reads."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from streameval.config.model import Config
from streameval.ingest.kafka.settings import KafkaSettings
from support.commands import command

EVENT = '{"event_id": "a", "timestamp": 1.0, "action": "x", "propensity": 0.5, "reward": 1, "policies": {"b": 0.5}}\n'
CONFIG = "policies: {candidates: [b]}\nestimators: [ips]\naverages: [cumulative]\n"

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.ndjson").write_text(EVENT)
    return tmp_path


def test_init_writes_a_configuration_that_check_accepts(folder: Path, capfd: Capture) -> None:
    written = command(capfd, "init")
    assert (written.code, written.err) == (0, "")
    assert "set source and policies.candidates" in written.out
    assert command(capfd, "check", "--no-broker").code == 0


def test_init_all_writes_every_option(folder: Path, capfd: Capture) -> None:
    assert command(capfd, "init", "--all", "all.yaml").code == 0
    assert "# Every option of streameval with its default" in (folder / "all.yaml").read_text()
    assert command(capfd, "check", "all.yaml", "--no-broker").code == 0
    assert Config.load(folder / "all.yaml", {}) == Config.load(_starter(folder, capfd), {})


def test_comments_of_the_starter_are_options(folder: Path, capfd: Capture) -> None:
    starter = _starter(folder, capfd)
    text = re.sub(r"^( *)# (?=\w+: )", r"\1", starter.read_text(), flags=re.MULTILINE)
    starter.write_text(text)
    config = Config.load(starter, {})
    assert "country" in config.segments
    assert isinstance(config.source, KafkaSettings)
    assert config.source.rewards is not None


def _starter(folder: Path, capfd: Capture) -> Path:
    assert command(capfd, "init", "starter.yaml").code == 0
    return folder / "starter.yaml"


def test_init_overwrites_nothing(folder: Path, capfd: Capture) -> None:
    (folder / "my.yaml").write_text("mine")
    outcome = command(capfd, "init", "my.yaml")
    assert outcome.code == 2
    assert outcome.err == "error: my.yaml exists already\nhint: name another file, as in `streameval init my.yaml`\n"
    assert (folder / "my.yaml").read_text() == "mine"


def test_a_directory_that_does_not_exist_is_named(capfd: Capture) -> None:
    outcome = command(capfd, "init", "nowhere/my.yaml")
    assert outcome.err.startswith("error: nowhere/my.yaml cannot be written: No such file or directory\nhint: ")


def accepted(capfd: Capture, *arguments: str) -> int:
    outcome = command(capfd, "replay", *arguments, "--json")
    assert outcome.code == 0, outcome.err
    number: int = json.loads(outcome.out)["events"]["accepted"]
    return number


def test_replay_and_plan_read_the_configuration_of_the_directory(folder: Path, capfd: Capture) -> None:
    (folder / "streameval.yaml").write_text(CONFIG)
    assert accepted(capfd, "log.ndjson") == 1
    assert accepted(capfd, "log.ndjson", "log.ndjson") == 2
    assert command(capfd, "plan", "log.ndjson").err.startswith("error: ") is False


def test_a_variable_names_another_one(folder: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMEVAL_CONFIG", "other.yaml")
    (folder / "other.yaml").write_text(CONFIG)
    assert accepted(capfd, "log.ndjson") == 1
    assert command(capfd, "check", "--no-broker").code == 0
    assert command(capfd, "check", "absent.yaml").err.startswith("error: the configuration absent.yaml does not exist")


def test_the_first_argument_is_the_configuration_unless_it_is_a_file_of_events(folder: Path, capfd: Capture) -> None:
    for name in ("my.yaml", "my.yml", "my"):
        (folder / name).write_text(CONFIG)
        assert accepted(capfd, name, "log.ndjson") == 1


@pytest.mark.parametrize("name", ["replay", "plan"])
def test_a_configuration_alone_is_not_enough(name: str, capfd: Capture) -> None:
    assert command(capfd, name, "my.yaml").err.startswith("error: no file of events is named\nhint: ")


def test_without_a_configuration_the_ways_to_one_are_named(capfd: Capture) -> None:
    outcome = command(capfd, "replay", "log.ndjson")
    assert outcome.code == 2
    assert outcome.err.startswith("error: the configuration streameval.yaml does not exist\nhint: ")
    assert "`streameval init`" in outcome.err
