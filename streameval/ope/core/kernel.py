"""Compute the loops of the core: sums over blocks, and what is carried from block to block.

The file is Cython in pure Python mode. Compiled, it runs at the speed of C. It also runs as it is, with equal results,
many times slower. Every sum is added up in one fixed order, so that the results depend neither on the machine nor on
how the stream is cut into batches.
"""

from __future__ import annotations

import cython
import numpy as np
from cython.cimports.libc.math import exp, fabs, isfinite, sqrt

__all__ = [
    "accumulate",
    "compiled",
    "contrasts",
    "extremes",
    "follow_spans",
    "follow_values",
    "interpolate",
    "mix",
    "products",
    "signed_sums",
]

ROUNDING = 1e-12
"""A difference below this share of its terms is rounding."""

_NAN = cython.declare(cython.double, float("nan"))
_ROUNDING = cython.declare(cython.double, ROUNDING)


NOTHING = np.zeros((0, 0, 0))
"""The empty array for `accumulate`, with which rounding stays."""


def compiled() -> bool:
    """Return whether the kernels are compiled."""
    return bool(cython.compiled)


def products(
    series: cython.const_double[:, :, ::1],
    weight: cython.const_double[:, ::1],
    both: cython.const_double[:, ::1],
    plain: cython.bint,
    edges: cython.const_longlong[::1],
    first: cython.const_longlong[::1],
    second: cython.const_longlong[::1],
    apart: cython.const_longlong[::1],
    count: cython.Py_ssize_t,
    out: cython.double[:, :, ::1],
) -> None:
    """Sum the weighted products of pairs of series over pieces of the events.

    `out[b, p, k]` becomes the sum of `q a b` over the events from `edges[b]` to `edges[b + 1]`.

    Args:
        series: [S, P, n], one row a policy
        weight: averaging weights [P, n]
        both: weights of the events that production has too [P, n]
        plain: whether all entries of `weight`, and so of `both`, are 1
        edges: the limits of the pieces [B + 1], in events
        first: number of the series `a` of each pair [K]: S and more is the series of policy 0, -1 is 1; at most `b`
        second: number of the series `b` of each pair [K], likewise
        apart: 1 if a pair takes the weights `both`, else 0 [K]
        count: the number of pairs to compute, from the first
        out: [B, P, K or more]
    """
    own: cython.Py_ssize_t = series.shape[0]
    policies: cython.Py_ssize_t = series.shape[1]
    pieces: cython.Py_ssize_t = edges.shape[0] - 1
    p: cython.Py_ssize_t
    b: cython.Py_ssize_t
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    start: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    stop4: cython.Py_ssize_t
    one: cython.Py_ssize_t
    other: cython.Py_ssize_t
    pone: cython.Py_ssize_t
    pother: cython.Py_ssize_t
    x0: cython.double
    x1: cython.double
    x2: cython.double
    x3: cython.double
    averaging: cython.const_double[:, ::1]
    for p in range(policies):
        for b in range(pieces):
            start = edges[b]
            stop = edges[b + 1]
            stop4 = start + (stop - start) // 4 * 4
            for k in range(count):
                one = first[k]
                other = second[k]
                pone = p
                pother = p
                if one >= own:
                    one -= own
                    pone = 0
                if other >= own:
                    other -= own
                    pother = 0
                x0 = x1 = x2 = x3 = 0.0
                if plain:
                    if other < 0:
                        x0 = float(stop - start)
                    elif one < 0:
                        for i in range(start, stop4, 4):
                            x0 += series[other, pother, i]
                            x1 += series[other, pother, i + 1]
                            x2 += series[other, pother, i + 2]
                            x3 += series[other, pother, i + 3]
                        for j in range(stop4, stop):
                            x0 += series[other, pother, j]
                    else:
                        for i in range(start, stop4, 4):
                            x0 += series[one, pone, i] * series[other, pother, i]
                            x1 += series[one, pone, i + 1] * series[other, pother, i + 1]
                            x2 += series[one, pone, i + 2] * series[other, pother, i + 2]
                            x3 += series[one, pone, i + 3] * series[other, pother, i + 3]
                        for j in range(stop4, stop):
                            x0 += series[one, pone, j] * series[other, pother, j]
                else:
                    averaging = both if apart[k] else weight
                    if other < 0:
                        for i in range(start, stop4, 4):
                            x0 += averaging[p, i]
                            x1 += averaging[p, i + 1]
                            x2 += averaging[p, i + 2]
                            x3 += averaging[p, i + 3]
                        for j in range(stop4, stop):
                            x0 += averaging[p, j]
                    elif one < 0:
                        for i in range(start, stop4, 4):
                            x0 += averaging[p, i] * series[other, pother, i]
                            x1 += averaging[p, i + 1] * series[other, pother, i + 1]
                            x2 += averaging[p, i + 2] * series[other, pother, i + 2]
                            x3 += averaging[p, i + 3] * series[other, pother, i + 3]
                        for j in range(stop4, stop):
                            x0 += averaging[p, j] * series[other, pother, j]
                    else:
                        for i in range(start, stop4, 4):
                            x0 += averaging[p, i] * series[one, pone, i] * series[other, pother, i]
                            x1 += averaging[p, i + 1] * series[one, pone, i + 1] * series[other, pother, i + 1]
                            x2 += averaging[p, i + 2] * series[one, pone, i + 2] * series[other, pother, i + 2]
                            x3 += averaging[p, i + 3] * series[one, pone, i + 3] * series[other, pother, i + 3]
                        for j in range(stop4, stop):
                            x0 += averaging[p, j] * series[one, pone, j] * series[other, pother, j]
                out[b, p, k] = (x0 + x1) + (x2 + x3)


