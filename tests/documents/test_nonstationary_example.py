"""Run the experiment on a small synthetic moving world: it resumes at the last stored run, and scores rightly."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from pathlib import Path
from types import ModuleType

import msgspec
import numpy as np
import pytest

from streameval.errors import InputError
from streameval.simulation import World
from support.paths import ROOT
from support.programs import script
from support.scripts import importable

EXAMPLE = ROOT / "examples" / "nonstationary"
RUN = ("--events", "20000", "--seeds", "1", "--processes", "1", "--settings", "smooth")
AVERAGES = ("--average", "cumulative", "--average", "{kind: decay, half_life: 2000}")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small world to a file, as `prepare` would."""
    world = World.synthetic(5, clusters=4, users=80, items=300, likes=12, features=6)
    path = tmp_path_factory.mktemp("world") / "small.npz"
    np.savez(
        path,
        item_features=world.item_features,
        user_indptr=world.liked_start,
        user_items=world.liked_items,
        user_cluster=world.user_cluster,
        theta=world.theta,
    )
    return path


@pytest.fixture
def example() -> Iterator[ModuleType]:
    with importable(EXAMPLE):
        yield import_module("experiment")


def study(*arguments: str) -> subprocess.CompletedProcess[str]:
    return script(EXAMPLE / "study.py", *arguments)


@pytest.mark.slow
def test_a_full_run_is_scored_at_990_moments(example: ModuleType) -> None:
    grid = example.scored_batches(1_000_000)
    assert (grid[0], grid[1], grid[-1], len(grid)) == (100, 110, 9_990, 990)


@pytest.mark.slow
def test_the_experiment_resumes_where_it_stopped_and_writes_its_table(prepared: Path, tmp_path: Path) -> None:
    results = ("--results", str(tmp_path))
    first = study("run", str(prepared), *RUN, *AVERAGES, *results)
    assert first.returncode == 0, first.stderr
    lines = (tmp_path / "small.jsonl").read_text().splitlines()
    assert len(lines) == 3  # two averages and the A/B test
    (tmp_path / "small.jsonl").write_text("\n".join([*lines[:2], lines[2][:40]]))
    again = study("run", str(prepared), *RUN, *AVERAGES, *results)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "small.jsonl").read_text().splitlines() == lines
    assert study("table", *results).returncode == 0
    assert "| ips / cumulative |" in (tmp_path / "small.md").read_text()


@pytest.mark.slow
def test_an_ab_test_has_less_error_than_the_window_and_no_interval(example: ModuleType, prepared: Path) -> None:
    module, stage = import_module("contest"), import_module("worlds").scene(str(prepared))
    world = stage.make()
    chosen = [contestant for contestant in module.IN_TABLE if contestant.name == "ips / window"]
    drift = stage.drift("smooth", world)
    track = example.follow(chosen, world, drift, 40_000, 0)
    scores = {score.contestant: score for score in example.scores(track, stage.name, drift, 40_000, 0)}
    assert scores["A/B test"].mse < scores["ips / window"].mse
    assert scores["A/B test"].coverage is None


@pytest.mark.slow
def test_baselines_follow_the_streams_of_the_study(example: ModuleType, prepared: Path) -> None:
    module, stage = import_module("baselines"), import_module("worlds").scene(str(prepared))
    world = stage.make()
    drift = stage.drift("stationary", world)
    track = example.follow(module.BASELINES, world, drift, 20_000, 0)
    assert list(track.answers) == ["A/B test", *(baseline.name for baseline in module.BASELINES)]
    scores = {score.contestant: score for score in example.scores(track, stage.name, drift, 20_000, 0)}
    assert scores["opfv"].mse < scores["regression-assisted dr"].mse < scores["prognosticator, wls"].mse < 0.02
    assert scores["opfv, robust"].mse == scores["opfv"].mse, "no cluster returns"
    assert 0.6 < scores["regression-assisted dr"].coverage < 1
    moments = list(import_module("streameval.simulation").simulate(world, drift, 600, 0, action_sets=True))
    sets = [module.Batch.from_events(moment.events, 6) for moment in moments]
    proxy = np.linalg.lstsq(
        *(np.concatenate([getattr(batch, name) for batch in sets[:3]]) for name in ("logged", "reward"))
    )
    reward, weight, logged = (np.concatenate([batch[index] for batch in sets[3:]]) for index in range(3))
    offered = np.mean([batch.offered for batch in sets[3:]], axis=0)
    expected, _ = module.regression_assisted(reward, weight, logged @ proxy[0], offered @ proxy[0])
    baselines = module.Baselines(6, 4, drift)
    baselines.watch(moments)
    assert baselines.answers()["regression-assisted dr"].value == pytest.approx(expected)


