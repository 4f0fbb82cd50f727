"""Simulate search rankings with known true values, to measure the error of slate estimators.

The style follows Swaminathan et al., Off-policy evaluation for slate recommendation, NeurIPS 2017. A query has m
documents, a slate shows l of them, and the value of a new ranker is estimated from the log of another. Documents are
numbered by their rank under the logging ranker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from streameval import Evaluator, EventBatch
from streameval.ope.evidence import ranking_weights

Array = NDArray[np.float64]
Slates = NDArray[np.int64]
GRADES = (0.52, 0.84, 0.97, 0.99)  # share of documents below each of the grades 1, 2, 3, 4
Reward = Callable[["World", Slates, Slates], Array]


@dataclass(frozen=True)
class World:
    """Hold queries with `actions` documents each. A slate shows `slots` of them, in order.

    Args:
        slots: Documents in a slate.
        actions: Documents of a query.
        grade: Grades from 0 to 4, [queries, actions].
        features: Features of the documents, [queries, actions, d].
        target: Slate of the new ranker, [queries, slots].
    """

    slots: int
    actions: int
    grade: Slates
    features: Array
    target: Slates

    @cached_property
    def gain(self) -> Array:
        """Return the gain `2^grade - 1` of each document, [queries, actions]."""
        return 2.0**self.grade - 1.0

    @cached_property
    def discount(self) -> Array:
        """Return the discount of each position, [slots]."""
        return 1.0 / np.log2(np.arange(self.slots) + 2.0)


def world(slots: int, actions: int, queries: int = 50, seed: int = 2017) -> World:
    """Draw a world in which features are correlated with the grade, and both rankers use more than the features."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(queries, actions, 8))
    worth = np.tanh(features @ rng.normal(size=8)) + 0.5 * rng.normal(size=(queries, actions))
    quantile = worth.argsort(axis=1).argsort(axis=1) / actions
    grade = np.searchsorted(GRADES, quantile, side="right")
    order = (-(worth + 1.5 * rng.normal(size=worth.shape))).argsort(axis=1)  # the logging ranker's order, best first
    score = worth + 0.8 * rng.normal(size=worth.shape)
    target = (-np.take_along_axis(score, order, axis=1)).argsort(axis=1)[:, :slots]
    sorted_features = np.take_along_axis(features, order[:, :, None], axis=1)
    return World(slots, actions, np.take_along_axis(grade, order, axis=1), sorted_features, target)


def ndcg(world: World, query: Slates, slate: Slates) -> Array:
    """Compute an additive reward: the gain of each document, discounted by its position, as a share of the maximum."""
    best = -np.sort(-world.gain, axis=1)[:, : world.slots] @ world.discount
    return (world.gain[query[:, None], slate] * world.discount).sum(axis=1) / best[query]


def err(world: World, query: Slates, slate: Slates) -> Array:
    """Compute a reward that is not additive: the reader reads down the page until satisfied, and ignores the rest."""
    satisfied = world.gain[query[:, None], slate] / 16
    looked_at = np.cumprod(np.concatenate([np.ones((len(slate), 1)), 1 - satisfied[:, :-1]], axis=1), axis=1)
    return np.asarray((looked_at * satisfied / np.arange(1, world.slots + 1)).sum(axis=1))


