"""Test that dropped parts of an evaluator are gone, and that others do not change except for pooled evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

import streameval as se
from streameval.common.arrays import from_plain
from streameval.ope.evaluator.evaluator import Evaluator
from support import parts
from support.changes import adopt, config, events
from support.logs import Log

ESTIMATORS = (se.IPS(), se.SNIPS(), se.ClippedIPS(cap=5.0), se.StratifiedIPS(), se.ControlVariate())
FIXED = [
    se.Cumulative(),
    se.Window(tau=700),
    se.Window(span="5m", name="minutes"),
    se.Decay(alpha=0.999),
    se.AdaptiveWindow(drift_span=500),
    se.AdaptiveDecay(drift_span=300),
]
AVERAGES = [*FIXED, *parts.further_averages([*FIXED, se.Mixture()]), se.Mixture()]
INTERVALS = {"cumulative": "confidence_sequence", "window": "confidence_sequence"}
PROMOTION = {"rule": ["paired", "sea", "anytime"], "family_size": 3}
TAKEN = ["candidate_order", "added", "promotion.taken"]


def evaluator(
    candidates: Sequence[str] = ("a", "b"),
    estimators: Sequence[Any] = ESTIMATORS,
    averages: Sequence[Any] = AVERAGES,
) -> se.Evaluator:
    intervals = {average.label: INTERVALS[average.label] for average in averages if average.label in INTERVALS}
    return se.Evaluator(candidates, estimators, averages, intervals=intervals, drift="PageHinkley", promotion=PROMOTION)


def reported(some: se.Evaluator, *keys: tuple[str, str, str]) -> list[str]:
    """Return the rows of the Report with these policies, estimators and averages, to the last bit."""
    report = some.report()
    return [msgspec.json.encode(report.get(*key)).decode() for key in keys]


def numbers(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value in a state with its path."""
    if isinstance(state, dict):
        for key, value in state.items():
            yield from numbers(value, f"{path}.{key}")
    elif isinstance(state, list):
        for index, value in enumerate(state):
            yield from numbers(value, f"{path}[{index}]")
    else:
        yield path, state


def assert_as_if_nothing_else_had_been(one: se.Evaluator, other: se.Evaluator, leaving_out: Sequence[str] = ()) -> None:
    here, there = (
        {
            path: value
            for path, value in numbers(from_plain(instance.state()))
            if not any(f".{name}" in path for name in leaving_out)
        }
        for instance in (one, other)
    )
    assert here.keys() == there.keys()
    for path, value in here.items():
        if isinstance(value, np.ndarray):
            assert value.shape == there[path].shape, path
            np.testing.assert_allclose(value, there[path], rtol=1e-9, atol=1e-9, err_msg=path)
        elif not isinstance(value, float):
            assert value == there[path], path


FEWER = {
    "the first estimator": (ESTIMATORS[1:], AVERAGES),
    "all but the last estimator": (ESTIMATORS[4:], AVERAGES),
    "all with their own sequence": (ESTIMATORS[:2], AVERAGES),
    "all but the one with its own sequence": (ESTIMATORS[2:3], AVERAGES),
    "the one of two components": ((*ESTIMATORS[:3], *ESTIMATORS[4:]), AVERAGES),
    "every other estimator and average": (ESTIMATORS[::2], AVERAGES[::2]),
    "all but the mixture": (ESTIMATORS, AVERAGES[-1:]),
    "all that measures drift": (ESTIMATORS, (*AVERAGES[:1], *AVERAGES[2:3])),
}


@pytest.mark.parametrize("fewer", FEWER)
def test_estimators_and_averages_that_are_dropped_leave_no_trace(fewer: str) -> None:
    estimators, averages = FEWER[fewer]
    log = Log(1, 2_530, missing=0.1)
    some, others = evaluator(), evaluator(estimators=estimators, averages=averages)
    for instance in (some, others):
        instance.update(log.batch(0, 1_730))
        instance.fold_pending()
    assert some.apply_config(some.config.with_products([(tuple(estimators), tuple(averages))])) is None
    for instance in (some, others):
        instance.update(log.batch(1_730))
        instance.fold_pending()
    leaving_out = [*TAKEN]
    if se.SNIPS() not in estimators:
        # lifts have no evidence in the first block, because no ratio is known yet
        leaving_out += ["lifts", "averages.mixture.history", "promotion"]
    if se.StratifiedIPS() not in estimators or se.Mixture() not in averages:
        leaving_out += ["promotion"]  # another lift decides, see below
    assert_as_if_nothing_else_had_been(some, others, leaving_out)


