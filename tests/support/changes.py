"""Plans and events for candidates that come and go."""

from __future__ import annotations

from typing import Any

import numpy as np

import streameval as se
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evaluator.plan import Plan

NAMES = ("early", "late", "later")


def plan(*candidates: str, **options: Any) -> Plan:
    named = options.pop("named", candidates)
    return se.Evaluator(candidates=named, **options).plan


def events(count: int, seed: int = 1, described: bool = False) -> se.EventBatch:
    """Events with action sets, whose candidates all differ."""
    rng = np.random.default_rng(seed)
    distributions = {name: rng.dirichlet(np.ones(4), count) for name in NAMES}
    return se.EventBatch.from_arrays(
        reward=(rng.random(count) < 0.3).astype(float),
        propensities=np.full((count, 4), 0.25),
        action=rng.integers(0, 4, count),
        policies=distributions,
        features=rng.random((count, 4, 3)) if described else None,
    )


def adopt(changing: Evaluator, changed: Plan) -> None:
    late = changing.apply_plan(changed)
    if late is not None:
        changing.activate(late)
