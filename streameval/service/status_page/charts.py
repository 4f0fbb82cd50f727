"""Charts of the status page: values and lifts with their intervals on one axis, and lines over the last hours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from streameval.common.text import UNKNOWN, counted, decimal
from streameval.ope.report import Estimate
from streameval.service.status import EstimateSeries, History

FARTHEST = 3.0  # bounds farther out than this many spreads of the values are cut off at the edge of the chart
WIDTH, HEIGHT = 1000, 200  # units of the frame of a timeline, which is stretched to its place on the page
CENTRAL = (5, 95)  # per cent of the bounds that must fit into a timeline; the first estimates vary widely

Interval: TypeAlias = tuple[float, float]
"""Lower and upper bound."""
Floats: TypeAlias = NDArray[np.float64]


def is_known(value: float | None) -> TypeGuard[float]:
    """Whether there is a finite number."""
    return value is not None and math.isfinite(value)


def between(lower: float | None, upper: float | None) -> Interval | None:
    """The bounds of an interval when both are known."""
    return (lower, upper) if is_known(lower) and is_known(upper) else None


def value_of(each: Estimate) -> tuple[float | None, Interval | None]:
    """The value and its interval."""
    return each.value, between(each.lower, each.upper)


def lift_of(each: Estimate) -> tuple[float | None, Interval | None]:
    """The lift and its interval."""
    return each.lift, between(each.lift_lower, each.lift_upper)


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
        """The scale that shows all `values` (one or more) with some room above and below."""
        low, high = min(values), max(values)
        room = 0.05 * (high - low) or max(abs(high), 1.0) * 0.05
        low, high = low - room, high + room
        step = _round_step((high - low) / 4)
        first, last = math.ceil(low / step), math.floor(high / step)
        decimals = max(0, 2 - math.floor(math.log10(high - low)))
        return cls(low, high, tuple(round(tick * step, 12) for tick in range(first, last + 1)), decimals)

    @classmethod
    def of(cls, estimates: Iterable[Estimate]) -> ChartScale | None:
        """The scale of the values and their intervals; None while no value is known."""
        return cls._fitting(map(value_of, estimates), [])

    @classmethod
    def of_lifts(cls, estimates: Iterable[Estimate]) -> ChartScale | None:
        """The scale of the lifts and their intervals, zero among them; None while no lift is known."""
        return cls._fitting(((lift, ends) for lift, ends in map(lift_of, estimates) if is_known(lift)), [0.0])

    @classmethod
    def _fitting(cls, shown: Iterable[tuple[float | None, Interval | None]], others: list[float]) -> ChartScale | None:
        shown = list(shown)
        values = [value for value, _ in shown if is_known(value)]
        intervals = [ends for _, ends in shown if ends]
        if not values:
            return None
        values += others
        spread = max(max(values) - min(values), median([upper - lower for lower, upper in intervals] or [0.0]))
        low, high = min(values) - FARTHEST * spread, max(values) + FARTHEST * spread
        return cls.over([*values, *(min(max(end, low), high) for ends in intervals for end in ends)])

    def at(self, value: float) -> float:
        """The place of `value` on the axis, in per cent; outside it, the nearest end."""
        return round(min(max(100 * (value - self.low) / (self.high - self.low), 0.0), 100.0), 2)

    def text(self, value: float | None, signed: bool = False) -> str:
        """The value with the digits that this axis can distinguish."""
        return decimal(value, self.decimals, signed)

    def tick_texts(self) -> list[tuple[float, str]]:
        """The place of each tick and its text, without trailing zeros."""
        return [(self.at(tick), f"{tick:.10g}") for tick in self.ticks]


def _round_step(step: float) -> float:
    """The round number (1, 2 or 5 times a power of ten) that is not below `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


@dataclass(frozen=True)
class ChartRow:
    """One policy in a chart; places in per cent, None where nothing is known."""

    estimate: Estimate
    production: bool
    verdict: str
    value: str
    interval: str
    at: float | None
    band: Interval | None
    memory: str


@dataclass(frozen=True)
class Chart:
    """All policies by one estimator over one average; `reference` is the place of production's value."""

    estimator: str
    rows: tuple[ChartRow, ...]
    reference: float | None


def make_chart(estimator: str, estimates: Sequence[Estimate], production: str, scale: ChartScale | None) -> Chart:
    """The chart of the values of `estimates`, one per policy, on `scale`."""
    base = next((each for each in estimates if each.policy == production), None)
    rows = tuple(_row(each, value_of(each), verdict(each, base), scale, each is base) for each in estimates)
    return Chart(estimator, rows, next((row.at for row in rows if row.production), None))


def make_lift_chart(estimator: str, candidates: Sequence[Estimate], scale: ChartScale | None) -> Chart:
    """The chart of the lifts of candidates; its reference is zero."""
    rows = tuple(_row(each, lift_of(each), lift_verdict(each), scale, signed=True) for each in candidates)
    return Chart(estimator, rows, None if scale is None else scale.at(0.0))


def _row(
    each: Estimate,
    shown: tuple[float | None, Interval | None],
    verdict: str,
    scale: ChartScale | None,
    production: bool = False,
    signed: bool = False,
) -> ChartRow:
    at = band = None
    text = interval = UNKNOWN
    value, ends = shown
    if scale is not None and is_known(value):
        at, text = scale.at(value), scale.text(value, signed)
        if ends:
            band = (scale.at(ends[0]), scale.at(ends[1]))
            interval = f"{scale.text(ends[0], signed)} to {scale.text(ends[1], signed)}"
    return ChartRow(each, production, verdict, text, interval, at, band, memory(each))


def verdict(each: Estimate, base: Estimate | None) -> str:
    """A policy against production: `better`, `worse`, `open`, or empty while it is not known.

    By the interval of the lift where there is one, else by intervals that do not overlap.
    """
    if base is None or each.policy == base.policy:
        return ""
    if by_lift := lift_verdict(each):
        return by_lift
    ends, base_ends = between(each.lower, each.upper), between(base.lower, base.upper)
    return _side(ends, base_ends) if ends and base_ends else ""


def lift_verdict(each: Estimate) -> str:
    """The side of zero on which the interval of the lift lies; empty while there is none."""
    _, ends = lift_of(each)
    return _side(ends, (0.0, 0.0)) if ends else ""


def _side(ends: Interval, base: Interval) -> str:
    if ends[0] > base[1]:
        return "better"
    return "worse" if ends[1] < base[0] else "open"


def memory(each: Estimate) -> str:
    """How many events the average looks back over; unknown for one that forgets nothing."""
    events = each.details.get("window_events") or each.details.get("horizon_events")
    return counted(events, "event") if is_known(events) else UNKNOWN


@dataclass(frozen=True)
class ChartTimeline:
    """One candidate: points of lines and intervals in SVG, in pieces where nothing was known between.

    `first` and `last` are the first and last values, `lowest` and `highest` the extremes, as text.
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
    """All candidates on the same axes, which reach `seconds` back; `ticks` are the labels of the value axis."""

    seconds: float
    ticks: tuple[tuple[float, str], ...]
    pictures: tuple[ChartTimeline, ...]


def make_timelines(
    history: History, now: float, candidates: Sequence[Estimate], production: Estimate | None
) -> Timelines | None:
    """The last hours of `candidates` up to this moment; None while there is nothing to draw."""
    all_series = [_series(history, now, each) for each in candidates]
    base = None if production is None else _series(history, now, production)
    columns = [
        _known(column)
        for series in [*all_series, *([base] if base else [])]
        for column in (series.lower, series.upper, series.value)
    ]
    shown = [value for column in columns if len(column) for value in np.percentile(column, CENTRAL)]
    start = history.points[0].at if history.points else now
    if not shown or now <= start:
        return None
    scale = ChartScale.over(shown)
    frame = _Frame(start, now, scale)
    production_lines = () if base is None else tuple(frame.lines(base.at, base.value))
    return Timelines(
        now - start,
        tuple((100 - at, text) for at, text in scale.tick_texts()),
        tuple(
            frame.timeline(each.policy, series, production_lines)
            for each, series in zip(candidates, all_series, strict=True)
        ),
    )


def _series(history: History, now: float, each: Estimate) -> EstimateSeries:
    """The history of an estimate, with its present value at the end."""
    past = history.series((each.policy, each.estimator, each.average))
    present = [np.nan if value is None else value for value in (each.value, each.lower, each.upper)]
    columns = zip((past.at, past.value, past.lower, past.upper), (now, *present), strict=True)
    return EstimateSeries(*(np.append(column, last) for column, last in columns))


@dataclass(frozen=True)
class _Frame:
    """The axes of all timelines."""

    start: float
    end: float
    scale: ChartScale

    def timeline(self, policy: str, series: EstimateSeries, production: tuple[str, ...]) -> ChartTimeline:
        known = _known(series.value)
        texts = [UNKNOWN] * 4
        if len(known):
            texts = [self.scale.text(float(value)) for value in (known[0], known[-1], known.min(), known.max())]
        lines, bands = tuple(self.lines(series.at, series.value)), tuple(self.bands(series))
        return ChartTimeline(policy, lines, bands, production, *texts)

    def lines(self, at: Floats, value: Floats) -> Iterator[str]:
        for piece in _pieces(np.isfinite(value)):
            yield self._points(at[piece], value[piece])

    def bands(self, series: EstimateSeries) -> Iterator[str]:
        for piece in _pieces(np.isfinite(series.lower) & np.isfinite(series.upper)):
            at, lower, upper = series.at[piece], series.lower[piece], series.upper[piece]
            yield f"{self._points(at, upper)} {self._points(at[::-1], lower[::-1])}"

    def _points(self, at: Floats, value: Floats) -> str:
        x = np.rint((at - self.start) / (self.end - self.start) * WIDTH).astype(int)
        share = (value - self.scale.low) / (self.scale.high - self.scale.low)
        y = np.rint(HEIGHT * (1 - np.clip(share, 0.0, 1.0))).astype(int)
        return " ".join(f"{across},{down}" for across, down in zip(x.tolist(), y.tolist(), strict=True))


def _pieces(known: NDArray[np.bool_]) -> Iterator[slice]:
    """The stretches of two or more moments at which a value is known."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(int)))
    for start, end in edges.reshape(-1, 2).tolist():
        if end - start > 1:
            yield slice(start, end)


def _known(values: Floats) -> Floats:
    return values[np.isfinite(values)]
