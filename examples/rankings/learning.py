"""Learn rankers from the clicks on production, and evaluate them on the way: `python learning.py`, a few minutes.

It writes `learning.json`. Then `python summary.py` writes the numbers into the README. Needs scikit-learn.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from study import HERE, rounded
from world import CLICKS, DATA, FEATURES, Array, Queries, Traffic, trained

from streameval import Evaluator, EventBatch, LearnedRanker

PAGES, BLOCK = 40_000, 100
RANKERS = {
    "hinge": LearnedRanker(),
    "dcg": LearnedRanker(loss="dcg"),
    "hinge, CounterSample": LearnedRanker(counter_sample=True),
    "hinge, plain clicks": LearnedRanker(clip=1.0),
}
RANKING = {"metric": {"kind": "dcg", "at": 10}, "examination": {"kind": "power", "eta": 1.0}}


def learned(asked: Queries, others: Queries, model: str, pages: int = PAGES, seed: int = 5) -> dict[str, Any]:
    """Return for each ranker its estimated lift, the true mean lift of its blocks, and its true lifts at the end.

    Args:
        asked: Queries that users ask. Production is trained on the grades of the first ten.
        others: Queries that nobody asks.
        model: Model of clicks.
        pages: Number of pages.
        seed: Seed of the clicks.
    """
    production = trained(asked, asked.grade.astype(float), np.arange(10))
    base = lifts_over(asked, production, model), lifts_over(others, production, model)
    ranks = asked.ranks(production)
    traffic = Traffic(asked, ranks, np.array(CLICKS[model])[asked.grade])
    columns = [traffic.rank_table(column)[..., None] for column in asked.features.T]
    features = np.concatenate(columns, axis=-1)
    evaluator = Evaluator(RANKERS, ["click_ips"], ["cumulative"], promotion=None, drift=None, ranking=RANKING)
    random, truth = np.random.default_rng(seed), dict.fromkeys(RANKERS, 0.0)
    for _ in range(pages // BLOCK):
        for name in RANKERS:
            truth[name] += base[0](evaluator.learned(name)["weights"]) / (pages // BLOCK)
        query, clicked = traffic.clicks(BLOCK, random)
        evaluator.update(EventBatch.from_rankings(clicks=clicked, ranks={}, features=features[query]))
    rows, report = {}, evaluator.report()
    for name in RANKERS:
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
    results = {model: learned(data.part(0, 2), data.part(1, 2), model) for model in CLICKS}
    (HERE / "learning.json").write_text(json.dumps(rounded(results), indent=1) + "\n")
