"""Test the tables of rewards, guardrails and calibration."""

from __future__ import annotations

from msgspec.structs import replace

from streameval.cli.results import answer_lines, chosen_estimates
from streameval.cli.tables import calibration_table, estimates_table, guardrails_table
from streameval.ope.report import TrustCheck
from support.factories import make_report, with_a_guardrail


def test_tables_name_the_reward_of_a_row() -> None:
    alone = make_report(candidates=2)
    further = tuple(replace(row, reward="revenue", value=7.25) for row in alone.estimates)
    report = replace(alone, estimates=alone.estimates + further)
    assert [row.reward for row in chosen_estimates(report, everything=False)].count("revenue") == 3
    assert [column.header for column in estimates_table(report).columns][1] == "reward"
    assert [column.header for column in estimates_table(report.of_goal()).columns][1] == "estimator"
    assert "<td>revenue</td>" in report._repr_html_()


def test_the_answer_compares_the_estimated_lift_of_an_arm_with_the_observed_one() -> None:
    report = make_report(candidates=2)
    *_, answer = answer_lines(report, everything=False)
    lifts = "estimated +0.0120 from events that others chose, seen +0.0100 ± 0.0040 on its own"
    assert answer == f"the lift of challenger-a: {lifts}"
    assert not [line for line in answer_lines(replace(report, calibration=()), False) if "seen" in line]


def test_the_table_of_arms_has_the_average_that_decides_and_whether_the_check_passes() -> None:
    report = make_report(candidates=1, averages=("cumulative", "decay"))
    (row,) = report.calibration
    rows = (replace(row, average="cumulative", value=0.5), row)
    wrong = TrustCheck("challenger-a", "calibration", ok=False, reason="the propensities are wrong")
    report = replace(report, calibration=rows, trust=(wrong,))
    few = [list(map(str, column.cells)) for column in calibration_table(report).columns]
    assert (few[1], few[2], few[-1]) == (["decay"], ["0.05100"], ["failed"])
    assert few[3:7] == [["0.04900 … 0.05300"], ["0.05200"], ["+0.00100"], ["-0.00200 … +0.00400"]]
    every = calibration_table(replace(report, trust=()), everything=True)
    assert list(every.columns[1].cells) == ["cumulative", "decay"]
    assert {str(cell) for cell in every.columns[-1].cells} == {"too few events yet"}


def test_the_table_of_guardrails_has_what_each_may_lose_and_whether_it_is_kept() -> None:
    report = with_a_guardrail(make_report(candidates=2), True, False, lower=-0.004)
    cells = [list(map(str, column.cells)) for column in guardrails_table(report).columns]
    assert cells[:4] == [["challenger-a", "challenger-b"], ["paired"] * 2, ["stay"] * 2, ["0.001"] * 2]
    assert cells[4:] == [["-0.002"] * 2, ["-0.004"] * 2, ["kept", "not kept"]]


def test_the_answer_names_a_guardrail_that_more_events_will_not_help() -> None:
    report = with_a_guardrail(make_report(candidates=1), False, lower=-0.004)
    (decision,) = report.promotion
    report = replace(report, promotion=(replace(decision, promotable=False, more=700.0),), calibration=())
    (answer,) = answer_lines(report, everything=False)
    assert "needs about 700 more events" in answer
    assert answer.endswith("; guardrail stay: decision bound -0.004")
    assert "guardrail" not in next(answer_lines(with_a_guardrail(report.of_goal(), False), everything=False))
