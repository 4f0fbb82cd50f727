"""Test `streameval show`: the contents of a snapshot, without running code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import streameval as se
from streameval.config.model import Config
from streameval.ingest.base import Offsets, Records
from streameval.service.snapshots import Snapshot, SnapshotStore, read_snapshot, snapshot_files
from streameval.service.startup import start_fresh
from support.commands import Run
from support.messages import message
from support.snapshots import snapshot_of

TOPIC, REWARDS = "clicks", "earned"
PLACES = (TOPIC, 0), (TOPIC, 1), (REWARDS, 0)
START = 1_700_000_000.0


def settings(**source: Any) -> Config:
    patience = {"max_lateness": "5s", "idle_timeout": "10s"}
    return Config.model_validate(
        {
            "source": {"kind": "kafka", "topic": TOPIC} | patience | source,
            "policies": {"candidates": ["challenger"]},
            "estimators": ["ips"],
            "averages": ["cumulative"],
        }
    )


def write(directory: Path, *snapshots: Snapshot) -> None:
    """Write snapshots to a directory."""
    store = SnapshotStore(directory)
    for snapshot in snapshots:
        store.write(snapshot)
    store.close()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Write two snapshots, of 100 and of 200 events."""
    config, documents = settings(order="arrival"), []
    start = start_fresh(config)
    for _ in range(2):
        ones = np.ones(100)
        events = se.EventBatch.from_arrays(
            reward=ones / 2, propensity=ones, policies={"challenger": ones}, timestamp=ones * 1_700_000_000
        )
        start.evaluator.update(events)
        offsets = {TOPIC: Offsets({0: 70, 3: 30}, "topic-id").to_state()}
        documents.append(snapshot_of(config, start, offsets=offsets, written=START))
    write(tmp_path / "state", *documents)
    return tmp_path / "state"


def test_a_directory_shows_its_newest_snapshot(run: Run, state: Path) -> None:
    outcome = run("show", str(state))
    assert outcome.code == 0
    assert "000000000002.snapshot" in outcome.out
    assert "2023-11-14 22:13:20 UTC" in outcome.out
    assert "clicks 0: 70, 3: 30 (id topic-id)" in outcome.out
    assert "logging, challenger: 200 events" in outcome.out
    assert all(setting in " ".join(outcome.out.split()) for setting in ("source.topic clicks", "reward.max 1.0"))
    assert "200 events until 2023-11-14" in outcome.out
    assert "cumulative" in outcome.out
    assert "Buffers" not in outcome.out, "nothing waits"


def test_a_file_is_shown_as_json(run: Run, state: Path) -> None:
    outcome = run("show", str(snapshot_files(state)[0]), "--json")
    reported = json.loads(outcome.out)
    assert reported["positions"] == {"clicks": {"identity": "topic-id", "next": {"0": 70, "3": 30}}}
    assert reported["report"]["events"]["accepted"] == 100
    assert [(row["policy"], row["value"]) for row in reported["report"]["estimates"]] == [
        ("logging", 0.5),
        ("challenger", 0.5),
    ]
    assert reported["policies"] == ["logging", "challenger"]
    assert reported["bytes"] == snapshot_files(state)[0].stat().st_size


@pytest.fixture
def holding(tmp_path: Path) -> Path:
    """Write a snapshot with buffered events and rewards, and ids.

    Ten events in a row have reached the seconds 20 and 50 in two partitions, and ten rewards the second 51. Less 5 s of
    lateness, and 20 s of the window for rewards, the watermark is at second 15.
    """
    rewards = {"topic": REWARDS, "window": "20s"}
    config = settings(duplicates=10, rewards=rewards)
    start = start_fresh(config)
    events = [
        message(second, event_id=f"e-{second}", timestamp=START + second, policies={"challenger": 0.5})
        for second in range(60)
    ]
    clicks = [
        json.dumps({"event_id": name, "timestamp": START + second, "reward": 1}).encode()
        for name, second in [("e-7", 8), ("e-7", 9), *[(f"other-{second}", second) for second in range(51, 61)]]
    ]
    parts = [
        Records(TOPIC, 0, range(30), events[:30]),
        Records(TOPIC, 1, range(30), events[30:]),
        Records(REWARDS, 0, range(len(clicks)), clicks),
    ]
    due = start.pipeline.take(parts, dict.fromkeys(PLACES), START + 60.0)
    start.evaluator.update(due)
    offsets = {TOPIC: Offsets({0: 30, 1: 30}).to_state(), REWARDS: Offsets({0: len(clicks)}).to_state()}
    write(tmp_path / "holding", snapshot_of(config, start, offsets=offsets, written=START))
    return tmp_path / "holding"


