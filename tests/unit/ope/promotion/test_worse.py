"""Test when a candidate is worse than production: by its goal, by a guardrail, and never while it is promotable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import streameval as se
from streameval.ope.answer import answers
from streameval.ope.report import Decision, Transition
from streameval.service.decisions import DecisionMessage


def evaluator(rule: Any, **options: Any) -> se.Evaluator:
    promotion = se.Promotion(rule=rule, min_events=1_000, hold=5, family_size=1)
    return se.Evaluator(["candidate"], ["snips"], [se.Mixture()], drift=None, promotion=promotion, **options)


def log(lift: float, events: int, seed: int = 1, stay: float | None = None) -> se.EventBatch:
    """Draw two actions by a coin. The candidate takes the first one in 9 of 10 events, which earns it `lift` more.

    `stay` is the lift of a further reward.
    """
    rng = np.random.default_rng(seed)
    first = rng.random(events) < 0.5

    def draw(gain: float) -> Any:
        return 1.0 * (rng.random(events) < 0.5 + np.where(first, 1, -1) * gain / 0.8)

    return se.EventBatch.from_arrays(
        reward=draw(lift),
        propensity=np.full(events, 0.5),
        policies={"candidate": np.where(first, 0.9, 0.1)},
        rewards=None if stay is None else {"stay": draw(stay)},
    )


def last_state(found: se.Evaluator) -> tuple[Decision, list[Transition]]:
    report = found.report()
    return report.promotion[0], list(report.transitions)


@pytest.mark.parametrize("rule", ["paired", "anytime"])
def test_a_candidate_that_loses_is_worse_and_one_that_wins_is_not(rule: str) -> None:
    for lift, state in ((-0.08, "worse"), (0.08, "promotable"), (0.0, "undecided")):
        found = evaluator(rule)
        found.update(log(lift, 20_000))
        found.fold_pending()
        decision, changes = last_state(found)
        assert (decision.state, decision.worse, decision.promotable) == (state, lift < 0, lift > 0)
        assert [(change.state, change.worse) for change in changes] == (
            [] if not lift else [(state, True if lift < 0 else None)]
        )
        (answer,) = answers(found.report())
        assert answer.state == state


@pytest.mark.parametrize("rule", ["paired", {"kind": "anytime", "tau": 5_000}])
def test_after_a_turn_promotable_ends_first_and_worse_follows(rule: Any) -> None:
    found = evaluator(rule)
    for lift in (0.08, -0.08, 0.08):
        found.update(log(lift, 60_000))
    found.fold_pending()
    decision, changes = last_state(found)
    assert [(change.promotable, change.worse) for change in changes] == [
        (True, None),
        (False, None),
        (False, True),
        (False, False),
        (True, None),
    ]
    assert decision.state == "promotable"
    assert [change.event for change in changes] == sorted(change.event for change in changes)


def test_the_reason_of_a_loss_gives_the_lift_and_its_upper_bound() -> None:
    found = evaluator(("paired", "anytime"))
    found.update(log(-0.08, 20_000))
    found.fold_pending()
    paired, anytime = found.report().promotion
    assert paired.reason.startswith("worse than production: lift -0.0")
    assert anytime.reason.startswith("worse than production: proven on average, lift -0.0")
    assert "below 0" in paired.reason
    assert {change.rule for change in found.report().transitions} == {"paired", "anytime"}


def test_a_loss_of_a_guardrail_makes_a_candidate_worse_that_wins_the_goal() -> None:
    found = evaluator(("paired", "anytime"), rewards={"reward": {}, "stay": {"guardrail": {"max_loss": 0.02}}})
    found.update(log(0.05, 40_000, stay=-0.1))
    found.fold_pending()
    for decision in found.report().promotion:
        assert (decision.worse, decision.promotable, decision.state) == (True, False, "worse")
        assert [check.worse for check in decision.guardrails] == [True]
        assert "guardrail stay: worse than production" in decision.reason
    (answer,) = answers(found.report())
    assert answer.sentence.startswith("Do not ship candidate: it loses 0.")
    assert answer.sentence.endswith(" stay per event, and may lose 0.02")
    (change, _) = found.report().transitions
    assert change.reason.startswith("guardrail stay: worse than production")


def test_a_small_loss_of_a_guardrail_is_allowed() -> None:
    found = evaluator("paired", rewards={"reward": {}, "stay": {"guardrail": {"max_loss": 0.05}}})
    found.update(log(0.05, 40_000, stay=-0.04))
    decision, _ = last_state(found)
    assert (decision.worse, [check.worse for check in decision.guardrails]) == (False, [False])


def test_nothing_is_worse_while_a_trust_check_fails() -> None:
    found = evaluator("paired")
    batch = log(-0.08, 20_000)
    found.update(batch)
    report = found.report(unmatched_share=0.5)
    assert (report.promotion[0].state, report.promotion[0].worse) == ("untrusted", False)
    assert found.report().promotion[0].state == "worse"


def test_rules_that_cannot_tell_say_nothing() -> None:
    found = evaluator(("sea", "bsea"))
    found.update(log(-0.08, 20_000))
    assert [decision.worse for decision in found.report().promotion] == [None, None]


def test_evidence_of_a_loss_continues_from_a_state() -> None:
    whole, resumed = evaluator("anytime"), evaluator("anytime")
    batch = log(-0.05, 30_000)
    whole.update(batch)
    resumed.update(batch[:12_345])
    resumed = se.Evaluator.from_state(resumed.state())
    resumed.update(batch[12_345:])
    assert resumed.report() == whole.report()
    assert whole.report().promotion[0].worse


def test_the_topic_says_worse_and_names_the_state() -> None:
    found = evaluator("paired")
    found.update(log(-0.08, 20_000))
    found.fold_pending()
    found.update(log(0.08, 60_000))
    found.fold_pending()
    messages = [DecisionMessage.from_transition(change, "logging", "0", "") for change in found.take_transitions()]
    assert [(message.before, message.after, message.state) for message in messages] == [
        ("not_promotable", "worse", "worse"),
        ("worse", "not_promotable", "undecided"),
        ("not_promotable", "promotable", "promotable"),
    ]
    assert len({message.id for message in messages}) == 3
