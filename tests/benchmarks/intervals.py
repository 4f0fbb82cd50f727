"""Measure the cost of intervals and decisions: the daemon's loop with each against `normal`, which costs least."""

from __future__ import annotations

from loop import FOUR, PUBLISHED
from measuring import Benchmark, Ratio
from memory_source import daemon
from messages import CANDIDATES, compact

from streameval import Evaluator

NORMAL = {average.label: "normal" for average in PUBLISHED}
LIKELY = dict.fromkeys(NORMAL, "empirical_likelihood")
WATCHED = dict.fromkeys(("cumulative", "window"), "confidence_sequence")
ALL = "these two, and empirical_likelihood"


def benchmark(events: int = 40_000) -> Benchmark:
    values = compact(events)

    def evaluator(intervals: dict[str, str], promotion: str | None = None) -> Evaluator:
        return Evaluator(CANDIDATES, FOUR, PUBLISHED, intervals=intervals, drift=None, promotion=promotion)

    evaluators = {
        "normal": evaluator(NORMAL),
        "empirical_likelihood": evaluator(LIKELY),
        "confidence_sequence on cumulative": evaluator({**NORMAL, "cumulative": "confidence_sequence"}),
        "confidence_sequence on two averages": evaluator({**NORMAL, **WATCHED}),
        ALL: evaluator({**LIKELY, **WATCHED}),
        "promotion by paired": evaluator(NORMAL, "paired"),
        "promotion by anytime": evaluator(NORMAL, "anytime"),
    }
    works = {name: daemon(values, entry.config.decoder(), entry) for name, entry in evaluators.items()}
    ratios = [Ratio(name, "normal", 1.2 if name == ALL else None) for name in evaluators if name != "normal"]
    return Benchmark("Intervals and decisions: four estimators on five averages", works, ratios)
