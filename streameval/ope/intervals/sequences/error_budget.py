"""How candidates share one error probability, however many of them may come."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from streameval.common.arrays import Array


def error_shares(error: float, ranks: Sequence[int], family_size: int | None = None) -> Array:
    """The error probability of each candidate, whose `ranks` say the how many-th it is that was ever added.

    The i-th gets `6 error / (pi i)^2`, which add up to `error` over all there may ever be; so that one more candidate
    costs the others nothing. With a `family_size`, each gets an equal share of so many.

    >>> error_shares(0.05, [1, 2, 3]).round(4), error_shares(0.05, [1, 2, 3], family_size=10)
    (array([0.0304, 0.0076, 0.0034]), array([0.005, 0.005, 0.005]))
    """
    if family_size is not None:
        return np.full(len(ranks), error / family_size)
    return 6.0 * error / (math.pi * np.asarray(ranks, dtype=float)) ** 2
