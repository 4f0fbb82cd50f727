"""Compute the empirical likelihood interval, which holds even if a few large weights carry an estimate or are missing.

Give the events other probabilities than `1 / n`. Every such reweighting with a mean importance weight of 1, the true
mean, is a possible world. Its divergence from equal probabilities, `sum (n p - 1)^2` (chi-squared, of the Cressie-Read
family), measures how unlikely it is. The interval reaches from the lowest to the highest value of all worlds that are
likely enough. Rare events with large weights may not have occurred yet, so each world holds one event more than the
log, the worst there could be.

For one more event at (w, u) this is, with means over all `N = n + 1` events and `v` the variance of the weights,

    mean(u) + (1 - mean(w)) cov(u, w) / v  -+  sqrt(s2 (allowed - N (1 - mean(w))^2 / v) / N)

with the residual variance `s2` of `u` after regression on the weight. So the weight serves as a control variate. Six
sums suffice, of 1, w, w^2, u, u w and u^2, and they may decay.

Source: Karampatziakis, Langford & Mineiro, Empirical likelihood for contextual bandits, NeurIPS 2020; Owen, Empirical
likelihood, 2001, ch. 3, for the calibration by chi-squared.
"""

from __future__ import annotations

from dataclasses import field
from statistics import NormalDist
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import BeforeValidator, Field, PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.common.arrays import ROUNDING, Array, Mask, clear_rounding, ratio
from streameval.common.component import strict
from streameval.ope.core import Reading
from streameval.ope.estimators import TermRange
from streameval.ope.intervals.base import IntervalMethod, is_degenerate

__all__ = ["EmpiricalLikelihood", "Extra", "Means", "extra_events", "heaviest_likely", "likely", "reach"]

MIN_EVENTS = 10
"""Smallest number of independent events. With fewer, chi-squared misses more often than it promises."""

MAX_PRECISE = 1e5
"""Largest finite weight of an extra event. The square of a larger one would hide variances in its rounding."""


_null_is_none = BeforeValidator(lambda value: "none" if value is None else value)


class Means(NamedTuple):
    """Hold the effective number of some events, and the means of w, w^2, u, u w and u^2, with one entry per column."""

    events: Array
    weight: Array
    weight_square: Array
    term: Array
    product: Array
    term_square: Array

    def and_one_more(self, weight: Array, term: Array) -> Means:
        """Return the means with one more event. An infinite weight counts as a weight of 0."""
        weight, events = np.where(np.isinf(weight), 0.0, weight), self.events + 1
        one = (weight, np.square(weight), term, weight * term, np.square(term))
        return Means(events, *((self.events * old + new) / events for old, new in zip(self[1:], one, strict=True)))

    @property
    def weight_variance(self) -> Array:
        """Return the variance of the weights, 0 if it is mere rounding."""
        return clear_rounding(self.weight_square - self.weight**2, self.weight_square)


class Extra(NamedTuple):
    """Hold one more event, or any of several on the first axis.

    Attributes:
        weight: the importance weight of the event
        low: the lowest term, per weight if the weight is infinite
        high: the highest term, per weight if the weight is infinite
    """

    weight: Array
    low: Array
    high: Array

    @property
    def within_precision(self) -> Extra:
        """Replace weights by infinity if they are so large that the sums would lose all other events."""
        lost = np.isfinite(self.weight) & (self.weight > MAX_PRECISE)
        per_weight = np.where(lost, self.weight, 1.0)
        return Extra(np.where(lost, np.inf, self.weight), self.low / per_weight, self.high / per_weight)


def distance(means: Means, extra: Extra) -> Array:
    """Return the least divergence `N (1 - mean(w))^2 / v` at which the mean weight is 1 with one more event.

    Four events of weight 1/2 call for a heavy one:

    >>> half = Means(*np.array([4.0, 0.5, 0.25, 0.5, 0.25, 0.5]))
    >>> [float(distance(half, Extra(np.array(weight), *np.zeros(2))).round(3)) for weight in (0.0, 3.0, np.inf)]
    [45.0, 0.0, 1.25]
    """
    more = means.and_one_more(extra.weight, np.zeros_like(extra.low))
    variance = more.weight_variance
    finite = np.where(
        variance > 0,
        ratio(more.events * (1 - more.weight) ** 2, variance),
        np.where(np.abs(1 - more.weight) <= np.sqrt(ROUNDING), 0.0, np.inf),
    )
    return np.where(np.isinf(extra.weight), 1 + 1 / means.events, finite)


