"""Draw choices of a policy that logs no propensities."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from streameval import Evaluator, EventBatch
from streameval.common.arrays import Array
from streameval.ope.report import Estimate, Report

CONTEXTS, ACTIONS = 3, 5
BY_COUNTRY: dict[str, Any] = {"kind": "estimated", "model": {"kind": "tabular", "by": ["country"]}}
COUNTRIES = np.array(["de", "fr", "jp"])


class Log(NamedTuple):
    """Hold choices of a policy that depends on the country, and the true value of the candidate."""

    context: Array
    action: Array
    reward: Array
    logging: Array
    candidate: Array
    truth: float

    def batch(self, **columns: Any) -> EventBatch:
        """Return the events with names of actions in place of propensities."""
        filled = {"action": [f"a{action}" for action in self.action]} | columns
        return EventBatch.from_arrays(
            reward=self.reward,
            policies={"challenger": self.candidate[self.context, self.action]},
            segments={"country": COUNTRIES[self.context].tolist()},
            **{name: column for name, column in filled.items() if column is not None},
        )

    def batch_with_propensities(self) -> EventBatch:
        """Return the events with their true propensities."""
        return self.batch(action=None, propensity=self.logging[self.context, self.action])

    def listed(self) -> EventBatch:
        """Return the events with indices of their actions, and full distributions of the candidate."""
        return EventBatch.from_arrays(
            reward=self.reward,
            action=self.action,
            policies={"challenger": self.candidate[self.context]},
            segments={"country": COUNTRIES[self.context].tolist()},
        )

    def messages(self) -> list[bytes]:
        """Return the events in JSON, with actions listed in random order."""
        rng = np.random.default_rng(1)
        names = np.array([f"a{action}" for action in range(ACTIONS)])
        rows = zip(self.context.tolist(), self.action.tolist(), self.reward.tolist(), strict=True)
        results = []
        for number, (context, action, reward) in enumerate(rows):
            order = rng.permutation(ACTIONS)
            event = {"event_id": number, "timestamp": number, "action": f"a{action}", "reward": reward}
            event |= {"context": {"country": COUNTRIES[context]}, "actions": names[order].tolist()}
            event |= {"features": np.eye(ACTIONS)[order].tolist()}
            event |= {"policies": {"challenger": self.candidate[context][order].tolist()}}
            results.append(json.dumps(event).encode())
        return results


def world(seed: int, events: int = 5_000) -> Log:
    """Draw a log of the world that all tests share.

    Args:
        seed: Seed of the events.
    """
    fixed, rng = np.random.default_rng(7), np.random.default_rng(seed)
    logging = np.exp(fixed.normal(size=(CONTEXTS, ACTIONS)))
    logging /= logging.sum(axis=1, keepdims=True)
    mean = fixed.uniform(0.1, 0.9, size=(CONTEXTS, ACTIONS))
    candidate = np.exp(fixed.normal(size=(CONTEXTS, ACTIONS)))
    candidate /= candidate.sum(axis=1, keepdims=True)
    context = rng.integers(CONTEXTS, size=events)
    action = (logging[context].cumsum(axis=1) > rng.random(events)[:, None]).argmax(axis=1)
    reward = (rng.random(events) < mean[context, action]).astype(float)
    return Log(context, action, reward, logging, candidate, float((candidate * mean).sum(axis=1).mean()))


def evaluated(batch: EventBatch, propensity: Any = BY_COUNTRY, cuts: Sequence[int] = (), **options: Any) -> Evaluator:
    """Return an evaluator of the events, cut into batches at these indices."""
    settings: dict[str, Any] = {"estimators": ["snips"], "averages": ["cumulative"], "drift": None} | options
    evaluator = Evaluator(["challenger"], propensity=propensity, **settings)
    for first, last in zip((0, *cuts), (*cuts, len(batch)), strict=True):
        evaluator.update(batch[first:last])
    return evaluator


def challenger_estimate(report: Report, estimator: str = "snips") -> Estimate:
    return report.get("challenger", estimator, "cumulative")


BY_RIVER: dict[str, Any] = {"kind": "estimated", "model": {"kind": "river", "model": "linear_model.SoftmaxRegression"}}


def decoded(log: Log, propensity: Any) -> EventBatch:
    config = Evaluator(["challenger"], ["snips"], ["cumulative"], propensity=propensity).config
    return config.decoder().decode_batch(log.messages())
