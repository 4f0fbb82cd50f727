"""Measure coverage of the default interval when the log hides its largest weight at first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from streameval import IPS, Cumulative, EmpiricalLikelihood, Evaluator, EventBatch, Window

Array = NDArray[np.float64]
EVENTS, RUNS, LOOKS = 3_000, 150, (500, 1_500, 3_000)
ACTIONS = 10


def falling(context: Array, number: Array) -> Array:
    """Exploration falls from .2 to .02 in mid-stream, [events, actions]."""
    exploration = np.where(number < EVENTS // 2, 0.2, 0.02)[:, None]
    return (1 - exploration) * np.eye(ACTIONS)[0] + exploration / ACTIONS


def rare_contexts(context: Array, number: Array) -> Array:
    """Make a log in which all actions but one have 1e-4 in every tenth context, and .02 in the others."""
    rare = np.where(context < 0.1, 1e-4, 0.02)[:, None]
    return (1 - rare * ACTIONS) * np.eye(ACTIONS)[0] + rare


def log_uniform(context: Array, number: Array) -> Array:
    """Propensities are log-uniform between 1e-4 and 1 before they are divided by their sum."""
    powers = np.random.default_rng(1).uniform(-4, 0, (50, ACTIONS))
    powers[:, 0] = 0
    raw = 10 ** powers[(50 * context).astype(int)]
    return np.asarray(raw / raw.sum(axis=1, keepdims=True))


def even_but_in_few_contexts(context: Array) -> Array:
    """Let the candidate take all actions evenly, and one rarely shown action in every tenth context."""
    return np.where(context[:, None] < 0.1, np.eye(ACTIONS)[1], 1 / ACTIONS)


def favouring(context: Array) -> Array:
    """Let the candidate favour a rarely shown action."""
    return np.broadcast_to(0.9 * np.eye(ACTIONS)[1] + 0.1 / ACTIONS, (len(context), ACTIONS))


def missed(
    run: int, logging: Callable[[Array, Array], Array], candidate: Callable[[Array], Array]
) -> list[tuple[bool, ...]]:
    """Return whether the intervals of the value, .36, miss on both averages, look by look."""
    rng = np.random.default_rng([11, run])
    context, number = rng.random(EVENTS), np.arange(EVENTS)
    shares = logging(context, number)
    action = (rng.random((EVENTS, 1)) > np.cumsum(shares, axis=1)[:, :-1]).sum(axis=1)
    mean = np.where(context < 0.1, 0.9, 0.3)
    batch = EventBatch.from_arrays(
        reward=rng.random(EVENTS) < mean,
        propensity=shares[number, action],
        policies={"new": candidate(context)[number, action]},
    )
    evaluator = Evaluator(["new"], [IPS()], [Cumulative(), Window(tau=1_000)], drift=None, promotion=None)
    misses = []
    for first, last in zip((0, *LOOKS), LOOKS, strict=False):
        evaluator.update(batch[first:last])
        evaluator.fold_pending()
        report = evaluator.report()
        rows = [report.get("new", "ips", average) for average in ("cumulative", "window")]
        misses.append(tuple(not (row.lower or 0.0) <= 0.36 <= (row.upper or 1.0) for row in rows))
    return misses


@pytest.mark.slow
@pytest.mark.parametrize("candidate", [favouring, even_but_in_few_contexts])
@pytest.mark.parametrize("logging", [falling, rare_contexts, log_uniform])
def test_the_default_interval_covers_where_small_propensities_show_late(
    logging: Callable[[Array, Array], Array], candidate: Callable[[Array], Array]
) -> None:
    misses = np.sum([missed(run, logging, candidate) for run in range(RUNS)], axis=0)
    assert misses.max() <= binom.ppf(0.999, RUNS, 0.05)


def test_lifts_cover_before_production_has_taken_an_action_that_is_rarely_logged() -> None:
    """In one context of five, production favours an action of propensity .004, and the candidate takes all evenly."""
    events, runs, actions = 1_000, 300, 50
    limits: dict[str, Any] = {"learned": "auto", "unlimited": "none", "known": 201.0}
    missed = dict.fromkeys(limits, 0)
    logging = 0.8 * np.eye(actions)[0] + 0.2 / actions
    mean = np.where(np.arange(actions) == 1, 0.42, 0.3)
    for run in range(runs):
        rng = np.random.default_rng([12, run])
        action, favoured = rng.choice(actions, events, p=logging), 2 * (rng.random(events) < 0.2)
        probability = {"new": np.full(events, 1 / actions), "now": 0.8 * (action == favoured) + 0.2 / actions}
        evaluator = Evaluator(
            ["new"],
            [IPS()],
            [Cumulative(name=name) for name in limits],
            production="now",
            intervals={name: EmpiricalLikelihood(max_weight=limit) for name, limit in limits.items()},
            drift=None,
            promotion=None,
        )
        rewards = rng.random(events) < mean[action]
        evaluator.update(EventBatch.from_arrays(reward=rewards, propensity=logging[action], policies=probability))
        evaluator.fold_pending()
        report, lift = evaluator.report(), mean.mean() - 0.3 - 0.12 * 0.2 / actions
        for name in limits:
            estimate = report.get("new", "ips", name)
            assert estimate.lift_lower is not None
            assert estimate.lift_upper is not None
            missed[name] += not estimate.lift_lower <= lift <= estimate.lift_upper
    assert max(missed.values()) <= binom.ppf(0.999, runs, 0.05)
