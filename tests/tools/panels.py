"""Draw the panels of the dashboards from a real Prometheus, so that someone looks at their queries and legends:

PYTHONPATH=tests .venv/bin/python tests/tools/panels.py FOLDER [SECONDS] [PART OF A TITLE]

These are not pictures of Grafana, but have the titles, legends, units, colors and filled areas of the panels.
"""

from __future__ import annotations

import sys
import time
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from support.deployed import Panel, filled_in, panels
from support.integration.monitored import CHOSEN, monitored_daemons

STEP = 2
"""Seconds between the points of a line."""
Series = dict[str, Any]


def draw(folder: Path, seconds: float, wanted: str) -> None:
    """Watch the daemons, and write a picture of each panel with `wanted` in its title.

    Args:
        folder: Where to write the pictures.
        seconds: How long to watch the daemons.
        wanted: Part of the title.
    """
    mpl.use("agg")
    with TemporaryDirectory() as directory, monitored_daemons(Path(directory)) as client:
        time.sleep(seconds)
        end = time.time()
        chosen = [panel for panel in panels() if wanted.lower() in panel.title.lower()]
        for number, panel in enumerate(chosen):
            results = [query_range(client, query, end - seconds, end) for query in panel.queries]
            figure = Figure(figsize=(panel.content["gridPos"]["w"] / 2, 4), layout="constrained")
            axes = figure.subplots()
            axes.set_title(filled_in(panel.title, CHOSEN), loc="left")
            (table if panel.is_joined else lines)(axes, panel, results)
            figure.savefig(folder / f"{number:02} {panel.title.replace('/', ' ')[:40]}.png", dpi=70)


def query_range(client: httpx.Client, expression: str, start: float, end: float) -> list[Series]:
    """Query the series over this time."""
    parameters: dict[str, Any] = {"query": filled_in(expression, CHOSEN), "start": start, "end": end, "step": STEP}
    return list(client.get("/api/v1/query_range", params=parameters).raise_for_status().json()["data"]["result"])


def lines(axes: Axes, panel: Panel, results: list[list[Series]]) -> None:
    """Draw lines over time, in the color and with the filled area that an override gives to their name."""
    looks = {
        override["matcher"]["options"]: {
            item["id"].removeprefix("custom."): item["value"] for item in override["properties"]
        }
        for override in panel.content["fieldConfig"].get("overrides", [])
    }
    all_series = [series for result in results for series in result]
    names = panel.legends([[series["metric"] for series in result] for result in results])
    points = {
        name: [(float(timestamp), float(value)) for timestamp, value in series["values"]]
        for name, series in zip(names, all_series, strict=True)
    }
    palette = cycle(mpl.colormaps["tab10"].colors)  # type: ignore[attr-defined]
    for name, line in points.items():
        look = looks.get(name, {})
        color = look.get("color", {}).get("fixedColor") or next(palette)
        hidden = look.get("hideFrom", {}).get("legend", False)
        times, values = zip(*line, strict=True)
        axes.plot(times, values, color=color, lw=look.get("lineWidth", 1), label="_" if hidden else name)
        if (lowest := points.get(look.get("fillBelowTo", ""))) is not None and len(lowest) == len(line):
            axes.fill_between(times, [value for _, value in lowest], values, color=color, alpha=0.15)
    axes.set_ylabel(panel.content["fieldConfig"]["defaults"].get("unit", ""))
    axes.legend(fontsize=7)


def table(axes: Axes, panel: Panel, results: list[list[Series]]) -> None:
    """Draw the newest values, a row for each value of the only label."""
    headings = [target["legendFormat"] for target in panel.content["targets"]]
    cells: dict[str, list[str]] = {}
    for column, series in enumerate(results):
        for entry in series:
            (name,) = entry["metric"].values()
            cells.setdefault(name, ["" for _ in headings])[column] = f"{float(entry['values'][-1][1]):.4g}"
    axes.axis("off")
    rows = [[name, *values] for name, values in cells.items()]
    drawn = axes.table(rows, colLabels=["", *headings], loc="upper left")
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(7)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    draw(target, float(sys.argv[2]) if len(sys.argv) > 2 else 60.0, sys.argv[3] if len(sys.argv) > 3 else "")
