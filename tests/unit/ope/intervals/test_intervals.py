"""Test formulas, guarantees and coverage of intervals."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from streameval import Evaluator
from streameval.events import EventBatch
from streameval.ope.core import AdaptiveDecay, AdaptiveWindow, AnyAverage, Cumulative, Decay, Window
from streameval.ope.estimators import (
    IPS,
    SNIPS,
    AnyEstimator,
    ClippedIPS,
    ControlVariate,
    WeightedPseudoInverse,
)
from streameval.ope.intervals import AnyInterval, EmpiricalBernstein, Normal
from streameval.ope.report import Estimate
from support.reference import brute_force
from support.strategies import examples
from support.streams import CANDIDATE, Array, Stream, evaluated, from_weights, random_stream, streams

WIDE = (-1e6, 1e6)
"""Range of rewards that clips no interval."""
ESTIMATORS: list[AnyEstimator] = [IPS(), SNIPS(), ClippedIPS(cap=2.5), ControlVariate()]
BLOCK = 20


def estimates(
    stream: Stream, average: AnyAverage, bound: AnyInterval | str = "normal", **settings: Any
) -> dict[str, Estimate]:
    """Return the candidate's estimates by estimator."""
    settings = {"estimators": ESTIMATORS, "block": BLOCK} | settings
    report = evaluated(stream, averages=[average], intervals={average.label: bound}, **settings).report()
    return {e.estimator: e for e in report.estimates if e.policy == CANDIDATE}


def half_width(estimate: Estimate) -> float:
    assert estimate.lower is not None
    assert estimate.upper is not None
    assert estimate.value is not None
    assert (estimate.upper + estimate.lower) / 2 == pytest.approx(estimate.value, rel=1e-9, abs=1e-9)
    return (estimate.upper - estimate.lower) / 2


def standard_error(n_eff: float, variance: float, n: float, *, ratio: bool) -> float:
    """Return `sqrt(s2 / n_eff)` of a mean, with s2 divided by n - 1, or of a ratio, with s2 divided by n."""
    return math.sqrt((variance if ratio else variance * n / (n - 1)) / n_eff)


def terms_of(estimator: AnyEstimator, stream: Stream) -> brute_force.Terms:
    return brute_force.terms(estimator.label, stream.present, stream.weight, stream.reward, cap=2.5, block=BLOCK)


def fading(n: int, horizon: float) -> Array:
    """Return weights that fade at block ends. The unfinished block has not faded."""
    ends_since = n // BLOCK - 1 - np.arange(n) // BLOCK
    return np.exp(-BLOCK / horizon) ** np.maximum(ends_since, 0)


@examples(40)
@given(stream=streams(most=9 * BLOCK + 19, downsampled=st.just(False)))
def test_the_normal_interval_is_z_standard_errors_wide(stream: Stream) -> None:
    n, everything = len(stream), brute_force.cumulative(len(stream))
    z = NormalDist().inv_cdf(0.975)
    for estimator in ESTIMATORS:
        estimate = estimates(stream, Cumulative(), reward_range=WIDE)[estimator.label]
        terms = terms_of(estimator, stream)
        denominators = terms.q * terms.v if estimator.label == "snips" else terms.q
        if np.count_nonzero(terms.q * terms.u) < 10 or denominators.sum() ** 2 < 10 * (denominators**2).sum():
            assert (estimate.lower, estimate.upper) == (None, None)
        elif n < 10 * BLOCK:  # too few blocks for a design effect
            m = brute_force.moments(everything, terms)
            expected = z * standard_error(m.n_eff, m.variance, m.total, ratio=estimator.label == "snips")
            assert half_width(estimate) == pytest.approx(expected, rel=1e-7)


