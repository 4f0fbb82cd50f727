"""The mathematics of the empirical likelihood interval: how far the value may be from what was seen.

Other probabilities than `1 / n` could be given to the events seen: every such reweighting under which the mean
importance weight is 1, as it is in truth, is a world that might have been. Its divergence from equal probabilities,
`sum (n p - 1)^2` (chi-squared, of the Cressie-Read family), says how unlikely; the interval reaches from the lowest to
the highest value of all worlds that are likely enough. Rare events with large weights may not have come yet: each
world therefore holds one more event than was seen, the worst there could be.

For one more event at (w, u) this is, with means over all `N = n + 1` events and `v` the variance of the weights,

    mean(u) + (1 - mean(w)) cov(u, w) / v  -+  sqrt(s2 (allowed - N (1 - mean(w))^2 / v) / N)

where `s2` is what the weight leaves of the variance of `u` by regression: the weight serves as a control variate.

Six sums suffice, of 1, w, w^2, u, u w and u^2, and they may decay.

Source: Karampatziakis, Langford & Mineiro, Empirical likelihood for contextual bandits, NeurIPS 2020; Owen, Empirical
likelihood, 2001, ch. 3, for the calibration by chi-squared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streameval.arrays import ROUNDING, Array, beyond_rounding
from streameval.bounds.base import Ends


class Means(NamedTuple):
    """Of some events: how many they are worth, and the means of w, w^2, u, u w and u^2; one entry a column.

    `u` is the term to average, `w` the importance weight, whose expectation is known to be 1. Events that count
    unequally are worth `n_eff = (sum q)^2 / sum q^2`.
    """

    events: Array
    weight: Array
    weight_square: Array
    term: Array
    product: Array
    term_square: Array

    def and_one_more(self, weight: Array | float, term: Array) -> Means:
        """The means with one more event of a finite weight."""
        events = self.events + 1
        one = (weight, np.square(weight), term, weight * term, np.square(term))
        return Means(events, *((self.events * old + new) / events for old, new in zip(self[1:], one, strict=True)))

    @property
    def weight_variance(self) -> Array:
        """The variance of the weights; 0 where it is mere rounding."""
        return beyond_rounding(self.weight_square - self.weight**2, self.weight_square)

    @property
    def distance(self) -> Array:
        """The least divergence `N (1 - mean(w))^2 / v` at which the mean weight is 1; infinite where it never is."""
        variance = self.weight_variance
        return np.where(
            variance > 0,
            self.events * (1 - self.weight) ** 2 / np.where(variance > 0, variance, 1.0),
            np.where(np.abs(1 - self.weight) <= np.sqrt(ROUNDING), 0.0, np.inf),
        )

    def line(self) -> tuple[Array, Array]:
        """What `u` is at weight 1 by regression on the weight, and the variance around that line."""
        variance = self.weight_variance
        covariance = self.product - self.weight * self.term
        slope = np.where(variance > 0, covariance / np.where(variance > 0, variance, 1.0), 0.0)
        residual = self.term_square - self.term**2 - slope * covariance
        return self.term + (1 - self.weight) * slope, beyond_rounding(residual, self.term_square)

    def tail(self, slope: Array) -> tuple[Array, Array]:
        """The limit of `line` with one more event of infinite weight, whose term is `slope` per unit of weight."""
        size = self.term_square + slope**2 * self.weight_square
        centre = self.term - slope * self.weight
        residual = beyond_rounding(size - 2 * slope * self.product - centre**2, size)
        return centre + slope, residual * self.events / (self.events + 1)


class Extra(NamedTuple):
    """One more event: its weight, and the lowest and highest term; where the weight is infinite, these per weight.

    With an axis in front of the columns: any one of several.
    """

    weight: Array
    low: Array
    high: Array

    @classmethod
    def any_of(cls, extras: Sequence[Extra]) -> Extra:
        """One of these, whichever is the worst."""
        return cls(*(np.stack(values) for values in zip(*extras, strict=True)))


def distance(means: Means, extra: Extra) -> Array:
    """The least divergence at which the mean weight is 1 when there is one more event.

    Four events of weight 1/2 call for a heavy one:

    >>> half = Means(*np.array([4.0, 0.5, 0.25, 0.5, 0.25, 0.5]))
    >>> [float(distance(half, Extra(np.array(weight), *np.zeros(2))).round(3)) for weight in (0.0, 3.0, np.inf)]
    [45.0, 0.0, 1.25]
    """
    heavy = np.isinf(extra.weight)
    finite = means.and_one_more(np.where(heavy, 0.0, extra.weight), np.zeros_like(extra.low))
    return np.where(heavy, 1 + 1 / means.events, finite.distance)


def reach(means: Means, extra: Extra, allowed: Array) -> Ends:
    """The lowest and the highest value of all worlds with any of the extra events and no more than this divergence.

    NaN where there is no such world, and of one event alone: it has no variance.
    """
    with np.errstate(invalid="ignore"):  # where nothing is known
        left = (allowed - distance(means, extra)) / (means.events + 1)
    (low, high), (below, above) = _worlds(means, extra.weight, np.stack([extra.low, extra.high]), left)
    lowest = np.fmin.reduce(low - below, axis=0, initial=np.inf)
    highest = np.fmax.reduce(high + above, axis=0, initial=-np.inf)
    known = np.isfinite(lowest) & np.isfinite(highest) & (means.events > 1 + 1e-9)
    return Ends(np.where(known, lowest, np.nan), np.where(known, highest, np.nan))


def likely(means: Means, extra: Extra, quantile: float) -> Array:
    """What is not too unlikely: the divergence with the likeliest extra event, and a chi-squared quantile beyond it.

    Only an event that can bring the mean weight nearer to 1 counts as likely.
    """
    helps = np.where(means.weight < 1, extra.weight >= 1, extra.weight <= 1)
    return np.asarray(np.where(helps, distance(means, extra), np.inf).min(axis=0) + quantile)


def _worlds(means: Means, weight: Array, term: Array, left: Array) -> tuple[Array, Array]:
    """Centre and radius of the values with one more event of these terms; NaN where no divergence is left."""
    heavy = np.isinf(weight)
    light, heaviest = means.and_one_more(np.where(heavy, 0.0, weight), term).line(), means.tail(term)
    centre, residual = (np.where(heavy, limit, finite) for limit, finite in zip(heaviest, light, strict=True))
    return centre, np.sqrt(residual * np.where(left >= 0, left, np.nan))
