"""Test that simulated logs agree with the truth that their world states."""

from __future__ import annotations

import numpy as np
import pytest

from streameval.events import EventBatch
from streameval.simulation import (
    Drift,
    Moment,
    World,
    simulate,
)

CANDIDATES = 4


@pytest.fixture(scope="module")
def world() -> World:
    return World.synthetic(3, clusters=CANDIDATES, users=80, items=300, likes=12)


@pytest.fixture(scope="module")
def softmax_world() -> World:
    return World.synthetic(3, clusters=CANDIDATES, users=80, items=300, likes=12, temperature=0.5)


@pytest.mark.parametrize("kind", ["greedy", "softmax"])
def test_the_value_of_every_policy_is_its_mean_reward(kind: str, world: World, softmax_world: World) -> None:
    played = world if kind == "greedy" else softmax_world
    random = np.random.default_rng(7)
    for cluster in range(played.clusters):
        items, index = played.offer(np.full(6_000, cluster), random)
        row = np.arange(len(items))
        for policy in range(1 + CANDIDATES):
            utility = played.scores[policy][items] / (0.5 if kind == "softmax" and policy else 1e-9)
            taken = (utility + random.gumbel(size=utility.shape)).argmax(axis=1)
            if policy == 0:
                taken = np.where(random.random(len(row)) < 0.2, random.integers(25, size=len(row)), taken)
            earned = taken == index
            assert abs(earned.mean() - played.value[cluster, policy]) < 3 * earned.std() / np.sqrt(len(row)) + 1e-9


def test_actions_are_taken_as_often_as_their_propensity(world: World) -> None:
    events = _concat(simulate(world, Drift("stationary", CANDIDATES), 20_000, seed=4))
    favourite = np.isclose(events.propensity, 0.808)
    assert np.isclose(events.propensity[~favourite], 0.008).all()
    assert favourite.mean() == pytest.approx(0.808, abs=4 * np.sqrt(0.808 * 0.192 / 20_000))


@pytest.mark.parametrize("kind", ["greedy", "softmax"])
def test_importance_weights_have_mean_one_and_weighted_rewards_the_value(
    kind: str, world: World, softmax_world: World
) -> None:
    played = world if kind == "greedy" else softmax_world
    drift = Drift("stationary", CANDIDATES)
    events = _concat(simulate(played, drift, 40_000, seed=5))
    weight = events.probabilities / events.propensity[:, None]
    if kind == "greedy":
        assert np.unique(weight.round(4)).tolist() == [0.0, 1.2376, 125.0]
    else:
        assert len(np.unique(weight.round(4))) > 5_000
    term = weight * events.reward[:, None]
    truth = played.value.mean(axis=0)[1:]
    assert (np.abs(weight.mean(axis=0) - 1) < 4 * weight.std(axis=0) / np.sqrt(len(events))).all()
    assert (np.abs(term.mean(axis=0) - truth) < 4 * term.std(axis=0) / np.sqrt(len(events))).all()


def _concat(moments: object) -> EventBatch:
    return EventBatch.concat([moment.events for moment in moments if isinstance(moment, Moment)])  # type: ignore[attr-defined]
