"""Extremes: the lowest and the highest that a term can be, given the importance weight of its event.

What has not been seen cannot be counted, only limited: an honest interval asks what the next event could be at worst.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streameval.arrays import Array


class Line(NamedTuple):
    """`offset + slope w`, a limit that depends on the importance weight w, one entry a column."""

    offset: Array
    slope: Array

    def at(self, weight: Array | float) -> Array:
        """The limit at this weight; where that is infinite, the slope."""
        finite = np.isfinite(weight)
        return np.where(finite, self.offset + self.slope * np.where(finite, weight, 0.0), self.slope)


class Extremes(NamedTuple):
    """Between which lines a term lies; `heaviest`: the weight up to which that matters, may be infinite.

    The term `w r` of a reward between 0 and 1:

    >>> extremes = Extremes.between((0.0, 0.0), (0.0, 1.0), np.array([np.inf]))
    >>> extremes.low.at(3.0), extremes.high.at(3.0)
    (array([0.]), array([3.]))
    """

    low: Line
    high: Line
    heaviest: Array

    @classmethod
    def between(cls, offsets: tuple[float, float], slopes: tuple[float, float], heaviest: Array) -> Extremes:
        """The same lines for every column: their lower and higher offsets, and their lower and higher slopes."""
        low, high = (
            Line(np.full_like(heaviest, offset), np.full_like(heaviest, slope))
            for offset, slope in zip(offsets, slopes, strict=True)
        )
        return cls(low, high, heaviest)

    @classmethod
    def by_column(cls, estimators: Sequence[Extremes]) -> Extremes:
        """Those of several estimators, each [policies], as columns: all estimators of a policy, then the next's."""
        offset_low, slope_low, offset_high, slope_high, heaviest = (
            np.stack(values, axis=1).ravel()
            for values in zip(*((*each.low, *each.high, each.heaviest) for each in estimators), strict=True)
        )
        return cls(Line(offset_low, slope_low), Line(offset_high, slope_high), heaviest)

    def minus(self, low: Array, high: Array) -> Extremes:
        """Of the difference to another term of the same event, which lies between `low` and `high`.

        A difference has tails of both, so that it is not the weight alone that limits it: only the slopes are kept.
        """
        return Extremes(
            Line(self.low.offset - high, self.low.slope), Line(self.high.offset - low, self.high.slope), self.heaviest
        )
