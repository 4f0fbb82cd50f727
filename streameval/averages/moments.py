"""Moments: the weighted sums that an average keeps of the terms, and how they are added, faded and read.

An event with averaging weight `q` (1, times the inverse sampling probability, times what the average makes of its
age) adds to each column (one policy under one estimator) the numbers of `Row`. All are plain sums but for the last
three, which are maxima. Nothing is ever subtracted: importance weights are heavy-tailed, and taking an old value back
out of a floating-point sum destroys it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from streameval.arrays import Array


class Row(IntEnum):
    """Places on the last axis of an array of moments; MATHS names in brackets."""

    WEIGHT = 0  # sum q                        [S0]
    U = 1  # sum q u, u the numerator            [U]
    IMPORTANCE = 2  # sum q w
    UU = 3  # sum q u^2                          [UU]
    V = 4  # sum q v, v the denominator (or 1)   [V]
    UV = 5
    VV = 6
    IMPORTANCE_SQUARE = 7  # sum q w^2
    UNSUPPORTED = 8  # sum q times the probability of actions never logged
    WEIGHT_SQUARE = 9  # sum q^2                 [S2]
    LARGEST_WEIGHT = 10  # max q                 [Q]
    LARGEST_TERM = 11  # max q |u|
    LARGEST_IMPORTANCE = 12  # max q w


FEATURES = Row.WEIGHT_SQUARE
"""The first rows are linear in the averaging weight; that many features are kept of each event."""
COMPARED = slice(Row.WEIGHT, Row.IMPORTANCE + 1)
"""The features whose largest magnitudes are the last rows."""
ROWS = len(Row)
SUMS = slice(0, Row.LARGEST_WEIGHT)
MAXIMA = slice(Row.LARGEST_WEIGHT, ROWS)


class ClusterRow(IntEnum):
    """Places on the last axis of an array of cluster moments: what each block as a whole adds."""

    UU = 0  # (sum of q u in the block)^2
    UV = 1
    VV = 2
    NONZERO = 3  # events whose numerator is not zero
    BLOCKS = 4  # 1 for a block with evidence
    WEIGHT_SQUARE = 5  # sum of q^2, fading as the others do


CLUSTER_ROWS = len(ClusterRow)


def nothing(columns: int) -> Array:
    """The moments of no events, [columns, rows]."""
    return np.zeros((columns, ROWS))


def merge(older: Array, newer: Array) -> Array:
    """Moments of two disjoint sets of events together; sums add, maxima compare.

    >>> merge(np.ones(ROWS), np.full(ROWS, 2.0))[[Row.U, Row.LARGEST_TERM]]
    array([3., 2.])
    """
    merged = older + newer
    merged[..., MAXIMA] = np.maximum(older[..., MAXIMA], newer[..., MAXIMA])
    return merged


def total(parts: Array) -> Array:
    """Moments of all parts along the first axis together; of no parts: nothing."""
    merged = parts.sum(axis=0)
    merged[..., MAXIMA] = parts[..., MAXIMA].max(axis=0, initial=0.0)
    return merged


def fade(moments: Array, factor: Array | float) -> Array:
    """The same moments when every averaging weight is multiplied by `factor` (a number, or one a column).

    >>> fade(np.ones(ROWS), 0.5)[[Row.WEIGHT, Row.WEIGHT_SQUARE, Row.LARGEST_WEIGHT]]
    array([0.5 , 0.25, 0.5 ])
    """
    factor = np.asarray(factor)[..., None]
    faded = moments * factor
    faded[..., Row.WEIGHT_SQUARE : Row.WEIGHT_SQUARE + 1] *= factor
    return faded


def fold(state: Array, blocks: Array, factors: Array) -> Array:
    """Moments after each of `blocks` [B, columns, rows] was added in turn, the past having faded by its factor first.

    `factors` is [B] or [B, columns]. Equals the loop `state = merge(fade(state, f), block)`, all blocks at once.
    """
    fading = _fading_after(factors)
    return merge(
        fade(state, _fading_of_all(factors)), total(fade(blocks, fading if fading.ndim > 1 else fading[:, None]))
    )


def fold_sums(state: Array, blocks: Array, factors: Array) -> Array:
    """`fold` for arrays [B, columns, rows] that are plain sums throughout, such as cluster moments."""
    fading = _fading_after(factors)
    extra = (None,) * (blocks.ndim - fading.ndim)
    whole = _fading_of_all(factors)
    return state * whole[(..., *(None,) * (state.ndim - whole.ndim))] + (blocks * fading[(..., *extra)]).sum(axis=0)


def _fading_after(factors: Array) -> Array:
    """For each block, the product of the factors of the blocks that follow it."""
    later = np.ones_like(factors)
    later[:-1] = np.multiply.accumulate(factors[:0:-1], axis=0)[::-1]
    return later


def _fading_of_all(factors: Array) -> Array:
    return np.asarray(np.multiply.reduce(factors, axis=0))


@dataclass(frozen=True, slots=True)
class Moments:
    """An array of moments [..., columns, rows], read by name. Ratios are NaN where there is no evidence.

    >>> moments = Moments(np.array([4.0, 6.0, 4.0, 10.0, 4.0, 6.0, 4.0, 8.0, 0.0, 4.0, 1.0, 3.0, 2.0]))
    >>> float(moments.value), float(moments.count), float(moments.effective_sample_size)
    (1.5, 4.0, 2.0)
    """

    array: Array

    def __getitem__(self, row: Row) -> Array:
        return self.array[..., row]

    @property
    def value(self) -> Array:
        """`U / V`: the estimate."""
        return _ratio(self[Row.U], self[Row.V])

    @property
    def count(self) -> Array:
        """`S0^2 / S2`: the number of equally weighted events that would average as well (n_eff)."""
        return _ratio(self[Row.WEIGHT] ** 2, self[Row.WEIGHT_SQUARE])

    @property
    def mean_denominator(self) -> Array:
        """`V / S0`: 1 for a plain mean, the mean weight for a self-normalised one."""
        return _ratio(self[Row.V], self[Row.WEIGHT])

    @property
    def residual(self) -> Array:
        """Weighted mean of `(u - E v)^2` around the moments' own value `E`, never below 0."""
        value = self.value
        square = self[Row.UU] - 2 * value * self[Row.UV] + value * value * self[Row.VV]
        return np.maximum(_ratio(square, self[Row.WEIGHT]), 0.0)

    @property
    def effective_sample_size(self) -> Array:
        """Kish's: `n_eff mean(w)^2 / mean(w^2)`, averaging and importance weights both."""
        return _ratio(
            self[Row.WEIGHT] * self[Row.IMPORTANCE] ** 2, self[Row.WEIGHT_SQUARE] * self[Row.IMPORTANCE_SQUARE]
        )

    @property
    def importance_weight_mean(self) -> Array:
        """Mean importance weight: 1 where propensities are right and support is full."""
        return _ratio(self[Row.IMPORTANCE], self[Row.WEIGHT])

    @property
    def largest_importance(self) -> Array:
        """Largest importance weight, times its averaging weight."""
        return self[Row.LARGEST_IMPORTANCE]

    @property
    def unsupported_probability(self) -> Array:
        """Mean probability that the policy gives to actions the logging policy never takes."""
        return _ratio(self[Row.UNSUPPORTED], self[Row.WEIGHT])

    @property
    def largest_term_share(self) -> Array:
        """Share of `|U|` that the largest single term carries."""
        return _ratio(self[Row.LARGEST_TERM], np.abs(self[Row.U]))


def _ratio(numerator: Array, denominator: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(denominator != 0, numerator / denominator, np.nan))


def design_effect(moments: Moments, clusters: Array) -> Array:
    """Variance of block sums over what independent events would give; NaN before ten blocks.

    Events of one session are alike; then the average of n of them is known less well than n independent ones would make
    it, by this factor. Both variances are taken around the moments' own value, over the same events.
    """
    value = moments.value
    between = (
        clusters[..., ClusterRow.UU]
        - 2 * value * clusters[..., ClusterRow.UV]
        + value * value * clusters[..., ClusterRow.VV]
    )
    within = moments.residual * clusters[..., ClusterRow.WEIGHT_SQUARE]
    blocks = clusters[..., ClusterRow.BLOCKS]
    with np.errstate(divide="ignore", invalid="ignore"):
        effect = between / within * blocks / (blocks - 1)
    return np.where((blocks >= FEWEST_BLOCKS) & (within > 0), effect, np.nan)


FEWEST_BLOCKS = 10
"""A variance of block means from fewer blocks says nothing."""
