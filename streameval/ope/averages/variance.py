"""Spread: the sums that variances are made of, kept over a long past that fades at block ends.

A variance comes from a horizon ten times longer than the estimate's: with few large importance weights, an estimate and
a variance from the same events fail together (88 % coverage of nominal 95 % intervals in a stationary world).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streameval.common.arrays import Array, Mask, decayed_path, ratio
from streameval.ope.averages import cluster_variance
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.moments import (
    ALL_SPREAD_ROWS,
    BLOCK_PAIRS,
    SPREAD_PAIRS,
    SPREAD_ROWS,
    WITHIN,
    PairRow,
    VarianceRow,
    difference_square,
    fold_sums,
    linear_form,
    residual_squares,
    sum_of_squares,
    variance,
)

LONGER = 10
"""The horizon of the variance as a multiple of the estimate's."""
FEWEST_BLOCKS = 10
"""Fewer blocks give no variance of block sums."""


def nothing(columns: int, paired: bool = True) -> Array:
    """The spread of no events, [columns, rows]; `paired`: with the pair sums of lifts."""
    return np.zeros((columns, ALL_SPREAD_ROWS if paired else SPREAD_ROWS))


def fold(state: Array, blocks: Blocks, horizon: Array | float) -> Array:
    """Add whole blocks to a past that fades with this horizon in events: a number, or [blocks, columns]."""
    factors = np.exp(-blocks.size / np.asarray(horizon, dtype=float))
    factors = np.broadcast_to(factors, factors.shape or (len(blocks),))
    known = state[..., : known_rows(state)]
    folded = fold_sums(known, blocks.spread, factors)
    if blocks.clusters is None:
        return folded
    units = cluster_variance.fold(state[..., known.shape[-1] :], blocks.clusters, factors)
    return np.concatenate([folded, units], axis=-1)


def path(state: Array, blocks: Blocks, horizon: float) -> Array:
    """The spread after each of these whole blocks, [blocks, columns, rows]."""
    factor = float(np.exp(-blocks.size / horizon))
    known = state[..., : known_rows(state)]
    after = decayed_path(known, blocks.spread, factor)
    if blocks.clusters is None:
        return after
    return np.concatenate(
        [after, cluster_variance.path(state[..., known.shape[-1] :], blocks.clusters, factor)], axis=-1
    )


def merge(earlier: Array, later: Array, events: float, horizon: float) -> Array:
    """The spread of two parts of a stream, the later one `events` long."""
    factor = float(np.exp(-events / horizon))
    known = known_rows(earlier)
    units = cluster_variance.merge(earlier[..., known:], later[..., known:], factor)
    return np.concatenate([earlier[..., :known] * factor + later[..., :known], units], axis=-1)


def known_rows(array: Array) -> int:
    """The number of rows before those of units."""
    width = array.shape[-1]
    return SPREAD_ROWS if width in (SPREAD_ROWS, SPREAD_ROWS + cluster_variance.ALONE) else ALL_SPREAD_ROWS


@dataclass(frozen=True, slots=True)
class VarianceMoments:
    """An array of spreads [..., rows], read by name; NaN where unknown.

    Five terms 0, 0, 0, 1, 4:

    >>> terms = np.zeros(ALL_SPREAD_ROWS)
    >>> terms[WITHIN] = [5.0, 5.0, 5.0, 17.0, 5.0, 5.0, 5.0, 2.0]
    >>> float(VarianceMoments(terms).variance)
    2.4
    """

    array: Array

    def __getitem__(self, row: VarianceRow) -> Array:
        return self.array[..., row]

    def with_tail(self, tail: Blocks | None) -> VarianceMoments:
        """The events of the block that is not finished added to the sums over events."""
        if tail is None:
            return self
        array = self.array.copy()
        for rows in (WITHIN, SPREAD_PAIRS):
            array[..., rows] += tail.spread[0, :, rows]
        return VarianceMoments(array)

    @property
    def count(self) -> Array:
        """Effective number of events: equally weighted ones whose mean has the same variance."""
        return ratio(self[VarianceRow.WEIGHT] ** 2, self[VarianceRow.WEIGHT_SQUARE])

    @property
    def variance(self) -> Array:
        """Variance of the term `u`, of a ratio that of the linearised term `(u - E v) / mean(v)`."""
        return variance(self.array)

    @property
    def never_varied(self) -> Mask:
        """Whether the term, of a ratio the linearised one, has always been the same."""
        return np.asarray(self.variance == 0)

    @property
    def design_effect(self) -> Array:
        """Variance of block sums over that of independent events; NaN before ten blocks.

        Events of one session are correlated, which inflates the variance of their mean by this factor. Both variances
        are taken around the same value, over the same events. Where events have units, the factor includes units that
        spread over many blocks (see `cluster_variance`).
        """
        value = ratio(self[VarianceRow.U], self[VarianceRow.V])
        between = (
            self[VarianceRow.BLOCK_UU]
            - 2 * value * self[VarianceRow.BLOCK_UV]
            + value * value * self[VarianceRow.BLOCK_VV]
        )
        single = self.variance * ratio(self[VarianceRow.V], self[VarianceRow.WEIGHT]) ** 2
        by_blocks = _effect(between, single * self[VarianceRow.WEIGHT_SQUARE], self[VarianceRow.BLOCKS])
        return by_blocks + self._of_units(np.stack([np.ones_like(value), -value], axis=-1), single)

    @property
    def knows_units(self) -> bool:
        """Whether an event has had a unit."""
        return bool(self.array.shape[-1] > known_rows(self.array))

    def _of_units(self, form: Array, single: Array) -> Array | float:
        """The part of units in the design effect; `single`: the square of one event's residual, `form` its terms."""
        if not self.knows_units:
            return 0.0
        added, squares = cluster_variance.excess(self.array[..., known_rows(self.array) :], form)
        return np.nan_to_num(ratio(added, single * squares), posinf=0.0, neginf=0.0)

    @property
    def lift(self) -> LiftVarianceMoments:
        """The spread of the paired difference to production."""
        return LiftVarianceMoments(self.array)


@dataclass(frozen=True, slots=True)
class LiftVarianceMoments(VarianceMoments):
    """The same sums read for the linearised difference to production, on the events that production has too."""

    @property
    def count(self) -> Array:
        pairs = self.array[..., SPREAD_PAIRS]
        return ratio(pairs[..., PairRow.WEIGHT] ** 2, pairs[..., PairRow.WEIGHT_SQUARE])

    @property
    def variance(self) -> Array:
        return difference_square(self.array[..., SPREAD_PAIRS])

    @property
    def never_varied(self) -> Mask:
        """Whether both terms have always been the same."""
        own, production = residual_squares(self.array[..., SPREAD_PAIRS])
        return np.asarray((own == 0) & (production == 0))

    @property
    def design_effect(self) -> Array:
        pairs = self.array[..., SPREAD_PAIRS]
        form, single = linear_form(pairs), difference_square(pairs)
        between = sum_of_squares(form, self.array[..., BLOCK_PAIRS])
        by_blocks = _effect(between, single * pairs[..., PairRow.WEIGHT_SQUARE], self[VarianceRow.PAIR_BLOCKS])
        return by_blocks + self._of_units(form, single)


def _effect(between: Array, within: Array, blocks: Array) -> Array:
    """Variance of block sums over that of independent events; NaN with few blocks."""
    effect = ratio(between, within) * ratio(blocks, blocks - 1)
    return np.where(blocks >= FEWEST_BLOCKS, effect, np.nan)
