"""States of earlier versions go on in this one."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import numpy as np
import pytest

import streameval as se
from streameval.ope.evaluator.cohorts import CohortEvaluator
from streameval.ope.report import Report
from streameval.service.snapshots.file_format import read_document
from streameval.service.snapshots.untrusted import roster_from
from support.paths import DATA

STATES = DATA / "states"
sys.path.insert(0, str(STATES))
from make_roster_1 import events  # noqa: E402 - the events of the stored state


@pytest.fixture
def stored() -> Any:
    return read_document(STATES / "roster_1.snapshot")["roster"]


EXPECTED = json.loads((STATES / "roster_1.json").read_text())


def assert_same_values(report: Report, expected: Any) -> None:
    told = json.loads(report.to_json())
    assert told["events"] == expected["events"]
    rows = [{key: each[key] for key in ("policy", "events", "missing")} for each in told["policies"]]
    assert rows == [{key: each[key] for key in ("policy", "events", "missing")} for each in expected["policies"]]
    known = {(each["policy"], each["estimator"], each["average"]): each for each in told["estimates"]}
    for each in expected["estimates"]:
        now = known.pop((each["policy"], each["estimator"], each["average"]))
        for number in ("value", "effective_sample_size", "importance_weight_mean", "importance_weight_max"):
            assert now[number] == pytest.approx(each[number], rel=1e-9), (number, each)
    assert not known


def test_a_state_of_schema_1_says_what_it_said(stored: Any) -> None:
    assert stored["schema"] == 1
    assert_same_values(roster_from(stored).report(), EXPECTED["at"])


def test_a_state_of_schema_1_goes_on_as_it_would_have(stored: Any) -> None:
    roster = roster_from(stored)
    roster.update(events(777, seed=3))
    assert_same_values(roster.report(), EXPECTED["after"])


def test_lifts_of_a_state_of_schema_1_begin_with_its_unfinished_block(stored: Any) -> None:
    roster, fresh = roster_from(stored), se.Evaluator(["early"])
    fresh.update(events(580, seed=2)[550:])
    for each in (roster, fresh):
        each.update(events(700, seed=3))
    now, anew = (each.report().get("early", "ips", "cumulative") for each in (roster, fresh))
    assert now.lift == pytest.approx(anew.lift, rel=1e-9)
    assert now.value != pytest.approx(anew.value, rel=1e-3)


def test_what_schema_1_did_not_keep_is_not_taken_for_nothing(stored: Any) -> None:
    roster = roster_from(stored)
    kinds = ["normal", "empirical_bernstein", "empirical_likelihood"]
    for kind in kinds:
        averages = [se.Cumulative(), se.Window(), se.Decay(), se.AdaptiveWindow(), se.AdaptiveDecay()]
        intervals = {average.label: kind for average in averages}
        plan = se.Evaluator(["early", "late"], averages=averages, intervals=intervals).plan
        for late in roster.adopt(plan):
            roster.join(late)
        roster.update(events(100, seed=4))
        for each in roster.report().estimates:
            kept = each.policy == "early" and each.average == "cumulative" and each.estimator in ("ips", "snips")
            if kind == "empirical_likelihood" and kept:
                assert each.lower is None, "its sums are not complete"
            assert each.value is None or math.isfinite(each.value)


def test_a_state_of_this_version_is_left_as_it_is() -> None:
    evaluator = se.Evaluator(["a"])
    batch = se.EventBatch.from_arrays(reward=np.ones(250), propensity=np.ones(250), policies={"a": np.ones(250)})
    evaluator.update(batch)
    roster = CohortEvaluator(evaluator.plan)
    roster.update(batch)
    assert roster_from(roster.state()).report() == roster.report()
