"""The range of a term: its lowest and highest value, given the importance weight of its event.

Values that were not seen cannot be counted, only limited: an interval that covers them asks for the worst next event.
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
    """The lines that a term lies between, one entry a column.

    `heaviest`: the weight up to which they matter, may be infinite. `controlled`: whether the estimate relies on the
    mean weight being 1 in truth, so that an interval may use it. `width`: largest minus smallest possible term when no
    weight exceeds the given one; of a ratio, of its linearised term.

    The term `w r` of a reward between 0 and 1:

    >>> limits = TermRange.between((0.0, 0.0), (0.0, 1.0), heaviest=np.array([np.inf]), width=np.array([5.0]))
    >>> limits.low.at(3.0), limits.high.at(3.0)
    (array([0.]), array([3.]))
    """

    low: LinearBound
    high: LinearBound
    heaviest: Array
    controlled: Mask
    width: Array

    @classmethod
    def between(
        cls,
        offsets: tuple[float, float],
        slopes: tuple[float, float],
        heaviest: Array,
        width: Array,
        controlled: bool = True,
    ) -> TermRange:
        """The same lines for every column: their lower and higher offsets, and their lower and higher slopes."""
        low, high = (
            LinearBound(np.full_like(heaviest, offset), np.full_like(heaviest, slope))
            for offset, slope in zip(offsets, slopes, strict=True)
        )
        return cls(low, high, heaviest, np.full(heaviest.shape, controlled), width)

    @classmethod
    def by_column(cls, estimators: Sequence[TermRange]) -> TermRange:
        """Those of several estimators, each [policies, ...], as columns; estimators vary fastest."""
        offset_low, slope_low, offset_high, slope_high, heaviest, controlled, width = (
            np.stack(values, axis=1).reshape(-1, *values[0].shape[1:])
            for values in zip(*((*each.low, *each.high, *each[2:]) for each in estimators), strict=True)
        )
        low, high = LinearBound(offset_low, slope_low), LinearBound(offset_high, slope_high)
        return cls(low, high, heaviest, controlled, width)

    def over_production(self, estimators: int, heaviest: float, width: Array) -> TermRange:
        """The range of the differences to production, whose terms the first `estimators` columns are.

        A difference may be off by production's term at any weight of the policy: only the slopes are the policy's own.

        Args:
            estimators: number of estimators
            heaviest: the largest importance weight of production, 1 where that is the logging policy
            width: [columns] the widths of all terms in the units of the estimates

        >>> five = np.array([5.0, 5.0])
        >>> reward = TermRange.between((0.0, 0.0), (0.0, 1.0), np.array([np.inf, np.inf]), five)
        >>> lift = reward.over_production(1, heaviest=1.0, width=five)
        >>> lift.low.at(3.0), lift.high.at(3.0), lift.width
        (array([-1.]), array([3.]), array([10.]))
        """
        weight = np.minimum(self.heaviest, heaviest)
        least = np.minimum(self.low.at(0.0), self.low.at(weight))[:estimators]
        most = np.maximum(self.high.at(0.0), self.high.at(weight))[:estimators]
        others = slice(estimators, None)
        shape = self.heaviest[others].shape
        return TermRange(
            LinearBound(self.low.offset[others] - np.resize(most, shape), self.low.slope[others]),
            LinearBound(self.high.offset[others] - np.resize(least, shape), self.high.slope[others]),
            self.heaviest[others],
            self.controlled[others],
            width[others] + np.resize(width[:estimators], shape),
        )
