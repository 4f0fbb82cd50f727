"""Compute the results of the README: `python study.py [FOLDER]`, some minutes on one core. Needs scikit-learn.

`FOLDER` has other data in the form of `data`. Then `python figures.py` draws the pictures, and `python summary.py`
writes the numbers into the README.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from world import CLICKS, DATA, Array, Integers, Queries, Traffic, trained

from streameval import Evaluator, EventBatch

HERE = Path(__file__).parent
SIZES = (300, 1_000, 3_000, 10_000, 30_000)
RUNS = 100
TRAINING_PAGES = 40_000
SHOWN, LAYOUT_PAGES, CHANGE, LOOK = 8, 80_000, 40_000, 2_000
"""Items on a page, pages, the first page of the new layout, and pages between two Reports, in the run with a change."""
CORRECTIONS = {"corrected": 1.0, "naive": 0.0}
"""Assumed exponents eta: users look at rank k with probability `k ** -eta`."""


def rankers(queries: Queries, model: str) -> dict[str, Array]:
    """Return the weights of production, and of candidates that are trained on grades or on clicks on production."""
    random = np.random.default_rng(2)
    attractive = np.array(CLICKS[model])[queries.grade]
    all_queries, grade = np.arange(queries.count), queries.grade.astype(float)
    production = trained(queries, grade, all_queries[:10])
    ranks = queries.ranks(production)
    asked, clicked = Traffic(queries, ranks, attractive).clicks(TRAINING_PAGES, random)
    clicks = np.zeros((queries.count, clicked.shape[1]))
    np.add.at(clicks, asked, np.nan_to_num(clicked))
    counted = clicks[queries.owner, ranks - 1]
    return {
        "production": production,
        "grades": trained(queries, grade, all_queries),
        "clicks": trained(queries, counted, all_queries),
        "weighted clicks": trained(queries, counted * ranks, all_queries),
        "random": random.normal(size=len(production)),
    }


def evaluator(candidates: list[str], eta: float) -> Evaluator:
    ranking = {"metric": {"kind": "dcg", "at": 10}, "examination": {"kind": "power", "eta": eta}}
    return Evaluator(candidates, ["click_ips"], ["cumulative"], promotion=None, drift=None, ranking=ranking)


def errors(training: Queries, judged: Queries, model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the root mean squared error of lifts against the number of clicks, and all candidates after one run."""
    weights = rankers(training, model)
    attractive = np.array(CLICKS[model])[judged.grade]
    ranks = {name: judged.ranks(ranker) for name, ranker in weights.items()}
    traffic = Traffic(judged, ranks.pop("production"), attractive)
    truth = {name: judged.value(order, attractive) for name, order in ranks.items()}
    base = judged.value(traffic.production, attractive)
    clicks = np.zeros(len(SIZES))
    squares = {name: np.zeros(len(SIZES)) for name in CORRECTIONS}
    last: dict[str, Any] = {name: {"truth": value - base} for name, value in truth.items()}
    covered = 0
    for run in range(RUNS):
        asked, clicked = traffic.clicks(SIZES[-1], np.random.default_rng([3, run]))
        batch = traffic.batch(asked, clicked, ranks)
        clicks += np.nancumsum(np.nansum(clicked, axis=1))[np.array(SIZES) - 1] / RUNS
        for name, eta in CORRECTIONS.items():
            learner = evaluator([*ranks], eta)
            for index, (first, size) in enumerate(zip((0, *SIZES), SIZES, strict=False)):
                learner.update(batch[first:size])
                report = learner.report()
                rows = {candidate: report.get(candidate, "click_ips", "cumulative") for candidate in ranks}
                squares[name][index] += (
                    np.mean([(rows[candidate].lift - last[candidate]["truth"]) ** 2 for candidate in ranks]) / RUNS
                )
            for candidate, row in rows.items():
                last[candidate][name] = [row.lift, row.lift_lower, row.lift_upper]
                covered += name == "corrected" and row.lift_lower <= last[candidate]["truth"] <= row.lift_upper
    rmse = {name: np.sqrt(square).tolist() for name, square in squares.items()}
    return {"clicks": clicks.tolist(), **rmse, "covered": covered / RUNS / len(ranks)}, last


