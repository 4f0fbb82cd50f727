"""Check the study of promotion rules: its scores, the tables of its results, and a run in a small world."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.stats import binom, ttest_1samp

from streameval.errors import InputError
from streameval.simulation import Drift, World
from support.paths import ROOT
from support.programs import script
from support.scripts import importable

EXAMPLE = ROOT / "examples" / "promotion"
TABLES = ("all", "fresh", "delays", "targets", "same", "errors", "long", "losers", "winners", "same_days")
CYCLIC = {
    "evening peak, 60,000 events a day": (-2.7, 3.2, 60_000),
    "evening peak, 150,000": (-4.0, 5.0, 150_000),
    "high evening peak, 60,000": (-2.7, 3.2, 60_000),
    "sine, 50,000": (-2.5, 3.2, 50_000),
    "sine, 200,000": (-5.0, 6.4, 200_000),
    "sine, 1,000,000": (-11.0, 14.0, 1_000_000),
    "gaps of 6 hours": (-2.7, 3.2, 60_000),
    "start at 15:00": (-2.7, 3.2, 60_000),
    "tenfold traffic from day 10 on": (-2.7, 3.2, 60_000),
}
"""Lift of the loser and of the winner over a day, in standard errors of a day's mean, and events of a usual day."""


@pytest.fixture
def example() -> Iterator[ModuleType]:
    with importable(EXAMPLE):
        yield import_module("scoring")


def study(*arguments: str) -> subprocess.CompletedProcess[str]:
    return script(EXAMPLE / "study.py", *arguments)


def stretch(candidate: int, start: int, end: int | None, rule: str = "paired") -> tuple[str, int, int, int | None]:
    return import_module("experiment").Stretch(rule, candidate, start, end)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def turning() -> tuple[World, Drift]:
    """Return two clusters in turn, and the candidates of a small world."""
    world = World.synthetic(5, clusters=2, users=40, items=200, likes=12, features=6)
    return world, Drift("abrupt", clusters=2, span=50_000, cycle=True)


def test_every_second_of_a_lead_counts_and_only_long_ones_are_episodes(example: ModuleType) -> None:
    lead = np.full((100, 2), -0.02)
    lead[:30, 0] = 0.03  # from the start: its turn was not seen
    lead[40:59, 0] = 0.03  # 19,000 events
    lead[70:, 0] = 0.03
    lead[50:70, 1] = 0.03
    assert list(example.episodes(lead)) == [(0, 70, 100), (1, 50, 70)]
    checks = np.arange(1_000, 101_000, 1_000)
    own = [stretch(0, 80_500, None), stretch(1, 50_100, 50_900), stretch(1, 70_100, 71_500)]
    promotable = example.promotable_at(own, checks, 2)
    assert list(example.delays(promotable, lead)) == [10_000, None]
    assert (checks[promotable[:, 1]].tolist(), checks[promotable[:, 0]].tolist()[0]) == ([71_000], 81_000)


def test_a_candidate_that_is_promotable_when_its_lead_starts_has_no_delay(example: ModuleType) -> None:
    lead = np.repeat([-0.02, 0.02], 30)[:, None]
    promotable = example.promotable_at([stretch(0, 5_000, 45_000)], np.arange(1_000, 61_000, 1_000), 1)
    assert list(example.delays(promotable, lead)) == [0]


def test_the_lead_is_over_the_policy_that_is_deployed_in_the_world_of_the_next_batch(
    example: ModuleType, turning: tuple[World, Drift]
) -> None:
    world, drift = turning
    leads = import_module("worlds").leads(world, drift, np.array([50_000, 50_100, 100_100]))
    deployed = world.value[:, 0]
    np.testing.assert_allclose(leads[0], world.value[0, 1:] - deployed[0])
    np.testing.assert_allclose(leads[1], world.value[1, 1:] - deployed[1])
    np.testing.assert_allclose(leads[2], leads[0])