def extremes(
    series: cython.const_double[:, :, ::1],
    weight: cython.const_double[:, ::1],
    both: cython.const_double[:, ::1],
    plain: cython.bint,
    edges: cython.const_longlong[::1],
    terms: cython.const_longlong[::1],
    apart: cython.const_longlong[::1],
    largest: cython.double[:, :, ::1],
    counts: cython.double[:, :, ::1],
    squares: cython.double[:, :, ::1],
) -> None:
    """Find maxima and numbers of events over pieces of the events.

    Args:
        series: [S, P, n], the importance weight is number 0
        weight: averaging weights [P, n]
        both: weights of the events that production has too [P, n]
        plain: whether all entries of `weight`, and so of `both`, are 1
        edges: the limits of the pieces [B + 1], in events
        terms: numbers of some series [M]
        apart: 1 if a series takes the weights `both`, else 0 [M]
        largest: becomes the largest weight, the largest importance weight, and the largest `q |u|` of each term, [B, P,
            2 + M]
        counts: becomes the number of events with a weight, with a weight in `both`, and with `q u` other than 0 of each
            term, [B, P, 2 + M]; nothing is counted if it is empty
        squares: becomes the sums of squares of both weights, [B, P, 2]
    """
    policies: cython.Py_ssize_t = series.shape[1]
    pieces: cython.Py_ssize_t = edges.shape[0] - 1
    wanted: cython.Py_ssize_t = terms.shape[0]
    counted: cython.bint = counts.shape[0] > 0
    averaging: cython.const_double[:, ::1]
    p: cython.Py_ssize_t
    b: cython.Py_ssize_t
    m: cython.Py_ssize_t
    i: cython.Py_ssize_t
    start: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    q: cython.double
    most: cython.double
    own: cython.double
    shared: cython.double
    square: cython.double
    shared_square: cython.double
    for p in range(policies):
        for b in range(pieces):
            start = edges[b]
            stop = edges[b + 1]
            own = shared = square = shared_square = float(stop - start)
            most = 1.0 if stop > start else 0.0
            if not plain:
                most = own = shared = square = shared_square = 0.0
                for i in range(start, stop):
                    q = weight[p, i]
                    square += q * q
                    most = q if q > most else most
                    own += 1.0 if q > 0 else 0.0
                    q = both[p, i]
                    shared_square += q * q
                    shared += 1.0 if q > 0 else 0.0
            squares[b, p, 0] = square
            squares[b, p, 1] = shared_square
            largest[b, p, 0] = most
            largest[b, p, 1] = _largest(series, weight, True, 0, p, start, stop)
            if counted:
                counts[b, p, 0] = own
                counts[b, p, 1] = shared
            for m in range(wanted):
                averaging = both if apart[m] else weight
                largest[b, p, 2 + m] = _largest(series, averaging, plain, terms[m], p, start, stop)
                if counted:
                    counts[b, p, 2 + m] = _nonzero(series, averaging, plain, terms[m], p, start, stop)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _largest(
    series: cython.const_double[:, :, ::1],
    averaging: cython.const_double[:, ::1],
    plain: cython.bint,
    term: cython.Py_ssize_t,
    p: cython.Py_ssize_t,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
) -> cython.double:
    """Find the largest `q |u|` of one piece.

    Four events in a row have their own maximum, so that none waits for the one before.
    """
    i: cython.Py_ssize_t
    stop4: cython.Py_ssize_t = start + (stop - start) // 4 * 4
    x0: cython.double
    x1: cython.double
    x2: cython.double
    x3: cython.double
    most0: cython.double = 0.0
    most1: cython.double = 0.0
    most2: cython.double = 0.0
    most3: cython.double = 0.0
    for i in range(start, stop4, 4):
        x0 = _size(series, averaging, plain, term, p, i)
        x1 = _size(series, averaging, plain, term, p, i + 1)
        x2 = _size(series, averaging, plain, term, p, i + 2)
        x3 = _size(series, averaging, plain, term, p, i + 3)
        most0 = x0 if x0 > most0 else most0
        most1 = x1 if x1 > most1 else most1
        most2 = x2 if x2 > most2 else most2
        most3 = x3 if x3 > most3 else most3
    for i in range(stop4, stop):
        x0 = _size(series, averaging, plain, term, p, i)
        most0 = x0 if x0 > most0 else most0
    most0 = most1 if most1 > most0 else most0
    most2 = most3 if most3 > most2 else most2
    return most2 if most2 > most0 else most0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _nonzero(
    series: cython.const_double[:, :, ::1],
    averaging: cython.const_double[:, ::1],
    plain: cython.bint,
    term: cython.Py_ssize_t,
    p: cython.Py_ssize_t,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
) -> cython.longlong:
    """Count the events of one piece with another `q u` than 0. An integer in a loop of its own needs no branches."""
    i: cython.Py_ssize_t
    number: cython.longlong = 0
    for i in range(start, stop):
        number += 1 if _size(series, averaging, plain, term, p, i) != 0 else 0
    return number


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _size(
    series: cython.const_double[:, :, ::1],
    averaging: cython.const_double[:, ::1],
    plain: cython.bint,
    term: cython.Py_ssize_t,
    p: cython.Py_ssize_t,
    i: cython.Py_ssize_t,
) -> cython.double:
    return fabs(series[term, p, i] if plain else averaging[p, i] * series[term, p, i])


