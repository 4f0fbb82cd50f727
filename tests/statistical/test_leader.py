"""Measure how often chance makes the leader beat an equal candidate, and how soon a better one beats the others."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import NormalDist

import numpy as np
import pytest

from streameval.common.arrays import Array
from streameval.ope.evidence import Evidence
from streameval.ope.promotion import leader
from streameval.ope.promotion.block_sums import BlockSums
from streameval.ope.report import Contender

BLOCK, STREAMS, EVENTS = 100, 200, 40_000
NAMES = ("best", "a", "b", "c", "d")
ERROR = 0.05 / (len(NAMES) * (len(NAMES) - 1))


def log(seed: int, bonus: float, alike: float) -> tuple[Array, Array]:
    """Draw four actions evenly. Each candidate prefers one with probability 0.7, and takes each other one with 0.1.

    Args:
        seed: the seed
        bonus: what the action that `best` prefers earns more, from a mean reward of 0.5
        alike: the share of events on which all prefer the same action

    Returns:
        Importance weights [events, candidates] and rewards.
    """
    rng = np.random.default_rng(seed)
    action = rng.integers(4, size=EVENTS)
    shared = rng.random(EVENTS) < alike
    preferred = np.where(shared[:, None], rng.integers(4, size=(EVENTS, 1)), rng.integers(4, size=(EVENTS, len(NAMES))))
    hit = preferred == action[:, None]
    reward = rng.random(EVENTS) < 0.5 + bonus * (hit[:, 0] & ~shared)
    return np.where(hit, 2.8, 0.4), reward * 1.0


def watched(weight: Array, reward: Array) -> Iterator[tuple[Contender, ...]]:
    """Yield the comparison after each block."""
    evidence = Evidence.from_numbers(np.column_stack([np.ones(len(reward)), weight]), reward, BLOCK)
    sums = BlockSums.from_evidence(evidence)
    state = leader.start(len(NAMES))
    for index in range(len(reward) // BLOCK):
        columns = (getattr(sums, name)[index : index + 1] for name in sums.__struct_fields__)
        state = leader.fold(state, BlockSums(*columns), centred=True)
        yield leader.contenders(state, NAMES, ERROR, min_blocks=0)


@pytest.mark.slow
@pytest.mark.parametrize("alike", [0.0, 0.8])
def test_of_five_equal_candidates_nobody_is_ever_beaten_in_95_percent_of_streams(alike: float) -> None:
    beaten = sum(
        any(row.beaten for rows in watched(*log(seed, bonus=0.0, alike=alike)) for row in rows)
        for seed in range(STREAMS)
    )
    assert beaten <= 0.05 * STREAMS


@pytest.mark.slow
@pytest.mark.parametrize(("alike", "at_once"), [(0.5, 1), (0.0, 4)])
def test_a_better_candidate_beats_the_others_with_at_most_1_5_times_the_events_of_a_two_sample_test(
    alike: float, at_once: int
) -> None:
    """Compare with z-tests of two samples of the size of the log, which share an error of 5 %.

    Four of five streams may take at most 1.5 times the events with which these tests find all lifts in four of five.
    The lift is 5 %. If no two candidates are alike on any event, pairs save nothing, and all four tests are compared.
    """
    lift = 0.025
    bonus = lift / ((1 - alike) * (0.7 - 0.25))
    normal, reached, needed = NormalDist(), [], []
    deviations = normal.inv_cdf(1 - 0.025 / at_once) + normal.inv_cdf(0.8 ** (1 / at_once))
    for seed in range(STREAMS):
        weight, reward = log(seed, bonus, alike)
        residual = weight * (reward - reward.mean())[:, None]
        needed.append(deviations**2 * float(residual[:, :2].var(axis=0).sum()) / lift**2)
        paths = enumerate(watched(weight, reward), start=1)
        beaten = ((block, {row.policy for row in rows if row.beaten}) for block, rows in paths)
        block, names = next((row for row in beaten if len(row[1]) == len(NAMES) - 1), (np.inf, {"a", "b", "c", "d"}))
        assert "best" not in names
        reached.append(block * BLOCK)
    assert np.quantile(reached, 0.8) <= 1.5 * np.mean(needed)
