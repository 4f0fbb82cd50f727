"""Test policies that learn in code of users and of river: after each block, resumed to the last bit, never fatal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from pydantic import ValidationError

from streameval import Evaluator, Report
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


def code(name: str, **options: Any) -> dict[str, Any]:
    return {**EVERY["python"], "target": f"support.coded_policies:{name}", "options": options}


def failures(report: Report, policy: str = "apprentice") -> dict[str, tuple[int, str]]:
    (own,) = (counts for counts in report.policies if counts.policy == policy)
    return {failure.reason: (failure.count, failure.example) for failure in own.failures}


def test_code_that_exits_while_it_learns_is_counted_with_its_reason() -> None:
    report = evaluated(code("Exiting"), log(450)).report()
    (learner,) = report.learners
    assert (learner.failures, report.policies[1].missing) == (400, 0)
    assert failures(report) == {"not_learned": (4, "SystemExit: 3")}


def two_of(policy: Any, **sections: Any) -> Evaluator:
    """Return an evaluator of a policy that learns, with frozen copies, next to an honest one."""
    frozen = {"kind": "versions_of", "policy": "apprentice", "every": 100, "keep": 1}
    candidates = {"apprentice": policy, "frozen": frozen, "honest": EVERY["python"]}
    settings: dict[str, Any] = {"estimators": ["ips"], "averages": ["cumulative"], "drift": "off"} | sections
    return Config.model_validate({"policies": {"candidates": candidates}, **settings}).evaluator()


@pytest.mark.parametrize(
    ("policy", "reason", "copies"),
    [
        (code("Locked", later=True), "not_copied", 0),
        (code("Exiting"), "not_written", 1),
        (code("Unwritable"), "not_written", 1),
    ],
)
def test_a_frozen_copy_that_code_spoils_is_counted_and_changes_no_other_candidate(
    policy: Any, reason: str, copies: int
) -> None:
    evaluator, alone = two_of(policy), evaluated(EVERY["python"], log(250))
    evaluator.update(log(250))
    report = evaluator.report()
    made = evaluator.take_versions()
    assert [version.file for version in made] == [None] * 2 * copies
    assert failures(report)[reason][0] == 2
    assert value(report, "honest") == value(alone.report())


@pytest.mark.parametrize(
    ("policy", "reason", "example"),
    [
        (code("Locked", later=True), "not_saved", "cannot be saved: TypeError: cannot pickle '_thread.lock' object"),
        (code("Unloadable"), "not_loaded", "cannot be loaded: SystemExit: no licence"),
    ],
)
def test_code_that_cannot_be_saved_or_loaded_learns_again_and_its_estimates_continue(
    policy: Any, reason: str, example: str
) -> None:
    evaluator, whole = two_of(policy), two_of(policy)
    evaluator.update(log(250))
    state, named = packed(evaluator), evaluator.config.computed_policies
    resumed = Evaluator.from_state(state, candidates=named)
    assert failures(resumed.report())[reason] == (1, f"a policy that learns {example}")
    resumed.update(log(250, seed=2))
    whole.update(log(250))
    whole.update(log(250, seed=2))
    assert resumed.report().policies[1].events + resumed.report().policies[1].missing == 500
    assert value(resumed.report(), "honest") == value(whole.report(), "honest")


def test_a_copy_that_fails_costs_the_events_of_the_unfinished_block() -> None:
    report = evaluated(code("Locked", later=True), log(150)).report()
    assert (report.policies[1].events, report.policies[1].missing) == (100, 50)


@pytest.mark.parametrize(
    ("policy", "option", "problem"),
    [
        ({**EVERY["python"], "target": "support.coded_policies:favourite"}, "target", "has no predict and no learn"),
        ({**EVERY["python"], "target": "support.coded_policies:absent"}, "target", "has no function absent"),
        ({**EVERY["python"], "target": "support.coded_policies:Locked"}, "target", "cannot be copied and saved"),
        ({"kind": "python", "target": "support.coded_policies:broken"}, "target", "RuntimeError: no model file"),
        ({"kind": "python", "target": "sys:exit"}, "target", "sys:exit fails with the options {}: SystemExit"),
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