def test_a_score_counts_starts_exactly_and_states_at_checks(example: ModuleType, turning: tuple[World, Drift]) -> None:
    world, drift = turning
    lead = import_module("worlds").leads(world, drift, np.array([1_000, 60_000]))
    candidate = int(np.argmin(lead[0]))
    assert lead[0, candidate] < -0.01
    own = [
        stretch(candidate, 12_300, 12_900),
        stretch(candidate, 20_500, 23_000),
        stretch(candidate, 1_000, 9_000, "sea"),
    ]
    run = example.Run("small", "abrupt", 7, 40_000)
    score = example.score(run, "paired", own, world, drift)
    worst = float(f"{lead[0, candidate]:.3g}")
    assert score.false_starts == ((candidate, 12_300, worst), (candidate, 20_500, worst))
    assert (score.starts, score.promotable, score.worse, score.much_worse) == (2, 2, 2, 2)  # after 21,000 and 22,000
    assert (score.lowest_lead, score.checks) == (worst, 40 * len(world.candidates))
    mask = (lead[0] >= 0.02) & (lead[0] <= 0.05)
    assert (score.within, score.found) == (40 * np.count_nonzero(mask), 0)


def test_rates_are_of_all_runs_together_and_without_the_seeds_used_for_choosing(example: ModuleType) -> None:
    summary = import_module("summary")

    def score(seed: int, *, false: int, within: int, found: int, delays: tuple[int | None, ...]) -> object:
        starts = tuple((0, 12_000, -0.004) for _ in range(false))
        run = ("w", "smooth", seed, 1_000_000, "paired")
        return example.Score(*run, 9, starts, 10_000, 500, 3, 1, -0.02, within, found, delays, ())

    scores = [
        score(1, false=2, within=100, found=10, delays=(None, 90_000)),
        score(7, false=0, within=300, found=240, delays=(10_000, 20_000)),
        score(6, false=1, within=100, found=80, delays=(30_000,)),
    ]
    (row,) = summary.rows_of(scores)
    assert (row.runs, row.false_starts, row.false_rate, row.power) == (3, 3, 1.0, 0.66)
    assert (row.episodes, row.unfound, row.delay, row.worse, row.much_worse) == (5, 1, 30_000, 9, 3)
    (fresh,) = summary.rows_of(scores, fresh=True)
    assert (fresh.runs, fresh.false_rate, fresh.power, fresh.delay) == (2, 0.5, 0.8, 20_000)
    assert fresh.power_se == pytest.approx(0.0)
    assert fresh.false_upper == pytest.approx(4.744 / 2, abs=1e-3)  # Poisson: 1 seen, 5% chance of so few at 4.744
    assert summary.rows_of(scores[:1])[0].delay == np.inf


def test_few_candidates_of_the_same_worth_were_promoted_in_the_stored_results(example: ModuleType) -> None:
    runs = import_module("runs")
    scores = runs.Store(EXAMPLE / "results" / "lastfm.jsonl", example.Score).read()
    outcomes = runs.Store(EXAMPLE / "results" / "same.jsonl", runs.Outcome).read()
    assert len({(score.setting, score.seed, score.rule) for score in scores}) == len(scores)
    errors = runs.Store(EXAMPLE / "results" / "errors.jsonl", runs.ErrorScores).read()
    assert sum(outcome.candidates for outcome in outcomes) == 10_000
    assert all(outcome.seed >= 100 for outcome in errors)
    long = runs.Store(EXAMPLE / "results" / "long.jsonl", runs.LongOutcome).read()
    streams = Counter((outcome.weights, outcome.rewards, outcome.candidates) for outcome in long)
    promoting = Counter((outcome.weights, outcome.rewards, outcome.candidates) for outcome in long if outcome.ever)
    assert sorted(streams.values()) == 4 * [20] + 9 * [100]
    assert all(promoting[kind] <= 0.05 * count for kind, count in streams.items())
    assert sum(promoting.values()) <= 0.02 * sum(streams.values())


