"""Simulate logs as the sums for the empirical likelihood interval, and compute the interval."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from streameval.common.arrays import Array
from streameval.ope.intervals.empirical_likelihood import Extra, Means, likely, reach

CHI_SQUARED = NormalDist().inv_cdf(0.975) ** 2
RUNS = 4_000
Pair = tuple[Array, Array]


class World(NamedTuple):
    """Describe the weights and rewards of a log.

    Attributes:
        weights: Importance weights, scaled to an average of 1.
        shares: Share of each weight.
        leaning: Relative excess of the heaviest weight's mean reward. The lightest one's falls short as much.
    """

    weights: Sequence[float]
    shares: Sequence[float]
    leaning: float = 0.0

    def table(self, value: float) -> tuple[Array, Array, Array, float]:
        """Return weights, their probabilities, the mean reward of each, and the true value."""
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
    """Return extra events of weight 0, weight 1, and the heaviest weight, for rewards between `low` and `high`."""
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
    """Return the means of events along the last axis, weighted by `q`."""
    q = np.ones(np.shape(weight)[-1]) if q is None else q
    term = weight * reward
    columns = (weight, weight**2, term, term * weight, term**2)
    count = np.full(np.shape(weight)[:-1], q.sum() ** 2 / (q**2).sum())
    return Means(count, *((column @ q) / q.sum() for column in columns))


def simulated(world: World, value: float, events: int, seed: int) -> tuple[Means, float]:
    """Draw the means of many logs of 0/1 rewards at once, and return them with the true value."""
    rng = np.random.default_rng(seed)
    weight, share, chance, truth = world.table(value)
    seen = rng.multinomial(events, share, size=RUNS)
    rewarded = rng.binomial(seen, chance)
    sums = (seen @ weight, seen @ weight**2, rewarded @ weight, rewarded @ weight**2, rewarded @ weight**2)
    return Means(np.full(RUNS, float(events)), *(total / events for total in sums)), truth


def missed(bounds: Pair, truth: float) -> float:
    lower, upper = bounds
    return float(np.mean((lower > truth + 1e-12) | (upper < truth - 1e-12)))


PROMISED = 0.05 + 3 * np.sqrt(0.05 * 0.95 / RUNS)


def any_of(extras: Sequence[Extra]) -> Extra:
    """Stack extra events, so that the worst of them is taken."""
    return Extra(*(np.stack(values) for values in zip(*extras, strict=True)))
