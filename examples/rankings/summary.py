"""Fill in the tables and figures of README.md from the stored results: `python summary.py`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
JUDGED = "position-biased"
"""Model of clicks in the table of candidates."""


def fill_in(document: str, results: Mapping[str, Any]) -> str:
    """Replace tables, each after a line `<!-- table: name -->`, and figures, each before `<!-- =name -->`."""
    lines_by_name = {"candidates": candidates(results), "errors": errors(results)}
    for name, lines in (lines_by_name | {"learning": learning(), "biases": biases()}).items():
        head = f"<!-- table: {name} -->\n"
        document = re.sub(rf"{head}(?:\|[^\n]*\n)*", head + lines, document)
    texts = figures(results)
    return re.sub(r"[^\s(]+<!-- =(\w+) -->", lambda match: f"{texts[match[1]]}<!-- ={match[1]} -->", document)


def candidates(results: Mapping[str, Any]) -> str:
    """Return the table of the lifts of all candidates after the largest run."""
    lines = ["| candidate | true lift | `click_ips` | interval | plain clicks |", f"|{'---|' * 5}"]
    for name, row in results["lifts"][JUDGED].items():
        lift, lower, upper = row["corrected"]
        cells = (signed(row["truth"]), signed(lift), f"{signed(lower)} to {signed(upper)}", signed(row["naive"][0]))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def errors(results: Mapping[str, Any]) -> str:
    """Return the table of the errors after the smallest and the largest run."""
    lines = ["| clicks | `click_ips`: first | last | exponent | plain clicks: first | last |", f"|{'---|' * 6}"]
    for name, row in results["errors"].items():
        ends = [short(row[kind][index]) for kind in ("corrected", "naive") for index in (0, -1)]
        lines.append(
            f"| {name} | {ends[0]} | {ends[1]} | {slope(row):.2f} | {ends[2]} | {ends[3]} |".replace("-0.", "-.")
        )
    return "\n".join(lines) + "\n"


def learning() -> str:
    """Return the table of the rankers that learn, from learning.json."""
    lines = ["| clicks | ranker | `click_ips` | interval | true mean lift | lift at the end | new queries |"]
    lines.append(f"|{'---|' * 7}")
    for model, rows in json.loads((HERE / "learning.json").read_text()).items():
        for name, row in rows.items():
            lift, *ends = row.get("estimate", [None])
            seen = [signed(lift), " to ".join(map(signed, ends)), signed(row["truth"])] if ends else [""] * 3
            lines.append(f"| {' | '.join([model, name, *seen, signed(row['last']), signed(row['others'])])} |")
    return "\n".join(lines) + "\n"


def read_biases() -> list[dict[str, Any]]:
    """Return the rows of biases.json: models of clicks, gamma, and documents on a page, for several seeds."""
    rows: list[dict[str, Any]] = json.loads((HERE / "biases.json").read_text())
    return rows


def biases() -> str:
    """Return the table of the lifts of CF-RANK and CF-DCG at the end, as means over seeds with standard errors."""
    lines = ["| clicks | gamma | documents | CF-RANK | new queries | CF-DCG | new queries |", f"|{'---|' * 7}"]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in read_biases():
        groups.setdefault((row["clicks"], row["gamma"], row["shown"]), []).append(row)
    for (model, gamma, shown), rows in groups.items():
        lifts = [[row[ranker][lift] for row in rows] for ranker in ("hinge", "dcg") for lift in ("last", "others")]
        texts = [f"{signed(np.mean(each))} ± {short(np.std(each, ddof=1) / len(each) ** 0.5)}" for each in lifts]
        lines.append(f"| {' | '.join([model, f'{gamma:g}', str(shown or 'all'), *texts])} |")
    return "\n".join(lines) + "\n"


def slope(row: Mapping[str, Any]) -> float:
    """Return the exponent of the error as a power of the number of clicks."""
    return float(np.polyfit(np.log(row["clicks"]), np.log(row["corrected"]), 1)[0])


def figures(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the figures of the text by name."""
    judged, layout = results["lifts"][JUDGED], results["layout"]
    covered = np.mean([row["covered"] for row in results["errors"].values()])
    learned = [row[ranker] for row in read_biases() for ranker in ("hinge", "dcg")]
    inside = sum(row["estimate"][1] <= row["truth"] <= row["estimate"][2] for row in learned)
    return {
        "inside": f"{inside}",
        "learned": f"{len(learned)}",
        "covered": f"{100 * covered:.1f}",
        "best": signed(judged["weighted clicks"]["truth"]),
        "plain_best": signed(judged["weighted clicks"]["naive"][0]),
        "noticed_after": f"{layout['noticed_after']:,.0f}",
        "layout_lift": signed(layout["truth"]),
    }


def signed(number: float | np.floating[Any]) -> str:
    return f"{number:+.3f}".replace("0.", ".", 1)


def short(number: float | np.floating[Any]) -> str:
    return f"{number:.3f}".removeprefix("0")


if __name__ == "__main__":
    readme = HERE / "README.md"
    readme.write_text(fill_in(readme.read_text(), json.loads((HERE / "results.json").read_text())))
