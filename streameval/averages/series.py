"""Series: the numbers of each event that are summed, every product of them kept once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from streameval.arrays import Array, per_block
from streameval.averages.pairs import PRODUCTS, TERMS

Places: TypeAlias = NDArray[np.int64]
"""Where the series of some rows lie, [estimators, rows]."""

SAMPLED = 97
"""One event in so many tells quickly which series cannot be equal."""


class Series:
    """Products of numbers per event, [events, policies], each kept once however many estimators need it.

    What is equal is kept once, too: with rewards of 0 and 1 many a product equals one of its factors.
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
        """Where the product of these factors, at most two, lies; None counts as 1."""
        given = tuple(self._equal.get(id(factor), factor) for factor in factors if factor is not None)
        key = tuple(sorted(map(id, given)))
        if key not in self._places:
            self._places[key] = self._keep(given)
        return self._places[key]

    def _keep(self, factors: tuple[Array, ...]) -> int:
        """Where the product lies, which may have been kept already as something else."""
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
        """The places of what a column sums, in the order of `Row`; what is not known as that of 1."""
        w = self._importance
        terms = ((u,), (v,), (u, u), (u, v), (v, v))
        return [self.place(*product) for product in ((), *terms, (w,), (w, w), (unsupported,), (u, w))]

    def pair_rows(self, u: Array, v: Array | None) -> list[int]:
        """The places of what a column and production, the first policy, sum together, in the order of `PairRow`.

        The sum of squared averaging weights, which is none of these, has that of 1.
        """
        w, pu, pv = self._importance, self._of_production(u), None if v is None else self._of_production(v)
        terms = dict(zip(TERMS, (u, v, pu, pv), strict=True))
        products = [(terms[one], terms[other]) for one, other in PRODUCTS]
        singles = [(term,) for term in terms.values()]
        return [self.place(*product) for product in ((), *singles, *products, (), (w,), (w, w), (u, w), (pu, w))]

    def weighted(self, averaging_weight: Array, blocks: int) -> Array:
        """All series times these averaging weights [events, policies], as [blocks, policies, series, events]."""
        weights = [] if (averaging_weight == 1.0).all() else [averaging_weight]
        events, policies = averaging_weight.shape
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
    """The product of two factors, or of three; of one alone itself, of none 1."""
    if len(factors) > 1:
        product = np.multiply(factors[0], factors[1], out=out)
        return product if len(factors) == 2 else np.multiply(product, factors[2], out=product)
    product = factors[0] if factors else np.ones(())
    if out is not None:
        out[...] = product
    return product
