"""Fill in the tables and the figures of README.md from results.json: `python summary.py`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
COLUMNS = {
    "IPS": "IPS",
    "DM": "DM",
    "PI": "`pseudo_inverse`",
    "wPI": "`weighted_pseudo_inverse`",
    "on-policy": "on-policy",
}
LARGE = ("10 of 100, uniform", "10 of 100, peaked")


def fill_in(document: str, results: Mapping[str, Any]) -> str:
    """Replace the table after each line `<!-- table: name -->`, and figures, each before `<!-- =name -->`."""
    tables = {"errors": errors_table(results), "models": models_table(results)}
    table = r"(<!-- table: (\w+) -->\n)(?:\|[^\n]*\n)*"
    document = re.sub(table, lambda match: f"{match[1]}{tables[match[2]]}", document)
    texts = figures(results)
    return re.sub(r"[^\s(]+<!-- =(\w+) -->", lambda match: f"{texts[match[1]]}<!-- ={match[1]} -->", document)


def errors_table(results: Mapping[str, Any]) -> str:
    """Return the errors at the largest size."""
    head = f"| at {results['sizes'][-1]:,} slates | {' | '.join(COLUMNS.values())} |\n|{'---|' * (len(COLUMNS) + 1)}\n"
    return head + "".join(
        f"| {panel} | {' | '.join(short(errors[name][-1], 4 if name == 'on-policy' else 3) for name in COLUMNS)} |\n"
        for panel, errors in results["errors"].items()
    )


def models_table(results: Mapping[str, Any]) -> str:
    """Return the errors with and without a model of slots at each size, and the share of the gain."""
    sizes, panels = results["models"]["sizes"], results["models"]["panels"]
    names = next(iter(panels.values()))
    titles = ["share of the gain" if name == "share" else f"`{name}`" for name in names]
    return f"| log | slates | {' | '.join(titles)} |\n|{'---|' * (len(names) + 2)}\n" + "".join(
        f"| {panel} | {size:,} | {' | '.join(short(column[index], 3) for column in columns.values())} |\n"
        for panel, columns in panels.items()
        for index, size in enumerate(sizes)
    )


def figures(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the figures of the text by name. Figures of 10 of 100 documents are the worse of both logs."""
    errors = [results["errors"][panel] for panel in LARGE]
    ratio = max(panel["wPI"][-1] / panel["IPS"][-1] for panel in errors)
    data = max((panel["on-policy"][-1] / min(panel["PI"][-1], panel["wPI"][-1])) ** 2 for panel in errors)
    worst = [
        size
        for index, size in enumerate(results["sizes"])
        if all(panel["wPI"][index] == max(line[index] for line in panel.values()) for panel in errors)
    ]
    models = results["models"]["panels"].values()
    return {
        "weighted_over_ips": short(ratio, 2),
        "weighted_worst": f"{max(worst):,}",
        "data_on_policy": short(100 * data, 2),
        "model_over_none": short(max(panel["dr_pi"][-1] / panel["pseudo_inverse"][-1] for panel in models), 2),
        "model_over_weighted": short(
            max(panel["dr_pi"][-1] / panel["weighted_pseudo_inverse"][-1] for panel in models), 2
        ),
        "share_first": short(min(panel["share"][0] for panel in models), 2),
        "share_last": short(min(panel["share"][-1] for panel in models), 2),
        "bias_large": f"{100 * results['bias']['10 of 100']:.0f}",
        "bias_small": f"{100 * results['bias']['5 of 10']:.1f}",
    }


def short(number: float, decimals: int) -> str:
    return f"{number:.{decimals}f}".removeprefix("0")


if __name__ == "__main__":
    readme = HERE / "README.md"
    readme.write_text(fill_in(readme.read_text(), json.loads((HERE / "results.json").read_text())))
