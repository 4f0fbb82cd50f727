"""Test rewards that are always 1: `snips` is 1, and each kind of interval says how certain that is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streameval import Evaluator
from streameval.ope.core import AdaptiveDecay, AdaptiveWindow, AnyAverage, Cumulative, Decay, Mixture, Window
from streameval.ope.estimators import IPS, SNIPS
from streameval.ope.intervals import AnyInterval, ConfidenceSequence, EmpiricalBernstein
from streameval.ope.policies.logged import LOGGING
from streameval.ope.report import Report
from support.streams import CANDIDATE, Array, from_weights

AVERAGES: list[AnyAverage] = [
    *(Cumulative(), Window(tau=700), Decay(alpha=0.997), Mixture()),
    *(Window(span="5m", name="minutes"), Decay(half_life="3m", name="fading")),
    *(AdaptiveWindow(drift_span=500), AdaptiveDecay(drift_span=500)),
]
SPREAD_BASED: list[AnyInterval | str | None] = [None, "normal", "empirical_likelihood"]
HONEST: list[AnyInterval] = [EmpiricalBernstein(max_weight=12.0), ConfidenceSequence()]


def asked(
    reward: Array, average: AnyAverage, bound: AnyInterval | str | None, reward_range: tuple[float, float] = (0.0, 1.0)
) -> Report:
    """Return the Report on events in a quarter of an hour, with weights that average to 1.

    Args:
        bound: Interval of the average, or None for the default.
    """
    weight = np.random.default_rng(7).choice([0.0, 0.5, 2.0, 10.0], p=[0.3, 0.5, 0.175, 0.025], size=len(reward)) / 0.85
    evaluator = Evaluator(
        [CANDIDATE],
        estimators=[IPS(), SNIPS()],
        averages=[average],
        intervals={} if bound is None else {average.label: bound},
        reward_range=reward_range,
    )
    batch = from_weights(weight, reward).batch()
    evaluator.update(replace(batch, timestamp=1.7e9 + np.arange(len(reward)) * 900 / len(reward)))
    return evaluator.report()


def always_one(events: int, average: AnyAverage, bound: AnyInterval | str | None, **settings: Any) -> Report:
    return asked(np.ones(events), average, bound, **settings)


@pytest.mark.parametrize("bound", SPREAD_BASED, ids=str)
@pytest.mark.parametrize("average", AVERAGES, ids=lambda case: case.label)
def test_kinds_that_count_observed_rewards_report_1(average: AnyAverage, bound: AnyInterval | str | None) -> None:
    report = always_one(1_234, average, bound)
    for policy in (CANDIDATE, LOGGING):
        estimate = report.get(policy, "snips", average.label)
        for number in (estimate.value, estimate.lower, estimate.upper):
            assert number == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("reward", [0.3, 0.7, 1.0])
@pytest.mark.parametrize("bound", ["normal", "drift_aware", "empirical_likelihood"])
def test_a_candidate_with_equal_rewards_on_a_mixture_has_the_lift_0_exactly(bound: str, reward: float) -> None:
    estimate = asked(np.full(5_000, reward), Mixture(), bound).get(CANDIDATE, "snips", "mixture")
    assert estimate.lift == 0.0
    if bound == "normal":
        assert (estimate.lift_lower, estimate.lift_upper) == (None, None)  # nothing has varied
    else:
        assert estimate.lift_lower is not None
        assert estimate.lift_upper is not None
        assert estimate.lift_lower < 0.0 < estimate.lift_upper


@pytest.mark.parametrize("bound", HONEST, ids=lambda case: case.kind)
@pytest.mark.parametrize("average", [Cumulative(), Window(tau=100_000)], ids=lambda case: case.label)
def test_kinds_that_promise_more_leave_room_for_a_reward_that_has_not_come(
    average: AnyAverage, bound: AnyInterval
) -> None:
    lows = []
    for events in (1_000, 4_000, 16_000):
        estimate = always_one(events, average, bound).get(CANDIDATE, "snips", average.label)
        assert estimate.value == pytest.approx(1.0, abs=1e-9)
        assert estimate.lower is not None
        assert estimate.upper == 1.0
        lows.append(estimate.lower)
    assert 0.5 < lows[0] < lows[1] < lows[2] < 1.0


@pytest.mark.parametrize("bound", [*HONEST, None], ids=str)
def test_where_the_range_of_rewards_leaves_no_room_all_kinds_report_1(bound: AnyInterval | None) -> None:
    estimate = always_one(1_000, Cumulative(), bound, reward_range=(1 - 1e-9, 1.0)).get(
        CANDIDATE, "snips", "cumulative"
    )
    assert (estimate.lower, estimate.upper) == (pytest.approx(1.0, abs=2e-9), pytest.approx(1.0, abs=2e-9))


@pytest.mark.parametrize("bound", HONEST, ids=lambda case: case.kind)
def test_the_room_is_needed(bound: AnyInterval) -> None:
    """Draw rewards of 1 but once in a thousand events. [1, 1] would be wrong until the first 0 comes."""
    reward = (np.random.default_rng(11).random(700) < 0.999).astype(float)
    assert reward.all()
    estimate = asked(reward, Cumulative(), bound).get(CANDIDATE, "snips", "cumulative")
    assert estimate.lower is not None
    assert estimate.lower < 0.999


def test_ips_leaves_room_by_default() -> None:
    lower, upper = (always_one(1_234, Cumulative(), None).get(CANDIDATE, "ips", "cumulative").interval)[:2]
    assert lower is not None
    assert upper is not None
    assert 0.8 < lower < 0.999 < upper <= 1.0


@pytest.mark.parametrize("average", [Cumulative(), Mixture()], ids=lambda case: case.label)
def test_a_reward_that_is_always_0_is_not_certain(average: AnyAverage) -> None:
    estimate = asked(np.zeros(1_234), average, None).get(CANDIDATE, "snips", average.label)
    assert estimate.value == 0.0
    if average.label == "mixture":
        assert (estimate.lower, estimate.upper) == (None, None)  # no variance is known before the first reward
    else:
        assert estimate.upper is not None
        assert estimate.upper > 0.0