def reach(means: Means, extra: Extra, allowed: Array) -> tuple[Array, Array]:
    """Return the lowest and the highest value of all worlds with any of the extra events and at most this divergence.

    Both are NaN if there is no such world, and for a single event, which has no variance.
    """
    extra = extra.within_precision
    with np.errstate(invalid="ignore"):  # without events
        left = (allowed - distance(means, extra)) / (means.events + 1)
    term = np.stack([extra.low, extra.high])
    limit, finite = _heavy(means, term), regression(means.and_one_more(extra.weight, term))
    centre, residual = (np.where(np.isinf(extra.weight), *pair) for pair in zip(limit, finite, strict=True))
    radius = np.sqrt(residual * np.where(left >= 0, left, np.nan))
    lowest = np.fmin.reduce(centre[0] - radius[0], axis=0, initial=np.inf)
    highest = np.fmax.reduce(centre[1] + radius[1], axis=0, initial=-np.inf)
    is_known = np.isfinite(lowest) & np.isfinite(highest) & (means.events > 1 + 1e-9)
    return np.where(is_known, lowest, np.nan), np.where(is_known, highest, np.nan)


def likely(means: Means, extra: Extra, quantile: float) -> Array:
    """Return the allowed divergence: the divergence with the likeliest extra event, plus a chi-squared quantile.

    Only an event that can bring the mean weight nearer to 1 counts as likely.
    """
    helps = np.where(means.weight < 1, extra.weight >= 1, extra.weight <= 1)
    return np.asarray(np.where(helps, distance(means, extra), np.inf).min(axis=0) + quantile)


def regression(means: Means) -> tuple[Array, Array]:
    """Return `u` at weight 1 by regression on the weight, and the variance around that line."""
    variance = means.weight_variance
    covariance = means.product - means.weight * means.term
    slope = np.where(variance > 0, covariance / np.where(variance > 0, variance, 1.0), 0.0)
    residual = means.term_square - means.term**2 - slope * covariance
    return means.term + (1 - means.weight) * slope, _limited_by_rounding(residual, means.term_square)


def _heavy(means: Means, slope: Array) -> tuple[Array, Array]:
    """Return the limit of `regression` with one more event of infinite weight and `slope` per unit of weight."""
    size = means.term_square + slope**2 * means.weight_square
    centre = means.term - slope * means.weight
    residual = _limited_by_rounding(size - 2 * slope * means.product - centre**2, size)
    return centre + slope, residual * means.events / (means.events + 1)


def _limited_by_rounding(residual: Array, size: Array) -> Array:
    """Limit a variance of numbers of this size from below, because rounding may hide it after a heavy event."""
    return np.maximum(residual, ROUNDING * np.maximum(size, 0.0))


def heaviest_likely(means: Means, limits: TermRange) -> Array:
    """Return the heaviest weight of the extra event by the limits of the log.

    The largest probability that the log shows of a policy is believed as far as the mean weight confirms it. Let `z`,
    at most 1, be the number of standard errors by which the mean weight is below 1. The result is `likely_weight^(1 -
    z) possible_weight^z`.
    """
    missing = np.maximum(1.0 - means.weight, 0.0)
    errors = ratio(missing * np.sqrt(means.events), np.sqrt(means.weight_variance))
    z = np.where(missing > ROUNDING, np.fmin(np.nan_to_num(errors, nan=1.0), 1.0), 0.0)
    return np.asarray(limits.likely_weight ** (1 - z) * limits.possible_weight**z)


def extra_events(limits: TermRange, heaviest: Array) -> Extra:
    """Return one more event of weight 0, 1, and the heaviest, or the widest if the weight is not a control variate."""
    controlled = limits.controlled
    weight = np.stack([np.zeros_like(heaviest), np.ones_like(heaviest), heaviest])
    lowest, highest = limits.lowest(weight), limits.highest(weight)
    return Extra(
        np.where(controlled, weight, 1.0),
        np.where(controlled, lowest, np.minimum(lowest[0], lowest[2])),
        np.where(controlled, highest, np.maximum(highest[0], highest[2])),
    )


