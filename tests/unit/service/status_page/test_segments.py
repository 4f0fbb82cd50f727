"""Show the lift in each segment, the lowest one over its error first."""

from __future__ import annotations

from msgspec.structs import replace

from streameval.service.status_page.page import MAX_SEGMENTS, render
from support.factories import make_published, make_report, with_segments


def test_a_segment_with_a_worse_candidate_is_a_sentence_and_the_first_row() -> None:
    page = render(make_published(with_segments(make_report(candidates=1))))
    _, table = page.split('id="segments"')
    assert "challenger-a is worse than production</b> in country fr (-0.02, 20 % of the events)" in table
    assert table.index("<td>▼ -0.02</td>".replace("<td>", '<td class="warn">')) < table.index("<td>+0.02</td>")
    assert "more row" not in table
    assert "by segment" not in render(make_published(make_report(candidates=1)))


def test_many_rows_are_folded() -> None:
    report = with_segments(make_report(candidates=1))
    rows = tuple(replace(report.segments[-1], segment_value=f"c{index}") for index in range(MAX_SEGMENTS + 3))
    page = render(make_published(replace(report, segments=rows)))
    assert "3 more rows" in page
    assert page.count(">country c") == MAX_SEGMENTS + 3
