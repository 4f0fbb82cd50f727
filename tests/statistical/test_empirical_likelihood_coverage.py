"""Coverage and width of the empirical likelihood interval over many simulated logs."""

from __future__ import annotations

import numpy as np
import pytest

from streameval.ope.intervals.empirical_likelihood import Means
from support.likelihood_worlds import (
    CHI_SQUARED,
    PROMISED,
    WORLDS,
    Pair,
    interval,
    means_of,
    missed,
    simulated,
)


@pytest.mark.slow
@pytest.mark.parametrize("events", [300, 2_000, 20_000])
@pytest.mark.parametrize("value", [0.3, 0.03])
@pytest.mark.parametrize("world", WORLDS)
def test_a_single_look_misses_at_most_at_the_nominal_rate(world: str, value: float, events: int) -> None:
    means, truth = simulated(WORLDS[world], value, events, seed=7)
    assert missed(interval(means), truth) <= PROMISED


def gaussian(means: Means) -> Pair:
    width = np.sqrt(CHI_SQUARED * np.maximum(means.term_square - means.term**2, 0) / (means.events - 1))
    return means.term - width, means.term + width


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "value", "least_missed"), [("heavy", 0.03, 0.7), ("heavy", 0.3, 0.3), ("mild", 0.03, 0.1)]
)
def test_the_gaussian_interval_fails_where_it_holds(world: str, value: float, least_missed: float) -> None:
    means, truth = simulated(WORLDS[world], value, 300, seed=7)
    assert missed(gaussian(means), truth) > least_missed
    assert missed(interval(means), truth) <= PROMISED


@pytest.mark.slow
def test_it_is_not_wider_than_the_gaussian_one_by_much_where_that_holds() -> None:
    means, _ = simulated(WORLDS["mild, better where it differs"], 0.3, 20_000, seed=7)
    ours, other = interval(means), gaussian(means)
    assert np.mean(ours[1] - ours[0]) < np.mean(other[1] - other[0])


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.997, 0.9995])
@pytest.mark.parametrize("world", ["production", "mild", "heavy", "hardly ever heavy"])
def test_decayed_sums_hold_what_is_promised_too(world: str, alpha: float) -> None:
    runs, events = 1_500, round(6 / (1 - alpha))
    rng = np.random.default_rng(9)
    weight, share, chance, truth = WORLDS[world].table(0.03)
    kind = rng.choice(len(weight), p=share, size=(runs, events))
    reward = (rng.random((runs, events)) < chance[kind]).astype(float)
    means = means_of(weight[kind], reward, alpha ** np.arange(events)[::-1])
    assert means.events[0] == pytest.approx(2 / (1 - alpha), rel=0.01)
    assert missed(interval(means), truth) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / runs)