def test_regression_assisted_dr_equals_its_definition(example: ModuleType) -> None:
    random, events = np.random.default_rng(1), 40
    reward, proxy, weight = random.random(events), random.random(events), random.exponential(size=(events, 2))
    value, error = import_module("baselines").regression_assisted(reward, weight, proxy, np.array([0.4, 0.7]))
    for candidate, target in enumerate((0.4, 0.7)):
        w = weight[:, candidate]
        columns = np.array([[1.0, f] for f in proxy])
        b = np.linalg.lstsq(np.sqrt(w)[:, None] * columns, np.sqrt(w) * reward)[0]
        residuals = [w[i] * (reward[i] - b[0] - b[1] * proxy[i]) for i in range(events)]
        assert value[candidate] == pytest.approx(b[0] + b[1] * target + sum(residuals) / events)
        moments = sum(w[i] * np.outer(columns[i], columns[i]) for i in range(events)) / events
        gap = np.array([1.0, target]) - sum(w[i] * columns[i] for i in range(events)) / events
        terms = np.array([residuals[i] * (1 + gap @ np.linalg.inv(moments) @ columns[i]) for i in range(events)])
        variance = ((terms**2).sum() - events * terms.mean() ** 2) / (events * (events - 1))
        assert error[candidate] == pytest.approx(variance**0.5)


@pytest.mark.parametrize("robust", [False, True])
def test_opfv_equals_a_sum_over_the_events(example: ModuleType, robust: bool) -> None:
    module, random = import_module("baselines"), np.random.default_rng(2)
    batches = [
        module.Batch(random.random(30), random.exponential(size=(30, 2)), random.random((30, 4)), random.random((2, 4)))
        for _ in range(4)
    ]
    everything, matching = module.Phase(3, 2), module.Phase(3, 2)
    for batch in batches:
        everything.add(batch)
    for batch in batches[::2]:
        matching.add(batch)
    weights = [1 + module.PRIOR / 120, module.PRIOR / 120] * 2
    logged, reward = np.concatenate([batch.logged for batch in batches]), np.concatenate([b.reward for b in batches])
    scale = np.sqrt(np.repeat(weights, 30))
    model = np.linalg.lstsq(scale[:, None] * logged, scale * reward)[0]
    expected = np.zeros(2)
    for number, batch in enumerate(batches):
        share = (number % 2 == 0) / 0.5
        for i in range(30):
            expected += share * batch.weight[i] * (batch.reward[i] - batch.logged[i] @ model) / 120
            expected += (share if robust else 1.0) * batch.offered @ model / 120
    assert module.opfv(matching, everything, robust) == pytest.approx(expected)


def test_the_forecast_continues_curves_of_the_basis_and_equals_a_weighted_regression(example: ModuleType) -> None:
    forecast, random = import_module("baselines").forecast, np.random.default_rng(3)
    basis = np.cos(np.pi * np.outer(np.arange(101) / 106, np.arange(5)))
    mass = random.exponential(size=(100, 2))
    curve = basis @ np.array([[0.5, 0.3], [0.1, 0.2], [0.0, -0.1], [0.2, 0.0], [0.0, 0.3]])
    assert forecast(mass, mass * curve[:100]) == pytest.approx(curve[100])
    noisy = random.random((100, 2))
    for candidate in range(2):
        root = np.sqrt(mass[:, candidate])
        fitted = np.linalg.lstsq(root[:, None] * basis[:100], root * noisy[:, candidate])[0]
        assert forecast(mass, mass * noisy)[candidate] == pytest.approx(basis[100] @ fitted)