@dataclass(frozen=True)
class Log:
    """Draw rankings without replacement.

    Args:
        world: Queries and documents.
        peak: A document of rank k has the weight `2^(-peak floor(log2 k))`. With 0, all documents are alike.
    """

    world: World
    peak: float

    @cached_property
    def classes(self) -> Slates:
        """Return the class of each document, [actions]. Documents of one class are drawn with equal probability."""
        return np.floor(np.log2(np.arange(1, self.world.actions + 1))).astype(np.int64)

    @cached_property
    def weight(self) -> Array:
        """Return the weight of each document in a draw, [actions]."""
        return np.asarray(2.0 ** (-self.peak * self.classes))

    def draw(self, n: int, rng: np.random.Generator) -> Slates:
        """Draw slates by the Gumbel trick, [n, slots]."""
        keys = np.log(self.weight) + rng.gumbel(size=(n, self.world.actions))
        best = np.argpartition(-keys, self.world.slots - 1, axis=1)[:, : self.world.slots]
        order = np.argsort(-np.take_along_axis(keys, best, axis=1), axis=1)
        return np.take_along_axis(best, order, axis=1)

    def propensity(self, slate: Slates) -> Array:
        """Return the probability of each slate, [n]."""
        weight = self.weight[slate]
        left = self.weight.sum() - np.cumsum(weight, axis=1) + weight
        return np.prod(weight / left, axis=1)

    def importance(self, query: Slates, slate: Slates) -> Array:
        """Return the importance weight of each slate as one action, [n].

        It is 0 unless the new ranker shows the slate.
        """
        return (slate == self.world.target[query]).all(axis=1) / self.propensity(slate)

    def pseudo_inverse(self, query: Slates, slate: Slates) -> Array:
        """Return the weight G of each slate, [n]."""
        target, slots = self.world.target[query], self.world.slots
        if self.peak == 0:
            hit = (slate == target).sum(axis=1).astype(float)
            met = (slate[:, :, None] == target[:, None, :]).sum(axis=(1, 2)).astype(float)
            return ranking_weights(hit, met, slots, self.world.actions)
        return self.dual[query[:, None], np.arange(slots), slate].sum(axis=1)

    @cached_property
    def dual(self) -> Array:
        """Return `Gamma^+ q`, [queries, slots, actions]. The weight of a slate is the sum of its entries."""
        indicator = np.zeros((len(self.world.target), self.world.slots, self.world.actions))
        np.put_along_axis(indicator, self.world.target[:, :, None], 1.0, axis=2)
        inverse = np.linalg.pinv(self.covariance, rcond=1e-10, hermitian=True)
        return (indicator.reshape(len(indicator), -1) @ inverse).reshape(indicator.shape)

    @cached_property
    def covariance(self) -> Array:
        """Return `Gamma`, the exact probability that a slate shows both, [slots x actions, slots x actions].

        Documents of a class are exchangeable, so it is enough to count the drawn documents per class.
        """
        size = np.bincount(self.classes)
        single, joint = _draws(
            size, np.array([self.weight[self.classes == c][0] for c in range(len(size))]), self.slots
        )
        pairs = size[:, None] * (size[None, :] - np.eye(len(size)))
        pair_probability = joint / np.where(pairs > 0, pairs, 1)[None, :, None, :]
        gamma = (
            pair_probability[:, self.classes][:, :, :, self.classes]
            * (1 - np.eye(self.world.actions))[None, :, None, :]
        )
        rows = self.slots * self.world.actions
        return gamma.reshape(rows, rows) + np.diag((single / size)[:, self.classes].ravel())

    @property
    def slots(self) -> int:
        """Return the number of documents in a slate."""
        return self.world.slots


def _draws(size: Slates, weight: Array, slots: int) -> tuple[Array, Array]:
    """Return the probability that draw j is of class c, and that draws j and k are of classes c and d.

    The shapes are [slots, classes] and [slots, classes, slots, classes].
    """
    classes = len(size)
    single, joint = np.zeros((slots, classes)), np.zeros((slots, classes, slots, classes))
    drawn: dict[tuple[int, ...], Array] = {(0,) * classes: np.append(np.zeros(slots * classes), 1.0)}
    for draw in range(slots):
        later: dict[tuple[int, ...], Array] = defaultdict(lambda: np.zeros(slots * classes + 1))
        for state, probability in drawn.items():
            left = weight * (size - state)
            for c in np.flatnonzero(left):
                after = probability * left[c] / left.sum()
                single[draw, c] += after[-1]
                joint[:, :, draw, c] += after[:-1].reshape(slots, classes)
                after[draw * classes + c] = after[-1]
                later[(*state[:c], state[c] + 1, *state[c + 1 :])] += after
        drawn = later
    return single, joint + joint.transpose(2, 3, 0, 1)


def value(world: World, reward: Reward) -> float:
    """Return the true value: the mean reward of the new ranker over queries."""
    queries = np.arange(len(world.target))
    return float(reward(world, queries, world.target).mean())


def expected(log: Log, reward: Reward) -> float:
    """Return the expectation of the pseudo-inverse by enumerating all slates. It is `value` plus the bias."""
    slates = np.array(list(permutations(range(log.world.actions), log.slots)))
    shares, total = log.propensity(slates), 0.0
    for number in range(len(log.world.target)):
        query = np.full(len(slates), number)
        total += shares @ (log.pseudo_inverse(query, slates) * reward(log.world, query, slates))
    return float(total / len(log.world.target))


def one_run(log: Log, reward: Reward, sizes: Sequence[int], rng: np.random.Generator) -> dict[str, Array]:
    """Return the estimates from the first n events of one log, for each n of `sizes`."""
    world, n = log.world, max(sizes)
    query = rng.integers(0, len(world.target), n)
    slate = log.draw(n, rng)
    earned, weight = reward(world, query, slate), log.pseudo_inverse(query, slate)
    sampled = rng.integers(0, len(world.target), n)

    def mean(values: Array) -> Array:
        return np.cumsum(values)[np.array(sizes) - 1] / np.array(sizes)

    return {
        "wPI": mean(earned * weight) / mean(weight),
        "PI": mean(earned * weight),
        "IPS": mean(earned * log.importance(query, slate)),
        "DM": np.array([direct(world, query[:size], slate[:size], earned[:size]) for size in sizes]),
        "on-policy": mean(reward(world, sampled, world.target[sampled])),
    }


