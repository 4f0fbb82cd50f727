"""Compare rankers that learn from clicks with a logged one, after decoding: pages of 20 items x 25 features.

A ranker that learns may add 40 us to a page.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from measuring import Benchmark, Ratio, updating

from streameval import ClickIPS, Cumulative, Evaluator, EventBatch, LearnedRanker

ITEMS, FEATURES = 20, 25
CANDIDATES: dict[str, Any] = {
    "logged": "logged",
    "learned by hinge": LearnedRanker(),
    "learned by dcg": LearnedRanker(loss="dcg"),
}


def log(pages: int, seed: int = 20190211) -> EventBatch:
    """Make pages with features, clicks on items of first ranks, and the whole lists of a candidate."""
    rng = np.random.default_rng(seed)
    clicks = rng.random((pages, ITEMS)) < 0.5 / np.arange(1, ITEMS + 1)
    ranks = 1 + np.argsort(rng.random((pages, ITEMS)), axis=1)
    features = rng.normal(size=(pages, ITEMS, FEATURES))
    return EventBatch.from_rankings(clicks=clicks, ranks={"candidate": ranks}, features=features, list_length=ITEMS)


def benchmark(events: int = 10_000) -> Benchmark:
    batch, ranking = log(events), {"metric": "dcg", "examination": "power"}
    works = {
        name: updating(Evaluator({"candidate": candidate}, [ClickIPS()], [Cumulative()], ranking=ranking), [batch])
        for name, candidate in CANDIDATES.items()
    }
    ratios = [Ratio(name, "logged", 6.0) for name in CANDIDATES if name != "logged"]
    return Benchmark(f"Rankers that learn: {ITEMS} items x {FEATURES} features", works, ratios)