def signed_sums(
    series: cython.const_double[:, :, ::1],
    weight: cython.const_double[:, ::1],
    both: cython.const_double[:, ::1],
    edges: cython.const_longlong[::1],
    terms: cython.const_longlong[::1],
    apart: cython.const_longlong[::1],
    signs: cython.const_double[:, ::1],
    out: cython.double[:, :, :, ::1],
) -> None:
    """Sum `s q u` over pieces of the events, for each of the signs `s` of an event.

    Args:
        series: [S, P, n]
        weight: averaging weights [P, n]
        both: weights of the events that production has too [P, n]
        edges: the limits of the pieces [B + 1], in events
        terms: numbers of the series `u` [M]: S and more is the series of policy 0, -1 is 1
        apart: 1 if a series takes the weights `both`, else 0 [M]
        signs: [n, signs]
        out: [B, P, M, signs]
    """
    own: cython.Py_ssize_t = series.shape[0]
    policies: cython.Py_ssize_t = series.shape[1]
    pieces: cython.Py_ssize_t = edges.shape[0] - 1
    wanted: cython.Py_ssize_t = terms.shape[0]
    number: cython.Py_ssize_t = signs.shape[1]
    p: cython.Py_ssize_t
    b: cython.Py_ssize_t
    m: cython.Py_ssize_t
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    term: cython.Py_ssize_t
    row: cython.Py_ssize_t
    x: cython.double
    for b in range(pieces):
        for p in range(policies):
            for m in range(wanted):
                for k in range(number):
                    out[b, p, m, k] = 0.0
                term = terms[m]
                row = p
                if term >= own:
                    term -= own
                    row = 0
                for i in range(edges[b], edges[b + 1]):
                    x = both[p, i] if apart[m] else weight[p, i]
                    if term >= 0:
                        x = x * series[term, row, i]
                    if x != 0:
                        for k in range(number):
                            out[b, p, m, k] += x * signs[i, k]


def contrasts(
    totals: cython.const_double[:, :, ::1],
    weights: cython.const_double[:, :, ::1],
    near: cython.bint,
    first: cython.const_longlong[::1],
    second: cython.const_longlong[::1],
    apart: cython.const_longlong[::1],
    signs: cython.Py_ssize_t,
    history: cython.Py_ssize_t,
    contrast: cython.double[::1],
    out: cython.double[:, :, ::1],
) -> None:
    """Compute the mean products of the contrasts of blocks with earlier ones.

    A near contrast is the difference of two successive blocks. A far one is the second difference of sums over ten
    blocks. A contrast counts if its first and last blocks have events.

    Args:
        totals: sums of terms, of earlier blocks and then of new ones [history + B, P, T * signs]
        weights: sums of squared weights, own and of both [history + B, P, 2]
        near: near contrasts, else far ones
        first: number of the first term of each product [K]
        second: number of the second term [K]
        apart: 1 if a product counts with the weights of both, else 0 [K]
        signs: the number of signs of each term, over which products are averaged
        history: the number of earlier blocks
        contrast: room for [T * signs]
        out: becomes the two weights and the products, [B, P, 2 + K]
    """
    blocks: cython.Py_ssize_t = totals.shape[0] - history
    policies: cython.Py_ssize_t = totals.shape[1]
    width: cython.Py_ssize_t = totals.shape[2]
    wanted: cython.Py_ssize_t = first.shape[0]
    reach: cython.Py_ssize_t = 1 if near else 29
    scale: cython.double = (2.0 if near else 60.0) * signs
    b: cython.Py_ssize_t
    p: cython.Py_ssize_t
    t: cython.Py_ssize_t
    k: cython.Py_ssize_t
    s: cython.Py_ssize_t
    here: cython.Py_ssize_t
    x: cython.double
    for b in range(blocks):
        here = history + b
        for p in range(policies):
            for s in range(2):
                out[b, p, s] = weights[here, p, s] if weights[here - reach, p, s] > 0 else 0.0
            for t in range(width):
                contrast[t] = _contrast(totals, near, here, p, t)
            for k in range(wanted):
                x = 0.0
                if out[b, p, 1 if apart[k] else 0] > 0:
                    for s in range(signs):
                        x += contrast[first[k] * signs + s] * contrast[second[k] * signs + s]
                    x = x / scale
                out[b, p, 2 + k] = x


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _contrast(
    totals: cython.const_double[:, :, ::1],
    near: cython.bint,
    here: cython.Py_ssize_t,
    policy: cython.Py_ssize_t,
    term: cython.Py_ssize_t,
) -> cython.double:
    i: cython.Py_ssize_t
    older: cython.double = 0.0
    middle: cython.double = 0.0
    newer: cython.double = 0.0
    if near:
        return totals[here, policy, term] - totals[here - 1, policy, term]
    for i in range(10):
        older += totals[here - 29 + i, policy, term]
        middle += totals[here - 19 + i, policy, term]
        newer += totals[here - 9 + i, policy, term]
    return (older + newer) - 2.0 * middle


