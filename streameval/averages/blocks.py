"""Blocks: the terms of consecutive events, cut into the blocks at whose ends everything adaptive may change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from streameval.arrays import Array, per_block
from streameval.averages.clusters import Rows, Sums
from streameval.averages.moments import ALL_ROWS, PAIRS, ROWS, Row
from streameval.averages.pairs import PRODUCTS, SUMS, TERMS, PairRow
from streameval.averages.spread import ALL_SPREAD_ROWS, BLOCK_PAIRS, SPREAD_PAIRS, SPREAD_ROWS, SpreadRow


class Places(NamedTuple):
    """Where the products of one estimator's terms lie among the series."""

    u: int
    v: int
    uu: int
    uv: int
    vv: int
    uw: int


class PairPlaces(NamedTuple):
    """Where the terms of one estimator and of production, and their products, lie among the series."""

    sums: tuple[int, ...]
    u_importance: int
    pu_importance: int


SAMPLED = 97
"""One event in so many tells quickly which series cannot be equal."""
FIRST_SUM = PairRow.U


class Series:
    """Numbers per event, [events, policies], each kept once however many estimators need it.

    What is equal is kept once, too: with rewards of 0 and 1 many a product equals one of its factors.
    """

    ONE = 0

    def __init__(self, importance: Array) -> None:
        self.kept: list[Array | None] = [None]  # a product without factors: 1
        self._importance = importance
        self._places: dict[tuple[int, ...], int] = {(): self.ONE}
        self._alike: dict[bytes, list[int]] = {}
        self._production: list[Array] = []

    def place(self, *factors: Array | None) -> int:
        """Where the product of these factors lies; None counts as 1."""
        given = [factor for factor in factors if factor is not None]
        key = tuple(sorted(map(id, given)))
        if key not in self._places:
            self._places[key] = self._keep(given[0] if len(given) == 1 else given[0] * given[1])
        return self._places[key]

    def _keep(self, values: Array) -> int:
        """Where these values lie, which may have been kept already as something else."""
        alike = self._alike.setdefault(values[::SAMPLED].tobytes(), [])
        for place in alike:
            if np.array_equal(values, np.asarray(self.kept[place])):
                return place
        alike.append(len(self.kept))
        self.kept.append(values)
        return alike[-1]

    def places(self, u: Array, v: Array | None) -> Places:
        """Where the products of a term lie."""
        w = self._importance
        products = ((u, u), (u, v), (v, v), (u, w))
        return Places(self.place(u), self.place(v), *(self.place(*product) for product in products))

    def pair_places(self, u: Array, v: Array | None) -> PairPlaces:
        """Where the products of a term with that of production, the first policy, lie."""
        pu, pv = self._of_production(u), None if v is None else self._of_production(v)
        terms = dict(zip(TERMS, (u, v, pu, pv), strict=True))
        single = [self.place(term) for term in terms.values()]
        double = [self.place(terms[one], terms[other]) for one, other in PRODUCTS]
        return PairPlaces(
            (*single, *double),
            self.place(u, self._importance),
            self.place(pu, self._importance),
        )

    def weighted(self, averaging_weight: Array, blocks: int) -> Array:
        """All series times these averaging weights [events, policies], as [blocks, policies, series, events]."""
        q = per_block(averaging_weight, blocks)
        weighted = np.empty((*q.shape[:2], len(self.kept), q.shape[2]))
        weighted[:, :, self.ONE] = q
        for place, values in enumerate(self.kept):
            if values is not None:
                np.multiply(per_block(values, blocks), q, out=weighted[:, :, place])
        return weighted

    def _of_production(self, values: Array) -> Array | None:
        """Production's column for every policy, the same array for equal columns; None where it is 1."""
        column = values[:, :1]
        if (column == 1.0).all():
            return None
        for known in self._production:
            if np.array_equal(known[:, :1], column):
                return known
        self._production.append(np.broadcast_to(column, values.shape))
        return self._production[-1]


