"""Compare candidates that learn with a logged one, after decoding: 25 actions x 25 features, all distributions.

A policy that learns may add 3 us to an event, a policy of the reward model .5 us next to `dr`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from measuring import Benchmark, Ratio, updating

from streameval import DR, IPS, Cumulative, Evaluator, EventBatch, Learned, OfRewardModel
from streameval.ope.estimators import AnyEstimator

ACTIONS, FEATURES = 25, 25
CANDIDATES: dict[str, tuple[Any, AnyEstimator]] = {
    "logged, ips": ("logged", IPS()),
    "learned by ips, ips": (Learned(), IPS()),
    "learned by snips, ips": (Learned(objective="snips"), IPS()),
    "learned by ips per action, ips": (Learned(per_action=True), IPS()),
    "logged, dr": ("logged", DR()),
    "learned by dr, dr": (Learned(objective="dr"), DR()),
    "learned by cab, dr": (Learned(objective="cab", clip=10.0), DR()),
    "of_reward_model, dr": (OfRewardModel(), DR()),
}
"""The candidate and the estimator by name."""


def log(events: int, seed: int = 20190211) -> EventBatch:
    """Make events with features and the distributions of the logging policy and of a candidate."""
    rng = np.random.default_rng(seed)
    target, propensities = rng.dirichlet(np.ones(ACTIONS), (2, events))
    action = np.minimum((propensities.cumsum(axis=1) < rng.random((events, 1))).sum(axis=1), ACTIONS - 1)
    return EventBatch.from_arrays(
        reward=(rng.random(events) < 0.1).astype(float),
        action=action,
        propensities=propensities,
        features=rng.normal(size=(events, ACTIONS, FEATURES)),
        policies={"candidate": target},
    )


def benchmark(events: int = 12_000) -> Benchmark:
    batch = log(events)
    works = {
        name: updating(Evaluator({"candidate": candidate}, [estimator], [Cumulative()]), [batch])
        for name, (candidate, estimator) in CANDIDATES.items()
    }
    ratios = [
        *(
            Ratio(name, "logged, ips", 3.0)
            for name in CANDIDATES
            if name.startswith("learned") and name.endswith("ips")
        ),
        *(Ratio(name, "logged, dr", 1.5) for name in CANDIDATES if name.startswith("learned") and name.endswith("dr")),
        Ratio("of_reward_model, dr", "logged, dr", 1.1),
    ]
    return Benchmark(f"Candidates that learn: {ACTIONS} actions x {FEATURES} features", works, ratios)
