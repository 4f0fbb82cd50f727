"""Logs of a bandit from whose features a policy can learn."""

from __future__ import annotations

from typing import Any

import numpy as np

from streameval.events import EventBatch

ACTIONS, WIDTH = 4, 3


def log(events: int, seed: int = 1, **changes: Any) -> EventBatch:
    """A log of a bandit: the reward is most likely for the action whose features point along (1, -1, 0.5)."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(events, ACTIONS, WIDTH))
    scores = features @ np.array([1.0, -1.0, 0.5])
    propensities = np.exp(0.4 * rng.normal(size=scores.shape))
    propensities /= propensities.sum(axis=1, keepdims=True)
    action = (propensities.cumsum(axis=1) > rng.random((events, 1))).argmax(axis=1)
    chance = 1 / (1 + np.exp(-2 * scores[np.arange(events), action]))
    columns = {"action": action, "propensities": propensities, "features": features}
    return EventBatch.from_arrays(**{"reward": rng.random(events) < chance, **columns, **changes})
