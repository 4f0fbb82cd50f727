"""Draw stored ratios, each with its spread and the wanted ratio."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot
from measuring import Result

REACHED, MISSED, NEUTRAL = "#2a7f4f", "#b3541e", "#4a5a78"


def draw(results: Mapping[str, Result], path: Path) -> None:
    """Draw the ratios of all benchmarks. A bar reaches from the lowest to the highest value."""
    rows = [(name, label, ratio) for name, result in results.items() for label, ratio in result.ratios.items()]
    figure, axes = pyplot.subplots(figsize=(11, 0.27 * len(rows) + 1.2), layout="constrained")
    for row, (_, _, ratio) in enumerate(rows):
        color = NEUTRAL if ratio.wanted is None else REACHED if ratio.median <= ratio.wanted else MISSED
        axes.plot([ratio.lowest, ratio.highest], [row, row], color=color, linewidth=5, alpha=0.35)
        axes.plot(ratio.median, row, "o", color=color, markersize=5)
        if ratio.wanted is not None:
            axes.plot(ratio.wanted, row, "|", color="black", markersize=11)
    axes.set(xscale="log", ylim=(len(rows) - 0.4, -0.6), xlabel="ratio of processor times, log scale; less is better")
    axes.set_yticks(range(len(rows)), [f"{name}: {label}" for name, label, _ in rows], fontsize=8)
    axes.grid(axis="x", alpha=0.3)
    axes.set_title(
        "| at most this is wanted;  green: reached, orange: missed, blue: nothing is wanted", fontsize=9, loc="left"
    )
    figure.savefig(path, dpi=110)
