"""Test `replay --decisions`: when each rule would have promoted, as a table and as a figure."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from streameval import Evaluator
from streameval.cli.plots import ReplayPlot
from streameval.cli.trace import Trace
from streameval.events import EventBatch
from streameval.ope.promotion import Promotion
from streameval.ope.report import Transition
from support.commands import Outcome, Run

RULES = ("paired", "bsea")
CHOICES = [("stratified_ips", "mixture")]
TARGETS = {"better": [0.2, 0.7, 0.1, 0.0], "worse": [0.6, 0.0, 0.2, 0.2]}
PROPENSITIES = np.array([0.55, 0.15, 0.15, 0.15])
MEANS = np.array([0.2, 0.6, 0.2, 0.2])


def columns(events: int, seed: int = 1) -> tuple[Any, Any]:
    """Simulate actions and rewards of a log. Its second action is by far the best."""
    rng = np.random.default_rng(seed)
    action = rng.choice(4, events, p=PROPENSITIES)
    return action, (rng.random(events) < MEANS[action]) * 1.0


def batch(events: int, timestamp: bool = True) -> EventBatch:
    action, reward = columns(events)
    return EventBatch.from_arrays(
        reward=reward,
        propensity=PROPENSITIES[action],
        policies={name: np.array(target)[action] for name, target in TARGETS.items()},
        timestamp=1.7e9 + 60.0 * np.arange(events) if timestamp else None,
    )


def traced(events: int, timestamp: bool = True, rules: tuple[Any, ...] = RULES) -> Trace:
    """Trace such a log."""
    trace = Trace(CHOICES, every=400)
    evaluator = Evaluator(list(TARGETS), drift=None, promotion=Promotion(rule=rules, min_events=2_000))
    trace.update(evaluator, batch(events, timestamp))
    trace.finish(evaluator.report())
    return trace


@pytest.fixture(scope="module")
def long_trace() -> Trace:
    return traced(6_000)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    action, reward = columns(6_000)
    lines = [
        json.dumps(
            {
                "event_id": str(index),
                "timestamp": 1.7e9 + index,
                "action": str(chosen),
                "propensity": PROPENSITIES[chosen],
                "reward": earned,
                "policies": {name: target[chosen] for name, target in TARGETS.items()},
            }
        )
        for index, (chosen, earned) in enumerate(zip(action.tolist(), reward.tolist(), strict=True))
    ]
    (tmp_path / "log.ndjson").write_text("\n".join(lines))
    (tmp_path / "c.yaml").write_text(
        "policies: {candidates: [better, worse]}\npromotion: {rule: [paired, bsea], min_events: 2000}\n"
    )
    return tmp_path


def replayed(files: Path, run: Run, *options: str) -> Outcome:
    return run("replay", str(files / "c.yaml"), str(files / "log.ndjson"), "--decisions", *options)


def test_the_table_shows_when_each_rule_would_have_fired(
    files: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    outcome = replayed(files, run)
    assert (outcome.code, outcome.err) == (0, "")
    table = outcome.out.partition("Promotion")[2]
    better, _, worse = table.partition("worse")
    assert "first promotable" in table
    assert "event 2,900" in better
    assert "2023-11-14 23:01:39 UTC" in better  # the last event of that block
    assert "promotable: decision bound of lift 0.1" in better
    assert worse.count("never") == 2


def test_the_json_has_decisions_checks_and_transitions(files: Path, run: Run) -> None:
    report = json.loads(replayed(files, run, "--json").out)
    decisions = {(row["policy"], row["rule"]): row for row in report["promotion"]}
    assert decisions.keys() == {(policy, rule) for policy in TARGETS for rule in RULES}
    fired = decisions["better", "bsea"]
    assert {"policy", "rule", "promotable", "reason"} <= fired.keys()
    assert fired["promotable"]
    first = next(row for row in report["transitions"] if row["rule"] == "bsea")
    assert (first["policy"], first["event"], first["timestamp"], first["promotable"]) == (
        "better",
        fired["first_event"],
        fired["first_timestamp"],
        True,
    )
    assert {row["policy"] for row in report["trust"]} == {"logging", *TARGETS}
    assert all(row["ok"] for row in report["trust"])


def test_decisions_are_not_drawn_without_rules(files: Path, run: Run) -> None:
    (files / "c.yaml").write_text("policies: {candidates: [better]}\npromotion: off\n")
    outcome = replayed(files, run)
    assert outcome.code == 2
    assert "promotion is off" in outcome.err
    assert "\nhint: " in outcome.err


def drawn(trace: Trace, by_rule: bool = True, **truth: Any) -> Figure:
    """Draw a trace."""
    figure = ReplayPlot(CHOICES, "A log", truth, margin=0.0, by_rule=by_rule).figure(trace)
    figure.set_dpi(40)
    figure.canvas.draw()
    return figure


def test_each_candidate_has_a_strip_for_each_rule(long_trace: Trace) -> None:
    strips = drawn(long_trace).axes[2]
    labels = [label.get_text() for label in strips.get_yticklabels()]
    shares = dict(zip(labels, (text.get_text() for text in strips.texts), strict=True))
    assert shares.keys() == {f"{policy}: {rule}" for policy in TARGETS for rule in RULES}
    assert all(shares[f"better: {rule}"].endswith("% of events") for rule in RULES)
    assert all(shares[f"worse: {rule}"] == "never" for rule in RULES)


def test_strips_of_more_candidates_than_colours_are_left_out(long_trace: Trace) -> None:
    report = long_trace.last
    assert report is not None
    rows = tuple(msgspec.structs.replace(report.promotion[0], policy=f"candidate-{number}") for number in range(30))
    trace = copy(long_trace)
    trace.last = msgspec.structs.replace(report, promotion=rows)
    figure = drawn(trace)
    assert len(figure.axes[2].get_yticklabels()) == 8
    assert any("22 candidates left out" in " ".join(text.get_text().split()) for text in figure.findobj(Text))


def test_strips_are_dark_from_transition_to_transition(long_trace: Trace) -> None:
    trace = long_trace
    report = trace.last
    assert report is not None
    (fired,) = [row for row in report.promotion if (row.policy, row.rule) == ("better", "paired")]
    assert fired.times == 1, "the test expects one stretch that lasts"
    strips = drawn(trace).axes[2]
    spans = [path.get_extents() for bars in strips.collections for path in bars.get_paths()]
    track, dark = [span for span in spans if span.y1 < 0.5]
    share = (dark.x0 - track.x0) / (track.x1 - track.x0)
    first = report.transitions[0].event if fired.first_event is None else fired.first_event
    shown = first_point(trace)
    assert share == pytest.approx((first - shown) / (6_000 - shown), abs=0.01)
    assert dark.x1 == track.x1


def first_point(trace: Trace) -> int:
    """Return the number of events at which the axis starts."""
    return trace.kept[0].events


def test_the_truth_of_the_lift_is_dashed(long_trace: Trace) -> None:
    truth = {
        "logging": np.array([[0.0, 6_000.0], [0.2, 0.2]]),
        "better": np.array([[0.0, 6_000.0], [0.5, 0.3]]),
    }
    lifts = drawn(long_trace, **truth).axes[1]
    dashed = [line for line in lifts.lines if line.get_linestyle() == "--"]
    assert [round(float(line.get_ydata()[-1]), 3) for line in dashed] == [0.1]


def test_values_stand_above_lifts_with_the_margin_and_marks_of_promotion(long_trace: Trace) -> None:
    trace = long_trace
    figure = drawn(trace, by_rule=False)
    values, lifts = figure.axes
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["reward per event", "lift over logging, line: margin 0"]
    assert len(values.lines) == 3
    margin, *lines = lifts.lines
    assert margin.get_ydata() == [0.0, 0.0]
    (mark,) = [line for line in lines if line.get_marker() == "^"]
    ((start, _),) = trace.promotable("better", "paired")
    assert mark.get_xdata() == [start]
    better = next(line for line in lines if line is not mark)
    assert mark.get_ydata() == [pytest.approx(np.interp(start, *np.asarray(better.get_data(), float)))]
    assert "▲ promotable, ▽ no longer (rule paired)" in figure.texts[1].get_text()


@pytest.mark.parametrize("days", [1, 3])
def test_lifts_by_hour_are_the_last_panel_from_two_days_on(days: int) -> None:
    figure = drawn(traced(days * 1_440, rules=("periodic",)), by_rule=False)
    values, lifts, *hours = figure.axes
    assert [axes.get_title(loc="left") for axes in hours] == ["lift by hour of the day (UTC)"] * (days > 1)
    assert (values.get_xlabel(), lifts.get_xlabel()) == ("", "event time (UTC)")
    for axes in hours:
        assert [label.get_text() for label in axes.get_xticklabels()][:2] == ["00", "03"]
        assert sum(line.get_marker() == "o" for line in axes.lines) == len(TARGETS)
        assert len(axes.patches) == 24


def test_a_candidate_that_ceases_to_be_promotable_gets_an_open_mark(long_trace: Trace) -> None:
    assert long_trace.last is not None
    end = Transition("better", "paired", 5_000, None, False, 0.1)
    ended = replace(long_trace, transitions={*long_trace.transitions, end})
    marks = [line for line in drawn(ended, by_rule=False).axes[1].lines if line.get_marker() in "^v"]
    assert [mark.get_marker() for mark in marks] == ["^", "v"]
    assert marks[1].get_markerfacecolor() == "white"


def test_without_promotion_lifts_have_neither_margin_nor_marks() -> None:
    evaluator, trace = Evaluator(list(TARGETS), promotion=None), Trace(CHOICES)
    trace.update(evaluator, batch(1_000))
    trace.finish(evaluator.report())
    lifts = ReplayPlot(CHOICES, "A log").figure(trace).axes[1]
    assert lifts.get_title(loc="left") == "lift over logging"
    assert len(lifts.lines) == 2


@pytest.mark.parametrize(
    ("session", "named", "ending"),
    [
        (1, False, "; this assumes independent events (no `unit` is logged, so clusters cannot be checked)"),
        (1, True, ""),
        (20, True, "), and the proof assumes independence"),
    ],
    ids=["no units", "units of one event", "units of twenty events that are alike"],
)
def test_the_reason_of_a_proof_mentions_dependent_events(session: int, named: bool, ending: str) -> None:
    rng = np.random.default_rng(20)
    units = np.repeat(np.arange(8_000 // session), session)
    taste = rng.random(8_000 // session)[units]
    chosen = rng.random(8_000) < 0.5
    reward = (taste < np.where(chosen, 0.6, 0.2)).astype(float)
    if session == 1:
        reward = (rng.random(8_000) < np.where(chosen, 0.6, 0.2)).astype(float)
    batch = EventBatch.from_arrays(
        reward=reward,
        propensity=np.full(8_000, 0.5),
        policies={"better": np.where(chosen, 0.9, 0.1)},
        unit=[f"user-{unit}" for unit in units] if named else None,
    )
    evaluator = Evaluator(["better"], promotion={"rule": "anytime", "min_events": 1_000, "trust": {"error": 1e-9}})
    evaluator.update(batch)
    (decision,) = evaluator.report().promotion
    assert decision.promotable
    reason = decision.reason.rpartition(" since event ")[2].lstrip("0123456789,")
    assert reason.endswith(ending)
    assert ("events are correlated" in reason) == (session > 1)
    assert bool(reason) == bool(ending)
