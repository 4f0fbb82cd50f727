"""Compute terms that need a loop over events, in Cython's pure Python mode like `ope/core/kernel.py`."""

from __future__ import annotations

import cython

__all__ = ["controlled_terms"]

_ROUNDING = cython.declare(cython.double, 1e-12)
"""A variance below this share of its terms is rounding."""


def controlled_terms(
    weight: cython.const_double[:, ::1],
    reward: cython.const_double[:, ::1],
    averaging: cython.const_double[:, ::1],
    edges: cython.const_longlong[::1],
    threshold: cython.double,
    fading: cython.double,
    recent: cython.double[:, ::1],
    terms: cython.double[:, :, ::1],
    sums: cython.double[:, :, ::1],
) -> None:
    """Split `w r` at a weight, with the weight as control variate of the part above: `w r - beta (w - 1)`.

    `beta = cov(w r, w) / var(w)` of the part above, from the sums before each block. It is 0 if the weight does not
    vary.

    Args:
        weight: importance weights w [P, n]
        reward: `w r` [P, n]
        averaging: averaging weights q [P, n]
        edges: the limits of the blocks, in events [B + 1]
        threshold: the largest weight of the part below
        fading: the factor of the sums over one block
        recent: faded sums of `q, q w, q u, q w^2, q u w` for the part above u, changed in place [P, 5]
        terms: is set to the whole term, the part below, and the part above with its control variate [3, P, n]
        sums: is set to the sums of each block as in `recent`, and of `q w` up to the threshold [B, P, 6]
    """
    p: cython.Py_ssize_t
    b: cython.Py_ssize_t
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    q: cython.double
    w: cython.double
    u: cython.double
    low: cython.double
    qw: cython.double
    beta: cython.double
    variance: cython.double
    count: cython.double
    total: cython.double
    below: cython.double
    above: cython.double
    square: cython.double
    product: cython.double
    for p in range(weight.shape[0]):
        for b in range(edges.shape[0] - 1):
            beta = 0.0
            variance = recent[p, 3] * recent[p, 0] - recent[p, 1] * recent[p, 1]
            if variance > _ROUNDING * recent[p, 3] * recent[p, 0]:
                beta = (recent[p, 4] * recent[p, 0] - recent[p, 2] * recent[p, 1]) / variance
            count = total = below = above = square = product = 0.0
            for i in range(edges[b], edges[b + 1]):
                q = averaging[p, i]
                w = weight[p, i]
                qw = q * w
                low = reward[p, i] if w <= threshold else 0.0
                u = reward[p, i] - low
                count += q
                total += qw
                above += q * u
                square += qw * w
                product += qw * u
                below += qw if w <= threshold else 0.0
                u = u - beta * (w - 1.0)
                terms[0, p, i] = low + u
                terms[1, p, i] = low
                terms[2, p, i] = u
            sums[b, p, 0] = count
            sums[b, p, 1] = total
            sums[b, p, 2] = above
            sums[b, p, 3] = square
            sums[b, p, 4] = product
            sums[b, p, 5] = below
            for k in range(5):
                recent[p, k] = fading * recent[p, k] + sums[b, p, k]
