"""Products of the numbers of events, each once, and their sums over blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from streameval.common.arrays import Array, Integers, per_block
from streameval.ope.averages.moments import PRODUCTS, TERMS
from streameval.ope.estimators import Terms
from streameval.ope.evidence.evidence import Evidence

SAMPLED = 97
"""One event in this many is compared first, to find series that cannot be equal."""


class ProductTable:
    """Products of numbers per event, [events, policies], each once.

    `seen` in its methods: 1 for the events that a column has, 0 for the others; None where it has all.
    """

    ONE = 0

    def __init__(self, importance: Array) -> None:
        self._importance = importance
        self._kept: list[tuple[Array, ...]] = [()]  # a product without factors: 1
        self._places: dict[tuple[int, ...], int] = {(): self.ONE}
        self._asked: dict[tuple[int, ...], int] = {}  # by the identities of factors
        self._first: dict[int, Array] = {}  # by the identity of an array the first one that is equal
        self._alike: dict[bytes, list[Array]] = {}
        self._factors: dict[int, tuple[Array, ...]] = {}  # by the identity of an array
        self._given: list[Array] = []  # kept, so that identities stay unique
        self._masks: set[int] = set()  # the identities of columns of 0 and 1
        self._production: list[Array] = []

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def shape(self) -> tuple[int, ...]:
        """Events and policies."""
        return self._importance.shape

    def declare(self, evidence: Evidence) -> None:
        """Take a weighted reward as the product that it is, so that other products are known to be equal to it."""
        if evidence.weighted is None:
            reward = self._of_production(evidence.reward[:, None], self.shape)
            known = self._unified(evidence.weighted_reward)
            if reward is not None and id(known) not in self._factors:
                self._factors[id(known)] = (reward, self._unified(self._importance))

    def place(self, *factors: Array | None) -> int:
        """The place of the product of at most three factors; None counts as 1."""
        asked = tuple(map(id, factors))
        if asked not in self._asked:
            given = tuple(self._unified(factor) for factor in factors if factor is not None)
            place = self._asked[asked] = self._places.setdefault(self._key(given), len(self._kept))
            if place == len(self._kept):
                self._kept.append(given)
        return self._asked[asked]

    def _key(self, factors: Sequence[Array]) -> tuple[int, ...]:
        """The same for equal products, as of rewards of 0 and 1, whose squares are the rewards."""
        every = [id(part) for factor in factors for part in self._factors.get(id(factor), (factor,))]
        return tuple(
            sorted([each for each in every if each not in self._masks] + list(self._masks.intersection(every)))
        )

    def _unified(self, column: Array) -> Array:
        """The first of all equal columns."""
        if id(column) not in self._first:
            alike = self._alike.setdefault(column[::SAMPLED].tobytes(), [])
            equal = next((each for each in alike if np.array_equal(each, column)), None)
            if equal is None:
                alike.append(column)
            self._first[id(column)] = column if equal is None else equal
            self._given.append(column)
        return self._first[id(column)]

    def rows(self, term: Terms, unsupported: Array | None, seen: Array | None, paired: bool) -> list[int]:
        """The places of the rows of a column, in the order of `MomentRow`; unknown ones have that of 1.

        `paired`: with the product of the term and the importance weight.
        """
        w, u, v = self._importance, term.numerator, term.denominator
        terms = ((u,), (v,), (u, u), (u, v), (v, v))
        every = ((), *terms, (w,), (w, w), (unsupported,), (u, w) if paired else ())
        return [self.place(*product, seen) for product in every]

    def pair_rows(self, u: Array, v: Array | None, seen: Array | None = None) -> list[int]:
        """The places of the pair rows of a column and production, the first policy, in the order of `PairRow`.

        The sum of squared averaging weights is not a product of these; it has the place of 1.
        """
        w, pu = self._importance, self._of_production(u[:, :1], u.shape)
        pv = None if v is None else self._of_production(v[:, :1], v.shape)
        terms = dict(zip(TERMS, (u, v, pu, pv), strict=True))
        products = [(terms[one], terms[other]) for one, other in PRODUCTS]
        singles = [(term,) for term in terms.values()]
        every = ((), *singles, *products, (), (w,), (w, w), (u, w), (pu, w))
        return [self.place(*product, seen) for product in every]

    def weighted(
        self, weight: Array | None, blocks: int, span: slice | None, places: Sequence[int] | Integers | None = None
    ) -> Array:
        """The series times an averaging weight [events, policies], in a span of the blocks.

        As [blocks, policies, series, events]. `weight`: None where it is 1. `span`, `places`: None for all.
        """
        kept = self._kept if places is None else [self._kept[place] for place in places]
        ((*axes, events),) = (column.shape for column in _by_block((self._importance,), blocks, span))
        weighted = np.empty((*axes, len(kept), events))
        for place, factors in enumerate(kept):
            _product(_by_block((*factors, weight), blocks, span), weighted[:, :, place])
        return weighted

    def totals(self, weight: Array | None, blocks: int) -> Array:
        """The sums of all series times an averaging weight over each block, [blocks, policies, series]."""
        events, policies = self.shape
        totals = np.empty((blocks, policies, len(self._kept)))
        for place, factors in enumerate(self._kept):
            *others, last = _by_block((*factors, weight), blocks) or [np.ones((blocks, policies, events // blocks))]
            if others:
                np.einsum("bpn,bpn->bp", _product(others), last, out=totals[:, :, place])
            else:
                last.sum(axis=-1, out=totals[:, :, place])
        return totals

    def _of_production(self, column: Array, shape: tuple[int, ...]) -> Array | None:
        """Production's column [events, 1] for every policy, the same array for equal columns; None where it is 1."""
        if (column == 1.0).all():
            return None
        for known in self._production:
            if np.array_equal(known[:, :1], column):
                return known
        found = np.broadcast_to(column, shape)
        self._production.append(found)
        if ((column == 0.0) | (column == 1.0)).all():
            self._masks.add(id(found))
        return found


