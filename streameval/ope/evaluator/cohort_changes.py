"""An evaluator for other policies: values go on for those that stay; so do lifts, unless production is another one.

An evaluator with fewer estimators and averages: the columns of what stays are cut out, all else is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from streameval.common.arrays import State
from streameval.common.state_columns import transplanted
from streameval.events import EventBatch
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evaluator.grid import Grid
from streameval.ope.evaluator.plan import Plan, Products
from streameval.ope.evaluator.promotion_lift import PromotionLift
from streameval.ope.evaluator.state import EvaluatorState
from streameval.ope.evidence import recent_moments
from streameval.ope.evidence.requirements import Requirement
from streameval.ope.policies import LOGGING


def changed(evaluator: Evaluator, plan: Plan) -> Evaluator:
    """An evaluator of the plan, whose policies are others, that goes on with what is known of those that stay.

    Estimators, averages and what else the plan says must be the same. Values are kept, and lifts, and decisions about
    them, unless production has changed: then these begin anew. A policy that was not there, or was another one, begins
    with the next event. Of those that are gone nothing is left: what a mixture has pooled over its candidates is pooled
    over those that stay, as if there had never been others.
    """
    before, progress = evaluator.plan, evaluator.progress()
    known = {
        name: place for place, name in enumerate(before.policies) if before.coded.get(name) == plan.coded.get(name)
    }
    places = [known.get(name) for name in plan.policies]
    fresh = Evaluator.of(plan).progress()
    fresh = replace(
        fresh,
        accepted=progress.accepted,
        rejected=progress.rejected,
        arrivals=progress.arrivals,
        newest=progress.newest,
    )
    if not progress.accepted:
        return Evaluator.going_on(plan, fresh)
    alone = places[0] != 0
    memory = transplanted(
        _memory(progress, alone),
        lambda count: _fresh(before, count, alone),
        len(before.policies),
        places,
    )
    grids = zip(before.grids(), progress.grids, strict=True)
    progress = replace(
        fresh,
        pending=[_of_policies(batch, plan, known) for batch in progress.pending],
        failures={name: told for name, told in progress.failures.items() if name in known and name in plan.policies},
        counts=memory["counts"],
        learned={**progress.learned, **memory["learned"]},
        watch=None if progress.watch is None else progress.watch.of_some(places),
        decided=fresh.decided if alone else _decided(before, progress, fresh, places),
        grids=[grid.select_policies(state, places, plan.block) for grid, state in grids],
    )
    return Evaluator.going_on(plan, progress)


def with_new_production(evaluator: Evaluator) -> Evaluator:
    """The same for a production policy that is another one under its name: it begins with the next event, lifts too."""
    plan = evaluator.plan
    return changed(changed(evaluator, replace(plan, policies=(LOGGING, *plan.policies[1:]))), plan)


def _memory(progress: EvaluatorState, alone: bool) -> State:
    """What is remembered of each policy; `alone`: nothing that compares it with production."""
    learned = progress.learned
    kept = {name: learned[name] for name in ("recent", "slates")}
    if alone:
        kept = {
            "recent": recent_moments.alone(learned["recent"]),
            "slates": {**learned["slates"], "recent": recent_moments.alone(learned["slates"]["recent"])},
        }
    return {"counts": progress.counts, "learned": kept}


def _fresh(plan: Plan, policies: int, alone: bool) -> State:
    """The same before the first event, of so many policies."""
    names = (LOGGING, *map(str, range(1, policies)))
    ranks = {name: place for place, name in enumerate(names)}
    some = replace(plan, policies=names, coded={}, ranks=ranks)
    return _memory(Evaluator.of(some).progress(), alone)


def _decided(
    before: Plan, progress: EvaluatorState, fresh: EvaluatorState, places: Sequence[int | None]
) -> State | None:
    """The state of the contest among those that stay; it begins anew where others come."""
    deciding = PromotionLift.of(before)
    known = [place for place in places[1:] if place is not None]
    if deciding is None or progress.decided is None or fresh.decided is None or len(known) < len(places) - 1:
        return fresh.decided
    return deciding.contest.select_candidates(progress.decided, [place - 1 for place in known])


def _of_policies(batch: EventBatch, plan: Plan, known: Mapping[str, int]) -> EventBatch:
    """Events that wait, as the policies of the plan see them: missing for who begins with the next one."""
    kept = batch.with_policies(name for name in batch.policies if name in known)
    return kept.with_policies(name for name in plan.policies if name != LOGGING)


def left_with(evaluator: Evaluator, products: Products) -> Evaluator:
    """The evaluator with these products of estimators and averages only, each of which lies in one of those it has.

    What it knows of them it knows to the last bit. A reward model that nobody needs any more is forgotten. Decisions
    that stood on a lift which is gone begin anew on the best one that is left.
    """
    if list(products) == list(evaluator.plan.products()):
        return evaluator
    plan, progress = evaluator.plan.with_products(products), evaluator.progress()
    before, after = evaluator.plan.grids(), plan.grids()
    whole = [next(place for place, each in enumerate(before) if _lies_in(part, each)) for part in after]
    progress = replace(
        progress,
        learned=_learned(plan, progress, after),
        decided=_decided_by_kept(evaluator.plan, progress, before, plan, after),
        grids=[before[place].restrict(progress.grids[place], part) for part, place in zip(after, whole, strict=True)],
    )
    return Evaluator.going_on(plan, progress)


def _lies_in(part: Grid, whole: Grid) -> bool:
    return set(part.estimators) <= set(whole.estimators) and set(part.averages) <= set(whole.averages)


def _learned(plan: Plan, progress: EvaluatorState, grids: Sequence[Grid]) -> State:
    """What is learned of the log, as far as the estimators and averages that are left look at it."""
    needed = {
        "recent": any(grid.mixes for grid in grids),
        "predictions": any(Requirement.PREDICTION in grid.needs for grid in grids),
        "slates": any(Requirement.SLOTS in grid.needs for grid in grids),
    }
    fresh = Evaluator.of(plan).progress().learned
    return {**progress.learned, **{name: fresh[name] for name, kept in needed.items() if not kept}}


def _decided_by_kept(
    before: Plan, progress: EvaluatorState, had: Sequence[Grid], after: Plan, has: Sequence[Grid]
) -> State | None:
    earlier, deciding = PromotionLift.of(before, had), PromotionLift.of(after, has)
    if earlier is None or deciding is None or progress.decided is None:
        return progress.decided
    return deciding.contest.with_lifts(progress.decided, earlier.contest.lifts)
