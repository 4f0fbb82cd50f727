"""The empirical Bernstein interval: for bounded terms it holds at any sample size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Literal

import numpy as np
from pydantic import PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array
from streameval.common.component import strict
from streameval.ope.averages import AnyAverage
from streameval.ope.averages.base import Reading
from streameval.ope.averages.moments import MomentRow
from streameval.ope.estimators import TermRange
from streameval.ope.intervals.base import IntervalMethod, standard_error


@dataclass(frozen=True, config=strict)
class EmpiricalBernstein(IntervalMethod):
    """`sqrt(2 s2 L / n_eff) + 7 b L / (3 (S0 / Q - 1))` with `L = ln(4 / delta)`: holds at any sample size for
    bounded terms.

    `b`, the range of a term, is the reward range times the largest possible importance weight: `max_weight`, or without
    one the largest seen so far (detail `largest_weight`). Wide where weights are heavy. For a ratio it bounds the
    linearised terms, which is approximate, and withheld while the mean weight is negative, as that of the first few
    slates may be.

    Source: Maurer & Pontil, COLT 2009; Jagerman's thesis, equation 4.5.
    """

    max_weight: PositiveFloat | None = None
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

    def largest_weight(self, seen: Array) -> Array:
        return seen if self.max_weight is None else np.full_like(seen, self.max_weight)

    def details(self) -> Mapping[str, str]:
        return {"largest_weight": "seen" if self.max_weight is None else "configured"}

    def half_width(self, reading: Reading, terms: TermRange, confidence: float) -> Array:
        log_term = np.log(4 / (1 - confidence))
        with np.errstate(divide="ignore", invalid="ignore"):
            others = reading.moments[MomentRow.WEIGHT] / reading.moments[MomentRow.LARGEST_WEIGHT] - 1
            range_term = 7 * terms.width / reading.moments.mean_denominator * log_term / (3 * others)
        sampling = standard_error(reading, reading.moments.variance, reading.moments.count, terms.ratio)
        width = np.sqrt(2 * log_term) * sampling + range_term
        return np.where((others > 0) & (range_term >= 0), width, np.nan)