def test_remaining_parts_are_unchanged_to_the_last_bit() -> None:
    some = evaluator()
    some.update(Log(2, 2_530, missing=0.1).batch())
    keys = [
        (policy, estimator.label, average.label)
        for policy in ("logging", "a", "b")
        for estimator in ESTIMATORS[::2]
        for average in AVERAGES
    ]
    before = reported(some, *keys)
    assert some.apply_config(some.config.with_products([(ESTIMATORS[::2], AVERAGES)])) is None
    here, there = (list(map(msgspec.json.decode, row)) for row in (reported(some, *keys), before))
    for one, other in zip(here, there, strict=True):
        if one["average"] != "mixture":
            assert one == other
        for number in ("value", "lift"):
            assert one[number] == other[number], one


@pytest.mark.parametrize("kept", [["a"], ["c"], ["a", "b"], []])
def test_candidates_that_are_dropped_leave_no_trace(kept: list[str]) -> None:
    """Keep the order of the others, whatever the order of the configuration."""
    log = Log(3, 2_530, missing=0.1)
    some, others = evaluator(["a", "b", "c"], averages=AVERAGES[:-1]), evaluator(kept, averages=AVERAGES[:-1])
    for instance in (some, others):
        instance.update(log.batch(0, 1_730))
        instance.fold_pending()
    assert some.apply_config(replace(some.config, policies=("logging", *reversed(kept)))) is None
    for instance in (some, others):
        instance.update(log.batch(1_730))
        instance.fold_pending()
    assert_as_if_nothing_else_had_been(some, others, TAKEN)


NOISY = {"rule": ["bsea", "paired"], "min_events": 200, "hold": 1, "trust": {"effective_sample_size": 1.0}}


def decided(some: se.Evaluator, policy: str) -> list[Any]:
    report = some.report()
    return [entry for entries in (report.promotion, report.transitions) for entry in entries if entry.policy == policy]


def test_decisions_about_remaining_candidates_do_not_depend_on_removed_ones() -> None:
    some = se.Evaluator(["a", "b"], [se.IPS()], [se.Mixture()], promotion=NOISY)
    some.update(Log(4, 2_530).batch())
    before = decided(some, "b")
    assert len(before) > 2, "something must have changed, to be remembered"
    assert decided(some, "a")
    assert some.change_candidates(some.config.for_policies(["b"])) is None
    assert decided(some, "b") == before
    assert not decided(some, "a")
    again = se.Evaluator.from_state(msgspec.msgpack.decode(msgspec.msgpack.encode(some.state())))
    assert decided(again, "b") == before


def test_decisions_start_from_zero_when_their_lift_is_removed() -> None:
    some = se.Evaluator(["a"], [se.StratifiedIPS(), se.IPS()], [se.Mixture()], promotion=NOISY)
    some.update(Log(5, 1_030).batch())
    sums_decision, lift_decision = some.report().promotion
    assert lift_decision.events == 1_000
    assert some.apply_config(some.config.with_products([((se.IPS(),), (se.Mixture(),))])) is None
    assert some.report().promotion[0] == sums_decision
    assert some.report().promotion[1].events == 0
    some.update(Log(6, 500).batch())
    assert some.report().promotion[1].events == 500
    assert some.report().promotion[0].events == 1_500


def test_only_candidates_that_stay_are_pooled() -> None:
    log = events(2_530)
    some, others = (
        se.Evaluator(names, [se.IPS()], [se.Mixture()]) for names in (["early", "late", "later"], ["early", "later"])
    )
    for instance in (some, others):
        instance.update(log[:1_730])
    assert some.change_candidates(some.config.for_policies(["early", "later"])) is None
    for instance in (some, others):
        instance.update(log[1_730:])
    for policy in ("logging", "early", "later"):
        here, there = (instance.report().get(policy, "ips", "mixture") for instance in (some, others))
        assert here.value == pytest.approx(there.value, rel=1e-9)


FEW = {
    "estimators": [se.IPS(), se.SNIPS(), se.StratifiedIPS()],
    "averages": [se.Cumulative(), se.Window(), se.Mixture()],
}


