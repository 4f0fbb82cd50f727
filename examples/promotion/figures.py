"""Draw one run with its lift, its interval and the decisions of each rule, and delays and false starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple
from zlib import crc32

import numpy as np
from days import LOSER, NAMES, WORLDS, watch_days
from days import RULES as DAY_RULES
from experiment import RULES, Stretch, watch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scoring import EVERY, Score, promotable_at
from worlds import Scene, leads

from streameval import Report

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7a4fa3", "#8b5a2b")
"""After Okabe and Ito: distinct for colour-blind readers, and legible on white."""
INK, FAINT, GRIDS = "#222222", "#6f6f6f", "#e6e6e6"

BLUE, ORANGE, GREEN, PINK = COLOURS[:4]
RULE_COLOURS = dict(zip(RULES, (BLUE, GREEN, ORANGE, PINK), strict=True))
Floats = NDArray[np.float64]


class Looks(NamedTuple):
    """Hold the lift of each candidate and its bounds over time, [moments, candidates]."""

    events: Floats
    value: Floats
    lower: Floats
    upper: Floats


def one_run(scene: Scene, path: Path, events: int, seed: int = 0) -> None:
    """Draw lift, true lead and decisions for one candidate under smooth change.

    It is the candidate that `sea` was wrong about for longest.
    """
    world = scene.make()
    drift = scene.drift("smooth", world)
    reports: list[Report] = []
    stretches = watch(world, drift, events, seed, look=reports.append)
    looks = _looks(reports, world.candidates)
    checks = np.arange(EVERY, events + 1, EVERY)
    lead = leads(world, drift, checks)
    promotable = promotable_at(
        [stretch for stretch in stretches if stretch.rule == "sea"], checks, len(world.candidates)
    )
    candidate = int((promotable & (lead < 0)).sum(axis=0).argmax())
    figure = Figure(figsize=(10.5, 6.2), dpi=150, facecolor="white")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3.2, 1))
    lower, upper = looks.lower[:, candidate], looks.upper[:, candidate]
    above.fill_between(looks.events, lower, upper, color=BLUE, alpha=0.16, linewidth=0)
    above.plot(looks.events, looks.value[:, candidate], color=BLUE, linewidth=1.5, label="estimated lift, 95% interval")
    above.plot(checks, lead[:, candidate], color="black", linewidth=1.2, linestyle=(0, (5, 2)), label="true lead")
    above.axhline(0, color=FAINT, linewidth=0.8)
    room = 0.6 * float(np.ptp(lead[:, candidate]))
    above.set_ylim(lead[:, candidate].min() - room, lead[:, candidate].max() + room)
    above.set_ylabel("reward per event", color=FAINT, fontsize=9)
    _rules(below, stretches, candidate, events)
    below.fill_between(
        checks,
        -0.5,
        len(RULES) - 0.5,
        where=(lead[:, candidate] < 0).tolist(),
        color=GRIDS,
        alpha=0.7,
        linewidth=0,
    )
    for axes in (above, below):
        make_plain(axes, "y")
        axes.set_xlim(0, events)
    below.grid(visible=False)
    below.xaxis.set_major_formatter(_thousands)
    below.set_xlabel("events; grey: production is better in truth", loc="left", color=FAINT, fontsize=9)
    above.legend(loc="upper right", frameon=False, fontsize=9, ncols=2)
    title = "When is the candidate better, and when does each rule report it?"
    figure.text(0.06, 0.945, title, fontsize=14, fontweight="bold", color=INK)
    figure.subplots_adjust(left=0.09, right=0.97, top=0.91, bottom=0.09, hspace=0.06)
    figure.savefig(path, metadata={"Software": None})


def _looks(reports: Sequence[Report], candidates: Sequence[str]) -> Looks:
    numbers = np.full((3, len(reports), len(candidates)), np.nan)
    for index, report in enumerate(reports):
        for estimate in report.estimates:
            if estimate.policy in candidates:
                lift_numbers = (estimate.lift, estimate.lift_lower, estimate.lift_upper)
                column = candidates.index(estimate.policy)
                numbers[:, index, column] = [np.nan if number is None else number for number in lift_numbers]
    return Looks(np.array([float(report.events.accepted) for report in reports]), *numbers)


def _rules(axes: Axes, stretches: Sequence[Stretch], candidate: int, events: int) -> None:
    for height, rule in enumerate(reversed(RULES)):
        own = [stretch for stretch in stretches if (stretch.rule, stretch.candidate) == (rule, candidate)]
        bars = [(stretch.start, (events if stretch.end is None else stretch.end) - stretch.start) for stretch in own]
        axes.broken_barh(bars, (height - 0.3, 0.6), color=RULE_COLOURS[rule], linewidth=0, zorder=3)
    axes.set_yticks(range(len(RULES)), [f"{rule}" for rule in reversed(RULES)])
    axes.set_ylim(-0.5, len(RULES) - 0.5)


def one_week(path: Path, seed: int = 0) -> None:
    """Draw the true lift of a loser with good evenings by the hour, and when each rule calls whom promotable."""
    log, found = watch_days(next(iter(WORLDS)), seed)
    hours = np.arange(7 * 24 + 1)
    lift = (log.rates @ (log.policies - 1 / log.policies.shape[1]).T)[hours]
    figure = Figure(figsize=(10.5, 6.2), dpi=150, facecolor="white")
    above, *below = figure.subplots(3, 1, sharex=True, height_ratios=(2.2, 1, 1))
    for name, column, colour in zip(NAMES, lift.T, (ORANGE, BLUE), strict=True):
        above.step(hours / 24, column, where="post", color=colour, linewidth=1.5, label=f"true lift of the {name}")
    above.axhline(0, color=FAINT, linewidth=0.8)
    above.set_ylabel("reward per event", color=FAINT, fontsize=9)
    above.legend(loc="upper right", frameon=False, fontsize=9, ncols=2)
    above.set_ylim(top=1.3 * lift.max())
    for candidate, axes in enumerate(below):
        for height, rule in enumerate(reversed(DAY_RULES)):
            bars = [
                (float(hour) / 24, 1.05 / 24) for hour in np.flatnonzero(found.looks[rule][: len(hours) - 1, candidate])
            ]
            colour = ORANGE if candidate == LOSER else BLUE
            axes.broken_barh(bars, (height - 0.3, 0.6), color=colour, linewidth=0, zorder=3)
        axes.set_yticks(range(len(DAY_RULES)), list(reversed(DAY_RULES)))
        axes.set_ylim(-0.5, len(DAY_RULES) - 0.5)
        axes.set_title(f"{NAMES[candidate]}: hours at whose end it is promotable", loc="left", fontsize=9, color=FAINT)
    for axes in (above, *below):
        make_plain(axes, "x")
        axes.set_xlim(0, 7)
    below[-1].set_xlabel("days", loc="left", color=FAINT, fontsize=9)
    figure.text(
        0.06, 0.945, "Who is better over the day, and who is called better?", fontsize=14, fontweight="bold", color=INK
    )
    figure.subplots_adjust(left=0.09, right=0.97, top=0.91, bottom=0.08, hspace=0.28)
    figure.savefig(path, metadata={"Software": None})


def delays(scores: Sequence[Score], path: Path) -> None:
    """Draw the share of leads that each rule has found by number of events, in drifting settings."""
    settings = [name for name in ("smooth", "abrupt") if any(score.setting == name for score in scores)]
    figure = Figure(figsize=(10.5, 4.3), dpi=150, facecolor="white")
    panels = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
    for axes, setting in zip(panels, settings, strict=True):
        for rule in RULES:
            own = [score for score in scores if (score.setting, score.rule) == (setting, rule)]
            waited = np.sort([math.inf if delay is None else delay for score in own for delay in score.delays])
            if len(waited):
                share = np.arange(1, len(waited) + 1) / len(waited)
                finite = np.isfinite(waited)
                axes.step(
                    waited[finite],
                    share[finite],
                    where="post",
                    color=RULE_COLOURS[rule],
                    linewidth=1.7,
                    label=_text(rule, own),
                )
        axes.axhline(0.5, color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)))
        make_plain(axes, "y")
        axes.set_xlim(0, 100_000)
        axes.set_ylim(0, 1)
        axes.set_title(setting, loc="left", fontsize=11, color=INK, pad=8)
        axes.xaxis.set_major_formatter(_thousands)
        axes.set_xlabel("events since the candidate became better", loc="left", color=FAINT, fontsize=9)
        axes.legend(loc="upper left", fontsize=8.5, frameon=False)
    panels[0].set_ylabel("leads found", color=FAINT, fontsize=9)
    title = "How soon is a lead found, and how often is a worse candidate called better?"
    figure.text(0.06, 0.93, title, fontsize=14, fontweight="bold", color=INK)
    figure.subplots_adjust(left=0.06, right=0.97, top=0.83, bottom=0.13, wspace=0.08)
    figure.savefig(path, metadata={"Software": None, "Results": f"{crc32(repr(scores).encode()):08x}"})


def _text(rule: str, own: Sequence[Score]) -> str:
    promotable = sum(score.promotable for score in own)
    worse = sum(score.worse for score in own) / max(1, promotable)
    return f"{rule}: {worse:.1%} of what it promotes is worse"


def _thousands(count: float, _: int | None) -> str:
    return f"{count / 1000:g}k" if count else "0"


def make_plain(axes: Axes, grid: Literal["both", "x", "y"] = "both") -> None:
    """Apply the style of all figures: a line below, and a faint grid."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.grid(axis=grid, color=GRIDS, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=FAINT, labelsize=9, length=0, pad=5)
