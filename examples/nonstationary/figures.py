"""Draw estimates against the truth, error against memory, and the time after a jump."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from zlib import crc32

import numpy as np
from contest import AB_TEST, ALPHAS, IN_TABLE, WINDOWS
from experiment import PHASES, Track, follow
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from summary import THOUSANDTHS, Mean
from worlds import Scene

from streameval.simulation import DriftKind

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7a4fa3", "#8b5a2b")
"""After Okabe and Ito: distinct for colour-blind readers, and legible on white."""
INK, FAINT, GRIDS = "#222222", "#6f6f6f", "#e6e6e6"

BLUE, ORANGE, GREEN, PINK = COLOURS[:4]
DEFAULT = "stratified_dr / mixture"
DRAWN = {"ips / cumulative": ORANGE, "ips / window": GREEN, DEFAULT: BLUE}
TEXTS = {
    "ips / cumulative": "IPS since the start",
    "ips / window": "IPS, last 10,000 events",
    DEFAULT: "stratified DR on the mixture",
    AB_TEST: "A/B test, last 10,000 events",
    "ips / adaptive_decay, published": "IPS, adaptive decay as published",
    "regression-assisted dr": "regression-assisted DR",
}
MOVING: tuple[DriftKind, ...] = ("smooth", "abrupt")


def estimates(scene: Scene, path: Path, events: int, seed: int = 0) -> None:
    """Draw the truth and three estimates for one candidate, with smooth change above and abrupt change below."""
    world = scene.make()
    chosen = [contestant for contestant in IN_TABLE if contestant.name in DRAWN]
    figure = Figure(figsize=(10.5, 7.4), dpi=150, facecolor="white")
    panels = figure.subplots(2, 1, sharex=True)
    for axes, kind in zip(panels, MOVING, strict=True):
        track = follow(chosen, world, scene.drift(kind, world), events, seed)
        _estimates(axes, track, int(np.ptp(track.truth, axis=0).argmax()))
        axes.set_title(f"{kind} change", loc="left", fontsize=11, color=INK, pad=8)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper right", bbox_to_anchor=(0.985, 0.935), ncols=4, frameon=False, fontsize=9)
    panels[1].set_xlabel("events", loc="left", color=FAINT, fontsize=9)
    panels[1].xaxis.set_major_formatter(_thousands)
    title = "What is the candidate worth now? Shaded: 95% intervals"
    figure.text(0.06, 0.962, title, fontsize=14, fontweight="bold", color=INK)
    figure.subplots_adjust(left=0.06, right=0.985, top=0.865, bottom=0.07, hspace=0.16)
    figure.savefig(path, metadata={"Software": None})


def _estimates(axes: Axes, track: Track, candidate: int) -> None:
    for name, colour in DRAWN.items():
        value, lower, upper = (column[:, candidate] for column in track.answers[name])
        axes.fill_between(track.events, lower, upper, color=colour, alpha=0.16, linewidth=0)
        axes.plot(track.events, value, color=colour, linewidth=1.5, label=TEXTS[name])
    truth = track.truth[:, candidate]
    axes.plot(track.events, truth, color="black", linewidth=1.2, linestyle=(0, (5, 2)), label="truth")
    room = 0.25 * np.ptp(truth)
    axes.set_ylim(truth.min() - room, truth.max() + room)
    axes.set_xlim(0, track.events[-1])
    make_plain(axes, "y")
    axes.set_ylabel("reward per event", color=FAINT, fontsize=9)


def forgetting(means: Sequence[Mean], path: Path) -> None:
    """Draw the error of decays and windows against their memory, with the error of the default as a line."""
    lookup = {(mean.contestant, mean.setting): mean for mean in means}
    figure = Figure(figsize=(10.5, 4.3), dpi=150, facecolor="white")
    settings = ("smooth", "abrupt", "stationary")
    for axes, setting in zip(figure.subplots(1, 3, sharey=True), settings, strict=True):
        decays = [lookup[f"ips / decay {alpha:g}", setting].mse * THOUSANDTHS for alpha in ALPHAS]
        windows = [lookup[f"ips / window {tau}", setting].mse * THOUSANDTHS for tau in WINDOWS]
        axes.plot([1 / (1 - alpha) for alpha in ALPHAS], decays, "o-", color=PINK, markersize=4, label="IPS, decay")
        axes.plot(WINDOWS, windows, "s-", color=GREEN, markersize=4, label="IPS, window")
        for name, colour, style in (("ips / mixture", ORANGE, "--"), (DEFAULT, BLUE, "-")):
            label = TEXTS.get(name, "IPS on the mixture")
            axes.axhline(
                lookup[name, setting].mse * THOUSANDTHS, color=colour, linestyle=style, linewidth=1.6, label=label
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        make_plain(axes, "both")
        axes.set_title(setting, loc="left", fontsize=11, color=INK, pad=8)
        axes.set_xlabel("events remembered: 1/(1 - alpha), or the window", loc="left", color=FAINT, fontsize=8.5)
    lowest = min(mean.mse for mean in means if mean.contestant == DEFAULT)
    figure.axes[0].set_ylim(bottom=0.8 * lowest * THOUSANDTHS)  # a horizontal line does not extend the axis
    figure.axes[0].set_ylabel("mean squared error, thousandths", color=FAINT, fontsize=9)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper right", bbox_to_anchor=(0.99, 0.9), ncols=4, frameon=False, fontsize=9)
    title = "No single memory suits every world; the mixture needs no setting"
    figure.text(0.06, 0.93, title, fontsize=14, fontweight="bold", color=INK)
    figure.subplots_adjust(left=0.06, right=0.985, top=0.745, bottom=0.13, wspace=0.08)
    figure.savefig(path, metadata={"Software": None, "Results": f"{crc32(repr(means).encode()):08x}"})


def jumps(means: Sequence[Mean], path: Path, span: int) -> None:
    """Draw error and coverage in the abrupt setting by the time since the last jump."""
    abrupt = {mean.contestant: mean for mean in means if mean.setting == "abrupt"}
    names = ("ips / adaptive_decay, published", "ips / window", "regression-assisted dr", DEFAULT)
    colours = (PINK, GREEN, ORANGE, BLUE)
    figure = Figure(figsize=(10.5, 4.2), dpi=150, facecolor="white")
    left, right = figure.subplots(1, 2)
    middle = (np.arange(PHASES) + 0.5) * span / PHASES
    for name, colour in zip(names, colours, strict=True):
        error = [value * THOUSANDTHS for value in abrupt[name].phase_mse if value is not None]
        left.plot(middle, error, "o-", color=colour, markersize=4, label=TEXTS[name])
        right.plot(middle, [*map(float, filter(None, abrupt[name].phase_coverage))], "o-", color=colour, markersize=4)
    test = [value * THOUSANDTHS for value in abrupt[AB_TEST].phase_mse if value is not None]
    left.plot(middle, test, "--", color="black", linewidth=1.2, label=TEXTS[AB_TEST])
    left.set_yscale("log")
    left.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    left.set_ylabel("mean squared error, thousandths", color=FAINT, fontsize=9)
    right.axhline(0.95, color="black", linestyle="--", linewidth=1.2)
    right.text(span, 0.942, "nominal", ha="right", va="top", color=FAINT, fontsize=9)
    right.set_ylabel("intervals that hold the value now", color=FAINT, fontsize=9)
    for axes in (left, right):
        make_plain(axes, "y")
        axes.set_xlim(0, span)
        axes.xaxis.set_major_formatter(_thousands)
        axes.set_xlabel("events since the last jump (means over tenths)", loc="left", color=FAINT, fontsize=9)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper right", bbox_to_anchor=(0.99, 0.91), ncols=4, frameon=False, fontsize=9)
    figure.text(0.06, 0.935, "After a jump", fontsize=14, fontweight="bold", color=INK)
    figure.subplots_adjust(left=0.06, right=0.975, top=0.8, bottom=0.125, wspace=0.18)
    figure.savefig(path, metadata={"Software": None, "Results": f"{crc32(repr(means).encode()):08x}"})


def _thousands(count: float, _: int | None) -> str:
    return f"{count / 1000:g}k" if count else "0"


def make_plain(axes: Axes, grid: Literal["both", "x", "y"] = "both") -> None:
    """Apply the style of all figures: a line below, and a faint grid."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.grid(axis=grid, color=GRIDS, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=FAINT, labelsize=9, length=0, pad=5)
