"""Observations of whole blocks as sums of their powers, for all four bounds at once.

An observation is a polynomial in an event's numbers: with a weight w, production's w0 and the scaled reward s it is
`w s`, `w (1 - s)`, `w s + w0 (1 - s)` or `w0 s + w (1 - s)` (see `observations`). So the sums of its powers over a
block are linear in the sums of `w^j w0^i s^m`, which are one product of two matrices.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streameval.common.arrays import Array, Mask, per_block
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.intervals.sequences.heavy_tailed import LARGEST_OBSERVATION
from streameval.ope.intervals.sequences.observations import SIDES, ObservationScale

AT_ONCE = 20
"""Blocks whose powers are multiplied at once: few enough for the cache."""
VALUES, LIFTS = slice(0, 2), slice(2, SIDES)


class PowerSums(NamedTuple):
    """What the observations of some blocks add up to, [blocks, 4, policies].

    `counts`, `totals`: of all that are present. `small` [blocks, 4, policies, order + 1]: sums of the powers of those
    up to a limit. `singles`, `rows`: the others one by one, and in which block, side and policy each of them is.
    """

    counts: Array
    totals: Array
    small: Array
    singles: Array
    rows: NDArray[np.int64]

    @classmethod
    def of(cls, small: Array, singles: Array, rows: NDArray[np.int64]) -> PowerSums:
        """The same with counts and totals."""
        count, total = small[..., 0], small[..., 1]
        if len(singles):
            count = count + np.bincount(rows, minlength=count.size).reshape(count.shape)
            total = total + np.bincount(rows, singles, count.size).reshape(count.shape)
        return cls(count, total, small, singles, rows)

    def of_side(self, side: int) -> PowerSums:
        """What there is of one side alone."""
        policies = self.counts.shape[2]
        block, place = np.divmod(self.rows, SIDES * policies)
        mine = place // policies == side
        there = slice(side, side + 1)
        rows = block[mine] * policies + place[mine] % policies
        return PowerSums(self.counts[:, there], self.totals[:, there], self.small[:, there], self.singles[mine], rows)


Present = tuple[Mask, Mask] | tuple[None, None]
Masks = tuple[Mask | None, Mask | None]


def of_weights(evidence: Evidence, scale: ObservationScale, order: int, limit: float, present: Present) -> PowerSums:
    """The powers of observations by importance weights; where a weight is negative, they are NaN.

    `limit`: the largest weight, in the units of the engine, whose observations are small. `present`: as `presence`
    says it.
    """
    blocks = evidence.blocks
    weight = per_block(evidence.importance_weight, blocks)
    if weight.size and weight.min() < 0:
        weight = np.where(weight < 0, np.nan, weight)
    share = ((evidence.reward - scale.low) / (scale.high - scale.low)).reshape(blocks, -1)
    shares = _powers_of(share, order)
    most = limit * min(scale.value, scale.lift)
    valued, compared = (
        None if mask is None else mask.reshape(len(mask), blocks, -1).swapaxes(0, 1) for mask in present
    )
    small = np.empty((blocks, SIDES, weight.shape[1], order + 1))
    fits = None if weight.size and weight.max() <= most else weight <= most  # NaN fits nowhere
    fits = None if fits is None else fits | np.isnan(weight)
    logged = bool((weight[:, 0] == 1.0).all())
    included = _both(valued, fits)
    table = _table(weight, included, shares, order)
    values, both, production = _of_weights(order)
    if logged and valued is compared:
        small[:] = _combined(table, both)
        lifted = included
    else:
        small[:, VALUES] = _combined(table, values)
        lifted = _both(_both(compared, fits), None if fits is None else fits[:, :1])
        beside = _powers_of(weight[:, 0], order)[:, :, None] * shares[:, None]
        small[:, LIFTS] = _combined(
            _table(weight, lifted, beside.reshape(blocks, -1, share.shape[1]), order), production
        )
    singles, rows = _singles(weight, share, (included, lifted), (valued, compared), fits)
    factors = np.repeat([scale.value, scale.lift], 2)
    if (factors != 1.0).any():
        small /= factors[:, None, None] ** np.arange(order + 1.0)
        singles = singles / factors[rows // weight.shape[1] % SIDES]
    return PowerSums.of(small, np.minimum(singles, LARGEST_OBSERVATION), rows)


def of_terms(u: Array, scale: ObservationScale, blocks: int, rounding: float, present: Present) -> PowerSums:
    """The powers, up to squares, of observations by terms u [events, policies] in [low, high]; NaN beyond."""
    inside = (per_block(u, blocks) - scale.low) / (scale.high - scale.low)
    if inside.size and (inside.max() > 1.0 + rounding or inside.min() < -rounding):
        inside[(inside > 1.0 + rounding) | (inside < -rounding)] = np.nan
    valued, compared = (
        None if mask is None else mask.reshape(len(mask), blocks, -1).swapaxes(0, 1) for mask in present
    )
    beside = _powers_of(inside[:, 0], 2)
    small = np.empty((blocks, SIDES, inside.shape[1], 3))
    values, lifts = _of_terms()
    table = _table(inside, valued, beside, 2)
    small[:, VALUES] = _combined(table[..., :1], values)
    small[:, LIFTS] = _combined(table if compared is valued else _table(inside, compared, beside, 2), lifts)
    small[:, LIFTS] /= scale.lift ** np.arange(3.0)
    return PowerSums.of(small, np.empty(0), np.empty(0, dtype=np.int64))


def _powers_of(values: Array, order: int) -> Array:
    """The powers 0 .. `order` of values [blocks, events], on a new middle axis."""
    result = np.ones((len(values), order + 1, values.shape[1]))
    for power in range(1, order + 1):
        np.multiply(result[:, power - 1], values, out=result[:, power])
    return result


def _both(one: Mask | None, other: Mask | None) -> Mask | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _table(values: Array, included: Mask | None, columns: Array, order: int) -> Array:
    """Sums over each block of the powers of values times columns [blocks, columns, events], where included.

    [blocks, policies, order + 1, columns].
    """
    blocks, policies, events = values.shape
    result = np.empty((blocks, policies, order + 1, columns.shape[1]))
    if included is None:
        result[:, :, 0] = columns.sum(axis=-1)[:, None]
    else:
        result[:, :, 0] = included.astype(float) @ columns.swapaxes(1, 2)
        values = np.where(included, values, 0.0)
    rows = np.empty((min(blocks, AT_ONCE), policies, order, events))
    for first in range(0, blocks, AT_ONCE):
        part = slice(first, first + AT_ONCE)
        some = rows[: min(AT_ONCE, blocks - first)]
        some[:, :, 0] = values[part]
        for power in range(1, order):
            np.multiply(some[:, :, power - 1], some[:, :, 0], out=some[:, :, power])
        sums = some.reshape(len(some), -1, events) @ columns[part].swapaxes(1, 2)
        result[part, :, 1:] = sums.reshape(len(some), policies, order, -1)
    return result


def _combined(table: Array, coefficients: Array) -> Array:
    """The powers [blocks, sides, policies, order + 1] that these coefficients make of a table."""
    blocks, policies = table.shape[:2]
    sides, powers = coefficients.shape[:2]
    flat = table.reshape(blocks * policies, -1) @ coefficients.reshape(sides * powers, -1).T
    result = flat.reshape(blocks, policies, sides, powers).swapaxes(1, 2)
    result[..., 0] = table[:, None, :, 0, 0]  # a count stays one where a value is NaN
    return np.asarray(result)


@lru_cache
def _of_weights(order: int) -> tuple[Array, Array, Array]:
    """Coefficients of `w^j s^m` in the powers of both values, and of all sides where w0 is 1; and of `w^j w0^i s^m` in
    those of lifts; [sides, power, j, ..]."""
    size = order + 1
    lifts, values = np.zeros((2, size, size, size, size)), np.zeros((2, size, size, size))
    for power in range(size):
        values[0, power, power, power] = 1.0
        for m in range(power + 1):
            values[1, power, power, m] = comb(power, m) * (-1) ** m
        for j in range(power + 1):
            i = power - j
            for m in range(i + 1):
                lifts[0, power, j, i, j + m] += comb(power, j) * comb(i, m) * (-1) ** m
            for m in range(j + 1):
                lifts[1, power, j, i, i + m] += comb(power, j) * comb(j, m) * (-1) ** m
    return values, np.concatenate([values, lifts.sum(axis=3)]), lifts


@lru_cache
def _of_terms() -> tuple[Array, Array]:
    """Coefficients of `y^j` in the powers of y and 1 - y, of `y^j y0^i` in those of 1 + y - y0 and 1 - y + y0."""
    values, lifts = np.zeros((2, 3, 3, 1)), np.zeros((2, 3, 3, 3))
    values[0, [0, 1, 2], [0, 1, 2]] = 1.0
    values[1, [0, 1, 1, 2, 2, 2], [0, 0, 1, 0, 1, 2], 0] = [1, 1, -1, 1, -2, 1]
    for side, sign in enumerate((1, -1)):
        lifts[side, 0, 0, 0] = 1
        lifts[side, 1, [0, 1, 0], [0, 0, 1]] = [1, sign, -sign]
        lifts[side, 2, [0, 1, 0, 2, 0, 1], [0, 0, 1, 0, 2, 1]] = [1, 2 * sign, -2 * sign, 1, 1, -2]
    return values, lifts


def _singles(
    weight: Array, share: Array, included: Masks, present: Masks, fits: Mask | None
) -> tuple[Array, NDArray[np.int64]]:
    """The observations of present events that are not included, and their places."""
    if fits is None:
        return np.empty(0), np.empty(0, dtype=np.int64)
    values, rows = [], []
    for sides, taken, there in zip((VALUES, LIFTS), included, present, strict=True):
        assert taken is not None
        block, policy, event = np.nonzero(~taken if there is None else there & ~taken)
        heavy, earned = weight[block, policy, event], share[block, event]
        light = weight[block, 0, event] if sides is LIFTS else 0.0
        for side, gained in ((sides.start, earned), (sides.start + 1, 1.0 - earned)):
            values.append(heavy * gained + light * (1.0 - gained))
            rows.append((block * SIDES + side) * weight.shape[1] + policy)
    return np.concatenate(values), np.concatenate(rows)
