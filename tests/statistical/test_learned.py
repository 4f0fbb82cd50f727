"""Test that policies and rankers that learn become better than the logging policy, and follow the world."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streameval import Evaluator
from streameval.ope.learning.learned import Learned
from streameval.ope.learning.learned_ranker import LearnedRanker
from streameval.ope.learning.linear_bandit import LinearBandit
from support import ranking_worlds as worlds
from support.learned_policies import EVERY, evaluated, value
from support.learning import ACTIONS, WIDTH, log


@pytest.mark.parametrize("name", EVERY)
def test_a_policy_that_learns_becomes_better_than_the_logging_policy(name: str) -> None:
    report = evaluated(EVERY[name], log(6_000)).report()
    logging = report.get("logging", "ips", "cumulative").value or 1.0
    if name != "per action":  # the position of an action means nothing in this log
        assert value(report) > logging + 0.1
    assert report.get("apprentice", "ips", "cumulative").importance_weight_mean == pytest.approx(1, abs=0.1)


def test_a_policy_that_forgets_follows_a_world_that_turns_around() -> None:
    batch, values = log(12_000), []
    turned = log(12_000, seed=2)
    turned = log(12_000, seed=2, reward=1 - turned.reward)
    for policy in (Learned(step=0.05), Learned(step=0.05, horizon=1_000)):
        evaluator = evaluated(policy, batch)
        evaluator.fold_pending()
        before = value(evaluator.report())
        evaluator.update(turned)
        values.append(2 * value(evaluator.report()) - before)
    assert values[1] > values[0]


@pytest.mark.slow
def test_averaged_weights_of_long_steps_that_fade_earn_more_and_vary_less() -> None:
    features, values = np.random.default_rng(0).normal(size=(5_000, ACTIONS, WIDTH)), []
    chance = 1 / (1 + np.exp(-2 * features @ np.array([1.0, -1.0, 0.5])))
    policies = {name: Learned(step=1.0, horizon=3_000, average=name == "mean") for name in ("last", "mean")}
    for seed in range(12):
        made = Evaluator(policies, estimators=["ips"], averages=["cumulative"], promotion=None, drift=None)
        made.update(log(12_000, seed=10 + seed))
        powers = [np.exp(features @ policy.weights_of(made.learned(name))[0]) for name, policy in policies.items()]
        values.append([((power / power.sum(axis=1, keepdims=True)) * chance).sum(axis=1).mean() for power in powers])
    (last, mean), (spread, spread_of_means) = np.mean(values, axis=0), np.std(values, axis=0)
    assert mean > last
    assert spread_of_means < 0.5 * spread


def ranking(policy: LearnedRanker) -> Evaluator:
    options = {"averages": ["cumulative"], "drift": None, "promotion": None, "ranking": worlds.LINEAR}
    return Evaluator({"ranker": policy}, estimators=["click_ips"], **options)


@pytest.mark.parametrize("loss", ["hinge", pytest.param("dcg", marks=pytest.mark.slow)])
def test_a_ranker_comes_within_a_hundredth_of_the_best_linear_one(loss: Any) -> None:
    for seed in range(2):
        best, production = worlds.scorers(seed)
        learner = ranking(LearnedRanker(loss=loss))
        for part in range(20):
            learner.update(worlds.featured(5_000, (seed, part), best, production)[0])
        weights = learner.learned("ranker")["weights"][0]
        _, features, attractive = worlds.featured(20_000, 1_000 + seed, best, production)
        values = [worlds.worth(features, attractive, scorer).mean() for scorer in (weights, best, production)]
        assert values[0] > values[1] - 0.01
        assert values[1] - values[2] > 0.1


@pytest.mark.slow
def test_the_interval_of_the_lift_contains_the_mean_lift_of_the_rankers_of_all_blocks() -> None:
    covered, block = 0, 100
    for seed in range(40):
        best, production = worlds.scorers(seed)
        batch, features, attractive = worlds.featured(5_000, seed, best, production)
        learner, lifts = ranking(LearnedRanker(step=0.02)), []
        for first in range(0, 5_000, block):
            weights = learner.learned("ranker")["weights"]
            scorer = weights[0] if len(weights) else np.zeros(worlds.WIDTH)
            page = slice(first, first + block)
            values = [worlds.worth(features[page], attractive[page], one) for one in (scorer, production)]
            lifts.append((values[0] - values[1]).mean())
            learner.update(batch[page])
        row = learner.report().get("ranker", "click_ips", "cumulative")
        assert row.lift_lower is not None
        assert row.lift_upper is not None
        covered += row.lift_lower <= np.mean(lifts) <= row.lift_upper
    assert covered >= 36


def test_replayed_own_choices_of_linucb_have_its_value_online() -> None:
    replayed, online, own = [], [], 300
    for seed in range(20):
        learner = evaluated(LinearBandit(learns_from="own"), log(10 * own, seed))
        replayed.append(learner.report().learners[0].accepted_value or 0.0)
        online.append(played(seed, own))
    difference = np.mean(replayed) - np.mean(online)
    error = np.sqrt((np.var(replayed, ddof=1) + np.var(online, ddof=1)) / 20)
    assert abs(difference) <= 2 * error
    assert error < 0.01
    assert np.mean(replayed) > np.mean(log(10_000).reward) + 0.1


def played(seed: int, events: int) -> float:
    """Return the mean reward of LinUCB that plays the bandit of `log` itself."""
    rng = np.random.default_rng([seed, 1])
    precision, moment, earned = np.eye(WIDTH), np.zeros(WIDTH), 0.0
    for _ in range(events):
        features = rng.normal(size=(ACTIONS, WIDTH))
        inverse = np.linalg.inv(precision)
        spread = (features @ inverse * features).sum(axis=1)
        best = features[np.argmax(features @ inverse @ moment + np.sqrt(spread))]
        reward = float(rng.random() < 1 / (1 + np.exp(-2 * best @ np.array([1.0, -1.0, 0.5]))))
        precision, moment, earned = precision + np.outer(best, best), moment + reward * best, earned + reward
    return earned / events
