"""Test the policy of the reward model: its distributions, its order of prediction and learning, and its needs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streameval import DM, DR, Evaluator, Learned, OfRewardModel, PythonModel, Ridge, Tabular
from streameval.common.problems import ProblemsError
from streameval.errors import ConfigError
from streameval.events import ActionSets, EventBatch
from streameval.ope.policies.base import Log
from streameval.ope.power import LogSummary

ACTIONS, WIDTH = 4, 3
EVERY = {
    "greedy": OfRewardModel(),
    "epsilon": OfRewardModel(epsilon=0.2),
    "softmax": OfRewardModel(temperature=0.1),
    "both": OfRewardModel(epsilon=0.1, temperature=0.05),
    "dr": Learned(objective="dr"),
    "cab": Learned(objective="cab", clip=2.0),
}


def log(events: int, seed: int = 1, **changes: Any) -> EventBatch:
    """Draw a log of a bandit with a mean reward that is linear in the features of the action."""
    rng = np.random.default_rng(seed)
    features = rng.uniform(-0.5, 0.5, size=(events, ACTIONS, WIDTH))
    chance = 0.5 + features @ np.array([0.4, -0.4, 0.1])
    propensities = np.full((events, ACTIONS), 1 / ACTIONS)
    action = rng.integers(ACTIONS, size=events)
    reward = (rng.random(events) < chance[np.arange(events), action]).astype(float)
    columns = {"reward": reward, "action": action, "propensities": propensities, "features": features}
    return EventBatch.from_arrays(**{**columns, **changes})


def evaluated(policy: Any, *batches: EventBatch, **options: Any) -> Evaluator:
    chosen: dict[str, Any] = {"estimators": ["ips"], "averages": ["cumulative"], "drift": None, **options}
    evaluator = Evaluator({"apprentice": policy}, **chosen)
    for batch in batches:
        evaluator.update(batch)
    return evaluator


def value(evaluator: Evaluator, estimator: str = "ips") -> float | None:
    return evaluator.report().get("apprentice", estimator, "cumulative").value


def chosen(policy: OfRewardModel, prediction: list[float], *sizes: int) -> tuple[list[float], dict[int, Any]]:
    """Return distributions over events of these numbers of actions. The first action of each is logged."""
    numbers, index = np.array(sizes), np.where(np.array(sizes) > 0, 0, -1)
    offsets = np.concatenate([[0], np.cumsum(numbers)])
    sets = ActionSets(offsets, index, np.full(numbers.sum(), 0.5), None, np.empty((0, numbers.sum())).T)
    ones = np.ones(len(sizes))
    (rows, faults), _ = policy.fold({}, Log(sets, ones, ones, ones, 100, np.array(prediction)))
    return rows.tolist(), faults


def test_greedy_takes_the_best_action_or_shares_between_several_best_ones() -> None:
    rows, faults = chosen(OfRewardModel(), [0.1, 0.3, 0.0, 0.2, 0.2, 0.2 + 1e-12], 2, 0, 4)
    assert rows == pytest.approx([0, 1, 0, 1 / 3, 1 / 3, 1 / 3])
    assert faults == {}


def test_epsilon_is_spread_over_all_actions_and_temperature_over_the_better_ones() -> None:
    assert chosen(OfRewardModel(epsilon=0.3), [0.1, 0.3, 0.2], 3)[0] == pytest.approx([0.1, 0.8, 0.1])
    powers = np.exp(np.array([0.1, 0.3, 0.2]) / 0.5)
    actual, _ = chosen(OfRewardModel(temperature=0.5), [0.1, 0.3, 0.2], 3)
    assert actual == pytest.approx(powers / powers.sum())
    mixed, _ = chosen(OfRewardModel(epsilon=0.3, temperature=0.5), [0.1, 0.3, 0.2], 3)
    assert mixed == pytest.approx(0.1 + 0.7 * powers / powers.sum())


def test_an_event_without_a_prediction_is_missing_and_no_other() -> None:
    rows, faults = chosen(OfRewardModel(epsilon=0.1), [0.1, 0.3, np.nan, 0.2], 2, 2)
    assert rows[:2] == pytest.approx([0.05, 0.95])
    assert np.isnan(rows[2:]).all()
    assert list(faults) == [1]


def test_rewards_below_zero_have_a_best_action() -> None:
    assert chosen(OfRewardModel(), [-0.5, -0.2, -0.9], 3)[0] == [0, 1, 0]


def test_the_first_block_is_uniform_and_later_ones_are_better_than_the_logging_policy() -> None:
    batch = log(6_000)
    uniform = evaluated("uniform", batch[:100])
    assert value(evaluated(OfRewardModel(), batch[:100])) == pytest.approx(value(uniform), rel=1e-12)
    evaluator = evaluated(OfRewardModel(), batch)
    logging = evaluator.report().get("logging", "ips", "cumulative").value
    assert (value(evaluator) or 0) > (logging or 1) + 0.1
    assert evaluator.report().get("apprentice", "ips", "cumulative").importance_weight_mean == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("model", [Ridge(), Tabular()])
@pytest.mark.parametrize("name", EVERY)
def test_a_reward_does_not_touch_predictions_of_its_own_block(name: str, model: Any) -> None:
    batch = log(300)
    other = log(300, reward=np.where(np.arange(300) < 200, batch.reward, 1 - batch.reward))
    actual = [evaluated(EVERY[name], events, reward_model=model).report() for events in (batch, other)]
    means = [report.get("apprentice", "ips", "cumulative").importance_weight_mean for report in actual]
    assert means[0] == means[1]


def test_the_model_is_the_one_that_dr_uses_and_learns_each_event_once() -> None:
    batch = log(2_000)
    among = evaluated(OfRewardModel(), batch, estimators=["ips", DR()])
    logged = {"apprentice": np.full((2_000, ACTIONS), 1 / ACTIONS)}
    alone = Evaluator(["apprentice"], estimators=["ips", DR()], averages=["cumulative"], drift=None)
    alone.update(log(2_000, policies=logged))
    one, other = (instance.state()["predictions"][0]["model"] for instance in (among, alone))
    assert one == other
    model, compared = (instance.report().reward_model for instance in (among, alone))
    assert model == compared
    assert model is not None


def test_a_policy_of_the_model_has_the_value_that_the_model_expects_of_its_best_actions() -> None:
    evaluator = evaluated(OfRewardModel(), log(6_000), estimators=["ips", DM()])
    assert value(evaluator, "dm") == pytest.approx(value(evaluator, "ips"), abs=0.05)


def test_a_model_without_features_serves_events_without_features() -> None:
    batch = log(4_000, features=None, reward=(log(4_000).action_sets.index == 2).astype(float))  # type: ignore[union-attr]
    evaluator = evaluated(OfRewardModel(), batch, reward_model=Tabular())
    assert value(evaluator) == pytest.approx(1, abs=0.1)
    lacking = evaluated(OfRewardModel(), batch).report().policies[1]
    assert lacking.missing == 4_000
    assert [(failure.reason, failure.count) for failure in lacking.failures] == [("missing_field", 4_000)]


def test_the_goal_of_several_rewards_decides_the_action() -> None:
    batch = log(3_000)
    rewards = {"click": {"max": 1}, "buy": {"max": 1}}
    several = Evaluator({"apprentice": OfRewardModel()}, ["ips"], ["cumulative"], rewards=rewards, drift=None)
    several.update(log(3_000, rewards={"buy": 1 - batch.reward}))
    actual = {row.reward: row.value for row in several.report().estimates if row.policy == "apprentice"}
    alone = evaluated(OfRewardModel(), batch)
    assert actual["click"] == pytest.approx(value(alone), rel=1e-9)
    assert actual["buy"] == pytest.approx(1 - (value(alone) or 0), abs=0.1)


class Counting:
    """Count the events that a reward model in code is given."""

    def __init__(self) -> None:
        self.taught = 0

    def predict(self, features: np.ndarray) -> np.ndarray:
        return features[:, 0]

    def learn(self, features: np.ndarray, reward: np.ndarray) -> None:
        self.taught += len(reward)


MADE: list[Counting] = []


def counting() -> Counting:
    MADE.append(Counting())
    return MADE[-1]


def test_a_model_in_code_is_taught_every_event_once_whatever_is_asked_meanwhile() -> None:
    evaluator = evaluated(OfRewardModel(), reward_model=PythonModel(target=f"{__name__}:counting"))
    batch = log(1_000)
    MADE.clear()
    evaluator.missing_fields(batch[:200])
    for first in range(0, 1_000, 50):
        evaluator.update(batch[first : first + 50])
        evaluator.fold_pending()
        evaluator.report()
    taught = sorted(model.taught for model in MADE)
    assert taught[-2:] == [200, 1_000], "those of the question and of the stream"


def test_another_reward_model_makes_another_policy() -> None:
    batch = log(1_000)
    before = evaluated(OfRewardModel()).config
    changing = Evaluator.from_config(before)
    changing.update(batch)
    changed = evaluated(OfRewardModel(), reward_model=Tabular()).config
    late = changing.apply_config(changed)
    assert late is not None
    assert late.policies == ("logging", "apprentice")
    kept = Evaluator.from_config(before)
    kept.update(batch)
    assert kept.apply_config(evaluated(OfRewardModel()).config) is None


def test_a_state_with_a_foreign_model_forgets_the_policies_that_need_it() -> None:
    mine = PythonModel(target=f"{__name__}:counting")
    candidates = {"apprentice": OfRewardModel(), "plain": Learned()}
    config = Evaluator(candidates, ["ips"], ["cumulative"], reward_model=mine, drift=None).config
    changing = Evaluator.from_config(config)
    changing.update(log(500))
    resumed = Evaluator.from_state(changing.state(), None, candidates, without_code=True)
    assert resumed.policies == ("logging", "plain")
    trusted = Evaluator.from_state(changing.state(), mine, candidates, without_code=True)
    assert trusted.policies == ("logging", "apprentice", "plain")


def test_a_removed_candidate_leaves_the_model_to_the_others() -> None:
    batch = log(1_000)
    one = evaluated(OfRewardModel(), batch)
    two = Evaluator({"other": Learned(), "apprentice": OfRewardModel()}, ["ips"], ["cumulative"], drift=None)
    two.update(batch[:600])
    assert two.apply_config(evaluated(OfRewardModel()).config) is None
    two.update(batch[600:])
    assert value(two) == pytest.approx(value(one), rel=1e-9)


def test_a_configuration_of_an_experiment_refuses_the_policy_of_a_reward_model() -> None:
    with pytest.raises(ConfigError, match="apprentice learns from the stream"):
        LogSummary(("logging", "apprentice"), {"apprentice": OfRewardModel()}, (0.0, 1.0))


def test_settings_are_checked() -> None:
    for wrong in ({"epsilon": 1.1}, {"epsilon": -0.1}, {"temperature": -1}, {"scores": "scores"}):
        with pytest.raises(ProblemsError):
            OfRewardModel(**wrong)
