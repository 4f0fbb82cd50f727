"""Test the empirical likelihood interval in a Report: its sums, for each average and estimator."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from streameval import Evaluator
from streameval.events import EventBatch
from streameval.ope.core import AnyAverage, Cumulative, Decay, Mixture, Window
from streameval.ope.estimators import IPS, SNIPS, AnyEstimator, ClippedIPS, ControlVariate
from streameval.ope.intervals import AnyInterval, EmpiricalLikelihood
from streameval.ope.intervals.empirical_likelihood import Extra, Means, likely, reach
from streameval.ope.report import Estimate
from support.likelihood_worlds import any_of
from support.reference import brute_force
from support.streams import CANDIDATE, Stream, evaluated, from_weights

BLOCK = 100
UNLIMITED = EmpiricalLikelihood(max_weight="none")
AVERAGES: list[tuple[AnyAverage, object]] = [
    (Cumulative(), brute_force.cumulative),
    (Window(tau=700, resolution=1), lambda n: brute_force.window(n, 700)),
    (Decay(alpha=0.997), lambda n: brute_force.decay(n, 0.997)),
]


def estimate(
    stream: Stream,
    estimator: AnyEstimator,
    average: AnyAverage,
    bound: AnyInterval | str = UNLIMITED,
    policy: str = CANDIDATE,
) -> Estimate:
    evaluator = evaluated(
        stream, estimators=[estimator], averages=[average], intervals={average.label: bound}, block=BLOCK
    )
    return evaluator.report().get(policy, estimator.label, average.label)


def clicks(events: int, seed: int, chance: float = 0.3) -> Stream:
    """Draw independent events with weights that average to 1, some of them large."""
    rng = np.random.default_rng(seed)
    weight = rng.choice([0.0, 0.5, 2.0, 10.0], p=[0.3, 0.5, 0.175, 0.025], size=events)
    return from_weights(weight / 0.85, (rng.random(events) < chance).astype(float))


def ends(estimate: Estimate) -> tuple[float, float]:
    assert estimate.lower is not None
    assert estimate.upper is not None
    return estimate.lower, estimate.upper


@pytest.mark.parametrize(("average", "kernel"), AVERAGES, ids=["cumulative", "window", "decay"])
@pytest.mark.parametrize("estimator", [IPS(), SNIPS()], ids=["ips", "snips"])
def test_the_interval_comes_from_six_weighted_sums(
    estimator: AnyEstimator, average: AnyAverage, kernel: object
) -> None:
    stream = clicks(2_345, seed=1)
    row = estimate(stream, estimator, average)
    q = kernel(len(stream))  # type: ignore[operator]
    weight, term = stream.weight, stream.weight * stream.reward
    columns = (weight, weight**2, term, term * weight, term**2)
    independent = q.sum() ** 2 / (q**2).sum() / max(1.0, row.details["design_effect"])
    means = Means(np.array([independent]), *(np.array([column @ q / q.sum()]) for column in columns))
    one = np.ones(1)
    extra = any_of([Extra(0 * one, 0 * one, 0 * one), Extra(one, 0 * one, one), Extra(np.inf * one, 0 * one, one)])
    expected = reach(means, extra, likely(means, extra, NormalDist().inv_cdf(0.975) ** 2))
    assert ends(row) == (pytest.approx(expected[0][0], rel=1e-9), pytest.approx(expected[1][0], rel=1e-9))
    assert (row.kind, row.anytime, row.covers) == ("empirical_likelihood", False, "average")


@pytest.mark.parametrize("average", [Cumulative(), Mixture()], ids=lambda case: case.label)
@pytest.mark.parametrize("chance", [0.3, 1.0])
def test_a_candidate_that_was_never_logged_has_no_interval_on_any_average(average: AnyAverage, chance: float) -> None:
    reward = (np.random.default_rng(3).random(1_000) < chance).astype(float)
    row = estimate(from_weights(np.zeros(1_000), reward), IPS(), average)
    assert ends(row) == (0.0, 1.0)
    assert row.value is not None
    assert 0.0 <= row.value < 0.5


CONSTANT = [
    *((average, kind) for average, _ in AVERAGES for kind in ("normal", "empirical_likelihood")),
    (Mixture(), "empirical_likelihood"),
]


@pytest.mark.parametrize(("average", "kind"), CONSTANT, ids=lambda case: getattr(case, "label", case))
def test_snips_of_a_constant_reward_of_1_is_exactly_1(average: AnyAverage, kind: str) -> None:
    row = estimate(clicks(1_230, seed=2, chance=2.0), SNIPS(), average, kind)
    assert row.value == pytest.approx(1.0, abs=1e-9)
    assert ends(row) == (pytest.approx(1.0, abs=1e-9), pytest.approx(1.0, abs=1e-9))


def test_a_reward_that_has_always_been_0_may_yet_be_more() -> None:
    for estimator in (IPS(), SNIPS(), ClippedIPS(cap=5)):
        lower, upper = ends(estimate(clicks(1_000, seed=3, chance=0.0), estimator, Cumulative()))
        assert lower == 0.0
        assert 0.004 < upper < 0.3


def test_before_ten_events_there_are_no_bounds() -> None:
    for events, is_known in ((9, False), (10, True)):
        row = estimate(clicks(events, seed=4), IPS(), Cumulative())
        assert (row.lower is not None, row.upper is not None) == (is_known, is_known)


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_lies_in_the_range_of_rewards_and_holds_the_value_of_ips_if_that_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.choice([0.0, 0.5, 50.0], p=[0.1, 0.889, 0.011], size=400)
    stream = from_weights(weight / weight.mean(), (rng.random(400) < 0.8).astype(float))
    row = estimate(stream, IPS(), Cumulative())
    lower, upper = ends(row)
    assert 0 <= lower < upper <= 1
    assert row.value is not None
    assert lower <= min(max(row.value, 0.0), 1.0) <= upper


def test_actions_that_are_never_logged_may_be_worth_nothing_or_everything() -> None:
    """Give a third of the candidate's probability to actions that are never logged."""
    rng = np.random.default_rng(6)
    stream = from_weights(np.full(50_000, 2 / 3), (rng.random(50_000) < 0.3).astype(float))
    assert ends(estimate(stream, IPS(), Cumulative())) == (pytest.approx(0.2, abs=0.01), pytest.approx(0.533, abs=0.01))


