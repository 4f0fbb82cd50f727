"""Half 1 of the evaluator: the sums of events over blocks, a pure function of the events and of what was known before.

Nothing here has a state, so it may run in another process than the state that the sums are folded into.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property

import msgspec
import numpy as np

from streameval.common.arrays import Array, Integers
from streameval.ope.core import kernel
from streameval.ope.core.layout import Layout
from streameval.ope.estimators.base import Terms
from streameval.ope.evidence.evidence import Evidence, RecentMoments

__all__ = ["BlockSeries", "BlockSums", "View", "time_reached"]

REACHED_BY = 0.1
"""The clock shows a time that this share of a block has reached."""


class View(msgspec.Struct, frozen=True):
    """Rows of pieces of the events that one average needs besides the sums of blocks.

    Attributes:
        rows: [pieces, P, rows]
        block: the block of each piece [pieces]
        key: a number of each piece, such as its bucket of time [pieces]
        events: the number of events of each piece, or their weight [pieces]
    """

    rows: Array
    block: Integers
    key: Array
    events: Array


class BlockSums(msgspec.Struct, frozen=True):
    """Hold the sums of some blocks, or of the unfinished one, for the estimators of a layout.

    Attributes:
        size: the number of events in each block
        rows: see `Layout` [B, P, rows]
        signed: sums of `Layout.totals` times the signs of units, None without units [B, P, T, signs]
        signed_differences: likewise for the differences of whole terms [B, P, E, signs]
        covered: whether the events of a block have signs [B]
        priors: the initial value of each component, then the second moment assumed for it, as known after each block.
            Half 2 knows them, see `BlockSums.with_priors`. [B, P, C + 1]
        distances: the second moment assumed for differences to production, likewise [B, P]
        reached: the time that a tenth of the block has reached [B]
        views: what averages need besides, by label
    """

    size: int
    rows: Array
    signed: Array | None
    signed_differences: Array | None
    covered: Array
    priors: Array
    distances: Array
    reached: Array
    views: Mapping[str, View]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def policies(self) -> int:
        """Return the number of policies."""
        return int(self.rows.shape[1])

    def with_priors(self, values: Sequence[Array | None], recent: RecentMoments) -> BlockSums:
        """Add what averages that mix components start from.

        Args:
            values: the initial value of each component [B, P] or [B, 1], None if it has none
            recent: means of recent events after each block
        """
        priors = np.full((len(self), self.policies, len(values) + 1), np.nan)
        for index, value in enumerate(values):
            if value is not None:
                priors[..., index] = value
        square = recent.reward_square[:, None]
        priors[..., -1] = recent.weight_square * square
        return msgspec.structs.replace(self, priors=priors, distances=recent.distance_square * square)


def time_reached(times: Array, block: int) -> Array:
    """Return the time that a tenth of a block has reached, so that one wrong clock moves nothing.

    Args:
        times: times of the events of each block, or of the unfinished one, minus infinity if unknown [blocks, events]
        block: the number of events in a whole block

    >>> time_reached(np.array([[7.0, 5.0, 9e9, 6.0, 8.0]]), block=20)
    array([8.])
    """
    index = times.shape[1] - min(math.ceil(REACHED_BY * block), times.shape[1])
    return np.asarray(np.partition(times, index, axis=1)[:, index])


class BlockSeries:
    """Hold the series of some events, for all sums over pieces of them.

    Args:
        layout: the series and products
        evidence: weights and rewards of whole blocks, or of the unfinished one
        terms: the terms of each column

    Raises:
        ValueError: Events lack production, which every event of the log should have.
    """

    def __init__(self, layout: Layout, evidence: Evidence, terms: Sequence[Terms]) -> None:
        self.layout, self._evidence = layout, evidence
        self.events, self.policies = evidence.importance_weight.shape
        self.block = evidence.block
        self.blocks = evidence.blocks
        self.size = self.events // self.blocks
        self.weight = np.ascontiguousarray(evidence.sample_weight.T)
        self.both = np.where(self.weight[:1] > 0, self.weight, 0.0) if layout.apart else self.weight
        self.edges = np.arange(0, self.events + 1, max(self.size, 1), dtype=np.int64)
        if not self.size:
            self.edges = np.zeros(2, dtype=np.int64)
        unsupported = evidence.unsupported
        self._unsupported = None if unsupported is None else np.ascontiguousarray(unsupported.T)[None]
        self.series = np.empty((len(layout.series), self.policies, self.events))
        self._plain = evidence.counts_once
        if not layout.apart and not self._plain and self.weight[:, self.weight[0] == 0].any():
            raise ValueError("events lack the production policy, which every event of this log should have")
        np.multiply(evidence.importance_weight.T, 1.0 if self._plain else self.weight > 0, out=self.series[0])
        self._filled = {0}
        for index, (column, term) in enumerate(zip(layout.columns, terms, strict=True)):
            numerator, denominator = layout.numerator(column), layout.denominator(column)
            self._fill(numerator, term.numerator)
            if term.denominator is not None:
                self._fill(denominator, term.denominator)
            if layout.mixed:
                self._fill_difference(layout.difference(column), numerator)
                for component, part in zip(layout.components[index], term.components, strict=False):
                    self._fill(component.numerator, part.numerator)
                    self._fill_difference(component.difference, component.numerator)

    def _fill(self, number: int, column: Array) -> None:
        """Set a series, unless it is known."""
        if number not in self._filled:
            self.series[number] = column.T
            self._filled.add(number)

    def _fill_difference(self, number: int | None, series: int) -> None:
        """Set the series of differences of another one to production."""
        if number is not None and number not in self._filled:
            np.subtract(self.series[series], self.series[series, :1], out=self.series[number])
            self._filled.add(number)

    def taken(self, events: Integers) -> BlockSeries:
        """Return the series of the same events in another order."""
        taken = copy(self)
        taken.series = self.series.take(events, axis=2)
        taken.weight, taken.both = self.weight.take(events, axis=1), self.both.take(events, axis=1)
        if self._unsupported is not None:
            taken._unsupported = self._unsupported.take(events, axis=2)
        return taken

    @cached_property
    def times(self) -> Array:
        """Return the time of each event [blocks, events], minus infinity if it is unknown."""
        times = self._evidence.timestamp
        if times is None:
            return np.full((self.blocks, self.size), -np.inf)
        return np.where(np.isnan(times), -np.inf, times).reshape(self.blocks, -1)

    @cached_property
    def reached(self) -> Array:
        """Return the time that a tenth of each block has reached [blocks], minus infinity if it is unknown."""
        if self._evidence.timestamp is None or not self.size:
            return np.full(self.blocks, -np.inf)
        return time_reached(self.times, self._evidence.block)

    def rows(self, kernel_weight: Array | None = None, edges: Integers | None = None) -> Array:
        """Sum up the rows that moments need over pieces of the events, [pieces, P, rows].

        Args:
            kernel_weight: a further weight of each event [n]
            edges: the limits of the pieces, by default of the blocks
        """
        return self._rows(self.layout.viewed, False, kernel_weight, edges)

    def _rows(self, count: int, counts: bool, kernel_weight: Array | None, edges: Integers | None) -> Array:
        layout, weight, both = self.layout, self.weight, self.both
        if kernel_weight is not None:
            weight = weight * kernel_weight
            both = both * kernel_weight if layout.apart else weight
        edges, plain = self.edges if edges is None else edges, self._plain and kernel_weight is None
        pieces = len(edges) - 1
        rows = np.zeros((pieces, self.policies, layout.size))
        first, second, apart = layout.factors
        kernel.products(self.series, weight, both, plain, edges, first, second, apart, count, rows)
        terms, is_paired = np.ascontiguousarray(np.array(layout.numerators, dtype=np.int64).T)
        largest, numbers = (np.empty((length, self.policies, 2 + len(terms))) for length in (pieces, counts * pieces))
        squares = np.empty((pieces, self.policies, 2))
        kernel.extremes(
            self.series,
            weight,
            both,
            plain,
            edges,
            terms,
            is_paired,
            largest,
            numbers,
            squares,
        )
        unsupported = None
        if self._unsupported is not None:
            share = self._unsupported
            sums = np.zeros((pieces, self.policies, 1))
            one, itself, none = (np.array([number], dtype=np.int64) for number in (-1, 0, 0))
            kernel.products(share, weight, both, plain, edges, one, itself, none, 1, sums)
            unsupported = sums[..., 0]
        layout.fill(rows, squares, largest, unsupported, numbers if counts else None)
        return rows

    def sums(self, views: Mapping[str, View]) -> BlockSums:
        """Sum up all rows over blocks."""
        layout, evidence = self.layout, self._evidence
        rows = self._rows(len(layout.products), True, None, None)
        signed = signed_differences = None
        covered = np.zeros(self.blocks)
        if evidence.signs is not None:
            signs = np.ascontiguousarray(evidence.signs)
            covered = (signs[self.edges[:-1], 0] != 0).astype(float)
            signed = self._signed([series for _, series in layout.totals], [both for both, _ in layout.totals], signs)
            if layout.mixed:
                differences = [layout.difference(column) for column in layout.columns]
                series = [0 if difference is None else difference for difference in differences]
                signed_differences = self._signed([*series, -1], [True] * (len(series) + 1), signs)
        priors, distances = np.zeros((self.blocks, 0, 0)), np.zeros((self.blocks, 0))
        return BlockSums(self.size, rows, signed, signed_differences, covered, priors, distances, self.reached, views)

    def _signed(self, series: Sequence[object], both: Sequence[object], signs: Array) -> Array:
        out = np.empty((self.blocks, self.policies, len(series), signs.shape[1]))
        terms, apart = np.array(series, dtype=np.int64), np.array(both, dtype=np.int64)
        kernel.signed_sums(self.series, self.weight, self.both, self.edges, terms, apart, signs, out)
        return out
