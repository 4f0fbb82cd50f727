"""Draw the figures of `replay` and `plan`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC
from itertools import chain, cycle
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from streameval.cli.trace import Quantity, Trace
from streameval.common.arrays import Array
from streameval.common.text import counted, decimal, decimals_for
from streameval.errors import InputError, missing_package
from streameval.ope.power import PowerReport, smallest_lift
from streameval.ope.report import Decision, Profile, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7a4fa3", "#8b5a2b")
"""After Okabe and Ito: distinct for colour-blind readers, and legible on white."""
PRODUCTION = "#333333"
INK, FAINT, GRID, TRACK = "#222222", "#6f6f6f", "#e6e6e6", "#f0f0f0"
HEIGHT, TEXT_HEIGHT, LIFT_HEIGHT, STRIP_HEIGHT, PHASES_HEIGHT = 5.2, 1.3, 2.2, 0.25, 2.2
"""Inches: a figure, its texts, the panel of lifts, the strip of one candidate and rule, the panel of phases."""
SUFFIXES = (".png", ".svg", ".pdf")
LEAST_PERIODS = 2
"""Smallest number of the shortest periods for drawing lifts by phase. With one, each lift is a single bucket."""
UNSETTLED_SHARE = 0.15
"""Share of the first points that do not set the scale: their intervals are wide."""


@dataclass(frozen=True)
class Curve:
    """Hold what a panel shows of one policy.

    Args:
        policy: its name
        colour: its colour
        estimate: a value or a lift with its bounds [3, points]
        truth: true values [points], None if unknown
        label: its entry in the legend
    """

    policy: str
    colour: str
    estimate: Array
    truth: Array | None
    label: str | None = None


@dataclass(frozen=True)
class ReplayPlot:
    """Draw the values and lifts of policies over time, and when promotion rules would have promoted.

    Args:
        choices: pairs of an estimator and an average, of which the first one in the Report is drawn
        title: the title
        truth: true values as `read_truth` returns them, drawn as dashed lines
        margin: what a lift must exceed, or None without promotion
        by_rule: also draw a strip for each candidate and rule
    """

    choices: Sequence[tuple[str, str]]
    title: str
    truth: Mapping[str, Array] = field(default_factory=dict)
    margin: float | None = None
    by_rule: bool = False

    def figure(self, trace: Trace) -> Figure:
        """Return the figure.

        Raises:
            InputError: The trace has fewer than two points.
        """
        report = trace.last
        if report is None or len(trace.kept) < 2:
            raise InputError(
                f"nothing to plot: {counted(trace.taken, 'event')}, but a plot has one point per {trace.every}",
                hint="replay more events, or leave out --plot",
            )
        return self._figure(trace, report, *self.choice(report))

    def choice(self, report: Report) -> tuple[str, str]:
        """Return the estimator and the average to draw.

        Raises:
            InputError: The Report has none of the choices.
        """
        pairs = {(row.estimator, row.average) for row in report.estimates}
        thin = report.thin() if len(self.choices) > 1 else frozenset()
        for choice in sorted(self.choices, key=lambda pair: pair in thin):  # the sort is stable
            if choice in pairs:
                return choice
        (estimator, average), *_ = self.choices
        available = ", ".join(sorted(f"{one} on {other}" for one, other in pairs))
        raise InputError(f"there are no estimates by {estimator} on {average}", hint=f"choose one of {available}")

    def _curves(self, trace: Trace, report: Report, pair: tuple[str, str], quantity: Quantity) -> list[Curve]:
        """Return the curves of policies with such an estimate, production first."""
        truth = {policy: np.interp(trace.counts, *values) for policy, values in self.truth.items()}
        if quantity == "lift":
            production = truth.get(report.production)
            truth = {} if production is None else {policy: values - production for policy, values in truth.items()}
        curves = trace.curves(*pair, quantity).items()
        return [
            Curve(policy, colour, estimate, truth.get(policy))
            for (policy, estimate), colour in zip(curves, chain([PRODUCTION], cycle(COLOURS)), strict=False)
            if quantity == "value" or np.isfinite(estimate[0]).any()
        ]

    def _figure(self, trace: Trace, report: Report, estimator: str, average: str) -> Figure:
        """Draw values, lifts with the margin and marks of the first rule, strips of decisions, and lifts by phase."""
        pair = estimator, average
        values, lifts = self._curves(trace, report, pair, "value"), self._curves(trace, report, pair, "lift")
        colours = {curve.policy: curve.colour for curve in lifts}
        rules = [row.rule for row in report.promotion[:1]] if lifts else []
        candidates = list(dict.fromkeys(row.policy for row in report.promotion))
        shown = set(candidates[: len(COLOURS)])
        strips = [row for row in report.promotion if row.policy in shown] if self.by_rule else []
        captions = [f"{estimator} on {average}", f"shaded: {report.confidence * 100:g}% intervals"]
        captions += ["dashed: true values"] if self.truth else []
        captions += [f"▲ promotable, ▽ no longer (rule {rule})" for rule in rules]
        left_out = f", {counted(len(candidates) - len(shown), 'candidate')} left out" * (len(candidates) > len(shown))
        captions += [f"strips: promotable{left_out}"] if strips else []
        captions += [f"{counted(report.events.accepted, 'event')}, production: {report.production}"]
        heights = [HEIGHT - TEXT_HEIGHT, *([LIFT_HEIGHT] if lifts else [])]
        heights += [STRIP_HEIGHT * len(strips)] if strips else []
        profiles = _profiles(report)
        phase_heights = [PHASES_HEIGHT] if profiles and lifts else []
        captions += ["circles: the newest period, bars: traffic"] if phase_heights else []
        heights += phase_heights
        figure = new_figure(self.title, *captions, height=TEXT_HEIGHT + sum(heights))
        grid = figure.add_gridspec(len(heights), 1, height_ratios=heights)
        panels = [figure.add_subplot(grid[index]) for index in range(len(heights) - len(phase_heights))]
        for panel in panels[:-1]:
            panel.sharex(panels[-1])
            panel.tick_params(labelbottom=False)
        _panel(panels[0], trace, _legend_order(values))
        _subtitle(panels[0], "reward per event")
        if lifts:
            _panel(panels[1], trace, lifts, *([] if self.margin is None else [self.margin]))
            for curve in lifts:
                for rule in rules:
                    _marks(panels[1], trace, curve, rule)
            margin = "" if self.margin is None else f", line: margin {self.margin:g}"
            _subtitle(panels[1], f"lift over {report.production}{margin}")
        if strips:
            _strips(panels[-1], trace, strips, report.events.accepted, colours)
        _moments_axis(panels[-1], trace)
        if phase_heights:
            widths = [len(rows[0][1].lift) ** 0.5 for rows in profiles]
            parts = grid[-1].subgridspec(1, len(profiles), width_ratios=widths)
            for index, rows in enumerate(profiles):
                _phases_panel(figure.add_subplot(parts[index]), rows, report, colours)
        figure.legend(loc="outside right center", frameon=False, labelcolor="linecolor", fontsize=10)
        return figure


def _legend_order(curves: Sequence[Curve]) -> list[Curve]:
    """Label curves with their last values, the largest first."""
    last = {curve.policy: float(curve.estimate[0, -1]) for curve in curves}
    decimals = decimals_for(last.values())
    return [
        replace(curve, label=f"{curve.policy}  {decimal(last[curve.policy], decimals)}")
        for curve in sorted(curves, key=lambda curve: -np.nan_to_num(last[curve.policy], nan=-np.inf))
    ]


def _panel(axes: Axes, trace: Trace, curves: Sequence[Curve], *levels: float) -> None:
    """Draw curves with their intervals and true values, and lines at levels."""
    for level in levels:
        axes.axhline(level, color=INK, linewidth=0.9, zorder=2)
    moments = trace.moments
    for curve in curves:
        value, lower, upper = curve.estimate
        width, order = (2.6, 4) if curve.colour == PRODUCTION else (1.7, 3)
        axes.fill_between(moments, lower, upper, color=curve.colour, alpha=0.16, linewidth=0)
        options: dict[str, Any] = {"linewidth": width, "zorder": order, "solid_capstyle": "round"}
        axes.plot(moments, value, color=curve.colour, label=curve.label, **options)
    for curve in curves:
        if curve.truth is not None:
            dashes = (0, (4, 2.5))
            axes.plot(moments, curve.truth, color=curve.colour, linewidth=1.1, linestyle=dashes, zorder=5)
    _fit(axes, [curve.estimate for curve in curves], levels)
    style(axes, "y")


def _marks(axes: Axes, trace: Trace, curve: Curve, rule: str) -> None:
    """Mark on a lift when its candidate became promotable and, before the end, ceased to be."""
    end = trace.moments[-1]
    for start, length in trace.promotable(curve.policy, rule):
        for moment, mark, fill in ((start, "^", curve.colour), (start + length, "v", "white")):
            if moment < end:
                height = np.interp(moment, trace.moments, curve.estimate[0])
                axes.plot([moment], [height], mark, color=curve.colour, markerfacecolor=fill, markersize=9, zorder=6)


def _strips(axes: Axes, trace: Trace, decisions: Sequence[Decision], accepted: int, colours: Mapping[str, str]) -> None:
    """Draw one strip per candidate and rule, dark while promotable, with the share of events while it was."""
    first, *_, last = trace.moments
    for index, row in enumerate(decisions):
        colour = colours.get(row.policy, FAINT)
        spans = list(trace.promotable(row.policy, row.rule))
        axes.broken_barh([(first, last - first)], (index - 0.33, 0.66), color=TRACK, linewidth=0)
        axes.broken_barh(spans, (index - 0.33, 0.66), color=colour, linewidth=0)
        share = f"{row.promotable_events / max(1, accepted):.0%} of events" if spans else "never"
        options: dict[str, Any] = {"va": "center", "fontsize": 9, "color": colour if spans else FAINT}
        axes.text(1.01, index, share, transform=axes.get_yaxis_transform(), **options)
    axes.set_ylim(len(decisions) - 0.5, -0.5)
    axes.set_yticks(range(len(decisions)), [f"{row.policy}: {row.rule}" for row in decisions])
    axes.spines[:].set_visible(False)
    axes.tick_params(colors=FAINT, labelsize=8.5, length=0)


def _profiles(report: Report) -> list[list[tuple[str, Profile]]]:
    """Return the policies and profiles of each period that can be drawn, the shorter period first."""
    periods: dict[float, list[tuple[str, Profile]]] = {}
    for decision in report.promotion:
        if decision.profiles and decision.profiles[0].periods >= LEAST_PERIODS:
            for profile in decision.profiles:
                periods.setdefault(profile.period, []).append((decision.policy, profile))
    return list(periods.values())


def _phases_panel(axes: Axes, rows: Sequence[tuple[str, Profile]], report: Report, colours: Mapping[str, str]) -> None:
    """Draw lifts by phase with their intervals, the newest lifts as circles, and the traffic as bars."""
    _, profile = rows[0]
    names, quantile = profile.names, NormalDist().inv_cdf(0.5 + report.confidence / 2)
    phases = np.arange(len(names))
    share = np.array(profile.share, float)
    axes.bar(phases, share / share.max() / 3, width=0.9, color=GRID, transform=axes.get_xaxis_transform())
    axes.axhline(0.0, color=INK, linewidth=0.9, zorder=2)
    for policy, row in rows:
        colour = colours.get(policy, FAINT)
        lift, error, latest = (np.array(column, float) for column in (row.lift, row.error, row.latest))
        half = quantile * error
        axes.fill_between(phases, lift - half, lift + half, color=colour, alpha=0.16, linewidth=0)
        axes.plot(phases, lift, color=colour, linewidth=1.7, zorder=3)
        axes.plot(phases, latest, "o", color=colour, markerfacecolor="white", markersize=4, zorder=4)
    style(axes, "y")
    step = -(-len(names) // 8)
    axes.set_xticks(phases[::step], names[::step])
    axes.set_xlim(-0.5, len(names) - 0.5)
    _subtitle(axes, f"lift by {profile.title}")


def power_figure(report: PowerReport, title: str) -> Figure:
    """Draw the detectable lift of each candidate against the number of events.

    Raises:
        InputError: No candidate has a detectable lift.
    """
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    candidates = [row for row in report.candidates if row.reason is None]
    candidates.sort(key=lambda row: -(row.detectable or 0.0))
    if not candidates:
        raise InputError("nothing to plot: no candidate has a forecast", hint="leave out --plot")
    rate = report.events_per_second
    captions = [
        ", ".join(dict.fromkeys(row.estimator for row in candidates if row.estimator)),
        f"detected at {report.confidence * 100:g}% confidence with {report.power * 100:g}% power",
        *([] if rate is None else [f"{counted(rate, 'event', '.3g')} per second"]),
        f"dots: the {counted(report.events, 'event')} of the log",
    ]
    figure = new_figure(title, *captions)
    axes = figure.add_subplot(xscale="log", yscale="log")
    counts = [row.events for row in candidates] + [need.events for row in candidates for need in row.needed]
    events = np.geomspace(max(10.0, min(counts) / 3), max(counts) * 3, 60)
    for row, colour in zip(candidates, cycle(COLOURS), strict=False):
        noise = row.deviation or 0.0, row.design_effect or 1.0
        lifts = [smallest_lift(*noise, count, report.confidence, report.power) for count in events]
        axes.plot(events, lifts, color=colour, linewidth=2.0, zorder=3, label=row.policy)
        axes.plot([row.events], [row.detectable or 0.0], "o", color=colour, markersize=7, zorder=4)
    for lift in report.lifts:
        axes.axhline(lift, color=FAINT, linewidth=0.8, linestyle=(0, (2, 3)), zorder=2)
        transform, name = axes.get_yaxis_transform(), lift_name(lift, report.value)
        axes.text(0.995, lift, name, transform=transform, ha="right", va="bottom", color=FAINT)
    axes.set_xlim(events[0], events[-1])
    style(axes)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_formatter(lambda lift, _: f"{lift:g}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("events", color=FAINT, fontsize=9, loc="left")
    _subtitle(axes, f"detectable lift over {report.production}")
    figure.legend(loc="outside right center", frameon=False, labelcolor="linecolor", fontsize=10)
    return figure


def lift_name(lift: float, value: float | None) -> str:
    """Name a lift, with its ratio to the value of production.

    >>> lift_name(0.002, 0.04), lift_name(0.01, None)
    ('0.002 (+5%)', '0.01')
    """
    return f"{lift:.3g}" + (f" (+{100 * lift / value:.2g}%)" if value is not None and value > 0 else "")


def new_figure(title: str, *captions: str, height: float = HEIGHT) -> Figure:
    """Create a figure with its title above and its captions below.

    Raises:
        InputError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise missing_package("a plot", "matplotlib", "plot") from error
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)  # inches
    figure = Figure(figsize=(9.6, height), dpi=160, facecolor="white", layout=layout)
    figure.suptitle(title, x=0.02, ha="left", fontsize=14, fontweight="bold", color=INK)
    text = textwrap.fill("  ·  ".join(captions), 140, replace_whitespace=False)
    figure.supxlabel(text, x=0.02, ha="left", fontsize=9.5, color=FAINT)
    return figure


