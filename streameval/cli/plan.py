"""The verb `plan`: how many events are needed to detect a lift, as a table, as sentences and as a plot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from streameval.cli.plots.values import (
    COLOURS,
    FAINT,
    INK,
    LEFT,
    MARGIN,
    EndLabel,
    Floats,
    check_path,
    figure_class,
    label_ends,
    make_plain,
    save,
)
from streameval.cli.replay import Replay
from streameval.common.text import UNKNOWN, counted, decimal, decimals_for, in_words, rounded_up
from streameval.config.errors import did_you_mean
from streameval.config.model import Config
from streameval.errors import InputError
from streameval.events import EventBatch
from streameval.ingest.files.source import Advance
from streameval.ope.averages import Cumulative
from streameval.ope.estimators import AnyEstimator
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evaluator.plan import Plan
from streameval.ope.intervals import Normal
from streameval.ope.power import (
    CandidatePower,
    Exploration,
    LogSpan,
    PowerReport,
    TargetLift,
    forecast_power,
    smallest_lift,
)
from streameval.ope.power.forecast import USUAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Planner(Evaluator):
    """An evaluator that also measures the exploration and the rate of the log."""

    span: LogSpan
    exploration: Exploration

    @classmethod
    def from_plan(cls, plan: Plan) -> Planner:
        """A planner of a plan, before the first event."""
        planner = super().from_plan(plan)
        assert isinstance(planner, cls)
        planner.span = LogSpan()
        planner.exploration = Exploration(plan.policies, plan.computed_policies, plan.reward_range)
        return planner

    def update(self, batch: EventBatch) -> None:
        """Add the next events of the stream."""
        super().update(batch)
        self.exploration.update(batch)
        known = batch.timestamp[~np.isnan(batch.timestamp)]
        if len(known):
            first, last, events = self.span
            self.span = LogSpan(min(first, float(known.min())), max(last, float(known.max())), events + len(known))


class Planning:
    """Computes from files how many events each lift takes, for every candidate of a configuration.

    `estimator`: the label of the one to plan with; by default the best that has evidence about a candidate. Raises
    InputError for a lift, a power or an estimator that cannot be used.
    """

    def __init__(
        self, config: Config, lifts: Sequence[str] = (), power: float = 0.8, estimator: str | None = None
    ) -> None:
        self.targets = _targets(lifts) or USUAL
        if not 0 < power < 1:
            raise InputError(f"--power must lie between 0 and 1, found {power:g}", hint="0.8 is usual")
        self.power = power
        plan = config.plan()
        self.estimators = _estimators(plan, estimator)
        self.horizons = _horizons(plan)
        cumulative = Cumulative()
        plan = replace(
            plan.with_products([(tuple(plan.estimators.values()), (cumulative,))]),
            intervals={cumulative.label: Normal()},  # the forecast rests on normal theory; unknown while noise is
            drift=None,
            promotion=None,
        )
        self.planner = Planner.from_plan(plan)
        self.replay = Replay(config)
        self.replay.evaluator = self.planner

    def read(self, files: Sequence[str], advance: Advance, written: str | None = None) -> tuple[PowerReport, list[str]]:
        """The forecast after all files, and warnings about their events."""
        report = self.replay.read(files, advance, written)
        warnings = list(self.replay.warnings(report))
        self.replay.require_events(report)
        planner = self.planner
        found = forecast_power(
            report, self.estimators, self.targets, self.power, planner.span, planner.exploration, self.horizons
        )
        return found, warnings


def _targets(lifts: Sequence[str]) -> list[TargetLift]:
    try:
        return [TargetLift.read(lift) for lift in lifts]
    except ValueError as error:
        raise InputError(f"--lift: {error}", hint="write --lift 0.01, or --lift 5% of what production earns") from error


def _estimators(plan: Plan, wanted: str | None) -> dict[str, AnyEstimator]:
    """The estimators by label, the preferred one first."""
    every = sorted(plan.estimators.values(), key=lambda each: each.preference)
    estimators = {estimator.label: estimator for estimator in every}
    if wanted is None:
        return estimators
    if wanted not in estimators:
        hint = did_you_mean(wanted, estimators) or f"choose one of {', '.join(estimators)}"
        raise InputError(f"--estimator: '{wanted}' is not configured", hint=hint)
    return {wanted: estimators[wanted]}


def _horizons(plan: Plan) -> dict[str, float]:
    """For each average that forgets, the largest number of equally weighted events that it is ever worth."""
    known = {label: average.effective_events for label, average in plan.averages.items()}
    return {label: events for label, events in known.items() if events is not None}


def power_table(found: PowerReport) -> Table:
    """One row for each candidate: its estimates, and the events that each lift takes."""
    judged = [each for each in found.candidates if each.reason is None]
    decimals = decimals_for([found.value, *(each.value for each in judged)])
    several = len({each.estimator for each in judged}) > 1
    table = Table(box=box.SIMPLE_HEAD, title=_title(found), title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("policy")
    if several:
        table.add_column("estimator")
    for heading in ("value", "lift", "events", "effective\nper event", "noise of\none event", "design\neffect"):
        table.add_column(heading, justify="right")
    table.add_column("detectable\nlift", justify="right")
    for lift in found.lifts:
        table.add_column(f"events for\n{lift_name(lift, found.value)}", justify="right")
    blank = [""] if several else []
    production = Text(f"{found.production}\n(production)", style="bold")
    table.add_row(production, *blank, decimal(found.value, decimals), "", f"{found.events:,}")
    for each in found.candidates:
        by = [each.estimator or ""] if several else []
        table.add_row(Text(each.policy, style="bold"), *by, *_cells(each, found, decimals))
    return table


def sentences(found: PowerReport) -> Iterator[str]:
    """Notes below the table: candidates without a forecast, lifts out of reach, and advice."""
    for each in found.candidates:
        if each.reason is not None:
            yield f"{each.policy}: no forecast: {each.reason}"
        if each.relief is not None:
            more = each.relief
            yield (
                f"{each.policy}: about half as many events would be enough if actions with weights over {more.over:g} "
                f"({more.events_share:.1%} of events, {more.noise_share:.0%} of the noise) "
                f"were logged {more.times:.1f} times as often"
            )
    yield from _limits(found)


def lift_name(lift: float, value: float | None) -> str:
    """A lift, with its ratio to the value of production.

    >>> lift_name(0.002, 0.04), lift_name(0.01, None)
    ('0.002 (+5%)', '0.01')
    """
    share = f" (+{100 * lift / value:.2g}%)" if value is not None and value > 0 else ""
    return f"{lift:.3g}{share}"


def _title(found: PowerReport) -> str:
    by = {each.estimator for each in found.candidates if each.estimator}
    named = f" by {by.pop()}" if len(by) == 1 else ""
    rate = "" if found.events_per_second is None else f", {found.events_per_second:.3g} per second"
    return (
        f"{counted(found.events, 'event')}{rate}; events until a lift is detected{named} "
        f"at {found.confidence * 100:g}% confidence with {found.power * 100:g}% power:"
    )


def _cells(each: CandidatePower, found: PowerReport, decimals: int) -> list[str]:
    if each.reason is not None:
        return [*[UNKNOWN] * 2, f"{each.events:,}", *[UNKNOWN] * (4 + len(found.lifts))]
    return [
        decimal(each.value, decimals),
        decimal(each.lift, decimals, signed=True),
        f"{each.events:,}",
        decimal(each.effective_share, 3),
        decimal(each.deviation, decimals),
        decimal(max(1.0, each.design_effect or 1.0), 2),
        decimal(each.detectable, decimals),
        *(
            "\n".join(
                filter(None, [rounded_up(need.events), in_words(need.seconds) if need.seconds is not None else ""])
            )
            for need in each.needed
        ),
    ]


def _limits(found: PowerReport) -> Iterator[str]:
    """The lifts that averages that forget cannot detect, however long they run."""
    judged = [each for each in found.candidates if each.reason is None and each.limits]
    for place, first in enumerate(judged[0].limits if judged else ()):
        smallest = ", ".join(f"{each.limits[place].lift:.2g} ({each.policy})" for each in judged)
        worth = f"worth at most {rounded_up(first.events)} events"
        yield f"{first.average}: {worth}, so it detects no lift under {smallest}"


POINTS = 60
FEW_DECADES = 3.5
"""A shorter axis has room for numbers between the powers of ten."""


@dataclass(frozen=True)
class PowerPicture:
    """The plot of the detectable lift against the number of events, one line for each candidate."""

    path: Path
    title: str

    def check(self) -> None:
        """InputError if the plot could not be drawn; called before the files are read."""
        check_path(self.path)

    def draw(self, found: PowerReport) -> None:
        """Write the plot; InputError if there is no candidate to draw."""
        judged = [each for each in found.candidates if each.reason is None]
        if not judged:
            raise InputError("there is no line to draw: no candidate has a forecast", hint="leave out --plot")
        figure = figure_class()(figsize=(9.6, 5.2), dpi=160, facecolor="white")
        events = _range(judged)
        axes = _axes(figure, max(len(each.policy) for each in judged), decades=np.log10(events[-1] / events[0]))
        colours = [COLOURS[place % len(COLOURS)] for place in range(len(judged))]
        ends = [_line(axes, events, each, found, colour) for each, colour in zip(judged, colours, strict=True)]
        axes.set_xlim(events[0], events[-1])
        _mark_lifts(axes, found)
        low, high = np.log(axes.get_ylim())
        heights = (np.log(ends) - low) / (high - low)
        labels = zip([each.policy for each in judged], heights.tolist(), colours, strict=True)
        label_ends(axes, [EndLabel(*label) for label in labels])
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
    """Draw the line of a candidate, with a dot where its log ends; returns its last value."""
    noise = (each.deviation or 0.0, each.design_effect or 1.0)
    lifts = [smallest_lift(*noise, count, found.confidence, found.power) for count in events]
    axes.plot(events, lifts, color=colour, linewidth=2.0, zorder=3)
    axes.plot([each.events], [each.detectable or 0.0], "o", color=colour, markersize=7, zorder=4)
    return lifts[-1]


def _mark_lifts(axes: Axes, found: PowerReport) -> None:
    """The target lifts, as faint lines with their names."""
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


def _describe(figure: Figure, found: PowerReport, title: str) -> None:
    per_second = found.events_per_second
    rate = "" if per_second is None else f"  ·  {counted(per_second, 'event', '.3g')} per second"
    by = ", ".join(dict.fromkeys(each.estimator for each in found.candidates if each.estimator))
    line = (
        f"{by}  ·  detected at {found.confidence * 100:g}% confidence with {found.power * 100:g}% power{rate}"
        f"  ·  dots: the {counted(found.events, 'event')} of the log"
    )
    figure.text(MARGIN, 0.955, title, fontsize=14, fontweight="bold", color=INK, verticalalignment="top")
    figure.text(MARGIN, 0.893, line, fontsize=9.5, color=FAINT, verticalalignment="top")
    figure.text(MARGIN, 0.815, f"detectable lift over {found.production}", fontsize=9, color=FAINT)
