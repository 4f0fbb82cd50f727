"""Geometry of the band charts on the status page: where values lie, and what is better than production.

Pictures of the last hours: a line with its band for a candidate, and production's line, in one frame.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from streameval.common.text import UNKNOWN, counted, decimal
from streameval.ope.report import Estimate
from streameval.service.status import EstimateSeries, History

FARTHEST = 3.0  # band ends farther out than so many spreads of the values are cut off at the edge of the chart


@dataclass(frozen=True)
class ChartScale:
    """A linear axis from `low` to `high` with round `ticks` and as many `decimals` as its values need.

    >>> scale = ChartScale.over([0.041, 0.059])
    >>> scale.ticks, scale.text(0.05), scale.at(0.05)
    ((0.045, 0.05, 0.055), '0.0500', 50.0)
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    decimals: int

    @classmethod
    def over(cls, values: Sequence[float]) -> ChartScale:
        """The scale that shows all `values` (one or more) with a little room at both ends."""
        low, high = min(values), max(values)
        room = 0.05 * (high - low) or max(abs(high), 1.0) * 0.05
        low, high = low - room, high + room
        step = _round_step((high - low) / 4)
        first, last = math.ceil(low / step), math.floor(high / step)
        decimals = max(0, 2 - math.floor(math.log10(high - low)))
        return cls(low, high, tuple(round(tick * step, 12) for tick in range(first, last + 1)), decimals)

    @classmethod
    def of(cls, estimates: Iterable[Estimate]) -> ChartScale | None:
        """The scale for the values and bands of `estimates`; None while no value is known."""
        estimates = list(estimates)
        values = [each.value for each in estimates if is_known(each.value)]
        return cls.fitting(values, [band for each in estimates if (band := between(each.lower, each.upper))])

    @classmethod
    def of_lifts(cls, estimates: Iterable[Estimate]) -> ChartScale | None:
        """The scale for the lifts of `estimates`, zero among them; None while no lift is known."""
        known = [each for each in estimates if is_known(each.lift)]
        values = [each.lift for each in known if is_known(each.lift)]
        bands = [band for each in known if (band := between(each.lift_lower, each.lift_upper))]
        return cls.fitting([0.0, *values], bands) if known else None

    @classmethod
    def fitting(cls, values: Sequence[float], bands: Sequence[tuple[float, float]]) -> ChartScale | None:
        """The scale for all `values` and for `bands`, far ends of which are cut off; None without values."""
        if not values:
            return None
        spread = max(max(values) - min(values), median([upper - lower for lower, upper in bands] or [0.0]))
        low, high = min(values) - FARTHEST * spread, max(values) + FARTHEST * spread
        return cls.over([*values, *(min(max(end, low), high) for band in bands for end in band)])

    def at(self, value: float) -> float:
        """The place of `value` on the axis, in per cent; outside it, the nearest end."""
        return round(min(max(100 * (value - self.low) / (self.high - self.low), 0.0), 100.0), 2)

    def text(self, value: float | None, signed: bool = False) -> str:
        """The value with the digits that this axis can distinguish."""
        return decimal(value, self.decimals, signed)

    def tick_texts(self) -> list[tuple[float, str]]:
        """The place of each tick and its text, without needless zeros."""
        return [(self.at(tick), f"{tick:.10g}") for tick in self.ticks]


@dataclass(frozen=True)
class ChartRow:
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
    rows: tuple[ChartRow, ...]
    reference: float | None


def make_chart(estimator: str, estimates: Sequence[Estimate], production: str, scale: ChartScale | None) -> Chart:
    """The chart of `estimates`, one per policy, on `scale`."""
    base = next((each for each in estimates if each.policy == production), None)
    rows = tuple(_row(each, base, scale) for each in estimates)
    return Chart(estimator, rows, next((row.at for row in rows if row.production), None))


def make_lift_chart(estimator: str, candidates: Sequence[Estimate], scale: ChartScale | None) -> Chart:
    """The chart of what candidates gain over production; its reference is zero."""
    zero = None if scale is None else scale.at(0.0)
    return Chart(estimator, tuple(_lift_row(each, scale) for each in candidates), zero)


def _lift_row(each: Estimate, scale: ChartScale | None) -> ChartRow:
    at = band = None
    value = interval = UNKNOWN
    if scale is not None and is_known(each.lift):
        at, value = scale.at(each.lift), scale.text(each.lift, signed=True)
        if ends := between(each.lift_lower, each.lift_upper):
            band = (scale.at(ends[0]), scale.at(ends[1]))
            interval = f"{scale.text(ends[0], signed=True)} to {scale.text(ends[1], signed=True)}"
    return ChartRow(each, False, lift_verdict(each), value, interval, at, band, memory(each))


