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
from support.coded_learners import EVERY, evaluated, log, value


def packed(evaluator: Evaluator) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(evaluator.state()))


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
