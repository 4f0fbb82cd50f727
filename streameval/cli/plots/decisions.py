"""The plot of `replay --decisions`: the lift of each candidate over time, and when each rule would promote it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streameval.cli.plots.values import (
    COLOURS,
    FAINT,
    GRID,
    INK,
    MARGIN,
    SETTLED,
    Floats,
    Picture,
    Trace,
    figure_class,
    moments_of,
    require_points,
    save,
)
from streameval.common.text import counted, decimal, decimals_for
from streameval.errors import InputError
from streameval.ope.report import Estimate, Report, Transition

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, PANEL, STRIP, HEAD, FOOT, GAP = 9.6, 1.55, 0.21, 0.95, 0.55, 0.42
"""Inches: of the plot, of one candidate, of one rule, above all, below all, between candidates."""
MOST = 8
"""Candidates that are drawn; the subtitle counts the others."""
LEFT, RIGHT = 0.105, 0.845
TRACK = "#f0f0f0"


class Stretch(NamedTuple):
    """The first and the last event of a time in which a candidate was promotable."""

    first: float
    last: float


@dataclass(frozen=True)
class DecisionTimeline:
    """The lift of each candidate with its interval, a line at the margin, and a strip per rule, dark where promotable.

    `picture` chooses the estimator and the average. The background is shaded where the first rule would promote.
    `margin`: what the lift must exceed.
    """

    picture: Picture
    margin: float

    def draw(self, trace: Trace) -> None:
        """Write the plot; InputError if there is nothing to draw or the file cannot be written."""
        require_points(trace)
        last = trace.reports[-1]
        rules = list(dict.fromkeys(decision.rule for decision in last.promotion))
        candidates = list(dict.fromkeys(decision.policy for decision in last.promotion))
        if not candidates:
            raise InputError("no candidate could be promoted", hint="remove `promotion: off` from the configuration")
        drawn, height = candidates[:MOST], PANEL + len(rules) * STRIP + GAP
        size = (WIDTH, HEAD + FOOT + len(candidates[:MOST]) * height)
        figure = figure_class()(figsize=size, dpi=160, facecolor="white")
        panels = _panels(figure, size[1], len(drawn), len(rules))
        estimator, average = self.picture.choice(last)
        for place, (policy, (upper, lower)) in enumerate(zip(drawn, panels, strict=True)):
            colour = COLOURS[place % len(COLOURS)]
            lifts = [_estimate(report, policy, estimator, average) for report in trace.reports]
            stretches = {rule: list(_stretches(trace.reports, policy, rule)) for rule in rules}
            self._panel(upper, trace, lifts, colour, policy, stretches[rules[0]])
            _strips(lower, trace, stretches, colour, last, policy)
        moments_of(trace, lower)
        self._describe(figure, size[1], trace, f"{estimator} on {average}", len(candidates) - len(drawn))
        save(figure, self.picture.path)

    def _panel(
        self,
        axes: Axes,
        trace: Trace,
        lifts: Sequence[Estimate | None],
        colour: str,
        policy: str,
        shaded: Sequence[Stretch],
    ) -> None:
        at = moments_of(trace)
        value, low, high = (_column(lifts, name) for name in ("lift", "lift_lower", "lift_upper"))
        for stretch in shaded:
            axes.axvspan(*_places(trace, stretch), color=colour, alpha=0.1, linewidth=0)
        axes.fill_between(at, low, high, color=colour, alpha=0.22, linewidth=0)
        axes.plot(at, value, color=colour, linewidth=1.8, solid_capstyle="round")
        self._dash_truth(axes, trace, policy, colour)
        axes.axhline(self.margin, color=INK, linewidth=0.9, zorder=3)
        axes.set_ylim(*_limits(value, low, high, self.margin))
        axes.set_title(policy, loc="left", fontsize=10.5, fontweight="bold", color=INK, pad=5)
        known = value[np.isfinite(value)]
        if len(known):
            decimals = max(0, decimals_for([float(known[-1])]) - 1)
            label = f"{decimal(float(known[-1]), decimals, signed=True)} now".replace("-", "\N{MINUS SIGN}")
            axes.annotate(
                label,
                xy=(1.0, known[-1]),
                xytext=(8, 0),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                color=colour,
                fontsize=9.5,
                verticalalignment="center",
                annotation_clip=False,
            )

    def _dash_truth(self, axes: Axes, trace: Trace, policy: str, colour: str) -> None:
        truth, production = self.picture.truth, trace.reports[-1].production
        if policy in truth and production in truth:
            counts = np.array([report.events.accepted for report in trace.reports], dtype=np.float64)
            own, other = (np.interp(counts, *truth[name]) for name in (policy, production))
            axes.plot(moments_of(trace), own - other, color=colour, linewidth=1.1, linestyle=(0, (4, 2.5)), zorder=5)

    def _describe(self, figure: Figure, height: float, trace: Trace, drawn: str, left_out: int) -> None:
        last = trace.reports[-1]
        parts = [f"lift over {last.production}: {drawn}", f"bands: {last.confidence * 100:g}% intervals"]
        parts += [f"line: margin {self.margin:g}", "strips: promotable", counted(last.events.accepted, "event")]
        parts += ["dashed: true values"] if self.picture.truth else []
        parts += [f"{counted(left_out, 'candidate')} left out"] if left_out else []
        figure.text(MARGIN, 1 - 0.24 / height, self.picture.title, fontsize=14, fontweight="bold", color=INK, va="top")
        figure.text(MARGIN, 1 - 0.56 / height, "  ·  ".join(parts), fontsize=9.5, color=FAINT, va="top")


def _panels(figure: Figure, height: float, candidates: int, rules: int) -> Iterator[tuple[Axes, Axes]]:
    """The axes of each candidate from the top: those of its lift, and those of its strips."""
    for place in range(candidates):
        top = height - HEAD - place * (PANEL + rules * STRIP + GAP)
        last = place == candidates - 1
        upper = figure.add_axes((LEFT, (top - PANEL) / height, RIGHT - LEFT, (PANEL - 0.1) / height))
        box = (LEFT, (top - PANEL - rules * STRIP) / height, RIGHT - LEFT, rules * STRIP / height)
        lower = figure.add_axes(box, sharex=upper)
        for axes in (upper, lower):
            axes.spines[:].set_visible(False)
            axes.tick_params(colors=FAINT, labelsize=8.5, length=0, pad=5)
            axes.margins(x=0)
        upper.grid(axis="y", color=GRID, linewidth=0.8)
        upper.set_axisbelow(True)
        upper.tick_params(labelbottom=False)
        lower.tick_params(labelbottom=last)
        yield upper, lower


def _strips(
    axes: Axes, trace: Trace, stretches: Mapping[str, Sequence[Stretch]], colour: str, last: Report, policy: str
) -> None:
    """One strip per rule, with the share of events in which it was promotable."""
    axes.set_ylim(len(stretches), 0)
    axes.set_yticks([place + 0.525 for place in range(len(stretches))], list(stretches))
    whole = Stretch(0.0, float(last.events.accepted))
    shares = {each.rule: each.promotable_events for each in last.promotion if each.policy == policy}
    for place, (rule, spans) in enumerate(stretches.items()):
        _bar(axes, _places(trace, whole), place, TRACK)
        for span in spans:
            _bar(axes, _places(trace, span), place, colour)
        share = shares[rule] / max(1, last.events.accepted)
        axes.annotate(
            f"{share:.0%} of events" if shares[rule] else "never",
            xy=(1.0, place + 0.56),
            xytext=(8, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            color=colour if shares[rule] else FAINT,
            fontsize=8.5,
            verticalalignment="center",
            annotation_clip=False,
        )


def _bar(axes: Axes, ends: tuple[Any, Any], place: int, colour: str) -> None:
    axes.fill_between(list(ends), place + 0.2, place + 0.85, color=colour, linewidth=0)


def _stretches(reports: Sequence[Report], policy: str, rule: str) -> Iterator[Stretch]:
    """The times in which one rule would have promoted one candidate, from the transitions in all Reports."""
    transitions = {
        each.event: each
        for report in reports
        for each in report.transitions
        if (each.policy, each.rule) == (policy, rule)
    }
    started: Transition | None = None
    for each in (transitions[event] for event in sorted(transitions)):
        if each.promotable:
            started = started or each
        elif started is not None:
            yield Stretch(started.event, each.event)
            started = None
    if started is not None:
        yield Stretch(started.event, reports[-1].events.accepted)


def _places(trace: Trace, stretch: Stretch) -> tuple[Any, Any]:
    """The ends of a stretch on the x axis, interpolated between the Reports."""
    at = moments_of(trace)
    counts = np.array([report.events.accepted for report in trace.reports], dtype=np.float64)
    if at.dtype != object:
        return float(np.interp(stretch.first, counts, at)), float(np.interp(stretch.last, counts, at))
    seconds = np.array([moment.timestamp() for moment in at])
    first, last = np.interp(stretch, counts, seconds)
    zone = at[0].tzinfo
    return tuple(type(at[0]).fromtimestamp(float(each), zone) for each in (first, last))


def _estimate(report: Report, policy: str, estimator: str, average: str) -> Estimate | None:
    wanted = (policy, estimator, average)
    return next((each for each in report.estimates if (each.policy, each.estimator, each.average) == wanted), None)


def _column(lifts: Sequence[Estimate | None], name: str) -> Floats:
    return np.array([np.nan if each is None else getattr(each, name) for each in lifts], dtype=np.float64)


def _limits(value: Floats, low: Floats, high: Floats, margin: float) -> tuple[float, float]:
    """Limits of the y axis: lift and interval after the start, and the margin."""
    settled = slice(int(len(value) * SETTLED), None)
    ends = np.concatenate([column[settled] for column in (value, low, high)])
    ends = np.append(ends[np.isfinite(ends)], margin)
    bottom, top = np.quantile(ends, (0.005, 0.995))
    bottom, top = min(bottom, margin), max(top, margin)
    room = 0.08 * (top - bottom) or 0.01
    return float(bottom - room), float(top + room)
