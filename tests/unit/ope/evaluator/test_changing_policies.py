"""Other policies in a running evaluator: values go on, lifts and decisions begin anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from streameval import (
    IPS,
    SNIPS,
    AdaptiveDecay,
    AdaptiveWindow,
    Cumulative,
    Decay,
    Evaluator,
    Mixture,
    StratifiedIPS,
    Window,
)
from streameval.ope.evaluator.cohort_changes import changed
from streameval.ope.report import Estimate
from support.logs import Log

AVERAGES = [
    Cumulative(),
    Window(tau=700),
    Decay(alpha=0.999),
    AdaptiveWindow(drift_span=500),
    AdaptiveDecay(),
    Mixture(),
]
WANTED = {
    "estimators": [IPS(), SNIPS(), StratifiedIPS()],
    "averages": AVERAGES,
    "intervals": {"cumulative": "confidence_sequence", "window": "confidence_sequence"},
}


def promoted(evaluator: Evaluator, production: str, *candidates: str) -> Evaluator:
    ranks = {name: place for place, name in enumerate(candidates, start=1)}
    return changed(evaluator, replace(evaluator.plan, policies=(production, *candidates), ranks=ranks))


def values(evaluator: Evaluator, policy: str) -> dict[tuple[str, str], Estimate]:
    return {(each.estimator, each.average): each for each in evaluator.report().estimates if each.policy == policy}


@pytest.mark.parametrize("at", [1_500, 2_030])
def test_a_candidate_that_becomes_production_keeps_its_values(at: int) -> None:
    log = Log(1, 4_000, missing=0.1)
    straight, moved = Evaluator(["a", "b"], **WANTED), Evaluator(["a", "b"], **WANTED)
    for evaluator in (straight, moved):
        evaluator.update(log.batch(0, at))
    moved = promoted(moved, "a", "b")
    for evaluator in (straight, moved):
        evaluator.update(log.batch(at))
    for policy in ("a", "b"):
        before, after = values(straight, policy), values(moved, policy)
        assert before.keys() == after.keys()
        for place, estimate in after.items():
            assert estimate.value == pytest.approx(before[place].value, rel=1e-9), place
            assert estimate.effective_sample_size == pytest.approx(before[place].effective_sample_size, rel=1e-9)
    assert {row.policy for row in moved.report().estimates} == {"a", "b"}


def test_lifts_begin_anew_over_the_new_production() -> None:
    log = Log(2, 4_000)
    moved = Evaluator(["a", "b"], **WANTED)
    moved.update(log.batch(0, 2_000))
    moved = promoted(moved, "a", "b")
    assert all(each.lift is None for each in moved.report().estimates if each.average != "mixture")
    moved.update(log.batch(2_000))
    fresh = Evaluator(["b"], production="a", **WANTED)
    fresh.update(log.batch(2_000))
    for average in ("cumulative", "window", "decay"):
        for estimator in ("ips", "snips"):
            here, there = (each.report().get("b", estimator, average) for each in (moved, fresh))
            assert here.lift == pytest.approx(there.lift, rel=1e-9)
    interval = moved.report().get("b", "ips", "cumulative")
    anew = fresh.report().get("b", "ips", "cumulative")
    assert interval.lift_lower == pytest.approx(anew.lift_lower, abs=0.02)


def test_a_policy_that_was_not_there_begins_with_the_next_event() -> None:
    log = Log(3, 3_000)
    moved = Evaluator(["a"], **WANTED)
    moved.update(log.batch(0, 1_000))
    moved = promoted(moved, "b", "a")
    moved.update(log.batch(1_000))
    fresh = Evaluator(["b"], **WANTED)
    fresh.update(log.batch(1_000))
    for estimator in ("ips", "snips"):
        for average in ("cumulative", "window", "decay"):
            found = moved.report().get("b", estimator, average).value
            assert found == pytest.approx(fresh.report().get("b", estimator, average).value, rel=1e-9)
    assert [(each.policy, each.events) for each in moved.report().policies] == [("b", 2_000), ("a", 3_000)]


def test_a_changed_evaluator_goes_on_from_its_state() -> None:
    log = Log(4, 3_030)
    moved = Evaluator(["a", "b"], **WANTED)
    moved.update(log.batch(0, 1_000))
    moved = promoted(moved, "b", "a")
    moved.update(log.batch(1_000, 2_000))
    resumed = Evaluator.from_state(moved.state())
    for evaluator in (moved, resumed):
        evaluator.update(log.batch(2_000))
    assert moved.report().to_json() == resumed.report().to_json()


def test_nothing_is_known_before_the_first_event() -> None:
    moved = promoted(Evaluator(["a", "b"], **WANTED), "a", "b")
    log = Log(5, 500)
    moved.update(log.batch())
    fresh = Evaluator(["b"], production="a", **WANTED)
    fresh.update(log.batch())
    assert moved.report().estimates == fresh.report().estimates
    assert np.isfinite(moved.report().get("b", "ips", "cumulative").value or np.nan)
