"""Compute sums that fade from step to step, in Cython's pure Python mode: see `ope.core.kernel`."""

from __future__ import annotations

import cython

__all__ = ["fade"]


def fade(path: cython.double[:, ::1], factors: cython.const_double[::1]) -> None:
    """Add to each row the remainder of the row before.

    Args:
        path: the state before the first step and the increment of each step, replaced by the states [steps + 1, n]
        factors: the share of the state that remains at each step [steps]

    >>> import numpy as np
    >>> path = np.array([[8.0], [1.0], [1.0]])
    >>> fade(path, np.array([0.5, 0.5]))
    >>> path.ravel()
    array([8. , 5. , 3.5])
    """
    step: cython.Py_ssize_t
    column: cython.Py_ssize_t
    for step in range(factors.shape[0]):
        for column in range(path.shape[1]):
            path[step + 1, column] = factors[step] * path[step, column] + path[step + 1, column]
