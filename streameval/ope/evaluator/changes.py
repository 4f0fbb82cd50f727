"""The state of an evaluator under another plan: some of its policies, estimators and averages, or more of them.

Parts that both plans have keep their numbers. Late parts come with a state of their own: a fresh one, or the one of an
evaluator that was given earlier events. It has production, which lifts compare with, and the new policies last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from msgspec import structs

from streameval.ope.core.state import Company, joined, of_policies
from streameval.ope.evaluator import drift_detection, rooms, weighing
from streameval.ope.evaluator.grid import Grid, GridState
from streameval.ope.evaluator.plan import Plan
from streameval.ope.evaluator.state import EvaluatorState
from streameval.ope.promotion import MonitorState


def same_policies(before: Plan, plan: Plan) -> list[str]:
    """Return the policies of a plan that another plan has, computed in the same way."""
    return [name for name in plan.policies if name in before.policies and before.policy(name) == plan.policy(name)]


def same_products(before: Plan, plan: Plan) -> Plan:
    """Return the plan `before` with the pairs of an estimator and an average that the other plan has, too."""
    pairs = plan.pairs
    return before.for_pairs([pair for pair, parts in before.pairs.items() if pairs.get(pair) == parts])


def continued(before: Plan, state: EvaluatorState, plan: Plan) -> EvaluatorState:
    """Return what a plan with fewer parts keeps of a state, which must not be used any more.

    A confidence sequence, drift detector or promotion rule of another kind starts from zero. So does a promotion rule
    that looks at a lift which is gone.

    Args:
        before: the plan of the state
        state: all whole blocks are folded
        plan: has the same production, rewards and block. Its policies, and its pairs of an estimator and an average,
            are among those of the plan before
    """
    if plan == before:
        return state
    kept = replace(
        before.with_products(plan.products),
        policies=plan.policies,
        computed_policies=plan.computed_policies,
        candidate_order=plan.candidate_order,
        reward_model=plan.reward_model,
    )
    selected, grids = _selected(before, state, kept), plan.grids()
    monitor = plan.monitor(plan.promotion_lifts(grids))
    fresh = weighing.start(plan, grids, monitor)
    pairs = zip(grids, kept.grids(), selected.grids, strict=True)
    return structs.replace(
        selected,
        rooms=rooms.resume(plan, before, state.rooms),
        grids=[grid.resume(own, known) for grid, own, known in pairs],
        drift=selected.drift if plan.drift == before.drift else fresh.drift,
        promotion=fresh.promotion
        if monitor is None or selected.promotion is None
        else monitor.resume(selected.promotion),
    )


def _selected(whole: Plan, state: EvaluatorState, plan: Plan) -> EvaluatorState:
    """Return the state of some of the policies, estimators and averages; the plans differ in nothing else."""
    index, grids = [whole.policies.index(name) for name in plan.policies], plan.grids()
    fresh, mixes = weighing.start(plan, (), None), any(grid.mixes_components for grid in grids)
    return structs.replace(
        state,
        failures={name: state.failures[name] for name in plan.columns if name in state.failures},
        counts=of_policies(state.counts, index),
        recent=of_policies(state.recent, index) if mixes else fresh.recent,
        slates=of_policies(state.slates, index) if weighing.forms(grids) else fresh.slates,
        weights=of_policies(state.weights, index),
        predictions=state.predictions if weighing.predicts(plan, grids) else fresh.predictions,
        by_rank=of_policies(state.by_rank, index),
        drift=None if whole.drift is None or state.drift is None else whole.drift.take(state.drift, index),
        promotion=_selected_promotion(whole, state.promotion, plan, index),
        grids=[_selected_grid(whole, state, grid, index) for grid in grids],
    )


def _selected_promotion(
    whole: Plan, state: MonitorState | None, plan: Plan, index: Sequence[int]
) -> MonitorState | None:
    before, lifts = whole.promotion_lifts(whole.grids()), plan.promotion_lifts(plan.grids())
    monitor, part = whole.monitor(before), plan.monitor(lifts)
    if monitor is None or part is None or state is None:
        return None
    return part.with_lifts(monitor.select_candidates(state, [place - 1 for place in index[1:]]), monitor.lifts)


def _selected_grid(whole: Plan, state: EvaluatorState, part: Grid, index: Sequence[int]) -> GridState:
    """Return the state of a grid that lies in one of the grids of the whole plan."""
    return next(
        grid.select(known, part, index)
        for grid, known in zip(whole.grids(), state.grids, strict=True)
        if set(part.estimators) <= set(grid.estimators) and set(part.averages) <= set(grid.averages)
    )


def plan_of_both(plan: Plan, late: Plan) -> Plan:
    """Return a plan with the parts of two plans, the own ones first."""
    new = [name for name in late.policies if name not in plan.policies]
    computed, order = late.computed_policies, late.candidate_order
    products = [*plan.products, *(each for each in late.products if each not in plan.products)]
    both = replace(
        plan,
        policies=(*plan.policies, *new),
        computed_policies={**plan.computed_policies, **{name: computed[name] for name in new if name in computed}},
        candidate_order={**plan.candidate_order, **{name: order[name] for name in new}},
        intervals={**late.intervals, **plan.intervals},
        reward_model=late.reward_model,
    )
    return both.with_products(products)


def of_both(plan: Plan, state: EvaluatorState, late: Plan, known: EvaluatorState, waiting: int = 0) -> EvaluatorState:
    """Return the state of `plan_of_both` at the end of a block; neither state must be used any more.

    Args:
        plan: the own plan
        state: the own state
        late: the plan of late parts. Its last policies are new. It has all policies if estimators or averages are new
        known: the state of the late parts
        waiting: accepted events that are not folded yet. New policies that learn will see them, others lack them
    """
    both = plan_of_both(plan, late)
    new = [name for name in late.policies if name not in plan.policies]
    company, grids = company_of(plan, late), plan.grids()
    mixes, sliced = any(grid.mixes_components for grid in grids), bool(weighing.forms(grids))
    predicts = weighing.predicts(plan, grids) and plan.reward_model == late.reward_model
    learners = late.learned_policies
    counts = joined(state.counts, known.counts, company)
    seen = [waiting if name in learners else 0 for name in new]
    counts["since"][len(plan.policies) :] += state.events.accepted - known.events.accepted - np.array(seen, dtype=float)
    return structs.replace(
        state,
        failures={**{name: each for name, each in known.failures.items() if name in new}, **state.failures},
        counts=counts,
        recent=joined(state.recent, known.recent, company) if mixes or not _covers(plan, late) else known.recent,
        slates=joined(state.slates, known.slates, company) if sliced or not _covers(plan, late) else known.slates,
        weights=joined(state.weights, known.weights, company),
        predictions=state.predictions if predicts else known.predictions,
        by_rank=joined(state.by_rank, known.by_rank, company),
        drift=drift_detection.joined_detectors(state.drift, known.drift, company),
        promotion=_promotion_of_both(plan, state.promotion, late, known.promotion, both, company),
        rooms=rooms.join(both, (plan, state.rooms), (late, known.rooms), company),
        grids=list(_grids_of_both(plan, state, late, known)),
    )


def company_of(plan: Plan, late: Plan) -> Company:
    """Return the numbers of policies of two plans."""
    return Company(len(plan.policies), len(late.policies), len(set(late.policies) - set(plan.policies)))


def _covers(plan: Plan, late: Plan) -> bool:
    """Return whether a late plan has all policies of another one."""
    return set(plan.policies) <= set(late.policies)


def _grids_of_both(plan: Plan, state: EvaluatorState, late: Plan, known: EvaluatorState) -> Iterator[GridState]:
    own = {frozenset(grid.pairs): (grid, each) for grid, each in zip(plan.grids(), state.grids, strict=True)}
    others = {frozenset(grid.pairs): each for grid, each in zip(late.grids(), known.grids, strict=True)}
    company = company_of(plan, late)
    for pairs, (grid, each) in own.items():
        yield grid.join(each, others[pairs], company) if company.new else each
    yield from (each for pairs, each in others.items() if pairs not in own)


def _promotion_of_both(
    plan: Plan, state: MonitorState | None, late: Plan, known: MonitorState | None, both: Plan, company: Company
) -> MonitorState | None:
    lifts = [each.promotion_lifts(each.grids()) for each in (plan, late, both)]
    own, other, monitor = (each.monitor(of) for each, of in zip((plan, late, both), lifts, strict=True))
    if monitor is None or own is None or state is None:
        return known
    if other is None or known is None:
        return monitor.with_lifts(state, own.lifts)
    if not lifts[0] and lifts[1] and _covers(plan, late):
        return known
    state, known = monitor.with_lifts(state, own.lifts), monitor.with_lifts(known, other.lifts)
    return monitor.join(state, known, company) if company.new else state
