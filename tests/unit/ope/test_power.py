"""Test how many events it takes to see a lift: the arithmetic, and whether it comes true."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streameval import IPS, SNIPS, EventBatch
from streameval.ope.estimators import AnyEstimator
from streameval.ope.exploration import ExplorationPlan
from streameval.ope.power import (
    USUAL,
    LogSummary,
    TargetLift,
    events_needed,
    smallest_lift,
)
from support.power_worlds import CANDIDATE, MILD, estimate_of, events_for, forecast_of

SURE = {"confidence": 0.95, "power": 0.8}


@given(st.floats(0.01, 100), st.floats(0.5, 20), st.floats(1e-4, 1), st.floats(0.5, 0.999), st.floats(0.5, 0.99))
def test_the_smallest_lift_for_a_number_of_events_inverts_the_number_for_a_lift(
    deviation: float, effect: float, lift: float, confidence: float, power: float
) -> None:
    events = events_needed(deviation, effect, lift, confidence, power)
    assert smallest_lift(deviation, effect, events, confidence, power) == pytest.approx(lift, rel=1e-9)


def test_half_the_lift_takes_four_times_the_events() -> None:
    assert events_needed(1.0, 1.0, 0.01, **SURE) == pytest.approx(4 * events_needed(1.0, 1.0, 0.02, **SURE))


def test_dependent_events_count_less_by_the_design_effect() -> None:
    once = MILD.log(4_000, seed=2)
    repeated = once.take(np.repeat(np.arange(4_000), 10))
    alone, alike = (events_for(log, 0.05, SNIPS()).events for log in (MILD.log(40_000, seed=2), repeated))
    assert alike / alone == pytest.approx(10, rel=0.25)


@pytest.mark.parametrize("estimator", [IPS(), SNIPS()], ids=["ips", "snips"])
def test_events_that_stand_for_different_numbers_of_events_count_less(estimator: AnyEstimator) -> None:
    """Keep one in twenty of the events with odd indices."""
    log, every = MILD.log(80_000, seed=3), np.arange(80_000)
    rare = every % 2 == 1
    log = replace(log, sampling_probability=np.where(rare, 0.05, 1.0)).take(~rare | (every % 40 == 1))
    estimate = estimate_of(log, estimator)
    assert estimate.lift_lower is not None
    assert estimate.lift is not None
    (candidate,) = forecast_of(log, [TargetLift(0.01)], estimator).candidates
    error = (estimate.lift - estimate.lift_lower) / NormalDist().inv_cdf(0.975)
    shown = error * (NormalDist().inv_cdf(0.975) + NormalDist().inv_cdf(0.8))
    assert candidate.detectable == pytest.approx(shown, rel=0.02)
    assert candidate.needed[0].events == pytest.approx(len(log) * (shown / 0.01) ** 2, rel=0.04)


def test_days_follow_from_the_rate_of_the_events_that_carry_the_candidate() -> None:
    log = MILD.log(20_000, seed=3, rate=4.0)
    whole = events_for(log, 0.02, SNIPS())
    assert whole.seconds == pytest.approx(whole.events / 4.0, rel=1e-3)
    half = log.probabilities.copy()
    half[::2] = np.nan
    fewer = EventBatch.from_arrays(
        reward=log.reward, propensity=log.propensity, policies={CANDIDATE: half[:, 0]}, timestamp=log.timestamp
    )
    partly = events_for(fewer, 0.02, SNIPS())
    assert partly.seconds == pytest.approx(2 * partly.events / 4.0, rel=1e-3)


def test_without_times_there_is_no_duration() -> None:
    log = MILD.log(5_000, seed=3)
    timeless = EventBatch.from_arrays(
        reward=log.reward, propensity=log.propensity, policies={CANDIDATE: log.probabilities[:, 0]}
    )
    assert np.isnan(timeless.timestamp).all()
    actual = forecast_of(timeless, [TargetLift(0.01)])
    assert actual.events_per_second is None
    assert actual.candidates[0].needed[0].seconds is None


def test_lifts_are_shares_of_the_value_of_production_unless_they_are_numbers() -> None:
    actual = forecast_of(MILD.log(20_000, seed=4), [*USUAL, TargetLift(0.01)])
    assert actual.value is not None
    parts = {round(share * actual.value, 9) for share in (0.02, 0.05, 0.1, 0.2)}
    assert {round(lift, 9) for lift in actual.lifts} == parts | {0.01}


def test_lifts_are_shares_of_the_reward_range_if_production_earns_nothing() -> None:
    for value in (0.0, -1.0, None):
        assert TargetLift(0.05, relative=True).absolute(value, (-1.0, 1.0)) == pytest.approx(0.1)


@pytest.mark.parametrize("wrong", ["x", "0", "-1", "nan", "inf", "%", ""])
def test_text_that_is_not_a_lift_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="expected a number above 0, or a percentage"):
        TargetLift.read(wrong)


def test_an_average_that_forgets_never_shows_a_small_lift() -> None:
    (candidate,) = forecast_of(MILD.log(20_000, seed=5), [TargetLift(0.01)]).candidates
    (limit,) = candidate.limits
    assert candidate.deviation is not None
    assert limit.lift == pytest.approx(smallest_lift(candidate.deviation, 1.0, 10_000, **SURE), rel=0.1)


def test_no_remedy_is_proposed_if_noise_has_many_causes() -> None:
    (candidate,) = forecast_of(MILD.log(50_000, seed=8), [TargetLift(0.01)]).candidates
    assert candidate.reason is None
    assert candidate.relief is None


def test_one_wrong_propensity_is_not_a_reason_to_explore_more() -> None:
    log = MILD.log(20_000, seed=8)
    propensity = log.propensity.copy()
    propensity[5_000] = 1e-6
    wrong = EventBatch.from_arrays(
        reward=log.reward, propensity=propensity, policies={CANDIDATE: log.probabilities[:, 0]}, timestamp=log.timestamp
    )
    summary = LogSummary(("logging", CANDIDATE), {}, (0.0, 1.0))
    summary.update(wrong)
    assert summary.advice(CANDIDATE) is None


def rows(events: int, **columns: object) -> EventBatch:
    log = MILD.log(events, seed=9)
    arrays = {"reward": log.reward, "propensity": log.propensity, "target": log.probabilities[:, 0], **columns}
    return EventBatch.from_arrays(
        reward=arrays["reward"],
        propensity=arrays["propensity"],
        policies={CANDIDATE: arrays["target"]},
        timestamp=log.timestamp,
    )


def test_a_policy_without_events_counts_as_sampled_evenly() -> None:
    log = LogSummary(("logging", CANDIDATE), {}, (0.0, 1.0))
    assert log.unevenness(CANDIDATE) == 1.0
    log.update(rows(100, target=np.full(100, np.nan)))
    assert log.unevenness(CANDIDATE) == 1.0


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        (rows(1_000, target=np.full(1_000, np.nan)), "no event carries its probability"),
        (rows(1_000, target=np.zeros(1_000)), "the log has no action that the candidate would take"),
        (rows(1_000, reward=np.zeros(1_000)), "fewer than ten of its events have a reward"),
        (rows(1_000, target=MILD.log(1_000, seed=9).propensity), "it has not yet differed from production"),
        (rows(5_000, propensity=np.minimum(2 * MILD.log(5_000, seed=9).propensity, 1)), "the log lacks actions"),
        (rows(5_000, propensity=MILD.log(5_000, seed=9).propensity / 2), "should be 1: propensities are wrong"),
    ],
)
def test_a_candidate_without_a_plan_has_a_reason(events: EventBatch, reason: str) -> None:
    (candidate,) = forecast_of(events, [TargetLift(0.01)]).candidates
    assert candidate.reason is not None
    assert reason in candidate.reason
    assert candidate.needed == ()


def test_more_events_do_not_help_for_actions_that_are_never_logged() -> None:
    events = 5_000
    rng = np.random.default_rng(10)
    action = rng.integers(2, size=events)
    batch = EventBatch.from_arrays(
        reward=(rng.random(events) < 0.3).astype(float),
        action=action,
        propensities=np.tile([0.5, 0.5, 0.0], (events, 1)),
        policies={CANDIDATE: np.tile([0.45, 0.45, 0.1], (events, 1))},
        timestamp=np.arange(events) / 10,
    )
    (candidate,) = forecast_of(batch, [TargetLift(0.01)]).candidates
    assert candidate.reason == "10.0% of its actions are never logged: no number of events shows their reward"


# -- exploration -----------------------------------------------------------------------------------------------------


def listed_log(logging: Any, events: int, seed: int) -> EventBatch:
    """Draw events of two contexts with full distributions of four actions."""
    rng = np.random.default_rng(seed)
    context = rng.integers(0, 2, events)
    propensities = logging[context]
    action = (propensities.cumsum(axis=1) > rng.random((events, 1))).argmax(axis=1)
    reward = (rng.random(events) < EXPLORED_REWARD[context, action]).astype(float)
    policies = {CANDIDATE: EXPLORED_TARGET[context]}
    return EventBatch.from_arrays(reward=reward, action=action, propensities=propensities, policies=policies)


EXPLORED_LOG = np.array([[0.9, 0.06, 0.02, 0.02], [0.02, 0.9, 0.06, 0.02]])
EXPLORED_TARGET = np.array([[0.3, 0.1, 0.1, 0.5], [0.02, 0.3, 0.66, 0.02]])
EXPLORED_REWARD = np.array([[0.3, 0.4, 0.3, 0.5], [0.2, 0.3, 0.4, 0.6]])


def variance_of(logging: Any) -> float:
    """Return the variance of one event's `(w - v) (r - c)` by enumeration of contexts, actions and rewards."""
    distance, centre = EXPLORED_TARGET - EXPLORED_LOG, (EXPLORED_LOG * EXPLORED_REWARD).sum() / 2
    square = EXPLORED_REWARD * (1 - centre) ** 2 + (1 - EXPLORED_REWARD) * centre**2
    mean = (distance * (EXPLORED_REWARD - centre)).sum() / 2
    return float((distance**2 * square / logging).sum() / 2 - mean**2)


