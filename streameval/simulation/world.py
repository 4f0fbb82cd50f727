"""Simulate a recommender: clusters of users, items with features, linear policies, and their exact values.

Under drift, it gives a stream of interactions with the true values over time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streameval.common.arrays import Array, Integers
from streameval.events import EventBatch


def chance_of_best(scores: Array, liked_start: Integers, liked_items: Integers, actions: int) -> Array:
    """Return the probability that a liked item has the best score in a set with unliked items [likes].

    The `actions - 1` other items are drawn without replacement. Let `l` unliked items lie below the liked one, let `e`
    have the same score (ties are broken evenly), let there be `N` unliked items in all, and `A` items in a set. Then it
    is `sum_t C(e, t) C(l, A-1-t) / (t+1) / C(N, A-1) = (C(l+e+1, A) - C(l, A)) / (e+1) / C(N, A-1)`.

    Args:
        scores: the score of each item [items]
        liked_start: the position of the first liked item of each user, and the end [users + 1]
        liked_items: the liked items, user by user [likes]
        actions: the number of items in a set

    One user who likes item 2 of 4 gets sets of 2. The item beats the items 0 and 1, not item 3.

    >>> chance_of_best(np.array([0.1, 0.2, 0.3, 0.4]), np.array([0, 1]), np.array([2]), 2).round(9)
    array([0.66666667])
    """
    liked = np.diff(liked_start)
    user = np.repeat(np.arange(len(liked)), liked)
    distinct, rank = np.unique(scores, return_inverse=True)
    liked_rank = rank[liked_items]
    below, level = _below_and_equal(np.sort(rank), liked_rank)
    key = user * len(distinct) + liked_rank
    liked_below, liked_level = _below_and_equal(np.sort(key), key)
    lower = below - (liked_below - liked_start[user])
    equal = level - liked_level
    all_sets = log_choose(len(scores) - liked[user], actions - 1)
    upto, under = (log_choose(count, actions) for count in (lower + equal + 1, lower))
    return np.asarray((np.exp(upto - all_sets) - np.exp(under - all_sets)) / (equal + 1))


def softmax(scores: Array) -> Array:
    """Return probabilities in proportion to exp(score), row by row."""
    unnormalised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(unnormalised / unnormalised.sum(axis=1, keepdims=True))


def _below_and_equal(ordered: Integers, values: Integers) -> tuple[Integers, Integers]:
    below = np.searchsorted(ordered, values)
    return below, np.searchsorted(ordered, values, side="right") - below


def log_choose(n: Integers, k: int) -> Array:
    """Return the logarithm of "n choose k", -inf if k > n."""
    log_factorial = np.array([math.lgamma(number + 1.0) for number in range(int(n.max()) + 1)])
    chosen = log_factorial[n] - log_factorial[np.maximum(n - k, 0)] - math.lgamma(k + 1.0)
    return np.where(n >= k, chosen, -np.inf)


_CORRECTION_SETS = 40_000


@dataclass(frozen=True, eq=False)
class World:
    """Hold users with preferences, items with features, and linear policies: the logging policy, then the candidates.

    Each action set holds `actions` items. The user likes exactly one of them, and choosing it earns 1. The logging
    policy takes its best item, or any item with probability `exploration`. Candidates are greedy, or softmax of score /
    temperature.

    Attributes:
        item_features: [items, features]
        liked_start: user u likes `liked_items[liked_start[u]:liked_start[u + 1]]` [users + 1]
        liked_items: [likes]
        user_cluster: the cluster of each user [users]
        theta: the weights of the features in the scores of policies [1 + candidates, features]
        candidates: the names of the candidates
        exploration: the probability that the logging policy takes any item
        actions: the number of items in a set
        temperature: None for greedy candidates
    """

    item_features: Array
    liked_start: Integers
    liked_items: Integers
    user_cluster: Integers
    theta: Array
    candidates: tuple[str, ...]
    exploration: float = 0.2
    actions: int = 25
    temperature: float | None = None

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, Any],
        *,
        candidates: Sequence[str] | None = None,
        exploration: float = 0.2,
        temperature: float | None = None,
    ) -> World:
        """Return a prepared world, e.g. from `np.load`.

        Args:
            arrays: `item_features`, `user_indptr`, `user_items`, `user_cluster` and `theta`
            candidates: names for the rows of `theta` after row 0, in order, by default all, `candidate-1` and so on
            exploration: the probability that the logging policy takes any item
            temperature: the temperature of softmax candidates, None for greedy ones

        Raises:
            ValueError: The arrays do not fit together.
        """
        theta = np.asarray(arrays["theta"], dtype=np.float64)
        features = np.asarray(arrays["item_features"], dtype=np.float64)
        names = tuple(candidates or numbered(len(theta) - 1))
        if len(names) >= len(theta) or features.shape[1] != theta.shape[1]:
            raise ValueError(f"{len(names)} candidates and features {features.shape} do not fit theta {theta.shape}")
        start, likes, cluster = (
            np.asarray(arrays[name], dtype=np.int64) for name in ("user_indptr", "user_items", "user_cluster")
        )
        if start[-1] != len(likes) or len(start) != len(cluster) + 1 or np.diff(start).min() < 1:
            raise ValueError("user_indptr, user_items and user_cluster do not describe the same users")
        theta = theta[: len(names) + 1]
        return cls(features, start, likes, cluster, theta, names, exploration=exploration, temperature=temperature)

    @classmethod
    def synthetic(
        cls,
        seed: int,
        *,
        clusters: int = 10,
        candidates: Sequence[str] | None = None,
        users: int = 600,
        items: int = 3000,
        features: int = 25,
        likes: int = 45,
        exploration: float = 0.2,
        temperature: float | None = None,
    ) -> World:
        """Return a world of the same structure that needs no data: candidate k is trained on the users of cluster k.

        There are at most `clusters` candidates (by default as many). Equal arguments make equal worlds.

        Raises:
            ValueError: There are more candidates than clusters.
        """
        random = np.random.default_rng(seed)
        names = tuple(candidates or numbered(clusters))
        if len(names) > clusters:
            raise ValueError(f"{len(names)} candidates need as many clusters, but there are {clusters}")
        cluster = np.arange(users) * clusters // users
        taste = random.normal(size=features) + random.normal(size=(clusters, features))
        taste *= 1.6 / np.linalg.norm(taste, axis=1, keepdims=True)
        catalogue = random.normal(size=(items, features))
        appeal = (taste[cluster] + 0.15 * random.normal(size=(users, features))) @ catalogue.T
        liked = np.argpartition(appeal + random.gumbel(size=appeal.shape), -likes, axis=1)[:, -likes:]
        liked.sort(axis=1)  # the order after a partition depends on the processor
        trained = np.stack([catalogue[liked[cluster == k]].mean(axis=(0, 1)) for k in range(clusters)])
        theta = np.vstack([trained.mean(axis=0), trained[: len(names)]])
        start = np.arange(users + 1) * likes
        liked = liked.ravel()
        return cls(catalogue, start, liked, cluster, theta, names, exploration=exploration, temperature=temperature)

    @property
    def clusters(self) -> int:
        """Return the number of clusters."""
        return int(self.user_cluster.max()) + 1

    @cached_property
    def scores(self) -> Array:
        """Return the score of each item under each policy [1 + candidates, items]."""
        return np.ascontiguousarray(self.theta @ self.item_features.T)

    @cached_property
    def value(self) -> Array:
        """Return the expected reward of each policy, the exploring logging policy first [clusters, 1 + candidates].

        It is exact for greedy candidates, by counting action sets. For softmax candidates it is the exact greedy value
        plus the mean difference of the two on 40,000 action sets per cluster (standard error at most .002, mostly below
        .001).
        """
        likes, starts = np.diff(self.liked_start), self.liked_start[:-1]
        columns = []
        for scores in self.scores:
            like_chance = chance_of_best(scores, self.liked_start, self.liked_items, self.actions)
            user_value = np.add.reduceat(like_chance, starts) / likes
            columns.append([user_value[members].mean() for members in self._members])
        value = np.stack(columns, axis=1)
        value[:, 0] = (1 - self.exploration) * value[:, 0] + self.exploration / self.actions
        if self.temperature is not None:
            value[:, 1:] += [self._softmax_less_greedy(cluster) for cluster in range(self.clusters)]
        return value

    def draw(self, cluster: Integers, random: np.random.Generator) -> Interactions:
        """Draw one interaction with a user of each given cluster, logged by the exploring policy."""
        items, liked_index = self.offer(cluster, random)
        best = self.scores[0][items].argmax(axis=1)
        explore = random.random(len(items)) < self.exploration
        action = np.where(explore, random.integers(self.actions, size=len(items)), best)
        return Interactions(self, items, best, action, (action == liked_index).astype(np.float64))

    @cached_property
    def _members(self) -> list[Integers]:
        return [np.flatnonzero(self.user_cluster == cluster) for cluster in range(self.clusters)]

    @cached_property
    def _likes(self) -> NDArray[np.bool_]:
        table = np.zeros((len(self.user_cluster), len(self.item_features)), dtype=np.bool_)
        table[np.repeat(np.arange(len(table)), np.diff(self.liked_start)), self.liked_items] = True
        return table

    def offer(self, cluster: Integers, random: np.random.Generator) -> tuple[Integers, Integers]:
        """Draw action sets for users of the given clusters.

        A set with a collision is drawn again as a whole, so that all sets of unliked items are equally likely.

        Returns:
            The items of each set [n, actions], and the position of the liked item in it [n].
        """
        size = np.array([len(members) for members in self._members])
        nth = (np.cumsum(size) - size)[cluster] + _below(size[cluster], random)
        user = np.concatenate(self._members)[nth]
        items = np.empty((len(user), self.actions), dtype=np.int64)
        redo = np.arange(len(user))
        while len(redo):
            others = random.integers(len(self.item_features), size=(len(redo), self.actions - 1))
            items[redo, 1:] = others
            others.sort(axis=1)
            twice = (others[:, 1:] == others[:, :-1]).any(axis=1)
            redo = redo[twice | self._likes[user[redo, None], others].any(axis=1)]
        row, position = np.arange(len(user)), random.integers(self.actions, size=len(user))
        items[:, 0] = items[row, position]
        items[row, position] = self.liked_items[
            self.liked_start[user] + _below(np.diff(self.liked_start)[user], random)
        ]
        return items, position

    def _softmax_less_greedy(self, cluster: int) -> Array:
        random = np.random.default_rng([cluster, _CORRECTION_SETS])
        items, liked_index = self.offer(np.full(_CORRECTION_SETS, cluster), random)
        row = np.arange(len(items))
        offered_scores = (scores[items] for scores in self.scores[1:])
        assert self.temperature is not None
        return np.array(
            [
                (softmax(s / self.temperature)[row, liked_index] - (s.argmax(axis=1) == liked_index)).mean()
                for s in offered_scores
            ]
        )


@dataclass(frozen=True, eq=False)
class Interactions:
    """Hold action sets with the decision of the logging policy.

    Attributes:
        world: the world that they were drawn from
        items: [n, actions]
        best: the position of the best item under the logging policy [n]
        action: the position of the logged action [n]
        reward: [n]
    """

    world: World
    items: Integers
    best: Integers
    action: Integers
    reward: Array

    def __len__(self) -> int:
        return len(self.action)

    def propensity(self) -> Array:
        """Return the propensity of the logged action [n]."""
        return self._select_logged(self.propensities())

    def propensities(self) -> Array:
        """Return the distribution of the logging policy [n, actions]."""
        explored = self.world.exploration / self.world.actions
        return _one_hot(self.best, self.world.actions) * (1 - self.world.exploration) + explored

    def distribution(self, candidate: int) -> Array:
        """Return the distribution of a candidate, by its index from 0 [n, actions]."""
        scores = self.world.scores[1 + candidate][self.items]
        if self.world.temperature is None:
            return _one_hot(scores.argmax(axis=1), self.world.actions)
        return softmax(scores / self.world.temperature)

    def probability(self, candidate: int) -> Array:
        """Return the probability of the logged action under a candidate, by its index from 0 [n]."""
        return self._select_logged(self.distribution(candidate))

    def _select_logged(self, distribution: Array) -> Array:
        return np.asarray(distribution[np.arange(len(self)), self.action])

    def columns(self, *, action_sets: bool = False) -> EventBatch:
        """Return the interactions as events.

        Args:
            action_sets: whether events list features, propensities and distributions of all actions
        """
        names = enumerate(self.world.candidates)
        if not action_sets:
            chances = {name: self.probability(candidate) for candidate, name in names}
            return EventBatch.from_arrays(reward=self.reward, propensity=self.propensity(), policies=chances)
        return EventBatch.from_arrays(
            reward=self.reward,
            action=self.action,
            propensities=self.propensities(),
            features=self.world.item_features[self.items],
            policies={name: self.distribution(candidate) for candidate, name in names},
        )


def numbered(candidates: int) -> list[str]:
    """Name candidates without names: `candidate-1` and so on."""
    return [f"candidate-{number}" for number in range(1, candidates + 1)]


def _below(limit: Integers, random: np.random.Generator) -> Integers:
    """Draw a uniform integer below each limit."""
    return (random.random(len(limit)) * limit).astype(np.int64)


def _one_hot(index: Integers, width: int) -> Array:
    return np.eye(width)[index]


DriftKind = Literal["smooth", "abrupt", "stationary"]

BATCH = 100  # interactions with one mixture of clusters
DRAW_SIZE = 2_000  # interactions drawn at once from a seed of their own, so that a stream can start at any block


@dataclass(frozen=True)
class Drift:
    """Describe how the mixture of clusters moves with the number n of interactions so far.

    Before the first interaction (n < 0) the shares are equal.

    Attributes:
        kind: `smooth` moves linearly from cluster k to cluster k + 1 within `span` interactions. `abrupt` stays at
            cluster k for `span` interactions, then takes the next. `stationary` keeps equal shares.
        clusters: the number of clusters
        span: interactions per cluster
        cycle: whether the first cluster follows the last one, which otherwise stays

    >>> Drift("smooth", clusters=3, span=100).mixture([50, 100, 175, 900])
    array([[0.5 , 0.5 , 0.  ],
           [0.  , 1.  , 0.  ],
           [0.  , 0.25, 0.75],
           [0.  , 0.  , 1.  ]])
    """

    kind: DriftKind = "smooth"
    clusters: int = 10
    span: int = 100_000
    cycle: bool = False

    def mixture(self, n: ArrayLike) -> Array:
        """Return the shares of the clusters after `n` interactions, [...] to [..., clusters]."""
        count = np.asarray(n, dtype=np.int64)
        uniform = np.full((*count.shape, self.clusters), 1 / self.clusters)
        if self.kind == "stationary":
            return uniform
        step, rest = np.divmod(count, self.span)
        moved = rest[..., None] / self.span if self.kind == "smooth" else 0.0
        moving = (1 - moved) * self._alone(step) + moved * self._alone(step + 1)
        return np.where(count[..., None] < 0, uniform, moving)

    def _alone(self, step: Integers) -> Array:
        cluster = step % self.clusters if self.cycle else np.clip(step, 0, self.clusters - 1)
        return np.eye(self.clusters)[cluster]


@dataclass(frozen=True, eq=False)
class Moment:
    """Hold a batch with the value of each policy, the deployed logging policy first.

    Attributes:
        events: the batch
        drawn: values in the world that the events came from [1 + candidates]
        truth: values in the world after the events, which estimates are compared with [1 + candidates]
    """

    events: EventBatch
    drawn: Array
    truth: Array


def simulate(world: World, drift: Drift, n: int, seed: int, *, action_sets: bool = False) -> Iterator[Moment]:
    """Yield `n` interactions in batches of 100 (the last may be shorter), each with the true values.

    A longer run starts with the events of a shorter one.

    Args:
        world: the world to draw from
        drift: how the mixture of clusters moves
        n: the number of interactions
        seed: the seed of the stream
        action_sets: whether events list features and full distributions
    """
    for start in range(0, n, DRAW_SIZE):
        events = draw_block(world, drift, start // DRAW_SIZE, seed).columns(action_sets=action_sets)
        values = mixtures(drift, start, DRAW_SIZE // BATCH + 1) @ world.value
        for batch, first in enumerate(range(0, min(DRAW_SIZE, n - start), BATCH)):
            yield Moment(events[first : min(first + BATCH, n - start)], values[batch], values[batch + 1])


Drawn = TypeVar("Drawn", covariant=True)


class AnyWorld(Protocol[Drawn]):
    """Draw interactions with users of clusters, and know the values of policies."""

    @property
    def candidates(self) -> tuple[str, ...]:
        """Return the names of the candidates."""

    @property
    def value(self) -> Array:
        """Return the value of each policy, production first [clusters, 1 + candidates]."""

    def draw(self, cluster: Integers, random: np.random.Generator) -> Drawn:
        """Draw one interaction with a user of each given cluster."""


def draw_block(world: AnyWorld[Drawn], drift: Drift, block: int, seed: int) -> Drawn:
    """Draw the 2,000 interactions of one block of the stream, by its number from 0.

    Equal arguments draw equal interactions.
    """
    random = np.random.default_rng([seed, block])
    upper = np.cumsum(mixtures(drift, block * DRAW_SIZE, DRAW_SIZE // BATCH), axis=1)[:, None, :-1]
    cluster = (random.random((DRAW_SIZE // BATCH, BATCH, 1)) >= upper).sum(axis=2)
    return world.draw(cluster.ravel(), random)


def mixtures(drift: Drift, start: int, batches: int) -> Array:
    """Return the mixture of each batch [batches, clusters].

    A batch is drawn with the mixture of the batch before it, and the first one with equal shares.
    """
    return drift.mixture(start - BATCH + BATCH * np.arange(batches))


def truth_after(world: AnyWorld[object], drift: Drift, n: int) -> dict[str, float]:
    """Return the value of each policy after `n` interactions, for the logging policy under the name `logging`."""
    values = drift.mixture((n - 1) // BATCH * BATCH) @ world.value
    return dict(zip(("logging", *world.candidates), values.tolist(), strict=True))
