"""An evaluator with fewer estimators and averages: the columns of what stays are cut out, all else is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streameval.arrays import State
from streameval.averages.bank import Layout
from streameval.deciding import Deciding
from streameval.evaluator import Evaluator
from streameval.grid import Grid
from streameval.needs import Need
from streameval.plan import Plan, Products
from streameval.progress import Progress


def left_with(evaluator: Evaluator, products: Products) -> Evaluator:
    """The evaluator with these products of estimators and averages only, each of which lies in one of those it has.

    What it knows of them it knows to the last bit. A reward model that nobody needs any more is forgotten. Decisions
    that stood on a lift which is gone begin anew on the best one that is left.
    """
    if list(products) == list(evaluator.plan.products(bool(evaluator.described))):
        return evaluator
    plan, progress = evaluator.plan.with_products(products), evaluator.progress()
    if progress.described is None:
        return Evaluator.going_on(plan, progress)
    before, after = evaluator.plan.grids(progress.described), plan.grids(progress.described)
    whole = [next(place for place, each in enumerate(before) if _lies_in(part, each)) for part in after]
    progress = replace(
        progress,
        learned=_learned(plan, progress, after),
        decided=_decided(evaluator.plan, progress, before, plan, after),
        grids=[
            part_of(part, before[place], progress.grids[place], plan.block)
            for part, place in zip(after, whole, strict=True)
        ],
    )
    return Evaluator.going_on(plan, progress)


def _lies_in(part: Grid, whole: Grid) -> bool:
    return set(part.estimators) <= set(whole.estimators) and set(part.averages) <= set(whole.averages)


def _learned(plan: Plan, progress: Progress, grids: Sequence[Grid]) -> State:
    """What is learned of the log, as far as the estimators and averages that are left look at it."""
    needed = {
        "recent": any(grid.mixes for grid in grids),
        "predictions": any(Need.PREDICTION in grid.needs for grid in grids),
        "slates": any(Need.SLOTS in grid.needs for grid in grids),
    }
    fresh = Evaluator.of(plan).progress().learned
    return {**progress.learned, **{name: fresh[name] for name, kept in needed.items() if not kept}}


def _decided(before: Plan, progress: Progress, had: Sequence[Grid], after: Plan, has: Sequence[Grid]) -> State | None:
    earlier, deciding = Deciding.of(before, had), Deciding.of(after, has)
    if earlier is None or deciding is None or progress.decided is None:
        return progress.decided
    same = (earlier.chosen and earlier.chosen.cell) == (deciding.chosen and deciding.chosen.cell)
    return progress.decided if same else deciding.contest.on_another_lift(progress.decided)


class Columns(NamedTuple):
    """Which columns stay of so many `policies` and all estimators of a layout, when these of its estimators stay.

    >>> Columns(2, Layout((1, 2, 1), (True, True)), [1]).of(6).tolist()
    [1, 4]
    >>> Columns(2, Layout((1, 2, 1), (True, True)), [1]).of(8).tolist()
    [1, 2, 5, 6]
    """

    policies: int
    layout: Layout
    kept: Sequence[int]

    def of(self, columns: int) -> NDArray[np.intp]:
        """Their places, where there is a column for each estimator, or one for each of its components."""
        per_policy = columns // self.policies
        estimators = np.arange(len(self.layout.components))
        owner = estimators if per_policy == len(estimators) else np.repeat(estimators, self.layout.components)
        return np.flatnonzero(np.tile(np.isin(owner, self.kept), self.policies))


def part_of(part: Grid, whole: Grid, state: State, block: int) -> State:
    """The state of a grid of some of the estimators and averages of another one, of that one's state."""
    averages = [whole.averages.index(each) for each in part.averages]
    kept = [whole.estimators.index(each) for each in part.estimators]
    wide = replace(part, estimators=whole.estimators, watches=tuple(whole.watches[place] for place in averages))
    measures = [whole.measures.index(each) for each in part.measures]
    some = {name: [state[name][place] for place in averages] for name in ("averages", "lifts", "watched")}
    some["drift"] = [state["drift"][place] for place in measures]
    fresh, fewer = wide.start(block), part.start(block)
    policies = {"averages": len(whole.candidates), "lifts": len(whole.candidates) - 1, "drift": len(whole.candidates)}
    cut = {
        name: _cut(some[name], fresh[name], fewer[name], Columns(count, wide.layout, kept))
        for name, count in policies.items()
    }
    watches = zip(part.watches, wide.watches, some["watched"], strict=True)
    return {
        **cut,
        "estimators": [state["estimators"][place] for place in kept],
        "watched": [
            None if watch is None or other is None else watch.of_some(seen, other, kept)
            for watch, other, seen in watches
        ],
    }


def _cut(state: Any, wide: Any, narrow: Any, columns: Columns) -> Any:
    """The columns that stay; `wide` and `narrow` are fresh states, which differ in the axis that counts columns."""
    if isinstance(state, dict):
        return {key: _cut(state[key], wide[key], narrow[key], columns) for key in state}
    if isinstance(state, list):
        return [_cut(*each, columns) for each in zip(state, wide, narrow, strict=True)]
    if not isinstance(state, np.ndarray):
        return state
    shapes = zip(wide.shape, narrow.shape, strict=True)
    axis = next((axis for axis, (one, other) in enumerate(shapes) if one != other), None)
    return state if axis is None else np.take(state, columns.of(state.shape[axis]), axis=axis)