def direct(world: World, query: Slates, slate: Slates, earned: Array) -> float:
    """Return the estimate of the direct method.

    It is a ridge regression of the reward on the features in all slots, evaluated for the new slates.
    """

    def described(query: Slates, slate: Slates) -> Array:
        shown = world.features[query[:, None], slate].reshape(len(query), -1)
        return np.column_stack([np.ones(len(query)), shown])

    inputs = described(query, slate)
    penalty = np.eye(inputs.shape[1])
    products = np.einsum("ni,nj->ij", inputs, inputs)
    coefficients = np.linalg.solve(products + penalty, np.einsum("ni,n->i", inputs, earned))
    queries = np.arange(len(world.target))
    return float((described(queries, world.target) @ coefficients).mean())


def runs(log: Log, reward: Reward, sizes: Sequence[int], count: int, seed: int = 1) -> dict[str, Array]:
    """Return the estimates from `count` logs, by estimator [count, sizes]."""
    rng = np.random.default_rng(seed)
    results = [one_run(log, reward, sizes, rng) for _ in range(count)]
    return {name: np.array([run[name] for run in results]) for name in results[0]}


def errors(results: dict[str, Array], truth: float) -> dict[str, Array]:
    """Return the root mean squared error of each estimator over its runs, [sizes]."""
    return {name: np.sqrt(np.mean((estimates - truth) ** 2, axis=0)) for name, estimates in results.items()}


MODELLED = ("pseudo_inverse", "weighted_pseudo_inverse", "dr_pi")


def with_models(log: Log, sizes: Sequence[int], count: int, seed: int = 1) -> dict[str, Array]:
    """Return how models of slots do on NDCG after each number of slates, over `count` logs.

    It is the root mean squared error of each estimator of the new ranker, and the mean `share` of the gain of the best
    linear ranker that a policy of kind `of_slot_rewards` has reached.
    """
    rng, truth = np.random.default_rng(seed), value(log.world, ndcg)
    results = [_models_of_one_log(log, sizes, rng) for _ in range(count)]
    found = {name: np.array([run[name] for run in results]) for name in results[0]}
    share = found.pop("share").mean(axis=0)
    return {**errors(found, truth), "share": share}


def _models_of_one_log(log: Log, sizes: Sequence[int], rng: np.random.Generator) -> dict[str, list[float]]:
    world, n, found = log.world, max(sizes), defaultdict[str, list[float]](list)
    query = rng.integers(0, len(world.target), n)
    slate, shape = log.draw(n, rng), (n, world.slots, world.actions)
    target = np.zeros(shape)
    np.put_along_axis(target, world.target[query][:, :, None], 1.0, axis=2)
    batch = EventBatch.from_arrays(
        reward=ndcg(world, query, slate),
        action=slate,
        scores=np.tile(np.log(log.weight), (n, 1)) if log.peak else None,
        propensities=None if log.peak else np.full(shape, 1 / world.actions),
        policies={"new": target},
        features=np.repeat(world.features[query][:, None], world.slots, axis=1),
        slate_logging="plackett_luce" if log.peak else "uniform_ranking",
    )
    evaluator = Evaluator({"new": "logged", "learns": "of_slot_rewards"}, list(MODELLED), ["cumulative"], drift=None)
    gain_of_log, best_gain = logging_value(log), linear_value(world)
    for first, last in zip((0, *sizes), sizes, strict=False):
        evaluator.update(batch[first:last])
        evaluator.fold_pending()
        report, state = evaluator.report(), evaluator.learned("learns")
        for name in MODELLED:
            found[name].append(report.get("new", name, "cumulative").value or np.nan)
        weights = np.linalg.solve(state["precision"], state["moment"][..., None])[: world.slots, 1:, 0]
        reached = value_of_scores(world, np.einsum("qad,sd->qsa", world.features, weights))
        found["share"].append((reached - gain_of_log) / (best_gain - gain_of_log))
    return found


def value_of_scores(world: World, scores: Array) -> float:
    """Return the true NDCG of slates that have the best document left in each slot, [queries, slots, actions]."""
    left, queries, slates = scores.copy(), np.arange(len(scores)), []
    for slot in range(world.slots):
        slates.append(left[:, slot].argmax(axis=1))
        left[queries, :, slates[-1]] = -np.inf
    return float(ndcg(world, queries, np.stack(slates, axis=1)).mean())


def linear_value(world: World) -> float:
    """Return the true NDCG of the ranker that regresses the gain of all documents on their features."""
    features = world.features.reshape(-1, world.features.shape[2])
    inputs = np.column_stack([np.ones(len(features)), features])
    weights = np.linalg.lstsq(inputs, world.gain.ravel(), rcond=None)[0][1:]
    return value_of_scores(world, np.repeat((world.features @ weights)[:, None], world.slots, axis=1))


def logging_value(log: Log) -> float:
    """Return the true NDCG of the logging ranker, from its probability of each document in each slot."""
    world = log.world
    shown = np.diag(log.covariance).reshape(world.slots, world.actions)
    best = -np.sort(-world.gain, axis=1)[:, : world.slots] @ world.discount
    return float((world.gain @ shown.T @ world.discount / best).mean())
