"""Draw the charts of the status page: intervals of values and lifts on one axis, and lines over the last hours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import NamedTuple, TypeAlias, TypeGuard

import numpy as np

from streameval.common.arrays import Array, Mask
from streameval.common.text import UNKNOWN, counted, decimal
from streameval.ope.report import WEEKDAYS, Decision, Estimate, Profile, Report, Transition
from streameval.service.status import History

MAX_SPREADS = 3.0  # bounds farther from the values than this many spreads are cut off
FRAME_WIDTH, FRAME_HEIGHT = 1000, 200  # units of a timeline before it is stretched
CENTRAL = (5, 95)  # percentiles that must fit into a timeline; the first estimates vary widely

BoundPair: TypeAlias = tuple[float, float]  # lower and upper bound
Shown: TypeAlias = tuple[float | None, BoundPair | None]


def is_known(value: float | None) -> TypeGuard[float]:
    """Return whether a value is a finite number."""
    return value is not None and math.isfinite(value)


def between(lower: float | None, upper: float | None) -> BoundPair | None:
    """Return the bounds of an interval if both are known."""
    return (lower, upper) if is_known(lower) and is_known(upper) else None


def value_of(estimate: Estimate) -> Shown:
    """Return the value and its interval."""
    return estimate.value, between(estimate.lower, estimate.upper)


def lift_of(estimate: Estimate) -> Shown:
    """Return the lift and its interval."""
    return estimate.lift, between(estimate.lift_lower, estimate.lift_upper)


@dataclass(frozen=True)
class ChartScale:
    """Map values to a linear axis with round ticks and as many decimals as the values need."""

    low: float
    high: float
    ticks: tuple[float, ...]
    decimals: int

    @classmethod
    def over(cls, values: Sequence[float]) -> ChartScale:
        """Return the scale that shows all values, one or more, with some room above and below."""
        low, high = min(values), max(values)
        room = 0.05 * (high - low) or max(abs(high), 1.0) * 0.05
        low, high = low - room, high + room
        step = _round_step((high - low) / 4)
        first, last = math.ceil(low / step), math.floor(high / step)
        decimals = max(0, 2 - math.floor(math.log10(high - low)))
        return cls(low, high, tuple(round(tick * step, 12) for tick in range(first, last + 1)), decimals)

    @classmethod
    def from_estimates(
        cls, estimates: Iterable[Estimate], shown: Callable[[Estimate], Shown] = value_of
    ) -> ChartScale | None:
        """Return the scale of values, or of lifts and zero, with their intervals. None if none is known."""
        pairs = [(value, ends) for value, ends in map(shown, estimates) if is_known(value)]
        if not pairs:
            return None
        values = [value for value, _ in pairs] + [0.0] * (shown is lift_of)
        intervals = [ends for _, ends in pairs if ends]
        spread = max(max(values) - min(values), median([upper - lower for lower, upper in intervals] or [0.0]))
        low, high = min(values) - MAX_SPREADS * spread, max(values) + MAX_SPREADS * spread
        return cls.over([*values, *(min(max(end, low), high) for ends in intervals for end in ends)])

    def at(self, value: float) -> float:
        """Return the position of a value on the axis in per cent, clipped to its ends."""
        return round(min(max(100 * (value - self.low) / (self.high - self.low), 0.0), 100.0), 2)

    def text(self, value: float | None, signed: bool = False) -> str:
        """Return a value with the digits that this axis can distinguish."""
        return decimal(value, self.decimals, signed)

    def tick_texts(self) -> list[tuple[float, str]]:
        """Return the position and the text of each tick."""
        return [(self.at(tick), f"{tick:.10g}") for tick in self.ticks]


def _round_step(step: float) -> float:
    """Return the smallest 1, 2 or 5 times a power of ten that is not below a step."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


class ChartRow(NamedTuple):
    """Hold one policy of a chart. Positions are in per cent, None if not known."""

    estimate: Estimate
    production: bool
    verdict: str
    value: str
    interval: str
    at: float | None
    bounds: BoundPair | None


