"""Moments: the weighted sums of terms that an average keeps, and how they are added, faded and read.

An event with averaging weight `q` (the inverse sampling probability times the weight of its age) adds to each column
(one policy under one estimator) the numbers of `MomentRow`, the last three of which are maxima. Where lifts are needed,
the sums of `PairRow` follow. Nothing is ever subtracted: importance weights are heavy-tailed, and taking an old value
out of a floating-point sum destroys it.

A lift is the difference of two estimates from the same events. Its variance needs the products of both terms, `(u, v)`
of the policy and `(pu, pv)` of production, over the events that have both since production last changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cache
from itertools import combinations_with_replacement

import numpy as np

from streameval.common.arrays import ROUNDING, Array, Integers, beyond_rounding, per_block, ratio

__all__ = ["ALL_ROWS", "fade", "fold", "merge", "nothing", "total"]

TERMS = ("u", "v", "pu", "pv")
"""Numerator and denominator of the policy's term, then those of production's."""
PRODUCTS = tuple(combinations_with_replacement(TERMS, 2))


class PairRow(IntEnum):
    """Places on the last axis of an array of pair sums; ten products follow the first five, in the order of PRODUCTS.

    Events count `q` times; `w` is the importance weight of the policy.
    """

    WEIGHT = 0
    U = 1
    V = 2
    PU = 3
    PV = 4
    FIRST_PRODUCT = 5
    WEIGHT_SQUARE = 15  # sum q^2
    IMPORTANCE = 16  # sum q w
    IMPORTANCE_SQUARE = 17
    U_IMPORTANCE = 18  # sum q u w
    PU_IMPORTANCE = 19  # sum q pu w


PAIR_SUMS = slice(PairRow.U, PairRow.PV + 1)
"""The sums of the four terms."""
OWN_VARIANCE = slice(0, 8)
"""Rows of a variance: weight, terms u and v, their 3 products, squared weight, blocks."""
NONZERO = 8
"""Row of a variance: events with u != 0."""
PAIR_VARIANCE = slice(9, 26)
"""The same rows as OWN_VARIANCE of TERMS, which have 10 products, on the events that production has too."""
TAIL_ROWS = [*range(7), NONZERO, *range(9, 25)]
"""The rows of a variance without the blocks, to which the unfinished block adds."""
OWN_TOTALS = [6, 1, 2]
"""Rows of a variance from which blocks are compared: squared weight and terms."""
BOTH_TOTALS = [6, 24, *range(10, 14), 1, 2]
"""The same with a pair: both squared weights, TERMS, and then u and v."""


upper_triangle = cache(np.triu_indices)
"""The places of the products of this many terms, as `numpy.triu_indices`; asked for many times by every Report."""


def linear_form(sums: Array, terms: int) -> Array:
    """One event's deviation as a weighted sum of the first `terms` of TERMS, by the delta method, [..., terms].

    Of two terms `(u - E v) / mean(v)`, of four that less `(pu - P pv) / mean(pv)`; E and P are the estimates. `sums`:
    of the weight and of each term.
    """
    form = []
    for first, sign in zip(range(1, terms, 2), (1.0, -1.0), strict=False):
        numerator, denominator = sums[..., first], sums[..., first + 1]
        scale = sign * ratio(sums[..., 0], denominator)
        with np.errstate(over="ignore", invalid="ignore"):
            form += [scale, -scale * ratio(numerator, denominator)]
    return np.stack(form, axis=-1)


def sum_of_squares(form: Array, products: Array) -> Array:
    """Sum of the squares of a linear form [..., k] from the sums of the products of its terms; rounding counts as 0."""
    first, second = upper_triangle(form.shape[-1])
    twice = np.where(first == second, 1.0, 2.0)
    with np.errstate(over="ignore", invalid="ignore"):
        parts = twice * form[..., first] * form[..., second] * products
        square, size = parts.sum(axis=-1), np.abs(parts).sum(axis=-1)
    return beyond_rounding(square, size)


def linearised_variance(sums: Array, terms: int) -> Array:
    """Variance of one event's deviation, from sums of the weight, of each term, and of their products."""
    products = sums[..., 1 + terms : 1 + terms + terms * (terms + 1) // 2]
    return ratio(sum_of_squares(linear_form(sums, terms), products), sums[..., 0])


def squares_of_denominators(sums: Array, terms: int) -> Array:
    """Sums of the squares of the denominators among the first `terms` of TERMS, [..., terms / 2]."""
    products = list(combinations_with_replacement(range(terms), 2))
    places = [1 + terms + products.index((place, place)) for place in range(1, terms, 2)]
    return np.asarray(sums[..., places])


def effective_denominators(sums: Array, terms: int) -> Array:
    """Kish's effective number of events by their denominators; of a pair, the lesser one of both policies."""
    total = sums[..., 2 : 1 + terms : 2]
    return np.asarray(ratio(total**2, squares_of_denominators(sums, terms)).min(axis=-1))


class MomentRow(IntEnum):
    """Places on the last axis of an array of moments."""

    WEIGHT = 0  # S0 = sum q
    U = 1  # sum q u, u the numerator of the term
    V = 2  # sum q v, v its denominator (1 where the estimator has none)
    UU = 3  # sum q u^2
    UV = 4
    VV = 5
    IMPORTANCE = 6  # sum q w
    IMPORTANCE_SQUARE = 7  # sum q w^2
    UNSUPPORTED = 8  # sum q times the probability of actions that are never logged
    TERM_IMPORTANCE = 9  # sum q u w
    WEIGHT_SQUARE = 10  # S2 = sum q^2
    LARGEST_WEIGHT = 11  # Q = max q
    LARGEST_TERM = 12  # max q |u|
    LARGEST_IMPORTANCE = 13  # max w, however old or downsampled the event


ROWS = len(MomentRow)
TERM_SUMS = slice(MomentRow.WEIGHT, MomentRow.VV + 1)
"""The first rows of moments and of a variance."""
ALL_ROWS = ROWS + len(PairRow) + len(PRODUCTS) - 1
SUMS = slice(0, MomentRow.WEIGHT_SQUARE)
MAXIMA = slice(MomentRow.LARGEST_WEIGHT, ROWS)
PAIRS = slice(ROWS, ALL_ROWS)
"""The pair sums of the lift of a column."""
SQUARE_WEIGHTS = [MomentRow.WEIGHT_SQUARE, ROWS + PairRow.WEIGHT_SQUARE]
"""Sums of squared averaging weights, which fade twice as fast."""
FADING_MAXIMA = slice(MomentRow.LARGEST_WEIGHT, MomentRow.LARGEST_IMPORTANCE)


def nothing(columns: int) -> Array:
    """The moments of no events, pair sums included, [columns, rows]."""
    return np.zeros((columns, ALL_ROWS))


def merge(older: Array, newer: Array) -> Array:
    """Moments of two disjoint sets of events together; sums add, maxima compare."""
    merged = older + newer
    np.maximum(older[..., MAXIMA], newer[..., MAXIMA], out=merged[..., MAXIMA])
    return merged


def total(parts: Array) -> Array:
    """Moments of all parts along the first axis together."""
    merged = np.asarray(parts.sum(axis=0))
    merged[..., MAXIMA] = parts[..., MAXIMA].max(axis=0, initial=0.0)
    return merged


def fade(moments: Array, factor: Array | float) -> Array:
    """The same moments when every averaging weight is multiplied by `factor` (a number, or one a column)."""
    factor = np.asarray(factor)
    faded = moments * factor[..., None]
    faded[..., SQUARE_WEIGHTS] *= factor[..., None]
    faded[..., MomentRow.LARGEST_IMPORTANCE] = moments[..., MomentRow.LARGEST_IMPORTANCE]
    return faded


def fold(state: Array, blocks: Array, factors: Array, shares: Array | float = 1.0) -> Array:
    """The loop `state = merge(fade(state, factor), fade(block, share))` over `blocks` [B, columns, rows], all at once.

    `factors` and `shares` are [B] or [B, columns].
    """
    whole, later = _products(factors)
    later = later * shares
    new = weighted_sum(blocks, later)
    new[:, SQUARE_WEIGHTS] = weighted_sum(blocks[..., SQUARE_WEIGHTS], later * later)
    fading = later.reshape(*later.shape, *[1] * (blocks.ndim - later.ndim))
    new[:, FADING_MAXIMA] = (blocks[..., FADING_MAXIMA] * fading).max(axis=0)
    new[:, MomentRow.LARGEST_IMPORTANCE] = blocks[..., MomentRow.LARGEST_IMPORTANCE].max(axis=0)
    return merge(fade(state, whole), new)


def fold_sums(state: Array, blocks: Array, factors: Array) -> Array:
    """`fold` for arrays [B, columns, rows] that are plain sums throughout."""
    whole, later = _products(factors)
    return state * whole[..., None] + weighted_sum(blocks, later)


def weighted_sum(blocks: Array, weights: Array) -> Array:
    """Sum over the first axis of [B, columns, rows] by weights [B] or [B, columns]."""
    if weights.ndim == 1:
        return np.asarray(np.tensordot(weights, blocks, axes=1))
    return np.asarray(np.einsum("bc,bcr->cr", weights, blocks))


def _products(factors: Array) -> tuple[Array, Array]:
    """The product of all factors, and for each block the product of those that follow it."""
    later = np.ones_like(factors)
    later[:-1] = np.multiply.accumulate(factors[:0:-1], axis=0)[::-1]
    return later[0] * factors[0], later


def lift_of(moments: Array) -> tuple[Array, Array]:
    """The moments of the paired difference `u - pu` to production, on the same events, and its pair sums."""
    pairs = moments[..., PAIRS]
    products_of_terms = pairs[..., PairRow.FIRST_PRODUCT : PairRow.WEIGHT_SQUARE]
    products = dict(zip(PRODUCTS, np.moveaxis(products_of_terms, -1, 0), strict=True))
    lift = np.full((*pairs.shape[:-1], ROWS), np.nan)
    for row in (MomentRow.WEIGHT, MomentRow.V, MomentRow.VV):
        lift[..., row] = pairs[..., PairRow.WEIGHT]
    for row in (MomentRow.U, MomentRow.UV):
        lift[..., row] = pairs[..., PairRow.U] - pairs[..., PairRow.PU]
    lift[..., MomentRow.UU] = products["u", "u"] - 2 * products["u", "pu"] + products["pu", "pu"]
    lift[..., MomentRow.TERM_IMPORTANCE] = pairs[..., PairRow.U_IMPORTANCE] - pairs[..., PairRow.PU_IMPORTANCE]
    for name in ("IMPORTANCE", "IMPORTANCE_SQUARE", "WEIGHT_SQUARE"):
        lift[..., MomentRow[name]] = pairs[..., PairRow[name]]
    for row in (MomentRow.LARGEST_WEIGHT, MomentRow.LARGEST_IMPORTANCE):
        lift[..., row] = moments[..., row]
    return lift, pairs


def pair_weight(moments: Array) -> Array:
    """The sum of the averaging weights of the events that both a column and production have."""
    return np.asarray(moments[..., PAIRS.start + PairRow.WEIGHT])


def difference_of_ratios(pairs: Array) -> Array:
    """`U / V - PU / PV`, the value of a lift; 0 where it is only rounding."""
    own = ratio(pairs[..., PairRow.U], pairs[..., PairRow.V])
    production = ratio(pairs[..., PairRow.PU], pairs[..., PairRow.PV])
    is_rounding = np.abs(own - production) <= ROUNDING * (np.abs(own) + np.abs(production))
    return np.where(is_rounding, 0.0, own - production)


def variance(sums: Array) -> Array:
    """Variance of the term from sums whose first rows are those of `MomentRow` up to `VV`, around their own value.

    Only rounding is left of a constant. It counts as 0: else an adaptive average would depend on how sums were cut.
    """
    value = ratio(sums[..., MomentRow.U], sums[..., MomentRow.V])
    size = sums[..., MomentRow.UU] + value * value * sums[..., MomentRow.VV]
    square = size - 2 * value * sums[..., MomentRow.UV]
    return ratio(beyond_rounding(square, size) * sums[..., MomentRow.WEIGHT], sums[..., MomentRow.V] ** 2)


def with_near_events(column: Array) -> Array:
    """Numbers [blocks, policies, events] with the events of a block side by side in memory."""
    return column if column.strides[-1] == column.itemsize else np.ascontiguousarray(column)


def product(factors: Sequence[Array], out: Array | None = None) -> Array:
    """The product of some factors."""
    if len(factors) > 1:
        product = np.multiply(factors[0], factors[1], out=out)
        for factor in factors[2:]:
            product = np.multiply(product, factor, out=product)
        return product
    (product,) = factors
    if out is not None:
        out[...] = product
    return product


def squares(weights: Array) -> Array:
    """Sums of squares over the last axis."""
    return np.asarray(np.einsum("bpei,bpei->bpe", weights, weights))


def kernel_sums(weighted: Array, kernel: Array) -> Array:
    """Sums of all series under each kernel [.., kernels, events], [blocks, policies, series, kernels]."""
    if kernel.size == weighted.shape[-1]:
        return np.asarray(weighted.reshape(-1, kernel.size) @ kernel.ravel()).reshape(*weighted.shape[:-1], 1)
    return np.asarray(np.matmul(weighted, kernel.swapaxes(2, 3)))


def chosen(summed: Array, places: Integers) -> Array:
    """The sums [blocks, policies, series, kernels] at these places, [blocks, policies, estimators, rows].

    Each estimator has its own kernel, or there is one for all.
    """
    blocks, policies, series, kernels = summed.shape
    own = np.arange(len(places))[:, None] if kernels > 1 else 0
    return np.asarray(summed.reshape(blocks, policies, series * kernels).take(places * kernels + own, axis=-1))


def fill_variance(rows: Array, terms: int, sums: tuple[Array, Array], places: Integers) -> None:
    """Fill the rows of a variance [blocks, policies, estimators, rows] from the sums of series and of `q^2`."""
    plain = 1 + terms + terms * (terms + 1) // 2
    rows[..., :plain] = chosen(sums[0], places[:, :plain])
    rows[..., -2] = sums[1]
    rows[..., -1] = rows[..., 0] > 0


def signed_sums(take: Callable[[Integers], Array], signs: Array, terms: Integers) -> Array:
    """The signed sums of terms, [blocks, policies, estimators, terms * signs]; `take`: the series at some places."""
    wanted, inverse = np.unique(terms, return_inverse=True)
    values = take(wanted)
    blocks, policies, _, size = values.shape
    sums = values.reshape(blocks, -1, size) @ signs
    by_series = sums.reshape(blocks, policies, len(wanted), -1)
    return by_series.take(inverse.ravel(), axis=2).reshape(blocks, policies, len(terms), -1)


def powers(base: Array, count: int) -> Array:
    """`base^(count - 1) .. base^0` on a new last axis, by doubling."""
    result = np.empty((count, base.size))  # events first: long rows are multiplied faster
    result[-1] = 1.0
    done = 1
    while done < count:
        step = min(done, count - done)
        np.multiply(
            result[count - step :], result[-done] * base.ravel(), out=result[count - done - step : count - done]
        )
        done += step
    return np.ascontiguousarray(result.T).reshape(*base.shape, count)


def importance_by_column(importance: Array, seen: Sequence[Array | None], blocks: int) -> Array:
    """The importance weights [blocks, policies, 1 or estimators, events], 0 for events that a column lacks."""
    if all(each is None for each in seen):
        return per_block(importance, blocks)[:, :, None]
    columns = (importance if each is None else importance * each for each in seen)
    return np.stack([per_block(each, blocks) for each in columns], axis=2)
