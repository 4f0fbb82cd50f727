"""Reports: the pairs of an estimator and an average that displays skip."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from streameval.ope.report import EventCounts, Report
from support.factories import make_estimate


@dataclass(frozen=True)
class Row:
    """The effective sample size of production's row."""

    estimator: str
    average: str
    size: float | None


@pytest.mark.parametrize(
    ("size", "most", "is_thin"),
    [(99.0, 990.0, True), (100.0, 10_000.0, False), (99.0, 989.0, False), (None, 50.0, True), (0.0, 0.0, False)],
)
def test_a_row_is_thin_that_has_few_events_next_to_one_with_ten_times_as_many(
    size: float | None, most: float, is_thin: bool
) -> None:
    rows = [Row("ips", "cumulative", most), Row("dr", "cumulative", size), Row("ips", "window", 1e6)]
    estimates = [make_estimate("logging", row.estimator, row.average, effective_sample_size=row.size) for row in rows]
    report = Report(0.95, "logging", EventCounts(0, {}, None), policies=(), estimates=tuple(estimates))
    assert (("dr", "cumulative") in report.thin()) == is_thin
    assert report.thin() <= {("dr", "cumulative")}, "a row is compared with those on the same average"
