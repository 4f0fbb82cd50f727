"""The plot of `replay --plot`: the value of each policy over time, with its interval as a shaded area.

Also what other plots share: the Reports along a replay, colours, axes and labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from streameval.common.text import counted, decimal, decimals_for
from streameval.errors import InputError
from streameval.events import EventBatch
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7a4fa3", "#8b5a2b")
"""After Okabe and Ito: distinct for colour-blind readers, and legible on white."""
PRODUCTION = "#333333"
INK, FAINT, GRID = "#222222", "#6f6f6f", "#e6e6e6"
MARGIN, LEFT = 0.025, 0.08
"""Left edges of the text and of the axis, as shares of the width."""
ENDINGS = (".png", ".svg", ".pdf")
LABEL_GAP = 0.052
"""Smallest distance between two labels, as a share of the height."""
SETTLED = 0.15
"""Share of the first Reports that do not set the scale: their intervals are wide."""


@dataclass(frozen=True)
class Curve:
    """Values and intervals of one policy over time; NaN where unknown."""

    policy: str
    values: Floats
    lower: Floats
    upper: Floats


@dataclass
class Trace:
    """Between `points` and `2 * points` Reports of a stream of unknown length, evenly spaced.

    The first ones are `every` events apart. When the trace is full, it drops every second one.
    """

    points: int = 200
    every: int = 50
    reports: list[Report] = field(default_factory=list)
    taken: int = 0

    def update(self, evaluator: Evaluator, batch: EventBatch) -> None:
        """Give a batch to the evaluator, split where a Report is due."""
        while len(batch) >= (missing := self.every - self.taken % self.every):
            self._give(evaluator, batch[:missing])
            self._keep(evaluator.report())
            batch = batch[missing:]
        self._give(evaluator, batch)

    def finish(self, evaluator: Evaluator) -> Report:
        """The Report at the end of the stream, which is always kept."""
        report = evaluator.report()
        if self.taken % self.every:
            self.reports.append(report)
        return report

    def _give(self, evaluator: Evaluator, batch: EventBatch) -> None:
        evaluator.update(batch)
        self.taken += len(batch)

    def _keep(self, report: Report) -> None:
        self.reports.append(report)
        if len(self.reports) >= 2 * self.points:
            self.every *= 2
            self.reports = self.reports[1::2]

    def curves(self, estimator: str, average: str, names: Sequence[str] = ("value", "lower", "upper")) -> list[Curve]:
        """One curve per policy, production first; `names`: which numbers of the estimates it shows."""
        wanted = (estimator, average)
        rows = [
            {each.policy: each for each in report.estimates if (each.estimator, each.average) == wanted}
            for report in self.reports
        ]
        return [
            Curve(policy, *(np.array([getattr(row.get(policy), name, None) for row in rows], float) for name in names))
            for policy in dict.fromkeys(policy for row in reversed(rows) for policy in row)
        ]

    @property
    def counts(self) -> Floats:
        """The number of events in each Report."""
        return np.array([report.events.accepted for report in self.reports], dtype=np.float64)

    @property
    def is_timed(self) -> bool:
        """Whether the x axis shows event time, not the number of events."""
        times = [report.events.last_timestamp for report in self.reports]
        return None not in times and times[0] != times[-1]

    @property
    def moments(self) -> Floats:
        """The positions of the Reports on the x axis: days since 1970, or numbers of events."""
        if not self.is_timed:
            return self.counts
        return np.array([report.events.last_timestamp for report in self.reports], dtype=np.float64) / 86_400

    def at(self, events: Sequence[float]) -> Floats:
        """The position after `events` events, interpolated between the Reports."""
        return np.asarray(np.interp(events, self.counts, self.moments))


class Truth(NamedTuple):
    """The true value of one policy by number of events, known in simulations."""

    events: Floats
    values: Floats

    def after(self, events: Floats) -> Floats:
        """The true value after this number of events."""
        return np.asarray(np.interp(events, self.events, self.values))


@dataclass(frozen=True)
class Picture:
    """A plot with one line per policy, production in dark grey, true values (if known) dashed.

    `path`: its suffix selects PNG, SVG or PDF. `choices`: pairs of an estimator and an average; the first one that is
    in the Reports is drawn.
    """

    path: Path
    choices: Sequence[tuple[str, str]]
    title: str
    truth: Mapping[str, Truth] = field(default_factory=dict)

    def check(self) -> None:
        """InputError if the plot could not be drawn; called before the files are read."""
        check_path(self.path)

    def draw(self, trace: Trace) -> None:
        """Write the plot; InputError if the trace has fewer than two Reports or the file cannot be written."""
        require_points(trace)
        estimator, average = self.choice(trace.reports[-1])
        figure = figure_class()(figsize=(9.6, 5.2), dpi=160, facecolor="white")
        curves = trace.curves(estimator, average)
        axes = _axes(figure, longest=max(len(curve.policy) for curve in curves))
        label_moments(trace, axes)
        colours = _colours(curves)
        for curve in curves:
            _line(axes, trace.moments, curve, colours[curve.policy], production=curve is curves[0])
        _scale(axes, curves)
        for policy in self.truth.keys() & colours.keys():
            dash_truth(axes, trace, self.truth[policy].after(trace.counts), colours[policy])
        _label_ends(axes, curves, colours)
        _describe(figure, trace, self, f"{estimator} on {average}")
        save(figure, self.path)

    def choice(self, report: Report) -> tuple[str, str]:
        """The estimator and the average to draw; InputError if the Report has none of the choices."""
        there = {(estimate.estimator, estimate.average) for estimate in report.estimates}
        thin = report.thin() if len(self.choices) > 1 else frozenset()
        for choice in sorted(self.choices, key=lambda pair: pair in thin):  # the sort is stable
            if choice in there:
                return choice
        (estimator, average), *_ = self.choices
        held = ", ".join(sorted(f"{one} on {other}" for one, other in there))
        raise InputError(f"there are no estimates by {estimator} on {average}", hint=f"choose one of {held}")


def read_truth(path: Path) -> dict[str, Truth]:
    """True values by policy from lines such as `{"events": 100, "truth": {"logging": 0.2}}`; InputError for others."""
    try:
        moments = msgspec.json.decode(b"[" + b",".join(path.read_bytes().splitlines()) + b"]", type=list[_Moment])
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(
            f"the truth {path} cannot be read: {error}", hint="write it with `simulate --truth`"
        ) from error
    events = np.array([moment.events for moment in moments], dtype=np.float64)
    policies = moments[0].truth if moments else ()
    return {policy: Truth(events, np.array([moment.truth[policy] for moment in moments])) for policy in policies}


class _Moment(msgspec.Struct):
    events: int
    truth: dict[str, float]


def check_path(path: Path) -> None:
    """InputError if no plot can be written there, or if matplotlib is not installed."""
    figure_class()
    if path.suffix not in ENDINGS:
        raise InputError(f"the plot {path} ends in none of {', '.join(ENDINGS)}", hint="name it e.g. plot.png")
    if not path.absolute().parent.is_dir():
        raise InputError(f"the directory {path.parent} does not exist", hint=f"mkdir -p {path.parent}")


def require_points(trace: Trace) -> None:
    """InputError if the trace has fewer than two Reports."""
    if len(trace.reports) < 2:
        raise InputError(
            f"there is no line to draw: {counted(trace.taken, 'event')}, and a point every {trace.every}",
            hint="replay more events, or leave out --plot",
        )


def figure_class() -> type[Figure]:
    """The Figure of matplotlib; InputError if it is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            "a plot needs matplotlib, which is not installed", hint="pip install 'streameval[plot]'"
        ) from error
    return Figure


