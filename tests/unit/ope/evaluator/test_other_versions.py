"""Test that states of other versions are refused, and that other states run only code that the caller names."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import streameval as se
from streameval.errors import StateError
from streameval.events import JsonDecoder
from streameval.ope.core.state import STATE_SCHEMA
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.reward_models import PythonModel
from support.bandits import CANDIDATE, Bandit, logging_with
from support.messages import message


def changing() -> Evaluator:
    evaluator = se.Evaluator(["a"])
    batch = se.EventBatch.from_arrays(reward=np.ones(250), propensity=np.ones(250), policies={"a": np.ones(250)})
    evaluated = Evaluator.from_config(evaluator.config)
    evaluated.update(batch)
    return evaluated


def test_a_state_of_this_version_is_left_as_it_is() -> None:
    assert Evaluator.from_state(changing().state(), without_code=True).report() == changing().report()


@pytest.mark.parametrize(
    ("schema", "finding", "hint"),
    [
        (29, "schema 29; the oldest one that can be read is 30", "or start from zero"),
        (None, "schema None; the oldest one", "or start from zero"),
        (STATE_SCHEMA + 1, f"schema {STATE_SCHEMA + 1}, of a later version; this one reads up to", "or a later one"),
    ],
)
def test_a_state_of_an_early_or_a_later_version_is_refused(schema: int | None, finding: str, hint: str) -> None:
    state = changing().state()
    for read in (Evaluator.from_state, partial(Evaluator.from_state, without_code=True)):
        with pytest.raises(StateError, match=finding) as error:
            read({**state, "schema": schema})
        assert error.value.hint.endswith(hint)


def test_estimators_lose_their_rows_if_their_reward_model_is_code_that_is_not_named() -> None:
    model = PythonModel(target="support.own_models:Mean")
    world = Bandit(logging_with(0.1, 2, 1), np.full((1, 2), 0.5), np.array([[0.2, 0.8]]))
    evaluator = Evaluator.from_config(
        se.Evaluator([CANDIDATE], [se.IPS(), se.DR()], [se.Cumulative()], reward_model=model).config
    )
    evaluator.update(world.log(250, seed=1))
    state, report = evaluator.state(), evaluator.report()
    assert {row.estimator for row in report.estimates} == {"ips", "dr"}
    with pytest.raises(StateError):
        Evaluator.from_state(state)
    left = Evaluator.from_state(state, without_code=True).report()
    assert list(left.estimates) == [row for row in report.estimates if row.estimator == "ips"]
    assert Evaluator.from_state(state, model, without_code=True).report() == report
    described = Evaluator.describe(state)
    assert described["policies"] == ["logging", CANDIDATE]
    assert described["events"]["accepted"] == 250


def test_a_policy_in_code_that_is_not_named_loses_its_rows() -> None:
    coded = se.PythonPolicy("support.coded_policies:favourite")
    evaluator = Evaluator.from_config(
        se.Evaluator({"a": "logged", "coded": coded}, [se.IPS()], [se.Cumulative()]).config
    )
    sets = {"propensity": ..., "actions": ["a", "b"], "propensities": [0.5, 0.5], "context": {"likes": "b"}}
    evaluator.update(JsonDecoder(["a"]).decode_batch([message(1, **sets, policies={"a": [0.5, 0.5]})]))
    state, report = evaluator.state(), evaluator.report()
    left = Evaluator.from_state(state, candidates=["a"], without_code=True).report()
    assert list(left.estimates) == [row for row in report.estimates if row.policy != "coded"]
    assert Evaluator.from_state(state, candidates={"a": "logged", "coded": coded}, without_code=True).report() == report
