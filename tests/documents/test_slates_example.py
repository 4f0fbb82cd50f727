"""Run a small simulation of `examples/slates`: its exact parts exactly, and what its figures show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from itertools import permutations
from types import ModuleType

import numpy as np
import pytest

from streameval import Cumulative, Evaluator, EventBatch, PseudoInverse, WeightedPseudoInverse
from streameval.events.plackett_luce import draws
from support.paths import ROOT
from support.scripts import importable

EXAMPLE = ROOT / "examples" / "slates"


@pytest.fixture(scope="module")
def simulation() -> Iterator[ModuleType]:
    with importable(EXAMPLE):
        yield import_module("simulation")


@pytest.mark.slow
@pytest.mark.parametrize("peak", [0.0, 1.0])
def test_the_covariance_of_a_log_is_that_of_all_its_slates(simulation: ModuleType, peak: float) -> None:
    log = simulation.Log(simulation.world(3, 5, queries=2), peak)
    slates = np.array(list(permutations(range(5), 3)))
    shown = np.zeros((len(slates), 3, 5))
    np.put_along_axis(shown, slates[:, :, None], 1.0, axis=2)
    shown = shown.reshape(len(slates), -1)
    assert log.propensity(slates).sum() == pytest.approx(1)
    assert log.covariance == pytest.approx(np.einsum("s,si,sj->ij", log.propensity(slates), shown, shown))


@pytest.mark.parametrize(("slots", "actions"), [(10, 20), (5, 50)])
def test_integrals_for_long_rankings_equal_the_covariance_by_classes(
    simulation: ModuleType, slots: int, actions: int
) -> None:
    log = simulation.Log(simulation.world(slots, actions, queries=1), 1.0)
    single, joint = draws(log.weight[None], slots, pairs=True)
    assert joint is not None
    later = joint[0].reshape(slots * actions, -1)
    assert later + later.T + np.diag(single.ravel()) == pytest.approx(log.covariance, rel=1e-10, abs=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("peak", [0.0, 1.0])
def test_the_pseudo_inverse_is_unbiased_for_a_sum_over_slots_and_for_no_other(
    simulation: ModuleType, peak: float
) -> None:
    log = simulation.Log(simulation.world(3, 6, queries=8, seed=3), peak)
    additive = simulation.expected(log, simulation.ndcg)
    assert additive == pytest.approx(simulation.value(log.world, simulation.ndcg), rel=1e-9)
    other = simulation.expected(log, simulation.err)
    assert abs(other / simulation.value(log.world, simulation.err) - 1) > 0.001


@pytest.mark.slow
@pytest.mark.parametrize("peak", [0.0, 1.0])
def test_with_many_documents_the_weighted_pseudo_inverse_beats_ips_by_an_order_of_magnitude(
    simulation: ModuleType, peak: float
) -> None:
    log = simulation.Log(simulation.world(10, 100), peak)
    estimates = simulation.runs(log, simulation.ndcg, [100_000], count=3)
    errors = simulation.errors(estimates, simulation.value(log.world, simulation.ndcg))
    assert 10 * errors["wPI"][0] < errors["IPS"][0]
    assert 5 * errors["wPI"][0] < errors["DM"][0]
    assert errors["on-policy"][0] < errors["PI"][0] < 0.08


@pytest.mark.slow
def test_with_few_documents_errors_fall_with_the_root_of_the_events(simulation: ModuleType) -> None:
    log = simulation.Log(simulation.world(5, 10), 0.0)
    estimates = simulation.runs(log, simulation.ndcg, [2_000, 32_000], count=30)
    errors = simulation.errors(estimates, simulation.value(log.world, simulation.ndcg))
    for name in ("PI", "wPI", "on-policy"):
        assert 2.5 < errors[name][0] / errors[name][1] < 6, name


def test_the_evaluator_estimates_what_the_simulation_does(simulation: ModuleType) -> None:
    world = simulation.world(3, 6, queries=4)
    log, rng = simulation.Log(world, 0.0), np.random.default_rng(5)
    query = rng.integers(0, 4, 500)
    slate = log.draw(500, rng)
    reward, weight = simulation.ndcg(world, query, slate), log.pseudo_inverse(query, slate)
    target = np.zeros((500, 3, 6))
    np.put_along_axis(target, world.target[query][:, :, None], 1.0, axis=2)
    evaluator = Evaluator(["new"], estimators=[PseudoInverse(), WeightedPseudoInverse()], averages=[Cumulative()])
    evaluator.update(
        EventBatch.from_arrays(
            reward=reward,
            action=slate,
            propensities=np.full((500, 3, 6), 1 / 6),
            policies={"new": target},
            slate_logging="uniform_ranking",
        )
    )
    report = evaluator.report()
    assert report.get("new", "pseudo_inverse", "cumulative").value == pytest.approx((reward * weight).mean())
    weighted = report.get("new", "weighted_pseudo_inverse", "cumulative").value
    assert weighted == pytest.approx((reward * weight).sum() / weight.sum())


def test_a_model_of_slots_takes_out_noise_and_finds_most_of_the_gain(simulation: ModuleType) -> None:
    panels = json.loads((EXAMPLE / "results.json").read_text())["models"]["panels"]
    live = simulation.with_models(simulation.Log(simulation.world(5, 10), 0.0), [500, 1_000], count=2)
    for panel in (*panels.values(), live):
        assert np.diff(panel["share"]).min() > 0
    assert live["share"][-1] > 0.7
    for panel in panels.values():
        assert panel["share"][-1] > 0.95
        without = np.minimum(panel["pseudo_inverse"], panel["weighted_pseudo_inverse"])
        assert (np.array(panel["dr_pi"]) < 0.75 * without).all()
