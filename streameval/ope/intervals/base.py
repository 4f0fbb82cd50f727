"""The base of all intervals: from a reading of an average to bounds. Intervals know neither policies nor time."""

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

FEWEST_NONZERO = 10
"""Non-zero terms without which a variance is meaningless: before the first click it is 0."""


class Interval(NamedTuple):
    """An interval and its guarantee.

    `lower` and `upper` are None while it is withheld. `anytime`: valid under continuous monitoring. `covers`: `average`
    (the mean of the value over the average's kernel), `current` (the value now), or `estimand` (a biased estimator's
    own expectation).
    """

    lower: float | None
    upper: float | None
    kind: str
    anytime: bool
    covers: str


@dataclass(frozen=True, kw_only=True, config=strict)
class IntervalMethod(Component):
    """An interval for every column of a reading.

    `drift: include` adds the average's bound on its bias from drift, so that the interval is about the value now;
    `export` shows that bound only next to the interval. `anytime`: it holds at all times at once. `description`: the
    sentence of the status page about this kind.
    """

    anytime: ClassVar[bool] = False
    description: ClassVar[str] = ""
    drift: Annotated[
        Literal["export", "include"], Field(description="include: the interval covers the current value")
    ] = "export"

    @property
    def limited_by_log(self) -> bool:
        """Whether the limits of the weights in the log matter."""
        return False

    @property
    def covers(self) -> str:
        """The target of the interval of an unbiased estimator."""
        return "current" if self.drift == "include" else "average"

    def details(self) -> Mapping[str, str]:
        """Details of the Report that belong to the interval."""
        return {}

    def heaviest(self, reading: Reading, terms: TermRange) -> Array | None:
        """The weight that no event is taken to exceed, [columns], infinite for no limit; None if it does not matter."""
        return None

    def bounds(
        self, reading: Reading, terms: TermRange, confidence: float, tracked: Array | None = None
    ) -> tuple[Array, Array]:
        """The lower and upper bound of each column, not cut to any range; NaN where the interval is withheld.

        `confidence`: of the two-sided interval, between 0 and 1. `tracked` [4, columns]: the bounds of a
        `SequenceTracker`, where the interval has one.
        """
        lower, upper = self.sampling_bounds(reading, terms, confidence)
        bias = reading.bias if self.drift == "include" else 0.0
        return lower - bias, upper + bias

    def sampling_bounds(self, reading: Reading, terms: TermRange, confidence: float) -> tuple[Array, Array]:
        """The bounds without drift."""
        width = self.half_width(reading, terms, confidence)
        return reading.value - width, reading.value + width

    def half_width(self, reading: Reading, terms: TermRange, confidence: float) -> Array:
        """Half the width of an interval that is centred on the value."""
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
        """The state that follows the stream for this interval on an average; None where the reading suffices.

        `estimators`: of each column, None for a column whose interval is withheld. `logging`: production took the
        logged actions.
        """
        return None

    def largest_weight(self, seen: Array) -> Array:
        """The importance weight that none exceeds, as far as this interval knows; `seen`: the largest so far."""
        return seen


def extended_to(value: Array, lower: Array, upper: Array) -> tuple[Array, Array]:
    """The interval extended to the value; unchanged where it is empty, or the value unknown."""
    extended = (lower <= upper) & ~np.isnan(value)
    return np.where(extended, np.minimum(lower, value), lower), np.where(extended, np.maximum(upper, value), upper)


def ratio_bounds(
    value_and_bounds: tuple[Array, Array, Array], base_and_bounds: tuple[Array, Array, Array], correlation: Array
) -> tuple[Array, Array]:
    """The interval of `value / base`, from an interval of each; NaN where that of the base is not above 0.

    A bound is the x at which the interval of `value - x base` ends at 0. With the distances a of the value and b of the
    base to those of their bounds that make the difference extreme, that interval reaches to `sqrt(a^2 + (x b)^2 - 2 x
    correlation a b)` from its estimate. From normal intervals, this is Fieller's. It has 0 inside if, and only if, the
    interval of the value has.

    Args:
        value_and_bounds, base_and_bounds: estimate, lower and upper bound
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
    known = (least > 0) & (least <= most) & (lower <= upper)
    return np.where(known, below, np.nan), np.where(known, above, np.nan)


def _lower_ratio(value: Array, distance: Array, base: Array, least: Array, most: Array, correlation: Array) -> Array:
    """The lower bound of a ratio: the lesser root of a quadratic equation, which has the sign of `value - distance`."""
    is_positive = value >= distance
    of_base = np.where(is_positive, most - base, base - least)
    square, constant = base**2 - of_base**2, value**2 - distance**2
    linear = value * base - correlation * distance * of_base
    with np.errstate(divide="ignore", invalid="ignore"):
        root = np.sqrt(np.maximum(linear**2 - square * constant, 0.0))
        found = np.where(is_positive, constant / (linear + root), (linear - root) / square)
    return np.where(is_positive & (constant == 0), 0.0, found)


def is_degenerate(reading: Reading, ratio: Mask) -> Mask:
    """Whether a column is a ratio whose terms have always been the same and not 0: then its interval is the value.

    The mean of a reward that is always 1, divided by the mean weight, is 1 whatever the weights are.
    """
    return np.asarray(ratio & is_enough(reading.nonzero) & reading.spread["never_varied"])


def is_enough(terms: Array) -> Mask:
    """Whether there are as many non-zero terms as a variance needs."""
    return np.asarray(terms >= FEWEST_NONZERO - 0.5)


def standard_error(reading: Reading, variance: Array, count: Array, ratio: Mask) -> Array:
    """`sqrt(s2 / n_eff)` with the design effect; NaN where one event is all there is: it has no variance."""
    with np.errstate(divide="ignore", invalid="ignore"):
        unbiased = np.where(count > 1 + 1e-9, variance * count / (count - 1), np.nan)
        independent = np.where(ratio, variance, unbiased) / reading.count
    return np.asarray(np.sqrt(independent * np.fmax(1.0, reading.design_effect)))
