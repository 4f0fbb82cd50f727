"""Tests of candidates that lack events: relative lifts compare equal events, and the trust check `missing_share`."""

import json
from typing import Any

import numpy as np
import pytest

import streameval as se
from streameval.common.arrays import Array
from streameval.ope.answer import answers
from streameval.ope.report import Estimate, Report, TrustCheck

EVENTS = 20_000


def half_missing(events: int = EVENTS) -> dict[str, Array]:
    """Return a log in which a candidate lacks the events with the small rewards."""
    rng = np.random.default_rng(2)
    present, is_a = rng.random(events) < 0.5, rng.random(events) < 0.7
    rate = np.where(present, 0.3, 0.05) * np.where(is_a, 1.0, 1.5)
    return {
        "reward": (rng.random(events) < rate).astype(float),
        "propensity": np.where(is_a, 0.7, 0.3),
        "candidate": np.where(present, np.where(is_a, 0.2, 0.8), np.nan),
    }


def evaluated(log: dict[str, Array], sampling: Array | None = None, **options: Any) -> Report:
    evaluator = se.Evaluator(candidates=["candidate"], **options)
    evaluator.update(
        se.EventBatch.from_arrays(
            reward=log["reward"],
            propensity=log["propensity"],
            policies={"candidate": log["candidate"]},
            sampling_probability=sampling,
        )
    )
    return evaluator.report()


def missing_check(report: Report) -> TrustCheck:
    (check,) = (check for check in report.trust if (check.policy, check.check) == ("candidate", "missing_share"))
    return check


def relative_lift_by_hand(log: dict[str, Array], weights: Array) -> float:
    both = ~np.isnan(log["candidate"])
    reward, weights = log["reward"][both], weights[both]
    ratio = log["candidate"][both] / log["propensity"][both]
    return float((weights * ratio * reward).sum() / (weights * reward).sum() - 1)


@pytest.mark.parametrize(
    ("average", "weights"),
    [
        ("cumulative", np.ones(EVENTS)),
        ({"kind": "window", "tau": 5000}, np.arange(EVENTS) >= EVENTS - 5000),
        ({"kind": "decay", "alpha": 0.999}, 0.999 ** np.arange(EVENTS - 1.0, -1.0, -1.0)),
    ],
)
def test_a_relative_lift_is_of_the_events_that_both_policies_have(average: Any, weights: Array) -> None:
    log = half_missing()
    (row,) = (
        row for row in evaluated(log, estimators=["ips"], averages=[average]).estimates if row.policy == "candidate"
    )
    assert row.lift_ratio == pytest.approx(relative_lift_by_hand(log, weights), rel=1e-9)


def test_a_relative_lift_on_a_mixture_is_of_the_events_that_both_policies_have() -> None:
    log = half_missing()
    row = evaluated(log).get("candidate", "stratified_ips", "mixture")
    assert row.lift_ratio_lower is not None
    assert row.lift_ratio_upper is not None
    assert row.lift_ratio_lower < relative_lift_by_hand(log, np.ones(EVENTS)) < row.lift_ratio_upper
    assert row.details["lift_production_value"] == pytest.approx(0.3 * 0.7 + 0.45 * 0.3, abs=0.015)


