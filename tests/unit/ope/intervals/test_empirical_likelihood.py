"""The empirical likelihood interval on its own: six sums in, an interval out; does it hold what it promises?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import pytest

from streameval.common.arrays import Array
from streameval.ope.estimators import TermRange
from streameval.ope.intervals.empirical_likelihood import Extra, Means, distance, likely, reach
from support.extra_events import any_of

CHI_SQUARED = NormalDist().inv_cdf(0.975) ** 2
RUNS = 4_000
Pair = tuple[Array, Array]


class World(NamedTuple):
    """Weights, how often each comes (they average to 1), and by how much each one's reward exceeds the mean's."""

    weights: Sequence[float]
    shares: Sequence[float]
    leaning: float = 0.0

    def table(self, value: float) -> tuple[Array, Array, Array, float]:
        """Weights, their probabilities, the mean reward of each, and the true value."""
        share = np.array(self.shares) / np.sum(self.shares)
        weight = np.array(self.weights) / (np.array(self.weights) @ share)
        reward = value * (1 + np.linspace(-self.leaning, self.leaning, len(weight)))
        return weight, share, reward, float((weight * share) @ reward)


WORLDS = {
    "production": World([1.0], [1.0]),
    "close": World([0.99, 1.01], [0.5, 0.5]),
    "mild": World([0.0, 0.5, 2.0], [0.25, 0.5, 0.25]),
    "mild, better where it differs": World([0.0, 0.5, 2.0], [0.25, 0.5, 0.25], leaning=0.8),
    "mild, worse where it differs": World([0.0, 0.5, 2.0], [0.25, 0.5, 0.25], leaning=-0.8),
    "heavy": World([0.0, 0.5, 50.0], [0.1, 0.89, 0.011]),
    "heavy, better where it differs": World([0.0, 0.5, 50.0], [0.1, 0.89, 0.011], leaning=0.8),
    "heavy, worse where it differs": World([0.0, 0.5, 50.0], [0.1, 0.89, 0.011], leaning=-0.8),
    "hardly ever heavy": World([0.1, 0.9, 50.0], [0.3, 0.6986, 0.0014]),
    "all sorts": World([0.0, 0.3, 1.0, 5.0, 20.0, 50.0], [0.5, 0.25, 0.15, 0.06, 0.03, 0.01]),
}


def extras(means: Means, low: float = 0.0, high: float = 1.0, heaviest: float = np.inf) -> Extra:
    """No weight, a weight of 1, and the heaviest, for the terms `w r` of rewards between `low` and `high`."""
    one = np.ones_like(means.events)
    per_weight = 1.0 if np.isinf(heaviest) else heaviest
    return any_of(
        [
            Extra(0 * one, 0 * one, 0 * one),
            Extra(one, low * one, high * one),
            Extra(heaviest * one, low * per_weight * one, high * per_weight * one),
        ]
    )


def interval(means: Means, heaviest: float = np.inf) -> Pair:
    points = extras(means, heaviest=heaviest)
    return reach(means, points, likely(means, points, CHI_SQUARED))


def means_of(weight: Array, reward: Array, q: Array | None = None) -> Means:
    """The means of events along the last axis, each counting `q`."""
    q = np.ones(np.shape(weight)[-1]) if q is None else q
    term = weight * reward
    columns = (weight, weight**2, term, term * weight, term**2)
    count = np.full(np.shape(weight)[:-1], q.sum() ** 2 / (q**2).sum())
    return Means(count, *((column @ q) / q.sum() for column in columns))


def simulated(world: World, value: float, events: int, seed: int) -> tuple[Means, float]:
    """The means of many logs of 0/1 rewards at once, and the true value."""
    rng = np.random.default_rng(seed)
    weight, share, chance, truth = world.table(value)
    seen = rng.multinomial(events, share, size=RUNS)
    rewarded = rng.binomial(seen, chance)
    sums = (seen @ weight, seen @ weight**2, rewarded @ weight, rewarded @ weight**2, rewarded @ weight**2)
    return Means(np.full(RUNS, float(events)), *(each / events for each in sums)), truth


def missed(bounds: Pair, truth: float) -> float:
    lower, upper = bounds
    return float(np.mean((lower > truth + 1e-12) | (upper < truth - 1e-12)))


PROMISED = 0.05 + 3 * np.sqrt(0.05 * 0.95 / RUNS)


@pytest.mark.slow
@pytest.mark.parametrize("events", [300, 2_000, 20_000])
@pytest.mark.parametrize("value", [0.3, 0.03])
@pytest.mark.parametrize("world", WORLDS)
def test_one_look_misses_no_more_often_than_promised(world: str, value: float, events: int) -> None:
    means, truth = simulated(WORLDS[world], value, events, seed=7)
    assert missed(interval(means), truth) <= PROMISED


@pytest.mark.parametrize("world", ["mild", "heavy", "hardly ever heavy"])
def test_one_more_event_of_the_largest_weight_there_is_will_do_too(world: str) -> None:
    means, truth = simulated(WORLDS[world], 0.03, 300, seed=8)
    assert missed(interval(means, heaviest=max(WORLDS[world].weights)), truth) <= PROMISED


def gaussian(means: Means) -> Pair:
    width = np.sqrt(CHI_SQUARED * np.maximum(means.term_square - means.term**2, 0) / (means.events - 1))
    return means.term - width, means.term + width


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "value", "at_least"), [("heavy", 0.03, 0.7), ("heavy", 0.3, 0.3), ("mild", 0.03, 0.1)]
)
def test_the_gaussian_interval_fails_where_it_holds(world: str, value: float, at_least: float) -> None:
    means, truth = simulated(WORLDS[world], value, 300, seed=7)
    assert missed(gaussian(means), truth) > at_least
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


def simulated_lift(world: World, value: float, events: int, seed: int, production: Array) -> tuple[Means, float]:
    """Means of the paired differences to a policy with these weights, of many logs at once, and the true lift."""
    rng = np.random.default_rng(seed)
    weight, share, chance, _ = world.table(value)
    seen = rng.multinomial(events, share, size=RUNS)
    rewarded = rng.binomial(seen, chance)
    apart = weight - production
    sums = (seen @ weight, seen @ weight**2, rewarded @ apart, rewarded @ (apart * weight), rewarded @ apart**2)
    return Means(np.full(RUNS, float(events)), *(each / events for each in sums)), float((apart * share) @ chance)


@pytest.mark.parametrize("named", [False, True], ids=["the logging policy", "a named policy"])
@pytest.mark.parametrize("events", [300, 2_000, 20_000])
@pytest.mark.parametrize("value", [0.3, 0.03])
@pytest.mark.parametrize("world", [world for world in WORLDS if world != "production"])
def test_the_lift_over_production_is_missed_no_more_often_either(
    world: str, value: float, events: int, named: bool
) -> None:
    weight, share, _, _ = WORLDS[world].table(value)
    production = np.sqrt(weight) / (np.sqrt(weight) @ share) if named else np.ones(len(weight))
    means, truth = simulated_lift(WORLDS[world], value, events, 10, production)
    heaviest = production.max()
    reward = TermRange.between((0.0, 0.0), (0.0, 1.0), np.full(2, np.inf), np.ones(2))
    lift = reward.over_production(1, heaviest, np.ones(2))
    one = np.ones(RUNS)
    weights = (0.0, 1.0, np.inf)
    points = any_of([Extra(each * one, lift.lowest(each) * one, lift.highest(each) * one) for each in weights])
    assert missed(reach(means, points, likely(means, points, CHI_SQUARED)), truth) <= PROMISED


def test_mass_that_was_not_seen_counts_as_the_worst_and_as_the_best() -> None:
    """A third of what the candidate does has not come yet: its reward may be anything."""
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


def test_before_the_first_click_it_does_not_say_that_there_will_be_none() -> None:
    lower, upper = interval(means_of(np.ones((1, 1_000)), np.zeros((1, 1_000))))
    assert lower[0] == pytest.approx(0.0, abs=0.002)
    assert 0.002 < upper[0] < 0.005


def test_a_constant_in_every_reward_moves_both_ends_by_it() -> None:
    rng = np.random.default_rng(2)
    weight, reward = rng.choice([0.2, 1.0, 4.0], size=(5, 400)), rng.random((5, 400))
    plain, higher = means_of(weight, reward), means_of(weight, reward + 10)
    first = reach(plain, extras(plain), likely(plain, extras(plain), CHI_SQUARED))
    points = extras(higher, 10, 11)
    second = reach(higher, points, likely(higher, points, CHI_SQUARED))
    np.testing.assert_allclose(second[0] - 10, first[0], atol=1e-9)
    np.testing.assert_allclose(second[1] - 10, first[1], atol=1e-9)


def test_columns_know_nothing_of_each_other() -> None:
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


def test_weights_of_ten_to_the_fiftieth_do_not_break_it() -> None:
    weight = np.ones((1, 500))
    weight[0, 7] = 1e50
    lower, upper = interval(means_of(weight, np.ones((1, 500))))
    assert np.isfinite(lower[0])
    assert lower[0] <= 1.0 <= upper[0]


def worst_by_force(weight: Array, term: Array, extra: tuple[float, float], allowed: float) -> float:
    """The lowest value by looking along every direction of probabilities: projected onto what the constraints leave."""
    w, u = np.append(weight, extra[0]), np.append(term, extra[1])
    count = len(w)
    constraints = np.stack([np.ones(count), w])
    gram = constraints @ constraints.T
    base = np.full(count, 1 / count)
    base = base + constraints.T @ np.linalg.solve(gram, np.array([1.0, 1.0]) - constraints @ base)
    direction = u - constraints.T @ np.linalg.solve(gram, constraints @ u)
    left = allowed - np.sum((count * base - 1) ** 2)
    return float(base @ u - np.sqrt(left) / count * np.linalg.norm(direction))


def test_it_is_the_worst_of_all_probabilities_near_enough() -> None:
    rng = np.random.default_rng(5)
    weight, reward = rng.choice([0.2, 1.0, 4.0], size=60), rng.random(60)
    means = means_of(weight[None], reward[None])
    for extra in ((0.0, 0.0), (1.0, 0.0), (9.0, 4.0)):
        point = Extra(*(np.array([each]) for each in (extra[0], extra[1], extra[1])))
        allowed = distance(means, point) + CHI_SQUARED
        found = reach(means, any_of([point]), allowed)[0][0]
        assert found == pytest.approx(worst_by_force(weight, weight * reward, extra, allowed[0]), rel=1e-9)


def test_an_infinite_weight_is_the_limit_of_large_ones() -> None:
    rng = np.random.default_rng(6)
    means = means_of(rng.choice([0.2, 1.0, 4.0], size=(1, 300)), rng.random((1, 300)))
    huge = Extra(np.array([1e7]), np.array([0.0]), np.array([1e7]))
    endless = Extra(np.array([np.inf]), np.array([0.0]), np.array([1.0]))
    allowed = distance(means, endless) + CHI_SQUARED
    for found, limit in zip(
        reach(means, any_of([huge]), allowed), reach(means, any_of([endless]), allowed), strict=True
    ):
        assert found[0] == pytest.approx(limit[0], abs=1e-5)
