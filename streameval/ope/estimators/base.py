"""Define the base of all estimators: a frozen value that turns events into terms, independent of time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pydantic.dataclasses import dataclass

from streameval.common.arrays import ROUNDING, Array, Mask
from streameval.common.component import Component, strict
from streameval.ope.evidence.actions import NOTHING, Requirements
from streameval.ope.evidence.evidence import Evidence

Range = tuple[float, float]
"""A lower and a higher number, such as the lowest and the highest reward."""


class Terms(NamedTuple):
    """Hold the columns to average. The value is `mean(numerator)`, or the ratio of both means.

    Attributes:
        numerator: [events, policies]
        denominator: [events, policies], None for 1
        components: terms that add up to this one and may be averaged apart
        lesson: what each block adds to each field of the estimator's state [blocks, policies, ...]. The state fades by
            `fading_of` a block.
    """

    numerator: Array
    denominator: Array | None = None
    components: tuple[Terms, ...] = ()
    lesson: Mapping[str, Array] = MappingProxyType({})

    def over_production(self, centre: Array, denominator: Array) -> tuple[Array, Mask | None]:
        """Return the terms of all policies minus production's (the first), with a ratio linearised.

        Rounding in a ratio counts as 0. Otherwise a constant reward would give a lift of 1e-17, always on one side of
        0, because the two estimates at the centre differ in their last digit.

        Args:
            centre: the estimate before each block [blocks, P]
            denominator: the recent mean denominator before each block [blocks, P]

        Returns:
            The differences [n, P - 1], and a mask of the valid ones, None if all are valid.
        """
        u, v = self.numerator, self.denominator
        if v is None:
            return u[:, 1:] - u[:, :1], None
        centre, denominator = (
            np.repeat(columns.T, len(u) // len(columns), axis=1).T for columns in (centre, denominator)
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            expected = centre * v
            value = centre + (u - expected) / denominator
            size = np.abs(centre) + (np.abs(u) + np.abs(expected)) / np.abs(denominator)
        difference = value[:, 1:] - value[:, :1]
        is_valid, rounding = np.isfinite(difference), ROUNDING * (size[:, 1:] + size[:, :1])
        return np.where(is_valid & (np.abs(difference) > rounding), difference, 0.0), is_valid


class TermRange(NamedTuple):
    """Hold lines that bound a term, given the importance weight w of its event.

    A term lies between `low_offset + low_slope w` and `high_offset + high_slope w`. All arrays have one entry per
    column.

    Attributes:
        low_offset: of the lower line
        low_slope: of the lower line
        high_offset: of the higher line
        high_slope: of the higher line
        heaviest: the weight at which the lines end, may be infinite
        controlled: whether the estimate relies on a true mean weight of 1, so that an interval may use it
        width: the largest minus the smallest possible term up to the weight seen, for a ratio after linearisation
        ratio: whether terms have a denominator
        likely_weight: see `largest_weights.limits`, infinite without a limit
        possible_weight: see `largest_weights.limits`, infinite without a limit

    The term `w r` of a reward between 0 and 1:

    >>> limits = TermRange.between((0.0, 0.0), (0.0, 1.0), heaviest=np.array([np.inf]), width=np.array([5.0]))
    >>> limits.lowest(3.0), limits.highest(3.0)
    (array([0.]), array([3.]))
    """

    low_offset: Array
    low_slope: Array
    high_offset: Array
    high_slope: Array
    heaviest: Array
    controlled: Mask
    width: Array
    ratio: Mask
    likely_weight: Array
    possible_weight: Array

    @classmethod
    def between(
        cls, offsets: Range, slopes: Range, heaviest: Array, width: Array, controlled: bool = True
    ) -> TermRange:
        """Return equal lines for all columns.

        Args:
            offsets: the lower and the higher offset
            slopes: the lower and the higher slope
            heaviest: the weight at which the lines end [columns]
            width: the largest minus the smallest possible term [columns]
            controlled: whether the estimate relies on a true mean weight of 1
        """
        lines = (np.full_like(heaviest, number) for number in (offsets[0], slopes[0], offsets[1], slopes[1]))
        shape, unlimited = heaviest.shape, np.full(heaviest.shape, np.inf)
        masks = np.full(shape, controlled), np.zeros(shape, dtype=bool)
        return cls._make((*lines, heaviest, masks[0], width, masks[1], unlimited, unlimited))

    @classmethod
    def by_column(
        cls, estimators: Sequence[Estimator], reward_range: Range, max_weight: Array, limits: Array | None = None
    ) -> TermRange:
        """Return the range of every column, with the estimators of a policy adjacent.

        Args:
            estimators: the estimators of each policy
            reward_range: the lowest and the highest reward
            max_weight: the largest weight of each policy [policies, ...]
            limits: the likely and the possible weight [2, policies, ...], None for infinity
        """
        ranges = [
            estimator.term_range(reward_range, max_weight)._replace(ratio=np.full(max_weight.shape, estimator.ratio))
            for estimator in estimators
        ]
        columns = cls._make(
            np.stack(values, axis=1).reshape(-1, *values[0].shape[1:]) for values in zip(*ranges, strict=True)
        )
        return columns.limited(limits, len(estimators))

    def limited(self, limits: Array | None, estimators: int) -> TermRange:
        """Return the range with the likely and the possible weight of each policy, see `by_column`."""
        unlimited = np.full((2, *self.heaviest.shape), np.inf)
        likely, possible = unlimited if limits is None else np.repeat(limits, estimators, axis=1)
        return self._replace(likely_weight=likely, possible_weight=possible)

    def lowest(self, weight: Array | float) -> Array:
        """Return the lower line at this weight, or its slope if the weight is infinite."""
        return _line(self.low_offset, self.low_slope, weight)

    def highest(self, weight: Array | float) -> Array:
        """Return the higher line at this weight, or its slope if the weight is infinite."""
        return _line(self.high_offset, self.high_slope, weight)

    def linearised(self, mean_denominator: Array) -> TermRange:
        """Return the range of deviations from the estimate, in its units, for ratios that are not `controlled`."""
        linear = self.ratio & ~self.controlled
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = np.where(linear & (mean_denominator > 0), 1.0 / mean_denominator, 1.0)
        lines = ("low_offset", "low_slope", "high_offset", "high_slope")
        return self._replace(**{line: getattr(self, line) * scale for line in lines})

    def over_production(self, estimators: int, heaviest: float | Array, width: Array) -> TermRange:
        """Return the range of the differences to production.

        Only the slopes belong to the policy alone, because a difference may be off by any term of production at any
        weight of the policy.

        Args:
            estimators: the number of columns of production, which come first
            heaviest: the largest importance weight of production, 1 if production is the logging policy
            width: the widths of all terms in the units of the estimates [columns]
        """
        weight = np.minimum(self.heaviest, heaviest)
        least = np.minimum(self.lowest(0.0), self.lowest(weight))[:estimators]
        most = np.maximum(self.highest(0.0), self.highest(weight))[:estimators]
        others = TermRange._make(column[estimators:] for column in self)
        shape = others.heaviest.shape
        return others._replace(
            low_offset=others.low_offset - np.resize(most, shape),
            high_offset=others.high_offset - np.resize(least, shape),
            width=width[estimators:] + np.resize(width[:estimators], shape),
        )


def _line(offset: Array, slope: Array, weight: Array | float) -> Array:
    finite = np.isfinite(weight)
    return np.where(finite, offset + slope * np.where(finite, weight, 0.0), slope)


@dataclass(frozen=True, kw_only=True, config=strict)
class Estimator(Component):
    """Turn the evidence of whole blocks into terms.

    Attributes:
        is_biased_by_design: whether the interval covers the estimator's expectation instead of the policy's value
        averages_weighted_reward: whether it averages the weighted rewards of the evidence
        divides_by_weight: whether it divides by the mean weight
        needs: what events must have beyond the logged action
        ratio: whether its terms have a denominator
        uses_clicks: whether it estimates rankings from clicks, as no other estimator does
        parts: the number of components of its term
        choice: the name of what `auto` chooses, in the details of a Report
        preference: promotion, pictures and plans use the available estimator with the lowest number
        sums_over_slots: whether the lift of a slate is the sum of the known lifts of its slots
        takes_estimated: whether it may use estimated propensities, because it divides by the mean weight or corrects a
            reward model
    """

    is_biased_by_design: ClassVar[bool] = False
    averages_weighted_reward: ClassVar[bool] = False
    divides_by_weight: ClassVar[bool] = False
    needs: ClassVar[Requirements] = NOTHING
    ratio: ClassVar[bool] = False
    uses_clicks: ClassVar[bool] = False
    parts: ClassVar[int] = 1
    choice: ClassVar[str] = "cap"
    preference: ClassVar[int] = 6
    sums_over_slots: ClassVar[bool] = False
    takes_estimated: ClassVar[bool] = False

    @property
    def alternatives(self) -> Mapping[float, Estimator]:
        """Return the estimators that `cap: auto` or `window: auto` chooses from, by cap or window, least bias first.

        Without `auto` return this estimator alone.
        """
        return {math.inf: self}

    def start(self, policies: int) -> Any:
        """Start before the first event: a struct of arrays with policies on axis 0, or None without a state."""
        return None

    def terms(self, evidence: Evidence, state: Any) -> tuple[Terms, Any]:
        """Return the terms of these events, and the state after their last complete block.

        An estimator with a state puts what each block adds to it into `Terms.lesson`, under the names of its fields.
        """
        raise NotImplementedError

    def priors(self, mean_reward: Array, sums: Mapping[str, Array]) -> tuple[Array | None, ...]:
        """Return the initial value of each component.

        Args:
            mean_reward: the logging policy's recent mean reward [blocks, 1]
            sums: the arrays of the state after each block [blocks, policies, ...]
        """
        return (mean_reward,)

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """Return the range of a term. The default is the range of `w r`, without a limit on w.

        Args:
            reward_range: the lowest and the highest reward
            max_weight: the largest weight as far as is known, also the largest that matters if terms have no other
                limit [policies]
        """
        low, high = reward_range
        width = max_weight * (max(high, 0.0) - min(low, 0.0))
        return TermRange.between((0.0, 0.0), reward_range, np.full_like(max_weight, np.inf), width)