def test_paired_reaches_its_targets_in_the_stored_results(example: ModuleType) -> None:
    summary, runs = import_module("summary"), import_module("runs")
    scores = runs.Store(EXAMPLE / "results" / "lastfm.jsonl", example.Score).read()
    rows = {row.setting: row for row in summary.rows_of(scores) if row.rule == "paired"}
    assert {row.runs for row in rows.values()} == {10}
    assert max(row.false_rate for row in rows.values()) <= 0.5
    assert min(rows[setting].power for setting in ("smooth", "stationary")) >= 0.8
    assert rows["abrupt"].power >= 0.68
    assert rows["smooth"].delay <= 55_000
    assert rows["abrupt"].delay <= 12_000


@pytest.mark.slow
def test_a_lift_that_has_moved_is_less_certain(example: ModuleType) -> None:
    errors = import_module("errors")
    value = np.stack([np.full(400, 0.02), 1e-3 * np.arange(400)], axis=1)
    sampling, spread, drift = np.full((3, 400, 2), 1e-5)
    parts = errors.parts_of(value, sampling, spread, drift)
    assert set(parts) == set(errors.NAMES)
    assert parts["paired"][-1, 0] == pytest.approx(5e-5)
    assert parts["recent_movement"][-1, 1] == pytest.approx(0.03**2, rel=0.05)  # a mean over 30 looks lags by 30
    assert parts["paired"][-1, 1] == pytest.approx(5e-5 + parts["recent_movement"][-1, 1] / 9)
    error, parts["drift_aware"] = np.sqrt(parts["paired"]) * np.array([1.0, -1.0]), parts["paired"] + 1.0
    correlation, size = errors.held_against(error, {name: parts[name] for name in ("paired", "drift_aware")})
    assert (correlation["paired"], size["paired"]) == pytest.approx((1.0, 1.0))


@pytest.mark.slow
def test_errors_are_looked_at_on_seeds_that_no_rule_is_judged_by(example: ModuleType, tmp_path: Path) -> None:
    runs = import_module("runs")
    store = runs.Store(tmp_path / "errors.jsonl", runs.ErrorScores)
    store.add([runs.ErrorScores("softmax", "smooth", 100, 200_000, {}, {})])
    assert runs.missing_errors(store, "softmax", ["smooth", "abrupt"], 2, 200_000) == [
        ("softmax", "smooth", 101, 200_000),
        ("softmax", "abrupt", 100, 200_000),
        ("softmax", "abrupt", 101, 200_000),
    ]
    assert max(import_module("study").SEEDS) < runs.FIRST_SEED


@pytest.mark.slow
def test_few_candidates_of_the_same_worth_are_ever_proven_better(example: ModuleType) -> None:
    streams = import_module("aa_streams")
    outcomes = [streams.follow(kind, 1_000, candidates=60, events=12_000) for kind in streams.KINDS]
    assert [outcome.weights for outcome in outcomes] == ["mild", "heavy"]
    for outcome in outcomes:
        for rule in ("anytime", "sea", streams.PROOF):
            assert outcome.ever[rule] <= binom.ppf(0.999, 60, 0.05)
        assert outcome.ever["anytime"] <= outcome.ever[streams.PROOF]
        assert outcome.ever["bsea"] > binom.ppf(0.999, 60, 0.05)  # no bounds: what noise puts ahead


def test_weights_of_the_streams_have_mean_one(example: ModuleType) -> None:
    for weights in import_module("aa_streams").KINDS.values():
        assert sum(weights.shares) == pytest.approx(1.0)
        assert np.dot(weights.values, weights.shares) == pytest.approx(1.0)
        drawn = weights.draw(np.random.default_rng(1), 4_000, 50)
        error = drawn.std() / drawn.size**0.5
        assert abs(drawn.mean() - 1.0) < 4 * error


