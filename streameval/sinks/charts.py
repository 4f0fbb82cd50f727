"""Geometry of the band charts on the status page: where values lie, and what is better than production."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeGuard

from streameval.plurals import counted
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
        """The scale for the values and bands of `estimates`; None while no value is known."""
        estimates = list(estimates)
        values = [each.value for each in estimates if is_known(each.value)]
        return cls.fitting(values, [band for each in estimates if (band := between(each.lower, each.upper))])

    @classmethod
    def of_lifts(cls, estimates: Iterable[Estimate]) -> Scale | None:
        """The scale for the lifts of `estimates`, zero among them; None while no lift is known."""
        known = [each for each in estimates if is_known(each.lift)]
        values = [each.lift for each in known if is_known(each.lift)]
        bands = [band for each in known if (band := between(each.lift_lower, each.lift_upper))]
        return cls.fitting([0.0, *values], bands) if known else None

    @classmethod
    def fitting(cls, values: Sequence[float], bands: Sequence[tuple[float, float]]) -> Scale | None:
        """The scale for all `values` and for `bands`, far ends of which are cut off; None without values."""
        if not values:
            return None
        spread = max(max(values) - min(values), median([upper - lower for lower, upper in bands] or [0.0]))
        low, high = min(values) - FARTHEST * spread, max(values) + FARTHEST * spread
        return cls.over([*values, *(min(max(end, low), high) for band in bands for end in band)])

    def at(self, value: float) -> float:
        """The place of `value` on the axis, in per cent; outside it, the nearest end."""
        return round(min(max(100 * (value - self.low) / (self.high - self.low), 0.0), 100.0), 2)

    def text(self, value: float | None, sign: str = "") -> str:
        """The value with the digits that can be told apart on this axis; `sign` `+` shows it on positive ones too."""
        return f"{value:{sign}.{self.decimals}f}" if is_known(value) else UNKNOWN

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


def make_lift_chart(estimator: str, candidates: Sequence[Estimate], scale: Scale | None) -> Chart:
    """The chart of what candidates gain over production; its reference is zero."""
    zero = None if scale is None else scale.at(0.0)
    return Chart(estimator, tuple(_lift_row(each, scale) for each in candidates), zero)


def _lift_row(each: Estimate, scale: Scale | None) -> Row:
    at = band = None
    value = interval = UNKNOWN
    if scale is not None and is_known(each.lift):
        at, value = scale.at(each.lift), scale.text(each.lift, "+")
        if ends := between(each.lift_lower, each.lift_upper):
            band = (scale.at(ends[0]), scale.at(ends[1]))
            interval = f"{scale.text(ends[0], '+')} to {scale.text(ends[1], '+')}"
    return Row(each, False, lift_verdict(each), value, interval, at, band, memory(each))


def _row(each: Estimate, base: Estimate | None, scale: Scale | None) -> Row:
    at = band = None
    value = interval = UNKNOWN
    if scale is not None and is_known(each.value):
        at, value = scale.at(each.value), scale.text(each.value)
        if ends := between(each.lower, each.upper):
            band = (scale.at(ends[0]), scale.at(ends[1]))
            interval = f"{scale.text(ends[0])} to {scale.text(ends[1])}"
    is_base = base is not None and each.policy == base.policy
    return Row(each, is_base, verdict(each, base), value, interval, at, band, memory(each))


def verdict(each: Estimate, base: Estimate | None) -> str:
    """How a policy stands against production: `better`, `worse`, `open`, or empty when it cannot be said.

    By the interval of the paired difference where there is one, else by intervals that do not touch.
    """
    if base is None or each.policy == base.policy:
        return ""
    if by_lift := lift_verdict(each):
        return by_lift
    band, base_band = between(each.lower, each.upper), between(base.lower, base.upper)
    return _side(band, base_band) if band and base_band else ""


def lift_verdict(each: Estimate) -> str:
    """On which side of zero the interval of the lift lies; empty while there is none."""
    lift = between(each.lift_lower, each.lift_upper)
    return _side(lift, (0.0, 0.0)) if lift else ""


def _side(band: tuple[float, float], base: tuple[float, float]) -> str:
    if band[0] > base[1]:
        return "better"
    return "worse" if band[1] < base[0] else "open"


def memory(each: Estimate) -> str:
    """How far back the average looks at this moment; unknown for one that forgets nothing."""
    events = each.details.get("window_events") or each.details.get("horizon_events")
    return counted(events, "event") if is_known(events) else UNKNOWN


def is_known(value: float | None) -> TypeGuard[float]:
    """Whether there is a finite number."""
    return value is not None and math.isfinite(value)


def between(lower: float | None, upper: float | None) -> tuple[float, float] | None:
    """The two ends of an interval when both are known."""
    return (lower, upper) if is_known(lower) and is_known(upper) else None


def _round_step(step: float) -> float:
    """The round number (1, 2 or 5 times a power of ten) that is not below `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))
