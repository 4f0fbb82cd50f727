"""Test `replay FILE --candidates NAMES`, without a configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from support.commands import Run

ROWS = "a,.5,1,.3,.1\nb,.5,0,.3,.9\n"
LOG = f"action,propensity,reward,challenger,even\n{ROWS}"
TIMED = "event_id,timestamp,action,propensity,reward,challenger\n1,1600000000,a,.5,1,.3\n2,1600000001,b,.5,0,.3\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    path.write_text(LOG)
    return path


def test_the_first_line_says_that_rows_count_in_their_order(log: Path, run: Run) -> None:
    outcome = run("replay", str(log), "--candidates", "challenger")
    assert outcome.code == 0
    first, second, third, *_ = outcome.out.splitlines()
    assert first == "the log has no event_id and no timestamp: its rows count in their order, each once"
    assert second == "Keep production over challenger: too early, about 10,000 more events"
    assert third.strip() == "2 events, 0 rejected"


def test_a_log_with_ids_and_times_has_no_such_line(tmp_path: Path, run: Run) -> None:
    (tmp_path / "log.csv").write_text(TIMED)
    outcome = run("replay", str(tmp_path / "log.csv"), "--candidates", "challenger")
    answer, events, *_ = outcome.out.splitlines()
    assert answer.startswith("Keep production over challenger: too early, ")
    assert events.startswith("2 events until 2020-09-13 12:26:41 UTC, 0 rejected")


def test_several_candidates_are_separated_by_commas(log: Path, run: Run) -> None:
    outcome = run("replay", str(log), str(log), "--candidates", "challenger, even", "--json")
    report = json.loads(outcome.out)
    assert report["events"]["accepted"] == 4
    assert [row["policy"] for row in report["policies"]] == ["logging", "challenger", "even"]
    values = {
        row["policy"]: row["value"]
        for row in report["estimates"]
        if (row["estimator"], row["average"]) == ("ips", "cumulative")
    }
    assert values == pytest.approx({"logging": 0.5, "challenger": 0.3, "even": 0.1})


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (
            ["log.csv", "--candidates", "absent"],
            "log.csv has no column 'absent' for absent; it has action, ",
            "columns",
        ),
        (["log.csv", "--candidates", " , "], "--candidates names no candidate", "e.g. --candidates challenger"),
        (["log.csv", "--candidates", "a,a"], "--candidates: expected each policy once", "remove one"),
        (["c.yaml", "log.csv", "--candidates", "a"], "c.yaml is one", "leave --candidates out"),
        (
            ["log.csv"],
            "the configuration streameval.yaml does not exist",
            "`streameval replay FILE --candidates NAMES`",
        ),
    ],
)
def test_mistakes_are_explained(arguments: list[str], message: str, hint: str, log: Path, run: Run) -> None:
    outcome = run("replay", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert hint in outcome.err.splitlines()[-1]


@pytest.fixture
def longer_log(tmp_path: Path) -> Path:
    path = tmp_path / "longer.csv"
    path.write_text("action,propensity,reward,challenger,even\n" + "a,.5,1,.3,.1\nb,.5,0,.7,.9\n" * 6000)
    return path


def test_the_answer_comes_first_and_then_the_estimates_that_decide(longer_log: Path, run: Run) -> None:
    outcome = run("replay", str(longer_log), "--candidates", "challenger,even")
    _, first, second, *table = outcome.out.splitlines()
    assert [line.partition(": it earns ")[0] for line in (first, second)] == [
        "Do not ship challenger",
        "Do not ship even",
    ]
    assert [line.split()[0] for line in table if " … " in line and "+" not in line][:1] == ["(production)"]
    assert table[1].startswith("stratified_ips on mixture, 95% intervals below values")
    assert table[-1] == "3 of 33 estimates, those that decide; --all prints the others"


def test_all_prints_every_estimate(longer_log: Path, run: Run) -> None:
    outcome = run("replay", str(longer_log), "--candidates", "challenger,even", "--all")
    assert sum("on adaptive_window" in line for line in outcome.out.splitlines()) == 6
    assert "--all" not in outcome.out


def test_with_many_candidates_the_first_five_answers_are_printed(tmp_path: Path, run: Run) -> None:
    names = [f"c{index}" for index in range(7)]
    (tmp_path / "log.csv").write_text(f"action,propensity,reward,{','.join(names)}\na,.5,1,{'.5,' * 6}.5\n")
    outcome = run("replay", str(tmp_path / "log.csv"), "--candidates", ",".join(names))
    lines = outcome.out.splitlines()
    assert sum(line.startswith("Keep production over c") for line in lines) == 5
    assert "(--all prints the answers for 2 more candidates)" in lines
    every = run("replay", str(tmp_path / "log.csv"), "--candidates", ",".join(names), "--all")
    assert sum(line.startswith("Keep production over c") for line in every.out.splitlines()) == 7


@pytest.mark.parametrize("name", ["log.csv", "log.parquet"])
@pytest.mark.parametrize(
    ("text", "kind", "is_local"),
    [
        ("2026-01-31T12:00:00", pa.timestamp("us"), True),
        ("2026-01-31T12:00:00Z", pa.timestamp("us", "UTC"), False),
        ("1600000000", pa.float64(), False),
    ],
)
def test_times_without_a_zone_are_said_to_be_taken_as_utc(
    tmp_path: Path, run: Run, name: str, text: str, kind: Any, is_local: bool
) -> None:
    path = tmp_path / name
    table = pa.table({"timestamp": [text], "action": ["a"], "propensity": [0.5], "reward": [1], "challenger": [0.5]})
    if name == "log.csv":
        pyarrow.csv.write_csv(table, path)
    else:
        pq.write_table(table.set_column(0, "timestamp", table["timestamp"].cast(kind)), path)
    outcome = run("replay", str(path), "--candidates", "challenger")
    assert ("times without a zone, such as 2026-01-31" in outcome.out) == is_local
    assert (outcome.code, "are taken as UTC" in outcome.out) == (0, is_local)


def test_the_first_line_says_how_much_is_clipped(tmp_path: Path, run: Run) -> None:
    (tmp_path / "log.csv").write_text(TIMED.replace(",.5,1,.3", ",.5,4,.3"))
    (tmp_path / "c.yaml").write_text(
        "policies: {candidates: [challenger]}\ncolumns: {policies: [challenger]}\nreward: {above: clip}\n"
    )
    outcome = run("replay", str(tmp_path / "c.yaml"), str(tmp_path / "log.csv"))
    first, *_ = outcome.out.splitlines()
    assert first == "reward: clipped in 50 % of the events, which takes 1.5 from its mean"
