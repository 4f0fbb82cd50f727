"""`streameval show`: what is in a snapshot, without running any of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streameval as se
from streameval.cli.show import load
from streameval.events import JsonDecoder
from streameval.ingest.base import Offsets
from streameval.ingest.pipeline import EventPipeline
from streameval.ingest.stages import Deduplication
from streameval.ope.evaluator.cohorts import CohortEvaluator
from streameval.service.snapshots import DAMAGED, SnapshotStore, found_in
from support.arrivals import Arrival, batch_of
from support.commands import Outcome, command
from support.rewards import Earned, fresh, rewards_of

Run = Callable[..., Outcome]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("NO_COLOR", "1")
    return lambda *arguments: command(capfd, *arguments)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A directory with two snapshots, of 100 and of 200 events."""
    snapshots = SnapshotStore(tmp_path / "state")
    cohorts = CohortEvaluator(se.Evaluator(["challenger"], [se.IPS()], [se.Cumulative()]).plan)
    for _ in range(2):
        ones = np.ones(100)
        events = se.EventBatch.from_arrays(
            reward=ones / 2, propensity=ones, policies={"challenger": ones}, timestamp=ones * 1_700_000_000
        )
        cohorts.update(events)
        document: dict[str, Any] = {
            "schema": 1,
            "version": "0.1.0",
            "fingerprint": {"source.topic": "clicks", "reward.max": 1.0},
            "written": 1_700_000_000.0,
            "offsets": {"clicks": Offsets({0: 70, 3: 30}, "topic-id").to_state()},
            "pipeline": EventPipeline(JsonDecoder()).state(),
            "evaluator": cohorts.state(),
        }
        snapshots.write(document)
    snapshots.close()
    return tmp_path / "state"


def test_a_directory_shows_its_newest_snapshot(run: Run, state: Path) -> None:
    outcome = run("show", str(state))
    assert outcome.code == 0
    assert "000000000002.snapshot" in outcome.out
    assert "2023-11-14 22:13:20 UTC" in outcome.out
    assert "clicks 0: 70, 3: 30 (id topic-id)" in outcome.out
    assert "logging, challenger: 200 events" in outcome.out
    assert "source.topic clicks, reward.max 1.0" in outcome.out
    assert "200 events until 2023-11-14" in outcome.out
    assert "cumulative" in outcome.out
    assert "Buffers" not in outcome.out, "nothing waits"


def test_a_file_is_shown_as_json(run: Run, state: Path) -> None:
    outcome = run("show", str(found_in(state)[0]), "--json")
    told = json.loads(outcome.out)
    assert told["positions"] == {"clicks": {"identity": "topic-id", "next": {"0": 70, "3": 30}}}
    assert told["report"]["events"]["accepted"] == 100
    assert [(each["policy"], each["value"]) for each in told["report"]["estimates"]] == [
        ("logging", 0.5),
        ("challenger", 0.5),
    ]
    assert told["cohorts"][0]["policies"] == ["logging", "challenger"]
    assert told["bytes"] == found_in(state)[0].stat().st_size


@pytest.fixture
def holding(state: Path) -> Path:
    """The same with events and rewards that wait, and ids that are remembered."""
    joining, duplicates = fresh(partitions=(2, 1)), Deduplication(10)
    first = [Arrival(1_700_000_000.0 + second, 0, second, f"e-{second}") for second in range(40)]
    joining.take(duplicates.take(batch_of(first)))
    joining.take_rewards(rewards_of([Earned(1_700_000_000.0 + second, 0, second, "e-7") for second in (8, 9, 300)]))
    _, document = load(state)
    snapshots = SnapshotStore(state)
    document["pipeline"] |= {"duplicates": duplicates.state(), "order": joining.state()}
    snapshots.write(document)
    snapshots.close()
    return state


def test_buffered_events_are_shown_with_number_times_and_size(run: Run, holding: Path) -> None:
    outcome = run("show", str(holding))
    rows = [" ".join(line.split()) for line in outcome.out.splitlines()]
    events = "buffered events 40 2023-11-14 22:13:20 UTC 2023-11-14 22:13:59 UTC"
    rewards = "rewards without an event yet 3 2023-11-14 22:13:28 UTC 2023-11-14 22:18:20 UTC 123"
    assert "Buffers" in rows
    assert any(row.startswith(events) for row in rows)
    assert rewards in rows
    assert "ids of events, to recognise duplicates 10 – – 80" in rows
    assert "rewards 0 joined, 0 late, 0 unmatched" in rows
    assert "__array__" not in outcome.out
    assert "{" not in outcome.out


def test_buffered_events_are_shown_as_json(run: Run, holding: Path) -> None:
    told = json.loads(run("show", str(holding), "--json").out)
    events, rewards, ids = told["waiting"]
    assert (events["count"], events["oldest"], events["newest"]) == (40, 1_700_000_000.0, 1_700_000_039.0)
    assert events["bytes"] > 40 * 8
    assert (rewards["count"], ids["count"], ids["oldest"]) == (3, 10, None)
    assert (told["watermark"], told["released_early"]) == (None, 0)
    assert told["rewards"] == {"joined": 0, "late": 0, "unmatched": 0}


def test_a_directory_in_use_is_looked_at_and_nothing_in_it_changes(run: Run, state: Path) -> None:
    running = SnapshotStore(state)
    newest = found_in(state)[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    outcome = run("show", str(state))
    assert outcome.code == 0
    assert "000000000001.snapshot" in outcome.out, "the newest is torn"
    assert len(found_in(state)) == 2
    assert not found_in(state, DAMAGED)
    running.close()


def test_a_file_that_is_no_snapshot_is_reported_in_words(run: Run, state: Path, tmp_path: Path) -> None:
    torn = found_in(state)[0]
    torn.write_bytes(torn.read_bytes()[:100])
    (tmp_path / "empty").mkdir()
    for path, said in (
        (torn, "is damaged: its checksum does not match its content"),
        (tmp_path / "empty", "holds no snapshot"),
        (tmp_path / "absent", "cannot be read: No such file or directory"),
        (Path(__file__), "its first bytes are not those of a snapshot"),
    ):
        outcome = run("show", str(path))
        assert outcome.code == 2
        assert said in outcome.err
        assert "\nhint: " in outcome.err
