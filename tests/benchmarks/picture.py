"""A picture of stored ratios: each with its spread and the wanted ratio."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot
from measuring import Result

REACHED, MISSED, NEUTRAL = "#2a7f4f", "#b3541e", "#4a5a78"


def draw(results: Mapping[str, Result], path: Path) -> None:
    """Draw the ratios of all benchmarks, the best at the top of each; a bar reaches from the lowest to the highest."""
    rows = [(name, label, found) for name, result in results.items() for label, found in result.ratios.items()]
    figure, axes = pyplot.subplots(figsize=(11, 0.27 * len(rows) + 1.2), layout="constrained")
    for place, (_, _, found) in enumerate(rows):
        color = NEUTRAL if found.wanted is None else REACHED if found.median <= found.wanted else MISSED
        axes.plot([found.lowest, found.highest], [place, place], color=color, linewidth=5, alpha=0.35)
        axes.plot(found.median, place, "o", color=color, markersize=5)
        if found.wanted is not None:
            axes.plot(found.wanted, place, "|", color="black", markersize=11)
    axes.set(xscale="log", ylim=(len(rows) - 0.4, -0.6), xlabel="ratio of processor times, log scale; less is better")
    axes.set_yticks(range(len(rows)), [f"{name}: {label}" for name, label, _ in rows], fontsize=8)
    axes.grid(axis="x", alpha=0.3)
    axes.set_title(
        "| at most this is wanted;  green: reached, orange: missed, blue: nothing is wanted", fontsize=9, loc="left"
    )
    figure.savefig(path, dpi=110)