def new_layout(training: Queries, judged: Queries) -> dict[str, Any]:
    """Evaluate pages with swaps of production's first items. After a change, users look further down the page."""
    model = "position-biased"
    weights = rankers(training, model)
    attractive = np.array(CLICKS[model])[judged.grade]
    production = judged.ranks(weights["production"])
    batch, lift = shown_pages(judged, production, judged.features @ weights["weighted clicks"], attractive)
    learner = Evaluator(
        ["weighted clicks"],
        ["click_ips"],
        ["mixture"],
        ranking={"metric": {"kind": "dcg", "at": SHOWN}, "examination": {"kind": "swaps", "ranks": SHOWN}},
    )
    layout: dict[str, Any] = {"truth": lift, "pages": [], "ok": [], "lift": [], "looks": []}
    for first in range(0, LAYOUT_PAGES, LOOK):
        learner.update(batch[first : first + LOOK])
        report = learner.report()
        lifts = [estimate for estimate in report.estimates if estimate.policy == "weighted clicks"]
        if len(report.examination) < SHOWN or not lifts or lifts[0].lift is None:
            continue
        layout["pages"].append(first + LOOK)
        layout["ok"].append(all(estimate.ok for estimate in report.trust if estimate.check == "examination"))
        layout["lift"].append([lifts[0].lift, lifts[0].lift_lower, lifts[0].lift_upper])
        layout["looks"].append([[estimate.value, estimate.lower, estimate.upper] for estimate in report.examination])
    failed = [page for page, ok in zip(layout["pages"], layout["ok"], strict=True) if not ok]
    alarms = [page for page in failed if page <= CHANGE]
    return layout | {"false_alarms": float(len(alarms)), "noticed_after": float(min(failed) - CHANGE)}


def shown_pages(queries: Queries, production: Integers, scores: Array, attractive: Array) -> tuple[EventBatch, float]:
    """Return the pages of a run with a new layout, and the mean true lift of a candidate with these scores."""
    random = np.random.default_rng(4)
    traffic = Traffic(queries, production, attractive)
    enough = np.flatnonzero(np.diff(queries.start) >= SHOWN)
    asked = random.choice(enough, LAYOUT_PAGES)
    order = np.tile(np.arange(SHOWN), (LAYOUT_PAGES, 1))
    rows, other = np.flatnonzero(random.random(LAYOUT_PAGES) < 0.3), random.integers(1, SHOWN, LAYOUT_PAGES)
    order[rows, 0], order[rows, other[rows]] = other[rows], 0
    swap = np.zeros((LAYOUT_PAGES, 2))
    swap[rows] = np.column_stack([np.ones(len(rows)), other[rows] + 1])
    liked, scored = (traffic.rank_table(values)[asked[:, None], order] for values in (attractive, scores))
    eta = np.where(np.arange(LAYOUT_PAGES) < CHANGE, 1.0, 0.5)[:, None]
    looks = np.arange(1.0, SHOWN + 1) ** -eta
    clicks = (random.random(liked.shape) < liked * looks).astype(float)
    ranks = 1.0 + np.argsort(np.argsort(-scored, axis=1), axis=1)
    gain = 1 / np.log2(np.arange(2.0, SHOWN + 2))
    lift = (liked * (gain[ranks.astype(int) - 1] - gain)).sum(axis=1).mean()
    return EventBatch.from_rankings(clicks=clicks, ranks={"weighted clicks": ranks}, swap=swap), float(lift)


def rounded(value: Any) -> Any:
    """Round the numbers for storage."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    data = Queries.read(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA)
    training, judged = data.part(0, 2), data.part(1, 2)
    results: dict[str, Any] = {"sizes": SIZES, "runs": RUNS, "errors": {}, "lifts": {}}
    for model in CLICKS:
        results["errors"][model], results["lifts"][model] = errors(training, judged, model)
    results["layout"] = new_layout(training, judged)
    (HERE / "results.json").write_text(json.dumps(rounded(results), indent=1) + "\n")
