"""Extremes: the lowest and the highest that a term can be, given the importance weight of its event.

What has not been seen cannot be counted, only limited: an honest interval asks what the next event could be at worst.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streameval.common.arrays import Array, Mask


class LinearBound(NamedTuple):
    """`offset + slope w`, a limit that depends on the importance weight w, one entry a column."""

    offset: Array
    slope: Array

    def at(self, weight: Array | float) -> Array:
        """The limit at this weight; where that is infinite, the slope."""
        finite = np.isfinite(weight)
        return np.where(finite, self.offset + self.slope * np.where(finite, weight, 0.0), self.slope)


class TermRange(NamedTuple):
    """Between which lines a term lies; `heaviest`: the weight up to which that matters, may be infinite.

    `controlled`: whether the estimate stands on the mean weight being 1 in truth, so that it may be held to that.

    The term `w r` of a reward between 0 and 1:

    >>> extremes = TermRange.between((0.0, 0.0), (0.0, 1.0), np.array([np.inf]))
    >>> extremes.low.at(3.0), extremes.high.at(3.0)
    (array([0.]), array([3.]))
    """

    low: LinearBound
    high: LinearBound
    heaviest: Array
    controlled: Mask

    @classmethod
    def between(
        cls, offsets: tuple[float, float], slopes: tuple[float, float], heaviest: Array, controlled: bool = True
    ) -> TermRange:
        """The same lines for every column: their lower and higher offsets, and their lower and higher slopes."""
        low, high = (
            LinearBound(np.full_like(heaviest, offset), np.full_like(heaviest, slope))
            for offset, slope in zip(offsets, slopes, strict=True)
        )
        return cls(low, high, heaviest, np.full(heaviest.shape, controlled))

    @classmethod
    def by_column(cls, estimators: Sequence[TermRange]) -> TermRange:
        """Those of several estimators, each [policies], as columns: all estimators of a policy, then the next's."""
        offset_low, slope_low, offset_high, slope_high, heaviest, controlled = (
            np.stack(values, axis=1).ravel()
            for values in zip(*((*each.low, *each.high, *each[2:]) for each in estimators), strict=True)
        )
        return cls(LinearBound(offset_low, slope_low), LinearBound(offset_high, slope_high), heaviest, controlled)

    def over_production(self, estimators: int, heaviest: float) -> TermRange:
        """Of the differences to production, whose terms the first so many columns are; it has none of its own.

        `heaviest`: the largest importance weight of production, 1 where that is the logging policy. A difference may be
        off by production's term at any weight of the policy: only the slopes are the policy's own.

        >>> reward = TermRange.between((0.0, 0.0), (0.0, 1.0), np.array([np.inf, np.inf]))
        >>> lift = reward.over_production(1, heaviest=1.0)
        >>> lift.low.at(3.0), lift.high.at(3.0)
        (array([-1.]), array([3.]))
        """
        weight = np.minimum(self.heaviest, heaviest)
        least = np.minimum(self.low.at(0.0), self.low.at(weight))[:estimators]
        most = np.maximum(self.high.at(0.0), self.high.at(weight))[:estimators]
        others = slice(estimators, None)
        offsets = (self.low.offset[others], self.high.offset[others])
        return TermRange(
            LinearBound(offsets[0] - np.resize(most, offsets[0].shape), self.low.slope[others]),
            LinearBound(offsets[1] - np.resize(least, offsets[1].shape), self.high.slope[others]),
            self.heaviest[others],
            self.controlled[others],
        )