def dropped_rewards() -> dict[str, Array]:
    """Return a log in which production earns less after a change, and the candidate never takes what earns."""
    rng = np.random.default_rng(3)
    is_a = rng.random(EVENTS) < 0.7
    rate = np.where(is_a, np.where(np.arange(EVENTS) < EVENTS // 2, 0.8, 0.2), 0.0)
    return {
        "reward": (rng.random(EVENTS) < rate).astype(float),
        "propensity": np.where(is_a, 0.7, 0.3),
        "candidate": np.where(is_a, 0.0, 1.0),
    }


def test_a_candidate_never_loses_more_than_everything() -> None:
    rows = [row for row in evaluated(dropped_rewards()).estimates if row.policy == "candidate"]
    ratios = [row.lift_ratio for row in rows if row.estimator != "stratified_ips"]
    assert ratios == pytest.approx([-1.0] * len(ratios), abs=1e-9)
    mixed: Estimate = next(row for row in rows if row.average == "mixture")
    assert mixed.lift_ratio == pytest.approx(-1.0, abs=0.02)
    assert mixed.details["lift_value"] - mixed.details["lift_production_value"] == pytest.approx(mixed.lift)


def test_the_sentence_names_the_share_of_events_that_both_policies_have() -> None:
    report = evaluated(half_missing(), promotion={"rule": "paired", "trust": {"missing_share": 0.6}})
    (answer,) = answers(report)
    row = report.get("candidate", "stratified_ips", "mixture")
    shared = f" on the {100 * (1 - row.details['missing_share']):.1f} % of events that both have"
    assert f"%{shared} (" in answer.sentence
    own, production = row.details["lift_value"], row.details["lift_production_value"]
    assert f"{own:.4f} per event against {production:.4f} of production{shared}, by" in answer.details[0]


def test_a_candidate_that_lacks_half_of_the_events_is_not_trusted() -> None:
    report = evaluated(half_missing())
    assert not missing_check(report).ok
    assert "lack its probability, over 10%" in missing_check(report).reason
    assert not any(decision.promotable for decision in report.promotion)


def test_a_complete_log_passes_the_check_of_missing_events() -> None:
    log = half_missing() | {"candidate": np.full(EVENTS, 0.5)}
    assert missing_check(evaluated(log)).ok


def test_the_share_of_missing_events_is_checked_on_every_average() -> None:
    log = half_missing()
    log["candidate"] = np.where(np.arange(EVENTS) < EVENTS - 500, 0.5, np.nan)
    assert missing_check(evaluated(log, averages=["cumulative"], estimators=["ips"])).ok
    recent = evaluated(log, averages=["cumulative", {"kind": "window", "tau": 1000}], estimators=["ips"])
    assert missing_check(recent).reason.startswith("50.0% of the events of window")


def swinging(swings: str) -> dict[str, Array]:
    """Return a complete log in which the value of production or of the candidate swings, and the other one stays."""
    rng = np.random.default_rng(5)
    is_a, wave = rng.random(EVENTS) < 0.5, 0.4 * np.sin(np.arange(EVENTS) / 1500)
    rate = 0.5 + np.where(is_a, wave, wave if swings == "production" else -wave)
    candidate = np.full(EVENTS, 0.5) if swings == "production" else is_a.astype(float)
    return {
        "reward": (rng.random(EVENTS) < rate).astype(float),
        "propensity": np.full(EVENTS, 0.5),
        "candidate": candidate,
    }


ADAPTIVE = [
    {"kind": "adaptive_window", "drift_span": 1000},
    {"kind": "adaptive_window", "drift_span": 1000, "growth": "immediate", "name": "immediate"},
    {"kind": "adaptive_decay", "drift_span": 1000},
]


@pytest.mark.parametrize("swings", ["production", "candidate"])
@pytest.mark.parametrize("events", [EVENTS, EVENTS - 30])
def test_no_event_is_missing_if_policies_have_memories_of_their_own(swings: str, events: int) -> None:
    log = {name: column[:events] for name, column in swinging(swings).items()}
    report = evaluated(log, averages=ADAPTIVE, estimators=["ips", "snips"])
    rows = [row for row in report.estimates if row.policy == "candidate"]
    assert [row.details["missing_share"] for row in rows] == pytest.approx([0.0] * len(rows), abs=1e-9)
    assert missing_check(report).ok


def test_an_adaptive_window_counts_the_missing_events_inside_the_window_of_the_candidate() -> None:
    log = swinging("candidate")
    log["candidate"][EVENTS - 500 :] = np.nan
    report = evaluated(log, averages=ADAPTIVE[:1], estimators=["ips"])
    details = report.get("candidate", "ips", "adaptive_window").details
    assert details["missing_share"] == pytest.approx(500 / details["window_events"])


def test_missing_events_count_with_the_weights_of_a_thinned_log() -> None:
    log, rng = half_missing(), np.random.default_rng(4)
    rare = rng.random(EVENTS) < 0.2
    log["candidate"] = np.where(rare, np.nan, 0.5)
    report = evaluated(log, np.where(rare, 1.0, 0.1), estimators=["ips"], averages=["cumulative"])
    lacking = float(rare.sum() / (rare.sum() + 10 * (~rare).sum()))
    assert report.get("candidate", "ips", "cumulative").details["missing_share"] == pytest.approx(lacking)
    assert missing_check(report).ok


def test_a_late_candidate_does_not_lack_the_events_before_it() -> None:
    batch = se.EventBatch.from_arrays(
        reward=np.ones(1000),
        propensity=np.full(1000, 0.5),
        policies=dict.fromkeys(("early", "late"), np.full(1000, 0.5)),
    )
    evaluator = se.Evaluator(candidates=["early"])
    evaluator.update(batch)
    late = evaluator.change_candidates(se.Evaluator(candidates=["early", "late"]).config)
    assert late is not None
    evaluator.activate(late)
    evaluator.update(batch)
    checks = [check for check in evaluator.report().trust if check.check == "missing_share"]
    assert {check.policy: check.ok for check in checks} == {"logging": True, "early": True, "late": True}


def test_a_report_keeps_its_shares_of_missing_events_in_json() -> None:
    report = json.loads(evaluated(half_missing(2000)).to_json())
    shares = [row["details"]["missing_share"] for row in report["estimates"] if row["policy"] == "candidate"]
    assert all(share is not None and 0.4 < share < 0.6 for share in shares)


@pytest.mark.parametrize("share", [0.0, 0.05])
def test_averages_with_another_memory_for_each_policy_know_what_a_policy_lacks(share: float) -> None:
    """Production is steady, and the candidate's value moves: its window and its decay are shorter."""
    rng = np.random.default_rng(1)
    is_a, moves = rng.random(EVENTS) < 0.5, np.arange(EVENTS) // 3000 % 2 == 0
    log = {
        "reward": (rng.random(EVENTS) < np.where(is_a == moves, 0.9, 0.1)).astype(float),
        "propensity": np.full(EVENTS, 0.5),
        "candidate": np.where(rng.random(EVENTS) < share, np.nan, np.where(is_a, 0.95, 0.05)),
    }
    kinds = ["adaptive_window", "adaptive_decay"]
    report = evaluated(log, estimators=["ips"], averages=[{"kind": kind, "drift_span": 2000} for kind in kinds])
    windows = [report.get(name, "ips", kinds[0]).details["window_events"] for name in ("logging", "candidate")]
    assert windows[0] > 1.2 * windows[1]
    for average in kinds:
        assert report.get("candidate", "ips", average).details["missing_share"] == pytest.approx(share, abs=0.02)
    assert missing_check(report).ok
