"""Test Reports: the pairs of an estimator and an average that displays skip."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from html import escape
from typing import Literal

import pytest

from streameval.errors import InputError
from streameval.ope.answer import answers
from streameval.ope.report import EventCounts, Report
from support.factories import make_estimate, make_report


@dataclass(frozen=True)
class Row:
    """Hold an effective sample size of production."""

    estimator: str
    average: str
    size: float | None


@pytest.mark.parametrize(
    ("size", "most", "is_thin"),
    [(99.0, 990.0, True), (100.0, 10_000.0, False), (99.0, 989.0, False), (None, 50.0, True), (0.0, 0.0, False)],
)
def test_a_row_with_few_events_is_thin_next_to_one_with_ten_times_as_many(
    size: float | None, most: float, is_thin: bool
) -> None:
    rows = [Row("ips", "cumulative", most), Row("dr", "cumulative", size), Row("ips", "window", 1e6)]
    estimates = [make_estimate("logging", row.estimator, row.average, effective_sample_size=row.size) for row in rows]
    report = Report(0.95, "logging", EventCounts(0, {}, None), policies=(), estimates=tuple(estimates))
    assert (("dr", "cumulative") in report.thin()) == is_thin
    assert report.thin() <= {("dr", "cumulative")}, "a row is compared with those on the same average"


def reported() -> Report:
    rows = [
        make_estimate("logging", "ips", "cumulative", value=0.5, lift=None),
        make_estimate("a < b", "ips", "cumulative", value=0.25, lift=-0.25),
    ]
    return Report(0.95, "logging", EventCounts(12_000, {"malformed": 3}, None), policies=(), estimates=tuple(rows))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_report_becomes_a_frame_with_a_row_for_each_estimate(library: Literal["pandas", "polars"]) -> None:
    frame = reported().to_frame(library)
    assert type(frame).__module__.startswith(library)
    assert list(frame["policy"]) == ["logging", "a < b"]
    assert list(frame["value"]) == [0.5, 0.25]
    unknown = frame["lift"].isna() if library == "pandas" else frame["lift"].is_null()
    assert list(unknown) == [True, False]
    assert "details" not in frame.columns


def test_a_report_without_estimates_becomes_an_empty_frame() -> None:
    report = Report(0.95, "logging", EventCounts(0, {}, None), policies=(), estimates=())
    assert len(report.to_frame()) == 0
    assert list(report.to_frame().columns)[:4] == ["policy", "estimator", "average", "value"]


def test_a_frame_of_a_missing_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(InputError, match="to_frame needs polars, which is not installed"):
        reported().to_frame("polars")


def test_notebooks_show_estimates_and_rejections() -> None:
    shown = reported()._repr_html_()
    assert "<td>logging (production)</td><td>ips</td><td>cumulative</td><td>0.5000</td>" in shown
    assert "<td>a &lt; b</td>" in shown
    assert "<p>12,000 events, 3 rejected<br>3 rejected: malformed</p>" in shown


def test_the_answer_comes_first() -> None:
    report = make_report(candidates=2)
    sentences = [answer.sentence for answer in answers(report)]
    shown = report._repr_html_()
    assert len(sentences) == 2
    assert [shown.index(escape(sentence)) < shown.index("<table>") for sentence in sentences] == [True, True]
    assert [line for line in str(report).splitlines() if line in sentences] == sentences
