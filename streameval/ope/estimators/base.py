"""The base of all estimators: a frozen value that turns events into terms, independent of time."""

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
    """The columns to average, [events, policies]: the value is `mean(numerator)`, or the ratio of both means.

    `components`: terms that add up to this one and may be averaged apart. `lesson`: for each part of the estimator's
    state, what each block adds to it [blocks, policies, ...]; the state fades by `fading_of` a block.
    """

    numerator: Array
    denominator: Array | None = None
    components: tuple[Terms, ...] = ()
    lesson: Mapping[str, Array] = MappingProxyType({})

    def over_production(self, centre: Array, denominator: Array) -> tuple[Array, Mask | None]:
        """The terms of all policies less that of the first, [n, P - 1], and where it is known; None: everywhere.

        A ratio is linearised. `centre`, `denominator` [blocks, P]: the estimate and the recent mean denominator before
        each block. Rounding in a ratio counts as 0: a constant reward would otherwise give a lift of 1e-17, always on
        one side of 0, as the estimates around which both are linearised differ in their last digit.
        """
        u, v = self.numerator, self.denominator
        if v is None:
            return u[:, 1:] - u[:, :1], None
        centre, denominator = (np.repeat(each.T, len(u) // len(each), axis=1).T for each in (centre, denominator))
        with np.errstate(divide="ignore", invalid="ignore"):
            expected = centre * v
            value = centre + (u - expected) / denominator
            size = np.abs(centre) + (np.abs(u) + np.abs(expected)) / np.abs(denominator)
        difference = value[:, 1:] - value[:, :1]
        known, rounding = np.isfinite(difference), ROUNDING * (size[:, 1:] + size[:, :1])
        return np.where(known & (np.abs(difference) > rounding), difference, 0.0), known


class TermRange(NamedTuple):
    """The lines that a term lies between, given the importance weight w of its event; one entry a column.

    A term lies between `low_offset + low_slope w` and `high_offset + high_slope w`. `heaviest`: the weight up to which
    that matters, may be infinite. `controlled`: whether the estimate relies on the mean weight being 1 in truth, so
    that an interval may use it. `width`: largest minus smallest possible term when no weight exceeds the given one; of
    a ratio, of its linearised term. `ratio`: whether terms have a denominator. `likely_weight`, `possible_weight`: the
    `largest_weights.limits` of the log, infinite where it has none.

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
        """The same lines for every column: their lower and higher offsets, and their lower and higher slopes."""
        lines = (np.full_like(heaviest, number) for number in (offsets[0], slopes[0], offsets[1], slopes[1]))
        shape, unlimited = heaviest.shape, np.full(heaviest.shape, np.inf)
        masks = np.full(shape, controlled), np.zeros(shape, dtype=bool)
        return cls._make((*lines, heaviest, masks[0], width, masks[1], unlimited, unlimited))

    @classmethod
    def by_column(
        cls, estimators: Sequence[Estimator], reward_range: Range, max_weight: Array, limits: Array | None = None
    ) -> TermRange:
        """Those of all columns; `max_weight` [policies, ...], `limits` [2, policies, ...]. Estimators vary fastest."""
        likely, possible = np.full((2, *max_weight.shape), np.inf) if limits is None else limits
        ranges = [
            each.term_range(reward_range, max_weight)._replace(
                ratio=np.full(max_weight.shape, each.ratio), likely_weight=likely, possible_weight=possible
            )
            for each in estimators
        ]
        return cls._make(
            np.stack(values, axis=1).reshape(-1, *values[0].shape[1:]) for values in zip(*ranges, strict=True)
        )

    def lowest(self, weight: Array | float) -> Array:
        """The lower line at this weight; where that is infinite, its slope."""
        return _line(self.low_offset, self.low_slope, weight)

    def highest(self, weight: Array | float) -> Array:
        """The higher line at this weight; where that is infinite, its slope."""
        return _line(self.high_offset, self.high_slope, weight)

    def linearised(self, mean_denominator: Array) -> TermRange:
        """The range of the deviations from the estimate, in its units, for ratios that are not `controlled`."""
        linear = self.ratio & ~self.controlled
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = np.where(linear & (mean_denominator > 0), 1.0 / mean_denominator, 1.0)
        lines = ("low_offset", "low_slope", "high_offset", "high_slope")
        return self._replace(**{line: getattr(self, line) * scale for line in lines})

    def over_production(self, estimators: int, heaviest: float | Array, width: Array) -> TermRange:
        """The range of the differences to production, whose terms the first `estimators` columns are.

        A difference may be off by production's term at any weight of the policy: only the slopes are the policy's own.
        `heaviest`: the largest importance weight of production, 1 where that is the logging policy. `width` [columns]:
        the widths of all terms in the units of the estimates.
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
    """Turns the evidence of whole blocks into terms.

    `is_biased_by_design`: its interval is about its own expectation, not about the value of the policy. `ratio`: its
    terms have a denominator. `of_clicks`: it estimates rankings from clicks; no other estimator does. `needs`: what
    events must have beyond the logged action. `parts`: the number of components of its term. `preference`: where
    several estimators have the evidence, promotion decides by the one with the lowest number, and so do pictures and
    plans. `sums_over_slots`: the lift of a slate is the sum of the lifts that are known for its slots.
    `takes_estimated`: it may use propensities that are estimated, since it divides by the mean weight, or corrects a
    reward model.
    """

    is_biased_by_design: ClassVar[bool] = False
    averages_weighted_reward: ClassVar[bool] = False
    divides_by_weight: ClassVar[bool] = False
    needs: ClassVar[Requirements] = NOTHING
    ratio: ClassVar[bool] = False
    of_clicks: ClassVar[bool] = False
    parts: ClassVar[int] = 1
    preference: ClassVar[int] = 6
    sums_over_slots: ClassVar[bool] = False
    takes_estimated: ClassVar[bool] = False

    @property
    def alternatives(self) -> Mapping[float, Estimator]:
        """The estimators that one with `cap: auto` chooses from, by their cap, the largest first; else itself alone."""
        return {math.inf: self}

    def start(self, policies: int) -> Any:
        """Start before the first event: a struct whose arrays have policies as axis 0, None without a state."""
        return None

    def terms(self, evidence: Evidence, state: Any) -> tuple[Terms, Any]:
        """The terms of these events, and the state after their last complete block.

        An estimator that has a state puts what each block adds to it into `Terms.lesson`, by the fields of the state.
        """
        raise NotImplementedError

    def priors(self, mean_reward: Array, sums: Mapping[str, Array]) -> tuple[Array | None, ...]:
        """The initial value of each component, from the logging policy's recent mean reward [blocks, 1].

        `sums`: the state after each block, each array [blocks, policies, ...].
        """
        return (mean_reward,)

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """The range of a term; here that of `w r`, which no weight is too heavy for.

        `max_weight` [policies]: the weight that none exceeds as far as is known; the heaviest one where terms have no
        other limit.
        """
        low, high = reward_range
        width = max_weight * (max(high, 0.0) - min(low, 0.0))
        return TermRange.between((0.0, 0.0), reward_range, np.full_like(max_weight, np.inf), width)
