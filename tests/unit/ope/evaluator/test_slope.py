"""Test `cap: auto`: SLOPE chooses among rows of fixed caps, and the row equals the row of the chosen cap."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streameval import Evaluator
from streameval.events import EventBatch
from streameval.ope.core import AdaptiveWindow, AnyAverage, Cumulative, Decay, Mixture, Window
from streameval.ope.estimators import CAB, CABDR, IPS, AnyEstimator, ClippedIPS, Switch
from streameval.ope.evaluator.slope import last_overlap
from streameval.ope.intervals import Normal
from streameval.ope.report import Estimate, Report
from streameval.ope.reward_models import Tabular
from support.bandits import random_bandit
from support.streams import close

CAPS = (math.inf, 1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)
KERNELS: list[AnyAverage] = [Cumulative(), Window(tau=700), Decay(alpha=0.998)]
AVERAGES: list[AnyAverage] = [*KERNELS, AdaptiveWindow(), Mixture()]
KINDS: dict[str, type[Any]] = {"clipped_ips": ClippedIPS, "switch": Switch, "cab": CAB, "cab_dr": CABDR}
RANGE = (-2.0, 3.0)
"""Range of rewards so wide that no bound is cut."""


def plain_slope(values: Sequence[float], half_widths: Sequence[float]) -> int:
    """Return the index of the last interval that intersects all intervals before it."""
    low, high, width = -math.inf, math.inf, math.inf
    for index, (value, own) in enumerate(zip(values, half_widths, strict=True)):
        width = min(width, own)
        low, high = max(low, value - width), min(high, value + width)
        if low > high:
            return index - 1
    return len(values) - 1


def heavy(events: int = 3_030, seed: int = 3) -> EventBatch:
    """Draw a log with weights of 0 to several hundred, and two policies that earn more if weights are large."""
    rng = np.random.default_rng(seed)
    propensity = np.exp(-rng.uniform(0, 7, events))
    weights = [np.minimum(rng.exponential(size=events) ** power, 1 / propensity) for power in (1.0, 3.0)]
    reward = rng.random(events) < np.where(weights[1] > 4, 0.8, 0.2)
    policies = {f"p{index}": weight * propensity for index, weight in enumerate(weights)}
    return EventBatch.from_arrays(reward=reward.astype(float), propensity=propensity, policies=policies)


def evaluator_of(batch: EventBatch, estimators: Sequence[AnyEstimator], **settings: Any) -> Evaluator:
    averages = settings.get("averages", AVERAGES)
    intervals = {average.label: Normal() for average in averages}
    settings = {"averages": averages, "intervals": intervals, "reward_range": RANGE, "drift": None} | settings
    evaluator = Evaluator(settings.pop("candidates", list(batch.policies)), estimators=estimators, **settings)
    evaluator.update(batch)
    return evaluator


def fixed(kind: str) -> list[AnyEstimator]:
    return [KINDS[kind](cap=cap, name=f"{kind} {cap:g}") for cap in CAPS]


def half_widths(rows: Sequence[Estimate], events: float) -> list[float]:
    """Return the half-widths that SLOPE gives to rows of falling caps with normal intervals."""
    z, widths = NormalDist().inv_cdf(0.975), []
    for row, cap in zip(rows, CAPS, strict=True):
        assert row.value is not None
        assert row.upper is not None
        assert row.importance_weight_max is not None
        heaviest = min(cap, row.importance_weight_max)
        widths.append((row.upper - row.value) / z / 2 + 2 * (RANGE[1] - RANGE[0]) * heaviest / events)
    return widths


def assert_equal_but_wider(estimate: Estimate, row: Estimate, wider: float) -> None:
    """Require equal rows, except for this much added to both sides of the intervals."""
    for name in ("value", "lift", "effective_sample_size", "importance_weight_mean", "importance_weight_max"):
        assert getattr(estimate, name) == close(getattr(row, name))
    for name, sign in (("lower", -1), ("upper", 1), ("lift_lower", -1), ("lift_upper", 1)):
        bound = getattr(row, name)
        assert getattr(estimate, name) == (None if bound is None else close(bound + sign * wider))
    assert (estimate.kind, estimate.covers) == ("normal", "estimand")


def effective_events(average: AnyAverage, estimate: Estimate, events: int) -> float:
    if isinstance(average, Decay):
        kernel = 0.998 ** np.arange(events)
        return float(kernel.sum() ** 2 / (kernel**2).sum())
    return float(estimate.details.get("window_events", events))


def rows_of(report: Report, kind: str, policy: str, average: str) -> list[Estimate]:
    return [report.get(policy, f"{kind} {cap:g}", average) for cap in CAPS]


@pytest.mark.parametrize("kind", KINDS)
def test_the_row_has_the_cap_that_a_plain_slope_chooses(kind: str) -> None:
    batch = heavy() if kind == "clipped_ips" else random_bandit(seed=5, smallest=0.02).log(5_030, seed=1)
    settings: dict[str, Any] = {"averages": KERNELS, "reward_model": Tabular(shrinkage=1e9)}
    report = evaluator_of(batch, [KINDS[kind](cap="auto"), *fixed(kind)], **settings).report()
    shown = set()
    for policy in ("logging", *batch.policies):
        for average in KERNELS:
            estimate, rows = report.get(policy, kind, average.label), rows_of(report, kind, policy, average.label)
            widths = half_widths(rows, effective_events(average, estimate, len(batch)))
            values = [row.value for row in rows]
            index = plain_slope(values, widths)
            assert_equal_but_wider(estimate, rows[index], widths[index] if len(set(values)) > 1 else 0.0)
            limit = estimate.importance_weight_max if math.isinf(CAPS[index]) else CAPS[index]
            assert estimate.details["cap"] == limit
            shown.add(limit)
    assert len(shown) > 1, "the log must call for several caps"


@pytest.mark.parametrize("average", AVERAGES, ids=lambda average: average.kind)
@pytest.mark.parametrize("production", ["logging", "p1"])
def test_the_row_equals_the_one_of_its_cap_for_the_value_and_for_the_lift(average: AnyAverage, production: str) -> None:
    batch, estimators = heavy(), [ClippedIPS(cap="auto"), *fixed("clipped_ips")]
    candidates = [name for name in ("p0", "p1") if name != production]
    settings: dict[str, Any] = {"candidates": candidates, "production": production, "averages": [average]}
    report = evaluator_of(batch, estimators, **settings).report()
    estimate = report.get("p0", "clipped_ips", average.label)
    row = report.get("p0", f"clipped_ips {estimate.details['cap']:g}", average.label)
    assert row.lower > estimate.lower
    assert_equal_but_wider(estimate, row, row.lower - estimate.lower)


@given(
    values=st.lists(st.floats(-5, 5) | st.just(math.nan), min_size=1, max_size=8),
    widths=st.lists(st.floats(0, 3), min_size=8, max_size=8),
)
def test_the_last_overlap_equals_the_definition(values: list[float], widths: list[float]) -> None:
    finite = [0.0 if math.isnan(value) else value for value in values]
    unknown = [math.inf if math.isnan(value) else width for value, width in zip(values, widths, strict=False)]
    if math.inf not in unknown:
        assert last_overlap(np.array(values), np.array(widths[: len(values)])) == plain_slope(finite, unknown)
    many = np.stack([np.array(values), np.zeros(len(values))])
    assert last_overlap(many, np.zeros_like(many))[1] == len(values) - 1


def test_a_choice_from_one_cap_is_that_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streameval.ope.estimators.interpolated.CAPS", (10.0,))
    report = evaluator_of(heavy(), [ClippedIPS(cap="auto"), ClippedIPS(cap=10, name="ten")]).report()
    for policy in ("logging", "p0", "p1"):
        for average in AVERAGES:
            actual, row = (report.get(policy, name, average.label) for name in ("clipped_ips", "ten"))
            assert_equal_but_wider(actual, row, 0.0)


def test_without_large_weights_there_is_nothing_to_choose() -> None:
    rng = np.random.default_rng(1)
    reward, propensity = rng.integers(2, size=2_000).astype(float), np.full(2_000, 0.5)
    batch = EventBatch.from_arrays(reward=reward, propensity=propensity, policies={"c": rng.uniform(0, 0.5, 2_000)})
    report = evaluator_of(batch, [ClippedIPS(cap="auto"), ClippedIPS(cap=1, name="one")]).report()
    for average in AVERAGES:
        assert_equal_but_wider(*(report.get("c", name, average.label) for name in ("clipped_ips", "one")), 0.0)


def test_other_parts_may_come_and_go() -> None:
    batch = heavy(2_000)
    both, alone = (
        evaluator_of(batch, estimators) for estimators in ([ClippedIPS(cap="auto"), IPS()], [ClippedIPS(cap="auto")])
    )
    ips = evaluator_of(batch, [IPS()])
    for source in (alone, ips):
        assert both.apply_config(source.config) is None
        kept = both.report()
        assert [(e.estimator, e.value, e.lower) for e in kept.estimates] == [
            (e.estimator, close(e.value), close(e.lower)) for e in source.report().estimates
        ]
        both = evaluator_of(batch, [ClippedIPS(cap="auto"), IPS()])


def test_a_choice_costs_as_much_memory_as_eight_estimators() -> None:
    batch = heavy(200)
    chosen, single, none = (
        evaluator_of(batch, [IPS(), *estimators], averages=[Window(), Decay()]).full_bytes
        for estimators in ([ClippedIPS(cap="auto")], [ClippedIPS(cap=10)], [])
    )
    assert chosen - none == 8 * (single - none)


def test_a_confidence_sequence_is_withheld_if_the_cap_is_chosen() -> None:
    estimators = [IPS(), ClippedIPS(cap="auto"), ClippedIPS(cap=10, name="ten")]
    intervals = {"cumulative": "confidence_sequence"}
    report = evaluator_of(heavy(), estimators, averages=[Cumulative()], intervals=intervals).report()
    bounds = {e.estimator: e.lower for e in report.estimates if e.policy == "p0"}
    assert bounds["clipped_ips"] is None
    assert bounds["ips"] is not None
    assert bounds["ten"] is not None


def test_a_report_shows_the_cap_of_an_estimator_that_chooses_and_of_no_other() -> None:
    report = evaluator_of(heavy(300), [ClippedIPS(cap="auto"), ClippedIPS(cap=10, name="ten"), IPS()]).report()
    rows = json.loads(report.to_json())["estimates"]
    assert {row["estimator"] for row in rows if "cap" in row["details"]} == {"clipped_ips"}
    before = evaluator_of(heavy(300)[:0], [ClippedIPS(cap="auto")], candidates=["p0"]).report()
    assert {(row.value, row.details["cap"]) for row in before.estimates} == {(None, None)}
