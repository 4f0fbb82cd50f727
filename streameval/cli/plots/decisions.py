"""The plot of `replay --decisions`: the lift of each candidate over time, and when each rule would promote it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streameval.cli.plots.values import (
    COLOURS,
    FAINT,
    GRID,
    INK,
    MARGIN,
    Curve,
    Floats,
    Picture,
    Trace,
    dash_truth,
    figure_class,
    label_moments,
    require_points,
    save,
    settled,
)
from streameval.common.text import counted, decimal, decimals_for
from streameval.errors import InputError
from streameval.ope.report import Report, Transition

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
        curves = trace.curves(estimator, average, ("lift", "lift_lower", "lift_upper"))
        lifts, unknown = {curve.policy: curve for curve in curves}, np.full(len(trace.reports), np.nan)
        for place, (policy, (upper, lower)) in enumerate(zip(drawn, panels, strict=True)):
            colour = COLOURS[place % len(COLOURS)]
            stretches = {rule: list(_stretches(trace.reports, policy, rule)) for rule in rules}
            lift = lifts.get(policy, Curve(policy, unknown, unknown, unknown))
            self._panel(upper, trace, lift, colour, stretches[rules[0]])
            _strips(lower, trace, stretches, colour, last, policy)
        label_moments(trace, lower)
        self._describe(figure, size[1], trace, f"{estimator} on {average}", len(candidates) - len(drawn))
        save(figure, self.picture.path)

    def _panel(self, axes: Axes, trace: Trace, lift: Curve, colour: str, shaded: Sequence[Stretch]) -> None:
        for stretch in shaded:
            axes.axvspan(*trace.at(stretch), color=colour, alpha=0.1, linewidth=0)
        axes.fill_between(trace.moments, lift.lower, lift.upper, color=colour, alpha=0.22, linewidth=0)
        axes.plot(trace.moments, lift.values, color=colour, linewidth=1.8, solid_capstyle="round")
        truth, production = self.picture.truth, trace.reports[-1].production
        if lift.policy in truth and production in truth:
            own, other = (truth[name].after(trace.counts) for name in (lift.policy, production))
            dash_truth(axes, trace, own - other, colour)
        axes.axhline(self.margin, color=INK, linewidth=0.9, zorder=3)
        axes.set_ylim(*_limits(lift, self.margin))
        axes.set_title(lift.policy, loc="left", fontsize=10.5, fontweight="bold", color=INK, pad=5)
        known = lift.values[np.isfinite(lift.values)]
        if len(known):
            last = float(known[-1])
            text = decimal(last, max(0, decimals_for([last]) - 1), signed=True).replace("-", "\N{MINUS SIGN}")
            _label_right(axes, f"{text} now", last, colour, 9.5)

    def _describe(self, figure: Figure, height: float, trace: Trace, drawn: str, left_out: int) -> None:
        last = trace.reports[-1]
        parts = [f"lift over {last.production}: {drawn}", f"shaded: {last.confidence * 100:g}% intervals"]
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
        _bar(axes, trace.at(whole), place, TRACK)
        for span in spans:
            _bar(axes, trace.at(span), place, colour)
        share = shares[rule] / max(1, last.events.accepted)
        text = f"{share:.0%} of events" if shares[rule] else "never"
        _label_right(axes, text, place + 0.56, colour if shares[rule] else FAINT, 8.5)


def _bar(axes: Axes, ends: Floats, place: int, colour: str) -> None:
    axes.fill_between(ends, place + 0.2, place + 0.85, color=colour, linewidth=0)


def _label_right(axes: Axes, text: str, height: float, colour: str, size: float) -> None:
    axes.annotate(
        text,
        xy=(1.0, height),
        xytext=(8, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        color=colour,
        fontsize=size,
        verticalalignment="center",
        annotation_clip=False,
    )


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


def _limits(lift: Curve, margin: float) -> tuple[float, float]:
    """Limits of the y axis: lift and interval after the start, and the margin."""
    bottom, top = np.quantile(np.append(settled([lift]), margin), (0.005, 0.995))
    bottom, top = min(bottom, margin), max(top, margin)
    room = 0.08 * (top - bottom) or 0.01
    return float(bottom - room), float(top + room)
