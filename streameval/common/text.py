"""Durations as people write them in a configuration: `30s`, `1h30m`, `250ms`.

How many of something, in words.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

SECONDS_PER_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_duration(text: str) -> float:
    """Seconds in a duration; ValueError when it is none.

    >>> parse_duration("1h30m")
    5400.0
    >>> parse_duration("250ms")
    0.25
    """
    compact = text.replace(" ", "")
    parts = PART.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise ValueError("expected a duration such as 30s, 5m or 1h30m")
    return sum(float(number) * SECONDS_PER_UNIT[unit] for number, unit in parts)


def format_duration(seconds: float) -> str:
    """The shortest whole-unit spelling of a duration, the inverse of `parse_duration`.

    >>> format_duration(30), format_duration(5400), format_duration(0.25)
    ('30s', '90m', '250ms')
    """
    for unit, length in sorted(SECONDS_PER_UNIT.items(), key=lambda item: -item[1]):
        count = seconds / length
        if count >= 1 and abs(count - round(count)) < 1e-9:
            return f"{round(count)}{unit}"
    return f"{seconds:g}s"


def _seconds(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) and value[-1:].isalpha() else value


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


Duration = Annotated[str, AfterValidator(_duration)]
"""A pydantic type: a duration string; positive."""

EventsOrDuration = Annotated[float | str, BeforeValidator(_events_or_duration)]
"""A pydantic type: a number counts events, a duration string is event time."""

Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0, allow_inf_nan=False)]
"""A pydantic type: a duration string, or a plain number of seconds; positive."""


def counted(number: float, noun: str, form: str = ",.0f") -> str:
    """A number, written in this form, and its noun, in the plural unless exactly 1 is written.

    >>> [counted(number, "event") for number in (0, 1, 1.4, 12_000)]
    ['0 events', '1 event', '1 event', '12,000 events']
    >>> counted(2, "policy"), counted(0.5, "event", "g")
    ('2 policies', '0.5 events')
    """
    said = format(number, form)
    if said == "1":
        return f"{said} {noun}"
    return f"{said} {noun[:-1]}ies" if noun.endswith("y") else f"{said} {noun}s"