def accumulate(
    state: cython.double[:, :, ::1],
    blocks: cython.const_double[:, :, ::1],
    take: cython.const_longlong[:, ::1],
    power: cython.const_longlong[::1],
    factor: cython.const_double[:, :, ::1],
    share: cython.const_double[:, :, ::1],
    lost: cython.double[:, :, ::1],
) -> None:
    """Fold blocks into a state: `state = factor state + share block` for sums, and the larger one for maxima.

    Args:
        state: changed in place [P, E, R]
        blocks: rows of each block [B, P, K]
        take: the row of a block that each row of the state sums [E, R]
        power: how a row fades [R]: 1 for a sum, 2 for a sum of squared weights, 3 for a maximum that fades, 0 for a
            maximum that does not
        factor: [B, P or 1, E or 1]
        share: [B, P or 1, E or 1]
        lost: what rounding has added to sums, which the next block takes back (Kahan), changed in place [P, E, R]; if
            it is empty, rounding stays
    """
    exact: cython.bint = lost.shape[0] > 0
    b: cython.Py_ssize_t
    p: cython.Py_ssize_t
    e: cython.Py_ssize_t
    r: cython.Py_ssize_t
    pf: cython.Py_ssize_t
    ef: cython.Py_ssize_t
    f: cython.double
    s: cython.double
    x: cython.double
    y: cython.double
    for p in range(state.shape[0]):
        pf = p if factor.shape[1] > 1 else 0
        for b in range(blocks.shape[0]):
            for e in range(state.shape[1]):
                ef = e if factor.shape[2] > 1 else 0
                f = factor[b, pf, ef]
                s = share[b, pf, ef]
                for r in range(state.shape[2]):
                    x = blocks[b, p, take[e, r]]
                    y = state[p, e, r]
                    if power[r] == 1 and exact:
                        y = f * y
                        x = s * x - f * lost[p, e, r]
                        state[p, e, r] = y + x
                        lost[p, e, r] = (state[p, e, r] - y) - x
                    elif power[r] == 1:
                        state[p, e, r] = f * y + s * x
                    elif power[r] == 2:
                        state[p, e, r] = f * f * y + s * s * x
                    elif power[r] == 3:
                        y = f * y
                        x = s * x
                        state[p, e, r] = x if x > y else y
                    else:
                        state[p, e, r] = x if x > y else y


def fade(state: cython.double[:, :, ::1], rows: cython.double[:, :, ::1], fading: cython.double[::1]) -> None:
    """Fold rows of blocks into sums that fade with several horizons: `state_j = fading_j state_j + row`.

    Args:
        state: changed in place [P, F, J]
        rows: [B, P, F]
        fading: the factor of each horizon over one block [J]
    """
    b: cython.Py_ssize_t
    p: cython.Py_ssize_t
    f: cython.Py_ssize_t
    j: cython.Py_ssize_t
    x: cython.double
    for b in range(rows.shape[0]):
        for p in range(state.shape[0]):
            for f in range(state.shape[1]):
                x = rows[b, p, f]
                for j in range(fading.shape[0]):
                    state[p, f, j] = fading[j] * state[p, f, j] + x


