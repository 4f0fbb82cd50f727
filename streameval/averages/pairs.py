"""Pairs: what the terms of a policy and of production say together, on the events that both have.

The lift of a policy is the difference of two estimates from the same events. Its variance needs the products of both
terms `(u, v)` and `(pu, pv)`, of the policy and of production; the sums below are kept beside the moments, and beside
the spread, of every column. They cover the events since production has been what it is.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import combinations_with_replacement

import numpy as np

from streameval.arrays import ROUNDING, Array, beyond_rounding, ratio

TERMS = ("u", "v", "pu", "pv")
"""Numerator and denominator of the policy's term, then those of production's."""
PRODUCTS = tuple(combinations_with_replacement(TERMS, 2))


class PairRow(IntEnum):
    """Places on the last axis of an array of pair sums; ten products follow the first five, in the order of PRODUCTS.

    All events count `q` times; `w` is the importance weight of the policy.
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


SUMS = slice(PairRow.U, PairRow.PV + 1)
"""The sums of the four terms."""
SQUARES = slice(PairRow.FIRST_PRODUCT, PairRow.WEIGHT_SQUARE)
"""The sums of their products."""
PAIR_ROWS = len(PairRow) + len(PRODUCTS) - 1
SPREAD_PAIR_ROWS = PairRow.WEIGHT_SQUARE + 1
"""Of a spread, the rows without importance weights."""


def ratios(pairs: Array) -> tuple[Array, Array]:
    """Both estimates: of the policy and of production, on the same events."""
    own = ratio(pairs[..., PairRow.U], pairs[..., PairRow.V])
    return own, ratio(pairs[..., PairRow.PU], pairs[..., PairRow.PV])


def gap(pairs: Array) -> Array:
    """The lift `U / V - PU / PV`, 0 where it is mere rounding; NaN where there is no evidence."""
    own, production = ratios(pairs)
    lift = own - production
    return np.where(np.abs(lift) <= ROUNDING * (np.abs(own) + np.abs(production)), 0.0, lift)


def linear_form(pairs: Array) -> Array:
    """The linearised difference of one event as a weighted sum of its TERMS, [..., 4].

    `(u - E v) / mean(v) - (pu - P pv) / mean(pv)`, the delta method around both estimates E and P; for plain means
    the difference of the terms less its own mean.
    """
    own, production = ratios(pairs)
    scale = ratio(pairs[..., PairRow.WEIGHT], pairs[..., PairRow.V])
    production_scale = ratio(pairs[..., PairRow.WEIGHT], pairs[..., PairRow.PV])
    with np.errstate(over="ignore", invalid="ignore"):
        return np.stack([scale, -scale * own, -production_scale, production_scale * production], axis=-1)


def sum_of_squares(form: Array, products: Array) -> Array:
    """Sum of the squares of a linear form [..., 4] from the sums of PRODUCTS [..., 10]; rounding counts as 0."""
    first, second = zip(*combinations_with_replacement(range(len(TERMS)), 2), strict=True)
    twice = np.where(np.equal(first, second), 1.0, 2.0)
    with np.errstate(over="ignore", invalid="ignore"):
        parts = twice * form[..., list(first)] * form[..., list(second)] * products
        square, size = parts.sum(axis=-1), np.abs(parts).sum(axis=-1)
    return beyond_rounding(square, size)


def residual_squares(pairs: Array) -> tuple[Array, Array]:
    """Sums of the squares of `u - E v`, and of `pu - P pv`, around both estimates."""
    one, nothing = np.ones(pairs.shape[:-1]), np.zeros(pairs.shape[:-1])
    own, production = ratios(pairs)
    forms = ([one, -own, nothing, nothing], [nothing, nothing, one, -production])
    first, second = (sum_of_squares(np.stack(form, axis=-1), pairs[..., SQUARES]) for form in forms)
    return first, second


def difference_square(pairs: Array) -> Array:
    """Variance of one event's linearised difference."""
    return ratio(sum_of_squares(linear_form(pairs), pairs[..., SQUARES]), pairs[..., PairRow.WEIGHT])
