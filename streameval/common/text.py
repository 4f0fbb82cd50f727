"""Format durations, counts, numbers, times and intervals for people."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

UNKNOWN = "–"  # shown in place of an unknown number
SECONDS_PER_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
SPANS = {"year": 31_557_600.0, "month": 2_629_800.0, "week": 604_800.0, "day": 86_400.0, "hour": 3600.0, "minute": 60.0}
WRITTEN: Mapping[str, Any] = {"written": True}
"""Context of pydantic for values that people write into files: durations need their unit."""
WRITTEN_OUT = (1e-9, 1e12)  # numbers between these have no exponent


def parse_duration(text: str) -> float:
    """Return the seconds in a duration such as `30s`, `1h30m` or `250ms`.

    Raises:
        ValueError: The text is not a duration.

    >>> parse_duration("1h30m"), parse_duration("250ms")
    (5400.0, 0.25)
    """
    compact = text.replace(" ", "")
    parts = PART.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise ValueError("expected a duration such as 30s, 5m or 1h30m")
    return sum(float(number) * SECONDS_PER_UNIT[unit] for number, unit in parts)


def format_duration(seconds: float) -> str:
    """Return the shortest spelling in whole units, the inverse of `parse_duration`.

    >>> format_duration(30), format_duration(5400), format_duration(0.25)
    ('30s', '90m', '250ms')
    """
    for unit, length in sorted(SECONDS_PER_UNIT.items(), key=lambda item: -item[1]):
        count = seconds / length
        if count >= 1 and abs(count - round(count)) < 1e-9:
            return f"{round(count)}{unit}"
    return f"{seconds:g}s"


def _seconds(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str) and value[-1:].isalpha():
        return parse_duration(value)
    if info.context is WRITTEN and value is not None:
        raise ValueError("expected a duration with its unit, such as 30s or 5m")
    return value


def _duration(value: str) -> str:
    if parse_duration(value) <= 0:
        raise ValueError("expected a duration longer than 0, such as 30m")
    return value


def _events_or_duration(value: object) -> object:
    if isinstance(value, str):
        return _duration(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError("expected a number of events greater than 0, or a duration such as 30m")
    return value


Duration = Annotated[str, AfterValidator(_duration)]  # a positive duration string (a pydantic type)

EventsOrDuration = Annotated[float | str, BeforeValidator(_events_or_duration)]
"""Accept a number of events or a duration string of event time (a pydantic type)."""

Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0, allow_inf_nan=False)]
"""Accept a positive duration string, and from Python a positive number of seconds (a pydantic type)."""


def counted(number: float, noun: str, form: str = ",.0f") -> str:
    """Format a number with its noun, in the plural unless the text is exactly 1.

    >>> [counted(number, "event") for number in (0, 1, 1.4, 12_000)]
    ['0 events', '1 event', '1 event', '12,000 events']
    """
    text = format(number, form)
    if text == "1":
        return f"{text} {noun}"
    return f"{text} {noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{text} {noun}s"


def significant(value: float | None, digits: int = 3) -> str:
    """Format a number with significant digits, without an exponent unless it is too small or too large to read.

    >>> [significant(value) for value in (-0.002, 0.0123456, 1.314, 4321.0, 1e-7, 1.7e36, 0.0, None)]
    ['-0.002', '0.0123', '1.31', '4,321', '0.0000001', '1.7e+36', '0', '–']
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    if not WRITTEN_OUT[0] <= abs(value) < WRITTEN_OUT[1]:
        return f"{value:.{digits}g}"
    text = f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def decimal(value: float | None, decimals: int, signed: bool = False) -> str:
    """Format a number with a fixed number of decimals.

    Args:
        value: None and numbers that are not finite become a dash
        decimals: the number of decimals
        signed: whether positive numbers get a plus sign

    >>> decimal(0.00455, 4), decimal(1234.5, 1, signed=True), decimal(None, 4)
    ('0.0046', '+1,234.5', '–')
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:{'+' if signed else ''},.{decimals}f}"


def decimals_for(values: Iterable[float | None]) -> int:
    """Return the number of decimals that gives the largest value four digits."""
    largest = max((abs(value) for value in values if value and math.isfinite(value)), default=1.0)
    return min(max(3 - math.floor(math.log10(largest)), 0), 9)


def rounded_up(events: float) -> str:
    """Format a forecast number of events, rounded up to two digits.

    >>> rounded_up(41_234), rounded_up(7), rounded_up(3.1e13)
    ('42,000', '7', '3.1e+13')
    """
    if events >= WRITTEN_OUT[1]:
        return f"{events:.2g}"
    step = 10 ** max(0, math.floor(math.log10(max(events, 1))) - 1)
    return f"{math.ceil(events / step - 1e-9) * step:,}"


def duration_text(seconds: float) -> str:
    """Format a duration in the largest unit with a count of at least 2.

    >>> [duration_text(seconds) for seconds in (-3, 1, 42.4, 5400, 250_000, 400 * 86_400)]
    ['0 seconds', '1 second', '42 seconds', '90 minutes', '3 days', '13 months']
    """
    for unit, length in SPANS.items():
        if seconds >= 2 * length:
            return counted(seconds / length, unit)
    return counted(max(seconds, 0.0), "second")


def measured_time(seconds: float | None) -> str:
    """Format a measured duration with one decimal, in seconds from 0.1 s on.

    >>> [measured_time(seconds) for seconds in (0.0042, 0.4, 2.0, 200.0, 9000.0, 1e6, None)]
    ['4.2 ms', '0.4 s', '2.0 s', '3.3 min', '2.5 h', '11.6 d', '–']
    """
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    units = ((86_400.0, 1.0, "d"), (3600.0, 1.0, "h"), (60.0, 1.0, "min"), (1.0, 0.1, "s"))
    texts = (f"{seconds / size:.1f} {unit}" for size, least, unit in units if seconds >= least * size)
    return next(texts, f"{1000 * seconds:.1f} ms")


def utc_time(timestamp: float) -> str:
    """Format epoch seconds as a date and a time of day.

    >>> utc_time(1575158399.1)
    '2019-11-30 23:59:59 UTC'
    """
    return f"{datetime.fromtimestamp(timestamp, UTC):%Y-%m-%d %H:%M:%S} UTC"


def short_time(timestamp: float, now: float | None) -> str:
    """Format epoch seconds to the minute, without the date if it is the date of `now`.

    >>> short_time(1575158399.1, now=1575158400.0), short_time(1575158399.1, now=1575158399.9)
    ('2019-11-30 23:59 UTC', '23:59 UTC')
    """
    date, time = utc_time(timestamp)[:16].split()
    is_today = now is not None and utc_time(now).startswith(date)
    return f"{time} UTC" if is_today else f"{date} {time} UTC"


def interval_text(lower: float | None, upper: float | None, decimals: int, signed: bool = False) -> str:
    """Return `lower … upper` with a dash for an unknown bound, or one dash if both are unknown."""
    if lower is None and upper is None:
        return UNKNOWN
    return f"{decimal(lower, decimals, signed)} … {decimal(upper, decimals, signed)}"