def _by_block(columns: Sequence[Array | None], blocks: int, span: slice | None = None) -> list[Array]:
    """Those that are known, in a span of the blocks, [blocks, policies, events] each."""
    return [per_block(column, blocks)[span or slice(None)] for column in columns if column is not None]


def _product(factors: Sequence[Array], out: Array | None = None) -> Array:
    """The product of some factors."""
    if len(factors) > 1:
        product = np.multiply(factors[0], factors[1], out=out)
        for factor in factors[2:]:
            product = np.multiply(product, factor, out=product)
        return product
    product = factors[0] if factors else np.ones(())
    if out is not None:
        out[...] = product
    return product


@dataclass(frozen=True)
class Series:
    """The series of a table times an averaging weight [events, policies]; an array is made only where one is needed.

    `weight`: None where it is 1. `span`: the blocks among all `blocks` of the table, None for all. `given`: the array,
    where the events are others than those of the table.
    """

    table: ProductTable
    weight: Array | None
    blocks: int
    span: slice | None = None
    given: Array | None = None

    @classmethod
    def of(cls, table: ProductTable, weight: Array, blocks: int) -> Series:
        """All series of a table."""
        return cls(table, None if (weight == 1.0).all() else weight, blocks)

    @cached_property
    def values(self) -> Array:
        """All series, [blocks, policies, series, events]."""
        return self.table.weighted(self.weight, self.blocks, self.span) if self.given is None else self.given

    @cached_property
    def totals(self) -> Array:
        """The sums of all series over each block, [blocks, policies, series]."""
        if self.given is not None:
            return np.asarray(self.given.sum(axis=-1))
        return self.table.totals(self.weight, self.blocks)[self.span or slice(None)]

    def take(self, places: Sequence[int] | Integers) -> Array:
        """The series at these places; `take`, unlike an index, leaves events side by side."""
        if self.given is None and "values" not in self.__dict__:
            return self.table.weighted(self.weight, self.blocks, self.span, places)
        return self.values.take(places, axis=2)

    def changed(self, change: Callable[[Array], Array]) -> Series:
        """The same with a change to the array."""
        return replace(self, given=change(self.values))

    def weighed(self, kernel: Array) -> Series:
        """The same times the weight of each event, [blocks or 1, events]."""
        if self.given is not None:
            return replace(self, given=self.given * kernel[:, None, None])
        of_events = np.broadcast_to(kernel, (self.blocks, kernel.shape[1])).ravel()
        weight = (
            np.broadcast_to(of_events, self.table.shape[::-1]) if self.weight is None else of_events * self.weight.T
        )
        return replace(self, weight=weight.T)

    def part(self, span: slice) -> Series:
        """Some of the blocks."""
        return replace(self, span=span) if self.given is None else replace(self, given=self.given[span])
