"""The knowledge of estimators and reward models from earlier batches, where the events of a batch have no order.

It goes to every process that evaluates events of the next batch, and each result has the lessons of its events. So no
reward touches the prediction of its own event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streameval.common.arrays import State, from_plain, to_plain
from streameval.ope.evaluator.grid import Grid
from streameval.ope.evaluator.plan import Plan
from streameval.ope.evidence.evidence import fading_of
from streameval.ope.reward_models import online


def start(plan: Plan, grids: Sequence[Grid]) -> State:
    """The knowledge before the first event: the states of estimators for each grid and reward, and those of the reward
    model for each reward."""
    policies, rewards = len(plan.policies), range(len(plan.rewards))
    return {
        "estimators": [
            [{column.label: column.start(policies) for column in grid.columns} for _ in rewards] for grid in grids
        ],
        "predictions": [online.start(plan.reward_model) for _ in rewards],
    }


def added(plan: Plan, lagged: State, lesson: State, events: int) -> State:
    """The knowledge after some more events; `lesson`: that of these events alone."""
    items = events * (1 if plan.ranking is None else online.ITEMS)
    predictions = zip(lagged["predictions"], lesson["predictions"], strict=True)
    return {
        "estimators": _summed(lagged["estimators"], lesson["estimators"], fading_of(events)),
        "predictions": [online.with_taught(plan.reward_model, *each, items) for each in predictions],
    }


def _summed(old: Any, new: Any, fading: float) -> Any:
    """Nested sums, of which the old ones have faded."""
    if isinstance(old, dict):
        return {name: _summed(part, new.get(name, {}), fading) for name, part in old.items()}
    if isinstance(old, list):
        return [_summed(*parts, fading) for parts in zip(old, new, strict=True)]
    return fading * old + new


def to_state(plan: Plan, lagged: State) -> State:
    """A state of `start`, or lessons, as a plain value."""
    models = [online.to_state(plan.reward_model, each) for each in lagged["predictions"]]
    return {"estimators": to_plain(lagged["estimators"]), "predictions": models}


def from_state(plan: Plan, saved: State) -> State:
    """The inverse of `to_state`."""
    models = [online.from_state(plan.reward_model, each, plan.reward_model) for each in saved["predictions"]]
    return {"estimators": from_plain(saved["estimators"]), "predictions": models}
