"""Blocks: the terms of consecutive events, cut into the blocks at whose ends everything adaptive may change."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from streameval.arrays import Array
from streameval.averages.moments import CLUSTER_ROWS, COMPARED, FEATURES, MAXIMA, ROWS, ClusterRow, Row


class Blocks:
    """Features of the terms of some whole blocks, or of one that is not finished, [blocks, columns, features, events].

    A column is one policy under one estimator.
    """

    def __init__(self, features: Array) -> None:
        self.features = features

    @classmethod
    def stack(cls, columns: Sequence[Columns]) -> Blocks:
        """Put the terms of several estimators side by side."""
        blocks, policies, events = columns[0].q.shape
        features = np.empty((blocks, len(columns) * policies, FEATURES, events))
        for place, column in enumerate(columns):
            column.fill(features[:, place * policies : (place + 1) * policies])
        return cls(features)

    def __len__(self) -> int:
        return self.features.shape[0]

    def since(self, event: int) -> Blocks:
        """The events from this place of each block on."""
        return Blocks(self.features[..., event:])

    @property
    def size(self) -> int:
        """Events in each block."""
        return self.features.shape[-1]

    @cached_property
    def moments(self) -> Array:
        """Moments of each block, every event counting alike, [blocks, columns, rows]."""
        return _moments(self.features @ np.ones(self.size), self.features[:, :, COMPARED])

    @cached_property
    def clusters(self) -> Array:
        """Cluster moments of each block, [blocks, columns, cluster rows]."""
        u, v = self.moments[..., Row.U], self.moments[..., Row.V]
        clusters = np.empty((*u.shape, CLUSTER_ROWS))
        clusters[..., ClusterRow.UU] = u * u
        clusters[..., ClusterRow.UV] = u * v
        clusters[..., ClusterRow.VV] = v * v
        clusters[..., ClusterRow.NONZERO] = np.count_nonzero(self.features[:, :, Row.U], axis=-1)
        clusters[..., ClusterRow.WEIGHT_SQUARE] = self.moments[..., Row.WEIGHT_SQUARE]
        clusters[..., ClusterRow.BLOCKS] = self.moments[..., Row.WEIGHT] > 0
        return clusters

    def by_bucket(self, resolution: int) -> Array:
        """Moments of buckets of `resolution` events, which divides the size of a block, [buckets, columns, rows]."""
        blocks, columns, rows, size = self.features.shape
        split = self.features.reshape(blocks, columns, rows, size // resolution, resolution)
        buckets = Blocks(split.transpose(0, 3, 1, 2, 4).reshape(-1, columns, rows, resolution))
        return buckets.moments

    def decayed(self, alpha: Array | float) -> Array:
        """Moments of each block in which an event counts `alpha^age`, the newest having age 0, [blocks, columns, rows].

        `alpha` is one number, or [blocks, columns].
        """
        kernel = powers(np.asarray(alpha), self.size)[..., ::-1]
        sums = self.features @ kernel if kernel.ndim == 1 else np.einsum("bcfi,bci->bcf", self.features, kernel)
        return _moments(sums, self.features[:, :, COMPARED] * kernel[..., None, :])


def _moments(sums: Array, compared: Array) -> Array:
    """Moments from the sums of all features and the values of the compared ones, on the last axis."""
    moments = np.empty((*sums.shape[:-1], ROWS))
    moments[..., :FEATURES] = sums
    q = compared[..., Row.WEIGHT, :]
    moments[..., Row.WEIGHT_SQUARE] = np.einsum("bci,bci->bc", q, q)
    moments[..., MAXIMA] = np.abs(compared).max(axis=-1)
    return moments


class Columns:
    """The terms of one estimator, each [blocks, policies, events]: averaging weight, numerator, denominator, weight."""

    def __init__(self, q: Array, u: Array, v: Array | None, importance: Array, unsupported: Array) -> None:
        self.q, self.u, self.v, self.importance, self.unsupported = q, u, v, importance, unsupported

    def fill(self, features: Array) -> None:
        """Write the features of these terms into [blocks, policies, features, events]."""
        row = {place: features[:, :, place] for place in Row if place < FEATURES}
        row[Row.WEIGHT][...] = self.q
        np.multiply(self.q, self.u, out=row[Row.U])
        np.multiply(row[Row.U], self.u, out=row[Row.UU])
        if self.v is None:
            row[Row.V][...] = self.q
            row[Row.UV][...] = row[Row.U]
            row[Row.VV][...] = self.q
        else:
            np.multiply(self.q, self.v, out=row[Row.V])
            np.multiply(row[Row.V], self.u, out=row[Row.UV])
            np.multiply(row[Row.V], self.v, out=row[Row.VV])
        np.multiply(self.q, self.importance, out=row[Row.IMPORTANCE])
        np.multiply(row[Row.IMPORTANCE], self.importance, out=row[Row.IMPORTANCE_SQUARE])
        np.multiply(self.q, self.unsupported, out=row[Row.UNSUPPORTED])


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
