"""Test numbers and durations as text."""

from __future__ import annotations

import pytest

from streameval.common.text import UNKNOWN, decimal, duration_text, measured_time, rounded_up, significant

HOUR, DAY = 3_600.0, 86_400.0


@pytest.mark.parametrize(
    ("events", "text"), [(1.0, "1"), (99.0, "99"), (100.0, "100"), (101.0, "110"), (1e6, "1,000,000")]
)
def test_forecast_events_are_rounded_up_to_two_digits(events: float, text: str) -> None:
    assert rounded_up(events) == text


def test_a_duration_is_in_the_largest_unit_with_a_count_of_two() -> None:
    durations = (1.4, 90, 100 * 60, 30 * HOUR, 10 * DAY, 60 * DAY, 62 * DAY, 1_000 * DAY)
    assert [duration_text(seconds) for seconds in durations] == [
        "1 second",
        "90 seconds",
        "100 minutes",
        "30 hours",
        "10 days",
        "9 weeks",
        "2 months",
        "3 years",
    ]


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_an_unknown_number_is_a_dash(value: float | None) -> None:
    assert {significant(value), decimal(value, 2), measured_time(value)} == {UNKNOWN}


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(999.9, 3, "1,000"), (0.99996, 4, "1"), (123_456.0, 2, "123,456"), (1e-12, 3, "1e-12")],
)
def test_numbers_have_significant_digits_and_no_exponent_in_the_usual_range(
    value: float, digits: int, text: str
) -> None:
    assert significant(value, digits) == text
