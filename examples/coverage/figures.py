"""Draw the miss rates and widths of intervals, and misses over all looks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from zlib import crc32

import numpy as np
from intervals import EVENTS, LOOKS, Answer, Cell, answers
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from summary import KINDS, PROMISED, Row, promised
from worlds import WORLDS, draw

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7a4fa3", "#8b5a2b")
"""After Okabe and Ito: distinct for colour-blind readers, and legible on white."""
INK, FAINT, GRIDS = "#222222", "#6f6f6f", "#e6e6e6"


SHAPES = {
    "still": "still",
    "drifting": "drifting",
    "learning": "logging policy that learns",
    "sessions": "sessions, one after the other",
    "crowd": "sessions, 50 at a time",
}
KIND_COLOURS = dict(zip(KINDS, (COLOURS[1], COLOURS[2], COLOURS[0], COLOURS[4], COLOURS[3], INK), strict=True))
WATCHED = ("still-mild-0.3", "still-heavy-0.3", "still-heavy-0.03")
WATCHED_PARTS = ("fixed", "watched", "mixture")
NUDGE = 0.13
"""Gap between the shapes of worlds in one line of the figure."""


def misses(rows: Sequence[Row], path: Path) -> None:
    """Draw the intervals of values and lifts in all worlds as dots, one line for each kind of interval."""
    figure = Figure(figsize=(10.5, 5.4), dpi=150, facecolor="white")
    panels = figure.subplots(1, 3, sharey=True)
    normal = {
        (row.world, row.average, row.estimator, row.quantity): row.half_width for row in rows if row.kind == "normal"
    }
    shown = [row for row in rows if row.kind in KINDS and promised(row)]
    for index, (shape, message) in enumerate(SHAPES.items()):
        shape_rows = [row for row in shown if WORLDS[row.world].shape == shape]
        height = np.array([-KINDS.index(row.kind) + (2 - index) * NUDGE for row in shape_rows])
        widths = [
            row.half_width / (normal.get((row.world, row.average, row.estimator, row.quantity)) or np.nan)
            for row in shape_rows
        ]
        for axes, numbers in zip(
            panels, ([row.miss for row in shape_rows], [row.ever for row in shape_rows], widths), strict=True
        ):
            axes.plot(
                numbers, height, ".", color=COLOURS[index], alpha=0.45, markersize=5, markeredgewidth=0, label=message
            )
    for axes, title in zip(panels, ("misses at a single look", "misses at any of 60 looks"), strict=False):
        axes.axvline(PROMISED, color="black", linestyle="--", linewidth=1)
        axes.set_xscale("function", functions=(np.sqrt, np.square))
        axes.set_xlim(-0.0, 1)
        axes.set_xticks([0, 0.05, 0.2, 0.5, 1], ["0", "5 %", "20 %", "50 %", ""])
        _plain(axes, title)
    panels[2].set_xscale("log")
    panels[2].set_xticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    panels[2].minorticks_off()
    _plain(panels[2], "width, in widths of normal")
    panels[0].set_yticks(-np.arange(len(KINDS)), [kind.replace(", ", ",\n") for kind in KINDS])
    handles, labels = panels[0].get_legend_handles_labels()
    legend = figure.legend(
        handles, labels, loc="upper left", bbox_to_anchor=(0.01, 0.93), ncols=5, frameon=False, fontsize=9
    )
    for line in legend.get_lines():
        line.set(alpha=1.0, markersize=10)
    figure.text(
        0.018, 0.945, "How often 95 % intervals miss, and how wide they are", fontsize=14, fontweight="bold", color=INK
    )
    figure.subplots_adjust(left=0.15, right=0.985, top=0.8, bottom=0.06, wspace=0.06)
    figure.savefig(path, metadata={"Software": None, "Results": f"{crc32(repr(rows).encode()):08x}"})


def watched(runs: int, path: Path) -> None:
    """Draw the share of runs in which an interval has missed so far, by look."""
    figure = Figure(figsize=(10.5, 3.9), dpi=150, facecolor="white")
    for axes, name in zip(figure.subplots(1, len(WATCHED), sharey=True), WATCHED, strict=True):
        world = WORLDS[name]
        streams = [dict(answers(world, draw(world, run, EVENTS), parts=WATCHED_PARTS)) for run in range(runs)]
        for kind, colour in KIND_COLOURS.items():
            cell = Cell("stratified_ips" if kind == "drift_aware" else "ips", _home(kind), kind, "value")
            missed = np.concatenate([_so_far(stream[cell]) for stream in streams])
            axes.plot(np.arange(1, LOOKS + 1), missed.mean(axis=0), color=colour, linewidth=1.8, label=kind)
        axes.axhline(PROMISED, color="black", linestyle="--", linewidth=1)
        axes.set_ylim(0, 0.8)
        axes.set_yticks([0, 0.05, 0.2, 0.4, 0.6, 0.8], ["0", "5 %", "20 %", "40 %", "60 %", "80 %"])
        axes.set_xlim(1, LOOKS)
        axes.set_xlabel("looks", loc="left", color=FAINT, fontsize=9)
        _plain(axes, f"{world.weights} weights, values near {world.level:g}")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper left", bbox_to_anchor=(0.04, 0.925), ncols=6, frameon=False, fontsize=8)
    title = "Continuous monitoring: runs in which the interval has missed so far"
    figure.text(0.05, 0.925, title, fontsize=14, fontweight="bold", color=INK)
    figure.subplots_adjust(left=0.06, right=0.985, top=0.75, bottom=0.13, wspace=0.08)
    figure.savefig(path, metadata={"Software": None})


def _home(kind: str) -> str:
    return "mixture" if kind == "drift_aware" else "cumulative"


def _so_far(answer: Answer) -> np.ndarray:
    missed = (answer.lower > answer.truth) | (answer.upper < answer.truth)
    return np.maximum.accumulate(missed, axis=1)


def _plain(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10.5, color=INK, pad=8)
    make_plain(axes)


def make_plain(axes: Axes, grid: Literal["both", "x", "y"] = "both") -> None:
    """Apply the style of all figures: a line below, and a faint grid."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.grid(axis=grid, color=GRIDS, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=FAINT, labelsize=9, length=0, pad=5)
