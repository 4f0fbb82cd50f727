"""How exactly probabilities are logged, and what is taken for rounding alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streameval.common.arrays import Array

NOISE = 1e-6
"""A candidate's probability may exceed 1 by this, and any sum miss it: logs are often float32."""
HALF_A_UNIT = 0.5e-6
"""Logs often hold six digits. Then every entry of a distribution may be off by this, and the sum by that many times."""
CERTAIN = 1.0 + 1e-9
"""The logging policy's probabilities up to this are 1: quotients and sums of floats miss it by some 1e-16 a step."""


def tolerance(actions: NDArray[np.int64]) -> Array:
    """By how much the sums of distributions over so many actions may miss 1.

    What passes is not mended: a sum that is off by rounding changes an estimate by no more, relatively.

    >>> tolerance(np.array([2, 20]))
    array([2.0e-06, 1.1e-05])
    """
    return np.asarray(NOISE + HALF_A_UNIT * actions, dtype=np.float64)


def at_most_one(values: Array) -> Array:
    """The values, where those above 1 by no more than rounding are 1 now (in place).

    >>> at_most_one(np.array([0.5, 1.0000000000000002, 1.1, np.nan]))
    array([0.5, 1. , 1.1, nan])
    """
    values[(values > 1.0) & (values <= CERTAIN)] = 1.0
    return values
