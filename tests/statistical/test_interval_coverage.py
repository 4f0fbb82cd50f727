"""Coverage of intervals, and the design effect of sessions. The seeds were written down before the first run."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from streameval.ope.core import AnyAverage, Cumulative, Decay, Window
from streameval.ope.estimators import (
    IPS,
    SNIPS,
)
from streameval.ope.policies.logged import LOGGING
from support.streams import CANDIDATE, Stream, evaluated, from_weights

WIDE = (-1e6, 1e6)
"""A range of rewards that clips no interval."""


REPEATS = 800
STILL: list[AnyAverage] = [Cumulative(), Window(tau=1_000), Decay(alpha=0.998)]


def still_world(rng: np.random.Generator, n: int = 2_000) -> Stream:
    """Draw weights of mean 1 and standard deviation 0.7, and clicks, likelier for large weights: E[w r] = 0.35."""
    weight = rng.gamma(2.0, 0.5, n)
    chance = np.clip(0.2 + 0.1 * weight, 0, 1)
    return from_weights(weight, (rng.uniform(size=n) < chance) * 1.0)


def coverage(kind: str, seed: int, repeats: int) -> dict[tuple[str, str], float]:
    """Return the share of repeats with an interval that holds the truth, by estimator and average."""
    rng, covered = np.random.default_rng(seed), Counter[tuple[str, str]]()
    sample = rng.gamma(2.0, 0.5, 4_000_000)
    truth = float(np.mean(sample * np.clip(0.2 + 0.1 * sample, 0, 1)))
    for _ in range(repeats):
        evaluator = evaluated(
            still_world(rng), estimators=[IPS(), SNIPS()], averages=STILL, intervals={a.label: kind for a in STILL}
        )
        for e in evaluator.report().estimates:
            if e.policy == CANDIDATE:
                assert e.lower is not None
                assert e.upper is not None
                covered[e.estimator, e.average] += e.lower <= truth <= e.upper
    return {key: count / repeats for key, count in covered.items()}


@pytest.mark.slow
def test_normal_intervals_cover_as_often_as_their_confidence() -> None:
    shares = coverage("normal", seed=20240611, repeats=REPEATS)
    assert len(shares) == 6
    assert {key: share for key, share in shares.items() if not 0.93 <= share <= 0.97} == {}


@pytest.mark.slow
def test_empirical_bernstein_covers_at_least_as_often_as_its_confidence() -> None:
    shares = coverage("empirical_bernstein", seed=20240612, repeats=150)
    assert len(shares) == 6
    assert min(shares.values()) >= 0.95


def sessions(rng: np.random.Generator, count: int, size: int, correlation: float) -> Stream:
    """Draw sessions of `size` events with this intra-class correlation of rewards, mean 1/2, and weights of 1."""
    shared = np.repeat(rng.normal(0, math.sqrt(correlation), count), size)
    own = rng.normal(0, math.sqrt(1 - correlation), count * size)
    return from_weights(np.ones(count * size), 0.5 + 0.1 * (shared + own))


def design_effects(rng: np.random.Generator, block: int, correlation: float) -> list[float]:
    """Return the design effects of eight streams of 600 sessions of 20 events."""
    effects = []
    for _ in range(8):
        stream = sessions(rng, 600, 20, correlation)
        report = evaluated(stream, estimators=[IPS()], averages=[Cumulative()], block=block, reward_range=WIDE).report()
        effects.append(report.get(LOGGING, "ips", "cumulative").details["design_effect"])
    return effects


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.0, 0.05, 0.2, 0.6])
@pytest.mark.parametrize("block", [20, 100])
def test_the_design_effect_of_sessions_is_1_plus_m_minus_1_rho(block: int, correlation: float) -> None:
    rng = np.random.default_rng(20240613)
    mean = np.mean(design_effects(rng, block, correlation))
    assert mean == pytest.approx(1 + 19 * correlation, rel=0.1)


@pytest.mark.slow
def test_the_interval_of_clustered_events_covers_because_it_is_wider() -> None:
    rng = np.random.default_rng(20240614)
    covered, width = 0, []
    for _ in range(300):
        evaluator = evaluated(
            sessions(rng, 200, 20, 0.2),
            estimators=[IPS()],
            averages=[Cumulative()],
            intervals={"cumulative": "normal"},
            reward_range=WIDE,
        )
        estimate = evaluator.report().get(CANDIDATE, "ips", "cumulative")
        covered += estimate.lower <= 0.5 <= estimate.upper
        width.append((estimate.upper - estimate.lower) / 2 / (1.96 * 0.1 / math.sqrt(4_000)))
    assert np.mean(width) == pytest.approx(math.sqrt(1 + 19 * 0.2), rel=0.1)
    assert 0.92 <= covered / 300 <= 0.98
