"""Simulate streams with a daily or weekly cycle and known values, and look at mixtures with and without a season."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streameval import Evaluator
from streameval.events import EventBatch
from streameval.ope.core import Mixture
from streameval.ope.core.seasonal import SeasonText
from streameval.ope.estimators import IPS
from streameval.ope.report import Report

Array = NDArray[np.float64]
HOURS_OF_DAY, HOUR, PARTS = 24, 3_600.0, 4
MONDAY = 1_699_833_600.0
"""The Monday on which streams start, at midnight UTC."""
ACTIONS = np.array([1.6, 1.2, 0.8, 0.4])
"""How strongly each action follows the cycle."""
BASE = np.array([0.16, 0.14, 0.12, 0.1])
POLICIES = {
    "one": np.array([0.55, 0.15, 0.15, 0.15]),
    "two": np.array([0.15, 0.15, 0.15, 0.55]),
    "three": np.array([0.4, 0.3, 0.2, 0.1]),
}
PLAIN = "plain"
EVERY = 5
"""Parts between looks, so that they fall on all parts of hours."""
PER_DAY = HOURS_OF_DAY * PARTS / EVERY
"""Looks in a day."""


@dataclass(frozen=True)
class World:
    """Describe the mean reward of the actions.

    Attributes:
        cycle: `sine`, `peak` (in the evening), `block` (four hours of the evening), `weekend` (a peak, and weekends
            with more reward and another peak) or none
        size: the amplitude of the cycle
        walk: the standard deviation of the random walk of each action in a day
        jumps: the standard deviation of the level of each day and action
        flips: the day at which the cycle changes its sign
    """

    cycle: str = ""
    size: float = 0.0
    walk: float = 0.0
    jumps: float = 0.0
    flips: float = np.inf

    def means(self, days: int, rng: np.random.Generator) -> Array:
        """Return the mean reward in each part of an hour, [parts, actions]."""
        hour = np.arange(days * HOURS_OF_DAY * PARTS) / PARTS
        of_day, day = hour % HOURS_OF_DAY, hour // HOURS_OF_DAY
        shape = np.zeros(len(hour))
        peak = np.exp(-(((of_day - 20) / (0.06 * HOURS_OF_DAY)) ** 2) / 2)
        if self.cycle == "sine":
            shape = np.sin(2 * np.pi * of_day / HOURS_OF_DAY)
        elif self.cycle == "peak":
            shape = peak
        elif self.cycle == "block":
            shape = ((of_day >= 18) & (of_day < 22)).astype(float)
        elif self.cycle == "weekend":
            noon = np.exp(-(((of_day - 12) / (0.06 * HOURS_OF_DAY)) ** 2) / 2)
            shape = np.where(day % 7 >= 5, 0.7 + noon, peak)
        shape = np.where(hour < HOURS_OF_DAY * self.flips, shape, -shape)
        moved = rng.normal(0.0, self.walk / np.sqrt(HOURS_OF_DAY * PARTS), (len(hour), len(BASE))).cumsum(axis=0)
        moved += rng.normal(0.0, self.jumps, (days, len(BASE))).repeat(HOURS_OF_DAY * PARTS, axis=0)
        return np.clip(BASE + self.size * shape[:, None] * ACTIONS + moved, 0.0, 1.0)


@dataclass(frozen=True)
class Looks:
    """Hold what two mixtures say at each look, with the truth.

    Attributes:
        error: the estimates of values less the truth [looks, averages, policies]
        covered: whether the intervals of values and of lifts cover [2, looks, averages, policies]
        width: the mean width of the intervals of values [averages, policies]
        forecast: whether the intervals of forecasts cover, NaN without a forecast [looks, policies, hours ahead]
    """

    error: Array
    covered: Array
    width: Array
    forecast: Array

    def relative_error(self) -> float:
        """Return the mean squared error with a season over the one without."""
        plain, seasonal = (self.error**2).mean(axis=(0, 2))
        return float(seasonal / plain)

    def coverage(self) -> Array:
        """Return the shares of covered values and lifts without and with a season, [2, averages]."""
        return np.asarray(np.nanmean(self.covered, axis=(1, 3)))


def events(means: Array, per_day: int, rng: np.random.Generator) -> tuple[EventBatch, Array]:
    """Draw a stream with traffic that follows the day, and return the number of events before the end of each part."""
    hours = np.arange(len(means) // PARTS)
    traffic = 1.0 + 0.6 * np.sin(2 * np.pi * (hours - 14) / HOURS_OF_DAY)
    numbers = np.round(per_day / HOURS_OF_DAY * traffic).astype(int)
    place = np.concatenate([index + np.sort(rng.random(count)) for index, count in enumerate(numbers)])
    times = HOUR * place
    action = rng.integers(len(BASE), size=len(place))
    reward = (rng.random(len(place)) < means[(place * PARTS).astype(int), action]).astype(float)
    shown = {name: policy[action] for name, policy in POLICIES.items()}
    propensity = np.full(len(place), 1 / len(BASE))
    batch = EventBatch.from_arrays(reward=reward, propensity=propensity, policies=shown, timestamp=MONDAY + times)
    return batch, np.searchsorted(place * PARTS, 1 + np.arange(len(means)))


def look(
    world: World, days: int, per_day: int, seed: int, seasonal: SeasonText = "24h", after: float = 4, block: int = 100
) -> Looks:
    """Follow a stream with both mixtures, and look at their Reports from some day on."""
    rng = np.random.default_rng([36, seed])
    means = world.means(days, rng)
    batch, ends = events(means, per_day, rng)
    averages = [Mixture(name=PLAIN), Mixture(name="seasonal", seasonal=seasonal)]
    evaluator = Evaluator(list(POLICIES), [IPS()], averages, drift=None, promotion=None, block=block)
    production = np.full(len(BASE), 1 / len(BASE))
    truth = means @ np.stack([production, *POLICIES.values()]).T
    start, looks, forecasts = 0, [], []
    for part in range(0, len(means), EVERY):
        evaluator.update(batch[start : ends[part]])
        start = ends[part]
        if part >= HOURS_OF_DAY * PARTS * after:
            report = evaluator.report()
            looks.append(_compared(report, truth[part]))
            forecasts.append(_forecast(report, truth[part + PARTS :: PARTS][:HOURS_OF_DAY]))
    error, covered, width = (np.array(numbers) for numbers in zip(*looks, strict=True))
    return Looks(error, covered.swapaxes(0, 1), width.mean(axis=0), np.array(forecasts))


def _forecast(report: Report, truth: Array) -> Array:
    """Return whether the intervals of forecasts of the next hours cover the truth, [policies, hours]."""
    covered = np.full((1 + len(POLICIES), HOURS_OF_DAY), np.nan)
    rows = [estimate for estimate in report.estimates if estimate.average != PLAIN]
    for place, row in enumerate(rows):
        for hour, (forecast, values) in enumerate(zip(row.forecast, truth, strict=False)):
            assert forecast.lower is not None
            assert forecast.upper is not None
            covered[place, hour] = forecast.lower <= values[place] <= forecast.upper
    return covered


def _compared(report: Report, truth: Array) -> tuple[Array, Array, Array]:
    """Return the errors, whether intervals of values and lifts cover, and widths, [averages, policies]."""
    names = [report.production, *POLICIES]
    error, width = np.empty((2, len(names))), np.empty((2, len(names)))
    covered = np.full((2, 2, len(names)), np.nan)
    for estimate in report.estimates:
        place = int(estimate.average != PLAIN), names.index(estimate.policy)
        value, lift = truth[place[1]], truth[place[1]] - truth[0]
        assert estimate.value is not None
        assert estimate.lower is not None
        assert estimate.upper is not None
        error[place], width[place] = estimate.value - value, estimate.upper - estimate.lower
        covered[0][place] = estimate.lower <= value <= estimate.upper
        if estimate.lift_lower is not None and estimate.lift_upper is not None:
            covered[1][place] = estimate.lift_lower <= lift <= estimate.lift_upper
    return error, covered, width
