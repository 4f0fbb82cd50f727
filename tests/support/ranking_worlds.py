"""Make pages of six items with clicks and true lifts, from rankers that swap items or rank at random."""

from __future__ import annotations

from functools import cache
from itertools import permutations
from typing import Any

import numpy as np

from streameval import Estimate, Evaluator, EventBatch
from streameval.common.arrays import Array

RANKS = 6
RELEVANT = np.array([0.1, 0.15, 0.2, 0.3, 0.4, 0.5])
"""Probability that each item is relevant, in the order of production."""
GAIN = 1 / np.log2(1 + np.arange(1.0, RANKS + 1))
METRIC = {"kind": "dcg", "at": RANKS}


@cache
def random_orders() -> tuple[Array, Array, Array]:
    """Return all orders, their probabilities by Plackett-Luce, and the probability of each item at each rank."""
    orders, weight = np.array(list(permutations(range(RANKS)))), np.exp(-0.35 * np.arange(RANKS))
    chance, left = np.ones(len(orders)), np.full(len(orders), weight.sum())
    for rank in range(RANKS):
        chance, left = chance * weight[orders[:, rank]] / left, left - weight[orders[:, rank]]
    at_rank = np.stack([np.bincount(orders[:, rank], chance, RANKS) for rank in range(RANKS)], axis=1)
    return orders, chance / chance.sum(), at_rank


def pages(count: int, seed: Any, kind: str = "swaps", eta: Any = 1.0) -> tuple[EventBatch, Array]:
    """Draw pages, and return them with the true lift on each of the candidate `new`, which reverses the order.

    An examined item is clicked with probability .9 if it is relevant, else .05.

    Args:
        count: Number of pages.
        seed: Seed of the random numbers.
        kind: `swaps` exchanges rank 1 with another rank on three pages of ten. `harvested` draws the order.
        eta: Exponent of the examination by rank, one number or one for each page.
    """
    rng = np.random.default_rng(seed)
    attractive = np.where(rng.random((count, RANKS)) < RELEVANT, 0.9, 0.05)
    order, options = np.tile(np.arange(RANKS), (count, 1)), {}
    if kind == "harvested":
        orders, chance, at_rank = random_orders()
        order = orders[rng.choice(len(orders), count, p=chance)]
        later = np.column_stack([at_rank, np.zeros(RANKS)])
        marginal = at_rank[order, np.arange(RANKS)], later[order, np.arange(1, RANKS + 1)]
        options["marginals"] = np.stack(marginal, axis=-1)
    else:
        rows, other = np.flatnonzero(rng.random(count) < 0.3), rng.integers(1, RANKS, count)
        order[rows, 0], order[rows, other[rows]] = other[rows], 0
        options["swap"] = np.zeros((count, 2))
        options["swap"][rows] = np.column_stack([np.ones(len(rows)), other[rows] + 1])
    attractive = np.take_along_axis(attractive, order, axis=1)
    looks = np.arange(1.0, RANKS + 1) ** -np.broadcast_to(np.asarray(eta, dtype=float), count)[:, None]
    clicks = (rng.random((count, RANKS)) < looks) & (rng.random((count, RANKS)) < attractive)
    ranks = RANKS - order.astype(float)
    lift = (attractive * (GAIN[RANKS - 1 - order] - GAIN)).sum(axis=1)
    return EventBatch.from_rankings(clicks=clicks, ranks={"new": ranks}, **options), lift


def evaluated(batch: EventBatch, examination: Any, average: str = "cumulative", **options: Any) -> Evaluator:
    """Evaluate these pages with `click_ips`, and return the evaluator."""
    options = {"promotion": None, "drift": None, "estimators": ["click_ips"], **options}
    evaluator = Evaluator(
        ["new"], averages=[average], ranking={"metric": METRIC, "examination": examination}, **options
    )
    for first in range(0, len(batch), 5_000):
        evaluator.update(batch[first : first + 5_000])
    return evaluator


def estimate(batch: EventBatch, examination: Any, average: str = "cumulative") -> Estimate:
    """Return the estimate of the candidate after these pages."""
    return evaluated(batch, examination, average).report().get("new", "click_ips", average)


ITEMS, WIDTH = 20, 8
"""The items and the features of each on a page of `featured`."""
LINEAR = {"metric": {"kind": "dcg", "at": 10}, "examination": {"kind": "power", "eta": 1.0}}
"""How pages of `featured` are judged."""


def scorers(seed: int) -> tuple[Array, Array]:
    """Return weights that order items by their chance of a click, so that no ranker is better, and production's."""
    best, other = np.random.default_rng(seed).normal(size=(2, WIDTH)) / np.sqrt(WIDTH)
    return best, 0.5 * best + other


def featured(count: int, seed: Any, best: Array, production: Array, **options: Any) -> tuple[EventBatch, Array, Array]:
    """Draw pages of items with features, and return the features and the chance of a click on an examined item.

    Args:
        count: Number of pages.
        seed: Seed of the random numbers.
        best: The chance of a click grows with the score by these weights.
        production: Production ranks by the score with these weights.
        options: Further arguments of `EventBatch.from_rankings`.
    """
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, ITEMS, WIDTH))
    order = np.argsort(-(features @ production), axis=1)
    features = np.take_along_axis(features, order[..., None], axis=1)
    attractive = 0.02 + 0.4 / (1 + np.exp(1 - 2 * (features @ best)))
    clicks = rng.random((count, ITEMS)) < attractive / np.arange(1, ITEMS + 1)
    columns = {"clicks": clicks, "ranks": {}, "features": features, **options}
    return EventBatch.from_rankings(**columns), features, attractive


def worth(features: Array, attractive: Array, weights: Array) -> Array:
    """Return the DCG at 10 of each page, with its items in the order of the scores by these weights."""
    gain = np.where(np.arange(ITEMS) < 10, 1 / np.log2(2 + np.arange(ITEMS)), 0.0)
    order = np.argsort(-(features @ weights), axis=1, kind="stable")
    return np.asarray((np.take_along_axis(attractive, order, axis=1) * gain).sum(axis=1))
