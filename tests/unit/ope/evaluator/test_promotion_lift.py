"""Test the lift that decides, whenever it is asked, over restarts, and when candidates and settings change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

import streameval as se
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.report import Report
from support.changes import adopt

PROPENSITIES = np.array([0.55, 0.15, 0.15, 0.15])
TARGETS = {"second": [0.2, 0.7, 0.1, 0.0], "third": [0.2, 0.0, 0.7, 0.1], "same": [0.55, 0.15, 0.15, 0.15]}
EARLY = se.Promotion(rule=("paired", "anytime", "sea", "bsea"), min_events=2_000)


def log(events: int, turns: int | None = None, seed: int = 1, timestamp: bool = False) -> se.EventBatch:
    """Draw a log with the second action as the best, until it is the worst after `turns` events."""
    rng = np.random.default_rng(seed)
    action = rng.choice(4, events, p=PROPENSITIES)
    means = np.tile([0.3, 0.6, 0.3, 0.3], (events, 1))
    if turns is not None:
        means[turns:, 1] = 0.05
    return se.EventBatch.from_arrays(
        reward=(rng.random(events) < means[np.arange(events), action]) * 1.0,
        propensity=PROPENSITIES[action],
        policies={name: np.array(target)[action] for name, target in TARGETS.items()},
        timestamp=1.7e9 + np.arange(events) if timestamp else None,
    )


def evaluated(batch: se.EventBatch, sizes: Sequence[int] = (), ask: bool = False, **options: Any) -> se.Evaluator:
    """Return an evaluator of all targets after the log in batches of these sizes, and the rest at once."""
    evaluator = se.Evaluator(list(TARGETS), **{"promotion": EARLY, **options})
    for size in sizes:
        evaluator.update(batch[:size])
        batch = batch[size:]
        if ask:
            evaluator.report()
    evaluator.update(batch)
    return evaluator


def decisions(report: Report) -> dict[tuple[str, str], Any]:
    return {(decision.policy, decision.rule): decision for decision in report.promotion}


def test_a_better_candidate_is_promotable_until_it_has_become_worse() -> None:
    evaluator = evaluated(log(24_000, turns=12_000))
    decided = decisions(evaluator.report())
    for rule in ("paired", "anytime"):
        changes = [
            transition
            for transition in evaluator.report().transitions
            if (transition.policy, transition.rule) == ("second", rule)
        ]
        assert [change.promotable for change in changes] == [True, False]
        assert changes[0].event < 8_000
        assert 12_000 < changes[1].event < 16_000
        assert not decided["second", rule].promotable
        assert decided["same", rule].times == 0
        assert (decided["third", rule].first_event or 24_000) > 12_000  # it is better than logged from then on
    assert decided["second", "sea"].promotable_events > 15_000  # on all data it takes long to notice


def test_rules_agree_with_the_lift_of_the_report() -> None:
    evaluator, batch, names = evaluated(log(0)), log(3_000), list(TARGETS)
    lifts, spreads = np.zeros((2, 30, 3))
    for number in range(30):
        evaluator.update(batch[100 * number :][:100])
        evaluator.fold_pending()
        report = evaluator.report()
        shown = [report.get(name, "stratified_ips", "mixture") for name in names]
        lifts[number], spreads[number] = np.transpose(
            [(estimate.lift, estimate.details["lift_spread"]) for estimate in shown]
        )
    sampling = [
        estimate.details["lift_se"] ** 2 * max(1.0, estimate.details["lift_design_effect"] or 1.0) for estimate in shown
    ]
    weights = np.exp(np.arange(30) / 300)  # a horizon of 30,000 events

    def moved(path: np.ndarray) -> float:
        means = np.cumsum(weights * path) / np.cumsum(weights)
        return float(np.average((path - means) ** 2, weights=weights))

    together = 0.6 * 2 / 3 * moved(lifts.mean(axis=1))
    drift = np.average(4 * spreads[:, 0] ** 2, weights=weights) + moved(lifts[:, 0]) / 9 + together
    decision = decisions(report)["second", "paired"]
    error = 1.959964 / 1.96 * np.sqrt((9 + 2.5 * np.log(3)) * sampling[0] + 2.3**2 * drift)
    assert decision.lift == pytest.approx(lifts[-1, 0], rel=1e-9)
    assert decision.lift - decision.lower == pytest.approx(error, rel=1e-3)


def transitions(report: Report) -> list[tuple[Any, ...]]:
    return [
        (transition.policy, transition.rule, transition.event, transition.promotable)
        for transition in report.transitions
    ]


def test_rules_that_are_configured_later_start_from_zero() -> None:
    evaluator = evaluated(log(6_000), promotion=None)
    assert evaluator.apply_config(replace(evaluator.config, promotion=se.Promotion(rule="paired"))) is None
    evaluator.update(log(1_000))
    report = evaluator.report()
    assert report.events.accepted == 7_000
    assert decisions(report)["second", "paired"].reason == "only 1,000 of 10,000 events"


def test_nothing_is_decided_when_promotion_is_off() -> None:
    evaluator = evaluated(log(500), promotion=None)
    report = evaluator.report()
    assert (report.promotion, report.trust, report.transitions) == ((), (), ())
    assert evaluator.state()["promotion"] is None


def test_stale_data_blocks_promotion_when_the_time_is_known() -> None:
    evaluator = evaluated(log(6_000, timestamp=True))
    newest = 1.7e9 + 5_999
    assert decisions(evaluator.report())["second", "paired"].promotable
    assert decisions(evaluator.report(now=newest + 60.0))["second", "paired"].promotable
    late = decisions(evaluator.report(now=newest + 7_200.0))["second", "paired"]
    assert not late.promotable
    assert late.reason == "the newest event is 2 hours old, over 1h"  # once, because it is about every policy


@pytest.mark.parametrize(
    ("options", "cells"),
    [
        ({}, (("stratified_dr", "mixture"), ("stratified_ips", "mixture"))),
        ({"estimators": [se.IPS(), se.SNIPS()], "averages": [se.Window()]}, ()),
        ({"estimators": [se.IPS(), se.SNIPS()], "averages": [se.Mixture(name="mix")]}, (("snips", "mix"),)),
        ({"estimators": [se.IPS(), se.DR()], "averages": [se.Mixture()]}, (("dr", "mixture"), ("ips", "mixture"))),
        ({"estimators": [se.DR(), se.StratifiedIPS()], "averages": [se.Mixture()]}, (("stratified_ips", "mixture"),)),
        ({"estimators": [se.ClippedIPS(cap=2)], "averages": [se.Mixture()]}, ()),
        ({"averages": [se.Cumulative()]}, ()),
    ],
)
def test_the_best_unbiased_lifts_on_a_mixture_decide(
    options: dict[str, Any], cells: tuple[tuple[str, str], ...]
) -> None:
    evaluator = se.Evaluator(list(TARGETS), **options)
    assert evaluator.promotion_lifts == cells


def config(*candidates: str, **options: Any) -> EvaluatorConfig:
    return se.Evaluator(candidates, **{"promotion": EARLY, **options}).config


def ranks(changing: Evaluator) -> dict[str, int]:
    return dict(changing.config.candidate_order)


def test_every_candidate_ever_added_has_its_own_share_of_the_error() -> None:
    changing = Evaluator.from_config(config("second"))
    changing.update(log(300))
    adopt(changing, config("second", "third"))
    assert ranks(changing) == {"second": 1, "third": 2}
    adopt(changing, config("third"))
    changing = Evaluator.from_state(msgspec.msgpack.decode(msgspec.msgpack.encode(changing.state())))
    adopt(changing, config("third", "same", "second"))
    assert ranks(changing) == {"third": 2, "same": 3, "second": 4}
    assert changing.config.errors.min() == pytest.approx(0.05 * 6 / np.pi**2 / 16)


def test_a_longer_hold_restarts_the_hold_and_loses_no_evidence() -> None:
    changing, batch = Evaluator.from_config(config("second")), log(8_000)
    changing.update(batch[:6_000])
    before = decisions(changing.report())["second", "sea"]
    assert before.promotable
    adopt(changing, config("second", promotion=replace(EARLY, hold=5)))
    after = decisions(changing.report())["second", "sea"]
    assert (after.promotable, after.held) == (False, 0)
    assert (after.lift, after.lower, after.events) == (before.lift, before.lower, 6_000)
    changing.update(batch[6_000:6_500])
    assert decisions(changing.report())["second", "sea"].since_event == 6_500


def test_an_added_rule_starts_with_the_change_and_a_removed_one_is_not_shown() -> None:
    changing, batch = Evaluator.from_config(config("second", promotion="paired")), log(8_000)
    changing.update(batch[:6_000])
    adopt(changing, config("second", promotion=["bsea"]))
    changing.update(batch[6_000:])
    (decision,) = changing.report().promotion
    assert (decision.rule, decision.events) == ("bsea", 2_000)


def test_decisions_may_use_a_lift_that_is_added() -> None:
    few = {"estimators": [se.StratifiedIPS()], "averages": [se.Cumulative()]}
    changing, batch = Evaluator.from_config(config("second", **few)), log(8_000)
    changing.update(batch[:1_000])
    nothing = decisions(changing.report())["second", "paired"]
    assert nothing.lift is None
    assert nothing.reason.startswith("no lift can decide: add the average mixture, with an estimator such as ")
    adopt(changing, config("second", estimators=[se.StratifiedIPS()], averages=[se.Cumulative(), se.Mixture()]))
    changing.update(batch[1_000:])
    decision = decisions(changing.report())["second", "paired"]
    assert decision.lift is not None
    assert decision.events == 7_000


def test_confidence_sequences_share_their_error_among_the_candidates_of_promotion() -> None:
    rng = np.random.default_rng(5)
    probability = rng.random(2_000) / 2
    batch = se.EventBatch.from_arrays(
        reward=rng.random(2_000).round(), propensity=np.full(2_000, 0.5), policies={"a": probability, "b": probability}
    )
    widths = {}
    for family_size in (None, 2):
        evaluator = se.Evaluator(
            ["a", "b"],
            [se.IPS()],
            [se.Cumulative()],
            intervals={"cumulative": "confidence_sequence"},
            promotion=se.Promotion(family_size=family_size),
        )
        evaluator.update(batch)
        actual = [evaluator.report().get(name, "ips", "cumulative") for name in ("a", "b")]
        widths[family_size] = [decision.upper - decision.lower for decision in actual]  # type: ignore[operator]
    assert widths[None][0] < widths[None][1]
    assert widths[2][0] == widths[2][1] > widths[None][0]


def test_a_candidate_without_events_has_no_lift() -> None:
    evaluator = se.Evaluator(["second", "unheard"], promotion=EARLY)
    evaluator.update(log(1_000))
    reported = {
        decision.rule: (decision.lift, decision.lower)
        for decision in evaluator.report().promotion
        if decision.policy == "unheard"
    }
    assert reported == dict.fromkeys((rule.label for rule in EARLY.rules), (None, None))
