"""Charts of the status page: values and lifts with their intervals on one axis, and lines over the last hours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, TypeAlias, TypeGuard

import numpy as np

from streameval.common.arrays import Array, Mask
from streameval.common.text import UNKNOWN, counted, decimal
from streameval.ope.report import Estimate, Transition
from streameval.service.status import History

FARTHEST = 3.0  # bounds farther out than this many spreads of the values are cut off at the edge of the chart
FRAME_WIDTH, FRAME_HEIGHT = 1000, 200  # units of the frame of a timeline, which is stretched to its place on the page
CENTRAL = (5, 95)  # per cent of the bounds that must fit into a timeline; the first estimates vary widely

BoundPair: TypeAlias = tuple[float, float]  # lower and upper bound
Shown: TypeAlias = tuple[float | None, BoundPair | None]


def is_known(value: float | None) -> TypeGuard[float]:
    """Whether there is a finite number."""
    return value is not None and math.isfinite(value)


def between(lower: float | None, upper: float | None) -> BoundPair | None:
    """The bounds of an interval when both are known."""
    return (lower, upper) if is_known(lower) and is_known(upper) else None


def value_of(each: Estimate) -> Shown:
    """The value and its interval."""
    return each.value, between(each.lower, each.upper)


def lift_of(each: Estimate) -> Shown:
    """The lift and its interval."""
    return each.lift, between(each.lift_lower, each.lift_upper)


@dataclass(frozen=True)
class ChartScale:
    """A linear axis from `low` to `high` with round `ticks` and as many `decimals` as its values need."""

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
    def of(cls, estimates: Iterable[Estimate], shown: Callable[[Estimate], Shown] = value_of) -> ChartScale | None:
        """The scale of the values, or of the lifts and zero, with their intervals; None while none is known."""
        known = [(value, ends) for value, ends in map(shown, estimates) if is_known(value)]
        if not known:
            return None
        values = [value for value, _ in known] + [0.0] * (shown is lift_of)
        intervals = [ends for _, ends in known if ends]
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


class ChartRow(NamedTuple):
    """One policy in a chart; places in per cent, None where nothing is known."""

    estimate: Estimate
    production: bool
    verdict: str
    value: str
    interval: str
    at: float | None
    bounds: BoundPair | None


class Chart(NamedTuple):
    """All policies by one estimator over one average; `reference` is the place of production's value, or of no lift."""

    rows: tuple[ChartRow, ...]
    reference: float | None
    ticks: list[tuple[float, str]]


def make_chart(
    estimates: Sequence[Estimate],
    production: str,
    scale: ChartScale | None,
    shown: Callable[[Estimate], Shown] = value_of,
) -> Chart:
    """The chart of the values or lifts of `estimates`, one per policy, on `scale`."""
    base = next((each for each in estimates if each.policy == production), None)
    rows = tuple(_row(each, base, scale, shown) for each in estimates)
    if scale is None:
        return Chart(rows, None, [])
    reference = scale.at(0.0) if shown is lift_of else next((row.at for row in rows if row.production), None)
    return Chart(rows, reference, scale.tick_texts())


def _row(
    each: Estimate, base: Estimate | None, scale: ChartScale | None, shown: Callable[[Estimate], Shown]
) -> ChartRow:
    at = bounds = None
    text = interval = UNKNOWN
    value, ends = shown(each)
    if scale is not None and is_known(value):
        signed = shown is lift_of
        at, text = scale.at(value), scale.text(value, signed)
        if ends:
            bounds = (scale.at(ends[0]), scale.at(ends[1]))
            interval = f"{scale.text(ends[0], signed)} to {scale.text(ends[1], signed)}"
    return ChartRow(each, each is base, verdict(each, base), text, interval, at, bounds)


def verdict(each: Estimate, base: Estimate | None) -> str:
    """`better`, `worse` or `open` against production, by the lift's interval or disjoint ones; empty if not known."""
    if base is not None and each.policy == base.policy:
        return ""
    if lift := between(each.lift_lower, each.lift_upper):
        return _side(lift, (0.0, 0.0))
    ends, base_ends = between(each.lower, each.upper), base and between(base.lower, base.upper)
    return _side(ends, base_ends) if ends and base_ends else ""


def _side(ends: BoundPair, base: BoundPair) -> str:
    if ends[0] > base[1]:
        return "better"
    return "worse" if ends[1] < base[0] else "open"


def memory(each: Estimate | None) -> str:
    """How many events the average looks back over; unknown for one that forgets nothing."""
    details = each.details if each else {}
    events = details.get("window_events") or details.get("horizon_events")
    return counted(events, "event") if is_known(events) else UNKNOWN


class ChartTimeline(NamedTuple):
    """One policy: points of lines and intervals in SVG, in pieces where nothing was known between.

    `first` and `last` are the first and last values, `lowest` and `highest` the extremes, as text. `marks`: places in
    per cent at which the candidate became promotable, and ceased to be.
    """

    lines: list[str]
    areas: list[str]
    first: str
    last: str
    lowest: str
    highest: str
    marks: tuple[tuple[float, bool], ...] = ()