def test_an_interval_outside_the_reward_range_stays_there() -> None:
    everything = np.ones(300)
    batch = EventBatch.from_arrays(reward=everything, propensity=everything / 2, policies={"new": everything})
    evaluator = Evaluator(["new"], estimators=["ips"], averages=["cumulative"], intervals={"cumulative": "normal"})
    evaluator.update(batch)
    estimate = evaluator.report().get("new", "ips", "cumulative")
    assert (estimate.lower, estimate.value, estimate.upper) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("average", "kernel", "horizon"),
    [
        (Window(tau=40, resolution=1), lambda n: brute_force.window(n, 40), 400.0),
        (Decay(alpha=0.95), lambda n: brute_force.decay(n, 0.95), 200.0),
    ],
    ids=["window", "decay"],
)
def test_the_variance_of_windows_and_decays_comes_from_a_horizon_ten_times_longer(
    average: AnyAverage, kernel: Any, horizon: float
) -> None:
    stream = random_stream(17, 9 * BLOCK + 7)
    n, z = len(stream), NormalDist().inv_cdf(0.975)
    for estimator in ESTIMATORS:
        estimate = estimates(stream, average, reward_range=WIDE)[estimator.label]
        terms, memory = terms_of(estimator, stream), fading(n, horizon)
        n_eff, variance = brute_force.moments(kernel(n), terms).n_eff, brute_force.moments(memory, terms).variance
        expected = z * standard_error(n_eff, variance, memory.sum(), ratio=estimator.label == "snips")
        assert half_width(estimate) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("average", "kernel"),
    [
        (Cumulative(), brute_force.cumulative),
        (Window(tau=700, resolution=1), lambda n: brute_force.window(n, 700)),
        (Decay(alpha=0.999), lambda n: brute_force.decay(n, 0.999)),
    ],
    ids=["cumulative", "window", "decay"],
)
@pytest.mark.parametrize("max_weight", [None, 2.5])
def test_empirical_bernstein_equals_the_theorem_with_the_sample_variance(
    average: AnyAverage, kernel: Any, max_weight: float | None
) -> None:
    rng = np.random.default_rng(18)
    stream = from_weights(rng.uniform(0, 2, 1_390), rng.uniform(size=1_390) * np.linspace(0.5, 1, 1_390))
    own, log_term = kernel(len(stream)), math.log(4 / 0.05)
    actual = estimates(stream, average, EmpiricalBernstein(max_weight=max_weight), block=200)
    for estimator in (IPS(), SNIPS(), ClippedIPS(cap=1.5)):
        terms = brute_force.terms(estimator.label, stream.present, stream.weight, stream.reward, cap=1.5, block=200)
        moments = brute_force.moments(own, terms)
        largest = stream.weight.max() if max_weight is None else max_weight
        term_range = {"ips": largest, "snips": largest / moments.mean_weight, "clipped_ips": 1.5}[estimator.label]
        error = standard_error(moments.n_eff, moments.variance, moments.n_eff, ratio=estimator.label == "snips")
        expected = math.sqrt(2 * log_term) * error
        expected += 7 * term_range * log_term / (3 * (moments.total / moments.largest_q - 1))
        estimate = actual[estimator.label] if estimator.label != "clipped_ips" else clipped(stream, average, max_weight)
        assert half_width(estimate) == pytest.approx(expected, rel=1e-9)
        assert estimate.details["largest_weight"] == ("seen" if max_weight is None else "configured")


def clipped(stream: Stream, average: AnyAverage, max_weight: float | None) -> Estimate:
    bound = EmpiricalBernstein(max_weight=max_weight)
    return estimates(stream, average, bound, block=200, estimators=[ClippedIPS(cap=1.5)])["clipped_ips"]


def test_empirical_bernstein_needs_more_than_one_event() -> None:
    for n in (1, 2):
        estimate = estimates(from_weights([1.0] * n, [0.5] * n), Cumulative(), "empirical_bernstein")["ips"]
        assert (estimate.lower is None) == (n == 1)


def test_a_larger_possible_weight_widens_empirical_bernstein_only() -> None:
    rng = np.random.default_rng(3)
    stream = from_weights(rng.uniform(0, 2, 3_000), rng.uniform(size=3_000))
    small, large = (
        half_width(estimates(stream, Cumulative(), EmpiricalBernstein(max_weight=w), estimators=[IPS()])["ips"])
        for w in (2.0, 10.0)
    )
    assert large - small == pytest.approx(7 * 8 * math.log(4 / 0.05) / (3 * 2_999), rel=1e-9)