def _axes(figure: Figure, longest: int) -> Axes:
    labels = min(0.0085 * (longest + 9), 0.4)
    axes = figure.add_axes((LEFT, 0.115, 0.97 - LEFT - labels, 0.675))
    make_plain(axes, "y", pad=6)
    axes.margins(x=0)
    return axes


def make_plain(axes: Axes, grid: Literal["both", "x", "y"] = "both", pad: float = 5) -> None:
    """The style of all plots: a line below, a faint grid, labels `pad` points from the axes."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.grid(axis=grid, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=FAINT, labelsize=9, length=0, pad=pad)


def label_moments(trace: Trace, axes: Axes) -> None:
    """Label the x axis with event time or with numbers of events."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.ticker import FuncFormatter

    if trace.is_timed:
        locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))
    axes.set_xlabel("event time (UTC)" if trace.is_timed else "events", color=FAINT, fontsize=9, loc="left")


def dash_truth(axes: Axes, trace: Trace, values: Floats, colour: str) -> None:
    """A dashed line of true values."""
    axes.plot(trace.moments, values, color=colour, linewidth=1.1, linestyle=(0, (4, 2.5)), zorder=5)


def _colours(curves: Sequence[Curve]) -> dict[str, str]:
    candidates = [curve.policy for curve in curves[1:]]
    shades = {policy: COLOURS[index % len(COLOURS)] for index, policy in enumerate(candidates)}
    return {curves[0].policy: PRODUCTION, **shades}


