"""Test how often intervals by empirical likelihood miss a lift."""

from __future__ import annotations

import numpy as np
import pytest

from streameval.common.arrays import Array
from streameval.ope.estimators import TermRange
from streameval.ope.intervals.empirical_likelihood import Extra, Means, likely, reach
from support.likelihood_worlds import (
    CHI_SQUARED,
    PROMISED,
    RUNS,
    WORLDS,
    World,
    any_of,
    missed,
)


def simulated_lift(world: World, value: float, events: int, seed: int, production: Array) -> tuple[Means, float]:
    """Simulate means of paired differences to a policy with these weights, of many logs at once, and the true lift."""
    rng = np.random.default_rng(seed)
    weight, share, chance, _ = world.table(value)
    seen = rng.multinomial(events, share, size=RUNS)
    rewarded = rng.binomial(seen, chance)
    apart = weight - production
    sums = (seen @ weight, seen @ weight**2, rewarded @ apart, rewarded @ (apart * weight), rewarded @ apart**2)
    return Means(np.full(RUNS, float(events)), *(total / events for total in sums)), float((apart * share) @ chance)


@pytest.mark.parametrize("named", [False, True], ids=["the logging policy", "a named policy"])
@pytest.mark.parametrize("events", [300, 2_000, 20_000])
@pytest.mark.parametrize("value", [0.3, 0.03])
@pytest.mark.parametrize("world", [world for world in WORLDS if world != "production"])
def test_the_lift_over_production_is_missed_no_more_often(world: str, value: float, events: int, named: bool) -> None:
    weight, share, _, _ = WORLDS[world].table(value)
    production = np.sqrt(weight) / (np.sqrt(weight) @ share) if named else np.ones(len(weight))
    means, truth = simulated_lift(WORLDS[world], value, events, 10, production)
    heaviest = production.max()
    reward = TermRange.between((0.0, 0.0), (0.0, 1.0), np.full(2, np.inf), np.ones(2))
    lift = reward.over_production(1, heaviest, np.ones(2))
    one = np.ones(RUNS)
    weights = (0.0, 1.0, np.inf)
    points = any_of(
        [
            Extra(weight_of_extra * one, lift.lowest(weight_of_extra) * one, lift.highest(weight_of_extra) * one)
            for weight_of_extra in weights
        ]
    )
    assert missed(reach(means, points, likely(means, points, CHI_SQUARED)), truth) <= PROMISED