@pytest.mark.parametrize("kind", ["normal", "empirical_bernstein"])
def test_a_higher_confidence_widens_the_interval_by_the_ratio_of_its_quantiles(kind: str) -> None:
    rng = np.random.default_rng(4)
    stream = from_weights(rng.uniform(0.5, 1.5, 4_000), rng.uniform(0.2, 0.8, 4_000))
    widths = {
        c: half_width(estimates(stream, Window(tau=3_000), kind, confidence=c, estimators=[SNIPS()])["snips"])
        for c in (0.5, 0.8, 0.95, 0.999)
    }
    assert sorted(widths.values()) == list(widths.values())
    if kind == "normal":
        for confidence, width in widths.items():
            ratio = NormalDist().inv_cdf(0.5 + confidence / 2) / NormalDist().inv_cdf(0.975)
            assert width / widths[0.95] == pytest.approx(ratio, rel=1e-9)


def test_empirical_bernstein_has_no_range_of_terms_before_the_log_shows_an_action_of_the_policy() -> None:
    n = 3_000
    batch = EventBatch.from_arrays(
        reward=np.arange(n) % 3 == 0, propensity=np.full(n, 0.5), policies={CANDIDATE: np.zeros(n)}
    )
    for bound, is_known in ((EmpiricalBernstein(), False), (EmpiricalBernstein(max_weight=2.0), True)):
        evaluator = Evaluator([CANDIDATE], [IPS()], [Cumulative()], intervals={"cumulative": bound})
        evaluator.update(batch)
        estimate = evaluator.report().get(CANDIDATE, "ips", "cumulative")
        ends = (estimate.lower, estimate.upper, estimate.lift_lower, estimate.lift_upper)
        assert [end is not None for end in ends] == [is_known] * 4


def test_empirical_bernstein_is_withheld_while_the_mean_weight_of_slates_is_negative() -> None:
    shown = np.full((4, 2), 0.9)
    batch = EventBatch.from_arrays(reward=[1, 0, 1, 1], propensity=shown, policies={CANDIDATE: np.full((4, 2), 0.1)})
    bound = EmpiricalBernstein()
    evaluator = Evaluator([CANDIDATE], [WeightedPseudoInverse()], [Cumulative()], intervals={"cumulative": bound})
    evaluator.update(batch)
    estimate = evaluator.report().get(CANDIDATE, "weighted_pseudo_inverse", "cumulative")
    assert estimate.importance_weight_mean == pytest.approx(2 / 9 - 1)
    assert [estimate.lower, estimate.upper, estimate.lift_lower, estimate.lift_upper] == [None] * 4


def test_a_normal_interval_is_withheld_until_ten_terms_differ_from_zero() -> None:
    reward = np.zeros(200)
    reward[20::20] = 1.0  # nine rewards, then the tenth
    stream = from_weights(np.ones(201), [*reward, 1.0])
    before, after = (estimates(s, Cumulative(), estimators=[IPS()])["ips"] for s in (stream[:200], stream))
    assert (before.value, before.lower, before.upper) == (pytest.approx(9 / 200), None, None)
    assert after.lower is not None


def test_a_term_is_zero_only_if_the_weight_or_the_reward_is() -> None:
    stream = from_weights([0.0] * 50 + [1.0] * 9 + [0.0], [1.0] * 60)
    assert estimates(stream, Cumulative(), estimators=[IPS()])["ips"].lower is None
    one_more = from_weights([0.0] * 50 + [1.0] * 10, [1.0] * 60)
    assert estimates(one_more, Cumulative(), estimators=[IPS()])["ips"].lower is not None


def test_exported_bounds_stay_in_the_reward_range_and_values_do_not() -> None:
    stream = from_weights([6.0] * 10 + [0.5] * 10, [1.0] * 20)
    estimate = estimates(stream, Cumulative(), estimators=[IPS()])["ips"]
    assert estimate.value == pytest.approx(3.25)
    low = estimates(stream, Cumulative(), estimators=[IPS()], reward_range=WIDE)["ips"].lower
    assert low is not None
    assert low > 1.0
    assert estimate.lower == pytest.approx(low), "nothing would be left of it: it is shown as it is"
    wide = estimates(from_weights([6.0] * 10 + [0.0] * 50, [1.0] * 60), Cumulative(), estimators=[IPS()])["ips"]
    assert wide.value == pytest.approx(1.0)
    assert wide.upper == 1.0
    assert wide.lower is not None
    assert 0 < wide.lower < 1


