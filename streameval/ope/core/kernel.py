"""The loops over events, in the pure Python mode of Cython: compiled when the package is built, if it can be.

Sums are taken in the order of the events, in plain double precision, so that the compiled and the uncompiled form give
the same bits on every machine.
"""

from __future__ import annotations

import cython


def compiled() -> bool:
    """Tell whether this module is compiled."""
    return bool(cython.compiled)


def products(
    series: cython.const_double[:, :, :],
    weight: cython.const_double[:, :],
    first: cython.const_longlong[:],
    second: cython.const_longlong[:],
    size: cython.Py_ssize_t,
    out: cython.double[:, :, :],
) -> None:
    """Sum the products of pairs of series over each block of events.

    `out[p, b, k]` becomes the sum of `weight[p, n] * series[first[k], p, n] * series[second[k], p, n]` over the events
    n of block b. The last block may be shorter.

    Args:
        series: The values, [series, policies, events].
        weight: The factor of each event, [policies, events], or [1, events] if it is that of all policies.
        first: The first series of each pair.
        second: The second series of each pair.
        size: The number of events in a block.
        out: The sums, [policies, blocks, pairs].

    Raises:
        ValueError: The arrays do not fit each other.
    """
    policies: cython.Py_ssize_t = series.shape[1]
    events: cython.Py_ssize_t = series.shape[2]
    blocks: cython.Py_ssize_t = out.shape[1]
    pairs: cython.Py_ssize_t = out.shape[2]
    policy: cython.Py_ssize_t
    block: cython.Py_ssize_t
    pair: cython.Py_ssize_t
    event: cython.Py_ssize_t
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    total: cython.double
    fits: cython.bint = (
        out.shape[0] == policies
        and (weight.shape[0] == policies or weight.shape[0] == 1)
        and weight.shape[1] == events
        and first.shape[0] == pairs
        and second.shape[0] == pairs
        and size > 0
        and blocks * size >= events
    )
    for pair in range(pairs if fits else 0):
        fits = fits and 0 <= first[pair] < series.shape[0] and 0 <= second[pair] < series.shape[0]
    if not fits:
        raise ValueError("the arrays do not fit each other")
    for policy in range(policies):
        row = policy if weight.shape[0] > 1 else 0
        for block in range(blocks):
            for pair in range(pairs):
                i, j = first[pair], second[pair]
                total = 0.0
                for event in range(block * size, min((block + 1) * size, events)):
                    total += weight[row, event] * series[i, policy, event] * series[j, policy, event]
                out[policy, block, pair] = total
