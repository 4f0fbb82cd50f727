"""Compute intervals with the value at the centre: Gaussian, empirical Bernstein, and for a mixture under drift."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from statistics import NormalDist
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array
from streameval.common.component import strict
from streameval.ope.core import AnyAverage, Reading
from streameval.ope.estimators import TermRange
from streameval.ope.intervals.base import IntervalMethod, is_degenerate, is_enough, standard_error

WIDER_UNDER_DRIFT = 2.4 / 1.96
"""Factor of the half-width of intervals on a mixture, see `DriftAware`."""


@dataclass(frozen=True, config=strict)
class Normal(IntervalMethod):
    """Compute the Gaussian interval `z sqrt(s2 / n_eff)`, for ratios by the delta method with the noise of both means.

    `s2` comes from the reading's longer horizon and is scaled by the design effect if that exceeds 1. A mean divides by
    n - 1, and the delta method by n. The interval is approximate by design. It covers if many events with weights of
    similar size carry the value. It misses far more often if a few large weights do, before the first large weight has
    occurred, and under continuous monitoring.

    It is withheld until the horizon holds ten non-zero terms, for a lift of both policies. The delta method fails if
    few events are nearly all of the denominator. So a ratio needs ten effective events, `(sum v)^2 / sum v^2`. If the
    longer horizon has fewer, `s2` comes from the averaged events.

    Source: for ratios, Owen, Monte Carlo theory, 2013, ch. 9.2.
    """

    description: ClassVar[str] = (
        "They follow from the variance of the terms, and are too narrow while a few large weights carry the value."
    )
    kind: Literal["normal"] = field(default="normal", kw_only=True, repr=False)

    def half_width(self, reading: Reading, terms: TermRange, confidence: float) -> Array:
        z, spread = NormalDist().inv_cdf(0.5 + confidence / 2), reading.spread
        longer = ~terms.ratio | is_enough(spread["effective_denominators"])
        variance, count = np.where(longer, (spread["variance"], spread["count"]), (reading.variance, reading.count))
        is_sufficient = is_enough(reading.nonzero) & (longer | is_enough(reading.effective_denominators))
        return np.where(is_sufficient, z * standard_error(reading, variance, count, terms.ratio), np.nan)


@dataclass(frozen=True, config=strict)
class EmpiricalBernstein(IntervalMethod):
    """Compute the half-width `sqrt(2 s2 L / n_eff) + 7 b L / (3 (S0 / Q - 1))` with `L = ln(4 / delta)`.

    It holds at any sample size for bounded terms. `b`, the range of a term, is the reward range times the largest
    possible importance weight. The interval is wide if weights are heavy. For a ratio it bounds the linearised terms,
    which is approximate. It is then withheld while the mean weight is negative, as for the first few slates.

    Args:
        max_weight: the largest possible importance weight, None for the largest seen so far (detail `largest_weight`)

    Source: Maurer & Pontil, COLT 2009; Jagerman's thesis, equation 4.5.
    """

    max_weight: PositiveFloat | None = Field(
        default=None, description="the upper limit of the importance weights; null: the largest seen"
    )
    description: ClassVar[str] = (
        "They hold at any number of events if no weight exceeds the largest one seen or configured."
    )
    kind: Literal["empirical_bernstein"] = field(default="empirical_bernstein", kw_only=True, repr=False)

    def check(self, average: AnyAverage, block: int) -> None:
        if average.mixes_components:
            raise ValueError(
                f"{average.label!r} is a mixture, which has no largest term: empirical_bernstein needs one"
            )
        super().check(average, block)

    def largest_weight(self, largest_seen: Array) -> Array:
        return largest_seen if self.max_weight is None else np.full_like(largest_seen, self.max_weight)

    def details(self) -> Mapping[str, str]:
        return {"largest_weight": "seen" if self.max_weight is None else "configured"}

    def half_width(self, reading: Reading, terms: TermRange, confidence: float) -> Array:
        log_term = np.log(4 / (1 - confidence))
        with np.errstate(divide="ignore", invalid="ignore"):
            others = reading.events_of_largest_weight - 1
            range_term = 7 * terms.width / reading.mean_denominator * log_term / (3 * others)
        sampling = standard_error(reading, reading.variance, reading.count, terms.ratio)
        width = np.sqrt(2 * log_term) * sampling + range_term
        return np.where((others > 0) & (range_term >= 0), width, np.nan)


@dataclass(frozen=True, config=strict)
class DriftAware(IntervalMethod):
    """Cover the current value of a `mixture` while values drift, with `(2.4 z / 1.96) sqrt(se^2 + spread^2 + drift^2)`.

    * `se` is the sampling error of the events with the design effect, and the distance by which the pseudo-events of
      the start move the estimate.
    * `spread` is the disagreement among the decays of the mixture.
    * `drift` is the distance that the value has moved since the mean age of the averaged events. Its speed is the slope
      by which short and long memories differ, or the usual slope over the last 100,000 events and all candidates if
      that is larger. The noise of the slope is subtracted only as far as the stream has had these 100,000 events. Until
      the drift is known, the interval is wider.

    The factor 2.4 was found by simulation. If the mean weight is below 1 by more than three standard errors, the rest
    of the difference times the range of the rewards is added to the half-width, because heavy events have not occurred
    yet or the log lacks support. Coverage is an average over time: right after a jump no interval from past events
    covers.

    The interval is withheld while no event has an action that the policy takes (the initial value is all there is),
    before the first reward, and while so few events of a downsampled log stand for most that they count as less than
    ten (no variance is known). A ratio with terms that never varied, ten of them not 0, has that
    ratio as its interval.
    """

    description: ClassVar[str] = (
        "They allow for chance, for short and long memories that disagree, and for drift; they lag right "
        "after an abrupt change."
    )
    kind: Literal["drift_aware"] = field(default="drift_aware", kw_only=True, repr=False)

    @property
    def covers(self) -> str:
        return "current"

    def check(self, average: AnyAverage, block: int) -> None:
        if not average.mixes_components:
            raise ValueError(f"drift_aware is the interval of a mixture; {average.label!r} is of another kind")
        super().check(average, block)

    def half_width(self, reading: Reading, terms: TermRange, confidence: float) -> Array:
        z = NormalDist().inv_cdf(0.5 + confidence / 2)
        sampling = reading.parts["se"] ** 2 * np.fmax(1.0, reading.design_effect)
        moved = np.nan_to_num(reading.parts["drift"]) ** 2
        width = WIDER_UNDER_DRIFT * z * np.sqrt(sampling + reading.parts["spread"] ** 2 + moved)
        width = width + missing_weight(reading) * np.where(terms.controlled, terms.high_slope - terms.low_slope, 0.0)
        width = np.where(is_degenerate(reading, terms.ratio), 0.0, width)
        is_known = (reading.importance_weight_mean > 0) & reading.rewarded & is_enough(reading.count)
        return np.where(is_known, width, np.nan)


def missing_weight(reading: Reading) -> Array:
    """Return the part of the expected weight of 1 that the mean weight lacks beyond three of its standard errors."""
    weight, square = reading.importance_weight_mean, reading.importance_weight_square
    error = np.sqrt(np.maximum(square - weight**2, 0.0) / reading.count)
    return np.asarray(np.maximum(1.0 - weight - 3.0 * error, 0.0))
