"""Draw the figures of the README from results.json: `python figures.py`. Needs matplotlib."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

mpl.use("Agg")

HERE = Path(__file__).parent
COLOURS = {"corrected": "#0a4f8f", "naive": "#b5739d"}
LABELS = {"corrected": "click_ips, users look at rank k with probability 1 / k", "naive": "plain clicks"}
CHANGE = 40_000


def draw_errors(results: Mapping[str, Any]) -> None:
    """Draw the root mean squared error against the number of clicks, one panel for each model of clicks."""
    figure, panels = plt.subplots(1, len(results["errors"]), figsize=(10, 4.2), sharey=True)
    figure.set_layout_engine("constrained", rect=(0, 0.1, 1, 0.9))
    for axes, (model, model_errors) in zip(panels, results["errors"].items(), strict=True):
        clicks = np.array(model_errors["clicks"])
        for name, colour in COLOURS.items():
            axes.loglog(clicks, model_errors[name], color=colour, label=LABELS[name], lw=2, marker="o", ms=4)
        falling = model_errors["corrected"][0] * np.sqrt(clicks[0] / clicks)
        axes.loglog(clicks, falling, ":", color="#767676", label="1 / sqrt(clicks)", lw=1.2)
        axes.set_title(model, fontsize=10, loc="left")
        axes.set_xlabel("clicks")
    panels[0].set_ylabel("root mean squared error of the lift")
    finish(figure, panels, "Errors of lifts over production", "rmse.png", results)


def draw_layout(results: Mapping[str, Any]) -> None:
    """Draw the learned probability of a look at rank 4 and the lift, before and after a new layout."""
    layout = results["layout"]
    pages, truth = np.array(layout["pages"]), np.where(np.array(layout["pages"]) <= CHANGE, 4**-1.0, 4**-0.5)
    figure, panels = plt.subplots(2, 1, figsize=(9, 6), sharex=True)
    figure.set_layout_engine("constrained", rect=(0, 0.06, 1, 0.94))
    series = [np.array(layout["looks"])[:, 3], np.array(layout["lift"])]
    texts = ["looks at rank 4, relative to rank 1", "lift of the candidate (mixture)"]
    for axes, values, exact, text in zip(
        panels, series, (truth, np.full(len(pages), layout["truth"])), texts, strict=True
    ):
        axes.plot(pages, values[:, 0], color=COLOURS["corrected"], lw=2, label="estimate")
        axes.fill_between(
            pages, values[:, 1], values[:, 2], color=COLOURS["corrected"], alpha=0.15, lw=0, label="interval"
        )
        axes.step(pages, exact, where="pre", color="#222222", lw=1.2, ls="--", label="truth")
        failed = pages[~np.array(layout["ok"])]
        axes.plot(failed, np.full(len(failed), axes.get_ylim()[0]), "v", color="#c0392b", label="trust check fails")
        axes.set_title(text, fontsize=10, loc="left")
    panels[1].set_xlabel("pages")
    panels[1].xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    finish(figure, panels, "After 40,000 pages, users look further down the page", "layout.png", results)


def finish(figure: Figure, panels: Any, title: str, name: str, results: Mapping[str, Any]) -> None:
    """Add title, grid and legend, and write the file."""
    for axes in panels:
        axes.grid(which="major", color="#e6e6e6", lw=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, frameon=False, fontsize=9)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    figure.savefig(HERE / name, dpi=110, metadata={"Results": f"{crc32(repr(results).encode()):08x}"})


if __name__ == "__main__":
    results = json.loads((HERE / "results.json").read_text())
    draw_errors(results)
    draw_layout(results)
