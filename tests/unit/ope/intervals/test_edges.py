"""Test intervals before the first reward, after one very heavy event, and far from a mean weight of 1."""

from __future__ import annotations

import numpy as np
import pytest

from streameval.events import EventBatch
from streameval.ope.core import AdaptiveDecay, AdaptiveWindow, AnyAverage, Cumulative, Decay, Mixture, Window
from streameval.ope.estimators import IPS, SNIPS, AnyEstimator, ControlVariate
from streameval.ope.intervals import AnyInterval, EmpiricalLikelihood
from streameval.ope.report import Estimate, Report
from support.streams import CANDIDATE, Stream, evaluated, from_weights

KERNELS: list[AnyAverage] = [
    *(Cumulative(), Window(tau=200), Decay(alpha=0.995)),
    *(AdaptiveWindow(drift_span=500), AdaptiveDecay(drift_span=500)),
]
ESTIMATORS: list[AnyEstimator] = [IPS(), SNIPS()]
CHANCE = 0.42
HEAVIEST = 1e12


def test_a_production_policy_without_a_reward_has_no_normal_lift() -> None:
    """Withhold the lift, because its variance is not known, however much the candidate has earned."""
    rng = np.random.default_rng(4)
    played = rng.random(500) < 0.5
    batch = EventBatch.from_arrays(
        reward=(played & (rng.random(500) < 0.3)) * 1.0,
        propensity=np.full(500, 0.5),
        policies={"current": 1.0 * ~played, CANDIDATE: 1.0 * played},
    )
    settings = {"averages": [Cumulative()], "intervals": {"cumulative": "normal"}}
    estimate = evaluated(batch, production="current", **settings).report().get(CANDIDATE, "ips", "cumulative")
    assert estimate.lower is not None
    assert (estimate.lift_lower, estimate.lift_upper) == (None, None)


def heavy_stream(weight: float, before: int = 1_000, after: int = 999) -> Stream:
    """Draw rewards that weights do not depend on, with a rewarded event of a very small propensity in the middle."""
    rng, events = np.random.default_rng(5), before + 1 + after
    stream = Stream(
        reward=(rng.random(events) < CHANCE) * 1.0,
        propensity=np.full(events, 0.5),
        target=rng.choice([0.25, 0.75], events),
        sampling=np.ones(events),
    )
    for column, number in ((stream.reward, 1.0), (stream.propensity, 1 / weight), (stream.target, 1.0)):
        column[before] = number
    return stream


def asked(stream: Stream, kind: AnyInterval | str | None, averages: list[AnyAverage]) -> Report:
    intervals = {} if kind is None else {average.label: kind for average in averages}
    return evaluated(stream, estimators=ESTIMATORS, averages=averages, intervals=intervals).report()


def holds(estimate: Estimate, truth: float) -> bool:
    """Return whether an interval holds the truth or is withheld."""
    if estimate.lower is None or estimate.upper is None:
        return True
    return estimate.lower <= truth <= estimate.upper


@pytest.mark.parametrize("weight", [1e3, 1e5, 1e7, 1e9, HEAVIEST, 1e40])
@pytest.mark.parametrize("kind", [None, "normal"])
def test_one_very_heavy_event_makes_no_estimate_certain(kind: str | None, weight: float) -> None:
    averages = [*KERNELS, *([Mixture()] if kind is None else [])]
    report = asked(heavy_stream(weight), kind, averages)
    missed = [estimate for estimate in report.estimates if estimate.policy == CANDIDATE and not holds(estimate, CHANCE)]
    assert missed == []
    widths = [
        estimate.upper - estimate.lower
        for estimate in report.estimates
        if estimate.lower is not None and estimate.upper is not None
    ]
    assert min(widths) > 0.01


@pytest.mark.parametrize("kind", ["normal", EmpiricalLikelihood(max_weight=HEAVIEST)], ids=["normal", "likelihood"])
def test_a_window_that_no_longer_holds_the_heavy_event_is_as_wide_as_if_it_had_not_occurred(
    kind: AnyInterval | str,
) -> None:
    stream, windows = heavy_stream(HEAVIEST), [Window(tau=500), Window(tau=200, resolution=1)]
    usual = stream.with_(propensity=np.full(len(stream), 0.5))
    for window in windows:
        actual, expected = (asked(log, kind, [window]).get(CANDIDATE, "snips", window.label) for log in (stream, usual))
        assert actual.value == expected.value
        for ends in (("lower", "upper"), ("lift_lower", "lift_upper")):
            width, usual_width = (
                getattr(estimate, ends[1]) - getattr(estimate, ends[0]) for estimate in (actual, expected)
            )
            assert width == pytest.approx(usual_width, rel=0.15)


@pytest.mark.parametrize("kind", ["normal", "empirical_likelihood"])
def test_a_reward_that_has_always_been_1_is_not_certain_if_rounding_could_hide_another(kind: str) -> None:
    always = heavy_stream(HEAVIEST).with_(reward=np.ones(2_000))
    estimate = asked(always, kind, [Cumulative()]).get(CANDIDATE, "snips", "cumulative")
    assert estimate.lower is None or estimate.lower < 0.1


SKEWED = [("empirical_likelihood", seed) for seed in range(8)] + [("confidence_sequence", seed) for seed in range(8)]


@pytest.mark.parametrize(("kind", "seed"), SKEWED)
def test_an_interval_includes_its_value_however_far_the_mean_weight_is_from_1(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.choice([0.5, 125.5], p=[0.98, 0.02], size=100)
    stream = from_weights(weight, (rng.random(100) < np.where(weight > 1, 0.9, 0.1)) * 1.0)
    averages: list[AnyAverage] = [Cumulative(), Window(tau=100)]
    estimators: list[AnyEstimator] = [IPS(), SNIPS(), ControlVariate()]
    intervals = {average.label: kind for average in averages}
    report = evaluated(stream, estimators=estimators, averages=averages, intervals=intervals).report()
    for estimate in report.estimates:
        ends = [
            (estimate.value, estimate.lower, estimate.upper, 0.0),
            (estimate.lift, estimate.lift_lower, estimate.lift_upper, -1.0),
        ]
        for value, lower, upper, least in ends:
            if value is not None and lower is not None and upper is not None and lower <= upper:
                assert lower <= min(max(value, least), 1.0) <= upper


@pytest.mark.parametrize("limit", [1e6, 1e9, HEAVIEST, 1e40])
def test_a_limit_far_above_all_weights_is_as_good_as_none(limit: float) -> None:
    stream = heavy_stream(2.0)
    limited, unlimited = (
        evaluated(stream, estimators=ESTIMATORS, averages=[Cumulative()], intervals={"cumulative": interval}).report()
        for interval in (EmpiricalLikelihood(max_weight=limit), EmpiricalLikelihood(max_weight=HEAVIEST**3))
    )
    for estimator in ("ips", "snips"):
        actual, expected = (report.get(CANDIDATE, estimator, "cumulative") for report in (limited, unlimited))
        assert actual.lower == pytest.approx(expected.lower, abs=1e-3)
        assert actual.upper == pytest.approx(expected.upper, abs=1e-3)
        assert actual.upper - actual.lower < 0.2