def mixed_log(kind: str, share: float) -> Any:
    distance = np.abs(EXPLORED_TARGET - EXPLORED_LOG)
    other = {"focused": distance / distance.sum(axis=1, keepdims=True), "uniform": np.full((2, 4), 0.25)}[kind]
    return (1 - share) * EXPLORED_LOG + share * other


def explored(log: EventBatch) -> ExplorationPlan | None:
    summary = LogSummary(["logging", CANDIDATE], {}, (0.0, 1.0), explores=True)
    for first in range(0, len(log), 30_000):
        summary.update(log[first : first + 30_000])
    return summary.exploration(CANDIDATE)


def test_planned_exploration_equals_the_enumerated_one() -> None:
    plan, before = explored(listed_log(EXPLORED_LOG, 200_000, seed=1)), variance_of(EXPLORED_LOG)
    assert plan is not None
    assert plan.events == 200_000
    for kind, share in (("focused", plan.focused), ("uniform", plan.uniform)):
        assert share is not None
        assert variance_of(mixed_log(kind, share + 0.01)) < 0.5 * before
        assert variance_of(mixed_log(kind, share - 0.02)) > 0.5 * before
    factors = [variance_of(mixed_log("focused", share / 100)) / before for share in range(100)]
    assert plan.best_factor == pytest.approx(min(factors), rel=0.05)
    assert plan.focused is not None
    assert plan.uniform is not None
    assert plan.focused <= plan.uniform


def test_half_the_events_are_needed_after_the_planned_exploration() -> None:
    plan = explored(listed_log(EXPLORED_LOG, 100_000, seed=2))
    assert plan is not None
    assert plan.focused is not None
    errors = []
    for logging in (EXPLORED_LOG, mixed_log("focused", plan.focused)):
        log = listed_log(logging, 200_000, seed=3)
        assert log.action_sets is not None
        sets = log.action_sets
        context = (sets.probabilities[::4, 0] < 0.2).astype(int)
        at = context, sets.index
        distance = (EXPLORED_TARGET - EXPLORED_LOG)[at] / logging[at]
        errors.append(np.var(distance * (log.reward - (EXPLORED_LOG * EXPLORED_REWARD).sum() / 2)))
    assert errors[1] / errors[0] == pytest.approx(0.5, abs=0.05)


def test_without_lists_of_actions_no_exploration_is_planned() -> None:
    assert explored(MILD.log(1_000, seed=1)) is None
