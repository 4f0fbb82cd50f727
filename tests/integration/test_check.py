"""Test what `check` says about the topics of a cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streameval.ingest.kafka.mock_broker import EmbeddedBroker
from streameval.ingest.kafka.producer import produce
from support.commands import Run, command

EVENT = {
    "event_id": "e-0",
    "action": "a",
    "propensity": 0.5,
    "reward": 1,
    "policies": {"challenger": 0.2},
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    return partial(command, capfd)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedBroker]:
    """Run a cluster with one event and one reward."""
    with EmbeddedBroker({"clicks": 1, "rewards": 1, "rejected": 1, "empty": 1, "nonsense": 1, "scores": 1}) as running:
        not_late = {**EVENT, "timestamp": time.time() + 60.0}  # however slow the machine
        produce([json.dumps(not_late).encode()], "clicks", running.connection)
        produce([b'{"event_id": "e-0", "timestamp": 1700000001, "reward": 1}'], "rewards", running.connection)
        produce([b"{"], "nonsense", running.connection)
        score = {"event_id": "e-0", "timestamp": 1700000001, "policies": {"challenger": 0.5}}
        produce([json.dumps(score).encode()], "scores", running.connection)
        yield running


def write_config(cluster: EmbeddedBroker, options: dict[str, Any], **sections: Any) -> None:
    source = {"topic": "clicks", "bootstrap_servers": cluster.bootstrap, "api_version": "2.3", **options}
    values = {"policies": {"candidates": ["challenger"]}, "source": source, "http": {"port": 0}}
    Path("c.yaml").write_text(json.dumps({**values, "state": {"dir": "state"}, **sections}))


def test_check_tries_all_that_run_uses_and_creates_nothing(run: Run, cluster: EmbeddedBroker) -> None:
    joined = {"rewards": {"topic": "rewards"}, "candidates": {"topic": "scores"}}
    write_config(cluster, joined, dead_letters={"kind": "kafka", "topic": "others"})
    outcome = run("check", "c.yaml")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines()[-9:] == [
        "any free port is used",
        "state can be used for snapshots",
        "dead_letters.topic: the topic 'others' does not exist; `run` creates it",
        "reached: 1 event in 1 partition",
        "of the first 1 event 1 can be used",
        "reached: 1 reward in rewards",
        "of the first 1 reward 1 can be used",
        "reached: 1 score in scores",
        "of the first 1 score 1 can be used",
    ]
    assert not Path("state").exists()


MISTAKES_IN_TOPICS: dict[str, tuple[dict[str, Any], dict[str, Any], int, str]] = {
    "the topic is misspelt": (
        {"topic": "cliks"},
        {},
        1,
        "error: source.topic: the topic 'cliks' does not exist\nhint: did you mean 'clicks'?\n",
    ),
    "the topic is another one": (
        {"topic": "impressions"},
        {},
        1,
        "error: source.topic: the topic 'impressions' does not exist\n"
        "hint: create it, or correct source.topic; this user sees clicks, empty, nonsense, rejected, rewards, scores\n",
    ),
    "the topic of rewards is misspelt": (
        {"rewards": {"topic": "reward"}},
        {},
        1,
        "error: source.rewards.topic: the topic 'reward' does not exist\nhint: did you mean 'rewards'?\n",
    ),
    "the topic of rewards holds none": (
        {"rewards": {"topic": "nonsense"}},
        {},
        1,
        "error: none of the first rewards can be used, e.g. malformed: not JSON",
    ),
    "the topic of scores is misspelt": (
        {"candidates": {"topic": "score"}},
        {},
        1,
        "error: source.candidates.topic: the topic 'score' does not exist\nhint: did you mean 'scores'?\n",
    ),
    "the topic of scores holds none": (
        {"candidates": {"topic": "nonsense"}},
        {},
        1,
        "error: none of the first scores can be used, e.g. malformed: not JSON",
    ),
    "the topic of scores has other names": (
        {"candidates": {"topic": "scores"}},
        {"policies": {"candidates": ["contender"]}},
        0,
        "warning: none of the first scores has a probability of contender",
    ),
    "the topic holds no events": (
        {"topic": "nonsense"},
        {},
        1,
        "error: none of the first events can be used, e.g. malformed: not JSON",
    ),
    "the topic of dead letters is misspelt": (
        {},
        {"dead_letters": {"kind": "kafka", "topic": "rejectd"}},
        0,
        "warning: dead_letters.topic: the topic 'rejectd' does not exist; `run` creates it\n"
        "hint: did you mean 'rejected'?\n",
    ),
}


@pytest.mark.parametrize("name", MISTAKES_IN_TOPICS)
def test_check_names_the_topic_that_run_would_wait_for(run: Run, cluster: EmbeddedBroker, name: str) -> None:
    source, sections, code, answer = MISTAKES_IN_TOPICS[name]
    write_config(cluster, source, **sections)
    outcome = run("check", "c.yaml")
    assert outcome.code == code
    assert outcome.err.startswith(answer)
    assert "\nhint: " in outcome.err
