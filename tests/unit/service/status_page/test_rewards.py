"""The status page shows the lift of every reward, where there are several."""

from __future__ import annotations

from msgspec.structs import replace

from streameval.ope.report import Report
from streameval.service.status_page.page import StatusPage
from support.factories import make_published, make_report


def with_a_second_reward() -> Report:
    report = make_report(candidates=2)
    further = tuple(replace(each, reward="revenue", value=7.25) for each in report.estimates)
    return replace(report, estimates=report.estimates + further)


def test_every_reward_of_a_candidate_has_a_row_and_the_goal_has_the_rest_of_the_page() -> None:
    report = with_a_second_reward()
    page = StatusPage().render(make_published(report))
    assert "Lift of every reward; reward decides" in page
    assert page.count('<td class="text">revenue</td>') == 2
    alone = StatusPage().render(make_published(report.of_goal()))
    assert "Lift of every reward" not in alone
    assert page.count('class="chart"') == alone.count('class="chart"')