class Chart(NamedTuple):
    """Hold all policies by one estimator over one average.

    Args:
        rows: One row per policy.
        reference: Position of production's value or, for lifts, of zero.
        ticks: Position and text of each tick.
    """

    rows: tuple[ChartRow, ...]
    reference: float | None
    ticks: list[tuple[float, str]]


def make_chart(
    estimates: Sequence[Estimate],
    production: str,
    scale: ChartScale | None,
    shown: Callable[[Estimate], Shown] = value_of,
) -> Chart:
    """Return the chart of values or lifts, one estimate per policy."""
    base = next((estimate for estimate in estimates if estimate.policy == production), None)
    rows = tuple(_row(estimate, base, scale, shown) for estimate in estimates)
    if scale is None:
        return Chart(rows, None, [])
    reference = scale.at(0.0) if shown is lift_of else next((row.at for row in rows if row.production), None)
    return Chart(rows, reference, scale.tick_texts())


def _row(
    estimate: Estimate, base: Estimate | None, scale: ChartScale | None, shown: Callable[[Estimate], Shown]
) -> ChartRow:
    at = bounds = None
    text = interval = UNKNOWN
    value, ends = shown(estimate)
    if scale is not None and is_known(value):
        signed = shown is lift_of
        at, text = scale.at(value), scale.text(value, signed)
        if ends:
            bounds = (scale.at(ends[0]), scale.at(ends[1]))
            interval = f"{scale.text(ends[0], signed)} to {scale.text(ends[1], signed)}"
    return ChartRow(estimate, estimate is base, verdict(estimate, base), text, interval, at, bounds)


def verdict(estimate: Estimate, base: Estimate | None) -> str:
    """Return `better`, `worse` or `open` against production, or an empty text if not known.

    The interval of the lift decides or, without one, whether the intervals of the values are disjoint.
    """
    if base is not None and estimate.policy == base.policy:
        return ""
    if lift := between(estimate.lift_lower, estimate.lift_upper):
        return _side(lift, (0.0, 0.0))
    ends, base_ends = between(estimate.lower, estimate.upper), base and between(base.lower, base.upper)
    return _side(ends, base_ends) if ends and base_ends else ""


def _side(ends: BoundPair, base: BoundPair) -> str:
    if ends[0] > base[1]:
        return "better"
    return "worse" if ends[1] < base[0] else "open"


def memory(estimate: Estimate | None) -> str:
    """Return how many events the average looks back over, unknown for one that forgets nothing."""
    details = estimate.details if estimate else {}
    events = details.get("window_events") or details.get("horizon_events")
    return counted(events, "event") if is_known(events) else UNKNOWN


class ChartTimeline(NamedTuple):
    """Hold the picture of one policy over time.

    Args:
        lines: Points of lines in SVG, in several pieces if nothing was known between them.
        areas: Points of intervals, likewise.
        first: First value as text.
        last: Last value as text.
        lowest: Lowest value as text.
        highest: Highest value as text.
        marks: Positions in per cent at which the candidate became promotable (True), or ceased to be.
    """

    lines: list[str]
    areas: list[str]
    first: str
    last: str
    lowest: str
    highest: str
    marks: tuple[tuple[float, bool], ...] = ()


class Timelines(NamedTuple):
    """Hold all candidates on one pair of axes.

    Args:
        seconds: How far back the time axis reaches.
        ticks: Position from the top in per cent, and text, of each tick of the value axis.
        pictures: One picture per candidate.
        production: Picture of production.
        zero: Position of no lift.
        margin: Position of the margin of promotion.
    """

    seconds: float
    ticks: list[tuple[float, str]]
    pictures: list[ChartTimeline]
    production: ChartTimeline | None
    zero: float | None = None
    margin: float | None = None


