"""Moments: the weighted sums of terms that an average keeps, and how they are added, faded and read.

An event with averaging weight `q` (the inverse sampling probability times the weight of its age) adds to each column
(one policy under one estimator) the numbers of `MomentRow`, the last three of which are maxima. Where lifts are needed,
the sums of `PairRow` follow. Nothing is ever subtracted: importance weights are heavy-tailed, and taking an old value
out of a floating-point sum destroys it.

A lift is the difference of two estimates from the same events. Its variance needs the products of both terms, `(u, v)`
of the policy and `(pu, pv)` of production, over the events that have both since production last changed.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from itertools import combinations_with_replacement

import numpy as np

from streameval.common.arrays import ROUNDING, Array, Integers, clear_rounding, ratio

TERMS = ("u", "v", "pu", "pv")
"""Numerator and denominator of the policy's term, then of production's."""
PRODUCTS = tuple(combinations_with_replacement(TERMS, 2))


class PairRow(IntEnum):
    """Index the last axis of an array of pair sums. Ten products follow the first five, in the order of PRODUCTS.

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


OWN_VARIANCE = slice(0, 8)
"""Rows of a variance: weight, terms u and v, their 3 products, squared weight, blocks."""
NONZERO = 8
"""Row of a variance: events with u != 0."""
PAIR_VARIANCE = slice(9, 26)
"""Rows as OWN_VARIANCE of TERMS, which have 10 products, on the events that production has too."""
TAIL_ROWS = [*range(7), NONZERO, *range(9, 25)]
"""The rows of a variance without the blocks, to which the unfinished block adds."""


def linear_form(sums: Array, terms: int) -> Array:
    """Return one event's deviation as a weighted sum of the first `terms` of TERMS, by the delta method [..., terms].

    For two terms it is `(u - E v) / mean(v)`. For four terms `(pu - P pv) / mean(pv)` is subtracted. E and P are the
    estimates. `sums` holds the sums of the weight and of each term.
    """
    form = []
    for first, sign in zip(range(1, terms, 2), (1.0, -1.0), strict=False):
        numerator, denominator = sums[..., first], sums[..., first + 1]
        scale = sign * ratio(sums[..., 0], denominator)
        with np.errstate(over="ignore", invalid="ignore"):
            form += [scale, -scale * ratio(numerator, denominator)]
    return np.stack(form, axis=-1)


@cache
def _products_of(terms: int) -> tuple[Integers, Integers, Array]:
    """Return the places of the products of this many terms, and how often each is in the square of their sum.

    Every Report asks for them many times.
    """
    first, second = np.triu_indices(terms)
    return first, second, np.where(first == second, 1.0, 2.0)


def sum_of_squares(form: Array, products: Array) -> Array:
    """Sum the squares of a linear form [..., k] from the sums of the products of its terms, with rounding as 0."""
    first, second, twice = _products_of(form.shape[-1])
    with np.errstate(over="ignore", invalid="ignore"):
        parts = twice * form[..., first] * form[..., second] * products
        square, size = parts.sum(axis=-1), np.abs(parts).sum(axis=-1)
    return clear_rounding(square, size)


def linearised_variance(sums: Array, terms: int, form: Array | None = None) -> Array:
    """Variance of one event's deviation, from sums of the weight, of each term, and of their products.

    Args:
        sums: [..., rows]
        terms: number of terms
        form: the linear form of these sums, if it is known
    """
    products = sums[..., 1 + terms : 1 + terms + terms * (terms + 1) // 2]
    return ratio(sum_of_squares(linear_form(sums, terms) if form is None else form, products), sums[..., 0])


def squares_of_denominators(sums: Array, terms: int) -> Array:
    """Sums of the squares of the denominators among the first `terms` of TERMS, [..., terms / 2]."""
    products = list(combinations_with_replacement(range(terms), 2))
    indices = [1 + terms + products.index((index, index)) for index in range(1, terms, 2)]
    return np.asarray(sums[..., indices])


def effective_denominators(sums: Array, terms: int) -> Array:
    """Return Kish's effective number of events by their denominators, for a pair the smaller of both policies."""
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
PAIRS = slice(ROWS, ALL_ROWS)
"""The pair sums of the lift of a column."""
SQUARE_WEIGHTS = [MomentRow.WEIGHT_SQUARE, ROWS + PairRow.WEIGHT_SQUARE]
"""Sums of squared averaging weights, which fade twice as fast."""


def nothing(columns: int) -> Array:
    """Return the moments of no events, pair sums included, [columns, rows]."""
    return np.zeros((columns, ALL_ROWS))


def lift_of(moments: Array) -> tuple[Array, Array]:
    """Return the moments of the paired difference `u - pu` to production, on the same events, and its pair sums."""
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
    """Return the sum of the averaging weights of the events that both a column and production have."""
    return np.asarray(moments[..., PAIRS.start + PairRow.WEIGHT])


def difference_of_ratios(pairs: Array) -> Array:
    """Return `U / V - PU / PV`, the value of a lift, or 0 if it is only rounding."""
    own = ratio(pairs[..., PairRow.U], pairs[..., PairRow.V])
    production = ratio(pairs[..., PairRow.PU], pairs[..., PairRow.PV])
    is_rounding = np.abs(own - production) <= ROUNDING * (np.abs(own) + np.abs(production))
    return np.where(is_rounding, 0.0, own - production)


def variance(sums: Array) -> Array:
    """Return the variance of the term around its own value, from sums of the rows up to `VV`.

    Only rounding is left of a constant. It counts as 0, because otherwise an adaptive average would depend on how sums
    were cut.
    """
    value = ratio(sums[..., MomentRow.U], sums[..., MomentRow.V])
    size = sums[..., MomentRow.UU] + value * value * sums[..., MomentRow.VV]
    square = size - 2 * value * sums[..., MomentRow.UV]
    return ratio(clear_rounding(square, size) * sums[..., MomentRow.WEIGHT], sums[..., MomentRow.V] ** 2)
