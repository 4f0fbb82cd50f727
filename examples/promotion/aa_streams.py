"""Simulate A/A streams: candidates that choose differently from the logging policy, but have the same value.

Rewards do not depend on actions. In some streams each candidate draws independent weights, as if the log were for it
alone. Given the rewards, the candidates of a stream are then independent, and a valid rule promotes each with at most
the nominal probability. The number of promoted candidates is at most binomial, although a hundred of them share the
rewards.

In other streams all candidates tilt the logging policy, as real policies do. They share the logged actions, and similar
ones are wrong together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
from experiment import RULES
from numpy.typing import NDArray

from streameval import Evaluator, EventBatch, Mixture, Promotion, StratifiedIPS
from streameval.ope.evidence import Evidence
from streameval.ope.intervals.sequences import LiftTest, error_shares

Floats = NDArray[np.float64]

CANDIDATES = 100
EVENTS = 40_000
CONFIDENCE = 0.95
REWARD = 0.1
"""Probability of a reward for every action."""
AT_ONCE = 5_000
FEW, WAVE = 20, 25_000
"""Candidates of a long stream with independent weights, and the period of `waving` rewards, between 0 and twice their
mean."""
LONG, LONGER = 1_000_000, 1_500_000
"""Events of a long stream with independent weights, and of one with tilts."""
ACTIONS = 10
CORRELATIONS: Mapping[str, float] = {"tilts": 0.0, "similar tilts": 0.5, "hardly different tilts": 0.9}
"""Correlation between the tilts of two candidates."""
FAMILIES = (1, 5, 20)
"""Numbers of candidates in streams with tilts."""
PROOF = "proof alone"


@dataclass(frozen=True)
class Weights:
    """Describe importance weights with mean 1.

    Args:
        values: Possible weights.
        shares: Their probabilities.
        propensity: Propensity that every event logs.
    """

    values: tuple[float, ...]
    shares: tuple[float, ...]
    propensity: float

    def draw(self, random: np.random.Generator, events: int, candidates: int) -> Floats:
        """Draw independent weights, [events, candidates]."""
        upper = np.cumsum(self.shares)[:-1]
        return np.asarray(self.values)[np.searchsorted(upper, random.random((events, candidates)), side="right")]


KINDS: Mapping[str, Weights] = {
    "mild": Weights((0.2, 0.6, 1.0, 2.2), (0.25, 0.25, 0.25, 0.25), propensity=0.25),
    "heavy": Weights((0.0, 1 / 0.808, 125.0), (0.592, 0.404, 0.004), propensity=0.008),
}
"""Mild: four actions logged evenly, taken with .05, .15, .25 and .55. Heavy: a greedy candidate against an
epsilon-greedy logging policy on 25 actions (epsilon .2). They have the same favourite half of the time."""


class Outcome(msgspec.Struct, frozen=True):
    """Count the candidates of one stream that were ever promotable.

    Args:
        weights: One of KINDS.
        seed: Seed of the stream.
        candidates: Number of candidates.
        events: Number of events.
        ever: Number of promotable candidates by rule, each with the error probability of `confidence`. `PROOF` stands
            for the proof of `anytime` alone, from the first block.
        family: Number of promotable candidates with the default shares of the error of a hundred candidates.
    """

    weights: str
    seed: int
    candidates: int
    events: int
    ever: dict[str, int]
    family: dict[str, int]


class LongOutcome(msgspec.Struct, frozen=True):
    """Count the candidates of one long stream that were ever promotable by `paired`.

    Args:
        weights: One of KINDS or CORRELATIONS.
        rewards: `still` or `waving`.
        candidates: Number of candidates.
        seed: Seed of the stream.
        events: Number of events.
        ever: Number of candidates that were ever promotable.
    """

    weights: str
    rewards: str
    candidates: int
    seed: int
    events: int
    ever: int


def follow_long(weights: str, rewards: str, candidates: int, seed: int) -> LongOutcome:
    """Run one long stream with the rule `paired` at its default settings."""
    evaluator = Evaluator(names(candidates), [StratifiedIPS()], [Mixture()], promotion="paired", drift=None)
    draw, events = (_tilted, LONGER) if weights in CORRELATIONS else (_independent, LONG)
    for batch in draw(weights, rewards, candidates, seed, events):
        evaluator.update(batch)
    ever = sum(decision.times > 0 for decision in evaluator.report().promotion)
    return LongOutcome(weights, rewards, candidates, seed, events, ever)


def _independent(kind: str, rewards: str, candidates: int, seed: int, events: int) -> Iterator[EventBatch]:
    waving = rewards == "waving"
    for first in range(0, events, AT_ONCE):
        random = np.random.default_rng([20_261_122, seed, list(KINDS).index(kind), int(waving), first])
        phase = 2 * np.pi * (first + np.arange(AT_ONCE)) / WAVE
        reward = (random.random(AT_ONCE) < REWARD * (1 + waving * np.sin(phase))).astype(float)
        yield _batch(reward, KINDS[kind].draw(random, AT_ONCE, candidates), KINDS[kind].propensity)


def tilted(logging: Floats, candidates: int, correlation: float, random: np.random.Generator) -> Floats:
    """Return policies in proportion to `p exp(g)`, with the logging policy p and normal g, [candidates, actions].

    Args:
        logging: Probabilities of the logging policy, or numbers in proportion to them, [actions].
        candidates: Number of candidates.
        correlation: Correlation between the g of two candidates.
        random: Source of random numbers.
    """
    shared, own = random.normal(size=(1, len(logging))), random.normal(size=(candidates, len(logging)))
    policies = logging * np.exp(math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * own)
    return np.asarray(policies / policies.sum(axis=1, keepdims=True))


def _tilted(kind: str, rewards: str, candidates: int, seed: int, events: int) -> Iterator[EventBatch]:
    """Draw a logging policy and candidates that tilt it, once for all events."""
    random = np.random.default_rng([20_261_126, seed, list(CORRELATIONS).index(kind), candidates])
    logging = 0.9 * random.dirichlet(np.ones(ACTIONS)) + 0.1 / ACTIONS
    policies = tilted(logging, candidates, CORRELATIONS[kind], random)
    for _ in range(0, events, AT_ONCE):
        action = random.choice(ACTIONS, AT_ONCE, p=logging)
        yield EventBatch.from_arrays(
            reward=(random.random(AT_ONCE) < REWARD).astype(float),
            propensity=logging[action],
            policies=dict(zip(names(candidates), policies[:, action], strict=True)),
        )


def follow(kind: str, seed: int, candidates: int = CANDIDATES, events: int = EVENTS) -> Outcome:
    """Run one stream with all rules, and with the proof of `anytime` alone."""
    promotion = Promotion.of({"rule": RULES, "family_size": 1})
    evaluator = Evaluator(names(candidates), [StratifiedIPS()], [Mixture()], promotion=promotion, drift=None)
    proof = LiftTest((0.0, 1.0))
    memory, largest = proof.start(1 + candidates), np.full(1 + candidates, -np.inf)
    for reward, weight in _draw(KINDS[kind], kind, seed, candidates, events):
        evaluator.update(_batch(reward, weight, KINDS[kind].propensity))
        both = np.concatenate([np.ones((len(reward), 1)), weight], axis=1)
        wealth, memory = proof.fold(memory, proof.observed(Evidence.from_numbers(both, reward)))
        largest = np.maximum(largest, wealth.max(axis=0))
    ever: dict[str, int] = dict.fromkeys(RULES, 0)
    for decision in evaluator.report().promotion:
        ever[decision.rule] += decision.times > 0
    error = 1 - CONFIDENCE
    ever[PROOF] = int(np.count_nonzero(largest[1:] >= math.log(1 / error)))
    shares = error_shares(error, range(1, candidates + 1))
    family = {PROOF: int(np.count_nonzero(largest[1:] >= np.log(1 / shares)))}
    return Outcome(kind, seed, candidates, events, ever, family)


def _draw(weights: Weights, kind: str, seed: int, candidates: int, events: int) -> Iterator[tuple[Floats, Floats]]:
    for first in range(0, events, AT_ONCE):
        random = np.random.default_rng([seed, list(KINDS).index(kind), first])
        count = min(AT_ONCE, events - first)
        yield (random.random(count) < REWARD).astype(float), weights.draw(random, count, candidates)


def _batch(reward: Floats, weight: Floats, propensity: float) -> EventBatch:
    policies = {name: column * propensity for name, column in zip(names(weight.shape[1]), weight.T, strict=True)}
    return EventBatch.from_arrays(reward=reward, propensity=np.full(len(reward), propensity), policies=policies)


def names(candidates: int) -> list[str]:
    """Return names of candidates."""
    return [f"candidate {number}" for number in range(1, candidates + 1)]
