"""Policies that learn while they are judged: confidence sequences hold what they were on average, and weights are 1."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import binom

from streameval import DR, IPS, Cumulative, Evaluator, Learned
from support.learning import ACTIONS, WIDTH, log

pytestmark = pytest.mark.slow

STREAMS, EVENTS, BLOCK, LOOK = 30, 3_000, 100, 300
CANDIDATES = {
    "ips": Learned(step=0.05),
    "sampled": Learned(step=0.05, counter_sample=True),
    "dr": Learned(objective="dr", step=0.05),
    "cab": Learned(objective="cab", clip=4.0, step=0.05),
}
FEATURES = np.random.default_rng(99).normal(size=(1_000, ACTIONS, WIDTH))
CHANCE = 1 / (1 + np.exp(-2 * FEATURES @ np.array([1.0, -1.0, 0.5])))


def value(weights: np.ndarray) -> float:
    """Return the true value of a policy with these weights, in the world of `support.learning.log`."""
    shares = softmax(FEATURES @ weights[0], axis=1) if weights.size else np.full(CHANCE.shape, 1 / ACTIONS)
    return float((shares * CHANCE).sum(axis=1).mean())


def missed(seed: int) -> set[tuple[str, str]]:
    """Return the candidates and estimators with a sequence that ever missed the candidate's mean value."""
    sequence = {"cumulative": "confidence_sequence"}
    estimators = [IPS(), DR()]
    evaluator = Evaluator(CANDIDATES, estimators, [Cumulative()], intervals=sequence, drift=None, promotion=None)
    batch, truths, misses = log(EVENTS, seed=seed), dict.fromkeys(CANDIDATES, 0.0), set()
    for first in range(0, EVENTS, BLOCK):
        for name in CANDIDATES:
            truths[name] += value(evaluator.learned(name)["weights"]) * BLOCK
        evaluator.update(batch[first : first + BLOCK])
        if (first + BLOCK) % LOOK == 0:
            evaluator.fold_pending()
            rows = evaluator.estimates([("ips", "cumulative"), ("dr", "cumulative")])
            for row in (row for row in rows if row.policy in CANDIDATES):
                assert row.lower is not None
                assert row.upper is not None
                if not row.lower <= truths[row.policy] / (first + BLOCK) <= row.upper:
                    misses.add((row.policy, row.estimator))
    return misses


def test_a_sequence_misses_what_a_learning_policy_was_on_average_no_more_often_than_it_promises() -> None:
    misses = [label for seed in range(STREAMS) for label in missed(seed)]
    counts = {label: misses.count(label) for label in sorted(set(misses))}
    print(counts)
    assert max(counts.values(), default=0) <= binom.ppf(0.999, STREAMS, 0.05)
