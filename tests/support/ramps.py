"""Simulated ramps: production explores, a challenger gets a share of the traffic, and the arms are drawn per event."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

ACTIONS, EPSILON = 25, 0.2
ARMS = ("production", "challenger")


class Ramp(NamedTuple):
    """The log of a ramp as arguments of `EventBatch.from_arrays`, and the true value of the challenger."""

    columns: dict[str, Any]
    value: float


def ramp(seed: int, events: int = 10_000, share: float = 0.1) -> Ramp:
    """Production prefers another action in each of five contexts, and explores; the challenger prefers the next one.

    The challenger does not explore. Mean rewards differ by context and action.
    """
    rng = np.random.default_rng(seed)
    contexts = 5
    means = np.random.default_rng(7).uniform(0.05, 0.5, (contexts, ACTIONS))
    context, arm = rng.integers(0, contexts, events), (rng.uniform(size=events) < share).astype(int)
    policies = np.full((2, contexts, ACTIONS), EPSILON / ACTIONS)
    places = np.arange(contexts)
    policies[0, places, places] += 1 - EPSILON
    policies[1] = np.eye(ACTIONS)[places + 1]
    chosen = policies[arm, context]
    action = (rng.uniform(size=(events, 1)) > chosen.cumsum(axis=1)).sum(axis=1).clip(0, ACTIONS - 1)
    reward = (rng.uniform(size=events) < means[context, action]).astype(float)
    columns = {
        "reward": reward,
        "propensity": chosen[np.arange(events), action],
        "policies": {name: policies[place, context, action] for place, name in enumerate(ARMS)},
        "logging_policy": np.array(ARMS, dtype=object)[arm],
    }
    return Ramp(columns, float(means[places, places + 1].mean()))