class Blocks:
    """Series of numbers per event, [blocks, policies, series, events], from which all sums over a block are made.

    A column is one policy under one estimator, policy by policy: column `policy * E + estimator` of E estimators. The
    blocks are whole, or there is one that is not finished. `shared`: the series weighed only where production is
    there, too; None where that makes no difference. `pairs`: where the products with production's terms lie; none
    where no lift is asked for. `signs` [blocks, events, 64]: those of the units that events belong to; None while none
    has named one.
    """

    def __init__(
        self,
        weighted: Array,
        importance: Array,
        places: Sequence[Places],
        diagnostics: Sequence[int | None],
        pairs: Sequence[PairPlaces] = (),
        shared: Array | None = None,
        signs: Array | None = None,
    ) -> None:
        self.weighted = weighted  # the series times the averaging weight
        self.importance = importance
        self.places = list(places)
        self.diagnostics = list(diagnostics)  # places of w, w^2 and, where it is known, the unsupported probability
        self.pairs, self.shared, self.signs = list(pairs), shared, signs

    @classmethod
    def of(
        cls,
        blocks: int,
        averaging_weight: Array,
        importance: Array,
        unsupported: Array | None,
        terms: Sequence[tuple[Array, Array | None]],
        paired: bool = True,
        signs: Array | None = None,
    ) -> Blocks:
        """The blocks of these terms `(u, v)`; all arrays are [events, policies].

        `paired`: with the products that lifts over the first policy need. `signs` [events, 64]: of the events' units.
        """
        series = Series(importance)
        unknown = None if unsupported is None else series.place(unsupported)
        diagnostics = [series.place(importance), series.place(importance, importance), unknown]
        places = [series.places(u, v) for u, v in terms]
        pairs = [series.pair_places(u, v) for u, v in terms] if paired else []
        both = np.where(averaging_weight[:, :1] > 0, averaging_weight, 0.0)
        alike = not paired or np.array_equal(both, averaging_weight)
        return cls(
            series.weighted(averaging_weight, blocks),
            per_block(importance, blocks),
            places,
            diagnostics,
            pairs,
            None if alike else series.weighted(both, blocks),
            None if signs is None else signs.reshape(blocks, -1, signs.shape[1]),
        )

    times: Array
    """When each event happened, in seconds, [blocks, events]; set where somebody may ask."""

    def at(self, times: Array | None) -> Blocks:
        """The same blocks, of events that happened at these times [n]; None: nobody knows when."""
        known = np.full(self.size * len(self), np.nan) if times is None else times
        self.times = known.reshape(len(self), -1)
        return self

    def __len__(self) -> int:
        return int(self.weighted.shape[0])

    @property
    def size(self) -> int:
        """Events in each block."""
        return int(self.weighted.shape[-1])

    def since(self, event: int) -> Blocks:
        """The events from this place of each block on."""
        return self._with(lambda series: series[..., event:])

    def piece(self, block: int, start: int, stop: int) -> Blocks:
        """Consecutive events of one of the blocks."""
        return self._with(lambda series: series[block : block + 1, :, :, start:stop])

    def by_bucket(self, resolution: int) -> Blocks:
        """The same events in blocks of `resolution` events, which divides the size."""
        return self._with(lambda series: _split(series, resolution))

    def _with(self, change: Callable[[Array], Array]) -> Blocks:
        """The same with all series [blocks, policies, series, events] changed alike; nothing is known of units."""
        return Blocks(
            change(self.weighted),
            change(self.importance[:, :, None])[:, :, 0],
            self.places,
            self.diagnostics,
            self.pairs,
            None if self.shared is None else change(self.shared),
        )

    @cached_property
    def moments(self) -> Array:
        """Moments of each block, every event counting alike, [blocks, columns, rows]."""
        largest = self.weighted[:, :, Series.ONE].max(axis=-1)
        moments = self._moments(
            self._summed[:, :, None], self._weight_square[..., None], largest[..., None], self._magnitudes.max(axis=-1)
        )
        self._fill_pairs(moments, self._summed_shared[:, :, None], self._shared_square[..., None])
        return self._by_column(moments)

    @cached_property
    def spread(self) -> Array:
        """Spread of each block, [blocks, columns, rows]."""
        rows = ALL_SPREAD_ROWS if self.pairs else SPREAD_ROWS
        spread = np.empty((*self._summed.shape[:2], len(self.places), rows))
        self._fill_products(spread, self._summed[:, :, None])
        u, v = spread[..., SpreadRow.U], spread[..., SpreadRow.V]
        spread[..., SpreadRow.WEIGHT_SQUARE] = self._weight_square[..., None]
        spread[..., SpreadRow.NONZERO] = np.count_nonzero(self._magnitudes, axis=-1)
        spread[..., SpreadRow.BLOCK_UU] = u * u
        spread[..., SpreadRow.BLOCK_UV] = u * v
        spread[..., SpreadRow.BLOCK_VV] = v * v
        spread[..., SpreadRow.BLOCKS] = spread[..., SpreadRow.WEIGHT] > 0
        if self.pairs:
            self._fill_pair_spread(spread)
        return self._by_column(spread)

    @cached_property
    def clusters(self) -> Rows | None:
        """What units add to the spread of each block; None while no event has named one."""
        if self.signs is None:
            return None
        covered = self.signs[:, :1, 0] != 0
        if not self.pairs:
            terms = [(places.u, places.v) for places in self.places]
            return Rows.of(Sums.of(self.weighted, self.signs, terms), self._weight_square * covered)
        pairs = [places.sums[: len(TERMS)] for places in self.pairs]
        own = Sums.of(self.weighted, self.signs, pairs)
        shared = None if self.shared is None else Sums.of(self.shared, self.signs, pairs)
        return Rows.of_pairs(own, self._weight_square * covered, shared, self._shared_square * covered)

    def _fill_pair_spread(self, spread: Array) -> None:
        self._fill_pair_sums(spread[..., SPREAD_PAIRS], self._summed_shared[:, :, None], self._shared_square[..., None])
        sums = spread[..., SPREAD_PAIRS][..., SUMS]
        for place, (one, other) in enumerate(combinations_with_replacement(range(len(TERMS)), 2)):
            np.multiply(sums[..., one], sums[..., other], out=spread[..., BLOCK_PAIRS.start + place])
        spread[..., SpreadRow.PAIR_BLOCKS] = spread[..., SPREAD_PAIRS][..., PairRow.WEIGHT] > 0

    def decayed(self, alpha: Array | float) -> Array:
        """Moments of each block in which an event counts `alpha^age`, the newest having age 0, [blocks, columns, rows].

        `alpha` is one number, or [blocks, columns].
        """
        alpha = np.asarray(alpha)
        alpha = alpha.reshape(len(self), self.weighted.shape[1], -1) if alpha.ndim else alpha.reshape(1, 1, 1)
        return self._weighed(powers(alpha, self.size))

    def weighed(self, weights: Array) -> Array:
        """Moments of each block in which events count so much [blocks, events], [blocks, columns, rows]."""
        return self._weighed(weights[:, None, None])

    def _weighed(self, kernel: Array) -> Array:
        """The same for weights [blocks or 1, policies or 1, estimators or 1, events]."""
        summed, weight = _kernel_sums(self.weighted, kernel)
        square = np.einsum("bpei,bpei->bpe", weight, weight)
        largest_term = (self._magnitudes * kernel).max(axis=-1)
        moments = self._moments(summed, square, weight.max(axis=-1), largest_term)
        if self.shared is not None:
            summed, weight = _kernel_sums(self.shared, kernel)
            square = np.einsum("bpei,bpei->bpe", weight, weight)
        self._fill_pairs(moments, summed, square)
        return self._by_column(moments)

    def _moments(self, summed: Array, square: Array, largest_weight: Array, largest_term: Array) -> Array:
        """Moments from the sums of all series and of `q^2`, per estimator or one for all, and the largest values."""
        moments = np.empty((*self._summed.shape[:2], len(self.places), ALL_ROWS if self.pairs else ROWS))
        self._fill_products(moments, summed)
        for row, place in zip((Row.IMPORTANCE, Row.IMPORTANCE_SQUARE, Row.UNSUPPORTED), self.diagnostics, strict=True):
            moments[..., row] = 0.0 if place is None else summed[..., place]
        for estimator, places in enumerate(self.places):
            moments[:, :, estimator, Row.TERM_IMPORTANCE] = summed[:, :, min(estimator, summed.shape[2] - 1), places.uw]
        moments[..., Row.WEIGHT_SQUARE] = square
        moments[..., Row.LARGEST_WEIGHT] = largest_weight
        moments[..., Row.LARGEST_TERM] = largest_term
        moments[..., Row.LARGEST_IMPORTANCE] = self._largest_importance[..., None]
        return moments

    def _fill_pairs(self, moments: Array, summed: Array, square: Array) -> None:
        """The pair sums of moments, where lifts are asked for."""
        if not self.pairs:
            return
        target = moments[..., PAIRS]
        self._fill_pair_sums(target, summed, square)
        w, ww, _ = self.diagnostics
        target[..., PairRow.IMPORTANCE], target[..., PairRow.IMPORTANCE_SQUARE] = summed[..., w], summed[..., ww]
        for estimator, places in enumerate(self.pairs):
            of = min(estimator, summed.shape[2] - 1)
            target[:, :, estimator, PairRow.U_IMPORTANCE] = summed[:, :, of, places.u_importance]
            target[:, :, estimator, PairRow.PU_IMPORTANCE] = summed[:, :, of, places.pu_importance]

    def _fill_pair_sums(self, target: Array, summed: Array, square: Array) -> None:
        """The pair sums that moments and spreads both have."""
        target[..., PairRow.WEIGHT] = summed[..., Series.ONE]
        target[..., PairRow.WEIGHT_SQUARE] = square
        for estimator, places in enumerate(self.pairs):
            of = min(estimator, summed.shape[2] - 1)
            target[:, :, estimator, FIRST_SUM : FIRST_SUM + len(places.sums)] = summed[:, :, of, list(places.sums)]

    def _fill_products(self, target: Array, summed: Array) -> None:
        """The first rows of moments and of spreads: sums of q, u, v, u^2, u v, v^2."""
        target[..., Row.WEIGHT] = summed[..., Series.ONE]
        for estimator, places in enumerate(self.places):
            of = min(estimator, summed.shape[2] - 1)
            target[:, :, estimator, Row.U : Row.VV + 1] = summed[:, :, of, list(places[:5])]

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
        return _weight_square(self.weighted)

    @cached_property
    def _summed_shared(self) -> Array:
        return self._summed if self.shared is None else np.asarray(self.shared @ np.ones(self.size))

    @cached_property
    def _shared_square(self) -> Array:
        return self._weight_square if self.shared is None else _weight_square(self.shared)

    @cached_property
    def _largest_importance(self) -> Array:
        return np.asarray(self.importance.max(axis=-1))


def _weight_square(weighted: Array) -> Array:
    """Sums of `q^2` of each block, [blocks, policies]."""
    q = weighted[:, :, Series.ONE]
    return np.asarray(np.einsum("bpi,bpi->bp", q, q))


def _kernel_sums(weighted: Array, kernel: Array) -> tuple[Array, Array]:
    """Sums of all series under each kernel [.., kernels, events], and what the kernel makes of each event's weight."""
    summed = np.matmul(weighted, kernel.swapaxes(2, 3)).swapaxes(2, 3)
    return summed, weighted[:, :, Series.ONE, None] * kernel


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
