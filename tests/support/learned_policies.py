"""Evaluate policies that learn."""

from __future__ import annotations

from typing import Any

from streameval import Evaluator
from streameval.events import EventBatch
from streameval.ope.learning.learned import Learned
from streameval.ope.report import Report

EVERY = {
    "ips": Learned(),
    "snips": Learned(objective="snips"),
    "variance": Learned(variance=0.7),
    "variance of a log": Learned(variance=0.7, variance_events=20_000, l2=0.01),
    "normalised variance": Learned(objective="snips", variance=0.7),
    "clip": Learned(clip=1.5),
    "logging": Learned(start_from="logging"),
    "per action": Learned(per_action=True),
    "sampled": Learned(counter_sample=True),
    "forgetting": Learned(horizon=5_000),
    "averaged": Learned(average=True, temperature=0.5),
    "dr": Learned(objective="dr"),
    "dr with variance": Learned(objective="dr", variance=0.7),
    "clipped dr": Learned(objective="dr", clip=1.5),
    "cab": Learned(objective="cab", clip=1.5),
    "cab with variance": Learned(objective="cab", clip=1.5, variance=0.7),
}


def evaluated(policy: Any, *batches: EventBatch) -> Evaluator:
    evaluator = Evaluator({"apprentice": policy}, estimators=["ips", "snips"], averages=["cumulative"], drift=None)
    for batch in batches:
        evaluator.update(batch)
    return evaluator


def value(report: Report, estimator: str = "ips") -> float:
    return report.get("apprentice", estimator, "cumulative").value or 0.0
