"""Find a cycle of the day or of the week in the hourly means of a log.

Hourly means lose their level and steady drift to a centred moving average over one period. The first harmonics of each
period then estimate the profile once a period. The profile exists if its mean is large beside its spread over the
periods. Drift moves harmonics at random from period to period, which a test of the means of hours would take for a
cycle. The moving average costs one period, and a spread needs three: a cycle of the day needs four days.

Source: Box, Time series analysis, 2015, ch. 9, for the moving average; Satterthwaite, An approximate distribution of
estimates of variance components, 1946, for the degrees of freedom.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import fdtrc

from streameval.common.arrays import ROUNDING, Array, ratio
from streameval.common.text import significant
from streameval.events import EventBatch
from streameval.ope.candidates import EvaluatedPolicy
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.policies.coded import fill, prepared
from streameval.ope.policies.logged import LOGGING

HOUR = 3600
PERIODS = {"daily": 24, "weekly": 168}
"""Periods to look for, in hours."""
UNITS = {"daily": "days", "weekly": "weeks"}
LEAST_PERIODS = 4
HARMONICS = 4
ERROR = 0.01
"""The probability of finding a cycle in a log without one."""
LEAST_FILLED = 0.5
"""The smallest share of hours with events."""
TOO_SHORT = "the log is too short to tell a cycle from drift (4 days needed): decide over whole days"


class Cycle(NamedTuple):
    """Hold the amplitude of the first harmonic, and the probability of such a profile without a cycle."""

    amplitude: float
    probability: float


def find_cycle(means: Array, period: int) -> Cycle | None:
    """Test hourly means for a cycle, None if they are too few or too sparse for an answer.

    Args:
        means: the mean of each hour, NaN without events [hours]
        period: in hours, an even number

    >>> hours = np.arange(7 * 24)
    >>> noise = np.random.default_rng(1).normal(0, 0.1, hours.size)
    >>> found = find_cycle(np.sin(2 * np.pi * hours / 24) + noise, 24)
    >>> round(found.amplitude, 1), found.probability < 1e-6
    (1.0, True)
    """
    known = ~np.isnan(means)
    periods = len(means) // period - 1
    if periods < LEAST_PERIODS - 1 or known.mean() < LEAST_FILLED:
        return None
    weight = np.ones(period + 1)
    weight[[0, -1]] = 0.5
    half = period // 2
    sums = [np.convolve(column, weight, mode="valid") for column in (np.where(known, means, 0.0), known * 1.0)]
    level = ratio(*sums)
    deviations = np.nan_to_num((means[half:-half] - level)[: periods * period])
    deviations[np.abs(deviations) <= ROUNDING * np.nanmax(np.abs(level))] = 0.0
    angles = 2j * np.pi * np.outer(np.arange(period), np.arange(1, HARMONICS + 1)) / period
    coefficients = 2 / period * deviations.reshape(periods, period) @ np.exp(-angles)
    mean = coefficients.mean(axis=0)
    amplitude = float(np.abs(mean[0]))
    signal = periods * (np.abs(mean) ** 2).sum()
    spread = (np.abs(coefficients - mean) ** 2).sum(axis=0) / (periods - 1)
    if not spread.any():
        return Cycle(amplitude, 0.0 if signal > 0 else 1.0)
    freedom = 2 * spread.sum() ** 2 / (spread**2).sum()
    probability = fdtrc(freedom, freedom * (periods - 1), signal / spread.sum())
    return Cycle(amplitude, float(probability))


class HourlyMeans:
    """Sum up a log by hour: the value of production, and the lift of each candidate that does not learn.

    Args:
        policies: production first
        coded: the policies in code
        reward_range: the lowest and the highest reward
    """

    def __init__(
        self, policies: Sequence[str], coded: Mapping[str, EvaluatedPolicy], reward_range: tuple[float, float]
    ) -> None:
        self._coded, self._range = prepared(coded), reward_range
        self.policies = tuple(name for name in policies if name not in coded or name in self._coded)
        self._sums: dict[int, Array] = {}

    def update(self, batch: EventBatch) -> None:
        """Add events. An event without a time, or with a reward out of range, is left out."""
        low, high = self._range
        batch = batch.take((batch.reward >= low) & (batch.reward <= high) & np.isfinite(batch.timestamp))
        if not len(batch):
            return
        named = batch.with_policies(policy for policy in self.policies if policy != LOGGING)
        evidence = Evidence.from_batch(fill(named, self._coded)[0], self.policies, len(batch))
        value = evidence.importance_weight * evidence.reward[:, None]
        weight = evidence.sample_weight
        value[:, 1:] -= value[:, :1]
        weight = np.where(weight[:, :1] > 0, weight, 0.0)
        numbers, hours = np.unique(np.floor(batch.timestamp / HOUR), return_inverse=True)
        added = np.zeros((len(numbers), 2, len(self.policies)))
        np.add.at(added, hours, np.stack([weight, weight * value], axis=1))
        for number, sums in zip(numbers.tolist(), added, strict=True):
            before = self._sums.get(int(number))
            self._sums[int(number)] = sums if before is None else before + sums

    def means(self) -> Array:
        """Return the mean of each hour, of production's value and of each lift, NaN without events [hours, P].

        Of several parts of the log with more than a day between them, the longest counts.
        """
        hours = np.array(sorted(self._sums), dtype=np.int64)
        parts = np.split(hours, np.flatnonzero(np.diff(hours) > PERIODS["daily"]) + 1)
        part = max(parts, key=len)
        means = np.full((part[-1] - part[0] + 1 if len(part) else 0, len(self.policies)), np.nan)
        for hour in part.tolist():
            weight, total = self._sums[hour]
            means[hour - part[0]] = ratio(total, weight)
        return means

    def findings(self) -> Iterator[str]:
        """Yield a sentence for each cycle of the log, or one about why nothing can be said."""
        means, least = self.means(), LEAST_PERIODS * PERIODS["daily"]
        if len(means) < least:
            if len(means):
                yield TOO_SHORT
            return
        names = ["production's value", *(f"the lift of {name!r}" for name in self.policies[1:])]
        tests = [
            (kind, name, found)
            for kind, period in PERIODS.items()
            for name, column in zip(names, means.T, strict=True)
            if (found := find_cycle(column, period)) is not None
        ]
        for kind, name, found in tests:
            if found.probability < ERROR / len(tests):
                size = significant(found.amplitude, 2)
                yield f"a {kind} cycle of {name} of +-{size}: the rule needs whole {UNITS[kind]}"
