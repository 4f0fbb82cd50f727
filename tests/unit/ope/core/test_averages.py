"""Test every average against its definition, at every prefix of a stream."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from streameval import Evaluator
from streameval.common.arrays import Array, from_plain
from streameval.common.component import strict
from streameval.events import EventBatch
from streameval.ope.core import AdaptiveDecay, AdaptiveWindow, AnyAverage, Cumulative, Decay, Mixture, Window, ring
from streameval.ope.core import drift_rate as choice
from streameval.ope.core.bank import Bank
from streameval.ope.core.base import Fading, Path, Step
from streameval.ope.core.state import encode
from streameval.ope.core.summary import BlockSums
from streameval.ope.estimators import IPS, SNIPS, AnyEstimator, ClippedIPS, ControlVariate, StratifiedIPS
from streameval.ope.evaluator.grid import Grid
from streameval.ope.evidence import Evidence
from streameval.ope.intervals import Normal
from streameval.ope.report import Estimate
from support import parts
from support.reference import brute_force
from support.strategies import examples
from support.streams import CANDIDATE, Stream, close, evaluated, from_weights, random_stream

BLOCK = 20
CAP = 2.5
ESTIMATORS: list[AnyEstimator] = [IPS(), SNIPS(), ClippedIPS(cap=CAP), ControlVariate()]
ALONE: dict[str, Any] = {"drift": None, "promotion": None}
"""Options that leave out drift detection and promotion."""


def terms(estimator: AnyEstimator, stream: Stream, block: int = BLOCK) -> brute_force.Terms:
    return brute_force.terms(estimator.label, stream.present, stream.weight, stream.reward, cap=CAP, block=block)


def prefixes(
    stream: Stream, averages: Sequence[AnyAverage], estimators: Sequence[AnyEstimator] = (IPS(),), **settings: Any
) -> Iterator[tuple[int, dict[tuple[str, str], Estimate]]]:
    """Yield the number of events so far and the candidate's estimates by (estimator, average).

    Report after each event up to the second of the second block, and after every 13th event from then on.
    """
    evaluator, done = Evaluator([CANDIDATE], estimators, averages, **{"block": BLOCK} | ALONE | settings), 0
    for index in range(len(stream)):
        if index > evaluator.config.block + 1 and index % 13:
            continue
        evaluator.update(stream[done : index + 1].batch())
        done = index + 1
        evaluator.fold_pending()
        rows = {(e.estimator, e.average): e for e in evaluator.report().estimates if e.policy == CANDIDATE}
        yield done, rows


def assert_estimate(estimate: Estimate, kernel: np.ndarray, terms: brute_force.Terms) -> None:
    """Check that the estimate is the mean with this kernel, and check its diagnostics."""
    expected = brute_force.moments(kernel, terms)
    if math.isnan(expected.value):
        assert (estimate.value, estimate.lower, estimate.effective_sample_size) == (None, None, None)
        return
    assert estimate.value == pytest.approx(expected.value, rel=1e-9, abs=1e-12)
    assert estimate.effective_sample_size == pytest.approx(expected.effective_sample_size, rel=1e-9)
    assert estimate.importance_weight_mean == pytest.approx(expected.mean_weight, rel=1e-9)


def gappy(n: int, seed: int = 5) -> Stream:
    """Return a downsampled stream that lacks the candidate often, and once for more than two blocks on end."""
    stream = random_stream(seed, n, missing=0.3, downsampled=True, rewards="real")
    gap = (np.arange(n) >= n // 3) & (np.arange(n) < n // 3 + 50)
    return stream.with_(target=np.where(gap, np.nan, stream.target))


@pytest.mark.parametrize("stream", [random_stream(4, 150), gappy(210)], ids=["complete", "gappy"])
def test_window_and_decay_equal_equations_5_8_and_5_11_at_every_prefix(stream: Stream) -> None:
    averages = [
        Cumulative(),
        Window(tau=47, resolution=1, name="exact"),
        Window(tau=45, resolution=5, name="fifths"),
        Window(tau=130, resolution=40, name="two blocks"),
        Window(tau=20, resolution=20, name="one block"),
        Window(tau=1, name="last"),
        Decay(alpha=0.97),
        Decay(half_life=13, name="half"),
        Decay(alpha=0.2, name="fast"),
    ]
    kernels = {
        "cumulative": brute_force.cumulative,
        "exact": lambda n: brute_force.window(n, 47),
        "fifths": lambda n: brute_force.window(n, 45, 5),
        "two blocks": lambda n: brute_force.window(n, 130, 40),
        "one block": lambda n: brute_force.window(n, 20, 20),
        "last": lambda n: brute_force.window(n, 1),
        "decay": lambda n: brute_force.decay(n, 0.97),
        "half": lambda n: brute_force.decay(n, 0.5 ** (1 / 13)),
        "fast": lambda n: brute_force.decay(n, 0.2),
    }
    expected = {estimator.label: terms(estimator, stream) for estimator in ESTIMATORS}
    for n, actual in prefixes(stream, averages, ESTIMATORS):
        weights = {label: kernel(n) for label, kernel in kernels.items()}
        for (estimator, average), estimate in actual.items():
            assert_estimate(estimate, weights[average], expected[estimator][:n])


@pytest.mark.parametrize("stream", [random_stream(4, 90), gappy(120)], ids=["complete", "gappy"])
def test_the_share_of_the_largest_term_equals_its_definition_at_every_prefix(stream: Stream) -> None:
    averages = [Cumulative(), Window(tau=30, resolution=1), Decay(alpha=0.8)]
    expected_terms = terms(IPS(), stream)
    for n, actual in prefixes(stream, averages):
        for average, kernel in (
            ("cumulative", brute_force.cumulative(n)),
            ("window", brute_force.window(n, 30)),
            ("decay", brute_force.decay(n, 0.8)),
        ):
            expected = brute_force.moments(kernel, expected_terms[:n]).largest_share
            share = actual["ips", average].details["largest_term_share"]
            assert share == (None if math.isnan(expected) else pytest.approx(expected, rel=1e-9))


@pytest.mark.parametrize("n", [199, 340, 410])
def test_buckets_of_several_blocks_are_the_same_when_one_batch_fills_many_of_them(n: int) -> None:
    stream = random_stream(4, n)
    average = Window(tau=130, resolution=40)
    estimate = (
        evaluated(stream, estimators=[IPS()], averages=[average], block=BLOCK).report().get(CANDIDATE, "ips", "window")
    )
    assert_estimate(estimate, brute_force.window(n, 130, 40), terms(IPS(), stream))


def test_a_window_reports_its_number_of_events() -> None:
    stream = random_stream(4, 150, missing=0.5)
    averages = [Window(tau=45, resolution=5), Window(tau=130, resolution=40, name="coarse")]
    for n, actual in prefixes(stream, averages):
        held = {label: actual["ips", label].details["window_events"] for label in ("window", "coarse")}
        assert held == {"window": brute_force.window(n, 45, 5).sum(), "coarse": brute_force.window(n, 130, 40).sum()}
        assert min(n, 41) <= held["window"] <= 45
        assert min(n, 91) <= held["coarse"] <= 130


def test_a_window_of_the_whole_stream_and_a_slow_decay_are_the_cumulative_mean() -> None:
    stream = random_stream(6, 205, missing=0.2)
    averages = [Cumulative(), Window(tau=205, resolution=1), Decay(alpha=1 - 1e-13)]
    report = evaluated(stream, estimators=ESTIMATORS, averages=averages, block=BLOCK).report()
    for estimator in ESTIMATORS:
        whole = report.get(CANDIDATE, estimator.label, "cumulative").value
        assert report.get(CANDIDATE, estimator.label, "window").value == pytest.approx(whole, rel=1e-10)
        assert report.get(CANDIDATE, estimator.label, "decay").value == pytest.approx(whole, rel=1e-9)


def test_events_that_lack_the_policy_still_age_what_came_before() -> None:
    older, newer, silent = from_weights([1.0] * 10, [1.0] * 10), from_weights([1.0] * 10, [0.0] * 10), 30
    gap = older.with_(target=np.full(10, np.nan))
    evaluator = Evaluator([CANDIDATE], estimators=[IPS()], averages=[Decay(half_life=10), Window(tau=35, resolution=1)])
    for piece in (older, *[gap] * (silent // 10), newer):
        evaluator.update(piece.batch())
    report = evaluator.report()
    assert report.get(CANDIDATE, "ips", "decay").value == pytest.approx(2**-4 / (2**-4 + 1), rel=1e-12)
    assert report.get(CANDIDATE, "ips", "window").value == 0.0


def test_evidence_that_has_faded_away_is_unknown_and_not_rounded() -> None:
    stream, silence = random_stream(3, 400, rewards="real"), random_stream(4, 500)
    silence = silence.with_(target=np.full(500, np.nan))
    evaluator = Evaluator([CANDIDATE], estimators=[SNIPS()], averages=[Decay(alpha=0.9)])
    evaluator.update(stream.batch())
    before = evaluator.report().get(CANDIDATE, "snips", "decay")
    for _ in range(20):
        evaluator.update(silence.batch())
        evaluator.fold_pending()
        estimate = evaluator.report().get(CANDIDATE, "snips", "decay")
        assert estimate.value is None or estimate.value == pytest.approx(before.value, rel=1e-12)
    assert estimate.value is None


@pytest.mark.parametrize("average", [AdaptiveWindow(drift_span=1_000), AdaptiveDecay(drift_span=1_000)])
def test_blocks_without_the_policy_do_not_change_its_drift(average: AnyAverage) -> None:
    stream = drifting(8_000, seed=46)
    silence = stream.with_(target=np.full(8_000, np.nan))
    evaluator = Evaluator([CANDIDATE], estimators=[SNIPS()], averages=[average], block=LONG_BLOCK)
    rates = []
    for piece in (stream, silence[:2_000], silence):
        evaluator.update(piece.batch())
        rates.append(evaluator.report().get(CANDIDATE, "snips", average.label).details["lipschitz_per_event"])
    assert rates == [rates[0]] * 3


@examples(30)
@given(seed=st.integers(0, 10_000), n=st.integers(1, 120))
def test_a_downsampled_event_counts_as_often_as_the_events_it_stands_for(seed: int, n: int) -> None:
    stream = random_stream(seed, n, missing=0.2, downsampled=True)
    times = (1 / stream.sampling).astype(int)
    copies = stream[np.repeat(np.arange(n), times)]
    copies = copies.with_(sampling=np.ones(len(copies)))
    once, replicated = (
        evaluated(s, estimators=[IPS(), SNIPS(), ClippedIPS(cap=2)], averages=[Cumulative()]).report().estimates
        for s in (stream, copies)
    )
    for one, other in zip(once, replicated, strict=True):
        assert one.value == close(other.value, rel=1e-12)
        assert one.importance_weight_mean == close(other.importance_weight_mean, rel=1e-12)


SPAN, LONG_BLOCK = 1_000, 50


def drifting(n: int, seed: int) -> Stream:
    """Draw weights of mean about 1 and a reward with a mean that jumps and slides. Windows shrink and grow again."""
    rng = np.random.default_rng(seed)
    mean = np.where(np.arange(n) % 4_000 < 2_000, 0.2, 0.8) * np.linspace(1.0, 0.6, n)
    stream = from_weights(rng.gamma(2.0, 0.5, n), (rng.uniform(size=n) < mean) * 1.0)
    return stream.with_(target=np.where(rng.uniform(size=n) < 0.1, np.nan, stream.target))


WINDOWS = {
    "mse": AdaptiveWindow(drift_span=SPAN, name="mse"),
    "mse, half": AdaptiveWindow(drift_span=SPAN, bias_weight=0.5, name="mse, half"),
    "mse, immediate": AdaptiveWindow(drift_span=SPAN, growth="immediate", name="mse, immediate"),
    "published": AdaptiveWindow(drift_span=SPAN, objective="published", name="published", bias_weight=1e-4),
    "published, immediate": AdaptiveWindow(
        drift_span=SPAN, objective="published", growth="immediate", bias_weight=1e-4, name="published, immediate"
    ),
}
DECAYS = {
    "mse": AdaptiveDecay(drift_span=SPAN, name="mse"),
    "mse, exact": AdaptiveDecay(drift_span=SPAN, bias="exact", name="mse, exact"),
    "published": AdaptiveDecay(drift_span=SPAN, objective="published", bias_weight=1e-4, name="published"),
}


def adaptive_cases() -> list[tuple[Stream, AnyEstimator, list[int]]]:
    ends = [30, 550, 1_050, 1_051, 2_500, 3_333, 6_240, 8_000]
    return [(drifting(8_000, seed=31), SNIPS(), ends), (drifting(8_000, seed=32), IPS(), ends)]


def reports_at(stream: Stream, ends: list[int], **settings: Any) -> Iterator[tuple[int, Any]]:
    evaluator, done = Evaluator([CANDIDATE], block=LONG_BLOCK, **ALONE | settings), 0
    for end in ends:
        evaluator.update(stream[done:end].batch())
        evaluator.fold_pending()
        done = end
        yield end, evaluator.report()


@pytest.mark.parametrize(("stream", "estimator", "ends"), adaptive_cases(), ids=["snips", "ips"])
def test_an_adaptive_window_equals_its_definition(stream: Stream, estimator: AnyEstimator, ends: list[int]) -> None:
    expected_terms = terms(estimator, stream, LONG_BLOCK)
    choices = {
        label: brute_force.chosen(
            expected_terms,
            LONG_BLOCK,
            SPAN,
            brute_force.smooth_window,
            (brute_force.published_tau if average.objective == "published" else brute_force.mse_tau)(average.weight),
        )
        for label, average in WINDOWS.items()
    }
    lengths: dict[str, set[float]] = {label: set() for label in WINDOWS}
    for n, report in reports_at(stream, ends, estimators=[estimator], averages=list(WINDOWS.values())):
        for label, average in WINDOWS.items():
            estimate = report.get(CANDIDATE, estimator.label, label)
            kernel = brute_force.adaptive_window(n, LONG_BLOCK, choices[label], average.growth)
            assert_estimate(estimate, kernel, expected_terms[:n])
            assert estimate.details["window_events"] == kernel.sum()
            lengths[label].add(kernel.sum() / n)
    assert all(min(held) < 0.5 for held in lengths.values()), "the drift must have shortened every window"


@pytest.mark.parametrize(("stream", "estimator", "ends"), adaptive_cases(), ids=["snips", "ips"])
def test_an_adaptive_decay_equals_its_definition(stream: Stream, estimator: AnyEstimator, ends: list[int]) -> None:
    expected_terms = terms(estimator, stream, LONG_BLOCK)
    choices = {
        label: brute_force.chosen(
            expected_terms, LONG_BLOCK, SPAN, brute_force.smooth_decay(LONG_BLOCK), _choice_of(average)
        )
        for label, average in DECAYS.items()
    }
    for n, report in reports_at(stream, ends, estimators=[estimator], averages=list(DECAYS.values())):
        for label in DECAYS:
            estimate = report.get(CANDIDATE, estimator.label, label)
            kernel = brute_force.adaptive_decay(n, LONG_BLOCK, choices[label])
            assert_estimate(estimate, kernel, expected_terms[:n])
    for label, alphas in choices.items():
        finite = [1 / (1 - alpha) for alpha in alphas if not math.isnan(alpha)]
        assert min(finite) < 2_000, f"the drift must have shortened the horizon of {label}"


def _choice_of(average: AdaptiveDecay) -> brute_force.Choice:
    """Return the choice of the package. It has its own test, so that only its effect is tested here."""

    def choose(k: float, variance: float, events: int) -> float:
        return float(average.choose(np.array([[k]]), np.array([[variance]]), np.array([events]))[0, 0])

    return choose


@pytest.mark.parametrize("bias", ["published", "exact"])
def test_the_chosen_alpha_has_the_least_risk_of_all(bias: typing.Literal["published", "exact"]) -> None:
    rng = np.random.default_rng(20240817)
    average, best = AdaptiveDecay(bias=bias, bias_weight=0.7), brute_force.mse_alpha(0.7, bias)
    for _ in range(60):
        k, variance, events = 10 ** rng.uniform(-9, -3), 10 ** rng.uniform(-6, 2), round(10 ** rng.uniform(3, 7))
        risks = [
            brute_force.decay_risk(np.array(1 / (1 - alpha)), k, variance, events, 0.7, bias)
            for alpha in (_choice_of(average)(k, variance, events), best(k, variance, events))
        ]
        assert risks[0] <= risks[1] * 1.005


@given(k=st.floats(1e-12, 1e-2), variance=st.floats(1e-9, 1e4), bias_weight=st.sampled_from([0.5, 1.0, 2.0]))
def test_the_chosen_window_has_the_least_risk_of_all(k: float, variance: float, bias_weight: float) -> None:
    average = AdaptiveWindow(bias_weight=bias_weight)
    tau = float(average.choose(np.array([k]), np.array([variance]))[0])
    expected = min(max(brute_force.mse_tau(bias_weight)(k, variance, 0), 500), 500_000)
    assert tau == pytest.approx(expected, rel=1e-9)


@given(k=st.floats(0, 1), variance=st.floats(0, 1e12), bias_weight=st.floats(1e-6, 1))
def test_the_choices_stay_within_their_limits(k: float, variance: float, bias_weight: float) -> None:
    rate, noise = np.array([[k]]), np.array([[variance]])
    for objective in ("mse", "published"):
        window = AdaptiveWindow(objective=objective, bias_weight=bias_weight).choose(rate, noise)
        alpha = AdaptiveDecay(objective=objective, bias_weight=bias_weight).choose(rate, noise, np.array([1_000]))
        assert 500 <= window[0, 0] <= 500_000
        assert 500 * (1 - 1e-9) <= 1 / (1 - alpha[0, 0]) <= 500_000 * (1 + 1e-9)


def test_the_published_objective_has_its_own_default_weight() -> None:
    assert [AdaptiveWindow(objective=objective).weight for objective in ("mse", "published")] == [1.0, 5e-5]
    assert AdaptiveDecay(objective="published", bias_weight=0.1).weight == 0.1


def test_an_adaptive_average_keeps_its_first_memory_until_the_drift_span_has_passed() -> None:
    stream = drifting(1_100, seed=2)
    averages = [AdaptiveWindow(drift_span=SPAN), AdaptiveDecay(drift_span=SPAN)]
    for n, report in reports_at(stream, [950, 1_000, 1_049, 1_050], estimators=[IPS()], averages=averages):
        window, decay = (report.get(CANDIDATE, "ips", a.label).details for a in averages)
        assert (window["lipschitz_per_event"] is None) == (decay["lipschitz_per_event"] is None) == (n < 1_050)
        if n < 1_050:
            assert window["window_events"] == n
            assert decay["alpha"] == 0.9999


@pytest.mark.slow
def test_the_drift_rate_equals_its_definition_long_after_the_moving_average_is_full() -> None:
    block, span, n = 250, 3_000, 27_000
    stream = drifting(n, seed=44)
    silent = (np.arange(n) >= 12_000) & (np.arange(n) < 13_000)
    stream = stream.with_(target=np.where(silent, np.nan, stream.target))
    smooth = {"adaptive_window": brute_force.smooth_window, "adaptive_decay": brute_force.smooth_decay(block)}
    expected = {
        (estimator.label, average): brute_force.rates_over_spans(terms(estimator, stream, block), block, span, smoothed)
        for estimator in (IPS(), SNIPS())
        for average, smoothed in smooth.items()
    }
    averages = [AdaptiveWindow(drift_span=span), AdaptiveDecay(drift_span=span)]
    evaluator = Evaluator([CANDIDATE], [IPS(), SNIPS()], averages, block=block, drift=None, promotion=None)
    for index in range(n // block):
        evaluator.update(stream[index * block : (index + 1) * block].batch())
        evaluator.fold_pending()
        report = evaluator.report()
        for row, rates in expected.items():
            details = report.get(CANDIDATE, *row).details["lipschitz_per_event"]
            assert details == (None if math.isnan(rates[index]) else pytest.approx(rates[index], rel=1e-9))


def test_the_bias_bounds_equal_the_published_ones() -> None:
    n, tau, alpha = 60_130, 640, 0.99
    stream = drifting(n, seed=45)
    averages = [Window(tau=tau, resolution=1), Decay(alpha=alpha), AdaptiveWindow(), AdaptiveDecay()]
    report = evaluated(stream, estimators=[SNIPS()], averages=averages).report()
    details = {average.label: report.get(CANDIDATE, "snips", average.label).details for average in averages}
    for label in ("window", "adaptive_window"):
        k, held = details[label]["lipschitz_per_event"], details[label]["window_events"]
        assert details[label]["bias_bound"] == pytest.approx(k * (held - 1) / 2, rel=1e-12)
    for label in ("decay", "adaptive_decay"):
        k, alpha = details[label]["lipschitz_per_event"], details[label]["alpha"]
        assert details[label]["bias_bound"] == pytest.approx(k * alpha / ((1 - alpha) * (1 - alpha**n)), rel=1e-9)
    assert details["window"]["window_events"] == tau


def test_the_drift_of_a_ramp_is_its_slope() -> None:
    n, slope = 30_000, 2e-5
    stream = from_weights(np.ones(n), slope * np.arange(n))
    averages = [AdaptiveWindow(drift_span=5_000), AdaptiveWindow(drift_span=5_000, objective="published", name="p")]
    report = evaluated(stream, estimators=[IPS()], averages=averages, block=100).report()
    for average in averages:
        rate = report.get(CANDIDATE, "ips", average.label).details["lipschitz_per_event"]
        assert rate == pytest.approx(slope, rel=1e-9)


def test_an_adaptive_window_is_never_empty() -> None:
    average = AdaptiveWindow(objective="published", bias_weight=1e6, drift_span=1_000)
    report = evaluated(drifting(8_000, seed=1), estimators=[IPS()], averages=[average], block=1_000).report()
    assert report.get(CANDIDATE, "ips", "adaptive_window").details["window_events"] == 1_000


@pytest.mark.parametrize("growth", ["by_event", "immediate"])
def test_a_window_that_shrank_grows_back_as_configured(growth: typing.Literal["by_event", "immediate"]) -> None:
    rng = np.random.default_rng(77)
    n, jump = 40_000, 20_000
    reward = np.where(np.arange(n) < jump, 0.2, 0.8) + rng.uniform(-0.1, 0.1, n)
    average = AdaptiveWindow(drift_span=1_000, objective="published", bias_weight=1e-3, growth=growth)
    evaluator = Evaluator([CANDIDATE], [IPS()], [average], block=100, drift=None, promotion=None)
    stream, held, first = from_weights(np.ones(n), reward), [], 0
    ends = [*range(jump, jump + 6_000, 200), *range(jump + 6_000, n + 1, 500)]
    for end in ends:
        evaluator.update(stream[first:end].batch())
        evaluator.fold_pending()
        held.append(evaluator.report().get(CANDIDATE, "ips", "adaptive_window").details["window_events"])
        first = end
    steps = np.diff(held)
    assert min(held[:30]) <= 600, "the jump must shorten the window"
    assert max(held[42:]) > 5_000, "and it must become longer again"
    if growth == "by_event":
        assert (steps <= np.diff(ends)).all()
    else:
        assert steps.max() > 1_000


@pytest.mark.parametrize(
    "average", [Window(tau=500), Window(tau=500, resolution=1, name="exact"), AdaptiveWindow(drift_span=500)]
)
def test_a_weight_of_1e10_that_has_left_a_window_leaves_nothing_behind(average: AnyAverage) -> None:
    rng = np.random.default_rng(9)
    n = 12_000
    tame = from_weights(rng.gamma(2.0, 0.5, n), rng.uniform(size=n))
    tame = tame.with_(propensity=np.full(n, 1e-9), target=tame.target / tame.propensity * 1e-9)
    heavy = tame.with_(propensity=tame.propensity.copy(), target=tame.target.copy())
    heavy.propensity[5], heavy.target[5] = 1e-11, 0.1
    assert heavy.weight[5] == pytest.approx(1e10)
    settings: dict[str, Any] = {"estimators": [IPS(), SNIPS()], "averages": [average], "block": 100}
    for label in ("ips", "snips"):
        first, second = (evaluated(s, **settings).report().get(CANDIDATE, label, average.label) for s in (tame, heavy))
        assert first.details["lipschitz_per_event"] == second.details["lipschitz_per_event"]
        if average.kind == "window":
            assert first.value == second.value
            assert first.effective_sample_size == second.effective_sample_size
            assert first.details["largest_term_share"] == second.details["largest_term_share"]


def test_the_moving_average_of_the_drift_only_ever_adds() -> None:
    rng = np.random.default_rng(10)
    n = 15_000
    tame = from_weights(rng.gamma(2.0, 0.5, n), rng.uniform(size=n))
    huge = tame.with_(target=tame.target * 1e-12, propensity=tame.propensity * 1e-12)
    huge.propensity[3] = 1e-15
    reports = [
        evaluated(s, estimators=[IPS()], averages=[AdaptiveWindow(drift_span=1_000)], every=777).report()
        for s in (tame, huge)
    ]
    rates = [r.get(CANDIDATE, "ips", "adaptive_window").details["lipschitz_per_event"] for r in reports]
    assert rates[0] == pytest.approx(rates[1], rel=1e-9)


def test_the_default_window_is_kept_in_about_a_hundred_buckets() -> None:
    assert [Window(tau=tau).bucket(block=100) for tau in (99, 1_000, 5_000, 10_000, 1_000_000)] == [
        1,
        10,
        50,
        100,
        10_000,
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "window", "tau": 0},
        {"kind": "window", "tau": 10, "resolution": 11},
        {"kind": "decay", "alpha": 1.0},
        {"kind": "decay", "alpha": 0.5, "half_life": 3},
        {"kind": "decay", "half_life": 0},
        {"kind": "adaptive_window", "growth": "slow"},
        {"kind": "adaptive_decay", "bias_weight": 0},
        {"kind": "adaptive_decay", "drift_span": 0},
        {"kind": "cumulative", "tau": 5},
        {"kind": "moving"},
    ],
    ids=str,
)
def test_wrong_parameters_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(AnyAverage).validate_python(wrong)


def test_a_resolution_that_fits_no_block_is_refused() -> None:
    with pytest.raises(ValueError, match="resolution 30"):
        Evaluator([CANDIDATE], averages=[Window(tau=60, resolution=30)], block=100)


def test_published_decay_and_window_agree_on_what_they_follow() -> None:
    """Compare the horizon of the published alpha with half the published window, plus a half."""
    scaled = np.array([1e-9, 1e-7, 1e-5])
    horizons = 1 / (1 - choice.published_decay(scaled))
    np.testing.assert_allclose(horizons, choice.published_window(scaled) / 2 + 0.5, rtol=1e-9)


@dataclass(frozen=True, config=strict)
class LastBlock(Fading):
    """Average the events of the last whole block."""

    kind: Literal["last_block"] = field(default="last_block", kw_only=True, repr=False)

    def step(self, path: Path, state: Any, bank: Bank) -> Step:
        return Step(factor=0.0, share=1.0, memory=path.sums.size)

    def tail_step(self, state: Any, tail: BlockSums, bank: Bank) -> Step:
        return Step(factor=1.0, share=0.0, memory=tail.size)


def test_an_average_is_one_class() -> None:
    stream = random_stream(8, 90, missing=0.2)
    evaluator = evaluated(stream, estimators=[IPS(), SNIPS()], averages=[LastBlock(), Cumulative()], block=BLOCK)
    last = evaluated(stream[60:80], estimators=[IPS(), SNIPS()], averages=[Cumulative()], block=BLOCK).report()
    for estimator in ("ips", "snips"):
        estimate = evaluator.report().get(CANDIDATE, estimator, "last_block")
        expected = last.get(CANDIDATE, estimator, "cumulative")
        assert (estimate.value, estimate.lift) == (close(expected.value), close(expected.lift))
        assert estimate.kind == "empirical_likelihood"
    with pytest.raises(ValueError, match="does not measure drift"):
        Evaluator([CANDIDATE], averages=[LastBlock()], intervals={"last_block": Normal(drift="include")})
    with pytest.raises(ValueError, match="confidence_sequence fits"):
        Evaluator([CANDIDATE], averages=[LastBlock()], intervals={"last_block": "confidence_sequence"})


FIXED: list[AnyAverage] = [
    Cumulative(),
    Window(tau=70, resolution=1),
    Window(span="90s", name="timed window"),
    Decay(),
    Decay(half_life="1m", name="timed decay"),
    AdaptiveWindow(drift_span=BLOCK),
    AdaptiveDecay(drift_span=BLOCK),
]
FIXED += parts.further_averages([*FIXED, Mixture()])


@pytest.mark.parametrize("averages", [(*FIXED, Mixture()), tuple(FIXED), (Mixture(),)], ids=["all", "fixed", "mixture"])
def test_a_state_for_some_policies_and_estimators_equals_the_state_of_a_grid_without_others(
    averages: tuple[AnyAverage, ...],
) -> None:
    rng, n = np.random.default_rng(3), 33 * BLOCK
    weight, reward = rng.gamma(2.0, 0.5, (n, 3)), rng.uniform(size=n)
    weight[:, 0] = 1.0
    present, signs = rng.choice([0.0, 1.0, 2.0], (n, 3)), rng.choice([-1.0, 1.0], (n, 64))

    def grid(policies: Sequence[int], estimators: tuple[AnyEstimator, ...]) -> Grid:
        candidates, bounds = tuple(index > 0 for index in policies), (Normal(),) * len(averages)
        return Grid(estimators, averages, bounds, candidates, IPS().needs, {}, BLOCK)

    def folded(some: Grid, policies: Sequence[int]) -> Any:
        evidence = Evidence.from_numbers(weight[:, policies], reward, BLOCK, present[:, policies])
        state = some.start()
        some.fold(state, [replace(evidence, signs=signs, timestamp=np.arange(n) * 1.0)])
        return state

    whole, subset = grid(range(3), (IPS(), StratifiedIPS(), SNIPS())), grid([0, 2], (StratifiedIPS(), SNIPS()))
    selected = whole.select(folded(whole, range(3)), subset, [0, 2])
    assert_same(from_plain(encode(selected)), from_plain(encode(folded(subset, [0, 2]))))


FORGETTING = [Window(tau=200), Window(span="200s", name="timed window"), Decay(half_life=100)]
FORGETTING += [Decay(half_life="100s", name="timed decay")]
FORGETTING += [
    average
    for average in parts.further_averages([*FORGETTING, Cumulative()])
    if average.drift is None and not average.mixes_components
]


@pytest.mark.parametrize("average", FORGETTING, ids=lambda average: average.label)
def test_the_numbers_of_an_average_follow_from_its_weights(average: AnyAverage) -> None:
    """Compare effective events and the horizon of the variance with the weights of blocks, one candidate per block.

    The variance of noise that ends fades with ten times the horizon of the average.
    """
    n, newest = 20_000, 200
    age = (n - 1 - np.arange(n)) // BLOCK
    impulses: dict[str, Any] = {str(block): 0.5 * (age == block) for block in range(newest)}

    def read(rewards: Array, policies: dict[str, Any]) -> dict[str, Estimate]:
        settings: dict[str, Any] = {"block": BLOCK, "reward_range": (-5, 5), "intervals": {average.label: "normal"}}
        evaluator = Evaluator(list(policies), [IPS()], [average], **settings | ALONE)
        half, time = np.full(len(rewards), 0.5), np.arange(len(rewards)) * 1.0
        evaluator.update(EventBatch.from_arrays(reward=rewards, propensity=half, timestamp=time, policies=policies))
        report = evaluator.report()
        return {name: report.get(name, "ips", average.label) for name in policies}

    rows = read(np.ones(n), {**impulses, "all": np.full(n, 0.5)})
    weights = np.array([rows[name].value for name in impulses], dtype=float)
    if average.effective_events is None and weights[0] < 1e-2:
        pytest.skip("its memory grows with the stream")
    assert weights[0] >= 1e-2, f"add an example of {average.label} with a shorter memory to tests/support/parts.py"
    effective, horizon = BLOCK * weights.sum() ** 2 / np.square(weights).sum(), BLOCK / weights[0]
    assert rows["all"].effective_sample_size == pytest.approx(effective, rel=0.05)
    if average.effective_events is not None:
        assert average.effective_events == pytest.approx(effective, rel=0.05)

    quiet = round(10 * horizon)
    noise = np.random.default_rng(1).choice([-1.0, 1.0], n)
    widths = []
    for rewards in (noise, np.append(noise, np.zeros(quiet))):
        row = read(rewards, {CANDIDATE: np.full(len(rewards), 0.5)})[CANDIDATE]
        assert row.upper is not None
        assert row.lower is not None
        widths.append(row.upper - row.lower)
    assert -quiet / math.log((widths[1] / widths[0]) ** 2) == pytest.approx(10 * horizon, rel=0.3)


def assert_same(actual: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        if "lost" in expected:  # only rounding, which belongs to the moments
            actual, expected = (
                {**some, "moments": some["moments"] - some["lost"], "lost": None} for some in (actual, expected)
            )
        for key in expected:
            assert_same(actual[key], expected[key])
    elif isinstance(expected, list):
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, str):
        assert actual == expected
    elif expected is None:
        assert actual is None
    else:
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


# The buckets of a long window.


@pytest.mark.parametrize("every", [7, 8_000], ids=str)
def test_buckets_of_a_ladder_are_at_most_as_long_as_a_hundredth_of_their_age(every: int) -> None:
    rng, count, capacity = np.random.default_rng(1), 8_000, 5_000
    blocks, maxima = rng.random((count, 2, 3)), np.array([False, False, True])
    ladder = ring.start_ladder(2, 3, capacity)
    sums = np.concatenate([np.zeros((1, 2, 3)), blocks.cumsum(axis=0)])
    for first in range(0, count, every):
        ring.climb(ladder, blocks[first : first + every], maxima)
        number = min(first + every, count)
        if number % 500 and number > 450:
            continue
        buckets, reach = ring.unrolled(ladder)
        reach = np.append(0, reach)
        lengths = np.diff(reach)
        assert min(number, capacity) <= reach[-1] <= number
        assert (lengths[:200] == 1).all()
        assert (lengths <= np.maximum(1, 0.01 * reach[:-1])).all()
        older, newer = number - reach[1:], number - reach[:-1]
        np.testing.assert_allclose(buckets[..., :2].swapaxes(0, 1), (sums[newer] - sums[older])[..., :2], rtol=1e-9)
        largest = [blocks[start:stop, :, 2].max(axis=0) for start, stop in zip(older, newer, strict=True)]
        np.testing.assert_array_equal(buckets[..., 2].T, largest)


@pytest.mark.slow
def test_a_long_adaptive_window_is_right_to_a_hundredth_of_its_length_and_exact_within_20_000_events() -> None:
    n, block, span = 70_000, 100, 10_000
    stream = drifting(n, seed=47)
    expected_terms = terms(IPS(), stream, block)
    averages = [
        AdaptiveWindow(drift_span=span, growth=growth, bias_weight=weight, name=f"{growth} {weight}")
        for growth in ("by_event", "immediate")
        for weight in (1.0, 0.1, 1e-6)
    ]
    choices = {
        weight: brute_force.chosen(expected_terms, block, span, brute_force.smooth_window, brute_force.mse_tau(weight))
        for weight in (1.0, 0.1, 1e-6)
    }
    evaluator, lengths = Evaluator([CANDIDATE], [IPS()], averages, block=block, **ALONE), []
    for first in range(0, n, 3_330):
        evaluator.update(stream[first : first + 3_330].batch())
        evaluator.fold_pending()
        report, end = evaluator.report(), min(first + 3_330, n)
        for average in averages:
            kernel = brute_force.adaptive_window(end, block, choices[average.weight], average.growth)
            estimate = report.get(CANDIDATE, "ips", average.label)
            held, wanted = int(estimate.details["window_events"]), int(kernel.sum())
            if wanted <= 20_000:
                assert held == wanted
            assert 0.99 * wanted <= held <= wanted
            assert_estimate(estimate, brute_force.window(end, held), expected_terms[:end])
            lengths.append(wanted)
    assert max(lengths) > 50_000
    assert min(lengths[len(lengths) // 2 :]) < 20_000


def test_the_bias_of_the_cumulative_mean_follows_the_mean_rate_of_its_events() -> None:
    n, block, span, smoothing = 75_130, 500, 50_000, 10_000
    stream = drifting(n, seed=48)

    def smoothed(end: int) -> Array:
        """Return NaN until the window is full."""
        return brute_force.window(end, smoothing) * (end >= smoothing)

    rates = np.array(brute_force.rates_over_spans(terms(SNIPS(), stream, block), block, span, smoothed)).repeat(block)
    finite = ~np.isnan(rates)
    mean = np.average(rates[finite], weights=1 + np.flatnonzero(finite))
    settings: dict[str, Any] = {"averages": [Cumulative()], "intervals": {"cumulative": Normal(drift="include")}}
    report = evaluated(stream, estimators=[SNIPS()], block=block, every=20_000, **settings).report()
    details = report.get(CANDIDATE, "snips", "cumulative").details
    assert details["lipschitz_per_event"] == pytest.approx(mean, rel=1e-9)
    assert details["bias_bound"] == pytest.approx(mean * (n - 1) / 2, rel=1e-9)
