"""What a log promises, as a table for a terminal and as sentences below it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich import box
from rich.table import Table
from rich.text import Text

from streameval.cli.tables import UNKNOWN, decimals_for, number
from streameval.common.text import counted
from streameval.ope.power import CandidatePower, PowerReport

SPANS = (
    ("year", 365.25 * 86_400.0),
    ("month", 30.4375 * 86_400.0),
    ("week", 7 * 86_400.0),
    ("day", 86_400.0),
    ("hour", 3_600.0),
    ("minute", 60.0),
)


def outlook_table(found: PowerReport) -> Table:
    """One row a candidate: what is known of it, and how many events each lift takes."""
    judged = [each for each in found.candidates if each.reason is None]
    decimals = decimals_for([found.value, *(each.value for each in judged)])
    several = len({each.estimator for each in judged}) > 1
    table = Table(box=box.SIMPLE_HEAD, title=_title(found), title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("policy")
    if several:
        table.add_column("estimator")
    for heading in ("value", "lift", "events", "effective\nper event", "noise of\none event", "design\neffect"):
        table.add_column(heading, justify="right")
    table.add_column("lift they\ncan show", justify="right")
    for lift in found.lifts:
        table.add_column(f"events for\n{lift_name(lift, found.value)}", justify="right")
    blank = [""] if several else []
    production = Text(f"{found.production}\n(production)", style="bold")
    table.add_row(production, *blank, number(found.value, decimals), "", f"{found.events:,}")
    for each in found.candidates:
        by = [each.estimator or ""] if several else []
        table.add_row(Text(each.policy, style="bold"), *by, *_cells(each, found, decimals))
    return table


def sentences(found: PowerReport) -> Iterator[str]:
    """What does not fit into the table: who cannot be judged, what never shows, and what would help."""
    for each in found.candidates:
        if each.reason is not None:
            yield f"{each.policy}: cannot be planned for: {each.reason}"
        if each.relief is not None:
            more = each.relief
            yield (
                f"{each.policy}: about half as many events would do if actions with weights over {more.over:g} "
                f"({more.events_share:.1%} of events, {more.noise_share:.0%} of the noise) "
                f"were logged {more.times:.1f} times as often"
            )
    yield from _limits(found)


def lift_name(lift: float, value: float | None) -> str:
    """A lift, and how much of what production earns that is.

    >>> lift_name(0.002, 0.04), lift_name(0.01, None)
    ('0.002 (+5%)', '0.01')
    """
    share = f" (+{100 * lift / value:.2g}%)" if value is not None and value > 0 else ""
    return f"{lift:.3g}{share}"


def rounded(events: float) -> str:
    """A number of events to two digits, upwards: more would claim to know better.

    >>> rounded(41_234), rounded(7), rounded(3.1e13)
    ('42,000', '7', '3.1e+13')
    """
    if events >= 1e12:
        return f"{events:.2g}"
    step = 10 ** max(0, math.floor(math.log10(max(events, 1))) - 1)
    return f"{math.ceil(events / step - 1e-9) * step:,}"


def lasting(seconds: float | None) -> str:
    """How long that is, as people say it.

    >>> lasting(250_000), lasting(40), lasting(5 * 86_400), lasting(None)
    ('3 days', 'a minute', '5 days', '')
    """
    if seconds is None:
        return ""
    for unit, length in SPANS:
        count = round(seconds / length)
        if count > 1 or (count == 1 and unit == "minute"):
            return f"{count:,} {unit}s" if count > 1 else f"a {unit}"
    return "a minute"


def _title(found: PowerReport) -> str:
    by = {each.estimator for each in found.candidates if each.estimator}
    named = f" by {by.pop()}" if len(by) == 1 else ""
    rate = "" if found.events_per_second is None else f", {found.events_per_second:.3g} a second"
    return (
        f"{counted(found.events, 'event')}{rate}; until a lift is shown{named} "
        f"at {found.confidence * 100:g}% confidence with {found.power * 100:g}% power:"
    )


def _cells(each: CandidatePower, found: PowerReport, decimals: int) -> list[str]:
    if each.reason is not None:
        return [*[UNKNOWN] * 2, f"{each.events:,}", *[UNKNOWN] * (4 + len(found.lifts))]
    return [
        number(each.value, decimals),
        number(each.lift, decimals, signed=True),
        f"{each.events:,}",
        number(each.effective_share, 3),
        number(each.deviation, decimals),
        number(max(1.0, each.design_effect or 1.0), 2),
        number(each.detectable, decimals),
        *("\n".join(filter(None, [rounded(need.events), lasting(need.seconds)])) for need in each.needed),
    ]


def _limits(found: PowerReport) -> Iterator[str]:
    """What averages that forget can never show, however long they run."""
    judged = [each for each in found.candidates if each.reason is None and each.limits]
    for place, first in enumerate(judged[0].limits if judged else ()):
        smallest = ", ".join(f"{each.limits[place].lift:.2g} ({each.policy})" for each in judged)
        worth = f"worth {rounded(first.events)} events however long it runs"
        yield f"{first.average}: {worth}, it shows no lift under {smallest}"
