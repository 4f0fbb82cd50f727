"""Show how often users look at each rank, if that is learned."""

from __future__ import annotations

from streameval.service.metrics import metrics_text
from streameval.service.status_page.page import render
from support.factories import make_published
from support.ranking_worlds import RANKS, evaluated, pages


def test_a_learned_curve_is_shown_and_exported_with_its_interval() -> None:
    report = evaluated(pages(12_000, 4, "harvested")[0], {"kind": "harvested", "ranks": RANKS}).report()
    published = make_published(report)
    page, metrics = render(published, {}), metrics_text(published).decode()
    assert "How often users look at each rank" in page
    for rank in report.examination:
        assert f'<th scope="row">{rank.rank}</th>' in page
        assert f'streameval_examination{{rank="{rank.rank}"}} {rank.value}' in metrics
        assert f'streameval_examination_upper{{rank="{rank.rank}"}} {rank.upper}' in metrics


def test_without_a_learned_curve_nothing_is_shown() -> None:
    published = make_published(evaluated(pages(200, 4)[0], {"kind": "power", "eta": 1}).report())
    assert "How often users look" not in render(published, {})
    assert "streameval_examination" not in metrics_text(published).decode()
