"""Test policies that learn in code of users and of river: after each block, resumed to the last bit, never fatal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from pydantic import ValidationError

from streameval import Evaluator
from streameval.common.problems import problems_of
from streameval.config.model import Config
from streameval.errors import StateError
from streameval.events import EventBatch, RawFields
from streameval.ope.report import Report

ACTIONS = ["a", "b", "c"]
GAIN = {"contextual bandit": 0.25, "classes": 0.1, "two classes": 0.1, "random bandit": -0.1}
"""Least gain over the logging policy by kind. A policy that ignores the context gains little."""
TREE = {"model": "tree.HoeffdingTreeClassifier", "parameters": {"grace_period": 50}}
LINEAR = {
    "model": "multiclass.OneVsRestClassifier",
    "parameters": {"classifier": {"model": "linear_model.LogisticRegression"}},
}
EVERY: dict[str, dict[str, Any]] = {
    "python": {"kind": "python", "target": "support.coded_policies:Counting", "learns": True},
    "contextual bandit": {"kind": "river", "model": "bandit.LinUCBDisjoint", "epsilon": 0.1},
    "random bandit": {"kind": "river", "model": "bandit.EpsilonGreedy", "parameters": {"epsilon": 0.3, "seed": 7}},
    "tree": {"kind": "river", "epsilon": 0.1, **TREE},
    "classes": {"kind": "river", "epsilon": 0.1, **LINEAR},
    "two classes": {"kind": "river", "model": "linear_model.LogisticRegression"},
    "no probabilities": {"kind": "river", "model": "linear_model.PAClassifier", "epsilon": 0.2},
}


def log(events: int, seed: int = 1) -> EventBatch:
    """Draw users of two countries. `c` is best in one, and `a` in the other."""
    rng = np.random.default_rng(seed)
    country = rng.choice(["de", "fr"], events)
    propensities = rng.dirichlet(np.full(3, 5.0), events)
    action = (propensities.cumsum(axis=1) > rng.random((events, 1))).argmax(axis=1)
    best = np.where(country == "de", 2, 0)
    reward = rng.random(events) < np.where(action == best, 0.8, 0.2)
    batch = EventBatch.from_arrays(reward=reward, action=action, propensities=propensities)
    fields = [{"context": {"country": name}, "actions": ACTIONS} for name in country.tolist()]
    return replace(batch, raw_fields=RawFields(fields))


def evaluated(policy: Any, *batches: EventBatch) -> Evaluator:
    evaluator = Evaluator({"apprentice": policy}, estimators=["ips"], averages=["cumulative"], drift=None)
    for batch in batches:
        evaluator.update(batch)
    return evaluator


def value(report: Report, policy: str = "apprentice") -> float:
    return report.get(policy, "ips", "cumulative").value or 0.0


def packed(evaluator: Evaluator) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(evaluator.state()))


@pytest.mark.parametrize("name", EVERY)
def test_a_policy_in_code_becomes_better_than_the_logging_policy(name: str) -> None:
    report = evaluated(EVERY[name], log(3_000)).report()
    (learner,) = report.learners
    assert (learner.steps, learner.failures) == (30, 0)
    assert report.policies[1].failures == ()
    assert value(report) > value(report, "logging") + GAIN.get(name, 0.03)


@pytest.mark.parametrize("name", ["python", "contextual bandit", "random bandit", "tree", "classes"])
def test_a_frozen_copy_does_not_change(name: str) -> None:
    frozen = {"kind": "versions_of", "policy": "apprentice", "every": 400, "keep": 1}
    candidates = {"apprentice": EVERY[name], "frozen": frozen}
    settings: dict[str, Any] = {"estimators": ["ips"], "averages": ["cumulative"], "drift": "off"}
    config = Config.model_validate({"policies": {"candidates": candidates}, **settings}).evaluator_config()
    batch, cuts = log(650), ([650], [133, 133, 384])
    evaluators = []
    for sizes in cuts:
        changing, first = Evaluator.from_config(config), 0
        for size in sizes:
            changing.update(batch[first : first + size])
            first += size
        evaluators.append(changing)
        (made,) = changing.take_versions()
        assert made.file is None
    first_one = evaluators[0]
    one, other = (value(evaluator.report(), "frozen-1") for evaluator in evaluators)
    assert one == pytest.approx(other, rel=1e-12)
    trusted = Config.model_validate({"policies": {"candidates": candidates}, **settings}).policies.candidates
    assert Evaluator.from_state(packed(first_one), candidates=trusted).report() == first_one.report()
    with pytest.raises(StateError, match="runs only if the caller names it"):
        Evaluator.from_state(packed(first_one))
    first_one.fold_pending()
    shown = Evaluator.from_state(packed(first_one), without_code=True).report()
    (copied,) = (counts.events for counts in shown.policies if counts.policy == "frozen-1")
    assert copied == 200  # the unfinished block needs code


def test_a_reward_does_not_touch_predictions_of_its_own_block() -> None:
    batch = log(300)
    other = replace(batch, reward=np.where(np.arange(300) < 200, batch.reward, 1 - batch.reward))
    means = [
        evaluated(EVERY["python"], events).report().get("apprentice", "ips", "cumulative").importance_weight_mean
        for events in (batch, other)
    ]
    assert means[0] == means[1]


def test_events_that_a_policy_cannot_learn_from_are_counted_and_evaluated() -> None:
    report = evaluated({**EVERY["python"], "target": "support.coded_policies:Forgetful"}, log(450)).report()
    (learner,) = report.learners
    assert (learner.steps, learner.failures, report.policies[1].missing) == (4, 400, 0)


def test_a_policy_that_cannot_be_pickled_cannot_be_saved() -> None:
    evaluator = evaluated({**EVERY["python"], "target": "support.coded_policies:Unsaved"}, log(100))
    evaluator.fold_pending()
    with pytest.raises(StateError, match="a policy that learns cannot be saved"):
        evaluator.state()


@pytest.mark.parametrize(
    ("policy", "option", "problem"),
    [
        ({**EVERY["python"], "target": "support.coded_policies:favourite"}, "target", "has no predict and no learn"),
        ({**EVERY["python"], "target": "support.coded_policies:absent"}, "target", "has no function absent"),
        ({"kind": "river", "model": "linear_model.LinearRegression"}, "model", "neither a bandit nor a classifier"),
        ({"kind": "river", "model": "bandit.Absent"}, "model", "cannot be made with the parameters {}"),
    ],
)
def test_a_policy_that_cannot_be_made_is_refused(policy: dict[str, Any], option: str, problem: str) -> None:
    with pytest.raises(ValidationError) as error:
        Config.model_validate({"policies": {"candidates": {"apprentice": policy}}})
    (actual,) = problems_of(error.value, Config)
    assert actual.path == ("policies", "candidates", "apprentice", option)
    assert problem in actual.message
