"""Test lifts as paired differences to production, against two-pass arithmetic on the same events."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streameval import (
    IPS,
    SNIPS,
    AdaptiveDecay,
    AdaptiveWindow,
    ClippedIPS,
    ControlVariate,
    Cumulative,
    Decay,
    EmpiricalBernstein,
    Estimate,
    Evaluator,
    Mixture,
    StratifiedIPS,
    Window,
)
from support.logs import BLOCK, CAP, Log
from support.reference.brute_force import Terms, cumulative, decay, window

Array = NDArray[np.float64]

ESTIMATORS = (IPS(), SNIPS(), ClippedIPS(cap=CAP), ControlVariate())
KERNELS = {
    "cumulative": (Cumulative(), cumulative),
    "window": (Window(tau=700, resolution=1), lambda n: window(n, 700)),
    "decay": (Decay(alpha=0.997), lambda n: decay(n, 0.997)),
}


def estimate(log: Log, policy: str, estimator: str, average: Any, every: int = 0, **wanted: Any) -> Estimate:
    production = wanted.pop("production", "logging")
    candidates = [name for name in ("a", "b") if name != production]
    evaluator = Evaluator(
        candidates, wanted.pop("estimators", ESTIMATORS), [average], production=production, block=BLOCK, **wanted
    )
    for first in range(0, len(log), every or len(log)):
        evaluator.update(log.batch(first, first + (every or len(log))))
    return evaluator.report().get(policy, estimator, average.label)


def linearised(kernel: Array, own: Terms, production: Terms) -> tuple[float, Array, Array]:
    """Return the lift, the linearised difference of each event, and the weight of each event."""
    q = kernel * np.where(production.q > 0, own.q, 0.0)
    mean_v, mean_pv = np.average(own.v, weights=q), np.average(production.v, weights=q)
    value = np.average(own.u, weights=q) / mean_v
    other = np.average(production.u, weights=q) / mean_pv
    difference = (own.u - value * own.v) / mean_v - (production.u - other * production.v) / mean_pv
    return float(value - other), difference, q


@pytest.mark.parametrize("production", ["logging", "b"])
def test_a_lift_is_the_difference_on_the_events_that_both_have(production: str) -> None:
    log = Log(1, 1_030, missing=0.2, downsampled=True)
    averages = [average for average, _ in KERNELS.values()]
    candidates = [name for name in ("a", "b") if name != production]
    evaluator = Evaluator(candidates, ESTIMATORS, averages, production=production, block=BLOCK)
    evaluator.update(log.batch(0, len(log)))
    report = evaluator.report()
    for estimator in ("ips", "snips", "clipped_ips", "control_variate"):
        own, other = log.terms(estimator, "a"), log.terms(estimator, production)
        for name, (_, kernel) in KERNELS.items():
            expected, _, _ = linearised(kernel(len(log)), own, other)
            actual = report.get("a", estimator, name).lift
            assert actual == pytest.approx(expected, rel=1e-9, abs=1e-12), (estimator, name)


@pytest.mark.parametrize("production", ["logging", "b"])
@pytest.mark.parametrize("estimator", ["ips", "snips", "clipped_ips"])
def test_the_empirical_bernstein_interval_of_a_lift_equals_the_one_of_paired_differences(
    estimator: str, production: str
) -> None:
    log = Log(2, 2_030, missing=0.1)
    row = estimate(
        log, "a", estimator, Cumulative(), production=production, intervals={"cumulative": EmpiricalBernstein()}
    )
    own, other = log.terms(estimator, "a"), log.terms(estimator, production)
    value, difference, q = linearised(cumulative(len(log)), own, other)
    count, log_term = q.sum(), np.log(4 / 0.05)
    variance = np.average(difference**2, weights=q) * (1 if estimator == "snips" else count / (count - 1))
    sums = difference[: len(log) // BLOCK * BLOCK].reshape(-1, BLOCK) * q[: len(log) // BLOCK * BLOCK].reshape(
        -1, BLOCK
    )
    spans = [weight_range(estimator, terms) / mean_denominator(terms, q) for terms in (own, other)]
    effect = max(1.0, design_effect(log, estimator, production))
    width = np.sqrt(2 * log_term * variance * effect / count) + 7 * sum(spans) * log_term / (3 * (count - 1))
    assert sums.size
    assert row.lift_upper == pytest.approx(min(1.0, value + width), rel=1e-9)
    assert row.lift_lower == pytest.approx(max(-1.0, value - width), rel=1e-9)


def weight_range(estimator: str, terms: Terms) -> float:
    return min(CAP, terms.w.max()) if estimator == "clipped_ips" else terms.w.max()


def mean_denominator(terms: Terms, q: Array) -> float:
    return float(np.average(terms.v, weights=terms.q))


def design_effect(log: Log, estimator: str, production: str) -> float:
    """Divide the variance of differences between successive blocks by the variance for independent events."""
    whole = len(log) // BLOCK * BLOCK
    own, other = log.terms(estimator, "a")[:whole], log.terms(estimator, production)[:whole]
    _, difference, q = linearised(cumulative(whole), own, other)
    sums, weight = (values.reshape(-1, BLOCK).sum(axis=1) for values in (q * difference, q**2))
    return float((np.diff(sums) ** 2).sum() / (2 * np.average(difference**2, weights=q) * weight[1:].sum()))


def test_the_normal_interval_of_a_lift_has_the_variance_of_paired_differences() -> None:
    log = Log(3, 3_000)
    row = estimate(log, "a", "ips", Cumulative(), intervals={"cumulative": "normal"})
    value, difference, _ = linearised(cumulative(len(log)), log.terms("ips", "a"), log.terms("ips", "logging"))
    effect = max(1.0, design_effect(log, "ips", "logging"))
    width = 1.959963984540054 * np.sqrt(difference.var(ddof=1) * effect / len(log))
    assert (row.lift_lower, row.lift_upper) == (
        pytest.approx(value - width, rel=1e-9),
        pytest.approx(value + width, rel=1e-9),
    )
    assert row.details["lift_deviation"] == pytest.approx(difference.std(), rel=1e-9)


def test_pairing_makes_the_lift_of_a_policy_near_production_precise() -> None:
    log = Log(4, 4_000)
    log.target["a"] = log.propensity * 1.02
    row = estimate(log, "a", "ips", Cumulative())
    assert row.lift is not None
    assert row.upper is not None
    assert row.lower is not None
    assert row.lift_upper is not None
    assert row.lift_lower is not None
    assert row.lift_upper - row.lift_lower < 0.05 * (row.upper - row.lower)


@pytest.mark.parametrize("average", [Cumulative(), Window(), Decay(), AdaptiveWindow(), AdaptiveDecay(), Mixture()])
def test_a_policy_that_is_production_has_the_lift_zero(average: Any) -> None:
    log = Log(5, 6_150, missing=0.05)
    log.target["a"] = log.propensity.copy()
    intervals = {} if average.kind == "mixture" else {average.label: "normal"}
    for estimator in ("ips", "snips", "control_variate"):
        row = estimate(log, "a", estimator, average, intervals=intervals)
        presumed = 1e-2 if average.kind == "mixture" else 0.0  # a mixture presumes that a term varies a little
        end = pytest.approx(0, abs=presumed)  # otherwise exactly 0, because the status page asks whether it is above 0
        assert (row.lift, row.lift_lower, row.lift_upper) == (0.0, end, end)


@pytest.mark.parametrize("average", [Cumulative(), Window(), Decay(), AdaptiveWindow(), AdaptiveDecay()])
@pytest.mark.parametrize("estimator", ["ips", "snips", "control_variate"])
def test_by_default_the_next_event_may_distinguish_a_policy_from_production(estimator: str, average: Any) -> None:
    log = Log(5, 6_150, missing=0.05)
    log.target["a"] = log.propensity.copy()
    row = estimate(log, "a", estimator, average)
    assert (row.kind, row.lift) == ("empirical_likelihood", 0.0)
    assert row.lift_lower is not None
    assert row.lift_upper is not None
    assert -0.002 < row.lift_lower < 0.0 < row.lift_upper < 0.002


def test_production_itself_has_no_lift() -> None:
    row = estimate(Log(6, 500), "logging", "ips", Cumulative())
    assert (row.lift, row.lift_lower, row.lift_upper) == (None, None, None)


def test_the_adaptive_averages_take_the_lift_over_the_candidates_own_memory() -> None:
    log = Log(8, 3_000)
    row = estimate(log, "a", "ips", AdaptiveWindow())
    assert row.lift == pytest.approx(
        linearised(cumulative(3_000), log.terms("ips", "a"), log.terms("ips", "logging"))[0], rel=1e-9
    )


@pytest.mark.parametrize("estimator", ["snips", "stratified_ips"])
@pytest.mark.parametrize("production", ["logging", "b"])
def test_the_mixture_of_differences_finds_a_constant_lift(estimator: str, production: str) -> None:
    log = Log(9, 60_000)
    row = estimate(log, "a", estimator, Mixture(), estimators=[SNIPS(), StratifiedIPS()], production=production)
    expected, difference, _ = linearised(cumulative(len(log)), log.terms("snips", "a"), log.terms("snips", production))
    assert row.lift is not None
    assert row.lift == pytest.approx(expected, abs=4 * difference.std() / np.sqrt(len(log)))
    assert row.lift_lower is not None
    assert row.lift_upper is not None
    assert row.lift_lower < expected < row.lift_upper


def test_the_mixture_of_differences_starts_at_zero() -> None:
    log = Log(10, 100)
    log.target["a"] = np.where(log.reward > 0, np.minimum(1.0, 2 * log.propensity), 0.0)
    row = estimate(log, "a", "stratified_ips", Mixture(), estimators=[StratifiedIPS()])
    plain = estimate(log, "a", "ips", Cumulative())
    assert row.lift is not None
    assert plain.lift is not None
    assert 0 < row.lift < 0.3 * plain.lift  # 500 pseudo-events without a difference against 100 events


def test_on_the_mixture_no_lift_is_known_before_a_candidate_has_events() -> None:
    log = Log(3, 2_000)
    log.target["a"][:] = np.nan
    assert estimate(log, "a", "snips", Mixture()).lift is None
