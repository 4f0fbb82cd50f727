"""Compute bets, which need a loop over events, in Cython's pure Python mode like `ope/core/kernel.py`."""

from __future__ import annotations

import cython
from cython.cimports.libc.math import log

__all__ = ["log_wealth"]

_RUINED = cython.declare(cython.double, 1e-12)
"""Factor that remains of a wealth after an observation beyond every bound."""


def log_wealth(
    observed: cython.const_double[:, :, :], stake: cython.const_double[:, ::1], gained: cython.double[:, ::1]
) -> None:
    """Compute the logarithm of the product of `1 + stake y` over the events y of each block.

    The logarithm of a product is taken when it leaves the numbers that another factor, up to 1e51, cannot overflow.

    Args:
        observed: y [B, P, events]
        stake: [B, P]
        gained: is set to the logarithms [B, P]
    """
    b: cython.Py_ssize_t
    p: cython.Py_ssize_t
    i: cython.Py_ssize_t
    x: cython.double
    product: cython.double
    total: cython.double
    for p in range(observed.shape[1]):
        for b in range(observed.shape[0]):
            product = 1.0
            total = 0.0
            for i in range(observed.shape[2]):
                x = 1.0 + stake[b, p] * observed[b, p, i]
                product *= x if x > _RUINED else _RUINED
                if not 1e-100 < product < 1e100:
                    total += log(product)
                    product = 1.0
            gained[b, p] = total + log(product)
