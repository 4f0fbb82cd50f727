"""Test candidates that come and go: each counts from its own start, and none affects the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

import streameval as se
from streameval import PythonPolicy
from streameval.errors import ConfigError
from streameval.events import Origin, Rejected
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.report import EventCounts, Report
from streameval.ope.reward_models import Tabular
from support import parts
from support.changes import adopt, config, events


def rows(report: Report, policy: str) -> list[Any]:
    return [estimate for estimate in report.estimates if estimate.policy == policy]


def counts(report: Report) -> dict[str, tuple[int, int]]:
    return {policy.policy: (policy.events, policy.missing) for policy in report.policies}


NUMBERS = ("value", "lower", "upper", "lift", "lift_lower", "lift_upper", "lift_ratio", "effective_sample_size")


def test_heaviest_events_come_and_go_with_their_candidates() -> None:
    batch = replace(events(400), origin=Origin.from_parts("clicks", [(0, range(400))]))
    changing = Evaluator.from_config(config("early"))
    changing.update(batch)
    changing.fold_pending()
    early = changing.heaviest["early"]
    late = changing.change_candidates(config("early", "late"))
    assert late is not None
    late.update(batch[:250])
    changing.activate(late)
    assert changing.heaviest["early"] == early
    row = int(batch[:250].probabilities[:, batch.policies.index("late")].argmax())
    assert changing.heaviest["late"].position == ("clicks", 0, row)
    adopt(changing, config("late"))
    adopt(changing, config("early", "late"))
    assert set(changing.heaviest) == {"late"}


@pytest.mark.parametrize("described", [False, True])
@pytest.mark.parametrize("start", [700, 777])
def test_a_late_candidate_has_the_rows_of_a_stream_that_started_with_it(start: int, described: bool) -> None:
    batch = events(1234, described=described)
    changing = Evaluator.from_config(config("early"))
    changing.update(batch[:start])
    late = changing.change_candidates(config("early", "late"))
    assert late is not None
    changing.activate(late)
    changing.update(batch[start:])
    alone, whole = se.Evaluator(["late"]), se.Evaluator(["early"])
    alone.update(batch[start:])
    whole.update(batch)
    report = changing.report()
    for row, expected in zip(rows(report, "late"), rows(alone.report(), "late"), strict=True):
        assert (row.estimator, row.average) == (expected.estimator, expected.average)
        pairs = {name: (getattr(row, name), getattr(expected, name)) for name in NUMBERS}
        if expected.average == "mixture":  # starts at the mean of earlier rewards
            assert abs(row.value - expected.value) < 0.5 * expected.details["se"]
        elif expected.average == "adaptive_decay" and start % 100:  # weighs whole blocks
            assert all(one == pytest.approx(other, rel=0.01) for one, other in pairs.values())
        else:
            assert all(one == pytest.approx(other, rel=1e-9) for one, other in pairs.values())
    assert [estimate for estimate in report.estimates if estimate.policy != "late"] == list(whole.report().estimates)
    assert counts(report) == {"logging": (1234, 0), "early": (1234, 0), "late": (1234 - start, 0)}
    assert report.events.accepted == 1234
    assert report.production == "logging"
    assert changing.policies == ("logging", "early", "late")


def test_an_evaluator_of_a_configuration_reports_like_a_plain_evaluator() -> None:
    changing, evaluator = Evaluator.from_config(config("early", "late")), se.Evaluator(["early", "late"])
    for instance in (changing, evaluator):
        instance.update(events(350))
    assert changing.report() == evaluator.report()


def test_a_late_candidate_that_has_not_joined_gets_no_events_and_keeps_its_own() -> None:
    changing = Evaluator.from_config(config("early"))
    late = changing.change_candidates(config("early", "late"))
    assert late is not None
    late.update(events(100, seed=2))
    changing.update(events(50))
    assert changing.is_pending(late)
    assert set(counts(changing.report())) == {"logging", "early"}
    changing.activate(late)
    assert not changing.is_pending(late)
    changing.update(events(5))
    assert counts(changing.report()) == {"logging": (55, 0), "early": (55, 0), "late": (105, 0)}


def test_joining_again_forgets_the_earlier_events() -> None:
    changing = Evaluator.from_config(config("early"))
    late = changing.change_candidates(config("early", "late"))
    assert late is not None
    late.update(events(100))
    changing.activate(late, from_zero=True)
    changing.update(events(7))
    assert counts(changing.report())["late"] == (7, 0)


def test_joining_twice_counts_once() -> None:
    changing = Evaluator.from_config(config("early"))
    late = changing.change_candidates(config("early", "late"))
    assert late is not None
    changing.activate(late)
    changing.activate(late)
    changing.update(events(3))
    assert [policy.policy for policy in changing.report().policies] == ["logging", "early", "late"]


def test_a_removed_candidate_loses_its_rows_and_production_stays() -> None:
    changing = Evaluator.from_config(config("early"))
    late = changing.change_candidates(config("early", "late", "later"))
    assert late is not None
    changing.activate(late)
    changing.update(events(150))
    assert changing.change_candidates(config("late")) is None
    changing.update(events(150))
    assert counts(changing.report()) == {"logging": (300, 0), "late": (300, 0)}
    assert {estimate.policy for estimate in changing.report().estimates} == {"logging", "late"}


def test_a_candidate_that_is_removed_before_it_joined_is_no_longer_awaited() -> None:
    changing = Evaluator.from_config(config("early"))
    late = changing.change_candidates(config("early", "late"))
    assert late is not None
    changing.change_candidates(config("early"))
    assert not changing.is_pending(late)
    changing.activate(late)
    assert changing.policies == ("logging", "early")


def test_a_candidate_that_returns_starts_from_zero() -> None:
    changing = Evaluator.from_config(config("early", "late"))
    changing.update(events(200))
    changing.change_candidates(config("early"))
    adopt(changing, config("early", "late"))
    changing.update(events(10))
    assert counts(changing.report()) == {"logging": (210, 0), "early": (210, 0), "late": (10, 0)}


def test_a_candidate_that_became_another_policy_is_a_new_one() -> None:
    changing = Evaluator.from_config(config(named={"early": "uniform", "late": "first"}))
    changing.update(events(100))
    changed = changing.change_candidates(config(named={"early": "uniform", "late": "uniform"}))
    assert changed is not None
    assert changed.policies == ("logging", "late")
    changing.activate(changed)
    changing.update(events(10))
    assert counts(changing.report()) == {"logging": (110, 0), "early": (110, 0), "late": (10, 0)}


def test_a_change_that_cannot_be_made_changes_nothing() -> None:
    changing = Evaluator.from_config(config("early", "late"))
    broken = PythonPolicy("math:sqrt", options={"no": 1})
    with pytest.raises(ConfigError, match="math:sqrt fails"):
        changing.change_candidates(replace(config("early", "code"), computed_policies={"code": broken}))
    assert changing.policies == ("logging", "early", "late")


def opened(count: int = 0, **options: Any) -> tuple[Evaluator, se.EventBatch]:
    """Return an evaluator that has had `count` of 2,000 events, and the events."""
    batch = events(2000, described=True)
    changing = Evaluator.from_config(config("early", **options))
    if count:
        changing.update(batch[:count])
    return changing, batch


def ranks_of(changing: Evaluator) -> dict[str, int]:
    """Return the index of each candidate among all that were ever added. It determines its share of the error."""
    ranks: dict[str, int] = changing.state()["settings"]["candidate_order"]
    return ranks


def values(report: Report) -> dict[tuple[str, str, str], Any]:
    return {(estimate.policy, estimate.estimator, estimate.average): estimate for estimate in report.estimates}


FEW = {"estimators": [se.IPS(), se.SNIPS()], "averages": [se.Cumulative(), se.Window(tau=500)]}


@pytest.mark.parametrize("saved", [False, True])
def test_parts_that_a_configuration_adds_start_from_zero_and_others_continue(saved: bool) -> None:
    changing, batch = opened(1000, **FEW)
    more = {
        "estimators": [*FEW["estimators"], se.ClippedIPS(cap=2.0)],
        "averages": [*FEW["averages"], se.Decay(half_life=100)],
    }
    adopt(changing, config("early", "late", **more))
    if saved:
        changing = Evaluator.from_state(msgspec.msgpack.decode(msgspec.msgpack.encode(changing.state())))
    changing.update(batch[1000:])
    long, short = se.Evaluator(["early"], **more), se.Evaluator(["early", "late"], **more)
    long.update(batch)
    short.update(batch[1000:])
    report, late_report, whole_report = values(changing.report()), short.report(), long.report()
    assert report.keys() == values(late_report).keys()
    old = {(estimator.label, average.label) for estimator in FEW["estimators"] for average in FEW["averages"]}
    for (policy, estimator, average), estimate in report.items():
        continues = policy != "late" and (estimator, average) in old
        expected = (whole_report if continues else late_report).get(policy, estimator, average)
        assert estimate.value == pytest.approx(
            expected.value, rel=1e-9
        )  # the order of sums depends on other candidates
        assert estimate.effective_sample_size == pytest.approx(expected.effective_sample_size, rel=1e-9)
    assert counts(changing.report()) == {"logging": (2000, 0), "early": (2000, 0), "late": (1000, 0)}


def test_parts_that_a_configuration_no_longer_has_are_dropped() -> None:
    changing, _ = opened(1000, **FEW)
    adopt(changing, config("early", estimators=[se.SNIPS()], averages=[se.Window(tau=500)]))
    assert set(values(changing.report())) == {(policy, "snips", "window") for policy in ("logging", "early")}
    assert changing.report().events.accepted == 1000


def test_other_parameters_make_another_average_under_the_same_name() -> None:
    changing, batch = opened(1000, **FEW)
    before = values(changing.report())
    adopt(changing, config("early", estimators=FEW["estimators"], averages=[se.Cumulative(), se.Window(tau=100)]))
    changing.update(batch[1000:1050])
    report = changing.report()
    assert report.get("logging", "ips", "window").effective_sample_size == 50
    assert report.get("logging", "ips", "cumulative").effective_sample_size == 1050
    assert set(values(report)) == set(before)


def test_exchanging_all_parts_keeps_the_counts_of_events() -> None:
    changing, batch = opened(1000, **FEW)
    adopt(changing, config("late", estimators=[se.ClippedIPS(cap=3)], averages=[se.Decay()]))
    changing.update(batch[1000:])
    report = changing.report()
    assert report.events.accepted == 2000
    assert set(values(report)) == {(policy, "clipped_ips", "decay") for policy in ("logging", "late")}
    assert counts(report) == {"logging": (2000, 0), "late": (1000, 0)}


def test_another_confidence_and_other_kinds_of_interval_are_about_the_same_values() -> None:
    changing, _ = opened(1000, **FEW)
    changed = config("early", **FEW, confidence=0.8, intervals={"window": "empirical_bernstein"})
    before = values(changing.report())
    adopt(changing, changed)
    after = changing.report()
    assert {key: estimate.value for key, estimate in values(after).items()} == {
        key: estimate.value for key, estimate in before.items()
    }
    assert after.get("early", "ips", "window").kind == "empirical_bernstein"
    assert after.confidence == 0.8
    wide, narrow = before["early", "ips", "cumulative"], after.get("early", "ips", "cumulative")
    assert narrow.upper - narrow.lower < 0.7 * (wide.upper - wide.lower)


def test_the_defaults_continue_next_to_named_estimators_and_vice_versa() -> None:
    changing, batch = opened(1000)
    adopt(changing, config("early", **FEW))
    changing.update(batch[1000:1500])
    assert changing.report().get("logging", "ips", "cumulative").effective_sample_size == 1500
    assert set(values(changing.report())) == set(values(se.Evaluator(["early"], **FEW).report()))
    adopt(changing, config("early"))
    changing.update(batch[1500:])
    whole = se.Evaluator(["early"])
    whole.update(batch[:1])
    assert set(values(changing.report())) == set(values(whole.report()))
    assert changing.report().get("logging", "ips", "cumulative").effective_sample_size == 2000


def test_estimators_of_another_reward_model_are_new_ones() -> None:
    options = {"estimators": [se.IPS(), se.DR()], "averages": [se.Cumulative()]}
    changing, batch = opened(1000, **options)
    adopt(changing, config("early", **options, reward_model=Tabular()))
    changing.update(batch[1000:1100])
    report = changing.report()
    assert report.get("logging", "ips", "cumulative").effective_sample_size == 1100
    assert report.get("early", "dr", "cumulative").effective_sample_size <= 100
    assert report.reward_model is not None
    assert report.reward_model.model == "tabular"


def test_only_the_retrained_policy_of_several_starts_from_zero() -> None:
    changing, batch = opened(1000)
    changing.reset_policy("early")
    adopt(changing, config("early", "late"))
    changing.update(batch[1000:1010])
    assert counts(changing.report()) == {"logging": (1010, 0), "early": (10, 0), "late": (10, 0)}


def test_a_configuration_before_the_first_event_replaces_the_one_before() -> None:
    changing, batch = opened()
    assert changing.apply_config(config("late", **FEW)) is None
    changing.update(batch)
    alone = se.Evaluator(["late"], **FEW)
    alone.update(batch)
    assert changing.report() == alone.report()


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("production", ["early", "late", "never-seen"])
def test_a_new_production_starts_everything_from_zero(production: str, saved: bool) -> None:
    changing, batch = opened(1000, **FEW)
    others = [name for name in ("early", "late") if name != production]
    adopt(changing, se.Evaluator(others, production=production, **FEW).config)
    if saved:
        changing = Evaluator.from_state(msgspec.msgpack.decode(msgspec.msgpack.encode(changing.state())))
    changing.update(batch[1000:])
    fresh = se.Evaluator(others, production=production, **FEW)
    fresh.update(batch[1000:])
    assert values(changing.report()) == values(fresh.report())
    assert changing.report().events == fresh.report().events


def test_a_retrained_production_starts_everything_from_zero() -> None:
    config = se.Evaluator(["late"], production="early", **FEW).config
    changing = Evaluator.from_config(config)
    changing.update(events(300))
    changing.reset_policy("early")
    assert changing.restarts(config)
    adopt(changing, config)
    changing.update(events(10))
    assert counts(changing.report()) == {"early": (10, 0), "late": (10, 0)}


def test_after_a_restart_an_evaluator_with_the_history_replaces_the_one_without() -> None:
    changing, batch = opened(1000, **FEW)
    late = changing.apply_config(se.Evaluator(["late"], production="early", **FEW).config)
    assert late is not None
    late.update(batch[:1000])
    changing.update(batch[1000:1100])
    late.update(batch[1000:1100])
    assert counts(changing.report()) == {"early": (100, 0), "late": (100, 0)}
    changing.activate(late)
    changing.update(batch[1100:])
    assert counts(changing.report()) == {"early": (2000, 0), "late": (2000, 0)}
    assert changing.report().events.accepted == 2000


def test_after_a_restart_without_a_readable_history_the_numbers_since_the_restart_stay() -> None:
    changing, batch = opened(1000, **FEW)
    late = changing.apply_config(se.Evaluator(["late"], production="early", **FEW).config)
    assert late is not None
    late.update(batch[:500])
    changing.update(batch[1000:1100])
    changing.activate(late, from_zero=True)
    changing.update(batch[1100:])
    assert counts(changing.report()) == {"early": (1000, 0), "late": (1000, 0)}


def test_no_two_candidates_that_were_ever_added_share_one_part_of_the_error() -> None:
    changing = Evaluator.from_config(config("early", "late", production="later", **FEW))
    changing.update(events(300))
    assert ranks_of(changing) == {"early": 1, "late": 2}
    adopt(changing, se.Evaluator(["late", "later"], production="early", **FEW).config)
    assert ranks_of(changing) == {"late": 2, "later": 3}
    changing.update(events(300))
    adopt(changing, se.Evaluator(["late", "later", "new"], production="early", **FEW).config)
    assert ranks_of(changing) == {"late": 2, "later": 3, "new": 4}
    changing = Evaluator.from_state(changing.state())
    adopt(changing, se.Evaluator(["early", "late", "new", "newer"], production="later", **FEW).config)
    assert ranks_of(changing) == {"late": 2, "new": 4, "early": 5, "newer": 6}


def test_messages_rejected_before_the_first_event_stay_rejected() -> None:
    changing, batch = opened()
    changing.update(replace(batch[:0], rejected=(Rejected("duplicate", "", b""),)))
    changing.apply_config(config("early", "late"))
    changing.update(batch[:10])
    assert changing.report().events == EventCounts(10, {"duplicate": 1}, None)


def test_a_new_drift_detector_starts_from_zero_and_values_continue() -> None:
    changing, batch = opened(1000, **FEW, drift=None)
    before = values(changing.report())
    for detector in ("PageHinkley", "ADWIN", None):
        adopt(changing, config("early", **FEW, drift=detector))
        actual = [policy.drift_detections for policy in changing.report().policies]
        assert actual == [None if detector is None else 0] * 2
        assert {key: estimate.value for key, estimate in values(changing.report()).items()} == {
            key: estimate.value for key, estimate in before.items()
        }
    changing.update(batch[1000:])
    assert changing.report().events.accepted == 2000


def test_changed_rules_of_promotion_decide_from_the_change_on() -> None:
    averages = [se.Cumulative(), se.Mixture()]
    changing, batch = opened(600, averages=averages, promotion="paired")
    for rules in (["anytime"], ["paired", "anytime"], None, ["sea", "bsea"], ["paired"]):
        adopt(changing, config("early", averages=averages, promotion=rules))
        changing.update(batch[600:900])
        assert {decision.rule for decision in changing.report().promotion} == set(rules or ())


AVERAGES = [
    se.Cumulative(),
    se.Window(tau=2_000),
    se.Window(tau=90, resolution=10, name="fine"),
    se.Window(tau=20_000, resolution=1_000, name="coarse"),
    se.Window(span="30m", name="hour"),
    se.Decay(alpha=0.999),
    se.Decay(half_life="20m", name="faded"),
    se.AdaptiveWindow(growth="immediate"),
    se.AdaptiveDecay(),
    se.Mixture(),
]
AVERAGES += parts.further_averages(AVERAGES)


@pytest.mark.parametrize(("live", "history"), [(3_000, 9_000), (9_000, 3_000), (7_777, 5_432)])
def test_a_candidate_with_a_history_has_the_numbers_of_its_events(live: int, history: int) -> None:
    batch = events(12_000)
    batch = replace(batch, timestamp=1e9 + np.arange(12_000.0))
    options = {"estimators": [se.IPS(), se.SNIPS()], "averages": AVERAGES}
    end = max(live, history)
    changing, alone, whole = (se.Evaluator([name], **options) for name in ("early", "late", "early"))
    for instance, first in ((changing, end - live), (alone, end - history), (whole, end - live)):
        instance.update(batch[first:end])
    late = changing.change_candidates(config("early", "late", **options))
    assert late is not None
    late.update(batch[end - history : end])
    changing.activate(late)
    for instance in (changing, alone, whole):
        instance.update(batch[end:])
    report = changing.report()
    assert counts(report) == {
        name: (events, 0)
        for name, events in (
            ("logging", 12_000 - end + live),
            ("early", 12_000 - end + live),
            ("late", 12_000 - end + history),
        )
    }
    for row, expected in zip(rows(report, "late"), rows(alone.report(), "late"), strict=True):
        aligned = live % 100 == history % 100 == 0
        # buckets of a window that are a hundredth of it, or of its age, may be placed anew
        tolerance = 1e-9 if aligned and expected.average in ("cumulative", "decay", "window", "fine", "hour") else 0.1
        close = pytest.approx(expected.value, abs=tolerance * (expected.upper - expected.lower))
        assert row.value == close, expected.average
        assert row.upper - row.lower == pytest.approx(expected.upper - expected.lower, rel=3 * tolerance)
    for row, expected in zip(rows(report, "early"), rows(whole.report(), "early"), strict=True):
        near = expected.average.startswith("adaptive_window") or expected.average == "coarse"
        width = expected.upper - expected.lower
        assert row.value == pytest.approx(expected.value, abs=(0.1 if near else 1e-9) * width), expected.average


def test_estimators_with_a_history_get_each_event_once() -> None:
    changing, batch = opened(1_030, **FEW)
    more = {**FEW, "estimators": [*FEW["estimators"], se.ClippedIPS(cap=2.0)]}
    late = changing.apply_config(config("early", "late", **more))
    assert late is not None
    late.update(batch[:1_030])
    changing.activate(late)
    changing.update(batch[1_030:])
    whole = se.Evaluator(["early", "late"], **more)
    whole.update(batch)
    actual, expected = values(changing.report()), values(whole.report())
    assert actual.keys() == expected.keys()
    for key, row in expected.items():
        if key[2] == "cumulative":
            assert actual[key].effective_sample_size == pytest.approx(row.effective_sample_size, rel=1e-9)
            assert actual[key].value == pytest.approx(row.value, rel=1e-9)


def test_a_change_while_others_wait_makes_one_evaluator_of_all_new_parts() -> None:
    changing = Evaluator.from_config(config("early"))
    changing.update(events(250))
    first = changing.change_candidates(config("early", "late"))
    second = changing.change_candidates(config("early", "late", "later"))
    assert first is not None
    assert second is not None
    assert second.policies == ("logging", "late", "later")
    assert (changing.is_pending(first), changing.is_pending(second)) == (False, True)
    assert changing.change_candidates(config("early", "later")) is None
    changing.activate(second)
    assert changing.policies == ("logging", "early", "later")
    assert changing.config.candidate_order == {"early": 1, "later": 3}
