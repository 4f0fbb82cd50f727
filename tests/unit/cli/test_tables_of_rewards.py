"""Test the tables of rewards, guardrails and calibration."""

from __future__ import annotations

import re
from collections import Counter
from io import StringIO

import pytest
from msgspec.structs import replace
from rich.console import Console

from streameval.cli.tables import (
    answer_lines,
    calibration_table,
    decisions_table,
    estimates_table,
    guardrails_table,
    per_unit_table,
    quantiles_table,
    result_tables,
)
from streameval.ope.answer import chosen_estimates
from streameval.ope.report import TrustCheck
from support.factories import make_report, with_a_guardrail, with_segments


def test_tables_name_the_reward_of_a_row() -> None:
    alone = make_report(candidates=2)
    further = tuple(replace(row, reward="revenue", value=7.25) for row in alone.estimates)
    report = replace(alone, estimates=alone.estimates + further)
    assert [row.reward for row in chosen_estimates(report, everything=False)].count("revenue") == 3
    assert [str(cell) for cell in estimates_table(report).columns[0].cells][:3] == [
        "logging\n(production)",
        "reward",
        "revenue",
    ]
    assert "<td>revenue</td>" in report._repr_html_()
    assert "reward" not in {str(cell) for cell in estimates_table(report.of_goal()).columns[0].cells}


def test_labels_that_all_rows_share_are_named_once() -> None:
    report = make_report(candidates=2)
    few, every = estimates_table(report), estimates_table(report, everything=True)
    assert "ips on mixture, 95% intervals below values" in str(few.title)
    assert [str(cell) for cell in few.columns[0].cells][1:] == ["challenger-a", "challenger-b"]
    assert "control_variate\non adaptive_window" in {str(cell) for cell in every.columns[0].cells}


@pytest.mark.parametrize("everything", [False, True])
def test_numbers_are_whole_at_80_columns(everything: bool) -> None:
    report = with_segments(with_a_guardrail(make_report(candidates=2), True, False, lower=-0.004))
    narrow, wide = (Console(width=width, file=StringIO(), record=True) for width in (80, 400))
    for console in (narrow, wide):
        for part in (*result_tables(report, everything), decisions_table(report)):
            console.print(part)
    texts = [console.export_text() for console in (narrow, wide)]
    numbers = [Counter(re.findall(r"[-+]?\d[\d,.]*(?: … [-+]?[\d.]+)?", text)) for text in texts]
    assert numbers[0] == numbers[1]
    assert max(map(len, texts[0].splitlines())) <= 80


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
    table = calibration_table(report)
    assert table.title == "Was the estimate right on decay?"
    assert [list(map(str, column.cells)) for column in table.columns][1:] == [
        ["0.05100\n0.04900 … 0.05300"],
        ["0.05200"],
        ["+0.00100\n-0.00200 … +0.00400"],
        ["failed"],
    ]
    every = calibration_table(replace(report, trust=()), everything=True)
    assert list(every.columns[1].cells) == ["cumulative", "decay"]
    assert {str(cell) for cell in every.columns[-1].cells} == {"too few events yet"}


def test_the_table_of_guardrails_has_what_each_may_lose_and_whether_it_is_kept() -> None:
    report = with_a_guardrail(make_report(candidates=2), True, False, lower=-0.004)
    table = guardrails_table(report)
    assert table.title == "Guardrails by paired"
    cells = [list(map(str, column.cells)) for column in table.columns]
    assert cells[:3] == [["challenger-a", "challenger-b"], ["stay"] * 2, ["0.001"] * 2]
    assert cells[3:] == [["-0.002"] * 2, ["-0.004"] * 2, ["kept", "not kept"]]


def test_quantiles_stand_by_reward_and_level_and_the_learned_limit_below_them() -> None:
    report = make_report(candidates=1)
    revenue = [replace(row, reward="revenue", quantile=level) for row in report.quantiles for level in (0.95, 0.5)]
    several = replace(report, quantiles=(*report.quantiles, *revenue))
    cells = [list(column.cells) for column in quantiles_table(several).columns]
    assert cells[0] == ["logging", "challenger-a"] * 3
    assert cells[1] == ["reward"] * 2 + ["revenue"] * 4
    assert cells[2:4] == [["0.95", "0.95", "0.5", "0.5", "0.95", "0.95"], ["0.7"] * 6]
    (limit,) = report.limits
    lines = [part for part in result_tables(report, everything=False) if isinstance(part, str)]
    assert "reward is clipped at 120, its 0.999 quantile until now" in lines
    unknown = replace(report, limits=(replace(limit, limit=None),))
    assert any("reward is not clipped" in str(part) for part in result_tables(unknown, everything=False))
    html = report._repr_html_()
    assert "<tr><td>challenger-a</td><td>reward</td><td>0.95</td><td>0.7</td><td>0.6</td><td>0.8</td></tr>" in html
    assert "reward is clipped at 120" in html


def test_rewards_per_unit_have_units_and_lifts() -> None:
    report = make_report(candidates=1)
    assert any(getattr(part, "title", "") == per_unit_table(report).title for part in result_tables(report, False))
    cells = [list(column.cells) for column in per_unit_table(report).columns]
    assert cells[3:5] == [["1,200"] * 2, ["0.1300\n0.1200 … 0.1400", "0.1500\n0.1300 … 0.1700"]]
    assert cells[5] == ["–", "+0.0200\n+0.0100 … +0.0300"]
    assert "<td>0.15</td><td>0.13</td><td>0.17</td><td>0.02</td><td>0.01</td>" in report._repr_html_()
