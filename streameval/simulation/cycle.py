"""Let rewards and traffic follow the hour of the day."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streameval.common.arrays import Array

GRID = 10_000
"""Points of a period between which times are interpolated."""


@dataclass(frozen=True)
class DailyCycle:
    """Scale rewards and traffic by a cosine of the time.

    Traffic is `1 + amplitude cos(2 pi (t - peak) / period)` times its mean. Rewards are this over `1 + amplitude` times
    the rewards of the peak.

    Attributes:
        period: in seconds
        amplitude: relative to the mean, below 1
        peak: the time of the peak since the start of a period, in seconds. Periods start at 1970-01-01 UTC.
    """

    period: float
    amplitude: float
    peak: float

    def reward_share(self, time: Array | float) -> Array:
        """Return the share of the peak's rewards at a time.

        >>> DailyCycle(24, 0.5, 18).reward_share(np.array([6, 12, 18])).round(3)
        array([0.333, 0.667, 1.   ])
        """
        angle = 2 * np.pi * (np.asarray(time) - self.peak) / self.period
        return np.asarray((1 + self.amplitude * np.cos(angle)) / (1 + self.amplitude))

    def evened(self, time: Array | float) -> Array:
        """Return the time at which even traffic would reach as many events."""
        angle = 2 * np.pi * (np.asarray(time) - self.peak) / self.period
        return np.asarray(time + self.amplitude * self.period / (2 * np.pi) * np.sin(angle))

    def time(self, evened: Array | float) -> Array:
        """Invert `evened`.

        >>> cycle = DailyCycle(24, 0.5, 18)
        >>> cycle.time(cycle.evened(np.array([3.0, 30.5]))).round(4)
        array([ 3. , 30.5])
        """
        grid = np.linspace(0.0, self.period, GRID + 1)
        first = self.evened(0.0)
        whole, rest = np.divmod(np.asarray(evened) - first, self.period)
        return np.asarray(whole * self.period + np.interp(rest, self.evened(grid) - first, grid))
