"""Make configurations and events for candidates that come and go."""

from __future__ import annotations

from typing import Any

import numpy as np

import streameval as se
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.evaluator import Evaluator

NAMES = ("early", "late", "later")


def config(*candidates: str, **options: Any) -> EvaluatorConfig:
    named = options.pop("named", candidates)
    return se.Evaluator(candidates=named, **options).config


def events(count: int, seed: int = 1, described: bool = False) -> se.EventBatch:
    """Return events with action sets and a different distribution of each candidate."""
    rng = np.random.default_rng(seed)
    distributions = {name: rng.dirichlet(np.ones(4), count) for name in NAMES}
    return se.EventBatch.from_arrays(
        reward=(rng.random(count) < 0.3).astype(float),
        propensities=np.full((count, 4), 0.25),
        action=rng.integers(0, 4, count),
        policies=distributions,
        features=rng.random((count, 4, 3)) if described else None,
    )


def adopt(changing: Evaluator, changed: EvaluatorConfig) -> None:
    late = changing.apply_config(changed)
    if late is not None:
        changing.activate(late)