@dataclass(frozen=True, config=strict)
class EmpiricalLikelihood(IntervalMethod):
    """Cover all values that are likely enough, given that the true mean importance weight is 1.

    A world is likely enough if its divergence exceeds the divergence of the likeliest by at most the quantile of
    chi-squared. The extra event has the weight 0, 1, or the heaviest, which for `ips` and `snips` has no limit but
    `max_weight`. So actions of the candidate that the log does not hold yet count as the lowest or the highest reward.
    The bounds lie unevenly around the value. `ips` and `snips` have equal bounds, as both estimate the same value.
    Estimators that do not rely on full support (`dr` and all that are biased by design) do not use the mean weight.
    Their heaviest weight is the largest seen, unless they have a cap. This also holds for `control_variate` and
    `stratified_ips`.

    The interval is valid at a single look. If the mean weight is far from 1, the value of `ips` may be unlikely, and a
    Report extends the interval to the value. On a mixture it counts the initial value as evidence, and misses far more
    often during the first thousand events. Use `drift_aware` there.

    The number of events is `n_eff`, divided by the design effect if that exceeds 1, so the extra event is as large as a
    cluster. The interval is withheld below ten such events. A ratio with terms that never varied, ten of them not 0,
    has that ratio as its interval: `snips` of a reward that is always 1 has the interval [1, 1], which allows for no
    other reward, unlike `ips`. The lift of a policy that always acted like production has an interval around 0, as wide
    as one more event in which the two differ makes it.

    Args:
        max_weight: a number that no weight exceeds, `none`, or `auto`. `auto` is the limit that the propensities of the
            log allow, see `evidence.largest_weights` and `heaviest_likely`. It excludes contexts with small
            propensities that no event shows. Actions that lose their support in mid-stream show no propensity, so
            `auto` may then miss, and `none` does not. The detail `max_weight` of a Report is the limit in use. It
            limits production as well: while the mean weight of a named production is below 1, the interval of a lift
            allows for one more event with the weight it lacks.

    Source: Karampatziakis, Langford & Mineiro, NeurIPS 2020. Their extra event has weight 0 or infinity, and their
    divergence counts from the one that can bring the mean weight to 1. With a weight of 1 as well, and counted from the
    likeliest, the interval is narrower and holds for small samples too.
    """

    max_weight: Annotated[
        PositiveFloat | Literal["auto", "none"],
        _null_is_none,
        Field(description="the upper limit of the importance weights; auto: from the propensities of the log"),
    ] = "auto"
    description: ClassVar[str] = (
        "They hold even where a few large weights carry the value or have not occurred yet, and lie unevenly around it."
    )
    kind: Literal["empirical_likelihood"] = field(default="empirical_likelihood", kw_only=True, repr=False)

    @property
    def limited_by_log(self) -> bool:
        return self.max_weight == "auto"

    def largest_weight(self, largest_seen: Array) -> Array:
        return largest_seen if isinstance(self.max_weight, str) else np.fmax(largest_seen, self.max_weight)

    def heaviest(self, reading: Reading, terms: TermRange) -> Array:
        if self.max_weight == "none":
            return terms.heaviest
        if self.max_weight == "auto":
            return _heaviest_likely(_means(reading, terms), terms)
        return np.minimum(terms.heaviest, np.fmax(reading.importance_weight_max, self.max_weight))

    def sampling_bounds(self, reading: Reading, terms: TermRange, confidence: float) -> tuple[Array, Array]:
        means, value = _means(reading, terms), reading.value
        heaviest = _heaviest_likely(means, terms) if self.max_weight == "auto" else self.heaviest(reading, terms)
        extra = extra_events(terms, heaviest)
        centre = np.where(_is_linearised(terms), value, 0.0)
        extra = extra._replace(low=extra.low + centre, high=extra.high + centre)
        quantile = NormalDist().inv_cdf(0.5 + confidence / 2) ** 2
        enough = means.events >= MIN_EVENTS * (1 - 1e-9)
        is_constant = is_degenerate(reading, terms.ratio)
        lower, upper = (
            np.where(enough, np.where(is_constant, value, bound), np.nan)
            for bound in reach(means, extra, likely(means, extra, quantile))
        )
        return lower, upper


def _heaviest_likely(means: Means, terms: TermRange) -> Array:
    """Return the largest weight that is likely where the log does not limit it."""
    return np.where(np.isinf(terms.heaviest), heaviest_likely(means, terms), terms.heaviest)


def _is_linearised(terms: TermRange) -> Mask:
    """Tell which ratios do not estimate the mean of `u` as well."""
    return np.asarray(terms.ratio & ~terms.controlled)


def _means(reading: Reading, terms: TermRange) -> Means:
    """Return the means of a reading. If the weight is not a control variate, it counts as 1.

    For a ratio that does not estimate the mean of `u`, the terms are the estimate plus the linearised terms. If every
    term is 0 (for a lift, production's too), the mean is 0 regardless of the mixture's prior.
    """
    ever, linear, controlled = np.where(reading.rewarded, 1.0, 0.0), _is_linearised(terms), terms.controlled
    term, product, term_square = (
        ever * mean for mean in (reading.term_mean, reading.term_times_weight, reading.term_square)
    )
    if linear.any():
        term = np.where(linear, reading.value, term)
        term_square = np.where(linear, reading.value**2 + reading.variance, term_square)
    return Means(
        reading.count / np.fmax(1.0, reading.design_effect),
        np.where(controlled, reading.importance_weight_mean, 1.0),
        np.where(controlled, reading.importance_weight_square, 1.0),
        term,
        np.where(controlled, product, term),
        term_square,
    )