def mix(
    decays: cython.double[:, :, :, ::1],
    columns: cython.double[:, :, ::1],
    overlap: cython.double[:, :, ::1],
    events: cython.double[::1],
    size: cython.double,
    terms: cython.const_double[:, :, :, ::1],
    squares: cython.const_double[:, ::1],
    priors: cython.const_double[:, :, ::1],
    ratios: cython.const_longlong[::1],
    pools: cython.const_longlong[::1],
    rates: cython.const_double[::1],
    horizons: cython.const_double[:, ::1],
    constants: cython.const_double[::1],
    scratch: cython.double[:, ::1],
    estimates: cython.double[:, :, ::1],
    shares: cython.double[:, :, ::1],
    values: cython.double[:, :, ::1],
    errors: cython.bint,
    path: cython.double[:, :, :, ::1],
) -> None:
    """Fold blocks into a bank of decays, and find the mixture of them after each block.

    See `Mixture` for the formulas. J is the number of decays, C of components, P of policies, G of pools.

    Args:
        decays: weight, total, age and excess loss of each decay, changed in place [P, C, 4, J]
        columns: six recent sums of moments, the prior, its square and two sums of the trend, changed in place [P, C,
            10]
        overlap: sums of the products of two decays' weights, changed in place [P, J, J]
        events: the number of events of each policy before the blocks, becomes the one after them [P]
        size: events in each block
        terms: sums of `q, q u, q v, q u^2, q u v, q v^2` of each block [B, P, C, 6]
        squares: sums of `q^2` of each block [B, P]
        priors: the initial value of each component, and the second moment assumed for it, after each block [B, P, C +
            1]
        ratios: 1 if a component has a denominator, else 0 [C]
        pools: the pool of each policy [P]: the losses of a pool are added up
        rates: the learning rate of each pool [G]
        horizons: rows of horizons, factors over one block, and factors of losses over one block [3, J]
        constants: pseudo-events, events behind the prior noise, smallest share of the prior second moment, horizon and
            factor of recent sums, and the limits of horizons whose prior weight grows [7]
        scratch: room for [6, J]
        estimates: room for [P, C, J]
        shares: room for [G, C, J]
        values: room for value and noise [2, P, C]
        errors: whether to compute the variances in `path`
        path: becomes value and mean denominator before each block, and after it the value, its sampling variance and
            the spread of the decays [B, P, C, 5]
    """
    decay_count: cython.Py_ssize_t = horizons.shape[1]
    policies: cython.Py_ssize_t = decays.shape[0]
    components: cython.Py_ssize_t = decays.shape[1]
    blocks: cython.Py_ssize_t = terms.shape[0]
    last: cython.Py_ssize_t = decay_count - 1
    b: cython.Py_ssize_t
    p: cython.Py_ssize_t
    c: cython.Py_ssize_t
    j: cython.Py_ssize_t
    i: cython.Py_ssize_t
    cached: cython.Py_ssize_t
    alike: cython.bint
    ratio_block: cython.bint
    known: cython.bint
    w: cython.double
    x: cython.double
    y: cython.double
    value: cython.double
    noise: cython.double
    denominator: cython.double
    span: cython.double
    extent: cython.double
    slope: cython.double
    trend_squares: cython.double = 0.0
    alone_squares: cython.double = 0.0
    moved: cython.double

    alike = True
    for p in range(policies):
        for c in range(components):
            for j in range(decay_count):
                if decays[p, c, 0, j] != decays[0, 0, 0, j] or decays[p, c, 2, j] != decays[0, 0, 2, j]:
                    alike = False
        for j in range(decay_count):
            for i in range(decay_count):
                if overlap[p, j, i] != overlap[0, j, i]:
                    alike = False
    _mixed(decays, columns, events, pools, rates, horizons, constants, scratch, estimates, shares, values)
    for b in range(blocks):
        ratio_block = False
        for p in range(policies):
            for c in range(components):
                if terms[b, p, c, 2] != terms[b, p, c, 0]:
                    ratio_block = True
        # means, losses and decays
        for p in range(policies):
            for c in range(components):
                value = values[0, p, c]
                noise = values[1, p, c]
                w = terms[b, p, c, 0]
                denominator = _ratio(columns[p, c, 2], columns[p, c, 0])
                path[b, p, c, 0] = value
                path[b, p, c, 1] = denominator
                x = _ratio(terms[b, p, c, 1], terms[b, p, c, 2])
                if ratio_block and ratios[c]:
                    y = value + _ratio(terms[b, p, c, 1] - value * terms[b, p, c, 2], w * denominator)
                    if isfinite(y):
                        x = y
                known = w > 0 and isfinite(x)
                if not known:
                    w = 0.0
                    x = 0.0
                if (p or c) and alike and w != scratch[5, 0]:
                    # weights part: what was kept once is written for every policy
                    alike = False
                    for i in range(1, policies):
                        overlap[i, :, :] = overlap[0, :, :]
                if not (p or c):
                    scratch[5, 0] = w
                for j in range(decay_count):
                    y = 0.0
                    if known:
                        y = _ratio(w, 2.0 * noise)
                        y = (estimates[p, c, j] - x) * (estimates[p, c, j] - x) * y
                        if not isfinite(y):
                            y = 0.0
                    scratch[0, j] = y
                for j in range(decay_count):
                    y = scratch[0, j] - scratch[0, j + 1] if j < last else 0.0
                    decays[p, c, 3, j] = horizons[2, j] * decays[p, c, 3, j] + y
                    y = size * horizons[1, j] * decays[p, c, 0, j] + w * (size - 1.0) / 2.0
                    decays[p, c, 2, j] = horizons[1, j] * decays[p, c, 2, j] + y
                    decays[p, c, 0, j] = horizons[1, j] * decays[p, c, 0, j] + w
                    decays[p, c, 1, j] = horizons[1, j] * decays[p, c, 1, j] + w * x
                for j in range(6):
                    columns[p, c, j] = constants[4] * columns[p, c, j] + terms[b, p, c, j]
                columns[p, c, 6] = priors[b, p, c]
                columns[p, c, 7] = priors[b, p, components]
        for p in range(policies):
            if alike and squares[b, p] != squares[b, 0]:
                alike = False
                for i in range(1, policies):
                    overlap[i, :, :] = overlap[0, :, :]
        for p in range(1 if alike else policies):
            for j in range(decay_count):
                for i in range(decay_count):
                    overlap[p, j, i] = horizons[1, j] * horizons[1, i] * overlap[p, j, i] + squares[b, p]
        for p in range(policies):
            events[p] += size
        _mixed(decays, columns, events, pools, rates, horizons, constants, scratch, estimates, shares, values)
        # the trend, and errors
        for c in range(components):
            cached = -1
            for p in range(policies):
                if not (alike and cached == pools[p]):
                    _kernels(decays, overlap, shares, pools, p, c, alike, scratch)
                    cached = pools[p]
                    trend_squares = scratch[5, 1]
                    alone_squares = scratch[5, 2]
                noise = values[1, p, c]
                span = extent = slope = moved = 0.0
                for j in range(decay_count):
                    x = scratch[1, j] * decays[p, c, 2, j]
                    span -= x
                    extent += fabs(x)
                    slope += scratch[1, j] * decays[p, c, 1, j]
                    moved += scratch[2, j] * decays[p, c, 1, j]
                if not span > _ROUNDING * extent:
                    span = 0.0 if span == span else _NAN
                slope = _ratio(slope, span)
                w = _ratio(noise * trend_squares, span * span)
                x = _ratio(slope * slope, w) - 1.0
                y = _ratio(1.0, w)
                columns[p, c, 8] = constants[4] * columns[p, c, 8]
                columns[p, c, 9] = constants[4] * columns[p, c, 9]
                if isfinite(x) and isfinite(y):
                    columns[p, c, 8] += x
                    columns[p, c, 9] += y
                value = values[0, p, c]
                path[b, p, c, 2] = value
                if errors:
                    moved = value - moved
                    path[b, p, c, 3] = noise * alone_squares + moved * moved
                    y = 0.0
                    for j in range(decay_count):
                        x = estimates[p, c, j] - value
                        y += shares[pools[p], c, j] * (x * x)
                    path[b, p, c, 4] = y
    if alike:
        for i in range(1, policies):
            overlap[i, :, :] = overlap[0, :, :]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _ratio(numerator: cython.double, denominator: cython.double) -> cython.double:
    return numerator / denominator if denominator != 0 else _NAN


