"""Draw stored results: the road of an event next to other software, and all ratios with their spread."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import road
from matplotlib import pyplot
from measuring import Result, Spread
from published import RESULTS

REACHED, MISSED, NEUTRAL = "#2a7f4f", "#b3541e", "#4a5a78"
PUBLISHED = "#8a6d9a"
ROAD_HEIGHT, ROW_HEIGHT = 6.0, 0.27
"""Inches."""
APART = 1.25
"""Smallest ratio of the heights of two labels."""
FROM_BROKER = {
    "confluent, batches": "v",
    "kafka-python, batches": "^",
    "confluent": "s",
    "kafka-python": "D",
}
"""Markers of the whole daemon on a broker, by work."""


def draw(results: Mapping[str, Result], path: Path) -> None:
    """Draw the road, and the ratios of all benchmarks. A bar reaches from the lowest to the highest value."""
    rows = [(f"{name}: {label}", ratio) for name, result in results.items() for label, ratio in result.ratios.items()]
    heights = (ROAD_HEIGHT, ROW_HEIGHT * len(rows) + 0.6)
    figure = pyplot.figure(figsize=(11, sum(heights)), layout="constrained")
    upper, lower = figure.subfigures(2, height_ratios=heights)
    draw_road(upper.subplots(), results)
    draw_ratios(lower.subplots(), rows)
    figure.savefig(path, dpi=90)


def draw_road(axes: Any, results: Mapping[str, Result]) -> None:
    """Draw the processor time of an event by the number of candidates, with other software as horizontal lines."""
    own, broker, peers = (results[name].microseconds for name in ("road", "from_kafka", "peers"))
    counts = list(road.SIZES)
    evaluation = [own[road.evaluation(count)] for count in counts]
    for form, color in zip(road.FORMATS, (MISSED, REACHED), strict=True):
        decoding = [own[road.decoding(form, count)] for count in counts]
        whole = [sum(parts) for parts in zip(decoding, evaluation, strict=True)]
        axes.plot(counts, whole, "o-", color=color, label=f"{form}: decoding and evaluation")
        axes.plot(counts, decoding, "o--", color=color, alpha=0.5, label=f"{form}: decoding")
    axes.plot(counts, evaluation, "o:", color=NEUTRAL, label="evaluation")
    for work, marker in FROM_BROKER.items():
        axes.plot(10, broker[work], marker, color="black", markersize=7, label=f"the daemon from Kafka: {work}")
    lines = {
        "orjson.loads": own[road.YARDSTICK],
        **{f"empty loop, {work}": broker[work] for work in ("polls of confluent", "polls of kafka-python")},
        "vw-estimators, 10 candidates": peers["vw-estimators, Gaussian"],
    }
    published = {f"{result.name} (published)": result.microseconds for result in RESULTS}
    place = 0.0
    for label, value in sorted((lines | published).items(), key=itemgetter(1)):
        color, place = PUBLISHED if label in published else NEUTRAL, max(value, APART * place)
        axes.axhline(value, color=color, linewidth=0.8, alpha=0.7)
        axes.text(14_000, place, f"{label}: {value:.3g}", color=color, fontsize=7, va="center")
    axes.set(xscale="log", yscale="log", xlabel="candidates", ylabel="us of processor time an event")
    axes.set_xlim(0.8, 13_000)
    sizes = [results["road"].megabytes[road.state(count)].median for count in counts]
    axes.set_xticks(counts, [f"{count:,}\n{size:,g} MB of state" for count, size in zip(counts, sizes, strict=True)])
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="upper left")
    axes.set_title("The road of an event. Published results come from other machines and jobs", fontsize=9, loc="left")


def draw_ratios(axes: Any, rows: list[tuple[str, Spread]]) -> None:
    """Draw ratios, each with its spread and the wanted ratio."""
    for row, (_, ratio) in enumerate(rows):
        color = NEUTRAL if ratio.wanted is None else REACHED if ratio.median <= ratio.wanted else MISSED
        axes.plot([ratio.lowest, ratio.highest], [row, row], color=color, linewidth=5, alpha=0.35)
        axes.plot(ratio.median, row, "o", color=color, markersize=5)
        if ratio.wanted is not None:
            axes.plot(ratio.wanted, row, "|", color="black", markersize=11)
    axes.set(xscale="log", ylim=(len(rows) - 0.4, -0.6), xlabel="ratio of processor times, log scale; less is better")
    axes.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=8)
    axes.grid(axis="x", alpha=0.3)
    axes.set_title(
        "| at most this is wanted;  green: reached, orange: missed, blue: nothing is wanted", fontsize=9, loc="left"
    )
