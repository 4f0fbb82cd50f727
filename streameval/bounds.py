"""Bounds: from moments to intervals. They know neither policies nor time, only what an average has read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from statistics import NormalDist
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field, PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.arrays import Array
from streameval.averages.moments import Row
from streameval.averages.reading import Reading
from streameval.averages.spread import SpreadRow
from streameval.labels import Labelled, strict

FEWEST_NONZERO = 10
"""Non-zero terms without which no normal interval is shown: it would say [0, 0] before the first click."""


class Interval(NamedTuple):
    """An interval and what it claims.

    `lower` and `upper` are None while it is withheld. `anytime`: it may be watched continuously. `covers`: `average`
    (the mean of the value over the average's kernel), `current` (the value now), or `estimand` (a biased estimator's
    own expectation).
    """

    lower: float | None
    upper: float | None
    kind: str
    anytime: bool
    covers: str


class Claim(NamedTuple):
    """What an interval is asked for: its confidence; of each column the range of a term, and whether it is a ratio."""

    confidence: float
    term_range: Array
    ratio: Array


@dataclass(frozen=True, kw_only=True, config=strict)
class Bound(Labelled):
    """A half-width for every column of a reading.

    `drift: include` adds the average's bound on its bias from drift, so that the interval is about the value now;
    `export` shows that bound beside the interval only.
    """

    anytime: ClassVar[bool] = False
    drift: Literal["export", "include"] = "export"

    @property
    def covers(self) -> str:
        """What the interval of an unbiased estimator is about."""
        return "current" if self.drift == "include" else "average"

    def half_width(self, reading: Reading, claim: Claim) -> Array:
        """Half the width of the two-sided interval of each column; NaN where it is withheld."""
        width = self._sampling_width(reading, claim)
        return width + reading.bias if self.drift == "include" else width

    def _sampling_width(self, reading: Reading, claim: Claim) -> Array:
        raise NotImplementedError

    def largest_weight(self, seen: Array) -> Array:
        """The importance weight that none exceeds, as far as this bound knows; `seen`: the largest so far."""
        return seen

    def says(self) -> Mapping[str, str]:
        """What a reader of the interval must know besides its numbers."""
        return {}


@dataclass(frozen=True, config=strict)
class Normal(Bound):
    """`z sqrt(s2 / n_eff)`, the Gaussian interval; for ratios by the delta method, whose denominator moves too.

    `s2` comes from the reading's longer horizon and is scaled by the design effect where that exceeds 1. A mean
    divides by n - 1, the delta method by n. For one look at a time: watched all day, it misses far more often than it
    says. Withheld until the horizon holds ten non-zero terms.

    Source: for ratios, Owen, Monte Carlo theory, 2013, ch. 9.2.
    """

    kind: Literal["normal"] = field(default="normal", kw_only=True, repr=False)

    def _sampling_width(self, reading: Reading, claim: Claim) -> Array:
        z = NormalDist().inv_cdf(0.5 + claim.confidence / 2)
        width = z * standard_error(reading, reading.spread.variance, reading.spread.count, claim.ratio)
        return np.where(reading.spread[SpreadRow.NONZERO] >= FEWEST_NONZERO - 0.5, width, np.nan)


@dataclass(frozen=True, config=strict)
class EmpiricalBernstein(Bound):
    """`sqrt(2 s2 L / n_eff) + 7 b L / (3 (S0 / Q - 1))` with `L = ln(4 / delta)`: holds at any sample size for
    bounded terms.

    `b`, the range of a term, is the reward range times the largest possible importance weight: `max_weight` when it is
    given, else the largest seen so far, and then the interval's details say so. Wide where weights are heavy. For a
    ratio it bounds the linearised terms, which is approximate.

    Source: Maurer & Pontil, COLT 2009; Jagerman's thesis, equation 4.5.
    """

    max_weight: PositiveFloat | None = None
    kind: Literal["empirical_bernstein"] = field(default="empirical_bernstein", kw_only=True, repr=False)

    def largest_weight(self, seen: Array) -> Array:
        return seen if self.max_weight is None else np.full_like(seen, self.max_weight)

    def says(self) -> Mapping[str, str]:
        return {"largest_weight": "seen" if self.max_weight is None else "configured"}

    def _sampling_width(self, reading: Reading, claim: Claim) -> Array:
        log_term = np.log(4 / (1 - claim.confidence))
        with np.errstate(divide="ignore", invalid="ignore"):
            others = reading.moments[Row.WEIGHT] / reading.moments[Row.LARGEST_WEIGHT] - 1
            range_term = 7 * claim.term_range / reading.moments.mean_denominator * log_term / (3 * others)
        sampling = standard_error(reading, reading.moments.variance, reading.moments.count, claim.ratio)
        width = np.sqrt(2 * log_term) * sampling + range_term
        return np.where(others > 0, width, np.nan)


@dataclass(frozen=True, config=strict)
class DriftAware(Bound):
    """`(2.5 z / 1.96) sqrt(se^2 + spread^2 + drift^2)`: covers the value now, in a world that moves. For `mixture`.

    `se`: sampling error of the mixed kernel, in which the pseudo-events of the start count as events; with the design
    effect. `spread`: how far the decays of the mixture disagree. `drift`: how far the value has moved, at its speed
    over the last 50,000 events, since the mean age of what is averaged (not known, and left out, before that). The
    factor 2.5 was found by simulation. Coverage is an average over time: right after a jump nothing that only knows the
    past covers. Withheld while no event that the policy could have logged has come: all there is then is the value to
    begin with.
    """

    kind: Literal["drift_aware"] = field(default="drift_aware", kw_only=True, repr=False)

    @property
    def covers(self) -> str:
        return "current"

    def half_width(self, reading: Reading, claim: Claim) -> Array:
        z = NormalDist().inv_cdf(0.5 + claim.confidence / 2)
        sampling = reading.parts["se"] ** 2 * np.fmax(1.0, reading.design_effect)
        moved = np.nan_to_num(reading.parts["drift"]) ** 2
        width = WIDENING * z * np.sqrt(sampling + reading.parts["spread"] ** 2 + moved)
        return np.where(reading.moments[Row.IMPORTANCE] > 0, width, np.nan)


WIDENING = 2.5 / 1.96

AnyBound = Annotated[Normal | EmpiricalBernstein | DriftAware, Field(discriminator="kind")]


def standard_error(reading: Reading, variance: Array, count: Array, ratio: Array) -> Array:
    """`sqrt(s2 / n_eff)` with the design effect, from the variance of a term and the number of events behind it.

    NaN where one event is all there is: it has no variance.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        unbiased = np.where(count > 1 + 1e-9, variance * count / (count - 1), np.nan)
        independent = np.where(ratio, variance, unbiased) / reading.moments.count
    return np.asarray(np.sqrt(independent * np.fmax(1.0, reading.design_effect)))
