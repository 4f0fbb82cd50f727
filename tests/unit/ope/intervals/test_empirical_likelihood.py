"""Test the empirical likelihood interval on its own: an interval from six sums, and its coverage."""

from __future__ import annotations

import numpy as np
import pytest

from streameval.common.arrays import Array
from streameval.ope.intervals.empirical_likelihood import Extra, Means, distance, likely, reach
from support.likelihood_worlds import (
    CHI_SQUARED,
    PROMISED,
    WORLDS,
    any_of,
    extras,
    interval,
    means_of,
    missed,
    simulated,
)


@pytest.mark.parametrize("world", ["mild", "heavy", "hardly ever heavy"])
def test_intervals_hold_with_an_extra_event_of_the_largest_weight(world: str) -> None:
    means, truth = simulated(WORLDS[world], 0.03, 300, seed=8)
    assert missed(interval(means, heaviest=max(WORLDS[world].weights)), truth) <= PROMISED


def test_mass_that_was_not_seen_counts_as_the_worst_and_as_the_best() -> None:
    """Leave out a third of what the candidate does. Its reward may be anything."""
    events = 100_000
    reward = np.random.default_rng(0).random((1, events)) < 0.3
    lower, upper = interval(means_of(np.full((1, events), 2 / 3), reward.astype(float)))
    assert lower[0] == pytest.approx(0.2, abs=0.01)
    assert upper[0] == pytest.approx(0.2 + 1 / 3, abs=0.01)


def test_rewards_at_an_end_of_their_range_leave_the_interval_no_way_out_of_it() -> None:
    means, _ = simulated(WORLDS["heavy"], 0.0, 2_000, seed=3)
    lower, upper = interval(means)
    assert means.weight.max() > 1.4, "far from 1, as it may be by chance"
    assert np.all(lower == 0)
    assert np.all((upper >= 0) & (upper < 1))


def test_before_the_first_click_the_upper_bound_is_above_0() -> None:
    lower, upper = interval(means_of(np.ones((1, 1_000)), np.zeros((1, 1_000))))
    assert lower[0] == pytest.approx(0.0, abs=0.002)
    assert 0.002 < upper[0] < 0.005


def test_a_constant_added_to_all_rewards_moves_both_bounds_by_it() -> None:
    rng = np.random.default_rng(2)
    weight, reward = rng.choice([0.2, 1.0, 4.0], size=(5, 400)), rng.random((5, 400))
    plain, higher = means_of(weight, reward), means_of(weight, reward + 10)
    first = reach(plain, extras(plain), likely(plain, extras(plain), CHI_SQUARED))
    points = extras(higher, 10, 11)
    second = reach(higher, points, likely(higher, points, CHI_SQUARED))
    np.testing.assert_allclose(second[0] - 10, first[0], atol=1e-9)
    np.testing.assert_allclose(second[1] - 10, first[1], atol=1e-9)


def test_columns_are_independent() -> None:
    rng = np.random.default_rng(4)
    weight, reward = rng.choice([0.0, 1.0, 30.0], size=(6, 200)), rng.random((6, 200))
    together = interval(means_of(weight, reward))
    for row in range(len(weight)):
        alone = interval(means_of(weight[row : row + 1], reward[row : row + 1]))
        assert alone[0][0] == pytest.approx(together[0][row], rel=1e-12)
        assert alone[1][0] == pytest.approx(together[1][row], rel=1e-12)


def test_no_event_and_one_event_give_no_interval() -> None:
    nothing = Means(*np.full((6, 1), np.nan))
    assert np.isnan(interval(nothing)).all()
    assert np.isnan(interval(means_of(np.ones((1, 1)), np.ones((1, 1))))).all()


def test_weights_of_ten_to_the_fiftieth_give_an_interval() -> None:
    weight = np.ones((1, 500))
    weight[0, 7] = 1e50
    lower, upper = interval(means_of(weight, np.ones((1, 500))))
    assert np.isfinite(lower[0])
    assert lower[0] <= 1.0 <= upper[0]


def worst_by_force(weight: Array, term: Array, extra: tuple[float, float], allowed: float) -> float:
    """Return the lowest value over all directions of probabilities that the constraints leave."""
    w, u = np.append(weight, extra[0]), np.append(term, extra[1])
    count = len(w)
    constraints = np.stack([np.ones(count), w])
    gram = constraints @ constraints.T
    base = np.full(count, 1 / count)
    base = base + constraints.T @ np.linalg.solve(gram, np.array([1.0, 1.0]) - constraints @ base)
    direction = u - constraints.T @ np.linalg.solve(gram, constraints @ u)
    left = allowed - np.sum((count * base - 1) ** 2)
    return float(base @ u - np.sqrt(left) / count * np.linalg.norm(direction))


def test_the_bound_is_near_the_worst_of_all_probabilities() -> None:
    rng = np.random.default_rng(5)
    weight, reward = rng.choice([0.2, 1.0, 4.0], size=60), rng.random(60)
    means = means_of(weight[None], reward[None])
    for extra in ((0.0, 0.0), (1.0, 0.0), (9.0, 4.0)):
        point = Extra(*(np.array([number]) for number in (extra[0], extra[1], extra[1])))
        allowed = distance(means, point) + CHI_SQUARED
        actual = reach(means, any_of([point]), allowed)[0][0]
        assert actual == pytest.approx(worst_by_force(weight, weight * reward, extra, allowed[0]), rel=1e-9)


def test_an_infinite_weight_is_the_limit_of_large_ones() -> None:
    rng = np.random.default_rng(6)
    means = means_of(rng.choice([0.2, 1.0, 4.0], size=(1, 300)), rng.random((1, 300)))
    huge = Extra(np.array([1e7]), np.array([0.0]), np.array([1e7]))
    endless = Extra(np.array([np.inf]), np.array([0.0]), np.array([1.0]))
    allowed = distance(means, endless) + CHI_SQUARED
    for actual, limit in zip(
        reach(means, any_of([huge]), allowed), reach(means, any_of([endless]), allowed), strict=True
    ):
        assert actual[0] == pytest.approx(limit[0], abs=1e-5)
