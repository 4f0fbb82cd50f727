"""Test the world of a list recommender: its truth is true, its log is fair, and examination can be learned from it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from streameval.simulation import ListWorld

KINDS = ["swaps", "shuffles"]
PAGES = 40_000
GAIN = 1 / np.log2(np.arange(2.0, 8.0))


@pytest.fixture(scope="module", params=KINDS)
def world(request: pytest.FixtureRequest) -> ListWorld:
    return ListWorld.synthetic(5, candidates=["a", "b"], exploration=0.4, interventions=request.param)


def test_the_value_of_every_policy_is_the_mean_gain_of_its_order(world: ListWorld) -> None:
    for cluster in range(world.clusters):
        pages = world.draw(np.full(PAGES, cluster), np.random.default_rng(6))
        attractive = world.attractiveness[cluster][pages.shown]
        ranks = np.concatenate([np.tile(np.arange(1, 7), (1, PAGES, 1)), pages.ranks])
        for policy, earned in enumerate((attractive * GAIN[ranks - 1]).sum(axis=2)):
            assert abs(earned.mean() - world.value[cluster, policy]) < 4 * earned.std() / np.sqrt(PAGES)


def test_each_candidate_is_better_than_production_for_its_cluster_and_worse_for_another(world: ListWorld) -> None:
    lifts = world.value[:, 1:] - world.value[:, :1]
    assert (np.diag(lifts) > 0).all()
    assert (lifts.min(axis=0) < 0).all()


def test_interventions_happen_as_often_as_stated(world: ListWorld) -> None:
    pages = world.draw(np.zeros(PAGES, dtype=int), np.random.default_rng(7))
    for shown in range(6):
        frequencies = np.bincount(pages.origin[:, shown], minlength=6) / PAGES
        np.testing.assert_allclose(frequencies, world.placement[:, shown], atol=0.012)
    own, later = np.moveaxis(pages.marginals(), -1, 0)
    assert (own > 0).all()
    assert (later[:, -1] == 0).all()
    assert (pages.swap > 0).mean() == pytest.approx(0.4 * (world.interventions == "swaps"), abs=0.012)


def test_without_interventions_production_shows_its_own_order() -> None:
    world = replace(ListWorld.synthetic(5, candidates=["a"]), exploration=0.0)
    pages = world.draw(np.zeros(100, dtype=int), np.random.default_rng(8))
    assert (np.diff(world.scores[0][pages.shown], axis=1) <= 0).all()
    assert world.candidates == ("a",)
    assert world.clusters == 2
