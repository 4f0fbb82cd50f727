"""The arithmetic of seeing a lift: a lift is seen once the lower end of its normal interval lies above 0.

Intervals that promise more are wider, and take longer.
"""

from __future__ import annotations

import math
from statistics import NormalDist


def events_needed(deviation: float, design_effect: float, lift: float, confidence: float, power: float) -> float:
    """`D s^2 (z_c + z_p)^2 / lift^2` events, after which a lift of this size is seen with this power.

    `deviation` s: of one event's paired difference to production. `design_effect` D: how many times as many events it
    takes as independent ones would. `z_c` is the quantile of the two-sided interval of this confidence, `z_p` that of
    the power. Where every weight is 1 this is the sample size of a paired experiment.

    >>> round(events_needed(0.5, 1.0, lift=0.01, confidence=0.95, power=0.8))
    19622

    Source: Casella & Berger, Statistical inference, 2002, ch. 8.3.
    """
    return max(1.0, design_effect) * (deviation * _quantiles(confidence, power) / lift) ** 2


def smallest_lift(deviation: float, design_effect: float, events: float, confidence: float, power: float) -> float:
    """The lift that so many events show with this power, the inverse of `events_needed`.

    >>> round(smallest_lift(0.5, 1.0, events=19_622, confidence=0.95, power=0.8), 6)
    0.01
    """
    return deviation * _quantiles(confidence, power) * math.sqrt(max(1.0, design_effect) / events)


def _quantiles(confidence: float, power: float) -> float:
    normal = NormalDist()
    return max(0.0, normal.inv_cdf(0.5 + confidence / 2) + normal.inv_cdf(power))