@pytest.mark.slow
def test_ideas_are_tried_on_the_streams_of_the_study(example: ModuleType) -> None:
    ideas, worlds = import_module("ideas"), import_module("worlds")
    stage = worlds.scene("softmax-fast")
    idea_errors = dict(zip(ideas.IDEAS, ideas.errors_of_ideas("softmax-fast", "smooth", 20_000, 1), strict=True))
    world = stage.make()
    drift = stage.drift("smooth", world)
    (default,) = (
        contestant for contestant in import_module("contest").IN_TABLE if contestant.name == "stratified_dr / mixture"
    )
    track = example.follow([default], world, drift, 20_000, 1)
    scores = {score.contestant: score for score in example.scores(track, stage.name, drift, 20_000, 1)}
    assert idea_errors["the default"].mean() == pytest.approx(scores[default.name].mse, rel=1e-3)
    assert len({errors.mean() for errors in idea_errors.values()}) == len(idea_errors)


def test_corrections_that_differ_by_chance_alone_are_shrunk_to_their_mean(example: ModuleType) -> None:
    shrunk, model = import_module("ideas").shrunk, np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    corrections = np.array([0.03, -0.01, 0.02, 0.0, 0.01])
    noise = np.full(5, 0.02**2)
    assert shrunk(model + corrections, model, noise) == pytest.approx(model + 0.01 + 0.2 * (corrections - 0.01))
    assert shrunk(model + corrections, model, 2 * noise) == pytest.approx(model + 0.01)
    assert shrunk(model + corrections, model, 0 * noise) == pytest.approx(model + corrections)


def test_a_world_that_does_not_exist_is_an_input_error_that_names_those_that_do(example: ModuleType) -> None:
    with pytest.raises(InputError, match=r"no world nowhere\.npz") as refused:
        import_module("worlds").scene("nowhere.npz")
    assert "softmax-slow" in refused.value.report()


def test_the_files_of_both_data_sets_are_read_as_likes_tags_and_friends(example: ModuleType, tmp_path: Path) -> None:
    read_raw = import_module("prepare").read_raw
    tags, friends = "- - - -/7 20 1 5/7 20 2 5/9 10 2 5", "- - -/7 9 1/9 7 1/7 3 1"
    files = {
        "lastfm": {"taggedartists": tags, "friends": friends, "artists": "- - -/7 10 3/9 10 1/9 30 1"},
        "delicious": {"taggedbookmarks": tags, "contacts": friends},
    }
    for name, contents in files.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "tags.dat").write_text("id\tvalue\n1\thard-rock\n2\trock\n")
        for file, rows in contents.items():
            (tmp_path / name / f"user_{file}.dat").write_text(rows.replace(" ", "\t").replace("/", "\n"))
    raw = {
        (name, tagged_only): read_raw(tmp_path / name, tagged_only) for name in files for tagged_only in (False, True)
    }
    assert raw.pop(("lastfm", False)).likes.tolist() == [[0, 0], [1, 0]], "listens, and the artist 30 has no tag"
    for one in raw.values():
        assert one.likes.tolist() == [[0, 1], [1, 0]]
        assert one.words.tolist() == [[1, 0], [1, 1], [1, 1], [0, 1]]
        assert one.friends.tolist() == [[0, 1], [1, 0]]
    with pytest.raises(InputError, match=r"no user_taggedartists\.dat or user_taggedbookmarks\.dat"):
        read_raw(tmp_path)


def test_a_score_is_the_mean_over_the_moments_of_the_protocol(example: ModuleType) -> None:
    module, simulation = import_module("contest"), import_module("streameval.simulation")
    events = np.array([100, 10_100, 11_100])
    truth = np.full((3, 2), 0.5)
    value = np.array([[0.0, 0.0], [0.5, 0.6], [0.5, 0.5]])
    track = example.Track(events, truth, {"x": module.Answer(value, value - 0.05, value + 0.05)})
    (score,) = example.scores(track, "world", simulation.Drift("abrupt"), 20_000, 3)
    assert score.mse == pytest.approx(0.01 / 4)
    assert score.published_mse == pytest.approx((0.25 + 0.01 / 2) / 2), "of the first two moments"
    assert (score.coverage, score.half_width) == (0.75, 0.05)
    assert score.early_coverage == (0.0,)