def make_timelines(
    history: History,
    now: float,
    candidates: Sequence[Estimate],
    production: Estimate | None = None,
    shown: Callable[[Estimate], Shown] = value_of,
    transitions: Sequence[Transition] = (),
    margin: float | None = None,
) -> Timelines | None:
    """Return the values or lifts of the last hours up to now, or None if there is nothing to draw.

    Args:
        history: Estimates of the last hours.
        now: Epoch seconds at the end of the time axis.
        candidates: Present estimates, one per candidate.
        production: Present estimate of production, which values are compared with.
        shown: `value_of` or `lift_of`.
        transitions: Moments at which candidates became promotable, or ceased to be.
        margin: Margin of promotion, which lifts are compared with.
    """
    estimates = [*candidates, *([production] if production else [])]
    times = np.array([*(point.at for point in history.points), now])
    all_series = [_series(history, estimate, shown) for estimate in estimates]
    scale = _scale(times, all_series, *((0.0, margin or 0.0) if shown is lift_of else ()))
    if scale is None:
        return None
    across = (times - times[0]) / (times[-1] - times[0]) * FRAME_WIDTH
    pictures = [
        _timeline(across, series, scale)._replace(marks=_marks(estimate.policy, times, transitions))
        for estimate, series in zip(estimates, all_series, strict=True)
    ]
    return Timelines(
        seconds=now - times[0],
        ticks=[(100 - position, text) for position, text in scale.tick_texts()],
        pictures=pictures[: len(candidates)],
        production=pictures[-1] if production else None,
        zero=100 - scale.at(0.0) if shown is lift_of else None,
        margin=None if margin is None else 100 - scale.at(margin),
    )


def _series(history: History, estimate: Estimate, shown: Callable[[Estimate], Shown]) -> Array:
    """Return number, lower and upper bound of an estimate over time, up to now, [points + 1, 3]."""
    value, ends = shown(estimate)
    present = np.array([value, *(ends or (np.nan, np.nan))], dtype=np.float64)  # None is NaN
    label = estimate.policy, estimate.estimator, estimate.average
    return np.vstack([history.series(label, is_lift=shown is lift_of), present])


def _scale(times: Array, all_series: Sequence[Array], *further: float) -> ChartScale | None:
    """Return the scale of all series and further values, or None if there is nothing to draw."""
    columns = [column[np.isfinite(column)] for series in all_series for column in series.T]
    central = [value for column in columns if len(column) for value in np.percentile(column, CENTRAL)]
    return ChartScale.over([*central, *further]) if central and times[-1] > times[0] else None


def _marks(policy: str, times: Array, transitions: Sequence[Transition]) -> tuple[tuple[float, bool], ...]:
    """Return the transitions of a policy within these times."""
    marks = [
        (round(100 * (transition.timestamp - times[0]) / (times[-1] - times[0]), 2), transition.promotable)
        for transition in transitions
        if transition.policy == policy and transition.timestamp is not None and transition.worse is None
    ]
    return tuple((position, promotable) for position, promotable in marks if 0 <= position <= 100)


def _timeline(across: Array, series: Array, scale: ChartScale) -> ChartTimeline:
    """Return the picture of one series of value, lower and upper bound, at these positions across."""
    down = FRAME_HEIGHT * (1 - np.clip((series - scale.low) / (scale.high - scale.low), 0.0, 1.0))
    is_finite = np.isfinite(series)
    lines = [_points(across[piece], down[piece, 0]) for piece in _pieces(is_finite[:, 0])]
    areas = [
        f"{_points(across[piece], down[piece, 2])} {_points(across[piece][::-1], down[piece, 1][::-1])}"
        for piece in _pieces(is_finite[:, 1] & is_finite[:, 2])
    ]
    values = series[is_finite[:, 0], 0].tolist()
    texts = map(scale.text, (values[0], values[-1], min(values), max(values))) if values else [UNKNOWN] * 4
    return ChartTimeline(lines, areas, *texts)


