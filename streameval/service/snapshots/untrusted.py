"""States brought to the form of this version, and rid of code that nobody here has named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from streameval.common.arrays import State, from_plain, to_plain
from streameval.ope.averages.moments import MomentRow
from streameval.ope.evaluator.cohorts import CohortEvaluator, cells_of, needs_model
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evaluator.plan import Candidates, Plan
from streameval.ope.policies import AnyPolicy, Logged, PythonPolicy, named_policies
from streameval.ope.reward_models import AnyRewardModel, Ridge, online

MOMENTS_OF_1 = [row for row in MomentRow if row != MomentRow.TERM_IMPORTANCE]
"""Where the moments of schema 1 lie today."""

_REWARD_MODEL: TypeAdapter[Any] = TypeAdapter(AnyRewardModel)


def roster_from(
    state: State, reward_model: AnyRewardModel | None = None, candidates: Candidates = ()
) -> CohortEvaluator:
    """The roster of a state that this version or an earlier one wrote; StateError if it cannot be read.

    Code that is not named here is not run: policies lose their rows unless `candidates` are none at all, which is for
    who only wants to look; and so do estimators whose reward model is another one's code.
    """
    members = [_without_code(member, reward_model, named_policies(candidates)) for member in migrated(state)["members"]]
    return CohortEvaluator.from_state({**migrated(state), "members": members}, reward_model, candidates)


def migrated(roster: State) -> State:
    """The state of a roster as this version would have written it; one of a later version stays as it is."""
    if roster["schema"] == 1:
        roster = {"schema": 2, "members": [_member_of_1(*each) for each in enumerate(roster["members"])]}
    return roster


def _member_of_1(place: int, member: State) -> State:
    """Schema 1 named candidates; production was shown by the first member, and everything that a member had."""
    production = [member["evaluator"]["settings"]["production"]] if place == 0 else []
    evaluator = _evaluator_of_1(member["evaluator"])
    return {"policies": [*production, *member["candidates"]], "evaluator": evaluator}


def _evaluator_of_1(state: State) -> State:
    """Schema 1 knew values and no lifts, decisions, or units: those begin now."""
    names = list(named_policies(state["settings"]["candidates"]))
    plan = Plan.from_settings({**state["settings"], "candidates": names})
    begun = Evaluator.of(plan, state["described"]).state()
    old = from_plain({key: state[key] for key in ("recent", "slates", "grids")})
    for recent in (old["recent"], old["slates"]["recent"]):
        recent["weighed"] = recent["weighed"][:, [0, 1, 1]]  # as if weights had been compared with none
    grids = _filled(from_plain(begun["grids"]), old["grids"])
    settings = {**begun["settings"], "candidates": state["settings"]["candidates"]}
    return {**begun, **state, **to_plain({**old, "grids": grids}), "settings": settings, "schema": 2}


def _filled(fresh: Any, old: Any, name: str = "") -> Any:
    """What the old state says, in the shape of the fresh one, which says the rest."""
    if isinstance(fresh, dict):
        if "places" in fresh and "buckets" in old:
            fresh = {"buckets" if key == "places" else key: value for key, value in fresh.items()}
        return {key: _filled(value, old[key], key) if key in old else value for key, value in fresh.items()}
    if isinstance(fresh, list | tuple) and len(fresh) == len(old):
        return [_filled(*pair, name) for pair in zip(fresh, old, strict=True)]
    if isinstance(old, np.ndarray) and fresh.shape[-1:] != old.shape[-1:]:
        rows = MOMENTS_OF_1 if name != "spread" else slice(0, old.shape[-1])
        wider = np.zeros((*old.shape[:-1], fresh.shape[-1]))
        wider[..., rows] = old
        if name != "spread":
            wider[..., MomentRow.TERM_IMPORTANCE] = (
                np.nan
            )  # was not kept, and what is not known must not be taken for 0
        return wider
    return old


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
    cells = cells_of(plan, bool(evaluator["described"]))
    before = cells.keys() if member.get("cells") is None else {(cell[0], cell[1]) for cell in member["cells"]}
    kept = [list(cell) for cell, (estimator, *_) in cells.items() if cell in before and not needs_model(estimator)]
    return {**member, "cells": kept, "evaluator": evaluator}


def _with_settings(member: State, **settings: Any) -> State:
    return {**member["evaluator"], "settings": {**member["evaluator"]["settings"], **settings}}
