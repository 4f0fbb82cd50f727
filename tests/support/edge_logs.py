"""Draw random logs at the edges of the evidence, and count how often intervals miss their true values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streameval import Evaluator
from streameval.events import EventBatch
from streameval.ope.core import AdaptiveDecay, AdaptiveWindow, AnyAverage, Cumulative, Decay, Mixture, Window
from streameval.ope.estimators import IPS, SNIPS, AnyEstimator, ControlVariate, StratifiedIPS
from streameval.ope.intervals import AnyInterval, EmpiricalBernstein, EmpiricalLikelihood

Array = NDArray[np.float64]
Column = tuple[str, str, str]
"""Estimator, average, and `value` or `lift`."""

DEPLOYED = "deployed"
CANDIDATES = [f"candidate-{number}" for number in range(12)]
ESTIMATORS: list[AnyEstimator] = [IPS(), SNIPS(), ControlVariate(), StratifiedIPS()]
ROUNDING = 1e-9


class Kinds(NamedTuple):
    """Describe several kinds of events.

    Attributes:
        weights: Importance weight of each kind.
        shares: Share of each kind in the log.
        chances: Probability of a reward for each kind.
    """

    weights: Sequence[float]
    shares: Sequence[float]
    chances: Sequence[float]

    @property
    def production(self) -> float:
        """Return the value of the logging policy."""
        return float(np.dot(self.shares, self.chances))

    @property
    def value(self) -> float:
        """Return the value of a candidate, if the expected weight is 1."""
        return float(np.dot(np.multiply(self.weights, self.shares), self.chances))

    def log(self, rng: np.random.Generator, events: int) -> tuple[Array, Array]:
        """Draw rewards [events], and weights [events, candidates] that are independent given the reward."""
        reward = (rng.random(events) < self.production) * 1.0
        return reward, self.weights_given(reward, rng, len(CANDIDATES))

    def weights_given(self, reward: Array, rng: np.random.Generator, policies: int) -> Array:
        """Draw weights [events, policies] that are independent given the reward."""
        rewarded, others = (
            np.multiply(self.shares, self.chances),
            np.multiply(self.shares, np.subtract(1, self.chances)),
        )
        size = (len(reward), policies)
        drawn = [rng.choice(self.weights, size, p=kinds / kinds.sum()) for kinds in (others, rewarded)]
        return np.where(reward[:, None] > 0, drawn[1], drawn[0])


class Edge(NamedTuple):
    """Describe logs at one edge of the evidence.

    Attributes:
        kinds: Kinds of events, with the weights of a candidate.
        events: Number of events of a log.
        later: Kinds of events in the second half, by default `kinds`.
        deployed: Weights of a named production policy, with equal probabilities of rewards. None for the logging
            policy.
    """

    kinds: Kinds
    events: int
    later: Kinds | None = None
    deployed: Kinds | None = None

    @property
    def heaviest(self) -> float:
        """Return the largest weight of a candidate or a named production policy."""
        return max([*self.kinds.weights, *(self.deployed.weights if self.deployed else [])])

    @property
    def truths(self) -> dict[str, float]:
        """Return the value of a candidate and its lift over production."""
        production = self.kinds.production if self.deployed is None else self.deployed.value
        return {"value": self.kinds.value, "lift": self.kinds.value - production}

    def batch(self, rng: np.random.Generator) -> EventBatch:
        """Draw one log of all candidates."""
        half = self.events // 2
        first, second = self.kinds.log(rng, self.events - half), (self.later or self.kinds).log(rng, half)
        reward, weight = (np.concatenate(columns) for columns in zip(first, second, strict=True))
        propensity = np.full(self.events, 1 / max(1.0, self.heaviest))
        policies = {name: weight[:, index] * propensity for index, name in enumerate(CANDIDATES)}
        if self.deployed is not None:
            policies[DEPLOYED] = self.deployed.weights_given(reward, rng, 1)[:, 0] * propensity
        return EventBatch.from_arrays(reward=reward, propensity=propensity, policies=policies)


RARE, USUAL, OFTEN = 0.004, 0.3, 0.9
EDGES = {
    "no reward yet": Edge(Kinds([0, 2], [0.5, 0.5], [RARE, RARE]), 250),
    "no reward yet, heavy weights": Edge(Kinds([0.5, 50.5], [0.99, 0.01], [RARE, RARE]), 250),
    "no reward yet, production rewarded": Edge(Kinds([0, 10], [0.9, 0.1], [0.5, 0]), 250),
    "one reward": Edge(Kinds([0, 2], [0.5, 0.5], [2 * RARE, 2 * RARE]), 125),
    "one reward, production rewarded": Edge(Kinds([0, 10], [0.9, 0.1], [0.5, 0.04]), 250),
    "one heavy event": Edge(Kinds([0.5, 125.5], [0.996, 0.004], [USUAL, USUAL]), 250),
    "one heavy event, better": Edge(Kinds([0.5, 125.5], [0.996, 0.004], [USUAL, OFTEN]), 250),
    "one heavy event, worse": Edge(Kinds([0.5, 125.5], [0.996, 0.004], [USUAL, 0.05]), 250),
    "seldom a heavy event": Edge(Kinds([0.5, 1000.5], [0.9995, 0.0005], [USUAL, OFTEN]), 250),
    "weights 0": Edge(Kinds([0, 200], [0.995, 0.005], [USUAL, USUAL]), 250),
    "candidate is production": Edge(Kinds([1], [1], [USUAL]), 250),
    "two events": Edge(Kinds([0, 2], [0.5, 0.5], [USUAL, USUAL]), 2),
    "twelve events": Edge(Kinds([0.5, 5.5], [0.9, 0.1], [USUAL, USUAL]), 12),
    "production's heavy event": Edge(
        Kinds([0, 2], [0.5, 0.5], [USUAL, USUAL]), 500, deployed=Kinds([0.8, 200.8], [0.999, 0.001], [USUAL, USUAL])
    ),
    "production's heavy event, twelve events": Edge(
        Kinds([0, 2], [0.5, 0.5], [USUAL, USUAL]), 12, deployed=Kinds([0.9, 20.9], [0.995, 0.005], [USUAL, USUAL])
    ),
    "support lost": Edge(Kinds([0.4, 1.6], [0.5, 0.5], [USUAL, USUAL]), 500, later=Kinds([0.2], [1], [USUAL])),
}

KERNELS: list[AnyAverage] = [Cumulative(), Window(tau=200), Decay(alpha=0.995), AdaptiveWindow(), AdaptiveDecay()]


def averages_of(kind: str, heaviest: float) -> tuple[list[AnyAverage], dict[str, AnyInterval | str]]:
    """Return the averages that support a kind of interval, and the interval for each.

    Args:
        kind: Kind of the interval.
        heaviest: Largest importance weight.
    """
    averages = {
        "normal": KERNELS,
        "empirical_likelihood": KERNELS,
        "confidence_sequence": [Cumulative(), Window(tau=100)],
        "empirical_bernstein": KERNELS,
        "drift_aware": [Mixture()],
    }[kind]
    method = EmpiricalBernstein(max_weight=heaviest) if kind == "empirical_bernstein" else kind
    return list(averages), {average.label: method for average in averages}


def missed(edge: Edge, kind: str, seeds: Iterable[int]) -> Mapping[Column, list[float]]:
    """Return the share of intervals that miss the truth, for each column and each log of all candidates.

    A withheld interval misses nothing.
    """
    averages, intervals = averages_of(kind, edge.heaviest)
    production = "logging" if edge.deployed is None else DEPLOYED
    if edge.later is not None and kind == "empirical_likelihood":  # propensities do not show lost support
        intervals = {average.label: EmpiricalLikelihood(max_weight="none") for average in averages}
    shares = defaultdict[Column, list[float]](list)
    for seed in seeds:
        evaluator = Evaluator(CANDIDATES, ESTIMATORS, averages, production=production, intervals=intervals, drift=None)
        evaluator.update(edge.batch(np.random.default_rng([seed, edge.events])))
        misses = defaultdict[Column, list[bool]](list)
        for estimate in evaluator.report().estimates:
            if estimate.policy in CANDIDATES:
                ends = {"value": (estimate.lower, estimate.upper), "lift": (estimate.lift_lower, estimate.lift_upper)}
                for quantity, truth in edge.truths.items():
                    misses[estimate.estimator, estimate.average, quantity].append(misses_truth(ends[quantity], truth))
        for column, outcomes in misses.items():
            shares[column].append(float(np.mean(outcomes)))
    return shares


def misses_truth(ends: tuple[float | None, float | None], truth: float) -> bool:
    """Return whether an interval misses the truth. A withheld interval does not."""
    lower, upper = ends
    return lower is not None and upper is not None and not lower - ROUNDING <= truth <= upper + ROUNDING
