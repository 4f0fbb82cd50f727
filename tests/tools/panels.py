"""Draws the panels of the dashboards from a real Prometheus, so that someone looks at their queries and legends:

PYTHONPATH=tests .venv/bin/python tests/tools/panels.py FOLDER [SECONDS] [PART OF A TITLE]

These are not pictures of Grafana. Titles, legends, units, colors and filled areas are those of the panels.
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
COLORS = {"text": "black"}
Series = dict[str, Any]


def draw(folder: Path, seconds: float, wanted: str) -> None:
    """Write a picture of each panel whose title contains `wanted`, after the daemons were watched for this long."""
    mpl.use("agg")
    with TemporaryDirectory() as place, monitored_daemons(Path(place)) as client:
        time.sleep(seconds)
        end = time.time()
        chosen = [panel for panel in panels() if wanted.lower() in panel.title.lower()]
        for number, panel in enumerate(chosen):
            found = [asked(client, each, end - seconds, end) for each in panel.queries]
            figure = Figure(figsize=(panel.content["gridPos"]["w"] / 2, 4), layout="constrained")
            axes = figure.subplots()
            axes.set_title(filled_in(panel.title, CHOSEN), loc="left")
            (table if panel.content["type"] == "table" else lines)(axes, panel, found)
            figure.savefig(folder / f"{number:02} {panel.title.replace('/', ' ')[:40]}.png", dpi=70)


def asked(client: httpx.Client, expression: str, start: float, end: float) -> list[Series]:
    """The series of a query over this time."""
    given: dict[str, Any] = {"query": filled_in(expression, CHOSEN), "start": start, "end": end, "step": STEP}
    return list(client.get("/api/v1/query_range", params=given).raise_for_status().json()["data"]["result"])


def lines(axes: Axes, panel: Panel, found: list[list[Series]]) -> None:
    """Lines over time, in the color and with the filled area that an override gives to their name."""
    looks = {
        override["matcher"]["options"]: {
            each["id"].removeprefix("custom."): each["value"] for each in override["properties"]
        }
        for override in panel.content["fieldConfig"].get("overrides", [])
    }
    every = [each for series in found for each in series]
    names = panel.legends([[each["metric"] for each in series] for series in found])
    points = {
        name: [(float(at), float(value)) for at, value in each["values"]]
        for name, each in zip(names, every, strict=True)
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


def table(axes: Axes, panel: Panel, found: list[list[Series]]) -> None:
    """The newest values, a row for each value of the one label."""
    headings = [target["legendFormat"] for target in panel.content["targets"]]
    cells: dict[str, list[str]] = {}
    for column, series in enumerate(found):
        for each in series:
            (name,) = each["metric"].values()
            cells.setdefault(name, ["" for _ in headings])[column] = f"{float(each['values'][-1][1]):.4g}"
    axes.axis("off")
    rows = [[name, *values] for name, values in cells.items()]
    drawn = axes.table(rows, colLabels=["", *headings], loc="upper left")
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(7)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    draw(target, float(sys.argv[2]) if len(sys.argv) > 2 else 60.0, sys.argv[3] if len(sys.argv) > 3 else "")