def test_an_interval_below_the_reward_range_is_clipped_on_that_side() -> None:
    rng = np.random.default_rng(6)
    stream = from_weights(rng.choice([0.0, 20.0], 60, p=[0.8, 0.2]), rng.choice([-5.0, 5.0], 60))
    estimate = estimates(stream, Cumulative(), estimators=[IPS()], reward_range=(-5.0, 5.0))["ips"]
    assert estimate.lower == -5.0


def test_the_description_of_an_interval() -> None:
    stream = random_stream(1, 400)
    for drift, covers in (("export", "average"), ("include", "current")):
        actual = estimates(
            stream, Window(tau=100), TypeAdapter(AnyInterval).validate_python({"kind": "normal", "drift": drift})
        )
        assert {label: (e.kind, e.anytime, e.covers) for label, e in actual.items()} == {
            "ips": ("normal", False, covers),
            "snips": ("normal", False, covers),
            "control_variate": ("normal", False, covers),
            "clipped_ips": ("normal", False, "estimand"),
        }
        assert actual["ips"].interval.covers == covers


def test_drift_included_adds_the_bias_bound_and_waits_for_it() -> None:
    n = 200_000
    stream = from_weights(np.ones(n), np.linspace(0.2, 0.8, n))
    averages: list[AnyAverage] = [Window(tau=5_000), Decay(alpha=0.999)]
    export, include = ({average.label: Normal(drift=drift) for average in averages} for drift in ("export", "include"))
    plain, included, early = (
        evaluated(events, estimators=[IPS()], averages=averages, intervals=intervals).report()
        for events, intervals in ((stream, export), (stream, include), (stream[:40_000], include))
    )
    slope = 0.6 / (n - 1)
    bias = {"window": slope * (5_000 - 1) / 2, "decay": slope * 0.999 / 0.001}
    for average in averages:
        one, other, first = (report.get(CANDIDATE, "ips", average.label) for report in (plain, included, early))
        assert one.details["bias_bound"] == pytest.approx(bias[average.label], rel=5e-3)
        assert half_width(other) == pytest.approx(half_width(one) + one.details["bias_bound"], rel=1e-9)
        assert (first.lower, first.details["bias_bound"]) == (None, None)


INCLUDED = {"cumulative": Normal(drift="include")}


def test_the_bias_of_a_cumulative_mean_reaches_its_bound_if_the_value_moves_steadily() -> None:
    n, slope = 90_130, 4e-6
    stream = from_weights(np.ones(n), 0.2 + slope * np.arange(n))
    settings: dict[str, Any] = {"estimators": [IPS()], "averages": [Cumulative()]}
    plain = evaluated(stream, **settings, intervals={"cumulative": "normal"}).report()
    included = evaluated(stream, **settings, intervals=INCLUDED, every=7_777).report()
    early = evaluated(stream[:59_900], **settings, intervals=INCLUDED).report()
    exported, actual, first = (report.get(CANDIDATE, "ips", "cumulative") for report in (plain, included, early))
    bias = 0.2 + slope * (n - 1) - actual.value
    assert actual.details["lipschitz_per_event"] == pytest.approx(slope, rel=1e-9)
    assert actual.details["bias_bound"] == pytest.approx(slope * (n - 1) / 2, rel=1e-9)
    assert bias == pytest.approx(actual.details["bias_bound"], rel=1e-9)
    assert half_width(actual) == pytest.approx(half_width(exported) + bias, rel=1e-9)
    assert (actual.covers, exported.covers) == ("current", "average")
    assert (exported.details["bias_bound"], first.lower, first.details["bias_bound"]) == (None, None, None)
    assert "lipschitz_per_event" not in exported.details