def test_buffered_events_are_shown_with_number_times_and_size(run: Run, holding: Path) -> None:
    outcome = run("show", str(holding))
    rows = [" ".join(line.split()) for line in outcome.out.splitlines()]
    events = "buffered events 45 2023-11-14 22:13:35 UTC 2023-11-14 22:14:19 UTC"
    assert "Buffers" in rows
    assert any(row.startswith(events) for row in rows)
    assert "rewards whose event has not arrived 10 2023-11-14 22:14:11 UTC 2023-11-14 22:14:20 UTC 500" in rows
    assert "ids of events, to recognise duplicates 10 – – 80" in rows
    assert "watermark 2023-11-14 22:13:35 UTC, 0 events released before their turn" in rows
    assert "rewards 2 joined, 0 late, 0 unmatched" in rows
    assert "logging, challenger: 15 events" in outcome.out
    assert "__array__" not in outcome.out
    assert "{" not in outcome.out


def test_buffered_events_are_shown_as_json(run: Run, holding: Path) -> None:
    reported = json.loads(run("show", str(holding), "--json").out)
    events, rewards, counted, ids, later = reported["waiting"]
    assert (events["count"], events["oldest"], events["newest"]) == (45, START + 15.0, START + 59.0)
    assert events["bytes"] > 45 * 8
    assert (rewards["count"], rewards["oldest"], rewards["newest"], rewards["bytes"]) == (
        10,
        START + 51,
        START + 60,
        500,
    )
    assert (counted["count"], counted["oldest"], counted["newest"]) == (15, START, START + 14.0)
    assert (ids["count"], ids["oldest"], ids["bytes"]) == (later["count"], None, later["bytes"]) == (10, None, 80)
    assert (reported["watermark"], reported["released_early"]) == (START + 15.0, 0)
    assert reported["rewards"] == {"joined": 2, "late": 0, "unmatched": 0}
    assert reported["policies"] == ["logging", "challenger"]
    assert reported["production"] == "logging"
    assert reported["events"]["accepted"] == reported["report"]["events"]["accepted"] == 15


@pytest.mark.parametrize("schema", [4, 99, None])
def test_a_snapshot_of_another_version_is_refused_as_at_start(run: Run, state: Path, schema: Any) -> None:
    snapshots = SnapshotStore(state)
    path = snapshots.write({"schema": schema, "evaluator": {}})
    snapshots.close()
    for named in (state, path):
        outcome = run("show", str(named))
        assert outcome.code == 2
        assert outcome.err.startswith(
            f"error: {path} has schema {schema}, this version reads {snapshot_of(settings()).schema}"
        )
        assert "\nhint: use the version that wrote it, or start from zero: --reset" in outcome.err
        assert "Traceback" not in outcome.err


def test_a_snapshot_without_a_part_is_damaged(run: Run, state: Path) -> None:
    snapshots = SnapshotStore(state)
    parts = msgspec.structs.asdict(snapshot_of(settings()))
    del parts["written"]
    path = snapshots.write(parts)
    snapshots.close()
    outcome = run("show", str(path))
    assert outcome.code == 2
    assert "is damaged: wrong content: Object missing required field `written`" in outcome.err
    assert "000000000002.snapshot" in run("show", str(state)).out, "the one before it is whole"


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_wrong_content_that_only_the_report_or_the_table_would_read_is_an_error_with_a_message(
    run: Run, state: Path, options: tuple[str, ...]
) -> None:
    document = read_snapshot(snapshot_files(state)[-1])
    document.evaluator["events"]["newest"] = "yesterday"
    snapshots = SnapshotStore(state)
    newest = snapshots.write(document)
    snapshots.close()
    outcome = run("show", str(newest), *options)
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {newest} is damaged: wrong content: events.newest: ")
    assert "\nhint: name an older snapshot" in outcome.err
    assert "000000000002.snapshot" in run("show", str(state), *options).out, "the one before it is whole"


def test_a_directory_in_use_is_shown_and_not_changed(run: Run, state: Path) -> None:
    running = SnapshotStore(state)
    newest = snapshot_files(state)[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    outcome = run("show", str(state))
    assert outcome.code == 0
    assert "000000000001.snapshot" in outcome.out, "the newest is torn"
    assert len(snapshot_files(state)) == 2
    assert not snapshot_files(state, ".damaged")
    running.close()


def test_a_file_that_is_not_a_snapshot_is_an_error_with_a_message(run: Run, state: Path, tmp_path: Path) -> None:
    torn = snapshot_files(state)[0]
    torn.write_bytes(torn.read_bytes()[:100])
    (tmp_path / "empty").mkdir()
    for path, text in (
        (torn, "is damaged: it is not one complete zstd frame"),
        (tmp_path / "empty", "holds no snapshot"),
        (tmp_path / "absent", "cannot be read: No such file or directory"),
        (Path(__file__), "it is not a snapshot"),
    ):
        outcome = run("show", str(path))
        assert outcome.code == 2
        assert text in outcome.err
        assert "\nhint: " in outcome.err