def check_path(path: Path) -> None:
    """Check, before files are read, that a figure can be written to this path.

    Raises:
        InputError: No figure can be written there, or matplotlib is not installed.
    """
    new_figure("")
    if path.suffix not in SUFFIXES:
        raise InputError(f"the plot {path} ends in none of {', '.join(SUFFIXES)}", hint="name it e.g. plot.png")
    if not path.absolute().parent.is_dir():
        raise InputError(f"the directory {path.parent} does not exist", hint=f"mkdir -p {path.parent}")


def save(figure: Figure, path: Path) -> None:
    """Write a figure.

    Raises:
        InputError: Writing fails.
    """
    try:
        figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)
    except OSError as error:
        raise InputError(f"the plot {path} cannot be written: {error.strerror}", hint="choose another path") from error


def style(axes: Axes, grid: Literal["both", "x", "y"] = "both") -> None:
    """Draw a line below the axes and a faint grid."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.grid(axis=grid, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=FAINT, labelsize=9, length=0, pad=5)


def _subtitle(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=9, color=FAINT)


def _moments_axis(axes: Axes, trace: Trace) -> None:
    """Label the x axis with event time or with numbers of events."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    if trace.is_timed:
        locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
    else:
        axes.xaxis.set_major_formatter(lambda count, _: f"{count:,.0f}")
    axes.set_xlabel("event time (UTC)" if trace.is_timed else "events", color=FAINT, fontsize=9, loc="left")
    axes.margins(x=0)


def _fit(axes: Axes, curves: Sequence[Array], levels: Sequence[float]) -> None:
    """Fit the y axis to levels, and to curves after their start, when intervals are too wide."""
    parts = [curve[:, int(curve.shape[1] * UNSETTLED_SHARE) :].ravel() for curve in curves]
    settled = np.concatenate([np.empty(0), *parts])
    settled = settled[np.isfinite(settled)]
    if len(settled) or levels:
        ends = np.concatenate([np.quantile(settled, (0.005, 0.995)) if len(settled) else [], levels])
        low, high = ends.min(), ends.max()
        room = 0.06 * (high - low) or 0.5
        axes.set_ylim(0.0 if not levels and 0 <= low < room else low - room, high + room)
