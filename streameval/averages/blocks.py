"""Blocks: the terms of consecutive events, cut into the blocks at whose ends everything adaptive may change."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from streameval.arrays import Array, per_block
from streameval.averages.moments import ROWS, Row
from streameval.averages.spread import SPREAD_ROWS, SpreadRow


class Places(NamedTuple):
    """Where the products of one estimator's terms lie among the series."""

    u: int
    v: int
    uu: int
    uv: int
    vv: int


class Series:
    """Numbers per event, [events, policies], each kept once however many estimators need it."""

    ONE = 0

    def __init__(self) -> None:
        self.kept: list[Array | None] = [None]  # a product without factors: 1
        self._places: dict[tuple[int, ...], int] = {(): self.ONE}

    def place(self, *factors: Array | None) -> int:
        """Where the product of these factors lies; None counts as 1."""
        given = [factor for factor in factors if factor is not None]
        key = tuple(sorted(map(id, given)))
        if key not in self._places:
            self._places[key] = len(self.kept)
            self.kept.append(given[0] if len(given) == 1 else given[0] * given[1])
        return self._places[key]

    def places(self, u: Array, v: Array | None) -> Places:
        """Where the products of a term lie."""
        return Places(self.place(u), self.place(v), self.place(u, u), self.place(u, v), self.place(v, v))


