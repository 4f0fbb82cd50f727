"""Test `streameval plan`: a table, JSON and a figure from files of events."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib.image import imread

from streameval.ingest.files.lines import write_lines
from streameval.ingest.simulated import SimulatedRecommender, SimulatedSettings
from support.commands import Run

CONFIG = "policies: {candidates: [candidate-1, candidate-2, absent]}\n"


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a log of logged actions, and a short one of action sets."""
    folder, simulated = tmp_path_factory.mktemp("logs"), {"seed": 1, "span": 100_000, "exploration": 0.8, "rate": 2.0}
    for name, options in {"log": {"events": 4_000}, "sets": {"events": 1_000, "action_sets": True}}.items():
        recommender = SimulatedRecommender(SimulatedSettings(**simulated, **options))
        write_lines(folder / f"{name}.ndjson", recommender.lines())
    return folder


@pytest.fixture
def run(run: Run, logs: Path, tmp_path: Path) -> Run:
    """Run a command in a directory with a configuration and logs."""
    (tmp_path / "c.yaml").write_text(CONFIG)
    for log in logs.iterdir():
        (tmp_path / log.name).symlink_to(log)
    return run


def test_a_log_becomes_a_table_of_events_and_days(run: Run) -> None:
    outcome = run("plan", "c.yaml", "log.ndjson", "--lift", "0.05", "--lift", "10%")
    assert outcome.code == 0
    assert (
        "4,000 events, 2 per second; events until a lift is detected by stratified_ips at 95% confidence" in outcome.out
    )
    assert "0.05 (+" in outcome.out
    assert "(+10%)" in outcome.out
    assert " hours" in outcome.out
    assert "absent: no forecast: no event carries its probability" in outcome.out
    assert "window: worth at most 10,000 events, so it detects no lift under" in outcome.out
    assert "warning: no event has a probability of the policy 'absent'" in outcome.err


def test_a_log_without_rewards_has_no_forecast(run: Run) -> None:
    lines = Path("log.ndjson").read_text().splitlines(keepends=True)[:500]
    Path("other.ndjson").write_text("".join(lines).replace('"reward":1', '"reward":0'))
    assert "candidate-1: no forecast: fewer than ten of its events have a reward" in run(
        "plan", "c.yaml", "other.ndjson"
    ).out.replace("\n", " ")


def test_several_rewards_are_planned_for_the_goal(run: Run) -> None:
    Path("several.yaml").write_text(CONFIG + "rewards: {reward: {}, triple: {of: {reward: 3}}}\n")
    several, one = (json.loads(run("plan", name, "log.ndjson", "--json").out) for name in ("several.yaml", "c.yaml"))
    assert several["value"] == one["value"]
    assert several["candidates"] == one["candidates"]


def test_json_has_every_number_of_the_table(run: Run) -> None:
    outcome = run("plan", "c.yaml", "log.ndjson", "--lift", "0.05", "--power", "0.9", "--json")
    result = json.loads(outcome.out)
    assert (result["production"], result["events"], result["power"], result["lifts"]) == ("logging", 4_000, 0.9, [0.05])
    first, _, absent = result["candidates"]
    assert first["estimator"] == "stratified_ips"
    assert first["needed"][0]["seconds"] == pytest.approx(first["needed"][0]["events"] / 2, rel=0.01)
    assert 0 < first["effective_share"] < 1
    assert first["lift_lower"] < first["lift"] < first["lift_upper"]
    assert absent["reason"] == "no event carries its probability"
    assert absent["needed"] == []


def test_more_power_takes_more_events_and_another_estimator_a_different_number(run: Run) -> None:
    def events(*options: str) -> int:
        outcome = run("plan", "c.yaml", "log.ndjson", "--lift", "0.05", "--json", *options)
        return int(json.loads(outcome.out)["candidates"][0]["needed"][0]["events"])

    assert events("--power", "0.95") > events()
    assert events("--estimator", "ips") > events("--estimator", "snips")


def test_an_action_set_log_is_planned_with_the_model(run: Run) -> None:
    outcome = run("plan", "c.yaml", "sets.ndjson", "--lift", "0.05", "--json")
    assert json.loads(outcome.out)["candidates"][0]["estimator"] == "stratified_dr"


