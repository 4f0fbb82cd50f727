"""States of other versions are refused."""

from __future__ import annotations

import numpy as np
import pytest

import streameval as se
from streameval.errors import StateError
from streameval.ope.evaluator.cohorts import CohortEvaluator


def cohorts() -> CohortEvaluator:
    evaluator = se.Evaluator(["a"])
    batch = se.EventBatch.from_arrays(reward=np.ones(250), propensity=np.ones(250), policies={"a": np.ones(250)})
    evaluated = CohortEvaluator(evaluator.plan)
    evaluated.update(batch)
    return evaluated


def test_a_state_of_this_version_is_left_as_it_is() -> None:
    assert CohortEvaluator.from_state_without_code(cohorts().state()).report() == cohorts().report()


@pytest.mark.parametrize("schema", [1, 2, None])
def test_a_state_of_another_version_is_refused(schema: int | None) -> None:
    state = cohorts().state()
    message = f"the state of the evaluator has schema {schema}, this version reads {state['schema']}"
    with pytest.raises(StateError, match=message):
        CohortEvaluator.from_state_without_code({**state, "schema": schema})