class Blocks:
    """Series of numbers per event, [blocks, policies, series, events], from which all sums over a block are made.

    A column is one policy under one estimator, policy by policy: column `policy * E + estimator` of E estimators. The
    blocks are whole, or there is one that is not finished.
    """

    def __init__(
        self, weighted: Array, importance: Array, places: Sequence[Places], diagnostics: Sequence[int | None]
    ) -> None:
        self.weighted = weighted  # the series times the averaging weight
        self.importance = importance
        self.places = list(places)
        self.diagnostics = list(diagnostics)  # places of w, w^2 and, where it is known, the unsupported probability

    @classmethod
    def of(
        cls,
        blocks: int,
        averaging_weight: Array,
        importance: Array,
        unsupported: Array | None,
        terms: Sequence[tuple[Array, Array | None]],
    ) -> Blocks:
        """The blocks of these terms `(u, v)`; all arrays are [events, policies]."""
        series = Series()
        unknown = None if unsupported is None else series.place(unsupported)
        diagnostics = [series.place(importance), series.place(importance, importance), unknown]
        places = [series.places(u, v) for u, v in terms]
        q = per_block(averaging_weight, blocks)
        weighted = np.empty((*q.shape[:2], len(series.kept), q.shape[2]))
        weighted[:, :, Series.ONE] = q
        for place, values in enumerate(series.kept):
            if values is not None:
                np.multiply(per_block(values, blocks), q, out=weighted[:, :, place])
        return cls(weighted, per_block(importance, blocks), places, diagnostics)

    def __len__(self) -> int:
        return int(self.weighted.shape[0])

    @property
    def size(self) -> int:
        """Events in each block."""
        return int(self.weighted.shape[-1])

    def since(self, event: int) -> Blocks:
        """The events from this place of each block on."""
        return Blocks(self.weighted[..., event:], self.importance[..., event:], self.places, self.diagnostics)

    def by_bucket(self, resolution: int) -> Blocks:
        """The same events in blocks of `resolution` events, which divides the size."""
        weighted = _split(self.weighted, resolution)
        return Blocks(weighted, _split(self.importance[:, :, None], resolution)[:, :, 0], self.places, self.diagnostics)

    @cached_property
    def moments(self) -> Array:
        """Moments of each block, every event counting alike, [blocks, columns, rows]."""
        largest = self.weighted[:, :, Series.ONE].max(axis=-1)
        return self._moments(
            self._summed[:, :, None], self._weight_square[..., None], largest[..., None], self._magnitudes.max(axis=-1)
        )

    @cached_property
    def spread(self) -> Array:
        """Spread of each block, [blocks, columns, rows]."""
        spread = np.empty((*self._summed.shape[:2], len(self.places), SPREAD_ROWS))
        self._fill_products(spread, self._summed[:, :, None])
        u, v = spread[..., SpreadRow.U], spread[..., SpreadRow.V]
        spread[..., SpreadRow.WEIGHT_SQUARE] = self._weight_square[..., None]
        spread[..., SpreadRow.NONZERO] = np.count_nonzero(self._magnitudes, axis=-1)
        spread[..., SpreadRow.BLOCK_UU] = u * u
        spread[..., SpreadRow.BLOCK_UV] = u * v
        spread[..., SpreadRow.BLOCK_VV] = v * v
        spread[..., SpreadRow.BLOCKS] = spread[..., SpreadRow.WEIGHT] > 0
        return self._by_column(spread)

    def decayed(self, alpha: Array | float) -> Array:
        """Moments of each block in which an event counts `alpha^age`, the newest having age 0, [blocks, columns, rows].

        `alpha` is one number, or [blocks, columns].
        """
        alpha = np.asarray(alpha)
        alpha = alpha.reshape(len(self), self.weighted.shape[1], -1) if alpha.ndim else alpha.reshape(1, 1, 1)
        kernel = powers(alpha, self.size)
        summed = np.matmul(self.weighted, kernel.swapaxes(2, 3)).swapaxes(2, 3)
        weight = self.weighted[:, :, Series.ONE, None] * kernel
        largest_term = (self._magnitudes * kernel).max(axis=-1)
        return self._moments(summed, np.einsum("bpei,bpei->bpe", weight, weight), weight.max(axis=-1), largest_term)

    def _moments(self, summed: Array, square: Array, largest_weight: Array, largest_term: Array) -> Array:
        """Moments from the sums of all series and of `q^2`, per estimator or one for all, and the largest values."""
        moments = np.empty((*self._summed.shape[:2], len(self.places), ROWS))
        self._fill_products(moments, summed)
        for row, place in zip((Row.IMPORTANCE, Row.IMPORTANCE_SQUARE, Row.UNSUPPORTED), self.diagnostics, strict=True):
            moments[..., row] = 0.0 if place is None else summed[..., place]
        moments[..., Row.WEIGHT_SQUARE] = square
        moments[..., Row.LARGEST_WEIGHT] = largest_weight
        moments[..., Row.LARGEST_TERM] = largest_term
        moments[..., Row.LARGEST_IMPORTANCE] = self._largest_importance[..., None]
        return self._by_column(moments)

    def _fill_products(self, target: Array, summed: Array) -> None:
        """The first rows of moments and of spreads: sums of q, u, v, u^2, u v, v^2."""
        target[..., Row.WEIGHT] = summed[..., Series.ONE]
        for estimator, places in enumerate(self.places):
            of = min(estimator, summed.shape[2] - 1)
            target[:, :, estimator, Row.U : Row.VV + 1] = summed[:, :, of, list(places)]

    def _by_column(self, array: Array) -> Array:
        return np.asarray(array.reshape(len(self), -1, array.shape[-1]))

    @cached_property
    def _summed(self) -> Array:
        return np.asarray(self.weighted @ np.ones(self.size))

    @cached_property
    def _magnitudes(self) -> Array:
        """`q |u|` of each estimator."""
        numerators = [places.u for places in self.places]
        return np.abs(self.weighted.take(numerators, axis=2))  # take, unlike an index, leaves events side by side

    @cached_property
    def _weight_square(self) -> Array:
        q = self.weighted[:, :, Series.ONE]
        return np.asarray(np.einsum("bpi,bpi->bp", q, q))

    @cached_property
    def _largest_importance(self) -> Array:
        return np.asarray(self.importance.max(axis=-1))


def _split(series: Array, resolution: int) -> Array:
    blocks, policies, count, size = series.shape
    split = series.reshape(blocks, policies, count, size // resolution, resolution)
    return split.transpose(0, 3, 1, 2, 4).reshape(-1, policies, count, resolution)


def powers(base: Array, count: int) -> Array:
    """`base^(count - 1) .. base^0` on a new last axis, by doubling: what is left of each of `count` events.

    >>> powers(np.array(2.0), 5)
    array([16.,  8.,  4.,  2.,  1.])
    """
    result = np.empty((*base.shape, count))
    result[..., -1] = 1.0
    done = 1
    while done < count:
        step = min(done, count - done)
        grown = (result[..., -done] * base)[..., None]
        np.multiply(result[..., count - step :], grown, out=result[..., count - done - step : count - done])
        done += step
    return result
