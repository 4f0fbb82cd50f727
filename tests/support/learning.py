"""Make logs of a bandit with features that a policy can learn from."""

from __future__ import annotations

from typing import Any

import numpy as np

from streameval.events import EventBatch

ACTIONS, WIDTH = 4, 3


def log(events: int, seed: int = 1, **changes: Any) -> EventBatch:
    """Draw a log of a bandit. The closer an action's features point along (1, -1, 0.5), the likelier its reward."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(events, ACTIONS, WIDTH))
    scores = features @ np.array([1.0, -1.0, 0.5])
    propensities = np.exp(0.4 * rng.normal(size=scores.shape))
    propensities /= propensities.sum(axis=1, keepdims=True)
    action = (propensities.cumsum(axis=1) > rng.random((events, 1))).argmax(axis=1)
    chance = 1 / (1 + np.exp(-2 * scores[np.arange(events), action]))
    columns = {"action": action, "propensities": propensities, "features": features}
    return EventBatch.from_arrays(**{"reward": rng.random(events) < chance, **columns, **changes})
