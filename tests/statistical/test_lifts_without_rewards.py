"""Test how often the lift of a candidate without rewards is missed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from streameval.ope.core import AdaptiveDecay, AdaptiveWindow, AnyAverage, Cumulative, Decay, Window
from streameval.ope.estimators import IPS, SNIPS, AnyEstimator
from support.streams import CANDIDATE, Stream, evaluated, from_weights

KERNELS: list[AnyAverage] = [
    *(Cumulative(), Window(tau=200), Decay(alpha=0.995)),
    *(AdaptiveWindow(drift_span=500), AdaptiveDecay(drift_span=500)),
]


ESTIMATORS: list[AnyEstimator] = [IPS(), SNIPS()]


def worthless(events: int, seed: int) -> Stream:
    """Draw a candidate that takes a tenth of the actions, which earn nothing. The others earn half the time."""
    rng = np.random.default_rng([seed, events])
    taken = rng.random(events) < 0.1
    return from_weights(taken * 10.0, (~taken & (rng.random(events) < 0.5)) * 1.0)


@pytest.mark.parametrize("events", [30, 300])
def test_a_candidate_without_a_reward_loses_what_production_earns(events: int) -> None:
    """Compare its lift with the truth, -.45."""
    logs, missed = 25, Counter[tuple[str, str]]()
    for seed in range(logs):
        for estimate in evaluated(worthless(events, seed), estimators=ESTIMATORS, averages=KERNELS).report().estimates:
            if estimate.policy == CANDIDATE:
                assert estimate.lift_lower is not None
                assert estimate.lift_upper is not None
                missed[estimate.estimator, estimate.average] += not estimate.lift_lower <= -0.45 <= estimate.lift_upper
    assert len(missed) == len(ESTIMATORS) * len(KERNELS)
    assert max(missed.values()) <= logs * 0.05 + 3 * np.sqrt(logs * 0.05 * 0.95)


SKEWED = [("empirical_likelihood", seed) for seed in range(8)] + [("confidence_sequence", seed) for seed in range(8)]
