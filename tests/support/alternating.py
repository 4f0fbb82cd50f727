"""Make a log for the rule `bsea`: a candidate becomes promotable and ceases to be, again and again."""

from __future__ import annotations

from typing import Any

import numpy as np

PROPENSITY = 0.5
AHEAD, BEHIND = 0.6, 0.4
"""Probabilities of the candidate while its mean rises above the mean of production, and while it falls below."""
PROMOTION: dict[str, Any] = {
    "rule": "bsea",
    "hold": 1,
    "min_events": 0,
    "trust": {"stale_after": None, "error": 1e-300},
}


FIRST, STRETCH = 231, 433
"""Events of the first stretch and of each other one. The mean lift is never 0 at the end of a block."""


def probabilities(transitions: int) -> np.ndarray:
    """Return the candidate's probability of each logged action, all with a reward of 1.

    The candidate is ahead and behind in turn. The mean lift changes its sign once in each stretch.
    """
    sides = np.where(np.arange(transitions) % 2 == 0, AHEAD, BEHIND)
    return np.repeat(sides, [FIRST] + [STRETCH] * (transitions - 1))


def columns(transitions: int) -> dict[str, Any]:
    """Return the log as arguments of `EventBatch.from_arrays`."""
    probability = probabilities(transitions)
    events = len(probability)
    return {
        "reward": np.ones(events),
        "propensity": np.full(events, PROPENSITY),
        "timestamp": 1_700_000_000.0 + np.arange(events),
        "policies": {"challenger": probability},
    }
