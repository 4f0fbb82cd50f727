"""Test what decisions say they rest on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import streameval as se
from streameval.ope.answer import answers
from streameval.ope.report import Basis, Decision

EVENTS = 20_000


def log(**changes: Any) -> se.EventBatch:
    random = np.random.default_rng(3)
    first = random.random(EVENTS) < 0.7
    reward = random.random(EVENTS) < np.where(first, 0.1, 0.3)
    new = np.where(random.random(EVENTS) < 0.05, np.nan, np.where(first, 0.3, 0.7))
    columns = {"reward": reward, "propensity": np.where(first, 0.7, 0.3), "policies": {"new": new}}
    return se.EventBatch.from_arrays(**columns | {"timestamp": 10.0 * np.arange(EVENTS)} | changes)


def decision(batch: se.EventBatch, rule: str, **trust: Any) -> tuple[Decision, se.Report]:
    promotion = se.Promotion(rule=rule, min_events=1_000, trust=se.Trust(**trust))
    evaluator = se.Evaluator(["new"], ["ips", "snips"], [se.Mixture()], promotion=promotion, drift=None)
    evaluator.update(batch)
    report = evaluator.report()
    return next(row for row in report.promotion if row.rule == rule), report


def test_a_decision_carries_the_numbers_of_its_estimate() -> None:
    found, report = decision(log(), "paired")
    row = report.get("new", found.estimator, found.average)
    assert found.basis.effective_events == row.effective_sample_size
    errors = 2 * 1.959964 * row.lift / (row.lift_upper - row.lift_lower)
    assert 0.6 * errors < (found.basis.standard_errors or 0) < 1.1 * errors  # rules allow for more
    assert found.basis.missing_share == pytest.approx(0.05, abs=0.005)
    assert found.basis.clipped_share is None
    batch = log()
    weight = np.nan_to_num(batch.probabilities[:, 0] / batch.propensity)
    shares = [part.max() / part.sum() for part in (weight, weight * batch.reward)]
    assert found.basis.largest_share == pytest.approx(max(shares), rel=1e-9)
    assert found.basis.failed == ()


def test_a_rule_of_whole_periods_tells_its_own_standard_errors() -> None:
    found, _ = decision(log(), "periodic")
    assert found.lift is not None
    assert found.lower is not None
    assert found.basis.standard_errors == pytest.approx(3.0 * found.lift / (found.lift - found.lower), rel=1e-3)


def test_failed_checks_of_the_candidate_and_of_production_are_named() -> None:
    found, report = decision(log(), "paired", effective_sample_size=1e6, missing_share=0.01)
    assert found.basis.failed == ("effective_sample_size", "missing_share")
    assert "failed trust checks (effective_sample_size, missing_share)" in " ".join(answers(report)[0].details)


def test_a_transition_has_the_evidence_of_its_moment() -> None:
    _, report = decision(log(), "paired")
    first, basis = report.transitions[0], report.transitions[0].basis
    assert basis is not None
    assert first.promotable
    assert 1_000 <= (basis.effective_events or 0) <= first.event
    assert 0 < (basis.largest_share or 0) < 0.1
    assert (basis.standard_errors or 0) > 2.5
    _, report = decision(log(), "periodic")
    for change in report.transitions:
        assert change.basis is not None
        assert change.lift is not None
        assert change.lift_lower is not None
        errors = 3.0 * change.lift / (change.lift - change.lift_lower)
        assert change.basis.standard_errors == pytest.approx(errors, rel=1e-4)  # the rule rounds 1.95996 to 1.96


def test_the_words_behind_an_answer_say_what_it_rests_on() -> None:
    _, report = decision(log(), "paired")
    (line,) = [text for text in answers(report)[0].details if text.startswith("paired rests on ")]
    basis = report.promotion[0].basis
    assert f"{round(basis.effective_events or 0):,} effective events" in line
    assert f"a lift of {basis.standard_errors:.1f} standard errors" in line
    assert line.endswith("% events that it lacks")


def test_nothing_is_known_before_the_first_event() -> None:
    report = se.Evaluator(["new"]).report()
    assert {row.basis.standard_errors for row in report.promotion} == {None}
    assert {row.basis.effective_events for row in report.promotion} <= {None, 0.0}
    assert Basis().failed == ()