def test_the_bias_bound_of_a_cumulative_mean_does_not_forget_that_values_moved_long_ago() -> None:
    n, slope, step = 200_000, 4e-6, 10_000
    reward = 0.2 + slope * np.minimum(np.arange(n), 80_000)
    evaluator = Evaluator([CANDIDATE], estimators=[IPS()], averages=[Cumulative(), Window()], intervals=INCLUDED)
    stream = from_weights(np.ones(n), reward)
    for first in range(0, n, step):
        evaluator.update(stream[first : first + step].batch())
        evaluator.fold_pending()
        report = evaluator.report()
        actual, window = (report.get(CANDIDATE, "ips", average) for average in ("cumulative", "window"))
        if first + step >= 60_000:
            assert reward[first + step - 1] - actual.value <= actual.details["bias_bound"] * (1 + 1e-9)
    assert window.details["lipschitz_per_event"] < 0.6 * slope


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 30))
def test_an_interval_that_includes_the_bias_of_a_cumulative_mean_covers_the_present_value(seed: int) -> None:
    rng, n = np.random.default_rng(seed), 120_000
    value = 0.2 + 0.4 * np.minimum(np.arange(n) / 80_000, 1.0)
    stream = from_weights(rng.choice([0.5, 1.5], n), rng.binomial(1, value).astype(float))
    report = evaluated(stream, estimators=[IPS()], averages=[Cumulative()], intervals=INCLUDED).report()
    estimate = report.get(CANDIDATE, "ips", "cumulative")
    assert estimate.value < value[-1] - 0.1
    assert estimate.lower < value[-1] < estimate.upper < 0.8


def test_an_interval_that_includes_drift_later_measures_it_from_the_change_on() -> None:
    n = 150_000
    stream = from_weights(np.ones(n), np.linspace(0.2, 0.8, n))
    evaluator = evaluated(stream[:60_000], estimators=[IPS()], averages=[Cumulative()])
    config = Evaluator([CANDIDATE], estimators=[IPS()], averages=[Cumulative()], intervals=INCLUDED).config
    assert evaluator.apply_config(config) is None
    assert evaluator.report().get(CANDIDATE, "ips", "cumulative").lower is None
    evaluator.update(stream[60_000:].batch())
    again = Evaluator.from_state(evaluator.state()).report()
    details = again.get(CANDIDATE, "ips", "cumulative").details
    assert details["bias_bound"] == pytest.approx(0.6 / 2, rel=1e-4)


@pytest.mark.parametrize(
    "wrong", [{"kind": "normal", "drift": "on"}, {"kind": "empirical_bernstein", "max_weight": 0}, {"kind": "z"}]
)
def test_wrong_bounds_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(AnyInterval).validate_python(wrong)


def test_intervals_name_averages_that_exist() -> None:
    with pytest.raises(ValueError, match="wndow"):
        Evaluator([CANDIDATE], averages=[Window()], intervals={"wndow": "normal"})


def test_a_design_effect_below_one_does_not_narrow_the_interval() -> None:
    stream = from_weights(np.ones(2_000), [0.0, 1.0] * 1_000)
    estimate = estimates(stream, Cumulative(), estimators=[IPS()])["ips"]
    assert estimate.details["design_effect"] == pytest.approx(0.0, abs=1e-9)
    assert half_width(estimate) == pytest.approx(1.959964 * 0.5 / math.sqrt(1_999), rel=1e-6)


def test_the_design_effect_is_unknown_before_ten_blocks() -> None:
    stream = random_stream(5, 10 * BLOCK)
    for n, is_known in ((10 * BLOCK - 1, False), (10 * BLOCK, True)):
        estimate = estimates(stream[:n], Cumulative(), estimators=[IPS()])["ips"]
        assert (estimate.details["design_effect"] is not None) == is_known


@pytest.mark.parametrize(
    "average", [AdaptiveWindow(drift_span=500), AdaptiveDecay(drift_span=500)], ids=["window", "decay"]
)
def test_adaptive_averages_have_intervals_around_their_values(average: AnyAverage) -> None:
    for row in estimates(random_stream(9, 3_000), average).values():
        assert row.lower is not None
        assert row.lower < row.value < row.upper
        assert row.details["bias_bound"] >= 0