def test_the_default_is_as_accurate_and_honest_in_the_stored_results_as_the_readme_says(example: ModuleType) -> None:
    summary = import_module("summary")
    lookup = {
        (world, mean.contestant, mean.setting): mean
        for world, means in summary.read(EXAMPLE / "results").items()
        for mean in means
    }
    default = {(world, setting): mean for (world, name, setting), mean in lookup.items() if name == summary.DEFAULT}
    assert {setting for _, setting in default} == {"smooth", "abrupt", "stationary"}
    assert [mean.seeds for (world, _), mean in default.items() if world == "lastfm"] == [20] * 3
    for world, largest in {"lastfm": (0.135, 0.38, 0.035), "softmax-fast": (0.2, 0.7, 0.05)}.items():
        for setting, error in zip(("smooth", "abrupt", "stationary"), largest, strict=True):
            assert default[world, setting].mse <= error * 1e-3
    for (world, _), mean in default.items():
        assert mean.coverage >= (0.95 if world == "lastfm" else 0.93)
        assert mean.coverage_from[1] >= 0.93, "from 500 to 10,000 events"
    assert default["lastfm", "smooth"].half_width <= 1.2 * 0.0292
    still = default["lastfm", "stationary"].mse
    assert still <= 1.2 * lookup["lastfm", "ips / cumulative", "stationary"].mse


def test_no_baseline_beats_the_default_but_where_it_knows_the_cluster(example: ModuleType) -> None:
    summary = import_module("summary")
    lookup = {
        (mean.world, mean.setting, mean.contestant): mean
        for means in summary.read(EXAMPLE / "results").values()
        for mean in means
    }
    for world, setting in product(summary.BASELINE_WORLDS, ("smooth", "abrupt", "stationary")):
        default = lookup[world, setting, summary.DEFAULT].mse
        for baseline in import_module("baselines").BASELINES:
            mean = lookup[world, setting, baseline.name]
            knows = (world, setting) == ("softmax-fast", "abrupt") and baseline.name.startswith("opfv")
            assert mean.mse + 2 * mean.mse_se > default or knows
            assert not knows or mean.mse < default
            if baseline.name == "regression-assisted dr":
                assert 0.8 < mean.mse / lookup[world, setting, "ips / window"].mse < 1
                assert 0.84 < mean.coverage < 0.93


def test_a_season_is_worth_most_where_days_repeat_and_costs_nothing_elsewhere(example: ModuleType) -> None:
    cycles = import_module("cycles")
    scores = cycles.stored(EXAMPLE / "results" / "cycles.ndjson")
    assert Counter((score.world, score.average) for score in scores) == dict.fromkeys(
        product(cycles.CYCLES, (*(average.label for average in cycles.AVERAGES), *cycles.BASELINES)), cycles.RUNS
    )
    rows = cycles.rows_of(scores)
    seasonal = {world: rows[world, "mixture, seasonal 24h"][0] / rows[world, "mixture"][0] for world in cycles.CYCLES}
    assert max(seasonal[world] for world in ("sine", "evening peak", "gaps", "tenfold traffic")) <= 0.6
    assert max(seasonal.values()) <= 1.03
    for world in ("sine", "evening peak"):
        assert rows[world, "mixture, seasonal 24h"][0] < rows[world, cycles.BASELINES[0]][0] < rows[world, "mixture"][0]
        assert rows[world, "adaptive_window"][0] <= 0.5 * rows[world, "adaptive_window, published"][0]


@pytest.mark.slow
def test_a_run_with_days_scores_each_average_and_is_stored_once(example: ModuleType, tmp_path: Path) -> None:
    cycles = import_module("cycles")
    cycles.CYCLES = {"sine": cycles.CYCLES["sine"]}
    path = tmp_path / "cycles.ndjson"
    path.write_bytes(b"".join(msgspec.json.encode(score) + b"\n" for score in cycles.follow("sine", 0)))
    cycles.run_all(1, 1, path)
    names = [*(average.label for average in cycles.AVERAGES), *cycles.BASELINES]
    assert [score.average for score in cycles.stored(path)] == names
    assert cycles.table_of(cycles.stored(path)).splitlines()[0] == "| average | sine |"
