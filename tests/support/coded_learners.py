"""Define policies in code that learn, and logs that they learn from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streameval import Evaluator
from streameval.events import EventBatch, RawFields
from streameval.ope.report import Report

ACTIONS = ["a", "b", "c"]
TREE = {"model": "tree.HoeffdingTreeClassifier", "parameters": {"grace_period": 50}}
LINEAR = {
    "model": "multiclass.OneVsRestClassifier",
    "parameters": {"classifier": {"model": "linear_model.LogisticRegression"}},
}


EVERY: dict[str, dict[str, Any]] = {
    "python": {"kind": "python", "target": "support.coded_policies:Counting", "learns": True},
    "contextual bandit": {"kind": "river", "model": "bandit.LinUCBDisjoint", "epsilon": 0.1},
    "random bandit": {"kind": "river", "model": "bandit.EpsilonGreedy", "parameters": {"epsilon": 0.3, "seed": 7}},
    "tree": {"kind": "river", "epsilon": 0.1, **TREE},
    "classes": {"kind": "river", "epsilon": 0.1, **LINEAR},
    "two classes": {"kind": "river", "model": "linear_model.LogisticRegression"},
    "no probabilities": {"kind": "river", "model": "linear_model.PAClassifier", "epsilon": 0.2},
}


def log(events: int, seed: int = 1) -> EventBatch:
    """Draw users of two countries. `c` is best in one, and `a` in the other."""
    rng = np.random.default_rng(seed)
    country = rng.choice(["de", "fr"], events)
    propensities = rng.dirichlet(np.full(3, 5.0), events)
    action = (propensities.cumsum(axis=1) > rng.random((events, 1))).argmax(axis=1)
    best = np.where(country == "de", 2, 0)
    reward = rng.random(events) < np.where(action == best, 0.8, 0.2)
    batch = EventBatch.from_arrays(reward=reward, action=action, propensities=propensities)
    fields = [{"context": {"country": name}, "actions": ACTIONS} for name in country.tolist()]
    return replace(batch, raw_fields=RawFields(fields))


def evaluated(policy: Any, *batches: EventBatch) -> Evaluator:
    evaluator = Evaluator({"apprentice": policy}, estimators=["ips"], averages=["cumulative"], drift=None)
    for batch in batches:
        evaluator.update(batch)
    return evaluator


def value(report: Report, policy: str = "apprentice") -> float:
    return report.get(policy, "ips", "cumulative").value or 0.0
