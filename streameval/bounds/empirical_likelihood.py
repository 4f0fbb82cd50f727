"""The empirical likelihood interval: honest where few large weights carry an estimate, or have yet to come."""

from __future__ import annotations

from dataclasses import field
from statistics import NormalDist
from typing import Literal

import numpy as np
from pydantic import PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.arrays import Array, Mask, ratio
from streameval.averages.moments import Row
from streameval.averages.reading import Reading
from streameval.averages.spread import SpreadRow
from streameval.bounds.base import Bound, Claim, Ends, certain
from streameval.bounds.likelihood import Extra, Means, likely, reach
from streameval.extremes import Extremes
from streameval.labels import strict

FEWEST_EVENTS = 10
"""Independent events without which nothing is said: of fewer, chi-squared misses more often than it promises."""


@dataclass(frozen=True, config=strict)
class EmpiricalLikelihood(Bound):
    """All values that are likely enough, knowing that the mean importance weight is 1 in truth.

    Probabilities for the events seen and one more, under which the mean weight is 1, are likely enough when their
    chi-squared divergence from equal ones exceeds that of the likeliest by no more than the quantile of chi-squared.
    The one more is the worst there could be: of weight 0, 1, or the heaviest, to which `ips` and `snips` know no limit
    but `max_weight`. So what the candidate does and the log has not shown yet counts as the lowest or the highest
    reward; a `max_weight` that is right (1 over the smallest propensity is) makes the interval a good deal narrower.
    The ends lie unevenly around the value; those of `snips` are those of `ips`, as both estimate the same. Estimators
    that do not stand on full support (`dr` and all that are biased by intent) are not held to the mean weight, and
    their heaviest is the largest seen, unless they have a cap. For one look at a time. The value of `ips` may lie
    outside, where the mean weight is not near 1: as everything here is held to that, its interval is about the same
    value more narrowly.

    The events are worth `n_eff`, over the design effect where that exceeds 1: the one more event is then as large as
    what comes together. Withheld until they are worth ten. A ratio whose terms never varied, ten of them not 0, is that
    ratio: `snips` of a reward that is always 1 has the interval [1, 1], which knows nothing of a reward that has not
    come yet; that of `ips` does. The lift of a policy that has done just what production does has an interval around
    0, as wide as one more event in which the two differ makes it.

    Source: Karampatziakis, Langford & Mineiro, NeurIPS 2020, whose extra event weighs 0 or endlessly much, and whose
    divergence counts from the one of these that can bring the mean weight to 1. With a weight of 1 besides, and counted
    from the likeliest, the interval is narrower and holds for small samples too.
    """

    max_weight: PositiveFloat | None = None
    kind: Literal["empirical_likelihood"] = field(default="empirical_likelihood", kw_only=True, repr=False)

    def largest_weight(self, seen: Array) -> Array:
        return seen if self.max_weight is None else np.fmax(seen, self.max_weight)

    def _sampling(self, reading: Reading, claim: Claim) -> Ends:
        extremes = claim.extremes
        means = _means(reading, extremes.controlled)
        extra = _extra(extremes, np.minimum(extremes.heaviest, self._limit(reading)))
        quantile = NormalDist().inv_cdf(0.5 + claim.confidence / 2) ** 2
        ends = reach(means, extra, likely(means, extra, quantile))
        enough = means.events >= FEWEST_EVENTS * (1 - 1e-9)
        known, value = certain(reading, claim.ratio), reading.moments.value
        return Ends(*(np.where(enough, np.where(known, value, end), np.nan) for end in ends))

    def _limit(self, reading: Reading) -> Array | float:
        """The weight that none exceeds, as far as is known."""
        return np.inf if self.max_weight is None else self.largest_weight(reading.moments[Row.LARGEST_IMPORTANCE])


def _means(reading: Reading, controlled: Mask) -> Means:
    """The means of a reading; where the weight controls nothing, as if it were always 1.

    Where no term was ever anything but 0, so is their mean: the start-up value of a mixture was never seen.
    """
    moments = reading.moments
    weights, terms = (Row.IMPORTANCE, Row.IMPORTANCE_SQUARE), (Row.U, Row.TERM_IMPORTANCE, Row.UU)
    weight, square = (ratio(moments[row], moments[Row.WEIGHT]) for row in weights)
    ever = np.where(reading.spread[SpreadRow.NONZERO] == 0, 0.0, 1.0)
    term, product, term_square = (ever * ratio(moments[row], moments[Row.WEIGHT]) for row in terms)
    return Means(
        moments.count / np.fmax(1.0, reading.design_effect),
        np.where(controlled, weight, 1.0),
        np.where(controlled, square, 1.0),
        term,
        np.where(controlled, product, term),
        term_square,
    )


def _extra(extremes: Extremes, heaviest: Array) -> Extra:
    """One more event of no weight, of weight 1, and of the heaviest; if the weight controls nothing, the widest."""
    low, high, controlled = extremes.low, extremes.high, extremes.controlled
    weight = np.stack([np.zeros_like(heaviest), np.ones_like(heaviest), heaviest])
    lowest, highest = low.at(weight), high.at(weight)
    return Extra(
        np.where(controlled, weight, 1.0),
        np.where(controlled, lowest, np.minimum(lowest[0], lowest[2])),
        np.where(controlled, highest, np.maximum(highest[0], highest[2])),
    )
