"""Test `max_weight: auto`: the largest weight that logged propensities allow, and the interval that uses it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streameval import IPS, SNIPS, Cumulative, Decay, EmpiricalLikelihood, Evaluator, EventBatch, PseudoInverse, Window
from streameval.ope.evidence import largest_weights
from streameval.ope.report import Estimate
from support import recorded_logs as logs
from support.recorded_cases import batch

Array = NDArray[np.float64]
NEW = "new"


def log(propensity: Any, probability: Any, reward: Any = None) -> EventBatch:
    propensity = np.asarray(propensity, dtype=float)
    rewards = np.arange(len(propensity)) % 2 if reward is None else reward
    return EventBatch.from_arrays(reward=rewards, propensity=propensity, policies={NEW: probability})


def evaluated(*batches: EventBatch, max_weight: Any = "auto", **wanted: Any) -> Evaluator:
    averages = wanted.pop("averages", [Cumulative()])
    interval = EmpiricalLikelihood(max_weight=max_weight)
    intervals = {average.label: interval for average in averages}
    evaluator = Evaluator([NEW], wanted.pop("estimators", [IPS()]), averages, intervals=intervals, **wanted)
    for events in batches:
        evaluator.update(events)
    return evaluator


def row(evaluator: Evaluator, average: str = "cumulative", policy: str = NEW, estimator: str = "ips") -> Estimate:
    return evaluator.report().get(policy, estimator, average)


def limit(evaluator: Evaluator, average: str = "cumulative", policy: str = NEW) -> Any:
    return row(evaluator, average, policy).details["max_weight"]


def explored(events: int, floor: float, seed: int = 1) -> tuple[Array, Array]:
    """Draw propensities, and probabilities of a candidate that prefers the action explored with this floor."""
    rare = np.random.default_rng(seed).random(events) < floor
    return np.where(rare, floor, 1 - floor), np.where(rare, 0.75, 0.25)


def test_a_floor_that_ten_events_show_limits_the_weight_to_the_probability_of_the_policy_over_the_floor() -> None:
    propensity, probability = explored(2_000, 0.2)
    actual = limit(evaluated(log(propensity, probability)))
    weight = probability / propensity
    below = max(0.0, (1 - weight.mean()) / (weight.std() / np.sqrt(2_000)))
    assert actual == pytest.approx(3.75 ** (1 - min(1, below)) * 5 ** min(1, below))


def test_a_limit_that_few_events_show_is_larger_by_its_ratio_to_the_tenth() -> None:
    propensity = np.array([0.5] * 500 + [0.125])
    assert limit(evaluated(log(propensity, propensity))) == pytest.approx(0.5 * 8 * 8 / 2)
    confirmed = np.append(propensity, [0.125] * 9)
    assert limit(evaluated(log(confirmed, confirmed))) == pytest.approx(0.5 * 8)


def test_a_lower_floor_counts_at_once() -> None:
    evaluator = evaluated(log(*explored(2_000, 0.2)))
    before = limit(evaluator)
    evaluator.update(log([0.01], [0.75]))
    assert limit(evaluator) >= 75 > 10 * before


def test_windows_and_decays_forget_a_floor_after_two_generations_and_others_never(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(largest_weights, "SPAN", 1_000)
    averages = [Cumulative(), Window(tau=300), Decay(alpha=0.99), Window(tau=100_000, name="long")]
    evaluator = evaluated(log(*explored(500, 0.01)), averages=averages)
    for number in range(3):
        evaluator.update(log(*explored(500, 0.25, number)))
    assert all(limit(evaluator, average) >= 75 for average in ("cumulative", "window", "decay", "long"))
    for number in range(3):
        evaluator.update(log(*explored(500, 0.25, number)))
    assert all(limit(evaluator, average) >= 75 for average in ("cumulative", "long"))
    assert all(limit(evaluator, average) <= 4 for average in ("window", "decay"))


@pytest.mark.parametrize("cut", [100, 730])
def test_limits_do_not_depend_on_how_the_stream_is_cut_and_read(cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(largest_weights, "SPAN", 500)
    rng = np.random.default_rng(5)
    propensity = rng.uniform(0.01, 1, 1_460) ** 2
    events = log(propensity, rng.random(1_460))
    averages = [Cumulative(), Window(tau=300)]
    whole, parts = evaluated(events, averages=averages), evaluated(averages=averages)
    for first in range(0, 1_460, cut):
        parts.update(events[first : first + cut])
        if cut > 1:
            parts.fold_pending()
            parts = Evaluator.from_state(parts.state())
    for average in ("cumulative", "window"):
        assert limit(parts, average) == pytest.approx(limit(whole, average), rel=1e-12)
        assert row(parts, average).upper == pytest.approx(row(whole, average).upper, rel=1e-9)


def test_full_distributions_show_the_weights_of_actions_that_were_never_taken() -> None:
    events = 10
    whole = EventBatch.from_arrays(
        reward=np.arange(events) % 2,
        action=[0] * events,
        propensities=[[0.9, 0.08, 0.02]] * events,
        policies={NEW: [[0.5, 0.1, 0.4]] * events},
    )
    assert limit(evaluated(whole)) == pytest.approx(20)
    assert limit(evaluated(log([0.9] * events, [0.5] * events))) < 10


def test_a_nearly_sure_action_shows_how_rare_the_others_are() -> None:
    events = log(np.append(np.full(500, 0.25), np.full(10, 0.9996)), np.append(np.full(500, 0.25), np.zeros(10)))
    assert limit(evaluated(events)) == pytest.approx(1 / 0.0004, rel=1e-6)


def test_the_weight_of_the_logging_policy_is_1() -> None:
    assert limit(evaluated(log(*explored(2_000, 0.02))), policy="logging") == 1


def test_a_policy_with_a_too_low_mean_weight_may_have_any_probability() -> None:
    """Let it take rarely logged actions in other events."""
    actual = limit(evaluated(log(explored(2_000, 0.02)[0], np.full(2_000, 0.1))))
    assert actual == pytest.approx(50)


@pytest.mark.parametrize(("configured", "effective"), [("none", None), (None, None), (8.0, 8.0)])
def test_the_report_shows_the_limit_in_use(configured: Any, effective: Any) -> None:
    assert limit(evaluated(log(*explored(500, 0.2)), max_weight=configured)) == effective
    assert EmpiricalLikelihood(max_weight=configured).max_weight == ("none" if configured is None else configured)


def test_no_limit_is_reported_for_other_intervals_and_before_the_first_event() -> None:
    evaluator = evaluated(estimators=[SNIPS()])
    assert row(evaluator, estimator="snips").details["max_weight"] is None
    normal = Evaluator([NEW], [IPS()], [Cumulative()], intervals={"cumulative": "normal"})
    assert "max_weight" not in row(normal).details


def test_the_default_interval_is_as_narrow_as_with_the_right_limit_and_half_as_wide_as_without() -> None:
    rng = np.random.default_rng(3)
    propensity, _ = explored(10_000, 0.02)
    reward = (rng.random(10_000) < 0.03).astype(float)
    events = log(propensity, np.where(propensity == 0.02, 0.95, 0.05), reward)
    widths = {}
    for max_weight in ("auto", "none", 47.5):
        actual = row(evaluated(events, max_weight=max_weight))
        assert actual.lower is not None
        assert actual.upper is not None
        widths[max_weight] = actual.upper - actual.lower
    assert widths["auto"] < 1.1 * widths[47.5]
    assert widths["auto"] < 0.5 * widths["none"]


def test_a_rare_action_of_production_widens_the_lift_before_it_is_logged() -> None:
    """Let production take with .5 an action that the log has shown for another policy only."""
    events = 400
    propensity = np.where(np.arange(events) % 50 == 7, 0.02, 0.98)
    reward = np.arange(events) % 3 == 0
    policies = {"now": np.where(propensity == 0.02, 0.0, 0.5), NEW: np.where(propensity == 0.02, 0.02, 0.98)}
    events_of_both = EventBatch.from_arrays(reward=reward, propensity=propensity, policies=policies)

    def width(max_weight: Any) -> float:
        interval = {"cumulative": EmpiricalLikelihood(max_weight=max_weight)}
        evaluator = Evaluator([NEW], [IPS()], [Cumulative()], production="now", intervals=interval)
        evaluator.update(events_of_both)
        actual = row(evaluator)
        assert actual.lift_lower is not None
        assert actual.lift_upper is not None
        return actual.lift_upper - actual.lift_lower

    not_wider = width(1.0)
    assert min(map(width, ("auto", 25.0, "none"))) > 1.2 * not_wider
    assert width(10.0) < width(25.0), "no event is heavier than the number that is given"


def test_the_weight_of_a_slate_by_its_slots_is_limited_by_the_sum_over_slots() -> None:
    evaluator = Evaluator(["tilted", "any"], [PseudoInverse(), IPS()], [Cumulative()])
    evaluator.update(batch(logs.slots(11, 3_030)))
    for policy in ("tilted", "any"):
        actual = row(evaluator, policy=policy, estimator="pseudo_inverse")
        assert actual.importance_weight_max is not None
        assert actual.importance_weight_max <= actual.details["max_weight"] < 100
        whole = row(evaluator, policy=policy).details["max_weight"]
        assert whole >= actual.details["max_weight"]
