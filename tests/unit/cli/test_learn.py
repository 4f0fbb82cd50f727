"""Test `streameval learn`: policy files, tables and JSON from files of events."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from support.commands import Run

CONFIG = "policies: {candidates: {apprentice: {kind: learned, step: 0.1}, even: uniform}}\n"


@pytest.fixture
def run(run: Run, tmp_path: Path) -> Run:
    """Run a command in a directory with a configuration and a log."""
    (tmp_path / "c.yaml").write_text(CONFIG)
    write_log(tmp_path / "log.ndjson", 1_500)
    return run


def write_log(path: Path, events: int) -> None:
    """Write choices between two actions. A larger first feature of the action makes a reward more likely."""
    rng = np.random.default_rng(2)
    lines = []
    for number in range(events):
        features, action = rng.normal(size=(2, 2)).round(3), int(rng.integers(2))
        reward = int(rng.random() < 1 / (1 + np.exp(-3 * features[action, 0])))
        event = {"event_id": f"{number}", "timestamp": 1e9 + number, "actions": ["a", "b"], "action": "ab"[action]}
        event |= {"features": features.tolist(), "propensities": [0.5, 0.5], "reward": reward}
        lines.append(json.dumps(event))
    path.write_text("\n".join(lines))


def test_a_log_becomes_a_policy_file_that_replay_evaluates(run: Run, tmp_path: Path) -> None:
    outcome = run("learn", "c.yaml", "log.ndjson", "--passes", "5")
    assert outcome.code == 0
    assert "apprentice, by snips: 1,200 events to learn from, 300 later ones" in outcome.out
    assert "apprentice.npz has the weights of pass" in outcome.out
    with np.load("apprentice.npz") as file:
        weights, about = file["weights"], json.loads(str(file["description"]))
    assert weights.shape == (1, 2)
    assert weights[0, 0] > abs(weights[0, 1])
    assert about["events"] % 1_200 == 0
    assert not list(tmp_path.glob("*.part"))
    (tmp_path / "f.yaml").write_text(
        "policies: {candidates: {frozen: {kind: learned, file: apprentice.npz, step: 0}}}\n"
        "estimators: [snips]\naverages: [cumulative]\n"
    )
    report = json.loads(run("replay", "f.yaml", "log.ndjson", "--json").out)
    (frozen,) = (row for row in report["estimates"] if row["policy"] == "frozen")
    assert frozen["lift_lower"] > 0.1


def test_a_log_of_pages_becomes_a_ranker_that_replay_evaluates(run: Run, tmp_path: Path) -> None:
    rng, lines = np.random.default_rng(4), list[str]()
    for number in range(750):
        features = rng.normal(size=(5, 2)).round(3)
        looks = rng.random(5) < 1 / np.arange(1, 6)
        clicked = np.flatnonzero(looks & (rng.random(5) < 1 / (1 + np.exp(2 - 3 * features[:, 0])))).tolist()
        page = {"ranking": {"shown": list(range(5)), "clicked": clicked}, "features": features.tolist()}
        lines.append(json.dumps({"event_id": number, "timestamp": 1e9 + number, **page}))
    (tmp_path / "pages.ndjson").write_text("\n".join(lines))
    ranking = "ranking: {metric: dcg, examination: power}\n"
    candidates = "{apprentice: {kind: learned_ranker, step: 0.1, average: true}}"
    (tmp_path / "r.yaml").write_text(f"policies: {{candidates: {candidates}}}\n{ranking}")
    outcome = run("learn", "r.yaml", "pages.ndjson", "--passes", "2")
    assert outcome.code == 0
    assert "apprentice, by click_snips: 600 events to learn from, 150 later ones" in outcome.out
    assert "overfits" not in outcome.err
    candidates = "{frozen: {kind: learned_ranker, file: apprentice.npz, step: 0}}"
    (tmp_path / "f.yaml").write_text(
        f"policies: {{candidates: {candidates}}}\n{ranking}estimators: [click_ips]\naverages: [cumulative]\n"
    )
    report = json.loads(run("replay", "f.yaml", "pages.ndjson", "--json").out)
    (frozen,) = (row for row in report["estimates"] if row["policy"] == "frozen")
    assert frozen["lift_lower"] > 0.1


def test_json_has_every_number_of_the_table(run: Run) -> None:
    (policy,) = json.loads(run("learn", "c.yaml", "log.ndjson", "--passes", "3", "--json").out)["policies"]
    assert (policy["policy"], policy["estimator"], policy["overfits"]) == ("apprentice", "snips", False)
    assert policy["events"] == {"learned_from": 1_200, "later": 300}
    best = policy["passes"][policy["best"] - 1]
    assert best["later"]["lower"] == max(row["later"]["lower"] for row in policy["passes"])
    assert best["later"]["lower"] < best["later"]["value"] < best["later"]["upper"]
    assert best["while_learning"]["importance_weight_mean"] == pytest.approx(1, abs=0.2)


def test_the_directory_the_share_and_the_estimator_are_chosen(run: Run, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG + "estimators: [snips, ips]\n")
    (tmp_path / "policies").mkdir()
    options = ("--to", "policies", "--validation", "0.5", "--estimator", "ips", "--passes", "2", "--patience", "0")
    assert "by ips: 750 events to learn from, 750 later ones" in run("learn", "c.yaml", "log.ndjson", *options).out
    assert (tmp_path / "policies" / "apprentice.npz").is_file()


def test_few_events_and_many_passes_cause_a_warning_about_the_mean_weight(run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    lines = [json.loads(line) for line in (tmp_path / "log.ndjson").read_text().splitlines()[:500]]
    lines = [{**row, "features": rng.normal(size=(2, 60)).tolist()} for row in lines]
    (tmp_path / "few.ndjson").write_text("\n".join(map(json.dumps, lines)))
    outcome = run("learn", "c.yaml", "few.ndjson", "--passes", "12", "--patience", "0")
    assert "warning: apprentice overfits the propensities: on the events that it learned from, its mean" in outcome.err
    assert "warning: apprentice is not shown to be better than logging" in outcome.err


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--estimator", "dr"), "--estimator: 'dr' is not configured"),
        (("--to", "nowhere"), "--to: nowhere is not a directory"),
    ],
)
def test_wrong_options_are_refused_with_a_hint(run: Run, options: tuple[str, ...], problem: str) -> None:
    outcome = run("learn", "c.yaml", "log.ndjson", *options)
    assert (outcome.code, problem in outcome.err, "hint: " in outcome.err) == (2, True, True)


def test_a_configuration_without_a_policy_that_learns_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("policies: {candidates: {even: uniform}}\n")
    outcome = run("learn", "c.yaml", "log.ndjson")
    assert outcome.code == 2
    assert "no candidate is of kind learned" in outcome.err
    (tmp_path / "c.yaml").write_text("policies: {candidates: {a/b: {kind: learned}}}\n")
    assert "rename it, without a slash" in run("learn", "c.yaml", "log.ndjson").err


def test_too_few_events_are_refused(run: Run, tmp_path: Path) -> None:
    write_log(tmp_path / "short.ndjson", 60)
    outcome = run("learn", "c.yaml", "short.ndjson")
    assert outcome.code == 2
    assert "48 events are too few to learn from: expected 100 or more" in outcome.err
