"""Lay out block sums: list the products of series that a block keeps, and the row of each.

A series is one number per event and policy. The importance weight is series 0. Estimators add their numerators and
denominators, and the components of terms that an average may keep apart. A block keeps sums of products of two series,
each product once. The tables of a layout give the rows of each column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np

from streameval.common.arrays import Array, Integers
from streameval.ope.core.moments import (
    ALL_ROWS,
    PRODUCTS,
    ROWS,
    TERMS,
    MomentRow,
    PairRow,
)
from streameval.ope.estimators.base import Estimator

__all__ = ["Component", "Layout"]

ONE = -1
"""The number of the series that is 1 for every event."""
IMPORTANCE = 0
"""The number of the series of importance weights."""
SUM, SQUARES, FADING_MAXIMUM, MAXIMUM = 1, 2, 3, 0
"""How a row is folded: see `kernel.accumulate`."""


@dataclass(frozen=True)
class Component:
    """Hold a part of a term that has its own average: the numbers of its series, and of the difference to production.

    `denominator` is ONE without a denominator. A component with a denominator has no series of differences.
    """

    numerator: int
    denominator: int
    difference: int | None


Name = TypeVar("Name")
Product = tuple[bool, int, int]
"""Whether a product counts with the weights of both policies, and the numbers of its series."""


class _Numbering(Generic[Name]):
    """Number names in the order in which they are asked for."""

    def __init__(self) -> None:
        self.names: dict[Name, int] = {}

    def __call__(self, name: Name) -> int:
        return self.names.setdefault(name, len(self.names))


@dataclass(frozen=True, eq=False)
class Layout:
    """Lay out the rows of block sums for some estimators.

    Args:
        columns: the estimators, one column of each policy each
        paired: whether lifts are read from the products of a term with the one of production
        mixed: whether an average keeps components and their differences to production
        apart: whether events may lack production that other policies have
        unit_production: whether the importance weight of production is always 1
    """

    columns: tuple[Estimator, ...]
    paired: bool
    mixed: bool
    apart: bool
    unit_production: bool

    @cached_property
    def series(self) -> dict[str, int]:
        """Return the numbers of all series by name."""
        names = ["w"]
        for column in self.columns:
            names.append(_numerator(column))
            if column.ratio and not column.divides_by_weight:
                names.append(f"{column!r} denominator")
            if self.mixed:
                if column.parts > 1:
                    names += [f"{column!r} {part}" for part in range(column.parts)]
                    names += [f"{column!r} {part} difference" for part in range(column.parts)]
                if not column.ratio:
                    names.append(f"{_numerator(column)} difference")
        return {name: number for number, name in enumerate(dict.fromkeys(names))}

    def numerator(self, column: Estimator) -> int:
        """Return the number of the series of a column's numerators."""
        return self.series[_numerator(column)]

    def denominator(self, column: Estimator) -> int:
        """Return the number of the series of a column's denominators, or ONE."""
        if not column.ratio:
            return ONE
        return IMPORTANCE if column.divides_by_weight else self.series[f"{column!r} denominator"]

    def difference(self, column: Estimator) -> int | None:
        """Return the number of the series of differences to production, without a denominator."""
        return None if column.ratio or not self.mixed else self.series[f"{_numerator(column)} difference"]

    @cached_property
    def components(self) -> tuple[tuple[Component, ...], ...]:
        """Return the components of each column's term."""
        components: list[tuple[Component, ...]] = []
        for column in self.columns:
            if column.parts == 1:
                components.append(
                    (Component(self.numerator(column), self.denominator(column), self.difference(column)),)
                )
            else:
                names = [f"{column!r} {part}" for part in range(column.parts)]
                components.append(
                    tuple(Component(self.series[name], ONE, self.series[f"{name} difference"]) for name in names)
                )
        return tuple(components)

    @cached_property
    def every_component(self) -> tuple[Component, ...]:
        """Return the components of all columns side by side."""
        return tuple(component for components in self.components for component in components)

    # -- products ------------------------------------------------------------------------------------------------------

    def production(self, series: int) -> int:
        """Return the number of a series of production's in place of the policy's own."""
        if series == ONE or (series == IMPORTANCE and self.unit_production):
            return ONE
        return series + len(self.series)

    def _product(self, both: bool, one: int, other: int) -> Product:
        first, second = sorted((one, other))
        return both and self.apart, first, second

    def _own(self, column: Estimator) -> list[Product]:
        """Return the products of a column alone, in the order of `MomentRow`, up to VV."""
        return self._own_terms(self.numerator(column), self.denominator(column))

    def _pair(self, column: Estimator) -> list[Product]:
        """Return the products of a column and production, in the order of `PairRow`, up to the last product."""
        return self._paired_terms(self.numerator(column), self.denominator(column))

    def _own_terms(self, u: int, v: int) -> list[Product]:
        """Return the products `q, q u, q v, q u^2, q u v, q v^2`."""
        return [self._product(False, *pair) for pair in ((ONE, ONE), (ONE, u), (ONE, v), (u, u), (u, v), (v, v))]

    def _paired_terms(self, u: int, v: int) -> list[Product]:
        """Return the weight of both policies, the terms of both, and the products of these terms."""
        terms = dict(zip(TERMS, (u, v, self.production(u), self.production(v)), strict=True))
        pairs = [(ONE, ONE), *((ONE, term) for term in terms.values())]
        pairs += [(terms[one], terms[other]) for one, other in PRODUCTS]
        return [self._product(True, *pair) for pair in pairs]

    def weight_products(self, both: bool) -> list[Product]:
        """Return the sums of importance weights: `q w, q w^2`."""
        return [self._product(both, *pair) for pair in ((ONE, IMPORTANCE), (IMPORTANCE, IMPORTANCE))]

    def component_products(self, component: Component) -> list[Product]:
        """Return the sums of a component: `q, q u, q v, q u^2, q u v, q v^2`."""
        return self._own_terms(component.numerator, component.denominator)

    def difference_products(self, difference: int) -> list[Product]:
        """Return the sums of a difference to production: `q d, q d^2`."""
        return [self._product(True, ONE, difference), self._product(True, difference, difference)]

    def ratio_products(self, component: Component) -> list[Product]:
        """Return the sums and products of numerator, denominator and production's, in the order of `PairRow`."""
        return self._paired_terms(component.numerator, component.denominator)

    @cached_property
    def viewed(self) -> int:
        """Return the number of products, from the first, that averages read under other weights of the events."""
        number: _Numbering[Product] = _Numbering()
        for column in self.columns:
            for product in self._read(column):
                number(product)
        return len(number.names)

    def _read(self, column: Estimator) -> list[Product]:
        """Return the products behind the moments of a column."""
        u = self.numerator(column)
        products = [*self._own(column), *self.weight_products(False)]
        if self.paired:
            pu = self.production(u)
            products += [self._product(False, u, IMPORTANCE), *self._pair(column), *self.weight_products(True)]
            products += [self._product(True, u, IMPORTANCE), self._product(True, pu, IMPORTANCE)]
        return products

    @cached_property
    def products(self) -> dict[Product, int]:
        """Return the row of each product."""
        number: _Numbering[Product] = _Numbering()
        for column in self.columns:
            for product in self._read(column):
                number(product)
        if self.mixed:
            number(self._product(True, ONE, ONE))
            for product in self.weight_products(True):
                number(product)
            for column, components in zip(self.columns, self.components, strict=True):
                difference = self.difference(column)
                for product in () if difference is None else self.difference_products(difference):
                    number(product)
                for component in components:
                    for product in self.component_products(component):
                        number(product)
                    further = (
                        self.ratio_products(component)
                        if component.difference is None
                        else self.difference_products(component.difference)
                    )
                    for product in further:
                        number(product)
        return number.names

    @cached_property
    def factors(self) -> tuple[Integers, Integers, Integers]:
        """Return the numbers of both series of each product, and whether it uses the weights of both policies."""
        apart, first, second = np.array(list(self.products), dtype=np.int64).T
        return np.ascontiguousarray(first), np.ascontiguousarray(second), np.ascontiguousarray(apart)

    def row(self, product: Product) -> int:
        """Return the row of a product."""
        return self.products[product]

    def rows(self, products: Sequence[Product]) -> list[int]:
        """Return the rows of some products."""
        return [self.row(product) for product in products]

    # -- further rows --------------------------------------------------------------------------------------------------

    @cached_property
    def numerators(self) -> list[tuple[int, bool]]:
        """Return the series with a largest term and a number of non-zero terms, and whether they count for both."""
        own = [(self.numerator(column), False) for column in self.columns]
        differences = [self.difference(column) for column in self.columns]
        return list(dict.fromkeys([*own, *((series, True) for series in differences if series is not None)]))

    @property
    def _squares(self) -> int:
        return len(self.products)

    @property
    def _maxima(self) -> int:
        return self._squares + 2

    @property
    def unsupported(self) -> int:
        """Return the row of the probability of actions that are never logged."""
        return self._maxima + 2 + len(self.numerators)

    @property
    def _counts(self) -> int:
        return self.unsupported + 1

    @property
    def _present(self) -> int:
        return self._counts + 2 + len(self.numerators)

    @property
    def size(self) -> int:
        """Return the number of rows."""
        return self._present + 2

    def squares_row(self, both: bool) -> int:
        """Return the row of the sum of squared weights."""
        return self._squares + int(both)

    @property
    def heaviest_row(self) -> int:
        """Return the row of the largest importance weight."""
        return self._maxima + 1

    def present_row(self, both: bool) -> int:
        """Return the row that is 1 if the block has an event, or one that production has too."""
        return self._present + int(both)

    def events_row(self, both: bool) -> int:
        """Return the row of the number of events."""
        return self._counts + int(both)

    def nonzero_row(self, series: int, both: bool = False) -> int:
        """Return the row of the number of terms that are not 0."""
        return self._counts + 2 + self.numerators.index((series, both))

    def fill(
        self, rows: Array, squares: Array, largest: Array, unsupported: Array | None, counts: Array | None
    ) -> None:
        """Write the rows that are not products."""
        rows[..., self._squares : self._maxima] = squares
        rows[..., self._maxima : self.unsupported] = largest
        rows[..., self.unsupported] = 0.0 if unsupported is None else unsupported
        if counts is not None:
            rows[..., self._counts : self._present] = counts
            rows[..., self._present] = rows[..., self.row(self._product(False, ONE, ONE))] > 0
            both = self._product(True, ONE, ONE)
            rows[..., self._present + 1] = rows[..., self.products.get(both, self._present)] > 0

    @cached_property
    def names(self) -> list[tuple[object, ...]]:
        """Return the name of each row, which is the same in the layout of fewer estimators."""
        series = {number: name for name, number in self.series.items()} | {ONE: "1"}
        own = len(self.series)

        def named(number: int) -> str:
            return f"production {series[number - own]}" if number >= own else series[number]

        products = [(both, *sorted((named(one), named(other)))) for both, one, other in self.products]
        terms = [(named(number), both) for number, both in self.numerators]
        squares = [("squares", both) for both in (False, True)]
        maxima = [("maximum", name) for name in ("q", "w", *terms)]
        counts = [("count", name) for name in (False, True, *terms)]
        present = [("present", both) for both in (False, True)]
        return [*products, *squares, *maxima, ("unsupported",), *counts, *present]

    @cached_property
    def total_names(self) -> list[tuple[object, ...]]:
        """Return the name of each of `totals`."""
        return [self.names[row] for row in self.total_rows]

    # -- tables --------------------------------------------------------------------------------------------------------

    @cached_property
    def moment_table(self) -> Integers:
        """Return the row of each moment of each column, in the order of `MomentRow` and then of `PairRow` [E, rows]."""
        table = np.zeros((len(self.columns), ALL_ROWS if self.paired else ROWS), dtype=np.int64)
        for index, column in enumerate(self.columns):
            row, u = table[index], self.numerator(column)
            row[: MomentRow.VV + 1] = [self.row(product) for product in self._own(column)]
            row[MomentRow.IMPORTANCE : MomentRow.IMPORTANCE_SQUARE + 1] = [
                self.row(product) for product in self.weight_products(False)
            ]
            row[MomentRow.UNSUPPORTED] = self.unsupported
            row[MomentRow.WEIGHT_SQUARE] = self.squares_row(False)
            row[MomentRow.LARGEST_WEIGHT] = self._maxima
            row[MomentRow.LARGEST_TERM] = self._maxima + 2 + self.numerators.index((u, False))
            row[MomentRow.LARGEST_IMPORTANCE] = self.heaviest_row
            row[MomentRow.TERM_IMPORTANCE] = row[MomentRow.IMPORTANCE]
            if self.paired:
                row[MomentRow.TERM_IMPORTANCE] = self.row(self._product(False, u, IMPORTANCE))
                pair, pu = row[ROWS:], self.production(u)
                pair[: PairRow.WEIGHT_SQUARE] = [self.row(product) for product in self._pair(column)]
                pair[PairRow.WEIGHT_SQUARE] = self.squares_row(True)
                pair[PairRow.IMPORTANCE : PairRow.IMPORTANCE_SQUARE + 1] = [
                    self.row(product) for product in self.weight_products(True)
                ]
                pair[PairRow.U_IMPORTANCE] = self.row(self._product(True, u, IMPORTANCE))
                pair[PairRow.PU_IMPORTANCE] = self.row(self._product(True, pu, IMPORTANCE))
        return table

    @cached_property
    def power(self) -> Integers:
        """Return how each row of a block is folded, [rows]."""
        power = np.full(self.size, SUM)
        power[self._squares : self._maxima] = SQUARES
        power[self._maxima : self.unsupported] = FADING_MAXIMUM
        power[self.heaviest_row] = MAXIMUM
        return power

    @cached_property
    def past_table(self) -> Integers:
        """Return the rows that a variance sums up for each column: see `past.OWN` and `past.PAIR`, [E, rows]."""
        tables = []
        for column in self.columns:
            own = [self.row(product) for product in self._own(column)]
            own += [self.squares_row(False), self.present_row(False), self.nonzero_row(self.numerator(column))]
            pair: list[int] = []
            if self.paired:
                pair = [self.row(product) for product in self._pair(column)]
                pair += [self.squares_row(True), self.present_row(True)]
            tables.append(own + pair)
        return np.array(tables, dtype=np.int64)

    @cached_property
    def totals(self) -> dict[tuple[bool, int], int]:
        """Return the sums by which blocks are compared: whether of both policies, and the number of the series."""
        number: _Numbering[tuple[bool, int]] = _Numbering()
        for column in self.columns:
            u, v = self.numerator(column), self.denominator(column)
            for series in (u, v):
                number((False, series))
            if self.paired or (self.mixed and column.ratio and column.parts == 1):
                for series in (u, v, self.production(u), self.production(v)):
                    number((self.apart, series))
        return number.names

    @cached_property
    def total_rows(self) -> Integers:
        """Return the row of each of `totals`."""
        return np.array([self.row((both, ONE, series)) for both, series in self.totals], dtype=np.int64)

    @cached_property
    def compared(self) -> tuple[Integers, Integers, Integers, Integers]:
        """Return the products of contrasts, and the table of each column [E, rows].

        A product is both totals and whether they are of both policies [K]. The table gives the indices among the two
        weights and the products, as in `past.OWN_SQUARES` and `past.PAIR_SQUARES`.
        """
        number: _Numbering[tuple[bool, int, int]] = _Numbering()
        tables = []
        for column in self.columns:
            u, v = self.numerator(column), self.denominator(column)

            def products(both: bool, series: Sequence[int]) -> list[int]:
                totals = [self.totals[(both, name)] for name in series]
                return [
                    2 + number((both, totals[one], totals[other]))
                    for one in range(len(totals))
                    for other in range(one, len(totals))
                ]

            table = [0, *products(False, (u, v))]
            if self.paired:
                table += [1, *products(self.apart, (u, v, self.production(u), self.production(v)))]
            tables.append(table)
        apart, first, second = np.array(list(number.names), dtype=np.int64).T
        columns = tuple(np.ascontiguousarray(column) for column in (first, second, apart))
        return (*columns, np.array(tables, dtype=np.int64))  # type: ignore[return-value]

    @cached_property
    def signed_table(self) -> Integers:
        """Return the places of a column's totals: of the pair with production, if any, and then of its own, [E, T]."""
        tables = []
        for column in self.columns:
            u, v = self.numerator(column), self.denominator(column)
            pair = []
            if self.paired:
                pair = [self.totals[(self.apart, series)] for series in (u, v, self.production(u), self.production(v))]
            own = [self.totals[(False, series)] for series in (u, v)] if self.apart or not self.paired else []
            tables.append(pair + own)
        return np.array(tables, dtype=np.int64)


def _numerator(column: Estimator) -> str:
    """Return the name of the series of a column's numerators."""
    return "w r" if column.averages_weighted_reward else repr(column)