@cython.cfunc
@cython.exceptval(check=False)
def _mixed(
    decays: cython.double[:, :, :, ::1],
    columns: cython.double[:, :, ::1],
    events: cython.double[::1],
    pools: cython.const_longlong[::1],
    rates: cython.const_double[::1],
    horizons: cython.const_double[:, ::1],
    constants: cython.const_double[::1],
    scratch: cython.double[:, ::1],
    estimates: cython.double[:, :, ::1],
    shares: cython.double[:, :, ::1],
    values: cython.double[:, :, ::1],
) -> cython.void:
    """Find the estimates of all decays, their shares of the mixture, its value, and the noise of a term."""
    decay_count: cython.Py_ssize_t = horizons.shape[1]
    policies: cython.Py_ssize_t = decays.shape[0]
    components: cython.Py_ssize_t = decays.shape[1]
    p: cython.Py_ssize_t
    c: cython.Py_ssize_t
    g: cython.Py_ssize_t
    j: cython.Py_ssize_t
    x: cython.double
    y: cython.double
    z: cython.double
    prior: cython.double
    fading: cython.double
    seen: cython.double
    longest: cython.double
    for g in range(shares.shape[0]):
        for c in range(components):
            for j in range(decay_count):
                shares[g, c, j] = 0.0
    for p in range(policies):
        for c in range(components):
            for j in range(decay_count):
                shares[pools[p], c, j] += decays[p, c, 3, j]
    longest = -1.0
    for g in range(shares.shape[0]):
        seen = 0.0
        for p in range(policies):
            if pools[p] == g and events[p] > seen:
                seen = events[p]
        if seen != longest:
            longest = seen
            for j in range(decay_count):
                x = horizons[0, j] if horizons[0, j] < seen else seen
                x = constants[5] if x < constants[5] else x
                scratch[4, j] = sqrt(constants[6] if x > constants[6] else x)
        for c in range(components):
            y = 0.0
            z = shares[g, c, decay_count - 1]
            for j in range(decay_count - 1, -1, -1):
                y += shares[g, c, j]
                shares[g, c, j] = y
                z = y if y < z else z
            y = 0.0
            for j in range(decay_count):
                shares[g, c, j] = scratch[4, j] * exp(-rates[g] * (shares[g, c, j] - z))
                y += shares[g, c, j]
            for j in range(decay_count):
                shares[g, c, j] = shares[g, c, j] / y
    fading = 0.0
    for p in range(policies):
        if p == 0 or events[p] != events[p - 1]:
            fading = constants[1] * exp(-events[p] / constants[3])
            for j in range(decay_count):
                scratch[3, j] = constants[0] * exp(-events[p] / horizons[0, j])
        for c in range(components):
            prior = columns[p, c, 6]
            y = 0.0
            for j in range(decay_count):
                if prior == prior:
                    x = _ratio(decays[p, c, 1, j] + scratch[3, j] * prior, decays[p, c, 0, j] + scratch[3, j])
                else:
                    x = _ratio(decays[p, c, 1, j], decays[p, c, 0, j])
                estimates[p, c, j] = x
                y += shares[pools[p], c, j] * x
            values[0, p, c] = y
            values[1, p, c] = _noise(columns, p, c, fading, constants[2])


@cython.cfunc
@cython.exceptval(check=False)
def _noise(
    columns: cython.double[:, :, ::1],
    p: cython.Py_ssize_t,
    c: cython.Py_ssize_t,
    prior: cython.double,
    smallest: cython.double,
) -> cython.double:
    """Find the variance of one event's term, with a prior second moment that counts like `prior` events.

    It is at least the share `smallest` of this second moment.
    """
    weight: cython.double = columns[p, c, 0]
    u: cython.double = columns[p, c, 1]
    v: cython.double = columns[p, c, 2]
    expected: cython.double = prior * columns[p, c, 7]
    value: cython.double
    size: cython.double
    square: cython.double
    other: cython.double
    if fabs(v - weight) <= _ROUNDING * weight:
        value = _ratio(u, weight)
        square = _ratio(columns[p, c, 3] + expected, weight + prior)
        size = columns[p, c, 6] if columns[p, c, 6] == columns[p, c, 6] else 0.0
        size = _ratio(u + prior * size, weight + prior)
        other = (square - size * size) / 4.0
        square = square - value * value
        square = _larger(square, other)
    else:
        value = _ratio(u, v)
        size = columns[p, c, 3] + value * value * columns[p, c, 5]
        square = size - 2.0 * value * columns[p, c, 4]
        if not square > _ROUNDING * size:
            square = 0.0 if square == square else _NAN
        square = _ratio(square * weight, v * v)
        square = _ratio(weight * square + expected, weight + prior)
    return _larger(square, smallest * columns[p, c, 7])


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _larger(one: cython.double, other: cython.double) -> cython.double:
    if one != one or other != other:
        return _NAN
    return one if one > other else other


