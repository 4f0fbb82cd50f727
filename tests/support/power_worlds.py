"""Make worlds with a known lift, and forecast the events that show it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from streameval import SNIPS, Cumulative, Estimate, EventBatch
from streameval.common.arrays import Array
from streameval.ope.estimators import AnyEstimator
from streameval.ope.power import (
    EventsNeeded,
    LogSummary,
    PowerReport,
    TargetLift,
    forecast_power,
)
from support.streams import CANDIDATE, evaluated

SETTINGS: dict[str, Any] = {"averages": [Cumulative()], "intervals": {"cumulative": "normal"}, "drift": None}


class World(NamedTuple):
    """Hold action probabilities and mean rewards.

    Attributes:
        logging: Probabilities under the logging policy.
        target: Probabilities under the candidate.
        reward: Mean rewards.
    """

    logging: Array
    target: Array
    reward: Array

    @property
    def lift(self) -> float:
        return float((self.target - self.logging) @ self.reward)

    def log(self, events: int, seed: int, rate: float = 10.0) -> EventBatch:
        rng = np.random.default_rng(seed)
        action = rng.choice(len(self.logging), p=self.logging, size=events)
        return EventBatch.from_arrays(
            reward=(rng.random(events) < self.reward[action]).astype(float),
            propensity=self.logging[action],
            policies={CANDIDATE: self.target[action]},
            timestamp=np.arange(events) / rate,
        )


MILD = World(np.array([0.5, 0.3, 0.2]), np.array([0.3, 0.3, 0.4]), np.array([0.25, 0.3, 0.4]))
HEAVY = World(np.array([0.6, 0.38, 0.02]), np.array([0.2, 0.2, 0.6]), np.array([0.3, 0.3, 0.6]))
RARE = World(np.array([0.59, 0.4, 0.01]), np.array([0.3, 0.2, 0.5]), np.array([0.1, 0.1, 0.15]))


def estimate_of(events: EventBatch, estimator: AnyEstimator) -> Estimate:
    evaluator = evaluated(events, estimators=[estimator], **SETTINGS)
    return evaluator.report().get(CANDIDATE, estimator.label, "cumulative")


def forecast_of(events: EventBatch, targets: list[TargetLift], estimator: AnyEstimator | None = None) -> PowerReport:
    """Forecast with a power of 0.8, by `snips` unless another estimator is named."""
    chosen = estimator or SNIPS()
    evaluator = evaluated(events, estimators=[chosen], **SETTINGS)
    log = LogSummary(evaluator.policies, {}, (0.0, 1.0))
    log.update(events)
    return forecast_power(evaluator.report(), log, {chosen.label: chosen}, targets, 0.8, {"window": 10_000.0})


def events_for(events: EventBatch, lift: float, estimator: AnyEstimator) -> EventsNeeded:
    (candidate,) = forecast_of(events, [TargetLift(lift)], estimator).candidates
    assert candidate.reason is None
    return candidate.needed[0]
