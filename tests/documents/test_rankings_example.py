"""Check what the stored results of `examples/rankings` show, and run a small world."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest

from support.paths import ROOT
from support.scripts import importable

EXAMPLE = ROOT / "examples" / "rankings"
RESULTS = json.loads((EXAMPLE / "results.json").read_text())
LEARNING = json.loads((EXAMPLE / "learning.json").read_text())
BIASES = json.loads((EXAMPLE / "biases.json").read_text())


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    with importable(EXAMPLE):
        yield import_module("study")


@pytest.mark.parametrize("model", RESULTS["errors"])
def test_errors_of_lifts_fall_with_the_square_root_of_the_clicks_and_those_of_plain_clicks_do_not(model: str) -> None:
    results = RESULTS["errors"][model]
    exponents = {
        name: np.polyfit(np.log(results["clicks"]), np.log(results[name]), 1)[0] for name in ("corrected", "naive")
    }
    assert exponents["corrected"] == pytest.approx(-0.5, abs=0.05)
    assert exponents["naive"] == pytest.approx(0.0, abs=0.02)
    assert results["naive"][-1] > 10 * results["corrected"][-1]
    assert results["covered"] > 0.9


def test_the_ranker_trained_on_weighted_clicks_is_judged_better_than_that_of_plain_clicks_and_it_is() -> None:
    judged = RESULTS["lifts"]["position-biased"]
    weighted, plain = judged["weighted clicks"], judged["clicks"]
    assert weighted["truth"] > plain["truth"] > 0
    assert weighted["corrected"][0] > plain["corrected"][0]
    assert weighted["corrected"][1] > 0
    assert weighted["naive"][2] < 0, "plain clicks turn the sign round"


def test_intervals_contain_the_mean_lift_of_rankers_while_they_learn_and_weighted_clicks_teach_more() -> None:
    models = [*LEARNING.values(), *({name: row[name] for name in ("hinge", "dcg")} for row in BIASES)]
    rows = [row for model in models for name, row in model.items() if name != "grades"]
    assert len(rows) == 12 + 60
    assert sum(row["estimate"][1] <= row["truth"] <= row["estimate"][2] for row in rows) >= 0.9 * len(rows)
    for model in ("perfect", "position-biased"):
        assert LEARNING[model]["hinge"]["last"] > LEARNING[model]["hinge, plain clicks"]["last"] > 0


def test_rankers_gain_from_clicks_with_position_bias_and_harm_users_with_noise() -> None:
    for clicks, gamma, shown in {(row["clicks"], row["gamma"], row["shown"]) for row in BIASES}:
        rows = [row for row in BIASES if (row["clicks"], row["gamma"], row["shown"]) == (clicks, gamma, shown)]
        for lifts in np.array(
            [[row[name][lift] for name in ("hinge", "dcg") for lift in ("last", "others")] for row in rows]
        ).T:
            error = lifts.std(ddof=1) / len(rows) ** 0.5
            assert lifts.mean() < 2 * error if clicks == "near random" else lifts.mean() > 3 * error


@pytest.mark.slow
def test_a_stored_row_of_steeper_looks_and_shorter_pages_is_computed_again(study: ModuleType) -> None:
    (stored,) = (
        row for row in BIASES if (row["gamma"], row["shown"], row["seed"]) == (2, 10, 5) and row["clicks"][0] == "p"
    )
    data, learning = study.Queries.read(study.DATA), import_module("learning")
    again = learning.learned(data.part(0, 2), data.part(1, 2), stored["clicks"], ("dcg",), 2.0, 10)
    for name, number in again["dcg"].items():
        assert number == pytest.approx(stored["dcg"][name], rel=0.01)


def test_a_new_layout_fails_the_trust_check_and_no_old_one_does() -> None:
    layout = RESULTS["layout"]
    assert layout["false_alarms"] == 0
    assert 0 < layout["noticed_after"] <= 10_000


@pytest.mark.slow
def test_the_value_of_a_ranker_is_the_mean_of_what_its_pages_are_worth(study: ModuleType) -> None:
    queries = study.Queries.read(study.DATA).part(0, 20)
    assert (queries.count, len(queries.grade)) == (11, queries.start[-1])
    ranks = queries.ranks(np.ones(300))
    attractive = np.array(study.CLICKS["perfect"])[queries.grade]
    asked, clicked = study.Traffic(queries, ranks, attractive, eta=0.0).clicks(20_000, np.random.default_rng(1))
    batch = study.Traffic(queries, ranks, attractive).batch(asked, clicked, {"same": ranks})
    learner = study.evaluator(["same"], 0.0)
    learner.update(batch)
    row = learner.report().get("same", "click_ips", "cumulative")
    assert row.lift == pytest.approx(0, abs=1e-12)
    assert row.lower < queries.value(ranks, attractive) < row.upper


@pytest.mark.slow
def test_weighted_pairs_teach_a_ranker_what_the_weights_say(study: ModuleType) -> None:
    features = np.zeros((4, 300))
    features[[0, 2], 0] = features[[1, 3], 1] = 1.0
    queries = study.Queries(features, np.array([1, 0, 1, 0]), np.array([0, 2, 4]))
    for gains, better in (([1.0, 0.0, 1.0, 0.0], 0), ([1.0, 0.0, 0.0, 5.0], 1)):
        weights = study.trained(queries, np.array(gains), [0, 1])
        assert weights.argmax() == better
