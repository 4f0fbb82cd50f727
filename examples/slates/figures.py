"""Draw the two figures of the README, and write `results.json`: `python figures.py`, some minutes on one core.

Needs matplotlib.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from simulation import Array, Log, Reward, err, errors, expected, ndcg, runs, value, with_models, world

mpl.use("Agg")

HERE = Path(__file__).parent
SIZES = (1_000, 3_162, 10_000, 31_623, 100_000)
RUNS = 50
MODEL_SIZES = SIZES[:3]
COLOURS = {"IPS": "#767676", "DM": "#b5739d", "PI": "#56a3d9", "wPI": "#0a4f8f", "on-policy": "#2a9d63"}
LEGEND = {
    "IPS": "IPS: the slate as one action",
    "DM": "DM: ridge regression",
    "PI": "pseudo_inverse",
    "wPI": "weighted_pseudo_inverse",
    "on-policy": "on-policy: the new ranker shown to users",
}


def draw(axes: Axes, errors: dict[str, Array], title: str) -> None:
    """Draw one panel with an error line per estimator."""
    for name, colour in COLOURS.items():
        style = "--" if name == "on-policy" else "-"
        axes.loglog(SIZES, errors[name], style, color=colour, label=LEGEND[name], lw=2, marker="o", ms=4)
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel("logged slates")
    axes.grid(which="major", color="#e6e6e6", lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.minorticks_off()
    axes.set_xticks([1_000, 10_000, 100_000], ["1,000", "10,000", "100,000"])


def finish(figure: plt.Figure, title: str, name: str) -> None:
    """Add title and legend, and write the file."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=3, frameon=False, fontsize=9)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    figure.savefig(HERE / name, dpi=130)


def errors_of_sizes() -> dict[str, Any]:
    """Draw and return errors of NDCG against the number of slates, for two sizes and two logging policies."""
    results = {}
    figure, panels = plt.subplots(2, 2, figsize=(9, 7.6), sharex=True, sharey=True, layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0.08, 1, 0.91))
    for row, (slots, actions) in zip(panels, ((5, 10), (10, 100)), strict=True):
        for axes, (peak, logging) in zip(row, ((0.0, "uniform"), (1.0, "peaked")), strict=True):
            log = Log(world(slots, actions), peak)
            panel_errors = errors(runs(log, ndcg, SIZES, RUNS), value(log.world, ndcg))
            results[f"{slots} of {actions}, {logging}"] = rounded(panel_errors)
            draw(axes, panel_errors, f"{slots} of {actions} documents, {logging} logging")
            axes.label_outer()
        row[0].set_ylabel("root mean squared error")
        row[0].set_yticks([0.001, 0.01, 0.1, 1], [".001", ".01", ".1", "1"])
    finish(figure, "NDCG of a new ranker, from the log of another", "rmse.png")
    return results


def biases_of_rewards() -> dict[str, float]:
    """Draw the error of an additive reward and of one that is not, and return the biases of the latter by size."""
    small = Log(world(5, 10), 0.0)
    biases = {"5 of 10": expected(small, err) / value(small.world, err) - 1}
    figure, panels = plt.subplots(1, 2, figsize=(9, 4.6), sharey=True, layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0.13, 1, 0.86))
    log = Log(world(10, 100), 0.0)
    rewards: tuple[tuple[Reward, str], ...] = ((ndcg, "NDCG, a sum over slots"), (err, "ERR, not a sum"))
    for axes, (reward, title) in zip(panels, rewards, strict=True):
        truth = value(log.world, reward)
        estimates = runs(log, reward, SIZES, RUNS)
        panel_errors = {name: error / truth for name, error in errors(estimates, truth).items()}
        draw(axes, panel_errors, title)
        if reward is err:
            bias = biases["10 of 100"] = float(estimates["PI"][:, -1].mean()) / truth - 1
            axes.axhline(bias, color=COLOURS["PI"], lw=1, ls=":")
            position = {"xytext": (0, -12), "textcoords": "offset points", "fontsize": 9}
            axes.annotate(f"bias: {bias:.0%} of the truth", (SIZES[0], bias), **position)
    panels[0].set_ylabel("root mean squared error / truth")
    panels[0].set_yticks([0.001, 0.01, 0.1, 1], [".1 %", "1 %", "10 %", "100 %"])
    finish(
        figure,
        "Where slots do not add up, more data does not help (10 of 100, uniform)",
        "additive.png",
    )
    return {size: float(f"{bias:.3g}") for size, bias in biases.items()}


def models() -> dict[str, Any]:
    """Return the errors of estimators with a model of slots, and how much of the gain a policy with one has."""
    panels = {"5 of 10, uniform": 0.0, "5 of 10, peaked": 1.0}
    found = {name: rounded(with_models(Log(world(5, 10), peak), MODEL_SIZES, RUNS)) for name, peak in panels.items()}
    return {"sizes": MODEL_SIZES, "panels": found}


def rounded(panel_errors: dict[str, Array]) -> dict[str, list[float]]:
    """Round the numbers of a panel for storage."""
    return {name: [float(f"{number:.4g}") for number in line] for name, line in panel_errors.items()}


if __name__ == "__main__":
    results = {
        "sizes": SIZES,
        "runs": RUNS,
        "errors": errors_of_sizes(),
        "bias": biases_of_rewards(),
        "models": models(),
    }
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
