"""Run the coverage study on fewer runs: its fast reading agrees with evaluators, and intervals keep their coverage."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from streameval import IPS, Cumulative, EmpiricalLikelihood, Evaluator, EventBatch, Normal
from streameval.ope.core import Mixture
from streameval.ope.intervals import ConfidenceSequence
from support.paths import ROOT
from support.scripts import importable

EXAMPLE = ROOT / "examples" / "coverage"
EVENTS = 6_000
RUNS = 25


@pytest.fixture
def worlds() -> Iterator[ModuleType]:
    with importable(EXAMPLE):
        yield import_module("worlds")


def evaluators(intervals: Any, world: Any, production: str) -> Iterator[tuple[Evaluator, str]]:
    """Make an evaluator for each kind of interval, with the name of the kind in the study."""
    settings = {"candidates": ["one", "two"], "production": production, "promotion": None, "drift": None}
    for kind, bound in {**intervals.kinds(world), "confidence_sequence": ConfidenceSequence()}.items():
        averages = intervals.WATCHED if kind == "confidence_sequence" else intervals.AVERAGES + intervals.ADAPTIVE
        bounds = {average.label: bound for average in averages}
        plain = {"estimators": list(intervals.PLAIN), "averages": list(averages), "intervals": bounds}
        yield Evaluator(**settings, **plain), kind
    for kind, bound in intervals.mixture_kinds(world).items():
        mixed = {"estimators": list(intervals.MIXED), "averages": [Mixture()], "intervals": {"mixture": bound}}
        yield Evaluator(**settings, **mixed), kind


@pytest.mark.slow
@pytest.mark.parametrize("name", ["drifting-heavy-0.3", "crowd-named-mild-0.3"])
def test_reading_all_looks_at_once_equals_an_evaluator_look_by_look(worlds: ModuleType, name: str) -> None:
    intervals, looks = import_module("intervals"), 6
    world = worlds.WORLDS[name]
    stream = worlds.draw(world, 1_000_000, EVENTS)
    answers, compared = dict(intervals.answers(world, stream, looks)), 0
    for production in ("logging", "deployed"):
        for evaluator, kind in evaluators(intervals, world, production):
            for look in range(looks):
                evaluator.update(stream.batch[look * EVENTS // looks : (look + 1) * EVENTS // looks])
                evaluator.fold_pending()
                for row in evaluator.report().estimates:
                    if row.policy == production:
                        continue
                    index = ("one", "two").index(row.policy), look
                    intervals_of = {production: (row.lift_lower, row.lift_upper)}
                    if production == "logging":
                        intervals_of["value"] = (row.lower, row.upper)
                    for quantity, ends in intervals_of.items():
                        answer = answers[row.estimator, row.average, kind, quantity]
                        bounds = [answer.lower[index], answer.upper[index]]
                        expected = [np.nan if end is None else end for end in ends]
                        assert bounds == pytest.approx(expected, abs=1e-9, nan_ok=True)
                        compared += 1
    assert compared == 2 * looks * 3 * (2 * (5 * 5 + 2) + 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["still-heavy-0.03", "drifting-heavy-0.3"])
def test_the_interval_of_the_mixture_covers_the_present_value(worlds: ModuleType, name: str) -> None:
    intervals, world = import_module("intervals"), worlds.WORLDS[name]
    covered: dict[str, list[float]] = {}
    for run in range(2_000, 2_000 + RUNS):
        stream = worlds.draw(world, run, intervals.EVENTS)
        for cell, answer in intervals.answers(world, stream, parts=["mixture"]):
            if cell.kind == "drift_aware":
                inside = (answer.lower <= answer.truth) & (answer.truth <= answer.upper)
                covered.setdefault(cell.quantity, []).append(inside[:, 2:].mean())  # from 600 events
    assert len(covered) == 3
    assert min(map(np.mean, covered.values())) >= 0.93


def test_the_runs_of_a_chunk_are_stored_once_and_resume_where_they_stopped(
    worlds: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = import_module("runs")
    monkeypatch.setattr(runs, "EVENTS", EVENTS)
    monkeypatch.setattr(runs, "CHUNK", 2)
    store, name = runs.Store(tmp_path), "still-mild-0.3"
    assert store.missing([name], 4, ["mixture"]) == [(name, "mixture", 0), (name, "mixture", 1)]
    line = runs.perform(runs.Task(name, "mixture", 1))
    store.add(line)
    with (tmp_path / f"{name}.jsonl").open("a") as file:
        file.write('{"world": "still-mi')
    assert store.missing([name], 4, ["mixture"]) == [(name, "mixture", 0)]
    store.add(runs.perform(runs.Task(name, "mixture", 0)))
    assert [kept.chunk for kept in store.read(name)] == [0, 1]
    assert store.read(name)[1] == line


def test_rates_are_means_over_runs_of_what_is_missed_where_something_is_shown(worlds: ModuleType) -> None:
    runs, summary, intervals = (import_module(name) for name in ("runs", "summary", "intervals"))
    nan, truth = np.nan, np.full((2, 4), 0.5)
    lower = np.array([[nan, nan, 0.6, 0.4], [0.4, 0.4, 0.4, 0.4]])
    missing = runs.score(intervals.Answer(lower, lower + 0.3, truth))
    assert missing.tolist() == pytest.approx([6 / 8, 1 / 8, 0, 0.5, 0, 0.5, 0.15])
    hitting = runs.score(intervals.Answer(truth - 0.1, truth + 0.1, truth))
    cell = intervals.Cell("ips", "window", "normal", "value")
    line = runs.Line("still-mild-0.3", "fixed", 0, 2, [(cell, list(missing + hitting), list(missing**2 + hitting**2))])
    (row,) = summary.rows_of([line])
    assert (row.runs, row.shown, row.miss) == (2, 0.875, pytest.approx((1 / 16) / 0.875, rel=1e-3))
    assert (row.ever, row.ever_se) == (0.25, 0.25)
    assert (row.half_width, row.half_width_se) == (pytest.approx(0.125), pytest.approx(0.025))


def test_new_rows_replace_those_of_the_same_cells_and_leave_the_others(worlds: ModuleType) -> None:
    summary = import_module("summary")
    before = import_module("csv_rows").read_rows(summary.Row, EXAMPLE / "results" / "coverage.csv")[:3]
    new = [before[1]._replace(miss=0.5), before[1]._replace(kind="another")]
    assert summary.updated(before, new) == [before[0], new[0], before[2], new[1]]


def test_a_candidate_that_always_agrees_with_production_has_a_narrow_interval_around_no_lift() -> None:
    rng, propensity = np.random.default_rng(1), np.full(5_000, 0.5)
    rewards = (rng.random(5_000) < 0.3).astype(float)
    evaluator = Evaluator(["same"], [IPS()], [Cumulative()], promotion=None, drift=None)
    evaluator.update(EventBatch.from_arrays(reward=rewards, propensity=propensity, policies={"same": propensity}))
    row = evaluator.report().get("same", "ips", "cumulative")
    assert (row.lift, row.lift_lower, row.lift_upper) == (0.0, pytest.approx(-0.0006, rel=0.05), -row.lift_lower)


def test_the_stored_design_effects_leave_out_drift_and_hold_sessions(worlds: ModuleType) -> None:
    effects = import_module("effects")
    stored = import_module("csv_rows").read_rows(effects.Effect, EXAMPLE / "results" / "design_effects.csv")
    means = {effect.world: effect.mean for effect in stored if effect.policy == worlds.LOGGING}
    assert {effect.world for effect in stored if effect.asks > 0} == {"crowd-mild-0.3"}
    assert min(effect.asks for effect in stored if effect.world == "crowd-mild-0.3") >= 0.9
    assert means.keys() == effects.SHOWN.keys()
    for world, mean in means.items():
        if effects.SHOWN[world].shape == "sessions" or effects.SHOWN[world].named:
            assert mean == pytest.approx(1 + 19 * worlds.CORRELATION, rel=0.15)
        else:
            assert mean > 1.5 if effects.SHOWN[world].shape == "crowd" else mean == pytest.approx(1, abs=0.1)


def test_the_claims_of_the_study_hold_in_the_stored_results(worlds: ModuleType) -> None:
    summary, intervals = import_module("summary"), import_module("intervals")
    rows = import_module("csv_rows").read_rows(summary.Row, EXAMPLE / "results" / "coverage.csv")
    assert {row.world for row in rows} == set(worlds.WORLDS)
    for row in rows:
        assert row.runs >= (20 if row.kind == intervals.AUTO else 400)
        if row.kind == "drift_aware":
            assert row.miss <= 0.07, row
        if worlds.WORLDS[row.world].shape in ("sessions", "crowd"):
            continue
        if row.kind.startswith("confidence_sequence"):
            assert row.ever <= 0.05, row
        if row.kind.startswith("empirical_likelihood") and summary.promised(row):
            assert row.miss <= 0.05 + 3 * row.miss_se, row


@pytest.mark.parametrize(
    "name",
    ["still, heavy, 0.3", "exploration falls from 0.2 to 0.02, 0.3", "slates of three slots as one action, 0.3"],
)
def test_intervals_from_counted_events_are_those_of_an_evaluator(worlds: ModuleType, name: str) -> None:
    """Lay out the counts of one run as events: production is the policy deployed, or the logging policy."""
    limits, events = import_module("limits"), 2_000
    log = limits.LOGS[name]._replace(looks=(events,))
    rows, batch = one_run(limits, log)
    for production in ("logging", "deployed"):
        averages = [Cumulative(name=kind) for kind in limits.KINDS]
        right = EmpiricalLikelihood(max_weight=log.largest_weight)
        kinds = [Normal(), EmpiricalLikelihood(max_weight="none"), EmpiricalLikelihood(), right]
        bounds = dict(zip(limits.KINDS, kinds, strict=True))
        settings = {"production": production, "intervals": bounds, "drift": None, "promotion": None, "block": events}
        evaluator = Evaluator(["new"], [IPS()], averages, **settings)
        evaluator.update(batch)
        report = evaluator.report()
        for kind in limits.KINDS[1:]:
            estimate = report.get("new", "ips", kind)
            assert estimate.upper - estimate.lower == pytest.approx(rows["value", kind], rel=1e-3)
            if kind != "right" or production == "logging":  # which has the right limit of the policy deployed, too
                width = rows[f"lift over {production}", kind]
                assert estimate.lift_upper - estimate.lift_lower == pytest.approx(width, rel=1e-3)


def one_run(limits: ModuleType, log: Any) -> tuple[dict[tuple[str, str], float], EventBatch]:
    """Return the widths on `cumulative` by quantity and kind of a single run, and its events."""
    parts, laid_out = [], limits.Step.from_counts

    def noting(cells: Any, counted: Any, rewarded: Any) -> Any:
        numbers, wins = counted[0].astype(int), rewarded[0]
        cell_index = np.repeat(np.arange(len(numbers)), numbers)
        won = np.concatenate([np.arange(number) < paid for number, paid in zip(numbers, wins, strict=True)])
        policies = {"new": cells.candidate[cell_index], "deployed": cells.deployed[cell_index]}
        parts.append(EventBatch.from_arrays(reward=won, propensity=cells.propensity[cell_index], policies=policies))
        return laid_out(cells, counted, rewarded)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits.Step, "from_counts", noting)
        rates = list(limits.rates(log, 1))
    widths = {(row.quantity, row.kind): row.width for row in rates if row.average == "cumulative"}
    return widths, EventBatch.concat(parts)


def test_limits_of_the_weights_keep_the_promised_coverage_and_width(worlds: ModuleType) -> None:
    limits, summary = import_module("limits"), import_module("summary")
    rows, text = (
        import_module("csv_rows").read_rows(limits.Rate, EXAMPLE / "results" / "limits.csv"),
        (EXAMPLE / "README.md").read_text(),
    )
    assert limits.table_of_limits(rows) in text
    assert summary.fill_in_limits(text, rows) == text
    assert {row.log for row in rows} == set(limits.LOGS)
    widths = {row[:5]: row.width for row in rows}
    for row in rows:
        assert row.runs >= 4_000
        young = row.log.startswith("production takes") and row.events < 500  # with nine rewards
        assert row.kind == "normal" or row.miss <= 0.055 or (young and row.kind != "auto"), row
        right, none = (widths[row.log, row.quantity, row.average, kind, row.events] for kind in ("right", "none"))
        if "actions, exploration" in row.log and row.kind == "auto":
            assert row.events < 2_000 or row.width <= 1.1 * right, row
            late = row.events >= 10_000 and row.average == "cumulative" and row.quantity == "value"
            assert not late or not row.log.endswith("0.03") or row.width <= 0.5 * none, row
