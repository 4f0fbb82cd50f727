"""The results of the README: `python study.py [FOLDER]`, some minutes on one core. Needs scikit-learn.

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
"""Of the run with a new layout: items on a page, pages, the first page of the new layout, pages between two Reports."""
CORRECTIONS = {"corrected": 1.0, "naive": 0.0}
"""How users are assumed to look at rank k: with probability `k ** -eta`."""


def rankers(queries: Queries, model: str) -> dict[str, Array]:
    """The weights of production, and of candidates that are trained on grades or on clicks on production."""
    random = np.random.default_rng(2)
    attractive = np.array(CLICKS[model])[queries.grade]
    every, grade = np.arange(queries.count), queries.grade.astype(float)
    production = trained(queries, grade, every[:10])
    ranks = queries.ranks(production)
    asked, clicked = Traffic(queries, ranks, attractive).clicks(TRAINING_PAGES, random)
    clicks = np.zeros((queries.count, clicked.shape[1]))
    np.add.at(clicks, asked, np.nan_to_num(clicked))
    counted = clicks[queries.owner, ranks - 1]
    return {
        "production": production,
        "grades": trained(queries, grade, every),
        "clicks": trained(queries, counted, every),
        "weighted clicks": trained(queries, counted * ranks, every),
        "random": random.normal(size=len(production)),
    }


def evaluator(candidates: list[str], eta: float) -> Evaluator:
    ranking = {"metric": {"kind": "dcg", "at": 10}, "examination": {"kind": "power", "eta": eta}}
    return Evaluator(candidates, ["click_ips"], ["cumulative"], promotion=None, drift=None, ranking=ranking)


def errors(training: Queries, judged: Queries, model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The root mean squared error of lifts against the number of clicks, and all candidates after one run."""
    weights = rankers(training, model)
    attractive = np.array(CLICKS[model])[judged.grade]
    ranks = {name: judged.ranks(each) for name, each in weights.items()}
    traffic = Traffic(judged, ranks.pop("production"), attractive)
    truth = {name: judged.value(each, attractive) for name, each in ranks.items()}
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
            for place, (first, size) in enumerate(zip((0, *SIZES), SIZES, strict=False)):
                learner.update(batch[first:size])
                report = learner.report()
                rows = {each: report.get(each, "click_ips", "cumulative") for each in ranks}
                squares[name][place] += np.mean([(rows[each].lift - last[each]["truth"]) ** 2 for each in ranks]) / RUNS
            for each, row in rows.items():
                last[each][name] = [row.lift, row.lift_lower, row.lift_upper]
                covered += name == "corrected" and row.lift_lower <= last[each]["truth"] <= row.lift_upper
    found = {name: np.sqrt(each).tolist() for name, each in squares.items()}
    return {"clicks": clicks.tolist(), **found, "covered": covered / RUNS / len(ranks)}, last


def new_layout(training: Queries, judged: Queries) -> dict[str, Any]:
    """Pages of the first items of production with swaps, on which users suddenly look further down."""
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
    found: dict[str, Any] = {"truth": lift, "pages": [], "ok": [], "lift": [], "looks": []}
    for first in range(0, LAYOUT_PAGES, LOOK):
        learner.update(batch[first : first + LOOK])
        report = learner.report()
        known = [each for each in report.estimates if each.policy == "weighted clicks"]
        if len(report.examination) < SHOWN or not known or known[0].lift is None:
            continue
        found["pages"].append(first + LOOK)
        found["ok"].append(all(each.ok for each in report.trust if each.check == "examination"))
        found["lift"].append([known[0].lift, known[0].lift_lower, known[0].lift_upper])
        found["looks"].append([[each.value, each.lower, each.upper] for each in report.examination])
    failed = [page for page, ok in zip(found["pages"], found["ok"], strict=True) if not ok]
    alarms = [page for page in failed if page <= CHANGE]
    return found | {"false_alarms": float(len(alarms)), "noticed_after": float(min(failed) - CHANGE)}


def shown_pages(queries: Queries, production: Integers, scores: Array, attractive: Array) -> tuple[EventBatch, float]:
    """The pages of a run with a new layout, and the mean of the true lift of a candidate with these scores."""
    random = np.random.default_rng(4)
    traffic = Traffic(queries, production, attractive)
    enough = np.flatnonzero(np.diff(queries.start) >= SHOWN)
    asked = random.choice(enough, LAYOUT_PAGES)
    order = np.tile(np.arange(SHOWN), (LAYOUT_PAGES, 1))
    rows, other = np.flatnonzero(random.random(LAYOUT_PAGES) < 0.3), random.integers(1, SHOWN, LAYOUT_PAGES)
    order[rows, 0], order[rows, other[rows]] = other[rows], 0
    swap = np.zeros((LAYOUT_PAGES, 2))
    swap[rows] = np.column_stack([np.ones(len(rows)), other[rows] + 1])
    liked, scored = (traffic.at_rank(each)[asked[:, None], order] for each in (attractive, scores))
    eta = np.where(np.arange(LAYOUT_PAGES) < CHANGE, 1.0, 0.5)[:, None]
    looks = np.arange(1.0, SHOWN + 1) ** -eta
    clicks = (random.random(liked.shape) < liked * looks).astype(float)
    ranks = 1.0 + np.argsort(np.argsort(-scored, axis=1), axis=1)
    gain = 1 / np.log2(np.arange(2.0, SHOWN + 2))
    lift = (liked * (gain[ranks.astype(int) - 1] - gain)).sum(axis=1).mean()
    return EventBatch.from_rankings(clicks=clicks, ranks={"weighted clicks": ranks}, swap=swap), float(lift)


def rounded(value: Any) -> Any:
    """The numbers as they are stored."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    data = Queries.read(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA)
    training, judged = data.part(0, 2), data.part(1, 2)
    results: dict[str, Any] = {"sizes": SIZES, "runs": RUNS, "errors": {}, "lifts": {}}
    for model in CLICKS:
        results["errors"][model], results["lifts"][model] = errors(training, judged, model)
    results["layout"] = new_layout(training, judged)
    (HERE / "results.json").write_text(json.dumps(rounded(results), indent=1) + "\n")
