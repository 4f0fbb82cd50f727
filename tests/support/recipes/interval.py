"""Add an interval: Chebyshev's, which holds for every distribution with a variance."""

from dataclasses import field
from typing import Literal

import numpy as np
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array
from streameval.common.component import strict
from streameval.ope.core import Reading
from streameval.ope.estimators import TermRange
from streameval.ope.intervals.base import IntervalMethod, standard_error


@dataclass(frozen=True, config=strict)
class Chebyshev(IntervalMethod):
    """Return the value plus and minus `se / sqrt(1 - confidence)`."""

    kind: Literal["chebyshev"] = field(default="chebyshev", kw_only=True, repr=False)

    def half_width(self, reading: Reading, terms: TermRange, confidence: float) -> Array:
        error = standard_error(reading, reading.spread["variance"], reading.spread["count"], terms.ratio)
        return np.asarray(error / np.sqrt(1 - confidence))