def computed(changing: Evaluator) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the policies and cells of an evaluator."""
    report = se.Evaluator.from_state(changing.state()).report()
    cells = dict.fromkeys((estimate.estimator, estimate.average) for estimate in report.estimates)
    return [policy.policy for policy in report.policies], list(cells)


@pytest.mark.parametrize("live", [True, False])
def test_a_removed_candidate_is_no_longer_computed(live: bool) -> None:
    changing = Evaluator.from_config(config("early", "late", **FEW))
    changing.update(events(500))
    size = len(msgspec.msgpack.encode(changing.state()))
    if live:
        assert changing.change_candidates(config("late", **FEW)) is None
    else:
        adopt(changing, config("late", **FEW))
    assert computed(changing)[0] == ["logging", "late"]
    assert len(msgspec.msgpack.encode(changing.state())) < 0.75 * size
    assert b"early" not in msgspec.msgpack.encode(changing.state())


def test_a_late_candidate_that_was_removed_is_not_computed_once_it_has_joined() -> None:
    changing = Evaluator.from_config(config("early", **FEW))
    late = changing.change_candidates(config("early", "late", "later", **FEW))
    assert late is not None
    late.update(events(300))
    changing.change_candidates(config("early", "later", **FEW))
    changing.activate(late)
    assert computed(changing)[0] == ["logging", "early", "later"]
    changing.update(events(10))
    assert {policy.policy: policy.events for policy in changing.report().policies}["later"] == 310


def test_late_candidates_share_the_error_with_all_that_were_ever_added() -> None:
    changing = Evaluator.from_config(config("early", "late", **FEW))
    changing.update(events(100))
    changing.change_candidates(config("late", **FEW))
    adopt(changing, config("late", "early", **FEW))
    assert changing.config.candidate_order == {"late": 2, "early": 3}


def test_the_remaining_parts_may_lack_some_pairs_of_estimator_and_average() -> None:
    changing, straight = Evaluator.from_config(config("early", **FEW)), se.Evaluator(["early"], **FEW)
    for instance in (changing, straight):
        instance.update(events(500))
    adopt(changing, config("early"))  # the published estimators on the published averages, and the best on the mixture
    changing = Evaluator.from_state(msgspec.msgpack.decode(msgspec.msgpack.encode(changing.state())))
    published = [(estimator, average) for average in ("cumulative", "window") for estimator in ("ips", "snips")]
    policies, cells = computed(changing)
    assert policies == ["logging", "early"]
    assert {*published, ("stratified_ips", "mixture")} < set(cells)
    for cell in (*published, ("stratified_ips", "mixture")):
        assert reported(changing, ("early", *cell)) == reported(straight, ("early", *cell))
    adopt(changing, config("early", **FEW))
    assert reported(changing, ("early", "snips", "window")) == reported(straight, ("early", "snips", "window"))


def test_a_model_that_is_no_longer_needed_is_dropped() -> None:
    options = {"estimators": [se.IPS(), se.DR()], "averages": [se.Cumulative()]}
    changing = Evaluator.from_config(config("early", **options))
    changing.update(events(500, described=True))
    model = changing.state()["predictions"]
    adopt(changing, config("early", estimators=[se.IPS()], averages=[se.Cumulative()]))
    changing.update(events(500, described=True))
    after = changing.state()["predictions"]
    assert changing.report().reward_model is None
    assert len(msgspec.msgpack.encode(after)) <= len(msgspec.msgpack.encode(model))
    assert after == se.Evaluator(["early"], **options).state()["predictions"]


@pytest.mark.parametrize("first", [False, True])
def test_a_late_candidate_has_the_rows_that_its_own_events_can_fill(first: bool) -> None:
    changing = Evaluator.from_config(config("early"))
    changing.update(events(150, described=first))
    adopt(changing, config("early", "late"))
    changing.update(events(150, described=not first))
    cells = {
        policy: {
            (estimate.estimator, estimate.average)
            for estimate in changing.report().estimates
            if estimate.policy == policy
        }
        for policy in changing.policies
    }
    best = ("stratified_dr", "mixture")
    assert best in cells["early"]
    assert cells["early"] == cells["logging"]
    assert cells["late"] == cells["early"] - ({best} if first else set())
    adopt(changing, config("early", "late", **FEW))
    adopt(changing, config("early", "late"))
    assert {estimate.policy for estimate in changing.report().estimates} == {"logging", "early", "late"}
