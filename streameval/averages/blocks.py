"""Blocks: the terms of consecutive events, cut into the blocks at whose ends everything adaptive may change."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain

import numpy as np

from streameval.arrays import Array, per_block
from streameval.averages.moments import ROWS, Row
from streameval.averages.spread import SPREAD_ROWS, SpreadRow

ONE, IMPORTANCE, IMPORTANCE_SQUARE, UNSUPPORTED = range(4)
"""The first series of every policy; then come the numerators and denominators of the terms."""


class Blocks:
    """Series of numbers per event, [blocks, policies, series, events], from which all sums over a block are made.

    A column is one policy under one estimator, policy by policy: `columns[c]` of a policy with E estimators is
    `policy * E + estimator`. Each estimator names the series of its numerator and of its denominator (`ONE` if it has
    none). The blocks are whole, or there is one that is not finished.
    """

    def __init__(self, series: Array, weighted: Array, numerators: Sequence[int], denominators: Sequence[int]) -> None:
        self.series = series
        self.weighted = weighted  # the series times the averaging weight
        self.numerators, self.denominators = list(numerators), list(denominators)

    @classmethod
    def of(
        cls,
        blocks: int,
        averaging_weight: Array,
        importance: Array,
        unsupported: Array,
        terms: Sequence[tuple[Array, Array | None]],
    ) -> Blocks:
        """The blocks of these terms `(u, v)`; all arrays are [events, policies]. An array given twice is kept once."""
        places = {id(None): ONE, id(importance): IMPORTANCE}
        kept = [None, importance, None, unsupported]
        for values in chain.from_iterable(terms):
            if id(values) not in places:
                places[id(values)] = len(kept)
                kept.append(values)
        events, policies = averaging_weight.shape
        series = np.empty((blocks, policies, len(kept), events // blocks))
        series[:, :, ONE] = 1.0
        for place, values in enumerate(kept):
            if values is not None:
                series[:, :, place] = per_block(values, blocks)
        np.square(series[:, :, IMPORTANCE], out=series[:, :, IMPORTANCE_SQUARE])
        weighted = series * per_block(averaging_weight, blocks)[:, :, None]
        return cls(series, weighted, [places[id(u)] for u, _ in terms], [places[id(v)] for _, v in terms])

    def __len__(self) -> int:
        return int(self.series.shape[0])

    @property
    def size(self) -> int:
        """Events in each block."""
        return int(self.series.shape[-1])

    def since(self, event: int) -> Blocks:
        """The events from this place of each block on."""
        return Blocks(self.series[..., event:], self.weighted[..., event:], self.numerators, self.denominators)

    def by_bucket(self, resolution: int) -> Blocks:
        """The same events in blocks of `resolution` events, which divides the size."""
        return Blocks(
            _split(self.series, resolution), _split(self.weighted, resolution), self.numerators, self.denominators
        )

    @cached_property
    def moments(self) -> Array:
        """Moments of each block, every event counting alike, [blocks, columns, rows]."""
        return self._moments(
            self._summed[:, :, None, :].repeat(len(self.numerators), axis=2), self._weight_square[..., None]
        )

    @cached_property
    def spread(self) -> Array:
        """Spread of each block, [blocks, columns, rows]."""
        products = np.matmul(self.weighted, self.series.transpose(0, 1, 3, 2))
        u, v = self.numerators, self.denominators
        spread = np.empty((*self._summed.shape[:2], len(u), SPREAD_ROWS))
        spread[..., SpreadRow.WEIGHT] = self._summed[:, :, ONE, None]
        spread[..., SpreadRow.U] = self._summed[:, :, u]
        spread[..., SpreadRow.V] = self._summed[:, :, v]
        spread[..., SpreadRow.UU] = products[:, :, u, u]
        spread[..., SpreadRow.UV] = products[:, :, u, v]
        spread[..., SpreadRow.VV] = products[:, :, v, v]
        spread[..., SpreadRow.WEIGHT_SQUARE] = self._weight_square[..., None]
        spread[..., SpreadRow.NONZERO] = np.count_nonzero(self.weighted, axis=-1)[:, :, u]
        np.square(spread[..., SpreadRow.U], out=spread[..., SpreadRow.BLOCK_UU])
        np.multiply(spread[..., SpreadRow.U], spread[..., SpreadRow.V], out=spread[..., SpreadRow.BLOCK_UV])
        np.square(spread[..., SpreadRow.V], out=spread[..., SpreadRow.BLOCK_VV])
        spread[..., SpreadRow.BLOCKS] = self._summed[:, :, ONE, None] > 0
        return self._by_column(spread)

    def decayed(self, alpha: Array | float) -> Array:
        """Moments of each block in which an event counts `alpha^age`, the newest having age 0, [blocks, columns, rows].

        `alpha` is one number, or [blocks, columns]. Maxima do not fade within a block.
        """
        alpha = np.asarray(alpha)
        if alpha.ndim:
            alpha = alpha.reshape(len(self), self.series.shape[1], -1)
        kernel = powers(alpha, self.size)[..., ::-1]
        q = self.weighted[:, :, ONE]
        if alpha.ndim == 0:
            summed = (self.weighted @ kernel)[:, :, None, :].repeat(len(self.numerators), axis=2)
            square = ((q * q) @ (kernel * kernel))[..., None]
        else:
            summed = np.matmul(kernel, self.weighted.transpose(0, 1, 3, 2))
            square = np.matmul(kernel * kernel, (q * q)[..., None])[..., 0]
        return self._moments(summed, square)

    def _moments(self, summed: Array, square: Array) -> Array:
        """Moments from the sums of all series for each estimator [blocks, policies, estimators, series], and of `q^2`."""
        every = np.arange(len(self.numerators))
        moments = np.empty((*summed.shape[:3], ROWS))
        moments[..., Row.WEIGHT] = summed[..., ONE]
        moments[..., Row.U] = summed[:, :, every, self.numerators]
        moments[..., Row.V] = summed[:, :, every, self.denominators]
        moments[..., Row.IMPORTANCE : Row.UNSUPPORTED + 1] = summed[..., IMPORTANCE : UNSUPPORTED + 1]
        moments[..., Row.WEIGHT_SQUARE] = square
        moments[..., Row.LARGEST_WEIGHT] = self._largest[:, :, ONE, None]
        moments[..., Row.LARGEST_TERM] = self._largest[:, :, self.numerators]
        moments[..., Row.LARGEST_IMPORTANCE] = self._largest[:, :, IMPORTANCE, None]
        return self._by_column(moments)

    def _by_column(self, array: Array) -> Array:
        return np.asarray(array.reshape(len(self), -1, array.shape[-1]))

    @cached_property
    def _summed(self) -> Array:
        return np.asarray(self.weighted @ np.ones(self.size))

    @cached_property
    def _weight_square(self) -> Array:
        q = self.weighted[:, :, ONE]
        return np.asarray(np.einsum("bpi,bpi->bp", q, q))

    @cached_property
    def _largest(self) -> Array:
        return np.asarray(np.abs(self.weighted).max(axis=-1))


def _split(series: Array, resolution: int) -> Array:
    blocks, policies, count, size = series.shape
    split = series.reshape(blocks, policies, count, size // resolution, resolution)
    return split.transpose(0, 3, 1, 2, 4).reshape(-1, policies, count, resolution)


def powers(base: Array, count: int) -> Array:
    """`base^0 .. base^(count - 1)` on a new last axis, by doubling.

    >>> powers(np.array(2.0), 5)
    array([ 1.,  2.,  4.,  8., 16.])
    """
    result = np.empty((*base.shape, count))
    result[..., 0] = 1.0
    done = 1
    while done < count:
        step = min(done, count - done)
        np.multiply(result[..., :step], (result[..., done - 1] * base)[..., None], out=result[..., done : done + step])
        done += step
    return result
