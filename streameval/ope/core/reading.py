"""Read the numbers of an average from its moments, and the lifts of components after each block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from streameval.common.arrays import Array, Mask, ratio, side_by_side
from streameval.ope.core import past
from streameval.ope.core.moments import (
    TERMS,
    MomentRow,
    PairRow,
    difference_of_ratios,
    effective_denominators,
    lift_of,
    linearised_variance,
)
from streameval.ope.core.moments import variance as variance_of


class BlockLift(NamedTuple):
    """Hold the paired difference to production of the events of each block alone [blocks, candidates].

    Attributes:
        weight: the sum of the averaging weights of the events that both policies have
        square: the sum of their squares
        total: the weighted sum of differences. Ratios are linearised with what was known before the block.
        noise: the variance of the difference of one event, with the design effect, NaN if unknown
        shared: the variance of an error that all blocks share, such as the error of a learned examination curve
        own: the weighted sum of the candidate's own terms
    """

    weight: Array
    square: Array
    total: Array
    noise: Array
    shared: Array
    own: Array


class Lift(NamedTuple):
    """Hold the paired difference to production on a mixture after each block [blocks, candidates].

    An average gives it for every estimator, [blocks, columns] without columns of production. All numbers are NaN in
    blocks that were left out because no event had the fields that the estimator needs.

    Attributes:
        value: the difference
        sampling_variance: with the design effect, falls with more events
        drift_square: the squared error from drift, which does not fall. An average reports the squared disagreement of
            its decays. For rules see `promotion.lift.add_errors`.
        events: the number of events that both policies have, in the block, or for rules so far
        block: the difference of the events of each block alone, for a ratio of rewards the one of its numerator, with
            the noise of the ratio times the squared denominator
        divisor: for a ratio of rewards, the difference of its denominator
        switched: for rules, whether it is another lift than in the block before
        reading: the average after each block, block after block for each policy, if asked for. Without diagnostics.
    """

    value: Array
    sampling_variance: Array
    drift_square: Array
    events: Array
    block: BlockLift | None = None
    switched: Mask | None = None
    divisor: BlockLift | None = None
    reading: Reading | None = None

    def select_blocks(self, kept: Mask) -> Lift:
        """Return the first four numbers after some of the blocks."""
        return Lift(self.value[kept], self.sampling_variance[kept], self.drift_square[kept], self.events[kept])


def missing_share(weight: Array, every: Array) -> Array:
    """Return the share of `every`, the weight of production's events, that a policy's own events lack."""
    return np.maximum(1.0 - ratio(weight, every), 0.0)


class Comparison(NamedTuple):
    """Hold what the events of lifts say about production, with the averaging weights of the lifts.

    Attributes:
        production: the value of production on the events that both policies have [columns]
        missing_share: the share of production's events that the policy lacks [columns]
    """

    production: Array
    missing_share: Array


class Reading:
    """Hold the numbers of an average at one time, one entry per column, NaN if unknown or without evidence.

    Attributes:
        moments: of the estimate [columns, rows]
        pairs: of a lift, with value and variance of the linearised difference [columns, rows of pairs]
        bias: bound on the bias from drift
        details: diagnostics of the average
        parts: the standard deviations `se`, `spread` and `drift` that make up the error of the current value, if known
        knows_units: whether the design effect includes the dependence within units
        lacking: the share of production's events that each policy lacks [columns], if the memory of an average differs
            between policies, so that its weights do not tell. Else None
        ahead: the value in the next hours and its parts of the error by name [columns, hours], None without a season

    Args:
        spread: the parts of a past, see `past.expanded`
        tail: the rows that the unfinished block adds to the past [columns, rows]
        lift: the reading of the differences to production, if the average keeps it
        compared: what a reading of lifts says about production, if the average keeps lifts

    >>> sums = np.array([[4.0, 6.0, 4.0, 10.0, 6.0, 4.0, 4.0, 8.0, 0.0, 9.0, 4.0, 1.0, 3.0, 2.0]])
    >>> reading = Reading(sums, {}, tail=None)
    >>> reading.value, reading.count, reading.effective_sample_size
    (array([1.5]), array([4.]), array([2.]))
    """

    def __init__(
        self,
        moments: Array,
        spread: Mapping[str, Array],
        tail: Array | None,
        bias: Array | None = None,
        details: Mapping[str, Array] = MappingProxyType({}),
        parts: Mapping[str, Array] = MappingProxyType({}),
        lift: Reading | None = None,
        compared: Comparison | None = None,
        ahead: Mapping[str, Array] | None = None,
    ) -> None:
        self.moments, self.details, self.parts, self.compared = moments, details, parts, compared
        self.pairs: Array | None = None
        self.lacking: Array | None = None
        self.ahead = ahead
        self.bias = np.full(moments.shape[:-1], np.nan) if bias is None else bias
        self.knows_units = "signed" in spread
        self._state, self._tail, self._lift = dict(spread), tail, lift

    @classmethod
    def side_by_side(cls, readings: Sequence[Reading], policies: int) -> Reading:
        """Join the columns of several readings of values for equal policies, without details.

        Either all of them keep lifts, or none does.
        """

        def joined(parts: Sequence[Array]) -> Array:
            return side_by_side(parts, policies)

        first, lifts = readings[0], [reading._lift for reading in readings if reading._lift is not None]
        compared = map(joined, zip(*(reading.compared or () for reading in readings), strict=True))
        combined = cls(
            joined([reading.moments for reading in readings]),
            {name: joined([reading._state[name] for reading in readings]) for name in first._state},
            tail=None,
            bias=joined([reading.bias for reading in readings]),
            parts={name: joined([reading.parts[name] for reading in readings]) for name in first.parts},
            lift=cls.side_by_side(lifts, policies - 1) if lifts else None,
            compared=None if first.compared is None else Comparison(*compared),
        )
        combined.ahead = _joined_forecasts(readings, policies)
        combined.lacking = joined([reading._lacks(len(reading.moments) // max(policies, 1)) for reading in readings])
        if first._tail is not None:
            combined._tail = joined([reading._tail for reading in readings if reading._tail is not None])
        return combined

    def in_hours(self) -> Iterator[Reading]:
        """Yield the reading in each of the next hours, if there is a season."""
        if self.ahead is None:
            return
        for hour in range(self.ahead["value"].shape[1]):
            later = copy(self)
            later.value = self.ahead["value"][:, hour]
            later.parts = {name: self.ahead[name][:, hour] for name in self.parts}
            yield later

    @cached_property
    def spread(self) -> dict[str, Any]:
        """Return the numbers that make the variance, by name, over a past ten times longer: see `past.read`."""
        return past.read(self._state, self._tail, is_lift=self.pairs is not None)

    @cached_property
    def design_effect(self) -> Array:
        """Return the factor by which dependent events inflate the variance, from finished blocks only."""
        effect: Array = self.spread["design_effect"]
        return effect

    @cached_property
    def nonzero(self) -> Array:
        """Return the number of terms that were not 0, of a lift the lesser one of both policies."""
        number: Array = self.spread["nonzero"]
        return number

    @cached_property
    def rewarded(self) -> Mask:
        """Return whether a term was not 0, of a lift one of either policy."""
        return np.asarray(self.nonzero > 0)

    def lift(self, estimators: int) -> Reading:
        """Return the reading of the differences to production. Its columns are the first `estimators` of this one.

        It has no columns of production. The bias of a paired difference is bounded by the sum of both biases.
        """
        others = slice(estimators, None)
        own, production = self.nonzero[others], np.resize(self.nonzero[:estimators], self.nonzero[others].shape)
        if self._lift is None:
            moments, pairs = lift_of(self.moments[others])
            state = {name: rows[others] for name, rows in self._state.items()}
            bias = self.bias[others] + np.resize(self.bias[:estimators], self.bias[others].shape)
            lift = Reading(moments, state, tail=None, bias=bias)
            lift.pairs, lift._tail = pairs, None if self._tail is None else self._tail[others]
            own_production = ratio(pairs[..., PairRow.PU], pairs[..., PairRow.PV])
            lift.compared = Comparison(own_production, self._lacks(estimators)[others])
            lift.nonzero = np.minimum(own, production)
        else:
            lift = copy(self._lift)
            lift.nonzero = np.minimum(np.minimum(own, production), lift.nonzero)
        lift.rewarded = (own > 0) | (production > 0)
        return lift

    def _lacks(self, estimators: int) -> Array:
        """Return the share of production's events that each policy lacks [columns]. Production has `estimators`."""
        weight = self._row(MomentRow.WEIGHT)
        every = np.resize(weight[:estimators], weight.shape)
        return missing_share(weight, every) if self.lacking is None else self.lacking

    def _row(self, row: MomentRow) -> Array:
        return self.moments[..., row]

    def _mean(self, row: MomentRow) -> Array:
        return ratio(self._row(row), self._row(MomentRow.WEIGHT))

    @cached_property
    def value(self) -> Array:
        """Return the estimate `U / V`, for a lift `U / V - PU / PV`.

        It is unknown once the evidence has faded below what floating point can square. A lift that is only rounding is
        0.
        """
        if self.pairs is None:
            value = ratio(self._row(MomentRow.U), self._row(MomentRow.V))
        else:
            value = difference_of_ratios(self.pairs)
        return np.where(self._row(MomentRow.WEIGHT_SQUARE) > 0, value, np.nan)

    @cached_property
    def count(self) -> Array:
        """Return `n_eff = S0^2 / S2`, the number of equally weighted events with equal variance."""
        return ratio(self._row(MomentRow.WEIGHT) ** 2, self._row(MomentRow.WEIGHT_SQUARE))

    @cached_property
    def mean_denominator(self) -> Array:
        """Return `V / S0`: 1 for a plain mean and for a lift, the mean weight for a self-normalised estimate."""
        return self._mean(MomentRow.V)

    @cached_property
    def variance(self) -> Array:
        """Return the variance of the term `u`, for a ratio of the linearised term `(u - E v) / mean(v)`."""
        return variance_of(self.moments) if self.pairs is None else linearised_variance(self.pairs, len(TERMS))

    @cached_property
    def effective_denominators(self) -> Array:
        """Return the effective number of events by their denominators, 1 if one event is nearly all of a ratio."""
        return effective_denominators(*((self.moments, 2) if self.pairs is None else (self.pairs, len(TERMS))))

    @cached_property
    def effective_sample_size(self) -> Array:
        """Return Kish's `n_eff mean(w)^2 / mean(w^2)`, for averaging and importance weights together."""
        return ratio(
            self._row(MomentRow.WEIGHT) * self._row(MomentRow.IMPORTANCE) ** 2,
            self._row(MomentRow.WEIGHT_SQUARE) * self._row(MomentRow.IMPORTANCE_SQUARE),
        )

    @cached_property
    def reward_effective_sample_size(self) -> Array:
        """Return Kish's `n_eff mean(u)^2 / mean(u^2)` of the terms: with weights of 1, the number of clicks."""
        return ratio(
            self._row(MomentRow.U) ** 2 * self._row(MomentRow.WEIGHT),
            self._row(MomentRow.UU) * self._row(MomentRow.WEIGHT_SQUARE),
        )

    @cached_property
    def importance_weight_mean(self) -> Array:
        """Mean importance weight: 1 where propensities are right and support is full."""
        return self._mean(MomentRow.IMPORTANCE)

    @cached_property
    def importance_weight_square(self) -> Array:
        """Mean of the squared importance weight."""
        return self._mean(MomentRow.IMPORTANCE_SQUARE)

    @cached_property
    def importance_weight_max(self) -> Array:
        """Return the largest importance weight, however old the event, or NaN without events."""
        return np.where(self.count > 0, self._row(MomentRow.LARGEST_IMPORTANCE), np.nan)

    @cached_property
    def term_mean(self) -> Array:
        """Mean of the term `u`."""
        return self._mean(MomentRow.U)

    @cached_property
    def term_square(self) -> Array:
        """Return the mean of the squared term."""
        return self._mean(MomentRow.UU)

    @cached_property
    def term_times_weight(self) -> Array:
        """Return the mean of the product of the term and the importance weight."""
        return self._mean(MomentRow.TERM_IMPORTANCE)

    @cached_property
    def events_of_largest_weight(self) -> Array:
        """Return `S0 / Q`, the number of events if all had the largest averaging weight."""
        return ratio(self._row(MomentRow.WEIGHT), self._row(MomentRow.LARGEST_WEIGHT))

    @cached_property
    def unsupported_probability(self) -> Array:
        """Mean probability that the policy gives to actions that are never logged."""
        return self._mean(MomentRow.UNSUPPORTED)

    @cached_property
    def largest_term_share(self) -> Array:
        """Share of `|U|` that the largest single term carries."""
        return ratio(self._row(MomentRow.LARGEST_TERM), np.abs(self._row(MomentRow.U)))


def _joined_forecasts(readings: Sequence[Reading], policies: int) -> dict[str, Array] | None:
    """Join the columns of forecasts, NaN for a reading without one."""
    first = next((reading.ahead for reading in readings if reading.ahead is not None), None)
    if first is None:
        return None
    joined = {}
    for name, numbers in first.items():
        hours = numbers.shape[1]
        parts = [
            np.full((len(reading.moments), hours), np.nan) if reading.ahead is None else reading.ahead[name]
            for reading in readings
        ]
        joined[name] = side_by_side(parts, policies)
    return joined
