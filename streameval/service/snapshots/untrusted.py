"""States rid of code that nobody here has named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from streameval.common.arrays import State
from streameval.ope.evaluator.cohorts import CohortEvaluator, cells_of, needs_model, require_schema
from streameval.ope.evaluator.plan import Candidates, Plan
from streameval.ope.policies import AnyPolicy, Logged, PythonPolicy, named_policies
from streameval.ope.reward_models import AnyRewardModel, Ridge, online

_REWARD_MODEL: TypeAdapter[Any] = TypeAdapter(AnyRewardModel)


def roster_from(
    state: State, reward_model: AnyRewardModel | None = None, candidates: Candidates = ()
) -> CohortEvaluator:
    """The roster of a state; StateError if it cannot be read.

    Code that is not named here is not run: policies lose their rows unless `candidates` are none at all, which is for
    who only wants to look; and so do estimators whose reward model is another one's code.
    """
    require_schema(state)
    members = [_without_code(member, reward_model, named_policies(candidates)) for member in state["members"]]
    return CohortEvaluator.from_state({**state, "members": members}, reward_model, candidates)


def _without_code(member: State, reward_model: AnyRewardModel | None, named: Mapping[str, AnyPolicy]) -> State:
    """The state with other policies in the place of code that is not named."""
    settings = member["evaluator"]["settings"]
    policies = named_policies(settings["candidates"])
    strange = {name for name, each in policies.items() if isinstance(each, PythonPolicy) and named.get(name) != each}
    if strange:
        candidates = {name: Logged() if name in strange else each for name, each in policies.items()}
        kept = [name for name in member["policies"] if name not in strange or not named]
        member = {**member, "policies": kept, "evaluator": _with_settings(member, candidates=candidates)}
    model = _REWARD_MODEL.validate_python(settings["reward_model"])
    return _without_model(member) if model.foreign and model != reward_model else member


def _without_model(member: State) -> State:
    evaluator = _with_settings(member, reward_model={"kind": "ridge"})
    evaluator["predictions"] = online.to_state(Ridge(), online.start(Ridge()))
    plan = Plan.from_settings(evaluator["settings"])
    cells = cells_of(plan)
    before = cells.keys() if member.get("cells") is None else {(cell[0], cell[1]) for cell in member["cells"]}
    kept = [list(cell) for cell, (estimator, *_) in cells.items() if cell in before and not needs_model(estimator)]
    return {**member, "cells": kept, "evaluator": evaluator}


def _with_settings(member: State, **settings: Any) -> State:
    return {**member["evaluator"], "settings": {**member["evaluator"]["settings"], **settings}}