class Timelines(NamedTuple):
    """All candidates on the same axes, which reach `seconds` back; `ticks` are the labels of the value axis.

    `zero`, `margin`: the places of no lift and of the margin of promotion, in per cent from the top.
    """

    seconds: float
    ticks: list[tuple[float, str]]
    pictures: list[ChartTimeline]
    production: ChartTimeline | None
    zero: float | None = None
    margin: float | None = None


def make_timelines(
    history: History, now: float, candidates: Sequence[Estimate], production: Estimate | None
) -> Timelines | None:
    """The last hours of `candidates` up to this moment; None while there is nothing to draw."""
    at = np.array([*(point.at for point in history.points), now])
    all_series = [_series(history, each) for each in (*candidates, *([production] if production else []))]
    columns = [column[np.isfinite(column)] for series in all_series for column in series.T]
    shown = [value for column in columns if len(column) for value in np.percentile(column, CENTRAL)]
    if not shown or now <= at[0]:
        return None
    scale = ChartScale.over(shown)
    pictures = [_timeline(at, series, scale) for series in all_series]
    ticks = [(100 - place, text) for place, text in scale.tick_texts()]
    return Timelines(now - at[0], ticks, pictures[: len(candidates)], pictures[-1] if production else None)


def make_lift_timelines(
    history: History,
    now: float,
    candidates: Sequence[Estimate],
    transitions: Sequence[Transition],
    margin: float | None = None,
) -> Timelines | None:
    """The lifts of the last hours, the margin and the moments of promotion; None while there is nothing to draw."""
    at = np.array([*(point.at for point in history.points), now])
    all_series = [_series(history, each, of_lift=True) for each in candidates]
    columns = [column[np.isfinite(column)] for series in all_series for column in series.T]
    shown = [value for column in columns if len(column) for value in np.percentile(column, CENTRAL)]
    if not shown or now <= at[0]:
        return None
    scale = ChartScale.over([*shown, 0.0, margin or 0.0])
    pictures = [
        _timeline(at, series, scale)._replace(marks=_marks(each.policy, at, transitions))
        for each, series in zip(candidates, all_series, strict=True)
    ]
    ticks = [(100 - place, text) for place, text in scale.tick_texts()]
    return Timelines(
        now - at[0], ticks, pictures, None, 100 - scale.at(0.0), None if margin is None else 100 - scale.at(margin)
    )


def _marks(policy: str, at: Array, transitions: Sequence[Transition]) -> tuple[tuple[float, bool], ...]:
    """The transitions of a policy within these moments."""
    own = [each for each in transitions if each.policy == policy and each.timestamp is not None]
    places = [(round(100 * ((each.timestamp or 0.0) - at[0]) / (at[-1] - at[0]), 2), each.promotable) for each in own]
    return tuple((place, promotable) for place, promotable in places if 0 <= place <= 100)


def _series(history: History, each: Estimate, of_lift: bool = False) -> Array:
    """The history of an estimate, with the present at the end: number, lower and upper bound, [points + 1, 3]."""
    value, ends = (lift_of if of_lift else value_of)(each)
    present = np.array([value, *(ends or (np.nan, np.nan))], dtype=np.float64)  # None is NaN
    return np.vstack([history.series((each.policy, each.estimator, each.average), of_lift), present])


def _timeline(at: Array, series: Array, scale: ChartScale) -> ChartTimeline:
    """The picture of one series of value, lower and upper bound at these moments."""
    across = (at - at[0]) / (at[-1] - at[0]) * FRAME_WIDTH
    down = FRAME_HEIGHT * (1 - np.clip((series - scale.low) / (scale.high - scale.low), 0.0, 1.0))
    is_finite = np.isfinite(series)
    lines = [_points(across[piece], down[piece, 0]) for piece in _pieces(is_finite[:, 0])]
    areas = [
        f"{_points(across[piece], down[piece, 2])} {_points(across[piece][::-1], down[piece, 1][::-1])}"
        for piece in _pieces(is_finite[:, 1] & is_finite[:, 2])
    ]
    known = series[is_finite[:, 0], 0].tolist()
    texts = map(scale.text, (known[0], known[-1], min(known), max(known))) if known else [UNKNOWN] * 4
    return ChartTimeline(lines, areas, *texts)


def _points(across: Array, down: Array) -> str:
    return " ".join(f"{x:.0f},{y:.0f}" for x, y in zip(across.tolist(), down.tolist(), strict=True))


def _pieces(known: Mask) -> Iterator[slice]:
    """The stretches of two or more moments at which a value is known."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(int)))
    for start, end in edges.reshape(-1, 2).tolist():
        if end - start > 1:
            yield slice(start, end)
