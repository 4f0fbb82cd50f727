"""Test that a file with probabilities of candidates is joined to a log that lacks them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from streameval import Report, compare
from support.commands import Run

EVENTS = 600


@pytest.fixture
def run(run: Run) -> Run:
    """Run commands in a folder with a log, its scores apart, and a log that carries the scores."""
    rng = np.random.default_rng(3)
    log: dict[str, list[Any]] = {
        "event_id": [f"e-{number}" for number in range(EVENTS)],
        "timestamp": [1_700_000_000.0 + number for number in range(EVENTS)],
        "action": ["a"] * EVENTS,
        "propensity": rng.uniform(0.2, 1, EVENTS).round(3).tolist(),
        "reward": rng.integers(0, 2, EVENTS).tolist(),
    }
    scores = rng.uniform(0, 1, EVENTS).round(3).tolist()
    rows = [dict(zip(log, row, strict=True)) for row in zip(*log.values(), strict=True)]
    write("log.ndjson", rows)
    is_scored = [number % 10 > 0 for number in range(EVENTS)]
    zipped = list(zip(rows, scores, is_scored, strict=True))
    write("whole.ndjson", [row | {"policies": {"new": score} if scored else {}} for row, score, scored in zipped])
    messages = [
        {"event_id": row["event_id"], "timestamp": row["timestamp"] + 90_000, "policies": {"new": score}}
        for row, score, scored in zipped
        if scored
    ]
    later = [messages[0] | {"timestamp": 1_800_000_000, "policies": {"new": 0.0}}, *messages[5:10]]
    write("scores.ndjson", [*later, *messages[::-1]])
    write("others.ndjson", [*messages, *(message | {"event_id": f"x{message['event_id']}"} for message in messages)])
    write("faulty.ndjson", [messages[0] | {"policies": {"new": 1.5}}])
    pa.csv.write_csv(pa.table(log), "log.csv")
    table = pa.table({"event_id": [m["event_id"] for m in messages], "new": [m["policies"]["new"] for m in messages]})
    pa.csv.write_csv(table, "scores.csv")
    pa.parquet.write_table(table, "scores.parquet")
    pa.csv.write_csv(table.rename_columns(["id", "new"]), "unnamed.csv")
    return run


def write(path: str, rows: list[dict[str, Any]]) -> None:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def estimates(run: Run, *arguments: str) -> Any:
    outcome = run("replay", *arguments, "--candidates", "new", "--json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)["estimates"]


@pytest.mark.parametrize("log", ["log.ndjson", "log.csv"])
@pytest.mark.parametrize("scores", ["scores.ndjson", "scores.csv", "scores.parquet"])
def test_a_log_and_its_scores_are_a_log_that_carries_them(run: Run, log: str, scores: str) -> None:
    assert estimates(run, log, "--scores", scores) == estimates(run, "whole.ndjson")


def test_compare_takes_the_same_file(run: Run) -> None:
    def report(data: str, **options: Any) -> Report:
        with warnings.catch_warnings(action="ignore"):
            return compare(data, ["new"], **options).report

    assert report("log.csv", scores=Path("scores.csv")).estimates == report("whole.ndjson").estimates


def test_scores_without_an_event_and_events_without_a_score_are_named(run: Run) -> None:
    outcome = run("replay", "log.ndjson", "--candidates", "new", "--scores", "others.ndjson")
    assert "warning: others.ndjson: 50.00% of 1,080 scores have no event with their event_id\n" in outcome.err
    assert "warning: policies.new: 60 of 600 events have no probability of it" in outcome.err


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (
            "faulty.ndjson",
            "faulty.ndjson has no probability of new, e.g. probability_range: policies.new: 1.5 is not in",
        ),
        ("unnamed.csv", "unnamed.csv has no column 'event_id'"),
        ("none.ndjson", "none.ndjson"),
    ],
)
def test_a_file_without_scores_is_refused(run: Run, scores: str, message: str) -> None:
    outcome = run("replay", "log.ndjson", "--candidates", "new", "--scores", scores)
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {message}")
    assert "\nhint: " in outcome.err
