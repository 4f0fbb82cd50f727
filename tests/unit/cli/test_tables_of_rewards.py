"""Tables name the reward of each row, where there are several."""

from __future__ import annotations

from msgspec.structs import replace

from streameval.cli.tables import recommended_rows, report_table
from support.factories import make_report


def test_tables_name_the_reward_of_a_row() -> None:
    alone = make_report(candidates=2)
    further = tuple(replace(each, reward="revenue", value=7.25) for each in alone.estimates)
    report = replace(alone, estimates=alone.estimates + further)
    rows = recommended_rows(report)
    assert [each.reward for each in rows].count("revenue") == 3
    assert [column.header for column in report_table(report, rows=rows).columns][1] == "reward"
    assert [column.header for column in report_table(report.of_goal()).columns][1] == "estimator"
    assert "<td>revenue</td>" in report._repr_html_()
