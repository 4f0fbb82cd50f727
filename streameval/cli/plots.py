"""The plots of `replay` and `plan`: values over time, lifts with the decisions of each rule, and statistical power."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from itertools import chain, cycle, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from streameval.common.arrays import Array
from streameval.common.text import counted, decimal, decimals_for
from streameval.errors import InputError
from streameval.events import EventBatch
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.power import PowerReport, smallest_lift
from streameval.ope.report import Calibration, Estimate, Report, Transition

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7a4fa3", "#8b5a2b")
"""After Okabe and Ito: distinct for colour-blind readers, and legible on white."""
PRODUCTION = "#333333"
INK, FAINT, GRIDS, TRACK = "#222222", "#6f6f6f", "#e6e6e6", "#f0f0f0"
HEIGHT, HEAD, LIFTS, PANEL, STRIP = 5.2, 1.3, 2.2, 2.0, 0.25
"""Inches: of a plot, its texts, and the panel of lifts; of the panel of one candidate, and the strip of one rule."""
MAX_CANDIDATES = 8  # in the plot of decisions; its caption counts the others
SUFFIXES = (".png", ".svg", ".pdf")
APART = 0.015  # of the time that is drawn: the distance of what an arm earned from the ends of the curves
UNSETTLED_SHARE = 0.15  # share of the first points that do not set the scale: their intervals are wide


Bar: TypeAlias = tuple[float | None, float | None, float | None, str]
"""A number, its bounds, and a colour."""


class TracePoint(NamedTuple):
    """Estimates after a number of events; `newest`: epoch seconds of the newest event, None without times."""

    events: int
    newest: float | None
    estimates: Sequence[Estimate]


@dataclass
class Trace:
    """The estimates by some pairs of an estimator and an average at `points` to `2 * points` moments, evenly spaced.

    The first ones are at least `every` events apart, and more in a log that is known to be long. When the trace is
    full, it drops every second one. `last`: the Report at the end.
    """

    pairs: Collection[tuple[str, str]]
    points: int = 60
    every: int = 50
    kept: list[TracePoint] = field(default_factory=list)
    transitions: set[Transition] = field(default_factory=set)
    taken: int = 0
    last: Report | None = None

    def update(self, evaluator: Evaluator, batch: EventBatch, share: float | None = None) -> None:
        """Give a batch to the evaluator, split where estimates are due; `share`: of the log read by now, if known."""
        if not self.taken and share:
            between, block = len(batch) / share / (1.5 * self.points), evaluator.config.block
            self.every = max(self.every, int(between // block) * block)  # estimates between blocks take longer
        while len(batch) >= (missing := self.every - self.taken % self.every):
            self._give(evaluator, batch[:missing])
            batch = batch[missing:]
            evaluator.fold_pending()
            self.kept.append(TracePoint(evaluator.accepted, evaluator.newest, evaluator.estimates(self.pairs)))
            self.transitions.update(evaluator.take_transitions())
            if len(self.kept) >= 2 * self.points:
                self.every *= 2
                self.kept = self.kept[1::2]
        self._give(evaluator, batch)

    def _give(self, evaluator: Evaluator, batch: EventBatch) -> None:
        evaluator.update(batch)
        self.taken += len(batch)

    def finish(self, report: Report) -> None:
        """Keep the Report at the end of the stream."""
        self.last = report
        self.transitions.update(report.transitions)
        if self.taken % self.every:
            estimates = report.of_goal().estimates
            self.kept.append(TracePoint(report.events.accepted, report.events.last_timestamp, estimates))

    def curves(self, estimator: str, average: str, quantity: Literal["value", "lift"] = "value") -> dict[str, Array]:
        """By policy, production first: the value or lift and its bounds, [3, points]; NaN where unknown."""
        bounds = ("lower", "upper") if quantity == "value" else ("lift_lower", "lift_upper")
        wanted = (estimator, average)
        rows = [
            {each.policy: each for each in point.estimates if (each.estimator, each.average) == wanted}
            for point in self.kept
        ]
        policies = dict.fromkeys(policy for row in reversed(rows) for policy in row)
        return {
            policy: np.array(
                [[getattr(row.get(policy), name, None) for row in rows] for name in (quantity, *bounds)], float
            )
            for policy in policies
        }

    @property
    def counts(self) -> Array:
        """The number of events at each point."""
        return np.array([point.events for point in self.kept], dtype=np.float64)

    @property
    def is_timed(self) -> bool:
        """Whether the x axis shows event time, not the number of events."""
        times = [point.newest for point in self.kept]
        return None not in times and times[0] != times[-1]

    @property
    def moments(self) -> Array:
        """The positions of the points on the x axis: days since 1970, or numbers of events."""
        if not self.is_timed:
            return self.counts
        return np.array([point.newest for point in self.kept], dtype=np.float64) / 86_400

    def promotable(self, policy: str, rule: str) -> Iterator[tuple[float, float]]:
        """When one rule would have promoted one candidate: starts and lengths on the x axis."""
        transitions = {
            each.event: each.promotable for each in self.transitions if (each.policy, each.rule) == (policy, rule)
        }
        end = self.kept[-1].events
        for (first, promotable), (last, _) in pairwise([*sorted(transitions.items()), (end, False)]):
            if promotable:
                start, stop = np.interp([first, last], self.counts, self.moments).tolist()
                yield start, stop - start


def read_truth(path: Path) -> dict[str, Array]:
    """By policy, numbers of events and true values, [2, moments].

    A line is such as `{"events": 100, "truth": {"logging": 0.2}}`.

    Raises:
        InputError: The file cannot be read.
    """
    try:
        moments = msgspec.json.decode(b"[" + b",".join(path.read_bytes().splitlines()) + b"]", type=list[_Moment])
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(
            f"the truth {path} cannot be read: {error}", hint="write it with `simulate --truth`"
        ) from error
    policies = moments[0].truth if moments else ()
    events = [float(moment.events) for moment in moments]
    return {policy: np.array([events, [moment.truth[policy] for moment in moments]]) for policy in policies}


class _Moment(msgspec.Struct):
    events: int
    truth: dict[str, float]


@dataclass(frozen=True)
class ReplayPlot:
    """The value and the lift of each policy over time, and when the first promotion rule would have promoted.

    At the end stands what policies earned on their own events, where `logging_policy` names them.

    `path`: its suffix selects PNG, SVG or PDF. `choices`: pairs of an estimator and an average; the first one that is
    in the Report is drawn. `truth`: what `read_truth` returns; these lines are dashed. `margin`: what a lift must
    exceed, None without promotion. `by_rule`: draw the lift of each candidate in its own panel, with every rule.
    """

    path: Path
    choices: Sequence[tuple[str, str]]
    title: str
    truth: Mapping[str, Array] = field(default_factory=dict)
    margin: float | None = None
    by_rule: bool = False

    def draw(self, trace: Trace) -> None:
        """Write the plot.

        Raises:
            InputError: The trace has fewer than two points, or the file cannot be written.
        """
        report = trace.last
        if report is None or len(trace.kept) < 2:
            raise InputError(
                f"nothing to plot: {counted(trace.taken, 'event')}, but a plot has one point per {trace.every}",
                hint="replay more events, or leave out --plot",
            )
        draw = self._decisions if self.by_rule else self._values_and_lifts
        save(draw(trace, report, *self.choice(report)), self.path)

    def choice(self, report: Report) -> tuple[str, str]:
        """The estimator and the average to draw.

        Raises:
            InputError: The Report has none of the choices.
        """
        there = {(estimate.estimator, estimate.average) for estimate in report.estimates}
        thin = report.thin() if len(self.choices) > 1 else frozenset()
        for choice in sorted(self.choices, key=lambda pair: pair in thin):  # the sort is stable
            if choice in there:
                return choice
        (estimator, average), *_ = self.choices
        held = ", ".join(sorted(f"{one} on {other}" for one, other in there))
        raise InputError(f"there are no estimates by {estimator} on {average}", hint=f"choose one of {held}")

    def _values_and_lifts(self, trace: Trace, report: Report, estimator: str, average: str) -> Figure:
        """One panel of values; below it the lifts, with a line at the margin and marks of promotion."""
        curves = trace.curves(estimator, average)
        lifts = {
            policy: lift
            for policy, lift in trace.curves(estimator, average, "lift").items()
            if np.isfinite(lift[0]).any()
        }
        last = {policy: float(value[-1]) for policy, (value, _, _) in curves.items()}
        colours = dict(zip(curves, chain([PRODUCTION], cycle(COLOURS)), strict=False))
        dashed = ["dashed: true values"] if self.truth else []
        seen = _seen(report, average)
        dashed += ["◇ seen on its own events"] if seen else []
        events = f"{counted(report.events.accepted, 'event')}, production: {report.production}"
        shaded = f"shaded: {report.confidence * 100:g}% intervals"
        heights = [HEIGHT - HEAD, LIFTS] if lifts else [HEIGHT - HEAD]
        rules = list(dict.fromkeys(decision.rule for decision in report.promotion))[:1]
        marks = [f"▲ promotable, ▽ no longer (rule {rule})" for rule in rules if lifts]
        captions = [f"{estimator} on {average}", shaded, *dashed, *marks, events]
        figure = new_figure(self.title, *captions, height=HEAD + sum(heights))
        panels = figure.subplots(len(heights), sharex=True, height_ratios=heights, squeeze=False)[:, 0]
        axes = panels[0]
        for policy in sorted(curves, key=lambda policy: -np.nan_to_num(last[policy], nan=-np.inf)):
            width, order = (2.6, 4) if policy == report.production else (1.7, 3)
            label = f"{policy}  {decimal(last[policy], decimals_for(last.values()))}"
            _curve(axes, trace, curves[policy], colours[policy], linewidth=width, zorder=order, label=label)
        for policy in self.truth.keys() & curves.keys():
            _dash(axes, trace, np.interp(trace.counts, *self.truth[policy]), colours[policy])
        bars = [(each.value, each.lower, each.upper, colours[policy]) for policy, each in seen.items()]
        _fit(axes, list(curves.values()), also=_draw_seen(axes, trace, bars))
        make_plain(axes, "y")
        axes.set_title("reward per event", loc="left", fontsize=9, color=FAINT)
        if lifts:
            self._lifts(panels[1], trace, lifts, colours, rules, seen)
            margin = "" if self.margin is None else f", line: margin {self.margin:g}"
            panels[1].set_title(f"lift over {report.production}{margin}", loc="left", fontsize=9, color=FAINT)
        _plain_moments(panels[-1], trace)
        figure.legend(loc="outside right center", frameon=False, labelcolor="linecolor", fontsize=10)
        return figure

    def _lifts(
        self,
        axes: Axes,
        trace: Trace,
        lifts: Mapping[str, Array],
        colours: Mapping[str, str],
        rules: Sequence[str],
        seen: Mapping[str, Calibration],
    ) -> None:
        levels = [] if self.margin is None else [self.margin]
        for level in levels:
            axes.axhline(level, color=INK, linewidth=0.9, zorder=2)
        for policy, lift in lifts.items():
            _curve(axes, trace, lift, colours[policy], linewidth=1.7, zorder=3)
            for rule in rules:
                _marks(axes, trace, lift[0], list(trace.promotable(policy, rule)), colours[policy])
        bars = [(each.lift, each.lift_lower, each.lift_upper, colours[policy]) for policy, each in seen.items()]
        _fit(axes, list(lifts.values()), *levels, also=_draw_seen(axes, trace, bars))
        make_plain(axes, "y")

    def _decisions(self, trace: Trace, report: Report, estimator: str, average: str) -> Figure:
        """For each candidate its lift, a line at the margin, and a strip per rule, dark where promotable."""
        margin = self.margin or 0.0
        rules = list(dict.fromkeys(decision.rule for decision in report.promotion))
        candidates = list(dict.fromkeys(decision.policy for decision in report.promotion))
        if not candidates:
            raise InputError("no candidate could be promoted", hint="remove `promotion: off` from the configuration")
        drawn = candidates[:MAX_CANDIDATES]
        captions = [f"lift over {report.production}: {estimator} on {average}"]
        captions += [
            f"shaded: {report.confidence * 100:g}% intervals",
            f"line: margin {margin:g}",
            "strips: promotable",
        ]
        captions += [counted(report.events.accepted, "event"), *(["dashed: true values"] if self.truth else [])]
        seen = _seen(report, average)
        captions += ["◇ seen on its own events"] if seen else []
        left_out = len(candidates) - MAX_CANDIDATES
        captions += [f"{counted(left_out, 'candidate')} left out"] if left_out > 0 else []
        heights = [PANEL, STRIP * len(rules)] * len(drawn)
        figure = new_figure(self.title, *captions, height=HEAD + sum(heights))
        panels = figure.subplots(len(heights), sharex=True, height_ratios=heights)
        lifts, unknown = trace.curves(estimator, average, "lift"), np.full((3, len(trace.kept)), np.nan)
        for policy, colour, above, below in zip(drawn, cycle(COLOURS), panels[::2], panels[1::2], strict=False):
            lift = lifts.get(policy, unknown)
            _curve(above, trace, lift, colour, linewidth=1.8)
            if policy in self.truth and report.production in self.truth:
                own, other = (np.interp(trace.counts, *self.truth[name]) for name in (policy, report.production))
                _dash(above, trace, own - other, colour)
            for start, length in trace.promotable(policy, rules[0]):
                above.axvspan(start, start + length, color=colour, alpha=0.1, linewidth=0)
            above.axhline(margin, color=INK, linewidth=0.9, zorder=3)
            each = seen.get(policy)
            bars = [(each.lift, each.lift_lower, each.lift_upper, colour)] if each else []
            _fit(above, [lift], margin, also=_draw_seen(above, trace, bars))
            make_plain(above, "y")
            above.spines["bottom"].set_visible(False)
            above.set_title(policy, loc="left", fontsize=10.5, fontweight="bold", color=INK)
            known = lift[0][np.isfinite(lift[0])]
            if len(known):
                text = decimal(known[-1], max(0, decimals_for([known[-1]]) - 1), signed=True)
                _note(above, known[-1], f"{text} now", colour)
            _strips(below, trace, report, policy, rules, colour)
        _plain_moments(panels[-1], trace)
        panels[-1].spines["bottom"].set_visible(False)
        return figure


def _seen(report: Report, average: str) -> dict[str, Calibration]:
    """By policy, its mean reward on the events that it chose itself, over the average that is drawn."""
    return {each.policy: each for each in report.calibration if each.average == average}


def _draw_seen(axes: Axes, trace: Trace, bars: Sequence[Bar]) -> list[float]:
    """Draw seen numbers with their intervals next to the ends of the curves; returns the numbers and bounds."""
    first, *_, last = trace.moments
    drawn: list[float] = []
    for place, (value, lower, upper, colour) in enumerate(bars, start=1):
        if value is None:
            continue
        ends = [value if end is None else end for end in (lower, upper)]
        moment = last + APART * place * (last - first)
        axes.plot([moment, moment], ends, color=colour, linewidth=1.4, marker="_", markersize=6, clip_on=False)
        axes.plot([moment], [value], "D", color=colour, markerfacecolor="white", markersize=5, zorder=6, clip_on=False)
        drawn += [value, *ends]
    return drawn


def _marks(axes: Axes, trace: Trace, lift: Array, spans: Sequence[tuple[float, float]], colour: str) -> None:
    """Marks on a lift where its candidate became promotable and, before the end, ceased to be."""
    end = trace.moments[-1]
    for start, length in spans:
        for moment, mark, fill in ((start, "^", colour), (start + length, "v", "white")):
            if moment < end:
                height = np.interp(moment, trace.moments, lift)
                axes.plot([moment], [height], mark, color=colour, markerfacecolor=fill, markersize=9, zorder=6)


def _strips(axes: Axes, trace: Trace, report: Report, policy: str, rules: Sequence[str], colour: str) -> None:
    """One strip per rule, with the share of events in which it was promotable."""
    first, *_, last = trace.moments
    events = {each.rule: each.promotable_events for each in report.promotion if each.policy == policy}
    for place, rule in enumerate(rules):
        for spans, shade in (([(first, last - first)], TRACK), (list(trace.promotable(policy, rule)), colour)):
            axes.broken_barh(spans, (place - 0.33, 0.66), color=shade, linewidth=0)
        share = events[rule] / max(1, report.events.accepted)
        _note(axes, place, f"{share:.0%} of events" if events[rule] else "never", colour if events[rule] else FAINT)
    axes.set_ylim(len(rules) - 0.5, -0.5)
    axes.set_yticks(range(len(rules)), rules)
    axes.spines[:].set_visible(False)
    axes.margins(x=0)
    axes.tick_params(colors=FAINT, labelsize=8.5, length=0)


def power_figure(found: PowerReport, title: str) -> Figure:
    """The detectable lift against the number of events, a line per candidate.

    Raises:
        InputError: No candidate has a detectable lift.
    """
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    judged = [each for each in found.candidates if each.reason is None]
    judged.sort(key=lambda each: -(each.detectable or 0.0))
    if not judged:
        raise InputError("nothing to plot: no candidate has a forecast", hint="leave out --plot")
    per_second = found.events_per_second
    captions = [", ".join(dict.fromkeys(each.estimator for each in judged if each.estimator))]
    captions += [f"detected at {found.confidence * 100:g}% confidence with {found.power * 100:g}% power"]
    captions += [] if per_second is None else [f"{counted(per_second, 'event', '.3g')} per second"]
    figure = new_figure(title, *captions, f"dots: the {counted(found.events, 'event')} of the log")
    axes = figure.add_subplot(xscale="log", yscale="log")
    counts = [each.events for each in judged] + [need.events for each in judged for need in each.needed]
    events = np.geomspace(max(10.0, min(counts) / 3), max(counts) * 3, 60)
    noise = {each.policy: (each.deviation or 0.0, each.design_effect or 1.0) for each in judged}
    for each, colour in zip(judged, cycle(COLOURS), strict=False):
        lifts = [smallest_lift(*noise[each.policy], count, found.confidence, found.power) for count in events]
        axes.plot(events, lifts, color=colour, linewidth=2.0, zorder=3, label=each.policy)
        axes.plot([each.events], [each.detectable or 0.0], "o", color=colour, markersize=7, zorder=4)
    for lift in found.lifts:
        axes.axhline(lift, color=FAINT, linewidth=0.8, linestyle=(0, (2, 3)), zorder=2)
        transform = axes.get_yaxis_transform()
        axes.text(0.995, lift, lift_name(lift, found.value), transform=transform, ha="right", va="bottom", color=FAINT)
    axes.set_xlim(events[0], events[-1])
    make_plain(axes)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_formatter(lambda lift, _: f"{lift:g}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("events", color=FAINT, fontsize=9, loc="left")
    axes.set_title(f"detectable lift over {found.production}", loc="left", fontsize=9, color=FAINT)
    figure.legend(loc="outside right center", frameon=False, labelcolor="linecolor", fontsize=10)
    return figure


def lift_name(lift: float, value: float | None) -> str:
    """A lift, with its ratio to the value of production.

    >>> lift_name(0.002, 0.04), lift_name(0.01, None)
    ('0.002 (+5%)', '0.01')
    """
    return f"{lift:.3g}" + (f" (+{100 * lift / value:.2g}%)" if value is not None and value > 0 else "")


def new_figure(title: str, *captions: str, height: float = HEIGHT) -> Figure:
    """A figure with its title above and its captions below.

    Raises:
        InputError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise InputError(
            "a plot needs matplotlib, which is not installed", hint="pip install 'streameval[plot]'"
        ) from error
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)  # inches
    figure = Figure(figsize=(9.6, height), dpi=160, facecolor="white", layout=layout)
    figure.suptitle(title, x=0.02, ha="left", fontsize=14, fontweight="bold", color=INK)
    text = textwrap.fill("  ·  ".join(captions), 140, replace_whitespace=False)
    figure.supxlabel(text, x=0.02, ha="left", fontsize=9.5, color=FAINT)
    return figure


