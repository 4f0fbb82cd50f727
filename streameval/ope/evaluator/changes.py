"""Carry the state of an evaluator over to another config, with fewer or more policies, estimators and averages.

What both configs have keeps its numbers. New policies, estimators and averages come with a late state: a fresh one, or
the state of an evaluator that was updated with earlier events. It has production, which lifts compare with, and the new
policies last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from msgspec import structs

from streameval.ope.core.state import Company, joined, select_policies
from streameval.ope.evaluator import drift_detection, rooms, weighing
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.grid import Grid, GridState
from streameval.ope.evaluator.state import EvaluatorState
from streameval.ope.promotion import MonitorState


def same_policies(before: EvaluatorConfig, config: EvaluatorConfig) -> list[str]:
    """Return the policies of the config `before` that another config has, computed in the same way."""
    return [name for name in before.policies if name in config.policies and before.policy(name) == config.policy(name)]


def same_products(before: EvaluatorConfig, config: EvaluatorConfig) -> EvaluatorConfig:
    """Return the config `before` with only the pairs of an estimator and an average that the other config has too."""
    pairs = config.pairs
    return before.for_pairs([pair for pair, parts in before.pairs.items() if pairs.get(pair) == parts])


def continued(before: EvaluatorConfig, state: EvaluatorState, config: EvaluatorConfig) -> EvaluatorState:
    """Return what a config with fewer parts keeps of a state, which must not be used any more.

    A confidence sequence, drift detector or promotion rule of another kind starts from zero, and so does a promotion
    rule that reads a removed lift.

    Args:
        before: the config of the state
        state: a state without pending whole blocks
        config: a config with the same production, rewards and block. Its policies, and its pairs of an estimator and an
            average, are a subset of those before.
    """
    if config == before:
        return state
    kept = replace(
        before.with_products(config.products),
        policies=config.policies,
        computed_policies=config.computed_policies,
        candidate_order=config.candidate_order,
        reward_model=config.reward_model,
    )
    selected, grids, monitor = _selected(before, state, kept), config.grids(), config.monitor()
    fresh = weighing.start(config, grids, monitor)
    pairs = zip(grids, kept.grids(), selected.grids, strict=True)
    return structs.replace(
        selected,
        rooms=rooms.resume(config, before, state.rooms),
        grids=[grid.resume(own, grid_state) for grid, own, grid_state in pairs],
        drift=selected.drift if config.drift == before.drift else fresh.drift,
        promotion=fresh.promotion
        if monitor is None or selected.promotion is None
        else monitor.resume(selected.promotion),
    )


def _selected(whole: EvaluatorConfig, state: EvaluatorState, config: EvaluatorConfig) -> EvaluatorState:
    """Return the state of some of the policies, estimators and averages. The configs differ in nothing else."""
    index, grids = [whole.policies.index(name) for name in config.policies], config.grids()
    fresh, mixes = weighing.start(config, (), None), any(grid.mixes_components for grid in grids)
    return structs.replace(
        state,
        failures={name: state.failures[name] for name in config.columns if name in state.failures},
        counts=select_policies(state.counts, index),
        recent=select_policies(state.recent, index) if mixes else fresh.recent,
        slates=select_policies(state.slates, index) if weighing.forms(grids) else fresh.slates,
        weights=select_policies(state.weights, index),
        predictions=state.predictions if weighing.predicts(config, grids) else fresh.predictions,
        by_rank=select_policies(state.by_rank, index),
        drift=None if whole.drift is None or state.drift is None else whole.drift.take(state.drift, index),
        promotion=_selected_promotion(whole, state.promotion, config, index),
        grids=[_selected_grid(whole, state, grid, index) for grid in grids],
    )


def _selected_promotion(
    whole: EvaluatorConfig, state: MonitorState | None, config: EvaluatorConfig, index: Sequence[int]
) -> MonitorState | None:
    monitor, part = whole.monitor(), config.monitor()
    if monitor is None or part is None or state is None:
        return None
    return part.with_lifts(monitor.select_candidates(state, [policy - 1 for policy in index[1:]]), monitor.lifts)


def _selected_grid(whole: EvaluatorConfig, state: EvaluatorState, part: Grid, index: Sequence[int]) -> GridState:
    """Return the state of a grid that is part of one of the grids of the whole config."""
    return next(
        grid.select(grid_state, part, index)
        for grid, grid_state in zip(whole.grids(), state.grids, strict=True)
        if set(part.estimators) <= set(grid.estimators) and set(part.averages) <= set(grid.averages)
    )


def config_of_both(config: EvaluatorConfig, late: EvaluatorConfig) -> EvaluatorConfig:
    """Return a config with the parts of two configs, the parts of `config` first."""
    new = [name for name in late.policies if name not in config.policies]
    computed, order = late.computed_policies, late.candidate_order
    products = [*config.products, *(product for product in late.products if product not in config.products)]
    both = replace(
        config,
        policies=(*config.policies, *new),
        computed_policies={**config.computed_policies, **{name: computed[name] for name in new if name in computed}},
        candidate_order={**config.candidate_order, **{name: order[name] for name in new}},
        intervals={**late.intervals, **config.intervals},
        reward_model=late.reward_model,
    )
    return both.with_products(products)


def state_of_both(
    config: EvaluatorConfig, state: EvaluatorState, late: EvaluatorConfig, late_state: EvaluatorState, waiting: int = 0
) -> EvaluatorState:
    """Return the state of `config_of_both` at the end of a block. Neither state must be used any more.

    Args:
        config: the first config
        state: the state of the first config
        late: the config of the late state. Its last policies are new. It has all policies if estimators or averages are
            new.
        late_state: the state of the late config
        waiting: number of accepted events that are not folded yet. New policies that learn will see them, others lack
            them.
    """
    both = config_of_both(config, late)
    new = [name for name in late.policies if name not in config.policies]
    company, grids = company_of(config, late), config.grids()
    mixes, sliced = any(grid.mixes_components for grid in grids), bool(weighing.forms(grids))
    predicts = weighing.predicts(config, grids) and config.reward_model == late.reward_model
    learners = late.learned_policies
    counts = joined(state.counts, late_state.counts, company)
    seen = [waiting if name in learners else 0 for name in new]
    counts["since"][len(config.policies) :] += (
        state.events.accepted - late_state.events.accepted - np.array(seen, dtype=float)
    )
    return structs.replace(
        state,
        failures={**{name: count for name, count in late_state.failures.items() if name in new}, **state.failures},
        counts=counts,
        recent=joined(state.recent, late_state.recent, company)
        if mixes or not _covers(config, late)
        else late_state.recent,
        slates=joined(state.slates, late_state.slates, company)
        if sliced or not _covers(config, late)
        else late_state.slates,
        weights=joined(state.weights, late_state.weights, company),
        predictions=state.predictions if predicts else late_state.predictions,
        by_rank=joined(state.by_rank, late_state.by_rank, company),
        drift=drift_detection.joined_detectors(state.drift, late_state.drift, company),
        promotion=_promotion_of_both(config, state.promotion, late, late_state.promotion, both, company),
        rooms=rooms.join(both, (config, state.rooms), (late, late_state.rooms), company),
        grids=list(_grids_of_both(config, state, late, late_state)),
    )


def company_of(config: EvaluatorConfig, late: EvaluatorConfig) -> Company:
    """Return the numbers of policies of two configs."""
    return Company(len(config.policies), len(late.policies), len(set(late.policies) - set(config.policies)))


def _covers(config: EvaluatorConfig, late: EvaluatorConfig) -> bool:
    """Return whether a late config has all policies of another config."""
    return set(config.policies) <= set(late.policies)


def _grids_of_both(
    config: EvaluatorConfig, state: EvaluatorState, late: EvaluatorConfig, late_state: EvaluatorState
) -> Iterator[GridState]:
    own = {
        frozenset(grid.pairs): (grid, grid_state) for grid, grid_state in zip(config.grids(), state.grids, strict=True)
    }
    others = {
        frozenset(grid.pairs): grid_state for grid, grid_state in zip(late.grids(), late_state.grids, strict=True)
    }
    company = company_of(config, late)
    for pairs, (grid, grid_state) in own.items():
        yield grid.join(grid_state, others[pairs], company) if company.new else grid_state
    yield from (grid_state for pairs, grid_state in others.items() if pairs not in own)


def _promotion_of_both(
    config: EvaluatorConfig,
    state: MonitorState | None,
    late: EvaluatorConfig,
    late_state: MonitorState | None,
    both: EvaluatorConfig,
    company: Company,
) -> MonitorState | None:
    own, other, monitor = config.monitor(), late.monitor(), both.monitor()
    if monitor is None or own is None or state is None:
        return late_state
    if other is None or late_state is None:
        return monitor.with_lifts(state, own.lifts)
    if not own.lifts and other.lifts and _covers(config, late):
        return late_state
    state, late_state = monitor.with_lifts(state, own.lifts), monitor.with_lifts(late_state, other.lifts)
    return monitor.join(state, late_state, company) if company.new else state
