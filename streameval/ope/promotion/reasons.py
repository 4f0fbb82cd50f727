"""Reasons: what a decision and a check have to say, as sentences with numbers."""

from __future__ import annotations

import math

from streameval.common.text import counted

NEVER = -1.0
"""In place of a number of events: no number would do. States hold no infinities."""
EARLY = -2.0
"""In place of a number of events: it is too early to say."""
LONGEST = (1e-9, 1e12)
"""Between these, numbers are written out in full."""

SAME = "it has been worth on every event what production is"
NO_LIFT = "there is nothing to decide by: it takes the average mixture with an estimator like snips or stratified_ips"
ALIKE = 1.5
"""A design effect that chance seldom shows of events that are independent: 64 signs tell it to about 18 %."""


def number(value: float) -> str:
    """Three significant digits as people write them.

    >>> [number(value) for value in (-0.002, 0.0123456, 1.314, 4321.0, 1e-7, 1.7e36)]
    ['-0.002', '0.0123', '1.31', '4,321', '0.0000001', '1.7e+36']
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    if not LONGEST[0] <= abs(value) < LONGEST[1]:
        return f"{value:.3g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def count(value: float) -> str:
    """A number of events, of which only the first two digits are known.

    >>> count(43_210.0), count(87.0), count(1_999.0)
    ('43,000', '87', '2,000')
    """
    digits = max(0, math.floor(math.log10(max(value, 1.0))) - 1)
    return f"{round(value, -digits):,.0f}"


def of_bound(lift: float, lower: float, margin: float, more: float, what: str = "lift") -> str:
    """What the lower bound of a lift says of the margin.

    >>> of_bound(lift=0.01, lower=-0.002, margin=0.0, more=41_234.0)
    'lower bound of lift -0.002 under margin 0; needs about 41,000 more events at the present rate'
    """
    if math.isnan(lift):
        return f"no {what} is known yet"
    if math.isnan(lower):
        return f"{what} {number(lift)}, of which no bound is known yet"
    if lower > margin:
        return f"lower bound of {what} {number(lower)} over margin {number(margin)}"
    said = f"lower bound of {what} {number(lower)} {'at' if lower == margin else 'under'} margin {number(margin)}"
    if lift <= margin:
        return f"{said}; the lift itself, {number(lift)}, is not above it"
    if more == NEVER:
        return f"{said}; more events alone will not do: the {what}, {number(lift)}, moves too much"
    if more == EARLY:
        return f"{said}; how much the {what}, {number(lift)}, moves is not known yet"
    return said if math.isnan(more) else f"{said}; {of_more(more)}"


def of_staying(lower: float, margin: float) -> str:
    """What keeps a candidate promotable whose bound is under the margin again.

    >>> of_staying(0.0042, 0.0)
    'lower bound of lift 0.0042 over margin 0 by the narrower interval that keeps it promotable'
    """
    said = f"lower bound of lift {number(lower)} over margin {number(margin)}"
    return f"{said} by the narrower interval that keeps it promotable"


def of_dependence(effect: float | None, knows_units: bool) -> str:
    """What a proof that takes events to be independent is worth, where it is not all that it promises; else nothing.

    `effect`: the design effect of the lift (None: not known), by units or by blocks.

    >>> of_dependence(4.83, knows_units=True)
    '; but events are alike (design effect 4.8), for which the proof does not allow'
    >>> of_dependence(1.1, knows_units=False)
    '; proven if events are independent, which nobody knows: none names its unit'
    >>> of_dependence(1.1, knows_units=True)
    ''
    """
    if effect is not None and effect > ALIKE:
        return f"; but events are alike (design effect {effect:.1f}), for which the proof does not allow"
    return "" if knows_units else "; proven if events are independent, which nobody knows: none names its unit"


def of_more(more: float) -> str:
    """How many more events are needed.

    >>> of_more(0.3), of_more(3_141.0)
    ('needs about 1 more event at the present rate', 'needs about 3,100 more events at the present rate')
    """
    said = count(max(more, 1.0))
    return f"needs about {said} more event{'' if said == '1' else 's'} at the present rate"


def of_lift(lift: float, margin: float) -> str:
    """What a lift without a bound says of the margin.

    >>> of_lift(0.01, 0.0)
    'lift 0.01 over margin 0'
    """
    if math.isnan(lift):
        return "no lift is known yet"
    place = "over" if lift > margin else "at" if lift == margin else "under"
    return f"lift {number(lift)} {place} margin {number(margin)}"


def of_too_few(events: float, least: int) -> str:
    """Before `min_events`.

    >>> of_too_few(3200, 10000)
    'only 3,200 of 10,000 events'
    """
    return f"only {events:,.0f} of {counted(least, 'event')}"


def of_choice(by: str, preferred: str, share: float) -> str:
    """Which lift decides, though another one is preferred.

    >>> of_choice("stratified_ips on mixture", "stratified_dr on mixture", 0.123)
    '; decided by stratified_ips on mixture, as stratified_dr on mixture can use only 12 % of the events'
    """
    return f"; decided by {by}, as {preferred} can use only {100 * share:.0f} % of the events"


def of_held(held: float, hold: int) -> str:
    """While a rule passes, and has not done so for long enough.

    >>> of_held(4, 10)
    'held for 4 of 10 block ends'
    """
    return f"held for {held:,.0f} of {counted(hold, 'block end')}"
