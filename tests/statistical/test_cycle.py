"""Measure how often a cycle is found in hourly means with one, and with drift alone.

Sizes are in standard errors of the mean of a day.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from streameval.common.arrays import Array
from streameval.ope.cycle import find_cycle

World = Literal["still", "walk", "fast walk", "linear", "jumps", "half days", "sine", "large sine", "peak"]
RUNS = 1_000


def means(world: World, days: int, rng: np.random.Generator) -> Array:
    """Draw hourly means."""
    day = np.arange(24 * days) / 24
    moved: Array = np.zeros(len(day))
    if world in ("walk", "fast walk"):
        moved = rng.normal(0, (1 if world == "walk" else 5) / np.sqrt(24), len(day)).cumsum()
    elif world == "linear":
        moved = 2 * day
    elif world == "jumps":
        moved = rng.normal(0, 3, days).repeat(24)
    elif world == "half days":
        moved = rng.normal(0, 3, 2 * days + 1).repeat(12)[rng.integers(12) :][: len(day)]
    elif world in ("sine", "large sine"):
        moved = (4 if world == "sine" else 10) * np.sin(2 * np.pi * (day + rng.random()))
    elif world == "peak":
        moved = 10 * np.exp(-(((day + rng.random()) % 1 - 0.5) ** 2) / (2 * 0.06**2))
    return moved + rng.normal(0, np.sqrt(24), len(day))


def found(world: World, days: int) -> float:
    """Return the share of runs in which a cycle is found at an error of .01."""
    rng = np.random.default_rng([44, days])
    cycles = [find_cycle(means(world, days, rng), 24) for _ in range(RUNS)]
    return float(np.mean([cycle is not None and cycle.probability < 0.01 for cycle in cycles]))


@pytest.mark.parametrize("days", [4, 5, 7, 14])
@pytest.mark.parametrize("world", ["still", "walk", "fast walk", "linear", "jumps"])
def test_drift_is_hardly_ever_taken_for_a_cycle(world: World, days: int) -> None:
    assert found(world, days) <= 0.02


@pytest.mark.parametrize("days", [4, 5, 7, 14])
def test_pieces_of_half_a_day_are_rarely_taken_for_a_cycle(days: int) -> None:
    assert found("half days", days) <= 0.05


@pytest.mark.parametrize(
    ("world", "days", "least"),
    [
        ("sine", 4, 0.35),
        ("sine", 5, 0.70),
        ("sine", 7, 0.97),
        ("large sine", 4, 0.99),
        ("peak", 4, 0.40),
        ("peak", 5, 0.70),
        ("peak", 7, 0.97),
    ],
)
def test_a_cycle_is_found_with_this_power(world: World, days: int, least: float) -> None:
    assert found(world, days) >= least