def _row(each: Estimate, base: Estimate | None, scale: ChartScale | None) -> ChartRow:
    at = band = None
    value = interval = UNKNOWN
    if scale is not None and is_known(each.value):
        at, value = scale.at(each.value), scale.text(each.value)
        if ends := between(each.lower, each.upper):
            band = (scale.at(ends[0]), scale.at(ends[1]))
            interval = f"{scale.text(ends[0])} to {scale.text(ends[1])}"
    is_base = base is not None and each.policy == base.policy
    return ChartRow(each, is_base, verdict(each, base), value, interval, at, band, memory(each))


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


WIDTH, HEIGHT = 1000, 200  # units of the frame, which is stretched to its place on the page
CENTRAL = (5, 95)  # per cent of the band's ends that must fit; the first estimates are anywhere


@dataclass(frozen=True)
class ChartTimeline:
    """One candidate: points of lines and of bands as SVG wants them, in pieces where nothing was known between.

    `first` and `last` are the values at both ends, `lowest` and `highest` those in between, as text.
    """

    policy: str
    lines: tuple[str, ...]
    bands: tuple[str, ...]
    production: tuple[str, ...]
    first: str
    last: str
    lowest: str
    highest: str


@dataclass(frozen=True)
class Timelines:
    """All candidates on the same axes; `seconds` is how far they reach back, `ticks` the values to write beside."""

    seconds: float
    ticks: tuple[tuple[float, str], ...]
    pictures: tuple[ChartTimeline, ...]


def make_timelines(
    history: History, now: float, candidates: Sequence[Estimate], production: Estimate | None
) -> Timelines | None:
    """The last hours of `candidates` up to this moment; None while there is nothing to draw."""
    all_series = [_series(history, now, each) for each in candidates]
    base = None if production is None else _series(history, now, production)
    scale = _scale([*all_series, *([base] if base else [])])
    begin = history.points[0].at if history.points else now
    if scale is None or now <= begin:
        return None
    frame = _Frame(begin, now, scale)
    beside = () if base is None else tuple(frame.lines(base.at, base.value))
    pictures = tuple(
        frame.timeline(each.policy, series, beside) for each, series in zip(candidates, all_series, strict=True)
    )
    return Timelines(now - begin, tuple((100 - at, text) for at, text in scale.tick_texts()), pictures)


def _series(history: History, now: float, each: Estimate) -> EstimateSeries:
    """The history of an estimate, with its present value at the end."""
    past = history.series((each.policy, each.estimator, each.average))
    ends = [np.nan if end is None else end for end in (each.value, each.lower, each.upper)]
    columns = zip((past.at, past.value, past.lower, past.upper), (now, *ends), strict=True)
    return EstimateSeries(*(np.append(column, end) for column, end in columns))


def _scale(all_series: Sequence[EstimateSeries]) -> ChartScale | None:
    ends = [_known(column) for series in all_series for column in (series.lower, series.upper, series.value)]
    shown = [value for column in ends if len(column) for value in np.percentile(column, CENTRAL)]
    return ChartScale.over(shown) if shown else None


@dataclass(frozen=True)
class _Frame:
    begin: float
    end: float
    scale: ChartScale

    def timeline(self, policy: str, series: EstimateSeries, production: tuple[str, ...]) -> ChartTimeline:
        known = _known(series.value)
        return ChartTimeline(
            policy,
            tuple(self.lines(series.at, series.value)),
            tuple(self.bands(series)),
            production,
            *(self.scale.text(float(value)) for value in (known[0], known[-1], known.min(), known.max()))
            if len(known)
            else (UNKNOWN,) * 4,
        )

    def lines(self, at: NDArray[np.float64], value: NDArray[np.float64]) -> Iterator[str]:
        for piece in _pieces(np.isfinite(value)):
            yield self._points(at[piece], value[piece])

    def bands(self, series: EstimateSeries) -> Iterator[str]:
        for piece in _pieces(np.isfinite(series.lower) & np.isfinite(series.upper)):
            at, lower, upper = series.at[piece], series.lower[piece], series.upper[piece]
            yield f"{self._points(at, upper)} {self._points(at[::-1], lower[::-1])}"

    def _points(self, at: NDArray[np.float64], value: NDArray[np.float64]) -> str:
        x = np.rint((at - self.begin) / (self.end - self.begin) * WIDTH).astype(int)
        share = (value - self.scale.low) / (self.scale.high - self.scale.low)
        y = np.rint(HEIGHT * (1 - np.clip(share, 0.0, 1.0))).astype(int)
        return " ".join(f"{across},{down}" for across, down in zip(x.tolist(), y.tolist(), strict=True))


def _pieces(known: NDArray[np.bool_]) -> Iterator[slice]:
    """The stretches of two or more moments at which something is known."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(int)))
    for begin, end in edges.reshape(-1, 2).tolist():
        if end - begin > 1:
            yield slice(begin, end)


def _known(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[np.isfinite(values)]
