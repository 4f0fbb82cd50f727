"""Draw the true value of the policy served against events, and when each rule deployed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
from loop import LOOK, NEVER, RULES, Run
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from summary import select_runs

RULE_COLOURS = {"bsea": "#0072b2", "sea": "#009e73", "anytime": "#d55e00", "paired": "#cc79a7", NEVER: "#6f6f6f"}
"""After Okabe and Ito: distinct for colour-blind readers, and legible on white."""
INK, FAINT, GRIDS = "#222222", "#6f6f6f", "#e6e6e6"


def draw(runs: Sequence[Run], path: Path) -> None:
    """Draw the mean over seeds above, and each deployment of each seed below."""
    events = max(run.events for run in runs)
    looks = np.arange(LOOK, events + 1, LOOK, dtype=float)
    figure = Figure(figsize=(10.5, 7.2), dpi=150, facecolor="white")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.5, 1))
    for rule in RULES:
        paths = np.array([run.served_after(looks) for run in select_runs(runs, rule)])
        label = "never: the baseline" if rule == NEVER else rule
        above.plot(looks, paths.mean(axis=0), color=RULE_COLOURS[rule], linewidth=1.8, label=label)
    alone = np.mean([run.learned for run in select_runs(runs, NEVER)])
    above.axhline(float(alone), color=RULE_COLOURS[NEVER], linewidth=1, linestyle=(0, (4, 3)))
    above.annotate(
        "learned from the baseline's log alone, at the end",
        (looks[0], alone),
        xytext=(4, 4),
        textcoords="offset points",
        color=FAINT,
        fontsize=9,
    )
    above.set_ylabel("true value of the policy served, mean of all seeds", color=FAINT, fontsize=9)
    above.set_ylim(0.5, 1.0)
    above.legend(loc="lower right", frameon=False, fontsize=9, ncols=3)
    _deployments(below, runs)
    for axes in (above, below):
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(FAINT)
        axes.grid(axis="y" if axes is above else "x", color=GRIDS, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(which="both", colors=FAINT, labelsize=9, length=0, pad=5)
        axes.set_xlim(0, events)
    below.xaxis.set_major_formatter(lambda count, _: f"{count / 1000:g}k" if count else "0")
    below.set_xlabel("events; one row per seed, large: the first deployment", loc="left", color=FAINT, fontsize=9)
    title = "What does each rule earn, and when does it deploy the challenger?"
    figure.text(0.06, 0.95, title, fontsize=14, fontweight="bold", color=INK)
    figure.subplots_adjust(left=0.09, right=0.97, top=0.92, bottom=0.08, hspace=0.08)
    figure.savefig(path, metadata={"Software": None, "Results": f"{crc32(repr(runs).encode()):08x}"})


def _deployments(axes: Axes, runs: Sequence[Run]) -> None:
    """Draw a row for each rule with a line for each seed."""
    rules = [rule for rule in RULES if rule != NEVER]
    for height, rule in enumerate(reversed(rules)):
        rule_runs = select_runs(runs, rule)
        for index, run in enumerate(rule_runs):
            row = height + 0.4 - 0.8 * (index + 0.5) / len(rule_runs)
            times = [deployment.event for deployment in run.deployments]
            axes.scatter(times[:1], [row] * len(times[:1]), s=16, color=RULE_COLOURS[rule], linewidth=0, zorder=3)
            axes.scatter(times[1:], [row] * len(times[1:]), s=3, color=RULE_COLOURS[rule], linewidth=0, alpha=0.6)
    axes.set_yticks(range(len(rules)), list(reversed(rules)))
    axes.set_ylim(-0.5, len(rules) - 0.5)