@cython.cfunc
@cython.exceptval(check=False)
def _kernels(
    decays: cython.double[:, :, :, ::1],
    overlap: cython.double[:, :, ::1],
    shares: cython.double[:, :, ::1],
    pools: cython.const_longlong[::1],
    p: cython.Py_ssize_t,
    c: cython.Py_ssize_t,
    alike: cython.bint,
    scratch: cython.double[:, ::1],
) -> cython.void:
    """Find the weights of decays' events in the trend and in the mixture, and the sums of their squares."""
    decay_count: cython.Py_ssize_t = decays.shape[3]
    last: cython.Py_ssize_t = decay_count - 1
    g: cython.Py_ssize_t = pools[p]
    row: cython.Py_ssize_t = 0 if alike else p
    j: cython.Py_ssize_t
    i: cython.Py_ssize_t
    shorter: cython.double
    longer: cython.double
    x: cython.double
    y: cython.double
    trend: cython.double = 0.0
    alone: cython.double = 0.0
    for j in range(decay_count):
        shorter = shares[g, c, j + 1] if j < last else 0.0
        shorter += shares[g, c, 0] if j == 0 else 0.0
        longer = shares[g, c, j - 1] if j > 0 else 0.0
        longer += shares[g, c, last] if j == last else 0.0
        scratch[1, j] = _ratio(shorter - longer, decays[p, c, 0, j])
        scratch[2, j] = _ratio(shares[g, c, j], decays[p, c, 0, j])
    for j in range(decay_count):
        x = y = 0.0
        for i in range(decay_count):
            x += overlap[row, j, i] * scratch[1, i]
            y += overlap[row, j, i] * scratch[2, i]
        trend += x * scratch[1, j]
        alone += y * scratch[2, j]
    scratch[5, 1] = trend
    scratch[5, 2] = alone


def trace(
    state: cython.double[:, :, ::1],
    blocks: cython.const_double[:, :, ::1],
    take: cython.const_longlong[:, ::1],
    factor: cython.double,
    out: cython.double[:, :, :, ::1],
) -> None:
    """Fold blocks into sums that fade by one factor a block, and keep the sums after each block.

    Args:
        state: changed in place [P, E, R]
        blocks: rows of each block [B, P, K]
        take: the row of a block that each row of the state sums [E, R]
        factor: of one block
        out: [B, P, E, R]
    """
    b: cython.Py_ssize_t
    p: cython.Py_ssize_t
    e: cython.Py_ssize_t
    r: cython.Py_ssize_t
    for b in range(blocks.shape[0]):
        for p in range(state.shape[0]):
            for e in range(state.shape[1]):
                for r in range(state.shape[2]):
                    state[p, e, r] = factor * state[p, e, r] + blocks[b, p, take[e, r]]
                    out[b, p, e, r] = state[p, e, r]


def interpolate(
    numbers: cython.const_double[:, ::1],
    edges: cython.const_double[:, ::1],
    values: cython.const_double[::1],
    out: cython.double[:, ::1],
) -> None:
    """Interpolate linearly between values at edges that are others in each row, as `numpy.interp` does in one row.

    Args:
        numbers: where to interpolate [B, N]
        edges: in ascending order [B, K]
        values: at the edges [K]
        out: becomes the interpolated values [B, N]
    """
    last: cython.Py_ssize_t = edges.shape[1] - 1
    b: cython.Py_ssize_t
    n: cython.Py_ssize_t
    low: cython.Py_ssize_t
    high: cython.Py_ssize_t
    middle: cython.Py_ssize_t
    x: cython.double
    share: cython.double
    for b in range(numbers.shape[0]):
        for n in range(numbers.shape[1]):
            x = numbers[b, n]
            low = 0
            high = last
            while high - low > 1:
                middle = (low + high) // 2
                if edges[b, middle] <= x:
                    low = middle
                else:
                    high = middle
            if x <= edges[b, low]:
                share = 0.0
            elif x >= edges[b, high]:
                share = 1.0
            else:
                share = (x - edges[b, low]) / (edges[b, high] - edges[b, low])
            out[b, n] = values[low] + share * (values[high] - values[low])


def follow_values(
    sums: cython.const_double[:, :, :, ::1],
    smoothed: cython.double[:, :, :, ::1],
    values: cython.double[:, :, ::1],
    latest: cython.double[:, :, ::1],
    mean: cython.double[:, ::1],
    before: cython.const_longlong[::1],
    fading: cython.double,
    least: cython.Py_ssize_t,
    span: cython.double,
    out: cython.double[:, :, ::1],
) -> None:
    """Follow how fast values move: `|V(t) - V(t - span)| / span`, averaged over the last block ends.

    Args:
        sums: weight, numerator and denominator of each block [B, P, E, 3]
        smoothed: the blocks of a window, or one decayed sum, of both parts of a ratio, changed in place [P, E, W, 2]
        values: the smoothed values of the blocks of one span, changed in place [P, E, L]
        latest: the rates at the last block ends, changed in place [P, E, 5]
        mean: the mean of the rates after the last block with events, changed in place [P, E]
        before: the number of blocks of each policy before [P]
        fading: the factor of a decayed sum over one block; 0 for a window
        least: the number of blocks before a value counts
        span: in events
        out: the mean rate after each block, NaN while unknown [B, P, E]
    """
    window: cython.Py_ssize_t = smoothed.shape[2]
    length: cython.Py_ssize_t = values.shape[2]
    kept: cython.Py_ssize_t = latest.shape[2]
    number: cython.Py_ssize_t
    b: cython.Py_ssize_t
    p: cython.Py_ssize_t
    e: cython.Py_ssize_t
    i: cython.Py_ssize_t
    place: cython.Py_ssize_t
    u: cython.double
    v: cython.double
    x: cython.double
    total: cython.double
    known: cython.double
    for p in range(sums.shape[1]):
        number = before[p]
        for e in range(sums.shape[2]):
            for b in range(sums.shape[0]):
                u = v = 0.0
                if fading > 0:
                    u = smoothed[p, e, 0, 0] = fading * smoothed[p, e, 0, 0] + sums[b, p, e, 1]
                    v = smoothed[p, e, 0, 1] = fading * smoothed[p, e, 0, 1] + sums[b, p, e, 2]
                else:
                    place = (number + b) % window
                    smoothed[p, e, place, 0] = sums[b, p, e, 1]
                    smoothed[p, e, place, 1] = sums[b, p, e, 2]
                    for i in range(window):
                        u += smoothed[p, e, i, 0]
                        v += smoothed[p, e, i, 1]
                x = _ratio(u, v)
                if number + b < least:
                    x = _NAN
                place = (number + b) % length
                total = fabs(x - values[p, e, place])
                if total <= _ROUNDING * fabs(x):
                    total = 0.0
                values[p, e, place] = x
                latest[p, e, (number + b) % kept] = total / span
                if sums[b, p, e, 0] > 0:
                    total = known = 0.0
                    for i in range(kept):
                        if latest[p, e, i] == latest[p, e, i]:
                            total += latest[p, e, i]
                            known += 1.0
                    mean[p, e] = _ratio(total, known)
                out[b, p, e] = mean[p, e]


