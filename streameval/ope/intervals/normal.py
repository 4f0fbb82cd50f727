"""The Gaussian interval, valid at a single look."""

from __future__ import annotations

from dataclasses import field
from statistics import NormalDist
from typing import ClassVar, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array
from streameval.common.component import strict
from streameval.ope.averages.base import Reading
from streameval.ope.averages.moments import VarianceRow
from streameval.ope.estimators import TermRange
from streameval.ope.intervals.base import FEWEST_NONZERO, IntervalMethod, standard_error


@dataclass(frozen=True, config=strict)
class Normal(IntervalMethod):
    """`z sqrt(s2 / n_eff)`, the Gaussian interval; for ratios by the delta method, whose denominator moves too.

    `s2` comes from the reading's longer horizon and is scaled by the design effect where that exceeds 1. A mean
    divides by n - 1, the delta method by n. Valid at a single look: under continuous monitoring, it misses far
    more often. Withheld until the horizon holds ten non-zero terms.

    Source: for ratios, Owen, Monte Carlo theory, 2013, ch. 9.2.
    """

    description: ClassVar[str] = (
        "They follow from the variance of the terms, and are too narrow while a few large weights carry the value."
    )
    kind: Literal["normal"] = field(default="normal", kw_only=True, repr=False)

    def half_width(self, reading: Reading, terms: TermRange, confidence: float) -> Array:
        z = NormalDist().inv_cdf(0.5 + confidence / 2)
        width = z * standard_error(reading, reading.spread.variance, reading.spread.count, terms.ratio)
        return np.where(reading.spread[VarianceRow.NONZERO] >= FEWEST_NONZERO - 0.5, width, np.nan)
