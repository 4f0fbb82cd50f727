"""An evaluator for other policies: values go on for those that stay, lifts and decisions begin anew."""

from __future__ import annotations

from dataclasses import replace

from streameval import recent
from streameval.arrays import State
from streameval.evaluator import Evaluator
from streameval.plan import Plan
from streameval.policies import LOGGING
from streameval.transplant import transplanted


def changed(evaluator: Evaluator, plan: Plan) -> Evaluator:
    """An evaluator of the plan, whose policies are others, that goes on with what is known of those that stay.

    Estimators, averages and what else the plan says must be the same. Values are kept; lifts, and decisions about
    them, begin anew, because production may have changed. A policy that was not there, or was another one, begins with
    the next event.
    """
    if evaluator._pending:
        evaluator._settle(plan.block)
    other = Evaluator.of(plan)
    other._accepted, other._rejected = evaluator._accepted, dict(evaluator._rejected)
    other._last_timestamp, other._arrivals = evaluator._last_timestamp, evaluator._arrivals
    if evaluator._described is None:
        return other
    other._open(evaluator._described)
    same = [name for name in evaluator.policies if evaluator.plan.coded.get(name) == plan.coded.get(name)]
    places = [evaluator.policies.index(name) if name in same else None for name in plan.policies]
    memory = transplanted(
        _memory(evaluator), lambda count: _memory(_fresh(evaluator, count)), len(evaluator.policies), places
    )
    pairs = zip(other._grids, memory["grids"], strict=True)
    other._counts = memory["counts"]
    other._states = [grid.with_lifts(values, plan.block) for grid, values in pairs]
    other._learned = {**evaluator._learned, **memory["learned"]}
    other._watch = None if evaluator._watch is None else evaluator._watch.of_some(places)
    other._pending, other._waiting = evaluator._pending, evaluator._waiting
    other._failures = {name: told for name, told in evaluator._failures.items() if name in same}
    return other


def with_new_production(evaluator: Evaluator) -> Evaluator:
    """The same for a production policy that is another one under its name: it begins with the next event, lifts too."""
    plan, production = evaluator.plan, evaluator.policies[0]
    without = changed(evaluator, replace(plan, policies=(LOGGING, *plan.policies[1:])))
    without._pending = [
        batch.with_policies(name for name in batch.policies if name != production).with_policies(batch.policies)
        for batch in without._pending
    ]
    return changed(without, plan)


def _memory(evaluator: Evaluator) -> State:
    """What is remembered of each policy, but for lifts and decisions."""
    learned = evaluator._learned
    pairs = zip(evaluator._grids, evaluator._states, strict=True)
    return {
        "counts": evaluator._counts,
        "learned": {"recent": recent.alone(learned["recent"]), "slates": learned["slates"]},
        "grids": [grid.without_lifts(state) for grid, state in pairs],
    }


def _fresh(evaluator: Evaluator, policies: int) -> Evaluator:
    """A fresh evaluator of so many policies, that is the same otherwise."""
    names = (LOGGING, *map(str, range(1, policies)))
    ranks = {name: place for place, name in enumerate(names)}
    fresh = Evaluator.of(replace(evaluator.plan, policies=names, coded={}, ranks=ranks))
    fresh._open(bool(evaluator._described))
    return fresh
