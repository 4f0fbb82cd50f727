"""Learn rankers from the clicks on production, and evaluate them on the way: `python learning.py`, a few minutes.

It writes `learning.json`. `python learning.py biases` varies how users look and what pages show, and writes
`biases.json`. Then `python summary.py` writes the numbers into the README. Needs scikit-learn.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from study import HERE, rounded
from world import CLICKS, CUT, DATA, FEATURES, Array, Queries, Traffic, trained

from streameval import Evaluator, EventBatch, LearnedRanker

PAGES, BLOCK = 40_000, 100
RANKERS = {
    "hinge": LearnedRanker(),
    "dcg": LearnedRanker(loss="dcg"),
    "hinge, CounterSample": LearnedRanker(counter_sample=True),
    "hinge, plain clicks": LearnedRanker(clip=1.0),
}
BIASES = [("perfect", 0.0), *((model, gamma) for model in ("position-biased", "near random") for gamma in (1.0, 2.0))]
"""Models of clicks, and gamma: users look at rank k with probability `k ** -gamma`."""
CUTS = (None, CUT)
"""Number of documents that pages show, None = all."""
SEEDS = (5, 6, 7)


def learned(
    asked: Queries,
    others: Queries,
    model: str,
    rankers: Sequence[str] = tuple(RANKERS),
    gamma: float = 1.0,
    shown: int | None = None,
    pages: int = PAGES,
    seed: int = 5,
) -> dict[str, Any]:
    """Return for each ranker its estimated lift, the true mean lift of its blocks, and its true lifts at the end.

    Args:
        asked: Queries that users ask. Production is trained on the grades of the first ten.
        others: Queries that nobody asks.
        model: Model of clicks.
        rankers: Names of the rankers.
        gamma: Users look at rank k with probability `k ** -gamma`.
        shown: Pages show the first documents of production, this many. None shows all. The lifts of blocks are about
            the order of the page, and the lifts at the end about the order of all documents.
        pages: Number of pages.
        seed: Seed of the clicks.
    """
    production = trained(asked, asked.grade.astype(float), np.arange(10))
    base = lifts_over(asked, production, model), lifts_over(others, production, model)
    page = asked.only(asked.ranks(production) <= (shown or asked.grade.size))
    page_lift = lifts_over(page, production, model)
    traffic = Traffic(page, page.ranks(production), np.array(CLICKS[model])[page.grade], gamma)
    columns = [traffic.rank_table(column)[..., None] for column in page.features.T]
    features = np.concatenate(columns, axis=-1)
    ranking = {"metric": {"kind": "dcg", "at": CUT}, "examination": {"kind": "power", "eta": gamma}}
    candidates = {name: RANKERS[name] for name in rankers}
    evaluator = Evaluator(candidates, ["click_ips"], ["cumulative"], promotion=None, drift=None, ranking=ranking)
    random, truth = np.random.default_rng(seed), dict.fromkeys(rankers, 0.0)
    for _ in range(pages // BLOCK):
        for name in rankers:
            truth[name] += page_lift(evaluator.learned(name)["weights"]) / (pages // BLOCK)
        query, clicked = traffic.clicks(BLOCK, random)
        evaluator.update(EventBatch.from_rankings(clicks=clicked, ranks={}, features=features[query]))
    rows, report = {}, evaluator.report()
    for name in rankers:
        row, weights = report.get(name, "click_ips", "cumulative"), evaluator.learned(name)["weights"]
        rows[name] = {
            "estimate": [row.lift, row.lift_lower, row.lift_upper],
            "truth": truth[name],
            "last": base[0](weights),
            "others": base[1](weights),
        }
    grades = trained(asked, asked.grade.astype(float), np.arange(asked.count))
    return rows | {"grades": {"last": base[0](grades[None]), "others": base[1](grades[None])}}


def lifts_over(queries: Queries, production: Array, model: str) -> Any:
    """Return the function from the weights of a ranker [0 or 1, 300] to its true lift over production."""
    attractive = np.array(CLICKS[model])[queries.grade]
    value = queries.value(queries.ranks(production), attractive)

    def lift(weights: Array) -> float:
        return queries.value(queries.ranks(weights[0]), attractive) - value if len(weights) else 0.0

    return lift


if __name__ == "__main__":
    data = Queries.read(DATA)
    assert data.features.shape[1] == FEATURES
    parts = data.part(0, 2), data.part(1, 2)
    if sys.argv[1:] == ["biases"]:
        rows = [
            {"clicks": model, "gamma": gamma, "shown": shown, "seed": seed}
            | learned(*parts, model, ("hinge", "dcg"), gamma, shown, seed=seed)
            for seed in SEEDS
            for model, gamma in BIASES
            for shown in CUTS
        ]
        (HERE / "biases.json").write_text("[\n" + ",\n".join(json.dumps(rounded(row)) for row in rows) + "\n]\n")
    else:
        results = {model: learned(*parts, model) for model in CLICKS}
        (HERE / "learning.json").write_text(json.dumps(rounded(results), indent=1) + "\n")
