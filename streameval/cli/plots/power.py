"""The picture of `plan --plot`: the lift that can be seen against the events it takes, one line a candidate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from streameval.cli.plan_tables import lift_name
from streameval.cli.plots.trace import Floats
from streameval.cli.plots.values import (
    COLOURS,
    ENDINGS,
    FAINT,
    INK,
    LABEL_GAP,
    LEFT,
    MARGIN,
    figure_class,
    make_plain,
    save,
)
from streameval.common.text import counted
from streameval.errors import InputError
from streameval.ope.power import CandidatePower, PowerReport, smallest_lift

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 60
FEW_DECADES = 3.5
"""On so short an axis there is room for numbers between the powers of ten."""


@dataclass(frozen=True)
class PowerPicture:
    """What to draw and where; the ending of `path` says whether it becomes PNG, SVG or PDF."""

    path: Path
    title: str

    def check(self) -> None:
        """InputError when the picture could not be drawn at the end: better before a long log than after it."""
        figure_class()
        if self.path.suffix not in ENDINGS:
            raise InputError(f"the plot {self.path} ends in none of {', '.join(ENDINGS)}", hint="name it e.g. plot.png")
        if not self.path.absolute().parent.is_dir():
            raise InputError(f"the directory {self.path.parent} does not exist", hint=f"mkdir -p {self.path.parent}")

    def draw(self, found: PowerReport) -> None:
        """Write the picture; InputError when there is no candidate to draw."""
        judged = [each for each in found.candidates if each.reason is None]
        if not judged:
            raise InputError("there is no line to draw: no candidate can be planned for", hint="leave out --plot")
        figure = figure_class()(figsize=(9.6, 5.2), dpi=160, facecolor="white")
        events = _range(judged)
        axes = _axes(figure, max(len(each.policy) for each in judged), decades=np.log10(events[-1] / events[0]))
        colours = [COLOURS[place % len(COLOURS)] for place in range(len(judged))]
        ends = [_line(axes, events, each, found, colour) for each, colour in zip(judged, colours, strict=True)]
        axes.set_xlim(events[0], events[-1])
        _mark_lifts(axes, found)
        _label_ends(axes, judged, ends, colours)
        _describe(figure, found, self.title)
        save(figure, self.path)


def _axes(figure: Figure, longest: int, decades: float) -> Axes:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes = figure.add_axes((LEFT, 0.115, 0.97 - LEFT - min(0.0085 * (longest + 4), 0.35), 0.675))
    axes.set_xscale("log")
    axes.set_yscale("log")
    make_plain(axes, pad=6)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda lift, _: f"{lift:g}"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < FEW_DECADES else (1.0,)))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("events", color=FAINT, fontsize=9, loc="left")
    return axes


def _range(judged: list[CandidatePower]) -> Floats:
    """From a third of the fewest events that matter to three times the most."""
    counts = [each.events for each in judged] + [need.events for each in judged for need in each.needed]
    return np.geomspace(max(10.0, min(counts) / 3), max(counts) * 3, POINTS)


def _line(axes: Axes, events: Floats, each: CandidatePower, found: PowerReport, colour: str) -> float:
    """Draw the line of a candidate with a dot where its log ends; where the line ends."""
    noise = (each.deviation or 0.0, each.design_effect or 1.0)
    lifts = [smallest_lift(*noise, count, found.confidence, found.power) for count in events]
    axes.plot(events, lifts, color=colour, linewidth=2.0, zorder=3)
    axes.plot([each.events], [each.detectable or 0.0], "o", color=colour, markersize=7, zorder=4)
    return lifts[-1]


def _mark_lifts(axes: Axes, found: PowerReport) -> None:
    """The lifts asked for, as faint lines with their names."""
    for lift in found.lifts:
        axes.axhline(lift, color=FAINT, linewidth=0.8, linestyle=(0, (2, 3)), zorder=2)
        axes.annotate(
            lift_name(lift, found.value),
            xy=(0.995, lift),
            xycoords=("axes fraction", "data"),
            xytext=(0, 2),
            textcoords="offset points",
            horizontalalignment="right",
            color=FAINT,
            fontsize=8,
        )


def _label_ends(axes: Axes, judged: list[CandidatePower], ends: list[float], colours: list[str]) -> None:
    """Names beside the ends of the lines, from below, moved up where they would overlap."""
    low, high = np.log(axes.get_ylim())
    floor = -1.0
    for end, each, colour in sorted(zip(ends, judged, colours, strict=True), key=lambda line: line[0]):
        height = (np.log(end) - low) / (high - low)
        floor = max(height, floor + LABEL_GAP)
        axes.annotate(
            each.policy,
            xy=(1.0, height),
            xytext=(1.022, floor),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=colour,
            fontsize=10,
            verticalalignment="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.7, "shrinkA": 2, "shrinkB": 0},
        )


def _describe(figure: Figure, found: PowerReport, title: str) -> None:
    rate = (
        "" if found.events_per_second is None else f"  ·  {counted(found.events_per_second, 'event', '.3g')} a second"
    )
    by = ", ".join(dict.fromkeys(each.estimator for each in found.candidates if each.estimator))
    line = (
        f"{by}  ·  shown at {found.confidence * 100:g}% confidence with {found.power * 100:g}% power{rate}"
        f"  ·  dots: the {counted(found.events, 'event')} of the log"
    )
    figure.text(MARGIN, 0.955, title, fontsize=14, fontweight="bold", color=INK, verticalalignment="top")
    figure.text(MARGIN, 0.893, line, fontsize=9.5, color=FAINT, verticalalignment="top")
    figure.text(MARGIN, 0.815, f"lift over {found.production} that can be shown", fontsize=9, color=FAINT)
