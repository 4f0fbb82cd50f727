"""Fill in the table and the figures in the text of README.md from results.json: `python summary.py`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TABLES = {
    "revealed": {
        "true": "true",
        "naive": "mean of the revealed ones",
        "ips": "`scored_ips`",
        "snips": "`scored_snips`",
        "bayes": "`scored_snips`, estimated propensities",
    },
    "wrong": {"true": "true", "lemma": "bias by the lemma", "bias": "measured bias of `scored_ips`"},
}
"""Columns of the tables of revealed ratings."""


def fill_in(document: str, results: Mapping[str, Any]) -> str:
    """Replace the tables, each after a line `<!-- table: name -->`, and figures, each before `<!-- =name -->`."""

    def table(match: re.Match[str]) -> str:
        columns = TABLES[match[2]]
        lines = [("predictor", *columns.values()), ("---",) * (len(columns) + 1)]
        lines += [(name, *(cell(*row[column]) for column in columns)) for name, row in results["revealed"].items()]
        return match[1] + "".join(f"| {' | '.join(line)} |\n" for line in lines)

    document = re.sub(r"(<!-- table: (\w+) -->\n)(?:\|[^\n]*\n)*", table, document)
    texts = figures(results)
    return re.sub(r"[^\s(]+<!-- =(\w+) -->", lambda match: f"{texts[match[1]]}<!-- ={match[1]} -->", document)


def figures(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the figures of the text by name: errors at the best cap of `cab`, and values with three of ten actions."""
    errors, support = results["errors"], results["support"]
    cab, cab_dr = errors_by_cap(errors, "cab"), errors_by_cap(errors, "cab_dr")
    best = min(cab, key=lambda cap: cab[cap])
    better = [cap for cap, error in cab_dr.items() if error < errors["dr"]]
    three = support["supported"].index(3)
    estimated = {label: values[three] for label, values in support["estimates"].items()}
    return {
        "best_cap": f"{best:.0f}",
        "cab_over_ips": short(cab[best] / errors["ips"]),
        "cab_over_dm": short(cab[best] / errors["dm"]),
        "cab_dr_over_ips": short(cab_dr[best] / errors["ips"]),
        "cab_dr_over_dm": short(cab_dr[best] / errors["dm"]),
        "better_from": f"{min(better):.0f}",
        "better_to": f"{max(better):.0f}",
        "unsupported": f"{100 * support['unsupported'][three]:.0f}",
        "value": short(support["value"]),
        **{f"value_{label}": short(value) for label, value in estimated.items()},
    }


def errors_by_cap(errors: Mapping[str, float], label: str) -> dict[float, float]:
    """Return the errors of an estimator by its cap."""
    names = {name: name.split(" ") for name in errors}
    return {float(parts[1]): errors[name] for name, parts in names.items() if parts[0] == label}


def cell(mean: float, deviation: float) -> str:
    return f"{mean:.3f} ± {deviation:.3f}"


def short(number: float) -> str:
    return f"{number:.2f}".removeprefix("0")


if __name__ == "__main__":
    readme = HERE / "README.md"
    readme.write_text(fill_in(readme.read_text(), json.loads((HERE / "results.json").read_text())))