@pytest.mark.slow
def test_a_study_of_a_small_world_runs_once_and_fills_in_its_tables(example: ModuleType, tmp_path: Path) -> None:
    results = ("--results", str(tmp_path))
    few = ("--settings", "smooth", "--seeds", "1", "--events", "20000", "--processes", "1")
    done = study("run", "softmax", *few, *results)
    assert done.returncode == 0, done.stderr
    runs, streams = import_module("runs"), import_module("aa_streams")
    store = runs.Store(tmp_path / "softmax.jsonl", example.Score)
    assert [score.rule for score in store.read()] == list(runs.RULES)
    assert runs.missing_runs(store, "softmax", ["smooth"], range(2), 20_000) == [
        ("softmax", example.Run("softmax", "smooth", 1, 20_000))
    ]
    store.path.write_bytes(store.path.read_bytes()[:-20])  # interrupted
    assert len(runs.missing_runs(store, "softmax", ["smooth"], range(1), 20_000)) == 1
    outcomes = [streams.follow(kind, 0, candidates=5, events=500) for kind in streams.KINDS]
    runs.Store(tmp_path / "same.jsonl", runs.Outcome).add(outcomes)
    days = runs.Store(tmp_path / "days.jsonl", runs.DayRun)
    days.add([runs.day_run(name, 0) for name in ("sine, 50,000", "1 candidate")])
    assert ("sine, 50,000", 0) not in runs.missing_days(days, 1)
    assert ("20 correlated candidates", 1) in runs.missing_days(days, 2)
    readme = tmp_path / "README.md"
    readme.write_text("".join(f"<!-- table: {name} -->\n" for name in TABLES))
    import_module("study").table("softmax", tmp_path, readme)
    assert "| smooth | `paired` | 1 |" in readme.read_text()
    assert "| heavy | proof alone | 5 |" in readme.read_text()
    assert "| sine, 50,000 | 0 of 1, 0.0% |" in readme.read_text()
    assert "| 1 candidate | 1 |" in readme.read_text()


