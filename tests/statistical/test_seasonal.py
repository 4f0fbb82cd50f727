"""Measure mixtures with a season in worlds with a daily or weekly cycle and without one, beside the plain mixture.

Coverage is of values by `drift_aware`, from the fifth day on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
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
    "four hours": World("block", 0.05),
    "still": World(),
    "slow walk": World(walk=0.005),
    "fast walk": World(walk=0.02),
    "sine and walk": World("sine", 0.026, walk=0.01),
    "random days": World(jumps=0.02),
    "peak and random days": World("peak", 0.05, jumps=0.01),
    "weekend": World("weekend", 0.03),
    "flip": World("sine", 0.026, flips=8),
}


@cache
def looks(world: str, per_day: int) -> tuple[Looks, ...]:
    days = 14 if per_day < 100_000 else 9
    return tuple(look(WORLDS[world], days, per_day, seed, after=AFTER) for seed in range(2))


def relative_error(runs: tuple[Looks, ...]) -> float:
    return float(np.mean([run.relative_error() for run in runs]))


@pytest.mark.slow
@pytest.mark.parametrize("per_day", [50_000, 200_000])
@pytest.mark.parametrize(
    ("world", "most"), [("sine", 0.6), ("small sine", 0.6), ("peak", 0.6), ("still", 1.03), ("fast walk", 1.03)]
)
def test_the_error_falls_in_a_daily_cycle_and_stays_without_one(world: str, most: float, per_day: int) -> None:
    assert relative_error(looks(world, per_day)) <= most


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_intervals_of_values_cover(world: str) -> None:
    coverage = np.mean([run.coverage() for run in looks(world, 50_000)], axis=0)
    assert coverage[0, 1] >= 0.92
    assert coverage[0, 1] >= min(0.95, coverage[0, 0]) - 0.02


@pytest.mark.slow
@pytest.mark.parametrize(("world", "least"), [("sine", 0.95), ("still", 0.95), ("peak", 0.9), ("fast walk", 0.88)])
def test_intervals_of_forecasts_cover(world: str, least: float) -> None:
    assert np.mean([np.nanmean(run.forecast) for run in looks(world, 50_000)]) >= least


@pytest.mark.slow
def test_a_cycle_that_changes_its_sign_costs_a_day() -> None:
    day = int(PER_DAY)
    squares = sum((run.error**2).mean(axis=2) for run in looks("flip", 50_000))
    first = 4 * day
    before, changed, later = (
        part[:, 1].mean() / part[:, 0].mean()
        for part in (squares[:first], squares[first : first + day], squares[first + 2 * day :])
    )
    assert before <= 0.3
    assert changed <= 5
    assert later <= 1.1


@pytest.mark.slow
@pytest.mark.parametrize(("world", "most"), [("weekend", 0.6), ("still", 1.03)])
def test_a_weekly_profile_knows_weekends(world: str, most: float) -> None:
    runs = tuple(look(WORLDS[world], 28, 50_000, seed, seasonal="7d", after=14) for seed in range(1))
    assert relative_error(runs) <= most


@pytest.mark.slow
def test_a_season_costs_at_most_the_fold_of_another_mixture(quickest: Callable[..., float] | None = None) -> None:
    batch, _ = events(World("sine", 0.026).means(3, np.random.default_rng(1)), 50_000, np.random.default_rng(2))

    def cost(seasonal: SeasonText | None) -> float:
        evaluator = Evaluator(list(POLICIES), averages=[Mixture(seasonal=seasonal)], drift=None, promotion=None)
        start = time.process_time()
        for first in range(0, len(batch), 2_000):
            evaluator.update(batch[first : first + 2_000])
        return time.process_time() - start

    plain, seasonal = (min(cost(kind) for _ in range(3)) for kind in (None, "24h"))
    assert seasonal <= 2.0 * plain
