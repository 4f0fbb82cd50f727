"""Simulate a list recommender: pages of items, a ranker with interventions, candidates, and their exact values.

A page shows items drawn at random, in the order of production. A user looks at rank k with probability `1 / k`. The
user clicks an examined item with a probability that depends on the item and on the cluster of the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from streameval.common.arrays import Array, Integers, Mask
from streameval.simulation.world import log_choose

InterventionKind: TypeAlias = Literal["swaps", "shuffles"]

CATALOGUE, FEATURES, LENGTH = 200, 8, 6


@dataclass(frozen=True, eq=False)
class ListWorld:
    """Hold items with an attractiveness for each cluster of users, and the scores of all policies.

    Attributes:
        attractiveness: the probability of a click on an item that the user looks at [clusters, items]
        scores: policies rank items by these scores, production first [1 + candidates, items]
        candidates: the names of the candidates
        exploration: the probability that production changes a page by chance
        interventions: `swaps` exchanges the items of rank 1 and of another rank, `shuffles` puts all items into random
            order
    """

    attractiveness: Array
    scores: Array
    candidates: tuple[str, ...]
    exploration: float = 0.2
    interventions: InterventionKind = "swaps"

    @classmethod
    def synthetic(
        cls,
        seed: int,
        *,
        candidates: Sequence[str],
        exploration: float = 0.2,
        interventions: InterventionKind = "swaps",
    ) -> ListWorld:
        """Return a world in which candidate k is the best for cluster k, and production the best for equal shares."""
        random = np.random.default_rng(seed)
        clusters = max(2, len(candidates))
        taste = random.normal(size=FEATURES) + 1.5 * random.normal(size=(clusters, FEATURES))
        appeal = taste / np.linalg.norm(taste, axis=1, keepdims=True) @ random.normal(size=(FEATURES, CATALOGUE))
        attractiveness = 0.05 + 0.85 / (1.0 + np.exp(-2.0 * appeal))
        scores = np.vstack([attractiveness.mean(axis=0), attractiveness[: len(candidates)]])
        return cls(attractiveness, scores, tuple(candidates), exploration, interventions)

    @property
    def clusters(self) -> int:
        """Return the number of clusters."""
        return len(self.attractiveness)

    @cached_property
    def placement(self) -> Array:
        """Return the probability that the item of a rank of production is shown at each rank [LENGTH, LENGTH]."""
        if self.interventions == "shuffles":
            changed = np.full((LENGTH, LENGTH), 1.0 / LENGTH)
        else:
            changed = np.eye(LENGTH) * (LENGTH - 2) / (LENGTH - 1)
            changed[0, 0] = 0.0
            changed[0, 1:] = changed[1:, 0] = 1.0 / (LENGTH - 1)
        return (1.0 - self.exploration) * np.eye(LENGTH) + self.exploration * changed

    @cached_property
    def value(self) -> Array:
        """Return the expected DCG of each policy, of production with its interventions [clusters, 1 + candidates].

        The number of better items among the others on a page is hypergeometric.
        """
        gain = 1.0 / np.log2(np.arange(2.0, LENGTH + 2.0))
        columns = []
        for policy, scores in enumerate(self.scores):
            better = np.argsort(np.argsort(-scores))
            gain_by_rank = gain if policy else self.placement @ gain
            gains = sum(gain_by_rank[ahead] * _chance(better, ahead) for ahead in range(LENGTH))
            columns.append(self.attractiveness @ (gains * LENGTH / CATALOGUE))
        return np.stack(columns, axis=1)

    def draw(self, cluster: Integers, random: np.random.Generator) -> ShownPages:
        """Draw one page for a user of each given cluster [n]."""
        count, row = len(cluster), np.arange(len(cluster))[:, None]
        drawn = np.argpartition(random.random((count, CATALOGUE)), LENGTH, axis=1)[:, :LENGTH]
        ranked = drawn[row, np.argsort(-self.scores[0][drawn], axis=1)]
        changed = random.random(count) < self.exploration
        origin, swap = np.tile(np.arange(LENGTH), (count, 1)), np.zeros(count, dtype=np.int64)
        if self.interventions == "shuffles":
            origin[changed] = np.argsort(random.random((count, LENGTH)), axis=1)[changed]
        else:
            other = random.integers(1, LENGTH, size=count)
            origin[changed, 0], origin[changed, other[changed]] = other[changed], 0
            swap[changed] = other[changed] + 1
        shown = ranked[row, origin]
        looks = random.random((count, LENGTH)) < 1.0 / np.arange(1.0, LENGTH + 1.0)
        clicked = looks & (random.random((count, LENGTH)) < self.attractiveness[cluster[:, None], shown])
        ranks = [1 + np.argsort(np.argsort(-scores[shown], axis=1), axis=1) for scores in self.scores[1:]]
        return ShownPages(self, shown, clicked, np.stack(ranks), origin, swap)


@dataclass(frozen=True, eq=False)
class ShownPages:
    """Hold pages that production showed, with their clicks.

    Attributes:
        world: the world of the pages
        shown: the item at each rank [n, LENGTH]
        clicked: whether it was clicked [n, LENGTH]
        ranks: the rank of each shown item under each candidate [candidates, n, LENGTH]
        origin: the position of the item without an intervention, from 0 [n, LENGTH]
        swap: the rank that was exchanged with rank 1, 0 for none [n]
    """

    world: ListWorld
    shown: Integers
    clicked: Mask
    ranks: Integers
    origin: Integers
    swap: Integers

    def marginals(self) -> Array:
        """Return the probability of each item at its rank and at the next rank [n, LENGTH, 2]."""
        later = np.column_stack([self.world.placement, np.zeros(LENGTH)])
        rank = np.arange(LENGTH)
        return np.stack([later[self.origin, rank], later[self.origin, rank + 1]], axis=-1)


def _chance(better: Integers, ahead: int) -> Array:
    """Return the probability that `ahead` of the other items of a page are better [items]."""
    worse = CATALOGUE - 1 - better
    pages = log_choose(np.array([CATALOGUE - 1]), LENGTH - 1)
    return np.exp(log_choose(better, ahead) + log_choose(worse, LENGTH - 1 - ahead) - pages)