def check_path(path: Path) -> None:
    """Check that a plot can be written to this path; called before files are read.

    Raises:
        InputError: No plot can be written there, or matplotlib is not installed.
    """
    new_figure("")
    if path.suffix not in SUFFIXES:
        raise InputError(f"the plot {path} ends in none of {', '.join(SUFFIXES)}", hint="name it e.g. plot.png")
    if not path.absolute().parent.is_dir():
        raise InputError(f"the directory {path.parent} does not exist", hint=f"mkdir -p {path.parent}")


def save(figure: Figure, path: Path) -> None:
    """Write the plot.

    Raises:
        InputError: Writing fails.
    """
    try:
        figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)
    except OSError as error:
        raise InputError(f"the plot {path} cannot be written: {error.strerror}", hint="choose another place") from error


def make_plain(axes: Axes, grid: Literal["both", "x", "y"] = "both") -> None:
    """The style of all plots: a line below, and a faint grid."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.grid(axis=grid, color=GRIDS, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=FAINT, labelsize=9, length=0, pad=5)


def _plain_moments(axes: Axes, trace: Trace) -> None:
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


def _curve(axes: Axes, trace: Trace, curve: Array, colour: str, **line: Any) -> None:
    value, lower, upper = curve
    axes.fill_between(trace.moments, lower, upper, color=colour, alpha=0.16, linewidth=0)
    axes.plot(trace.moments, value, color=colour, solid_capstyle="round", **line)


def _dash(axes: Axes, trace: Trace, values: Array, colour: str) -> None:
    """A dashed line of true values."""
    axes.plot(trace.moments, values, color=colour, linewidth=1.1, linestyle=(0, (4, 2.5)), zorder=5)


def _note(axes: Axes, height: float, text: str, colour: str) -> None:
    """A text to the right of the axes."""
    transform = axes.get_yaxis_transform()
    axes.text(1.01, height, text, transform=transform, va="center", fontsize=9, color=colour)


def _fit(axes: Axes, curves: Sequence[Array], *levels: float, also: Sequence[float] = ()) -> None:
    """Fit the y axis to levels, and to values and bounds after the start: the first intervals are too wide.

    `also`: other numbers that it shows.
    """
    settled = np.concatenate([curve[:, int(curve.shape[1] * UNSETTLED_SHARE) :].ravel() for curve in curves])
    settled = settled[np.isfinite(settled)]
    if len(settled) or levels:
        ends = np.concatenate([np.quantile(settled, (0.005, 0.995)) if len(settled) else [], levels, also])
        low, high = ends.min(), ends.max()
        room = 0.06 * (high - low) or 0.5
        axes.set_ylim(0.0 if not levels and 0 <= low < room else low - room, high + room)
