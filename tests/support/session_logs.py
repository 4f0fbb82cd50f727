"""Draw logs with sessions in their rewards."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def sessions(rng: np.random.Generator, events: int, at_a_time: int = 50) -> NDArray[np.int64]:
    """Return the session of each event, with 20 events on average."""
    return np.arange(events) // (20 * at_a_time) * at_a_time + rng.integers(at_a_time, size=events)


def correlated_rewards(session: NDArray[np.int64], rng: np.random.Generator, mean: Array | float = 0.3) -> Array:
    """Draw rewards of 0 or 1 with a correlation of .2 within a session."""
    shared, own = rng.random(int(session.max()) + 1)[session], rng.random(len(session))
    return (np.where(rng.random(len(session)) < 0.2**0.5, shared, own) < mean).astype(float)
