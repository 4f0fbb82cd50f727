"""Draw the two figures of the README, and write `results.json`: `python pictures.py`, some minutes.

Needs matplotlib.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from blending import CAPS, SUPPORTED, TAUS, Array, estimates, estimates_with_support, mean_squared_errors
from digits import DIGITS, Digits
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, FAINT, GRIDS = "#222222", "#6f6f6f", "#e6e6e6"


LOGS, EVENTS, CAP = 100, 10_000, 20.0
LOOKS = {
    "cab": ("CAB", "#0a4f8f", "-", 2.4),
    "cab_dr": ("CAB-DR", "#2a9d63", "-", 2.0),
    "switch": ("SWITCH", "#e07b00", "-", 2.0),
    "clipped_ips": ("clipped IPS", "#b5739d", "-", 2.0),
    "static_blend": ("static blend (upper scale)", "#8a8a8a", (0, (4, 1.5)), 1.6),
    "dm": ("DM", "#3a3a3a", (0, (1, 1.2)), 1.5),
    "dr": ("DR", "#2a9d63", (0, (1, 1.2)), 1.5),
    "ips": ("IPS", "#b5739d", (0, (1, 1.2)), 1.5),
}


def curve(axes: Axes, label: str, x: Array, y: Array, **looks: Any) -> None:
    """Draw the line of one estimator in its colour."""
    name, colour, style, width = LOOKS[label]
    axes.plot(x, y, **{"color": colour, "linestyle": style, "linewidth": width, "label": name} | looks)


def plain(axes: Axes) -> None:
    """Draw minimal axes."""
    axes.grid(color=GRIDS, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=FAINT, labelsize=9, which="both", length=0)


def blends(path: Path) -> dict[str, float]:
    """Draw the mean squared error against the cap or tau, and return errors by estimator and parameter."""
    digits = Digits.prepared()
    errors = mean_squared_errors(estimates(digits, LOGS, EVENTS), digits.value)
    caps, taus = np.array(CAPS), np.array(TAUS)
    figure = Figure(figsize=(8.6, 5.4), dpi=150, facecolor="white")
    axes = figure.add_axes((0.09, 0.1, 0.65, 0.72))
    for label in ("dm", "dr", "ips"):
        curve(axes, label, caps[[0, -1]], np.full(2, errors[label]))
    upper = axes.twiny()
    curve(upper, "static_blend", taus, np.array([errors[f"static_blend {tau:g}"] for tau in TAUS]))
    for label in ("clipped_ips", "switch", "cab_dr", "cab"):
        curve(axes, label, caps, np.array([errors[f"{label} {cap:g}"] for cap in CAPS]))
    best = min(CAPS, key=lambda cap: errors[f"cab {cap:g}"])
    axes.plot([best], [errors[f"cab {best:g}"]], "o", color=LOOKS["cab"][1], markersize=7)
    axes.set(xscale="log", yscale="log", xlim=(caps[0], caps[-1]), ylim=(1e-4, 1))
    axes.set_xlabel("cap M", color=FAINT, fontsize=9)
    axes.set_ylabel("mean squared error", color=FAINT, fontsize=9)
    plain(axes)
    upper.set_xlabel("tau of the static blend", color=FAINT, fontsize=9)
    upper.set_xlim(0, 1)
    upper.tick_params(colors=FAINT, labelsize=9, length=0)
    upper.spines[:].set_visible(False)
    handles = {str(line.get_label()): line for line in (*axes.lines, *upper.lines)}
    legend = [handles[name] for name, *_ in LOOKS.values()]
    figure.legend(handles=legend, loc="center left", bbox_to_anchor=(0.75, 0.46), frameon=False, fontsize=9)
    title(figure, "Between the model and the weights", f"{LOGS} logs of {EVENTS:,} events; digits as a bandit")
    figure.savefig(path)
    return {label: rounded(error) for label, error in errors.items()}


def supports(path: Path) -> dict[str, Any]:
    """Draw and return mean estimates and errors against the number of supported actions."""
    shown = {"cab": f"cab {CAP:g}", "switch": f"switch {CAP:g}", "dr": "dr", "dm": "dm", "ips": "ips"}
    logs, events = 30, EVENTS
    runs = [estimates_with_support(supported, logs, events, CAP) for supported in SUPPORTED]
    truth, missing = runs[0][0].value, [digits.unsupported for digits, _ in runs]
    figure = Figure(figsize=(8.6, 4.6), dpi=150, facecolor="white")
    left, right = figure.add_axes((0.08, 0.26, 0.4, 0.62)), figure.add_axes((0.58, 0.26, 0.4, 0.62))
    estimated: dict[str, list[float]] = {}
    left.axhline(truth, color=INK, linewidth=1.0)
    left.annotate("truth", (SUPPORTED[-1], truth), xytext=(0, 4), textcoords="offset points", ha="right", fontsize=9)
    for label, name in shown.items():
        values = np.array([estimates_by_name[name] for _, estimates_by_name in runs])
        curve(left, label, np.array(SUPPORTED), values.mean(axis=1), linestyle="-", marker="o", markersize=3.5)
        error = np.sqrt(((values - truth) ** 2).mean(axis=1))
        curve(right, label, np.array(SUPPORTED), error, linestyle="-", marker="o", markersize=3.5)
        estimated[label] = [rounded(mean) for mean in values.mean(axis=1)]
    left.set_ylabel("estimate, mean of the logs", color=FAINT, fontsize=9)
    right.set_ylabel("root mean squared error", color=FAINT, fontsize=9)
    right.set_ylim(bottom=0)
    for axes in (left, right):
        plain(axes)
        ticks = [f"{count}\n{share:.0%}" for count, share in zip(SUPPORTED, missing, strict=True)]
        axes.set_xticks(SUPPORTED, ticks)
        axes.set_xlabel(
            "actions of ten that are ever logged,\nand how often the target takes another", color=FAINT, fontsize=9
        )
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="lower center", ncols=len(names), frameon=False, fontsize=9)
    title(
        figure,
        "Actions that are never logged",
        f"{logs} logs of {events:,} events each; CAB and SWITCH with M = {CAP:g}",
    )
    figure.savefig(path)
    shares = [rounded(share) for share in missing]
    return {"supported": SUPPORTED, "unsupported": shares, "value": rounded(truth), "estimates": estimated}


def rounded(number: float) -> float:
    """Round a number for storage."""
    return float(f"{number:.4g}")


def title(figure: Figure, message: str, remark: str) -> None:
    """Add the title, with the settings in small print."""
    figure.text(0.02, 0.945, message, fontsize=13, fontweight="bold", color=INK)
    figure.text(0.98, 0.947, remark, fontsize=9, color=FAINT, ha="right")


if __name__ == "__main__":
    here = Path(__file__).parent
    assert max(SUPPORTED) <= DIGITS
    results = {"support": supports(here / "unsupported.png"), "errors": blends(here / "blending.png")}
    stored = json.loads((here / "results.json").read_text())
    (here / "results.json").write_text(json.dumps(stored | results, indent=1) + "\n")
