"""Make a monitor of promotions, and draw importance weights and paths of the lift to feed it with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streameval.common.arrays import Array
from streameval.ope.intervals.sequences import error_shares
from streameval.ope.promotion import ArrivalState, Lift, Promotion, PromotionMonitor, Trust

BLOCK = 100
LENIENT = Trust(error=1e-9, effective_sample_size=0.0, largest_share=1.0)
"""Trust checks that never fail, for tests of the rules alone."""


def monitor_of(promotion: Promotion, policies: Sequence[str], logged: bool = True) -> PromotionMonitor:
    errors = error_shares(0.05, range(1, len(policies)), promotion.family_size)
    return PromotionMonitor.from_settings(
        promotion, policies, confidence=0.95, errors=errors, block=BLOCK, logged=logged
    )


def make_monitor(
    candidates: int = 2, trust: Trust = LENIENT, logged: bool = True, **promotion: Any
) -> PromotionMonitor:
    """Make a monitor of this many candidates with all rules that need no sequences."""
    settings = {"rule": ("paired", "sea", "bsea"), "min_events": 0, "hold": 1, "trust": trust, **promotion}
    policies = ("logging" if logged else "production", *(f"candidate-{number}" for number in range(1, candidates + 1)))
    return monitor_of(Promotion(**settings), policies, logged)


def trust_figures(**more: Any) -> dict[str, Any]:
    """Return the trust arguments of a Report in good order."""
    return {"arrivals": ArrivalState(), "newest": None, "now": None, "estimates": (), **more}


def greedy_weights(rng: np.random.Generator, n: int, streams: int) -> tuple[Array, Array]:
    """Draw weights 0, 1.2 or 125 of greedy candidates in an epsilon-greedy log, with the propensities of one column."""
    agrees = rng.random((n, streams)) < 0.3
    propensity = np.where(agrees, 0.808, 0.008)
    hit = rng.random((n, streams)) < propensity
    other = np.where(rng.random((n, streams)) < 0.808, 0.808, 0.008)
    return np.where(hit, 1 / propensity, 0.0), np.where(hit, propensity, other)[:, 0]


def smooth_weights(rng: np.random.Generator, n: int, streams: int) -> tuple[Array, Array]:
    """Draw weights of variance 0.2 for two actions and similar policies, with the propensities of one column."""
    propensity, target = rng.uniform(0.3, 0.7, (n, streams)), rng.uniform(0.2, 0.8, (n, streams))
    first = rng.random((n, streams)) < propensity
    weight = np.where(first, target / propensity, (1 - target) / (1 - propensity))
    return weight, np.where(first, propensity, 1 - propensity)[:, 0]


def sure_path(blocks: int, candidates: int, lift: Array | float = 1.0) -> Lift:
    """Return a path that leaves no doubt about the present lift."""
    value, nothing = np.broadcast_to(np.asarray(lift), (blocks, candidates)), np.zeros((blocks, candidates))
    return Lift(value, nothing, nothing, nothing)