def test_an_estimator_that_is_biased_by_intent_is_not_held_to_the_mean_weight() -> None:
    rng = np.random.default_rng(6)
    stream = from_weights(np.full(50_000, 2 / 3), (rng.random(50_000) < 0.3).astype(float))
    row = estimate(stream, ClippedIPS(cap=5), Cumulative())
    assert row.covers == "estimand"
    assert ends(row) == (pytest.approx(0.2, abs=0.01), pytest.approx(0.2, abs=0.01))


def test_a_largest_weight_that_is_known_makes_it_narrower() -> None:
    stream = clicks(20_000, seed=7, chance=0.03)
    unlimited = ends(estimate(stream, IPS(), Cumulative()))
    limited = ends(estimate(stream, IPS(), Cumulative(), EmpiricalLikelihood(max_weight=12.0)))
    assert limited[1] - limited[0] < 0.6 * (unlimited[1] - unlimited[0])


def test_a_largest_weight_that_is_exceeded_is_ignored() -> None:
    stream = clicks(5_000, seed=8)
    believed, seen = (
        ends(estimate(stream, IPS(), Cumulative(), EmpiricalLikelihood(max_weight=limit)))
        for limit in (2.0, stream.weight.max())
    )
    assert believed == seen


def test_the_weight_is_a_control_variate_in_all_of_them() -> None:
    """Compare `ips` with the control variate: its interval is no wider if the weight explains a term."""
    stream = clicks(20_000, seed=9, chance=0.9)
    plain, controlled, gaussian = (
        ends(estimate(stream, estimator, Cumulative(), bound))
        for estimator, bound in (
            (IPS(), EmpiricalLikelihood(max_weight=12.0)),
            (ControlVariate(), EmpiricalLikelihood(max_weight=12.0)),
            (IPS(), "normal"),
        )
    )
    assert plain[1] - plain[0] == pytest.approx(controlled[1] - controlled[0], rel=0.08)
    assert plain[1] - plain[0] < 0.6 * (gaussian[1] - gaussian[0])


def test_events_of_one_session_are_worth_fewer() -> None:
    rng = np.random.default_rng(10)
    reward = np.repeat(rng.random(400) < 0.3, BLOCK // 4).astype(float)
    together = estimate(from_weights(np.ones(len(reward)), reward), IPS(), Cumulative())
    alone = estimate(from_weights(np.ones(len(reward)), rng.permutation(reward)), IPS(), Cumulative())
    assert together.details["design_effect"] > 10
    wider = (ends(together)[1] - ends(together)[0]) / (ends(alone)[1] - ends(alone)[0])
    assert wider == pytest.approx(np.sqrt(together.details["design_effect"]), rel=0.1)


@pytest.mark.parametrize("average", [*(average for average, _ in AVERAGES), Mixture()], ids=lambda case: case.label)
@pytest.mark.parametrize(
    "estimator", [IPS(), SNIPS(), ClippedIPS(cap=3), ControlVariate()], ids=lambda case: case.label
)
def test_a_lift_has_an_interval(estimator: AnyEstimator, average: AnyAverage) -> None:
    row = estimate(clicks(4_000, seed=11), estimator, average)
    assert row.lift is not None
    assert row.lift_lower is not None
    assert row.lift_upper is not None
    assert -1 <= row.lift_lower < row.lift_upper <= 1
    assert row.lift_lower - 0.02 <= row.lift <= row.lift_upper + 0.02


def test_a_candidate_that_equals_production_has_no_lift_but_for_one_event() -> None:
    rng = np.random.default_rng(12)
    row = estimate(from_weights(np.ones(5_000), (rng.random(5_000) < 0.3).astype(float)), IPS(), Cumulative())
    assert row.lift == 0
    assert row.lift_lower is not None
    assert row.lift_upper is not None
    assert -0.001 < row.lift_lower <= 0 <= row.lift_upper < 0.001


@pytest.mark.parametrize(("estimator", "value"), [(IPS(), 1.0), (SNIPS(), 0.9)], ids=["ips", "snips"])
def test_the_mean_weight_does_not_correct_a_mixture(estimator: AnyEstimator, value: float) -> None:
    rng = np.random.default_rng(13)
    events, propensity, candidates = 1_000, 0.1, [f"c{number}" for number in range(20)]
    batch = EventBatch.from_arrays(
        reward=(np.arange(events) % 10 < 10 * value).astype(float),
        propensity=np.full(events, propensity),
        policies={name: rng.choice([0.5, 1.5], events) * propensity for name in candidates},
    )
    evaluator = Evaluator(candidates, [estimator], [Mixture()], intervals={"mixture": "empirical_likelihood"})
    evaluator.update(batch)
    report = evaluator.report()
    intervals = [ends(report.get(name, estimator.label, "mixture")) for name in candidates]
    assert sum(not lower <= value <= upper for lower, upper in intervals) <= 1
