"""Geometry of the band charts on the status page: where values lie, and what is better than production."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from streameval.report import Estimate

FARTHEST = 3.0  # band ends farther out than so many spreads of the values are cut off at the edge of the chart
UNKNOWN = "–"


@dataclass(frozen=True)
class Scale:
    """A linear axis from `low` to `high` with round `ticks` and as many `decimals` as its values need.

    >>> scale = Scale.over([0.041, 0.059])
    >>> scale.ticks, scale.text(0.05), scale.at(0.05)
    ((0.045, 0.05, 0.055), '0.0500', 50.0)
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    decimals: int

    @classmethod
    def over(cls, values: Sequence[float]) -> Scale:
        """The scale that shows all `values` (one or more) with a little room at both ends."""
        low, high = min(values), max(values)
        room = 0.05 * (high - low) or max(abs(high), 1.0) * 0.05
        low, high = low - room, high + room
        step = _round_step((high - low) / 4)
        first, last = math.ceil(low / step), math.floor(high / step)
        decimals = max(0, 2 - math.floor(math.log10(high - low)))
        return cls(low, high, tuple(round(tick * step, 12) for tick in range(first, last + 1)), decimals)

    @classmethod
    def of(cls, estimates: Iterable[Estimate]) -> Scale | None:
        """The scale for the values and bands of `estimates`, far ends cut off; None while no value is known."""
        known = [each for each in estimates if is_known(each.value)]
        values = [each.value for each in known if each.value is not None]
        if not values:
            return None
        ends = [end for each in known for end in (each.lower, each.upper) if end is not None and is_known(end)]
        widths = [abs(each.upper - each.lower) for each in known if each.lower is not None and each.upper is not None]
        far = FARTHEST * max(max(values) - min(values), median(widths or [0.0]))
        return cls.over(values + [min(max(end, min(values) - far), max(values) + far) for end in ends])

    def at(self, value: float) -> float:
        """The place of `value` on the axis, in per cent; outside it, the nearest end."""
        return round(min(max(100 * (value - self.low) / (self.high - self.low), 0.0), 100.0), 2)

    def text(self, value: float | None) -> str:
        """The value with the digits that can be told apart on this axis."""
        return UNKNOWN if value is None or not math.isfinite(value) else f"{value:.{self.decimals}f}"

    def tick_texts(self) -> list[tuple[float, str]]:
        """The place of each tick and its text, without needless zeros."""
        return [(self.at(tick), f"{tick:.10g}") for tick in self.ticks]


@dataclass(frozen=True)
class Row:
    """One policy in a chart; places in per cent, None where nothing is known."""

    estimate: Estimate
    production: bool
    verdict: str
    value: str
    interval: str
    at: float | None
    band: tuple[float, float] | None
    memory: str


@dataclass(frozen=True)
class Chart:
    """All policies by one estimator over one average; `reference` is the place of the production policy's value."""

    estimator: str
    rows: tuple[Row, ...]
    reference: float | None


def make_chart(estimator: str, estimates: Sequence[Estimate], production: str, scale: Scale | None) -> Chart:
    """The chart of `estimates`, one per policy, on `scale`."""
    base = next((each for each in estimates if each.policy == production), None)
    rows = tuple(_row(each, base, scale) for each in estimates)
    return Chart(estimator, rows, next((row.at for row in rows if row.production), None))


def _row(each: Estimate, base: Estimate | None, scale: Scale | None) -> Row:
    ends = (each.lower, each.upper)
    lower, upper = ends
    at = band = None
    interval = value = UNKNOWN
    if scale is not None and each.value is not None and is_known(each.value):
        at, value = scale.at(each.value), scale.text(each.value)
        if lower is not None and upper is not None:
            band, interval = (scale.at(lower), scale.at(upper)), f"{scale.text(lower)} to {scale.text(upper)}"
    is_base = base is not None and each.policy == base.policy
    return Row(each, is_base, verdict(each, base), value, interval, at, band, memory(each))


def verdict(each: Estimate, base: Estimate | None) -> str:
    """How a policy stands against production: `better`, `worse`, `open`, or empty when it cannot be said.

    By the interval of the paired difference where there is one, else by intervals that do not touch.
    """
    if base is None or each.policy == base.policy or each.value is None or base.value is None:
        return ""
    if each.lift_lower is not None and each.lift_upper is not None:
        return _side(each.lift_lower, each.lift_upper, 0.0, 0.0)
    if None in (each.lower, each.upper, base.lower, base.upper):
        return ""
    return _side(each.lower, each.upper, base.lower, base.upper)


def _side(lower: float, upper: float, base_lower: float, base_upper: float) -> str:
    if lower > base_upper:
        return "better"
    return "worse" if upper < base_lower else "open"


def memory(each: Estimate) -> str:
    """How far back the average looks at this moment, in events; empty for one that forgets nothing."""
    events = each.details.get("window_events") or each.details.get("horizon_events")
    return f"{events:,.0f} events" if events is not None and is_known(events) else ""


def is_known(value: float | None) -> bool:
    """Whether there is a finite number."""
    return value is not None and math.isfinite(value)


def _round_step(step: float) -> float:
    """The round number (1, 2 or 5 times a power of ten) that is not below `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))