class PhasePicture(NamedTuple):
    """Hold the lift of one candidate by phase.

    Args:
        decision: Its decision.
        line: Lift with its interval.
        bars: Position in the frame from the left, and height, of the traffic of each phase.
        dots: Position in per cent from the left and the top of the newest lift of each phase.
        words: Lowest and highest lift with their phases.
    """

    decision: Decision
    line: ChartTimeline
    bars: list[tuple[float, float]]
    dots: list[tuple[float, float]]
    words: str


class PhaseChart(NamedTuple):
    """Hold all candidates by one rule over one period, on one pair of axes.

    Args:
        title: What the phases are.
        width: Width of a phase in the frame.
        names: Position in per cent, and text, of some phases.
        ticks: Position from the top in per cent, and text, of each tick of the axis of lifts.
        zero: Position of no lift.
        now: Position of the present phase in the frame.
        pictures: One picture per candidate.
    """

    title: str
    width: float
    names: list[tuple[float, str]]
    ticks: list[tuple[float, str]]
    zero: float
    now: float
    pictures: list[PhasePicture]


def make_phase_charts(report: Report) -> list[PhaseChart]:
    """Return the lifts of all candidates by the phases of each period that is known, such as a day."""
    kinds: dict[tuple[float, str], list[tuple[Decision, Profile]]] = {}
    for decision in report.promotion:
        for profile in decision.profiles:
            kinds.setdefault((profile.period, decision.rule), []).append((decision, profile))
    return [_phase_chart(rows, report.confidence) for _, rows in sorted(kinds.items())]


def _phase_chart(rows: Sequence[tuple[Decision, Profile]], confidence: float) -> PhaseChart:
    profile = rows[0][1]
    names, quantile = profile.names, NormalDist().inv_cdf(0.5 + confidence / 2)
    across = (np.arange(len(names)) + 0.5) / len(names)
    columns = [[np.array(column, float) for column in (row.lift, row.error, row.latest)] for _, row in rows]
    all_series = [np.stack([lift, lift - quantile * error, lift + quantile * error], 1) for lift, error, _ in columns]
    shown = np.concatenate([[0.0], *(series.ravel() for series in all_series), *(latest for *_, latest in columns)])
    scale = ChartScale.over(shown[np.isfinite(shown)].tolist())
    pictures = []
    for (decision, row), series, (lift, _, latest) in zip(rows, all_series, columns, strict=True):
        share = np.array(row.share, float)
        tops = FRAME_HEIGHT / 3 * share / max(share.max(), 1e-9)
        least, most = (f"{scale.text(lift[at])} at {names[at]}" for at in (np.nanargmin(lift), np.nanargmax(lift)))
        pictures.append(
            PhasePicture(
                decision,
                _timeline(FRAME_WIDTH * across, series, scale),
                [(round(x, 1), round(top, 1)) for x, top in zip(FRAME_WIDTH * (across - across[0]), tops, strict=True)],
                [
                    (round(100 * x, 2), 100 - scale.at(value))
                    for x, value in zip(across.tolist(), latest.tolist(), strict=True)
                    if is_known(value)
                ],
                f"lowest {least}, highest {most}",
            )
        )
    step = 1 if len(names) <= len(WEEKDAYS) else 3
    return PhaseChart(
        title=profile.title,
        width=round(FRAME_WIDTH / len(names), 1),
        names=[(round(100 * x, 2), name) for x, name in zip(across[::step].tolist(), names[::step], strict=True)],
        ticks=[(100 - position, text) for position, text in scale.tick_texts()],
        zero=100 - scale.at(0.0),
        now=round(FRAME_WIDTH * float(across[profile.phase]), 1),
        pictures=pictures,
    )


def _points(across: Array, down: Array) -> str:
    return " ".join(f"{x:.0f},{y:.0f}" for x, y in zip(across.tolist(), down.tolist(), strict=True))


def _pieces(is_known: Mask) -> Iterator[slice]:
    """Yield the stretches of two or more points at which a value is known."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_known, [False]]).astype(int)))
    for start, end in edges.reshape(-1, 2).tolist():
        if end - start > 1:
            yield slice(start, end)
