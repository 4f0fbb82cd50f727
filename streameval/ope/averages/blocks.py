"""Blocks: the terms of consecutive events, cut into blocks; everything adaptive changes at their ends only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from streameval.common.arrays import Array, per_block
from streameval.ope.averages.cluster_variance import ClusterRows, Places
from streameval.ope.averages.moments import (
    ALL_ROWS,
    ALL_SPREAD_ROWS,
    BLOCK_PAIRS,
    PAIR_SUMS,
    PAIRS,
    PRODUCTS,
    ROWS,
    SPREAD_PAIR_ROWS,
    SPREAD_PAIRS,
    SPREAD_ROWS,
    SUMS,
    TERMS,
    MomentRow,
    PairRow,
    VarianceRow,
)
from streameval.ope.evidence.evidence import Evidence

SAMPLED = 97
"""One event in this many is compared first, to find series that cannot be equal."""


class ProductTable:
    """Products of numbers per event, [events, policies], each kept once however many estimators need it.

    Equal products are kept once: with rewards of 0 and 1 many a product equals one of its factors.
    """

    ONE = 0

    def __init__(self, importance: Array) -> None:
        self._importance = importance
        self._kept: list[tuple[Array, ...]] = [()]  # a product without factors: 1
        self._places: dict[tuple[int, ...], int] = {(): self.ONE}
        self._equal: dict[int, Array] = {}  # by the identity of an array the equal one that is kept
        self._alike: dict[bytes, list[int]] = {}
        self._production: list[Array] = []

    def place(self, *factors: Array | None) -> int:
        """The place of the product of at most two factors; None counts as 1."""
        given = tuple(self._equal.get(id(factor), factor) for factor in factors if factor is not None)
        key = tuple(sorted(map(id, given)))
        if key not in self._places:
            self._places[key] = self._keep(given)
        return self._places[key]

    def _keep(self, factors: tuple[Array, ...]) -> int:
        """The place of the product, or of an equal one that is kept already."""
        sample = _product([factor[::SAMPLED] for factor in factors]).tobytes()
        alike = self._alike.setdefault(sample, [])
        if alike:
            values = _product(factors)
            for place in alike:
                if np.array_equal(_product(self._kept[place]), values):
                    if len(factors) == len(self._kept[place]) == 1:
                        self._equal[id(factors[0])] = self._kept[place][0]
                    return place
        alike.append(len(self._kept))
        self._kept.append(factors)
        return alike[-1]

    def rows(self, u: Array, v: Array | None, unsupported: Array | None) -> list[int]:
        """The places of the rows of a column, in the order of `MomentRow`; unknown ones have that of 1."""
        w = self._importance
        terms = ((u,), (v,), (u, u), (u, v), (v, v))
        return [self.place(*product) for product in ((), *terms, (w,), (w, w), (unsupported,), (u, w))]

    def pair_rows(self, u: Array, v: Array | None) -> list[int]:
        """The places of the pair rows of a column and production, the first policy, in the order of `PairRow`.

        The sum of squared averaging weights is no product of these; it has the place of 1.
        """
        w, pu, pv = self._importance, self._of_production(u), None if v is None else self._of_production(v)
        terms = dict(zip(TERMS, (u, v, pu, pv), strict=True))
        products = [(terms[one], terms[other]) for one, other in PRODUCTS]
        singles = [(term,) for term in terms.values()]
        return [self.place(*product) for product in ((), *singles, *products, (), (w,), (w, w), (u, w), (pu, w))]

    def weighted(self, sample_weight: Array, blocks: int) -> Array:
        """All series times these averaging weights [events, policies], as [blocks, policies, series, events]."""
        weights = [] if (sample_weight == 1.0).all() else [sample_weight]
        events, policies = sample_weight.shape
        weighted = np.empty((blocks, policies, len(self._kept), events // blocks))
        for place, factors in enumerate(self._kept):
            _product([per_block(factor, blocks) for factor in (*factors, *weights)], weighted[:, :, place])
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


def _product(factors: Sequence[Array], out: Array | None = None) -> Array:
    """The product of up to three factors."""
    if len(factors) > 1:
        product = np.multiply(factors[0], factors[1], out=out)
        return product if len(factors) == 2 else np.multiply(product, factors[2], out=product)
    product = factors[0] if factors else np.ones(())
    if out is not None:
        out[...] = product
    return product


TERM_SUMS = slice(MomentRow.WEIGHT, MomentRow.VV + 1)
"""The first rows of moments and spreads."""


class Blocks:
    """Series of numbers per event, [blocks, policies, series, events], from which all sums over a block are made.

    A column is one policy under one estimator: column `policy * E + estimator` of E estimators. The blocks are whole,
    or there is one unfinished block. `shared`: the series on the events that production has, None if it has all.
    `sums`, `pairs`: the series summed by the rows of moments, and of pairs (None without lifts). `knows_support`:
    whether there is a series of the unsupported probability. `signs` [blocks, events, 64]: of the events' units; None
    before the first unit. `times` [blocks, events]: in seconds, NaN if unknown.
    """

    def __init__(
        self,
        weighted: Array,
        importance: Array,
        knows_support: bool,
        sums: Places,
        pairs: Places | None = None,
        shared: Array | None = None,
        signs: Array | None = None,
        times: Array | None = None,
    ) -> None:
        self.weighted = weighted  # the series times the averaging weight
        self.importance, self.knows_support = importance, knows_support
        self.sums, self.pairs, self.shared, self.signs = sums, pairs, shared, signs
        self.times = np.full((len(self), self.size), np.nan) if times is None else times

    @classmethod
    def of(
        cls,
        blocks: int,
        sample_weight: Array,
        importance: Array,
        unsupported: Array | None,
        terms: Sequence[tuple[Array, Array | None]],
        paired: bool = True,
        signs: Array | None = None,
        times: Array | None = None,
    ) -> Blocks:
        """The blocks of terms `(u, v)`; all arrays are [events, policies].

        `paired`: with the products for lifts over the first policy. `signs` [events, 64]: of the events' units. `times`
        [events]: seconds, None if unknown.
        """
        series = ProductTable(importance)
        sums = [series.rows(u, v, unsupported) for u, v in terms]
        pairs = [series.pair_rows(u, v) for u, v in terms] if paired else []
        both = np.where(sample_weight[:, :1] > 0, sample_weight, 0.0)
        alike = not paired or np.array_equal(both, sample_weight)
        return cls(
            series.weighted(sample_weight, blocks),
            per_block(importance, blocks),
            unsupported is not None,
            np.array(sums),
            np.array(pairs) if paired else None,
            None if alike else series.weighted(both, blocks),
            None if signs is None else signs.reshape(blocks, -1, signs.shape[1]),
            None if times is None else times.reshape(blocks, -1),
        )

    @classmethod
    def from_evidence(
        cls, evidence: Evidence, terms: Sequence[tuple[Array, Array | None]], paired: bool = True
    ) -> Blocks:
        """The blocks of the terms `(u, v)` of all events of `evidence`; units count where lifts do."""
        return cls.of(
            evidence.blocks,
            evidence.sample_weight,
            evidence.importance_weight,
            evidence.unsupported,
            terms,
            paired,
            evidence.signs if paired else None,
            evidence.timestamp,
        )

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
        """The same with a change to all series [blocks, policies, series, events], without units."""
        return Blocks(
            change(self.weighted),
            change(self.importance[:, :, None])[:, :, 0],
            self.knows_support,
            self.sums,
            self.pairs,
            None if self.shared is None else change(self.shared),
        )

    @cached_property
    def moments(self) -> Array:
        """Moments of each block, every event counting alike, [blocks, columns, rows]."""
        largest = self._weights.max(axis=-1)[..., None], self._magnitudes.max(axis=-1)
        return self._moments((self._summed, self._weight_square), (self._summed_shared, self._shared_square), *largest)

    @cached_property
    def spread(self) -> Array:
        """Spread of each block, [blocks, columns, rows]."""
        blocks, policies = self.weighted.shape[:2]
        rows = SPREAD_ROWS if self.pairs is None else ALL_SPREAD_ROWS
        spread = np.empty((blocks, policies, len(self.sums), rows))
        spread[..., TERM_SUMS] = _chosen(self._summed, self.sums[:, TERM_SUMS])
        u, v = spread[..., VarianceRow.U], spread[..., VarianceRow.V]
        spread[..., VarianceRow.WEIGHT_SQUARE] = self._weight_square
        spread[..., VarianceRow.NONZERO] = np.count_nonzero(self._magnitudes, axis=-1)
        spread[..., VarianceRow.BLOCK_UU] = u * u
        spread[..., VarianceRow.BLOCK_UV] = u * v
        spread[..., VarianceRow.BLOCK_VV] = v * v
        spread[..., VarianceRow.BLOCKS] = spread[..., VarianceRow.WEIGHT] > 0
        if self.pairs is not None:
            self._fill_pair_spread(spread, self.pairs)
        return self._by_column(spread)

    def _fill_pair_spread(self, spread: Array, pairs: Places) -> None:
        sums = spread[..., SPREAD_PAIRS]
        sums[:] = _chosen(self._summed_shared, pairs[:, :SPREAD_PAIR_ROWS])
        sums[..., PairRow.WEIGHT_SQUARE] = self._shared_square
        one, other = np.triu_indices(len(TERMS))
        terms = sums[..., PAIR_SUMS]
        np.multiply(terms[..., one], terms[..., other], out=spread[..., BLOCK_PAIRS])
        spread[..., VarianceRow.PAIR_BLOCKS] = sums[..., PairRow.WEIGHT] > 0

    @cached_property
    def clusters(self) -> ClusterRows | None:
        """The rows of units in the spread of each block; None before the first unit."""
        if self.signs is None:
            return None
        covered = self.signs[:, :1, 0] != 0
        weight_square = self._weight_square[..., 0] * covered
        if self.pairs is None:
            terms = self.sums[:, [MomentRow.U, MomentRow.V]]
            return ClusterRows.of(self.weighted, self.signs, terms, weight_square)
        terms, shared_square = self.pairs[:, PAIR_SUMS], self._shared_square[..., 0] * covered
        return ClusterRows.of_pairs(self.weighted, self.shared, self.signs, terms, weight_square, shared_square)

    def decayed(self, alpha: Array | float) -> Array:
        """Moments of each block in which an event counts `alpha^age`, the newest having age 0, [blocks, columns, rows].

        `alpha` is one number, or [blocks, columns].
        """
        alpha = np.asarray(alpha)
        alpha = alpha.reshape(len(self), self.weighted.shape[1], -1) if alpha.ndim else alpha.reshape(1, 1, 1)
        return self._weighed(powers(alpha, self.size))

    def weighed(self, weights: Array) -> Array:
        """Moments of each block under these weights [blocks, events], [blocks, columns, rows]."""
        return self._weighed(weights[:, None, None])

    def _weighed(self, kernel: Array) -> Array:
        """The same for weights [blocks or 1, policies or 1, estimators or 1, events]."""
        weight = self._weights[:, :, None] * kernel
        own = shared = _kernel_sums(self.weighted, kernel), _squares(weight)
        if self.shared is not None:
            shared = _kernel_sums(self.shared, kernel), _squares(_weights(self.shared)[:, :, None] * kernel)
        return self._moments(own, shared, weight.max(axis=-1), (self._magnitudes * kernel).max(axis=-1))

    def _moments(
        self, own: tuple[Array, Array], shared: tuple[Array, Array], largest_weight: Array, largest_term: Array
    ) -> Array:
        """Moments from the sums of all series and of `q^2`, and from the largest values, per estimator or one for all.

        `shared`: the sums over the events that production has.
        """
        blocks, policies = self.weighted.shape[:2]
        moments = np.empty((blocks, policies, len(self.sums), ROWS if self.pairs is None else ALL_ROWS))
        moments[..., SUMS] = _chosen(own[0], self.sums)
        if not self.knows_support:
            moments[..., MomentRow.UNSUPPORTED] = 0.0
        moments[..., MomentRow.WEIGHT_SQUARE] = own[1]
        moments[..., MomentRow.LARGEST_WEIGHT] = largest_weight
        moments[..., MomentRow.LARGEST_TERM] = largest_term
        moments[..., MomentRow.LARGEST_IMPORTANCE] = self._largest_importance[..., None]
        if self.pairs is not None:
            moments[..., PAIRS] = _chosen(shared[0], self.pairs)
            moments[..., ROWS + PairRow.WEIGHT_SQUARE] = shared[1]
        return self._by_column(moments)

    def _by_column(self, array: Array) -> Array:
        return np.asarray(array.reshape(len(self), -1, array.shape[-1]))

    @cached_property
    def _summed(self) -> Array:
        return _kernel_sums(self.weighted, np.ones((1, 1, 1, self.size)))

    @cached_property
    def _magnitudes(self) -> Array:
        """`q |u|` of each estimator."""
        numerators = self.weighted.take(
            self.sums[:, MomentRow.U], axis=2
        )  # unlike an index, leaves events side by side
        return np.abs(numerators, out=numerators)

    @cached_property
    def _weights(self) -> Array:
        return _weights(self.weighted)

    @cached_property
    def _weight_square(self) -> Array:
        return _squares(self._weights[:, :, None])

    @cached_property
    def _summed_shared(self) -> Array:
        return self._summed if self.shared is None else _kernel_sums(self.shared, np.ones((1, 1, 1, self.size)))

    @cached_property
    def _shared_square(self) -> Array:
        return self._weight_square if self.shared is None else _squares(_weights(self.shared)[:, :, None])

    @cached_property
    def _largest_importance(self) -> Array:
        return np.asarray(self.importance.max(axis=-1))


def _weights(weighted: Array) -> Array:
    """The averaging weights, [blocks, policies, events]; one row for all if every event counts once."""
    weights = weighted[:, :, ProductTable.ONE]
    return np.ones((1, 1, weights.shape[-1])) if (weights == 1.0).all() else weights


def _squares(weights: Array) -> Array:
    """Sums of squares over the last axis."""
    return np.asarray(np.einsum("bpei,bpei->bpe", weights, weights))


def _kernel_sums(weighted: Array, kernel: Array) -> Array:
    """Sums of all series under each kernel [.., kernels, events], [blocks, policies, series, kernels]."""
    if kernel.size == weighted.shape[-1]:
        return np.asarray(weighted.reshape(-1, kernel.size) @ kernel.ravel()).reshape(*weighted.shape[:-1], 1)
    return np.asarray(np.matmul(weighted, kernel.swapaxes(2, 3)))


def _chosen(summed: Array, places: Places) -> Array:
    """The sums [blocks, policies, series, kernels] at these places, [blocks, policies, estimators, rows].

    Each estimator has its own kernel, or there is one for all.
    """
    blocks, policies, series, kernels = summed.shape
    own = np.arange(len(places))[:, None] if kernels > 1 else 0
    return np.asarray(summed.reshape(blocks, policies, series * kernels).take(places * kernels + own, axis=-1))


def _split(series: Array, resolution: int) -> Array:
    blocks, policies, count, size = series.shape
    split = series.reshape(blocks, policies, count, size // resolution, resolution)
    return split.transpose(0, 3, 1, 2, 4).reshape(-1, policies, count, resolution)


def powers(base: Array, count: int) -> Array:
    """`base^(count - 1) .. base^0` on a new last axis, by doubling.

    >>> powers(np.array(2.0), 5)
    array([16.,  8.,  4.,  2.,  1.])
    """
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
