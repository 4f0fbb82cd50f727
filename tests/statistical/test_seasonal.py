"""Measure mixtures with a season in worlds with a daily or weekly cycle and without one, beside the plain mixture.

Intervals are `drift_aware`. Figures are from the fifth day on, and from the third week on for a weekly profile.
"""

from __future__ import annotations

import time
from functools import cache

import numpy as np
import pytest

from streameval import Evaluator
from streameval.ope.core import Mixture
from streameval.ope.core.seasonal import SeasonText
from support.seasonal_worlds import PER_DAY, POLICIES, Looks, World, events, look

AFTER = 4
WORLDS = {
    "sine": World("sine", 0.026),
    "small sine": World("sine", 0.006),
    "peak": World("peak", 0.05),
    "still": World(),
    "walk": World(walk=0.02),
    "sine and walk": World("sine", 0.026, walk=0.01),
    "peak and random days": World("peak", 0.05, jumps=0.01),
    "weekend": World("weekend", 0.03),
    "flip": World("sine", 0.026, flips=8),
}


@cache
def looks(world: str, per_day: int) -> tuple[Looks, ...]:
    """Look at two runs of 11 days, or at one of 8 days if a day has many events."""
    days, runs = (11, 2) if per_day < 100_000 else (8, 1)
    return tuple(look(WORLDS[world], days, per_day, seed, after=AFTER) for seed in range(runs))


def relative_error(runs: tuple[Looks, ...]) -> float:
    return float(np.mean([run.relative_error() for run in runs]))


@pytest.mark.slow
@pytest.mark.parametrize("per_day", [50_000, 200_000])
@pytest.mark.parametrize(("world", "most"), [("sine", 0.6), ("peak", 0.6), ("still", 1.03), ("walk", 1.03)])
def test_the_error_falls_in_a_daily_cycle_and_stays_without_one(world: str, most: float, per_day: int) -> None:
    assert relative_error(looks(world, per_day)) <= most


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_intervals_of_values_cover(world: str) -> None:
    assert np.mean([run.coverage()[0, 1] for run in looks(world, 50_000)]) >= 0.92


@pytest.mark.slow
@pytest.mark.parametrize(("world", "least"), [("sine", 0.95), ("still", 0.95), ("peak", 0.9), ("walk", 0.88)])
def test_intervals_of_forecasts_cover(world: str, least: float) -> None:
    assert np.mean([np.nanmean(run.forecast) for run in looks(world, 50_000)]) >= least


@pytest.mark.slow
def test_a_cycle_that_changes_its_sign_costs_two_days() -> None:
    day = int(PER_DAY)
    plain, seasonal = np.mean([(run.error**2).mean(axis=2) for run in looks("flip", 50_000)], axis=0).T
    parts = (slice(4 * day), slice(4 * day, 5 * day), slice(6 * day, None))
    before, changed, later = (float(seasonal[part].mean() / plain[part].mean()) for part in parts)
    assert before <= 0.3
    assert changed <= 5
    assert later <= 1.1


@pytest.mark.slow
@pytest.mark.parametrize(("world", "most"), [("weekend", 0.6), ("still", 1.03)])
def test_a_weekly_profile_knows_weekends(world: str, most: float) -> None:
    assert look(WORLDS[world], 42, 50_000, seed=0, seasonal="7d", after=14).relative_error() <= most


@pytest.mark.slow
def test_a_season_costs_less_than_another_mixture() -> None:
    batch, _ = events(World("sine", 0.026).means(3, np.random.default_rng(1)), 50_000, np.random.default_rng(2))

    def cost(seasonal: SeasonText | None) -> float:
        evaluator = Evaluator(list(POLICIES), averages=[Mixture(seasonal=seasonal)], drift=None, promotion=None)
        started = time.thread_time()
        for first in range(0, len(batch), 2_000):
            evaluator.update(batch[first : first + 2_000])
        return time.thread_time() - started

    costs = [(cost("24h"), cost(None)) for _ in range(5)]  # in turns, because other tests only add time
    assert min(with_season for with_season, _ in costs) <= 2.0 * min(without for _, without in costs), costs
