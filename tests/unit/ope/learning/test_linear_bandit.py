"""Test linear bandits, and policies that learn from their own choices, against loops over single events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streameval import Evaluator, EventBatch, LinearBandit
from streameval.common.problems import ProblemsError
from streameval.ope.learning.learned import Learned
from streameval.ope.policies.river import RiverPolicy
from support.learned_policies import evaluated, value
from support.learning import ACTIONS, WIDTH, log

OWN = {
    "linucb": LinearBandit(learns_from="own"),
    "disjoint": LinearBandit(learns_from="own", per_action=True),
    "thompson": LinearBandit("thompson", learns_from="own", epsilon=0.1),
    "epsilon-greedy": LinearBandit("epsilon_greedy", epsilon=0.2, learns_from="own", own_limit=2.0),
    "learned": Learned(learns_from="own", own_limit=3.0),
    "river": RiverPolicy("bandit.LinUCBDisjoint", epsilon=0.3, learns_from="own"),
}
BANDITS = [name for name, policy in OWN.items() if isinstance(policy, LinearBandit)]


def columns(batch: EventBatch) -> tuple[Any, ...]:
    sets = batch.action_sets
    assert sets is not None
    assert sets.features is not None
    features = sets.features.values.reshape(len(batch), ACTIONS, WIDTH)
    return features, sets.index, batch.propensity, batch.reward


def distribution(policy: LinearBandit, model: list[Any], features: Any, steps: int) -> Any:
    """Return the distribution of one event, from `A` and `b` of each position."""
    own = [model[action if policy.per_action else 0] for action in range(ACTIONS)]
    if policy.algorithm == "thompson":
        shape = (len(model), WIDTH, 100)
        normal, best = np.random.default_rng(steps).standard_normal(shape), np.zeros(ACTIONS)
        left, sizes, _ = np.linalg.svd(np.linalg.inv(own[0][0]))
        factor = left * np.sqrt(sizes) @ left.T
        for draw in range(100):
            best[np.argmax(features @ (np.linalg.solve(*own[0]) + policy.width * factor @ normal[0, :, draw]))] += 0.01
    else:
        scores = np.array([x @ np.linalg.solve(*one) for x, one in zip(features, own, strict=True)])
        if policy.algorithm == "linucb":
            spread = [x @ np.linalg.solve(one[0], x) for x, one in zip(features, own, strict=True)]
            scores += policy.width * np.sqrt(spread)
        best = np.isclose(scores, scores.max(), rtol=1e-9, atol=0).astype(float)
        best /= best.sum()
    return policy.epsilon / ACTIONS + (1 - policy.epsilon) * best


def learned_by(policy: LinearBandit, model: list[Any], features: Any, action: int, reward: float) -> None:
    precision, moment = model[action if policy.per_action else 0]
    precision += np.outer(features[action], features[action])
    moment += reward * features[action]


def prior(policy: LinearBandit) -> list[Any]:
    return [(policy.l2 * np.eye(WIDTH), np.zeros(WIDTH)) for _ in range(ACTIONS if policy.per_action else 1)]


@pytest.mark.parametrize("algorithm", ["linucb", "thompson", "epsilon_greedy"])
@pytest.mark.parametrize("per_action", [False, True])
def test_a_bandit_regresses_all_events_of_the_blocks_before(algorithm: Any, per_action: bool) -> None:
    policy = LinearBandit(algorithm, width=0.5, epsilon=0.1, l2=2.0, per_action=per_action and algorithm != "thompson")
    batch, model, terms = log(400), prior(policy), []
    features, action, propensity, reward = columns(batch)
    for block in range(4):
        events = range(100 * block, 100 * block + 100)
        for event in events:
            chances = distribution(policy, model, features[event], block)
            terms.append(chances[action[event]] / propensity[event] * reward[event])
        for event in events:
            learned_by(policy, model, features[event], action[event], reward[event])
    assert value(evaluated(policy, batch).report()) == pytest.approx(np.mean(terms), rel=1e-9)


@pytest.mark.parametrize("algorithm", ["linucb", "thompson", "epsilon_greedy"])
@pytest.mark.parametrize("odd", [1.7e12, 1e100, 1e200, 1e300])
def test_features_that_depend_on_each_other_or_are_huge_leave_numbers(odd: float, algorithm: Any) -> None:
    """Milliseconds and hours of one time are singular in double precision. A huge feature teaches nothing."""
    rng, count = np.random.default_rng(3), 1_500
    seconds = odd + 10.0 * np.arange(count) if odd < 1e13 else np.where(np.arange(count) == 700, odd, 1.0)
    features = rng.normal(size=(count, ACTIONS, 3))
    features[..., 1], features[..., 2] = seconds[:, None], seconds[:, None] / 3600
    rewards = (features[np.arange(count), (action := rng.integers(0, ACTIONS, count)), 0] > 0).astype(float)
    uniform = np.full((count, ACTIONS), 1 / ACTIONS)
    batch = EventBatch.from_arrays(reward=rewards, action=action, propensities=uniform, features=features)
    made = evaluated(LinearBandit(algorithm), batch)
    row = made.report().get("apprentice", "ips", "cumulative")
    assert row.value is not None
    assert row.importance_weight_mean == pytest.approx(1, abs=0.15)
    assert row.value > 0.6, "it has learned from the other events"


@pytest.mark.parametrize("name", BANDITS)
def test_a_bandit_replays_its_own_choices_event_by_event(name: str) -> None:
    policy, terms, weights, earned, usable = OWN[name], [], [], [], 0
    assert isinstance(policy, LinearBandit)
    batch, model = log(400), prior(policy)
    features, action, propensity, reward = columns(batch)
    for event in range(400):
        chances = distribution(policy, model, features[event], len(weights))
        terms.append(chances[action[event]] / propensity[event] * reward[event])
        usable += 1
        relative = chances[action[event]] / (policy.own_limit * propensity[event])
        if drawn(event + 1) < relative:
            weights.append(max(1.0, relative))
            earned.append(reward[event] * weights[-1])
            learned_by(policy, model, features[event], action[event], reward[event])
    report = evaluated(policy, batch).report()
    (row,) = report.learners
    assert value(report) == pytest.approx(np.mean(terms), rel=1e-9)
    assert row.steps == len(weights)
    assert row.accepted_share == pytest.approx(len(weights) / usable)
    assert row.accepted_effective == pytest.approx(sum(weights) ** 2 / np.square(weights).sum())
    assert row.accepted_value == pytest.approx(sum(earned) / sum(weights))


def drawn(number: int) -> float:
    """Return the draw of an event: splitmix64 of its mixed number and of the mixed seed, which is 1."""

    def mixed(word: int) -> int:
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
        return word ^ (word >> 31)

    return (mixed((mixed(number) + mixed(1)) % 2**64) >> 11) * 2.0**-53


@pytest.mark.parametrize("name", OWN)
def test_cuts_and_resumption_change_no_own_choice(name: str) -> None:
    if name == "river":
        pytest.importorskip("river")
    batch, whole = log(1_250), evaluated(OWN[name], log(1_250))
    cut = evaluated(OWN[name], *(batch[first : first + 70] for first in range(0, 1_250, 70)))
    resumed = evaluated(OWN[name], batch[:630])
    resumed = Evaluator.from_state(resumed.state(), None, {"apprentice": OWN[name]})
    resumed.update(batch[630:])
    (row,) = whole.report().learners
    assert row.accepted_share is not None
    assert 0.03 < row.accepted_share < 0.6
    assert cut.report() == whole.report()
    assert resumed.report() == whole.report()


@pytest.mark.parametrize("name", ["learned", "river"])
def test_without_an_accepted_event_nothing_is_learned(name: str) -> None:
    if name == "river":
        pytest.importorskip("river")
    policy = replace(OWN[name], own_limit=1e6)
    (row,) = evaluated(policy, log(500)).report().learners
    assert (row.steps, row.accepted_share, row.accepted_value) == (0, 0.0, None)


def test_frozen_copies_of_a_replayed_policy_do_not_learn() -> None:
    candidates = {"own": OWN["linucb"], "frozen": {"kind": "versions_of", "policy": "own", "every": 500, "keep": 1}}
    evaluator = Evaluator(candidates, estimators=["ips"], averages=["cumulative"], drift=None)
    evaluator.update(log(1_250))
    resumed = Evaluator.from_state(evaluator.state())
    rows = {row.policy: row for row in resumed.report().learners}
    assert rows["own"].accepted_share is not None
    assert rows["frozen-2"].accepted_share is None
    assert resumed.report() == evaluator.report()


def test_events_without_features_are_missing_for_a_bandit_alone() -> None:
    batch = log(200)
    sets = batch.action_sets
    assert sets is not None
    report = evaluated(LinearBandit(), replace(batch, action_sets=replace(sets, features=None))).report()
    assert report.get("apprentice", "ips", "cumulative").value is None


@pytest.mark.parametrize("options", [{"own_limit": 0.5}, {"learns_from": "none"}, {"algorithm": "ucb"}, {"l2": 0.0}])
def test_options_out_of_range_are_refused(options: Any) -> None:
    with pytest.raises(ProblemsError):
        Evaluator({"bandit": {"kind": "linear_bandit", **options}})