@pytest.mark.parametrize("name", CYCLIC)
def test_lifts_over_a_day_are_what_a_world_claims(example: ModuleType, name: str) -> None:
    days = import_module("days")
    loser, winner, events = CYCLIC[name]
    log = days.log_of(name, np.random.default_rng(0))
    assert 0.0 < log.rates.min() < log.rates.max() < 1.0
    day = slice(0, 24)
    weights = log.counts[day] / log.counts[day].sum()
    lift = weights @ (log.rates[day] @ (log.policies - 0.1).T)
    taken = np.random.default_rng(1).binomial(events // 10, weights @ log.rates[day], (4_000, 10)) / (events // 10)
    np.testing.assert_allclose(lift / (taken @ (log.policies - 0.1).T).std(axis=0), [loser, winner], rtol=0.05)
    evening = log.rates[(18 - log.start) % 24] @ (log.policies - 0.1).T
    assert evening[days.LOSER] > 0.01
    assert evening[days.WINNER] == pytest.approx(lift[days.WINNER], abs=1e-6)


def test_weeks_have_a_loser_that_wins_at_weekends(example: ModuleType) -> None:
    days = import_module("days")
    for name, weekend in (("weekends, from Monday on", 5), ("weekends, from Saturday on", 0)):
        log, units = days.log_of(name, np.random.default_rng(0)), days.units_of(days.WORLDS[name])
        lift = log.rates[:168] @ (log.policies - 0.1).T
        np.testing.assert_allclose(np.average(lift, axis=0, weights=log.counts[:168]) / units, [-3, 3], atol=0.01)
        saturday = np.average(lift[24 * weekend :][:24], axis=0, weights=log.counts[24 * weekend :][:24])
        assert saturday[days.LOSER] > 5 * units[days.LOSER]
        assert saturday[days.WINNER] < 0


def test_no_policy_differs_from_production_in_streams_for_false_starts(example: ModuleType) -> None:
    days = import_module("days")
    correlations = {}
    for name, (candidates, _) in days.SAME.items():
        logs = [days.log_of(name, np.random.default_rng(seed)) for seed in range(20)]
        for log in logs:
            assert log.policies.shape == (candidates, 10)
            np.testing.assert_allclose(log.policies.sum(axis=1), 1.0)
            np.testing.assert_allclose(log.rates @ (log.policies - 0.1).T, 0.0, atol=1e-15)
        if candidates > 1:
            both = [np.corrcoef(log.policies)[np.triu_indices(candidates, 1)].mean() for log in logs]
            correlations[name] = float(np.mean(both))
    independent, correlated = correlations.values()
    assert abs(independent) < 0.05
    assert 0.3 < correlated < 0.6


def test_rules_by_hand_look_at_24_hours_and_at_whole_days(example: ModuleType) -> None:
    days = import_module("days")
    rng = np.random.default_rng(3)
    value = rng.normal(0.05, 1.0, (5 * 24, 400))
    terms = np.stack([np.full(120, 400.0), value.sum(axis=1), (value**2).sum(axis=1)], axis=-1)[:, None]
    above = days.window(terms)[:, 0]
    assert not above[:23].any()
    for hour in range(23, 120):
        last = value[hour - 23 : hour + 1].ravel()
        assert above[hour] == (last.mean() > 1.96 * last.std() / last.size**0.5)
    start = 15
    above = days.daily(terms, start)[:, 0]
    means = value[9 : 9 + 96].reshape(4, -1).mean(axis=1)
    expected = [ttest_1samp(means[:count], 0.0).confidence_interval(0.95).low > 0 for count in (2, 3, 4)]
    assert above[[9 + 47, 9 + 71, 9 + 95]].tolist() == above[[9 + 70, 9 + 94, 119]].tolist() == expected
    assert not above[: 9 + 47].any()
    assert days.daily(terms + np.array([0.0, 400.0, 0.0]), start)[9 + 47 :].all()


def test_the_winner_starts_soon_and_the_loser_never_in_stored_worlds_with_days(example: ModuleType) -> None:
    runs, days = import_module("runs"), import_module("days")
    stored = runs.Store(EXAMPLE / "results" / "days.jsonl", runs.DayRun).read()
    assert Counter((run.world, run.seed) for run in stored) == Counter(days.day_jobs(days.RUNS))
    rows = {(row.world, row.rule): row for row in import_module("summary").day_rows(stored)}
    for rule in ("periodic", "periodic 24h"):
        for world in (*CYCLIC, "no cycle, 200,000"):
            row = rows[world, rule]
            assert (row.wrong, row.share) == (0, 0.0)
            assert row.first <= 2.0 + 1.0
            assert row.later >= 0.97
    assert sum(rows[world, "paired"].wrong for world in CYCLIC) >= 0.9 * days.RUNS * len(CYCLIC)
    assert rows["random days, sd 3", "periodic 24h"].wrong <= 0.08 * 2 * days.RUNS
    assert rows["random days, sd 3", "periodic"].wrong <= 0.08 * 2 * days.RUNS
    for kind in days.SAME:
        streams = [run for run in stored if run.world == kind]
        for rule in ("periodic", "periodic 24h"):
            assert sum(run.rules[rule].wrong > 0 for run in streams) <= 0.08 * len(streams)
        assert sum(run.worse > 0 for run in streams) <= 0.1 * len(streams)


def test_a_world_that_does_not_exist_is_an_input_error_that_names_those_that_do(example: ModuleType) -> None:
    with pytest.raises(InputError, match=r"no world nowhere\.npz") as refused:
        import_module("worlds").scene("nowhere.npz")
    assert "softmax" in refused.value.report()
