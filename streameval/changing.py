"""An evaluator for other policies: values go on for those that stay; so do lifts, unless production is another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from streameval import recent
from streameval.arrays import State
from streameval.deciding import Deciding
from streameval.evaluator import Evaluator
from streameval.events import EventBatch
from streameval.plan import Plan
from streameval.policies import LOGGING
from streameval.progress import Progress
from streameval.transplant import transplanted


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
    fresh = Evaluator.of(plan, progress.described).progress()
    fresh = replace(
        fresh,
        accepted=progress.accepted,
        rejected=progress.rejected,
        arrivals=progress.arrivals,
        newest=progress.newest,
    )
    if progress.described is None:
        return Evaluator.going_on(plan, fresh)
    alone = places[0] != 0
    memory = transplanted(
        _memory(before, progress, alone),
        lambda count: _fresh(before, progress, count, alone),
        len(before.policies),
        places,
    )
    grids = zip(plan.grids(progress.described), memory["grids"], strict=True)
    progress = replace(
        fresh,
        pending=[_of_policies(batch, plan, known) for batch in progress.pending],
        failures={name: told for name, told in progress.failures.items() if name in known and name in plan.policies},
        counts=memory["counts"],
        learned={**progress.learned, **memory["learned"]},
        watch=None if progress.watch is None else progress.watch.of_some(places),
        decided=fresh.decided if alone else _decided(before, progress, fresh, places),
        grids=[grid.with_lifts(state, plan.block) if alone else state for grid, state in grids],
    )
    return Evaluator.going_on(plan, progress)


def with_new_production(evaluator: Evaluator) -> Evaluator:
    """The same for a production policy that is another one under its name: it begins with the next event, lifts too."""
    plan = evaluator.plan
    return changed(changed(evaluator, replace(plan, policies=(LOGGING, *plan.policies[1:]))), plan)


def _memory(plan: Plan, progress: Progress, alone: bool) -> State:
    """What is remembered of each policy; `alone`: nothing that compares it with production."""
    learned, grids = progress.learned, progress.grids
    kept = {name: learned[name] for name in ("recent", "slates")}
    if alone:
        kept = {
            "recent": recent.alone(learned["recent"]),
            "slates": {**learned["slates"], "recent": recent.alone(learned["slates"]["recent"])},
        }
        pairs = zip(plan.grids(bool(progress.described)), grids, strict=True)
        grids = [grid.without_lifts(state) for grid, state in pairs]
    return {"counts": progress.counts, "learned": kept, "grids": list(grids)}


def _fresh(plan: Plan, progress: Progress, policies: int, alone: bool) -> State:
    """The same before the first event, of so many policies."""
    names = (LOGGING, *map(str, range(1, policies)))
    ranks = {name: place for place, name in enumerate(names)}
    some = replace(plan, policies=names, coded={}, ranks=ranks)
    return _memory(some, Evaluator.of(some, progress.described).progress(), alone)


def _decided(before: Plan, progress: Progress, fresh: Progress, places: Sequence[int | None]) -> State | None:
    """The state of the contest among those that stay; it begins anew where others come."""
    deciding = Deciding.of(before)
    known = [place for place in places[1:] if place is not None]
    if deciding is None or progress.decided is None or fresh.decided is None or len(known) < len(places) - 1:
        return fresh.decided
    return deciding.contest.of_some(progress.decided, [place - 1 for place in known])


def _of_policies(batch: EventBatch, plan: Plan, known: Mapping[str, int]) -> EventBatch:
    """Events that wait, as the policies of the plan see them: missing for who begins with the next one."""
    kept = batch.with_policies(name for name in batch.policies if name in known)
    return kept.with_policies(name for name in plan.policies if name != LOGGING)
