"""Candidates that come and go: each from its own start, and none affects the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

import streameval as se
from streameval import PythonPolicy
from streameval.errors import ConfigError, StateError
from streameval.events import Rejected
from streameval.ope.evaluator.cohorts import CohortEvaluator
from streameval.ope.report import EventCounts, Report
from streameval.ope.reward_models import Tabular
from support.cohorts import adopt, events, plan


def rows(report: Report, policy: str) -> list[Any]:
    return [each for each in report.estimates if each.policy == policy]


def counts(report: Report) -> dict[str, tuple[int, int]]:
    return {each.policy: (each.events, each.missing) for each in report.policies}


@pytest.mark.parametrize("described", [False, True])
def test_a_late_candidate_has_the_rows_of_a_stream_that_started_with_it(described: bool) -> None:
    batch = events(1234, described=described)
    cohorts = CohortEvaluator(plan("early"))
    cohorts.update(batch[:777])
    late = cohorts.change_candidates(plan("early", "late"))
    assert late is not None
    cohorts.activate(late)
    cohorts.update(batch[777:])
    alone, whole = se.Evaluator(["late"]), se.Evaluator(["early"])
    alone.update(batch[777:])
    whole.update(batch)
    report = cohorts.report()
    assert rows(report, "late") == rows(alone.report(), "late")
    assert [each for each in report.estimates if each.policy != "late"] == list(whole.report().estimates)
    assert counts(report) == {"logging": (1234, 0), "early": (1234, 0), "late": (457, 0)}
    assert report.events.accepted == 1234
    assert report.production == "logging"
    assert cohorts.policies == ("logging", "early", "late")


def test_an_evaluator_of_one_cohort_reports_like_a_plain_evaluator() -> None:
    cohorts, evaluator = CohortEvaluator(plan("early", "late")), se.Evaluator(["early", "late"])
    for each in (cohorts, evaluator):
        each.update(events(350))
    assert cohorts.report() == evaluator.report()


def test_a_cohort_that_has_not_joined_gets_no_events_and_keeps_its_own() -> None:
    cohorts = CohortEvaluator(plan("early"))
    late = cohorts.change_candidates(plan("early", "late"))
    assert late is not None
    late.update(events(100, seed=2))
    cohorts.update(events(50))
    assert cohorts.is_pending(late)
    assert set(counts(cohorts.report())) == {"logging", "early"}
    cohorts.activate(late)
    assert not cohorts.is_pending(late)
    cohorts.update(events(5))
    assert counts(cohorts.report()) == {"logging": (55, 0), "early": (55, 0), "late": (105, 0)}


def test_joining_again_forgets_the_earlier_events() -> None:
    cohorts = CohortEvaluator(plan("early"))
    late = cohorts.change_candidates(plan("early", "late"))
    assert late is not None
    late.update(events(100))
    cohorts.activate(late, from_zero=True)
    cohorts.update(events(7))
    assert counts(cohorts.report())["late"] == (7, 0)


def test_joining_twice_counts_once() -> None:
    cohorts = CohortEvaluator(plan("early"))
    late = cohorts.change_candidates(plan("early", "late"))
    assert late is not None
    cohorts.activate(late)
    cohorts.activate(late)
    cohorts.update(events(3))
    assert [each.policy for each in cohorts.report().policies] == ["logging", "early", "late"]


def test_a_removed_candidate_loses_its_rows_and_production_stays() -> None:
    cohorts = CohortEvaluator(plan("early"))
    late = cohorts.change_candidates(plan("early", "late", "later"))
    assert late is not None
    cohorts.activate(late)
    cohorts.update(events(150))
    assert cohorts.change_candidates(plan("late")) is None
    cohorts.update(events(150))
    assert counts(cohorts.report()) == {"logging": (300, 0), "late": (300, 0)}
    assert {each.policy for each in cohorts.report().estimates} == {"logging", "late"}


def test_one_that_is_removed_before_it_joined_is_no_longer_awaited() -> None:
    cohorts = CohortEvaluator(plan("early"))
    late = cohorts.change_candidates(plan("early", "late"))
    assert late is not None
    cohorts.change_candidates(plan("early"))
    assert not cohorts.is_pending(late)
    cohorts.activate(late)
    assert cohorts.policies == ("logging", "early")


def test_a_candidate_that_returns_starts_from_zero() -> None:
    cohorts = CohortEvaluator(plan("early", "late"))
    cohorts.update(events(200))
    cohorts.change_candidates(plan("early"))
    again = cohorts.change_candidates(plan("early", "late"))
    assert again is not None
    cohorts.activate(again)
    cohorts.update(events(10))
    assert counts(cohorts.report()) == {"logging": (210, 0), "early": (210, 0), "late": (10, 0)}


def test_a_candidate_that_became_another_policy_is_a_new_one() -> None:
    cohorts = CohortEvaluator(plan(named={"early": "uniform", "late": "first"}))
    cohorts.update(events(100))
    changed = cohorts.change_candidates(plan(named={"early": "uniform", "late": "uniform"}))
    assert changed is not None
    assert changed.policies == ("logging", "late")
    cohorts.activate(changed)
    cohorts.update(events(10))
    assert counts(cohorts.report()) == {"logging": (110, 0), "early": (110, 0), "late": (10, 0)}


def test_a_change_that_cannot_be_made_changes_nothing() -> None:
    cohorts = CohortEvaluator(plan("early", "late"))
    broken = PythonPolicy("math:sqrt", options={"no": 1})
    with pytest.raises(ConfigError, match="math:sqrt fails"):
        cohorts.change_candidates(replace(plan("early", "code"), computed_policies={"code": broken}))
    assert cohorts.policies == ("logging", "early", "late")


def test_an_evaluator_of_cohorts_continues_from_its_state_to_the_last_bit() -> None:
    batch = events(900)
    cohorts = CohortEvaluator(plan("early", "late"))
    cohorts.update(batch[:333])
    later = cohorts.change_candidates(plan("early", "later"))
    assert later is not None
    cohorts.activate(later)
    cohorts.update(batch[333:610])
    saved = msgspec.msgpack.decode(msgspec.msgpack.encode(cohorts.state()), strict=False)
    other = CohortEvaluator.from_state(saved)
    for each in (cohorts, other):
        each.update(batch[610:])
    assert other.report() == cohorts.report()
    assert counts(other.report()) == {"logging": (900, 0), "early": (900, 0), "later": (567, 0)}


def test_a_state_of_another_schema_is_refused() -> None:
    with pytest.raises(StateError, match="schema 99"):
        CohortEvaluator.from_state({"schema": 99, "cohorts": []})


def opened(count: int = 0, **options: Any) -> tuple[CohortEvaluator, se.EventBatch]:
    """An evaluator of cohorts that has had this many of 2,000 events."""
    batch = events(2000, described=True)
    cohorts = CohortEvaluator(plan("early", **options))
    if count:
        cohorts.update(batch[:count])
    return cohorts, batch


def ranks_of(cohorts: CohortEvaluator) -> dict[str, int]:
    """The position of each candidate among all that were ever added, which determines its part of the error."""
    members = cohorts.state()["cohorts"]
    known = [(member["policies"], member["evaluator"]["settings"]["candidate_order"]) for member in members]
    return {name: ranks[name] for policies, ranks in known for name in policies if name in ranks}


def values(report: Report) -> dict[tuple[str, str, str], Any]:
    return {(each.policy, each.estimator, each.average): each for each in report.estimates}


FEW = {"estimators": [se.IPS(), se.SNIPS()], "averages": [se.Cumulative(), se.Window(tau=500)]}


@pytest.mark.parametrize("saved", [False, True])
def test_parts_that_a_plan_adds_start_from_zero_and_others_continue(saved: bool) -> None:
    cohorts, batch = opened(1000, **FEW)
    more = {
        "estimators": [*FEW["estimators"], se.ClippedIPS(cap=2.0)],
        "averages": [*FEW["averages"], se.Decay(half_life=100)],
    }
    adopt(cohorts, plan("early", "late", **more))
    if saved:
        cohorts = CohortEvaluator.from_state(msgspec.msgpack.decode(msgspec.msgpack.encode(cohorts.state())))
    cohorts.update(batch[1000:])
    long, short = se.Evaluator(["early"], **more), se.Evaluator(["early", "late"], **more)
    long.update(batch)
    short.update(batch[1000:])
    report = values(cohorts.report())
    assert report.keys() == values(short.report()).keys()
    old = {(estimator.label, average.label) for estimator in FEW["estimators"] for average in FEW["averages"]}
    for (policy, estimator, average), estimate in report.items():
        known = policy != "late" and (estimator, average) in old
        expected = (long if known else short).report().get(policy, estimator, average)
        assert estimate.value == pytest.approx(expected.value, rel=1e-9)  # the order of sums depends on the company
        assert estimate.effective_sample_size == pytest.approx(expected.effective_sample_size, rel=1e-9)
    assert counts(cohorts.report()) == {"logging": (2000, 0), "early": (2000, 0), "late": (1000, 0)}


def test_parts_that_a_plan_no_longer_has_are_dropped() -> None:
    cohorts, _ = opened(1000, **FEW)
    adopt(cohorts, plan("early", estimators=[se.SNIPS()], averages=[se.Window(tau=500)]))
    assert set(values(cohorts.report())) == {(policy, "snips", "window") for policy in ("logging", "early")}
    assert cohorts.report().events.accepted == 1000


def test_other_parameters_make_another_average_under_the_same_name() -> None:
    cohorts, batch = opened(1000, **FEW)
    before = values(cohorts.report())
    adopt(cohorts, plan("early", estimators=FEW["estimators"], averages=[se.Cumulative(), se.Window(tau=100)]))
    cohorts.update(batch[1000:1050])
    report = cohorts.report()
    assert report.get("logging", "ips", "window").effective_sample_size == 50
    assert report.get("logging", "ips", "cumulative").effective_sample_size == 1050
    assert set(values(report)) == set(before)


def test_everything_exchanged_leaves_the_counts_of_events() -> None:
    cohorts, batch = opened(1000, **FEW)
    adopt(cohorts, plan("late", estimators=[se.ClippedIPS(cap=3)], averages=[se.Decay()]))
    cohorts.update(batch[1000:])
    report = cohorts.report()
    assert report.events.accepted == 2000
    assert set(values(report)) == {(policy, "clipped_ips", "decay") for policy in ("logging", "late")}
    assert counts(report) == {"logging": (2000, 0), "late": (1000, 0)}


def test_another_confidence_and_other_kinds_of_interval_are_about_the_same_values() -> None:
    cohorts, _ = opened(1000, **FEW)
    changed = plan("early", **FEW, confidence=0.8, intervals={"window": "empirical_bernstein"})
    before = values(cohorts.report())
    adopt(cohorts, changed)
    after = cohorts.report()
    assert {key: each.value for key, each in values(after).items()} == {key: each.value for key, each in before.items()}
    assert after.get("early", "ips", "window").kind == "empirical_bernstein"
    assert after.confidence == 0.8
    wide, narrow = before["early", "ips", "cumulative"], after.get("early", "ips", "cumulative")
    assert narrow.upper - narrow.lower < 0.7 * (wide.upper - wide.lower)


def test_the_defaults_continue_next_to_named_estimators_and_vice_versa() -> None:
    cohorts, batch = opened(1000)
    adopt(cohorts, plan("early", **FEW))
    cohorts.update(batch[1000:1500])
    assert cohorts.report().get("logging", "ips", "cumulative").effective_sample_size == 1500
    assert set(values(cohorts.report())) == set(values(se.Evaluator(["early"], **FEW).report()))
    adopt(cohorts, plan("early"))
    cohorts.update(batch[1500:])
    whole = se.Evaluator(["early"])
    whole.update(batch[:1])
    assert set(values(cohorts.report())) == set(values(whole.report()))
    assert cohorts.report().get("logging", "ips", "cumulative").effective_sample_size == 2000


def test_estimators_of_another_reward_model_are_new_ones() -> None:
    options = {"estimators": [se.IPS(), se.DR()], "averages": [se.Cumulative()]}
    cohorts, batch = opened(1000, **options)
    adopt(cohorts, plan("early", **options, reward_model=Tabular()))
    cohorts.update(batch[1000:1100])
    report = cohorts.report()
    assert report.get("logging", "ips", "cumulative").effective_sample_size == 1100
    assert report.get("early", "dr", "cumulative").effective_sample_size <= 100
    assert report.reward_model is not None
    assert report.reward_model.model == "tabular"


def test_only_the_retrained_policy_of_several_starts_from_zero() -> None:
    cohorts, batch = opened(1000)
    cohorts.reset_policy("early")
    adopt(cohorts, plan("early", "late"))
    cohorts.update(batch[1000:1010])
    assert counts(cohorts.report()) == {"logging": (1010, 0), "early": (10, 0), "late": (10, 0)}


def test_a_plan_that_comes_before_the_first_event_is_the_only_one() -> None:
    cohorts, batch = opened()
    assert cohorts.apply_plan(plan("late", **FEW)) == []
    cohorts.update(batch)
    alone = se.Evaluator(["late"], **FEW)
    alone.update(batch)
    assert cohorts.report() == alone.report()


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("production", ["early", "late", "never-seen"])
def test_a_new_production_starts_everything_from_zero(production: str, saved: bool) -> None:
    cohorts, batch = opened(1000, **FEW)
    others = [name for name in ("early", "late") if name != production]
    adopt(cohorts, se.Evaluator(others, production=production, **FEW).plan)
    if saved:
        cohorts = CohortEvaluator.from_state(msgspec.msgpack.decode(msgspec.msgpack.encode(cohorts.state())))
    cohorts.update(batch[1000:])
    fresh = se.Evaluator(others, production=production, **FEW)
    fresh.update(batch[1000:])
    assert values(cohorts.report()) == values(fresh.report())
    assert cohorts.report().events == fresh.report().events


def test_a_retrained_production_starts_everything_from_zero() -> None:
    plan = se.Evaluator(["late"], production="early", **FEW).plan
    cohorts = CohortEvaluator(plan)
    cohorts.update(events(300))
    cohorts.reset_policy("early")
    assert cohorts.restarts(plan)
    adopt(cohorts, plan)
    cohorts.update(events(10))
    assert counts(cohorts.report()) == {"early": (10, 0), "late": (10, 0)}


def test_after_a_restart_an_evaluator_with_the_history_takes_the_place_of_the_one_without() -> None:
    cohorts, batch = opened(1000, **FEW)
    (late,) = cohorts.apply_plan(se.Evaluator(["late"], production="early", **FEW).plan)
    late.update(batch[:1000])
    cohorts.update(batch[1000:1100])
    late.update(batch[1000:1100])
    assert counts(cohorts.report()) == {"early": (100, 0), "late": (100, 0)}
    cohorts.activate(late)
    cohorts.update(batch[1100:])
    assert counts(cohorts.report()) == {"early": (2000, 0), "late": (2000, 0)}
    assert cohorts.report().events.accepted == 2000


def test_after_a_restart_without_a_readable_history_the_numbers_since_the_restart_stay() -> None:
    cohorts, batch = opened(1000, **FEW)
    (late,) = cohorts.apply_plan(se.Evaluator(["late"], production="early", **FEW).plan)
    late.update(batch[:500])
    cohorts.update(batch[1000:1100])
    cohorts.activate(late, from_zero=True)
    cohorts.update(batch[1100:])
    assert counts(cohorts.report()) == {"early": (1000, 0), "late": (1000, 0)}


def test_no_two_candidates_that_were_ever_added_share_one_part_of_the_error() -> None:
    cohorts = CohortEvaluator(plan("early", "late", production="later", **FEW))
    cohorts.update(events(300))
    assert ranks_of(cohorts) == {"early": 1, "late": 2}
    adopt(cohorts, se.Evaluator(["late", "later"], production="early", **FEW).plan)
    assert ranks_of(cohorts) == {"late": 2, "later": 3}
    cohorts.update(events(300))
    adopt(cohorts, se.Evaluator(["late", "later", "new"], production="early", **FEW).plan)
    assert ranks_of(cohorts) == {"late": 2, "later": 3, "new": 4}
    cohorts = CohortEvaluator.from_state(cohorts.state())
    adopt(cohorts, se.Evaluator(["early", "late", "new", "newer"], production="later", **FEW).plan)
    assert ranks_of(cohorts) == {"late": 2, "new": 4, "early": 5, "newer": 6}


def test_messages_rejected_before_the_first_event_stay_rejected() -> None:
    cohorts, batch = opened()
    cohorts.update(replace(batch[:0], rejected=(Rejected("duplicate", "", b""),)))
    cohorts.apply_plan(plan("early", "late"))
    cohorts.update(batch[:10])
    assert cohorts.report().events == EventCounts(10, {"duplicate": 1}, None)


def test_a_new_drift_detector_starts_from_zero_and_values_continue() -> None:
    cohorts, batch = opened(1000, **FEW, drift=None)
    before = values(cohorts.report())
    for detector in ("PageHinkley", "ADWIN", None):
        adopt(cohorts, plan("early", **FEW, drift=detector))
        found = [each.drift_detections for each in cohorts.report().policies]
        assert found == [None if detector is None else 0] * 2
        assert {key: each.value for key, each in values(cohorts.report()).items()} == {
            key: each.value for key, each in before.items()
        }
    cohorts.update(batch[1000:])
    assert cohorts.report().events.accepted == 2000


def test_other_rules_of_promotion_decide_from_then_on() -> None:
    averages = [se.Cumulative(), se.Mixture()]
    cohorts, batch = opened(600, averages=averages, promotion="paired")
    for rules in (["anytime"], ["paired", "anytime"], None, ["sea", "bsea"], ["paired"]):
        adopt(cohorts, plan("early", averages=averages, promotion=rules))
        cohorts.update(batch[600:900])
        assert {each.rule for each in cohorts.report().promotion} == set(rules or ())
