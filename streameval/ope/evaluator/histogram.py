"""Sort rewards into buckets that grow by 1 %, to read quantiles of any stream from sums."""

from __future__ import annotations

import numpy as np

from streameval.common.arrays import Array, Integers

EDGES = np.geomspace(1e-9, 1e18, 6_250)
"""Upper ends of buckets, as distances from the smallest reward. A bucket is 1 % wider than the one before it."""
BUCKETS = len(EDGES) + 1
"""Number of buckets. The last one has all larger rewards."""


def buckets(rewards: Array, low: float) -> Integers:
    """Return the bucket of each reward, given the smallest possible one."""
    return np.searchsorted(EDGES, rewards - low)
