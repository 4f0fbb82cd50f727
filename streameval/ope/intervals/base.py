"""Define the base of all intervals: from a reading of an average to bounds.

Intervals know neither policies nor time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, Mask
from streameval.common.component import Component, strict
from streameval.ope.core import AnyAverage, Reading
from streameval.ope.estimators import Estimator, TermRange
from streameval.ope.estimators.base import Range
from streameval.ope.intervals.sequences.tracker import SequenceTracker

MIN_NONZERO = 10
"""Non-zero terms that a variance needs to mean anything. Before the first click it is 0."""


class Interval(NamedTuple):
    """Hold an interval and its guarantee.

    Attributes:
        lower: None while the interval is withheld
        upper: None while the interval is withheld
        kind: the kind of interval
        anytime: whether it is valid under continuous monitoring
        covers: `average` (the mean of the value over the average's kernel), `current` (the current value), or
            `estimand` (a biased estimator's own expectation)
    """

    lower: float | None
    upper: float | None
    kind: str
    anytime: bool
    covers: str


@dataclass(frozen=True, kw_only=True, config=strict)
class IntervalMethod(Component):
    """Compute an interval for every column of a reading.

    Attributes:
        anytime: whether it holds at all times at once
        description: the sentence of the status page about this kind
        drift: `include` adds the average's bound on its bias from drift, so that the interval is about the current
            value. `export` only shows that bound next to the interval.
    """

    anytime: ClassVar[bool] = False
    description: ClassVar[str] = ""
    drift: Annotated[
        Literal["export", "include"], Field(description="include: the interval covers the current value")
    ] = "export"

    @property
    def limited_by_log(self) -> bool:
        """Tell whether the limits of the weights in the log matter."""
        return False

    @property
    def covers(self) -> str:
        """Return the target of the interval of an unbiased estimator."""
        return "current" if self.drift == "include" else "average"

    def details(self) -> Mapping[str, str]:
        """Return details of the Report that belong to the interval."""
        return {}

    def heaviest(self, reading: Reading, terms: TermRange) -> Array | None:
        """Return the largest weight assumed for any event, infinite without a limit, None if irrelevant [columns]."""
        return None

    def bounds(
        self, reading: Reading, terms: TermRange, confidence: float, tracked: Array | None = None
    ) -> tuple[Array, Array]:
        """Return the lower and the upper bound of each column, not cut to any range, NaN if the interval is withheld.

        Args:
            reading: the averages of all columns
            terms: the ranges of the terms
            confidence: of the two-sided interval, between 0 and 1
            tracked: the bounds of a `SequenceTracker`, None for an interval without one [4, columns]
        """
        lower, upper = self.sampling_bounds(reading, terms, confidence)
        bias = reading.bias if self.drift == "include" else 0.0
        return lower - bias, upper + bias

    def sampling_bounds(self, reading: Reading, terms: TermRange, confidence: float) -> tuple[Array, Array]:
        """Return the bounds without drift."""
        width = self.half_width(reading, terms, confidence)
        return reading.value - width, reading.value + width

    def half_width(self, reading: Reading, terms: TermRange, confidence: float) -> Array:
        """Return half the width of an interval with the value at its centre."""
        raise NotImplementedError

    def check(self, average: AnyAverage, block: int) -> None:
        """Check that the average can have this interval.

        Raises:
            ValueError: The average has no such interval, or does not measure the drift to include.
        """
        if self.drift == "include" and average.drift is None:
            raise ValueError(f"the average {average.label!r} does not measure drift: its interval cannot include it")

    def tracker(
        self,
        average: AnyAverage,
        estimators: Sequence[Estimator | None],
        reward_range: Range,
        block: int,
        logging: bool,
    ) -> SequenceTracker | None:
        """Return the tracker that follows the stream for this interval, or None if the reading suffices.

        Args:
            average: the average of the interval
            estimators: the estimator of each column, None for a withheld interval
            reward_range: the lowest and the highest reward
            block: the number of events in a block
            logging: whether production took the logged actions
        """
        return None

    def largest_weight(self, largest_seen: Array) -> Array:
        """Return the largest importance weight as far as this interval knows, given the largest one seen."""
        return largest_seen


def extended_to(value: Array, lower: Array, upper: Array) -> tuple[Array, Array]:
    """Extend an interval to the value. It is unchanged if it is empty or the value unknown."""
    is_extended = (lower <= upper) & ~np.isnan(value)
    return np.where(is_extended, np.minimum(lower, value), lower), np.where(
        is_extended, np.maximum(upper, value), upper
    )


def ratio_bounds(
    value_and_bounds: tuple[Array, Array, Array], base_and_bounds: tuple[Array, Array, Array], correlation: Array
) -> tuple[Array, Array]:
    """Return the interval of `value / base` from both intervals, NaN unless the base's interval is positive.

    A bound is the x at which the interval of `value - x base` ends at 0. Let a and b be the distances of value and base
    to the bounds that make the difference extreme. Then that interval reaches to `sqrt(a^2 + (x b)^2 - 2 x correlation
    a b)` from its estimate. From normal intervals, this is Fieller's interval. It contains 0 if and only if the
    interval of the value does.

    Args:
        value_and_bounds: estimate, lower and upper bound of the value
        base_and_bounds: estimate, lower and upper bound of the base
        correlation: of both estimates

    >>> two, one = (np.array([number]) for number in (2.0, 1.0))
    >>> lower, upper = ratio_bounds((two, one, two + 1), (two + 8, one * 8, two + 10), 0 * one)
    >>> float(lower[0].round(3)), float(upper[0].round(3))
    (0.098, 0.319)

    Source: Fieller, JRSS B 1954; Donner & Zou, Statistical Methods in Medical Research 2012, for unequal distances.
    """
    (value, lower, upper), (base, least, most) = value_and_bounds, base_and_bounds
    value, base = np.clip(value, lower, upper), np.clip(base, least, most)
    below = _lower_ratio(value, value - lower, base, least, most, correlation)
    above = -_lower_ratio(-value, upper - value, base, least, most, -correlation)
    is_valid = (least > 0) & (least <= most) & (lower <= upper)
    return np.where(is_valid, below, np.nan), np.where(is_valid, above, np.nan)


def _lower_ratio(value: Array, distance: Array, base: Array, least: Array, most: Array, correlation: Array) -> Array:
    """Return the lower bound of a ratio: the root of a quadratic equation with the sign of `value - distance`."""
    is_positive = value >= distance
    base_distance = np.where(is_positive, most - base, base - least)
    square, constant = base**2 - base_distance**2, value**2 - distance**2
    linear = value * base - correlation * distance * base_distance
    with np.errstate(divide="ignore", invalid="ignore"):
        root = np.sqrt(np.maximum(linear**2 - square * constant, 0.0))
        bound = np.where(is_positive, constant / (linear + root), (linear - root) / square)
    return np.where(is_positive & (constant == 0), 0.0, bound)


def is_degenerate(reading: Reading, ratio: Mask) -> Mask:
    """Tell whether a column is a ratio with terms that never varied and are not 0. Then its interval is the value.

    The mean of a reward that is always 1, divided by the mean weight, is 1 whatever the weights are.
    """
    return np.asarray(ratio & is_enough(reading.nonzero) & reading.spread["never_varied"])


def is_enough(terms: Array) -> Mask:
    """Tell whether there are as many non-zero terms as a variance needs."""
    return np.asarray(terms >= MIN_NONZERO - 0.5)


def standard_error(reading: Reading, variance: Array, count: Array, ratio: Mask) -> Array:
    """Return `sqrt(s2 / n_eff)` with the design effect. It is NaN for a single event, which has no variance."""
    with np.errstate(divide="ignore", invalid="ignore"):
        unbiased = np.where(count > 1 + 1e-9, variance * count / (count - 1), np.nan)
        independent = np.where(ratio, variance, unbiased) / reading.count
    return np.asarray(np.sqrt(independent * np.fmax(1.0, reading.design_effect)))
