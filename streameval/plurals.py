"""How many of something, in words."""

from __future__ import annotations


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
