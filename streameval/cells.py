"""What plans estimate on what, and what two of them have in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeAlias

from streameval.estimators import AnyEstimator
from streameval.needs import Need
from streameval.plan import Plan

Cell: TypeAlias = tuple[str, str]
"""An estimator on an average, by their labels."""


def cells_of(plan: Plan, described: bool) -> dict[Cell, tuple[Any, ...]]:
    """What is estimated on what, by labels; and all that decides the numbers."""
    return {
        (estimator.label, average.label): (estimator, average, plan.reward_model if needs_model(estimator) else None)
        for estimators, averages in plan.products(described)
        for estimator in estimators
        for average in averages
    }


def named_parts(plan: Plan, described: bool) -> dict[str, dict[str, Any]]:
    """What a plan evaluates: policies, estimators and averages by name, each with all that decides what it is."""
    cells = cells_of(plan, described)
    return {
        "policies": {name: plan.coded.get(name) for name in plan.policies},
        "estimators": {name: (each, model) for (name, _), (each, _, model) in cells.items()},
        "averages": {name: each for (_, name), (_, each, _) in cells.items()},
    }


def needs_model(estimator: AnyEstimator) -> bool:
    """Whether an estimator's numbers depend on the reward model."""
    return Need.PREDICTION in estimator.needs


def common(before: Plan, had: bool, after: Plan, has: bool) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """The products of a plan as far as another one has them, too: with the same parameters, and the same model.

    `had`, `has`: whether events tell all of their actions, for each of them.
    """
    same_model = before.reward_model == after.reward_model
    for estimators, averages in before.products(had):
        for others, on in after.products(has):
            kept = tuple(each for each in estimators if each in others and (same_model or not needs_model(each)))
            where = tuple(each for each in averages if each in on)
            if kept and where:
                yield kept, where


def products_of(
    plan: Plan, described: bool, cells: frozenset[Cell]
) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """The estimators and averages of a plan that make these cells and no others, as products."""
    for estimators, averages in plan.products(described):
        by_averages: dict[tuple[Any, ...], list[Any]] = {}
        for estimator in estimators:
            lacking = tuple(average for average in averages if (estimator.label, average.label) in cells)
            if lacking:
                by_averages.setdefault(lacking, []).append(estimator)
        for lacking, alike in by_averages.items():
            yield tuple(alike), lacking


def of_some(plan: Plan, policies: tuple[str, ...]) -> Plan:
    """The plan for some of its policies; production is there in any case."""
    others = tuple(name for name in policies if name != plan.policies[0])
    coded = {name: policy for name, policy in plan.coded.items() if name in others}
    return replace(plan, policies=(plan.policies[0], *others), coded=coded)
