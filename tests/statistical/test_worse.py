"""Measure how often chance makes a candidate worse, and what follows when a better one turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import streameval as se
from streameval.ope.evidence import Evidence
from support.periods import SINE, TRAFFIC
from support.promotion import BLOCK, greedy_weights, make_monitor, smooth_weights, sure_path


@pytest.mark.slow
@pytest.mark.parametrize("make", [smooth_weights, greedy_weights])
def test_another_policy_of_the_same_value_is_worse_by_anytime_no_more_often_than_promised(make: Any) -> None:
    """Leave no doubt about the present lift, so that the proof alone decides."""
    streams, rng = 500, np.random.default_rng(31)
    monitor = make_monitor(candidates=streams, rule="anytime", family_size=1)
    state, ever = monitor.start(), set()
    for _ in range(4):
        weight, propensity = make(rng, 6000, streams)
        rewards = (rng.random(6000) < 0.3) * 1.0
        evidence = Evidence.from_numbers(np.column_stack([np.ones(6000), weight]), rewards, BLOCK)
        sums = monitor.summarise(evidence, np.full(6000, np.nan), propensity)
        state = monitor.fold(state, sums, [[sure_path(60, streams, -1.0)]])
        ever |= {change.candidate for change in state.transitions if change.worse}
    assert len(ever) <= 0.05 * streams


WEIGHTS = {
    "mild": ((0.2, 0.6, 1.0, 2.2), (0.25, 0.25, 0.25, 0.25), 0.25),
    "heavy": ((0.0, 1 / 0.808, 125.0), (0.592, 0.404, 0.004), 0.008),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", WEIGHTS)
def test_another_policy_of_the_same_value_is_seldom_worse_by_paired(kind: str) -> None:
    """Follow 100 independent candidates in each of 4 streams with rewards in one of ten events."""
    (values, shares, propensity), candidates, ever = WEIGHTS[kind], 100, 0
    names = [f"candidate {number}" for number in range(candidates)]
    promotion = se.Promotion(rule="paired", family_size=1)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        found = se.Evaluator(names, [se.StratifiedIPS()], [se.Mixture()], promotion=promotion, drift=None)
        worse = set()
        for _ in range(60):
            drawn = np.searchsorted(np.cumsum(shares)[:-1], rng.random((5000, candidates)), side="right")
            policies = dict(zip(names, np.asarray(values)[drawn].T * propensity, strict=True))
            reward = 1.0 * (rng.random(5000) < 0.1)
            found.update(
                se.EventBatch.from_arrays(reward=reward, propensity=np.full(5000, propensity), policies=policies)
            )
            worse |= {change.policy for change in found.take_transitions() if change.worse}
        ever += len(worse)
    assert ever <= 0.05 * 4 * candidates


def month(rng: np.random.Generator, names: list[str], events: int) -> Iterator[se.EventBatch]:
    """Yield the hours of thirty days in which rewards have a cycle, and independent candidates differ in no value.

    Args:
        rng: Source of randomness.
        names: Candidates.
        events: Events of a day.
    """
    probabilities = np.array([0.05, 0.15, 0.25, 0.55])
    for hour in range(30 * 24):
        number = int(events / 24 * TRAFFIC[hour % 24])
        drawn = probabilities[rng.integers(0, 4, (len(names), number), dtype=np.uint8)]
        yield se.EventBatch.from_arrays(
            reward=1.0 * (rng.random(number) < 0.2 + 0.1 * SINE[hour % 24]),
            propensity=np.full(number, 0.25),
            policies=dict(zip(names, drawn, strict=True)),
            timestamp=3600.0 * (hour + (np.arange(number) + 0.5) / number),
        )


@pytest.mark.slow
def test_in_thirty_days_chance_makes_few_of_four_hundred_candidates_worse() -> None:
    """Follow all rules that can tell side by side, at 20,000 events a day: 100 candidates in each of 4 logs."""
    names = [f"candidate {number}" for number in range(100)]
    promotion = se.Promotion(rule=("periodic", "paired", "anytime"), family_size=1)
    ever: Counter[str] = Counter()
    for seed in range(4):
        found = se.Evaluator(names, [se.StratifiedIPS()], [se.Mixture()], promotion=promotion, drift=None)
        worse = set()
        for batch in month(np.random.default_rng(seed), names, 20_000):
            found.update(batch)
            worse |= {(change.rule, change.policy) for change in found.take_transitions() if change.worse}
        ever.update(rule for rule, _ in worse)
        assert {decision.rule for decision in found.report().promotion if decision.worse is not None} >= {"periodic"}
    assert max(ever.values()) <= 0.05 * 4 * len(names), ever


def turning(rng: np.random.Generator, lift: float, events: int) -> se.EventBatch:
    """Draw two actions by a coin. The candidate takes the first one in 9 of 10 events, which earns it `lift` more."""
    first = rng.random(events) < 0.5
    reward = 1.0 * (rng.random(events) < 0.3 + np.where(first, 1, -1) * lift / 0.8)
    policies = {"candidate": np.where(first, 0.9, 0.1)}
    return se.EventBatch.from_arrays(reward=reward, propensity=np.full(events, 0.5), policies=policies)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["paired", "anytime", {"kind": "anytime", "tau": 20_000}])
def test_after_a_turn_promotable_ends_before_the_candidate_is_worse(rule: Any) -> None:
    """Turn a lift of 8 % of production's value into a loss of 8 %."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        promotion = se.Promotion(rule=rule, family_size=1)
        found = se.Evaluator(["candidate"], ["snips"], [se.Mixture()], promotion=promotion, drift=None)
        for lift in (0.024, -0.024, -0.024, -0.024):
            found.update(turning(rng, lift, 100_000))
        found.fold_pending()
        changes = found.report().transitions
        starts = [change.event for change in changes if change.worse]
        ends = [change.event for change in changes if change.worse is None]
        assert ends[0] < 100_000 < ends[-1] < starts[0]
        assert not changes[-1].promotable