def follow_spans(
    sums: cython.const_double[:, :, :, ::1],
    smoothed: cython.double[:, :, :, ::1],
    values: cython.double[:, :, ::1],
    moved: cython.double[:, :, :, ::1],
    noise: cython.double[:, :, ::1],
    rate: cython.double[:, ::1],
    before: cython.const_longlong[::1],
    spans: cython.const_longlong[::1],
    fading: cython.double,
    size: cython.double,
    out: cython.double[:, :, ::1],
) -> None:
    """Follow how fast values move over several spans, beyond their noise. The rate is the largest of all spans.

    The noise of a value is the noise of its blocks: half the mean square of the differences of successive ones. A block
    deviates from the value before it, because a value follows a very large weight. So values count from the second full
    window on. The mean square of the differences over a span counts beyond a quantile of what noise alone gives. It is
    98 % of chi-square over its degrees of freedom m, by Wilson and Hilferty `(1 - 2 / (9 m) + 2 sqrt(2 / (9 m)))^3`.

    Args:
        sums: weight, numerator and denominator of each block [B, P, E, 3]
        smoothed: the blocks of a window, of both parts of a ratio, changed in place [P, E, W, 2]
        values: the values of windows at the last block ends, changed in place [P, E, L]
        moved: sums of the squared differences over each span, and of their weights, changed in place [P, E, S, 2]
        noise: sum of the squared differences of successive blocks, and of their weights, changed in place [P, E, 2]
        rate: the rate after the last block with events, changed in place [P, E]
        before: the number of blocks of each policy before [P]
        spans: in blocks, at most L [S]
        fading: the factor of the sums over one block
        size: events in a block
        out: the rate after each block, NaN while unknown [B, P, E]
    """
    window: cython.Py_ssize_t = smoothed.shape[2]
    length: cython.Py_ssize_t = values.shape[2]
    number: cython.Py_ssize_t
    b: cython.Py_ssize_t
    p: cython.Py_ssize_t
    e: cython.Py_ssize_t
    i: cython.Py_ssize_t
    place: cython.Py_ssize_t
    u: cython.double
    v: cython.double
    x: cython.double
    y: cython.double
    spread: cython.double
    apart: cython.double
    largest: cython.double
    for p in range(sums.shape[1]):
        for e in range(sums.shape[2]):
            for b in range(sums.shape[0]):
                number = before[p] + b
                place = number % window
                u = v = 0.0
                for i in range(window):
                    if i != place:
                        u += smoothed[p, e, i, 0]
                        v += smoothed[p, e, i, 1]
                x = _ratio(u, v)
                if sums[b, p, e, 0] > 0 and x == x:
                    i = (number + window - 1) % window
                    y = sums[b, p, e, 1] - smoothed[p, e, i, 0] - x * (sums[b, p, e, 2] - smoothed[p, e, i, 1])
                    noise[p, e, 0] = fading * noise[p, e, 0] + y * y
                    noise[p, e, 1] = fading * noise[p, e, 1] + 1.0
                smoothed[p, e, place, 0] = sums[b, p, e, 1]
                smoothed[p, e, place, 1] = sums[b, p, e, 2]
                u += sums[b, p, e, 1]
                v += sums[b, p, e, 2]
                x = _ratio(u, v) if number >= 2 * window - 1 else _NAN
                if sums[b, p, e, 0] > 0 and x == x:
                    spread = window * _ratio(noise[p, e, 0], noise[p, e, 1]) / (v * v)  # twice the variance of a value
                    largest = _NAN
                    for i in range(spans.shape[0]):
                        y = x - values[p, e, (number - spans[i]) % length] if number >= spans[i] else _NAN
                        if y == y:
                            if fabs(y) <= _ROUNDING * fabs(x):
                                y = 0.0
                            moved[p, e, i, 0] = fading * moved[p, e, i, 0] + y * y
                            moved[p, e, i, 1] = fading * moved[p, e, i, 1] + 1.0
                        apart = spans[i] if spans[i] > window else window
                        if moved[p, e, i, 1] >= 2.0 * apart:  # fewer independent differences show little
                            y = 2.0 / 9.0 * apart / moved[p, e, i, 1]
                            y = 1.0 - y + 2.0 * sqrt(y)
                            y = y * y * y
                            if spans[i] < window:  # windows that overlap share noise
                                y = y * spans[i] / window
                            y = moved[p, e, i, 0] / moved[p, e, i, 1] - y * spread
                            y = sqrt(y) / (spans[i] * size) if y > 0 else 0.0
                            if not y <= largest:
                                largest = y
                    rate[p, e] = largest
                values[p, e, number % length] = x
                out[b, p, e] = rate[p, e]