def _line(axes: Axes, moments: Floats, curve: Curve, colour: str, *, production: bool) -> None:
    axes.fill_between(moments, curve.lower, curve.upper, color=colour, alpha=0.13, linewidth=0)
    width, order = (2.6, 4) if production else (1.7, 3)
    axes.plot(moments, curve.values, color=colour, linewidth=width, zorder=order, solid_capstyle="round")


def _scale(axes: Axes, curves: Sequence[Curve]) -> None:
    """Fit the axis to lines and intervals after the start, whose wide intervals would flatten the rest."""
    ends = settled(curves)
    if not len(ends):
        return
    low, high = np.quantile(ends, (0.005, 0.995))
    room = 0.06 * (high - low) or 0.5
    axes.set_ylim(0.0 if 0.0 <= low < room else low - room, high + room)


def settled(curves: Sequence[Curve]) -> Floats:
    """All known values and bounds after the start."""
    columns = [column for curve in curves for column in (curve.values, curve.lower, curve.upper)]
    ends: Floats = np.concatenate([column[int(len(column) * SETTLED) :] for column in columns])
    return np.asarray(ends[np.isfinite(ends)])


def _label_ends(axes: Axes, curves: Sequence[Curve], colours: Mapping[str, str]) -> None:
    decimals = decimals_for(curve.values[-1] for curve in curves)
    low, high = axes.get_ylim()
    label_ends(
        axes,
        [
            EndLabel(
                f"{curve.policy}  {decimal(curve.values[-1], decimals)}",
                (curve.values[-1] - low) / (high - low),
                colours[curve.policy],
                "bold" if curve is curves[0] else "normal",
            )
            for curve in curves
            if math.isfinite(curve.values[-1])
        ],
    )


class EndLabel(NamedTuple):
    """The label of a line that ends at `height`, a share of the height of the axes."""

    text: str
    height: float
    colour: str
    weight: str = "normal"


def label_ends(axes: Axes, labels: Sequence[EndLabel]) -> None:
    """Write labels beside the ends of their lines, moved apart where they would overlap."""
    labels = sorted(labels, key=lambda label: label.height)
    for label, place in zip(labels, apart([label.height for label in labels]), strict=True):
        axes.annotate(
            label.text,
            xy=(1.0, label.height),
            xytext=(1.022, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=label.colour,
            fontsize=10,
            fontweight=label.weight,
            verticalalignment="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": label.colour, "linewidth": 0.7, "shrinkA": 2, "shrinkB": 0},
        )


def apart(heights: Sequence[float]) -> list[float]:
    """Rising heights, moved as little as needed to lie `LABEL_GAP` apart: an isotonic regression.

    >>> [round(height, 3) for height in apart([0.1, 0.5, 0.5])]
    [0.1, 0.474, 0.526]
    """
    count = len(heights)
    sums = np.append(0.0, np.cumsum([height - place * LABEL_GAP for place, height in enumerate(heights)]))

    def mean(first: int, last: int) -> float:
        return float(sums[last + 1] - sums[first]) / (last + 1 - first)

    fitted = [
        max(min(mean(first, last) for last in range(place, count)) for first in range(place + 1))
        for place in range(count)
    ]
    return [height + place * LABEL_GAP for place, height in enumerate(fitted)]


def _describe(figure: Figure, trace: Trace, picture: Picture, drawn: str) -> None:
    report = trace.reports[-1]
    parts = [drawn, f"shaded: {report.confidence * 100:g}% intervals"]
    parts += ["dashed: true values"] if picture.truth else []
    parts.append(f"{counted(report.events.accepted, 'event')}, production: {report.production}")
    figure.text(MARGIN, 0.955, picture.title, fontsize=14, fontweight="bold", color=INK, verticalalignment="top")
    figure.text(MARGIN, 0.893, "  ·  ".join(parts), fontsize=9.5, color=FAINT, verticalalignment="top")
    figure.text(MARGIN, 0.815, "reward per event", fontsize=9, color=FAINT)


def save(figure: Figure, path: Path) -> None:
    """Write the plot; InputError if that fails."""
    try:
        figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)
    except OSError as error:
        raise InputError(f"the plot {path} cannot be written: {error.strerror}", hint="choose another place") from error