def test_a_candidate_in_code_is_planned_like_any_other(run: Run, tmp_path: Path) -> None:
    (tmp_path / "even.yaml").write_text("policies: {candidates: {even: uniform}}\nestimators: [snips]\n")
    (even,) = json.loads(run("plan", "even.yaml", "sets.ndjson", "--json").out)["candidates"]
    assert even["reason"] is None
    assert even["events"] == 1_000


def test_a_figure_is_written_and_not_empty(run: Run, tmp_path: Path) -> None:
    outcome = run("plan", "c.yaml", "log.ndjson", "--plot", "power.png")
    assert outcome.code == 0
    picture = imread(tmp_path / "power.png")
    assert picture.shape[:2] == (832, 1536)
    assert len({tuple(pixel) for pixel in picture[::4, ::4].reshape(-1, picture.shape[2])}) > 20


@pytest.mark.parametrize(
    ("options", "complaint", "hint"),
    [
        (("--lift", "-1"), "--lift: expected a number above 0", "--lift 0.01"),
        (("--power", "1"), "--power must lie between 0 and 1, found 1", "0.8 is usual"),
        (("--estimator", "snip"), "--estimator: 'snip' is not configured", "did you mean 'snips'?"),
        (("--estimator", "oracle"), "--estimator: 'oracle' is not configured", "choose one of "),
    ],
)
def test_impossible_questions_are_refused_before_the_log_is_read(
    run: Run, tmp_path: Path, options: tuple[str, ...], complaint: str, hint: str
) -> None:
    (tmp_path / "log.ndjson").unlink()
    outcome = run("plan", "c.yaml", "log.ndjson", *options)
    assert outcome.code == 2
    assert complaint in outcome.err
    assert hint in outcome.err


def test_a_picture_without_any_candidate_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "absent.yaml").write_text("policies: {candidates: [absent]}\n")
    outcome = run("plan", "absent.yaml", "log.ndjson", "--plot", "power.png")
    assert outcome.code == 2
    assert "no candidate has a forecast" in outcome.err


def test_named_candidates_need_no_configuration(run: Run) -> None:
    Path("log.csv").write_text("action,propensity,reward,even\n" + "a,0.25,1,0.5\nb,0.75,0,0.5\nb,0.75,1,0.5\n" * 40)
    outcome = run("plan", "log.csv", "--candidates", "even", "--lift", "0.1")
    assert outcome.code == 0, outcome.err
    assert "120 events; events until a lift is detected" in outcome.out


def test_explore_adds_the_exploration_that_halves_the_events(run: Run) -> None:
    outcome = run("plan", "c.yaml", "sets.ndjson", "--explore")
    assert "candidate-1: half as many events would be enough if a share of events" in " ".join(outcome.out.split())
    (first, *_) = json.loads(run("plan", "c.yaml", "sets.ndjson", "--explore", "--json").out)["candidates"]
    assert first["exploration"]["events"] == 1_000
    assert 0 < first["exploration"]["best_factor"] <= 1
    assert json.loads(run("plan", "c.yaml", "sets.ndjson", "--json").out)["candidates"][0]["exploration"] is None


def test_a_plan_to_explore_stands_in_for_the_advice_without_lists_of_actions(run: Run) -> None:
    propensities, policies, lines = [0.69, 0.3, 0.01], {"candidate-1": [0.3, 0.3, 0.4]}, []
    for number in range(2_000):
        index = 2 if number % 100 == 0 else number % 2
        event = {"event_id": number, "timestamp": number, "actions": ["a", "b", "c"], "action": "abc"[index]}
        log = {"propensities": propensities, "reward": int(number % 3 == 0), "policies": policies}
        lines.append(json.dumps(event | log))
    Path("rare.ndjson").write_text("\n".join(lines))
    advice, plan = "about half as many events would be enough", "candidate-1: half as many events would be enough"
    without, explored = (
        " ".join(run("plan", "c.yaml", "rare.ndjson", *options).out.split()) for options in ((), ("--explore",))
    )
    assert advice in without
    assert plan not in without
    assert advice not in explored
    assert plan in explored


def test_explore_needs_lists_of_actions(run: Run) -> None:
    out = " ".join(run("plan", "c.yaml", "log.ndjson", "--explore").out.split())
    assert "candidate-1: no plan to explore: it needs events with propensities" in out
