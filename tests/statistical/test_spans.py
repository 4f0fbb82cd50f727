"""Results of adaptive averages if values cycle: their error, and how often bounds with drift cover the value now."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import pytest

from streameval import Evaluator
from streameval.common.arrays import Array
from streameval.events import EventBatch
from streameval.ope.core import AdaptiveDecay, AdaptiveWindow
from streameval.ope.estimators import IPS
from streameval.ope.intervals import Normal

World = Literal["sine", "still", "steady", "smooth"]
LABELS = ("adaptive_window", "adaptive_decay")
EVERY = 2_000


class Result(NamedTuple):
    """Hold the mean squared error of an average, and the share of looks with a bound that holds the value now."""

    error: float
    coverage: float


def truth(world: World, period: int, events: int, rng: np.random.Generator) -> Array:
    """Return the mean reward at each event."""
    time = np.arange(events)
    if world == "sine":
        return np.asarray(0.2 + 0.04 * np.sin(2 * np.pi * (time / period + rng.random())))
    if world == "steady":
        return 0.15 + 0.1 * time / events
    if world == "smooth":  # the mixture of users goes from one cluster to the next, as in the worlds of LastFM
        ends = 0.2 + 0.02 * rng.normal(size=events // period + 2)
        return np.interp(time / period, np.arange(len(ends)), ends)
    return np.full(events, 0.2)


def measured(world: World, period: int, events: int, runs: int) -> dict[str, Result]:
    """Return the results of both averages after the first quarter of some streams, with importance weights around 1."""
    errors: dict[str, list[float]] = {label: [] for label in LABELS}
    covered: dict[str, list[bool]] = {label: [] for label in LABELS}
    for run in range(runs):
        rng = np.random.default_rng([36, period, run])
        mean = truth(world, period, events, rng)
        evaluator = Evaluator(
            ["new"],
            [IPS()],
            [AdaptiveWindow(), AdaptiveDecay()],
            intervals={label: Normal(drift="include") for label in LABELS},
            drift=None,
            promotion=None,
        )
        for first in range(0, events, EVERY):
            weight = rng.gamma(2.0, 0.5, EVERY)
            reward = (rng.random(EVERY) < mean[first : first + EVERY]).astype(float)
            shown = {"new": 0.05 * weight}
            evaluator.update(EventBatch.from_arrays(reward=reward, propensity=np.full(EVERY, 0.05), policies=shown))
            if first + EVERY <= max(events // 4, 60_000):
                continue
            evaluator.fold_pending()
            report, now = evaluator.report(), mean[first + EVERY - 1]
            for label in LABELS:
                estimate = report.get("new", "ips", label)
                assert None not in (estimate.value, estimate.lower, estimate.upper)
                errors[label].append((estimate.value - now) ** 2)
                covered[label].append(estimate.lower <= now <= estimate.upper)
    return {label: Result(float(np.mean(errors[label])), float(np.mean(covered[label]))) for label in LABELS}


ONE_SPAN = {
    ("sine", 25_000, 200_000, 2): (874.0, 786.4),
    ("sine", 25_000, 300_000, 3): (829.3, 784.5),
    ("sine", 50_000, 400_000, 4): (1076.9, 771.4),
    ("sine", 60_000, 400_000, 3): (351.7, 381.9),
    ("still", 0, 500_000, 8): (12.50, 4.731),
    ("steady", 0, 500_000, 8): (19.00, 24.01),
    ("smooth", 100_000, 500_000, 8): (20.99, 22.78),
}
"""Mean squared errors of window and decay in 1e-6, measured once with these seeds and the rate over the span alone."""


def ratios(results: dict[str, Result], before: tuple[float, float]) -> list[float]:
    """Return the errors of window and decay over earlier ones."""
    return [results[label].error * 1e6 / error for label, error in zip(LABELS, before, strict=True)]


def test_adaptive_averages_follow_a_cycle_shorter_than_the_span() -> None:
    results = measured("sine", 25_000, 200_000, 2)
    assert max(ratios(results, ONE_SPAN["sine", 25_000, 200_000, 2])) < 0.5
    assert min(result.coverage for result in results.values()) >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in ONE_SPAN if case[0] == "sine" and case[3] > 2])
def test_a_cycle_of_about_the_span_costs_half_the_error_at_most(case: tuple[World, int, int, int]) -> None:
    results = measured(*case)
    assert max(ratios(results, ONE_SPAN[case])) < 0.5
    assert min(result.coverage for result in results.values()) >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize(
    ("period", "events", "least"), [(100_000, 600_000, 0.93), (200_000, 800_000, 0.93), (400_000, 1_200_000, 0.90)]
)
def test_intervals_with_drift_cover_longer_cycles(period: int, events: int, least: float) -> None:
    results = measured("sine", period, events, 3)
    assert min(result.coverage for result in results.values()) >= least


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in ONE_SPAN if case[0] != "sine"])
def test_worlds_without_a_cycle_lose_two_percent_at_most(case: tuple[World, int, int, int]) -> None:
    assert max(ratios(measured(*case), ONE_SPAN[case])) <= 1.02
