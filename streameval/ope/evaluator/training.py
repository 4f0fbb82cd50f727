"""Train a policy on the same events several times, with early stopping by later events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from streameval.common.arrays import Array
from streameval.events import EventBatch
from streameval.ope.core import Cumulative
from streameval.ope.estimators import AnyEstimator
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.learning.adam import LinearPolicy
from streameval.ope.report import Estimate, Report

DOUBTFUL = 3.0
"""Standard errors between a mean weight and 1 that chance hardly explains."""
EVALUATED = ("start_from", "per_action", "temperature")
"""Options of a policy that say what its weights mean."""


@dataclass(frozen=True)
class Pass:
    """Hold one pass over the events that are learned from.

    Args:
        training: estimate while learning, from these events. From the second pass on it is no longer unbiased.
        validation: estimate of the weights after the pass, from later events
        weights: [1 or positions, features].
    """

    number: int
    training: Estimate
    validation: Estimate
    weights: Array

    @property
    def lower(self) -> float:
        """Return the lower bound that passes are compared by. Without evidence it is the lowest."""
        return -np.inf if self.validation.lower is None else self.validation.lower


@dataclass(frozen=True)
class Trained:
    """Hold a policy after its passes. The `best` one has the highest lower bound on later events, the first of equals.

    The bounds of all passes hold together, and the bound of the best one with them.

    Args:
        learned_from: report of the unchanging best weights from the events that they were learned from
        later: report of the unchanging best weights from the later events
    """

    name: str
    policy: LinearPolicy
    passes: tuple[Pass, ...]
    best: Pass
    learned_from: Report
    later: Report

    @property
    def own(self) -> Estimate:
        """Return the estimate of the best weights from the events that they were learned from."""
        best = self.best.validation
        return self.learned_from.get(self.name, best.estimator, best.average)

    @property
    def overfits(self) -> bool:
        """Return whether the mean weight on the events learned from is more than 3 standard errors away from 1.

        It is 1, apart from noise, for a policy that does not depend on the events. A policy that was learned from them
        may avoid logged actions that earned little, or prefer actions that earned much. The weights are then below or
        above 1. The weights of clicks have no such mean.
        """
        if self.own.importance_weight_mean is None:
            return False
        mean, effective = self.own.importance_weight_mean, self.own.effective_sample_size or 0.0
        events = self.learned_from.events.accepted
        error = mean * np.sqrt(max(events / effective - 1, 0.0) / events) if effective else 0.0
        return bool(abs(mean - 1) > DOUBTFUL * error)


@dataclass(frozen=True)
class Training:
    """Hold how to train the policies of a config that learn.

    Args:
        estimator: estimator of the values
        passes: largest number of passes over the events
        patience: number of passes without a higher lower bound before training stops. 0 never stops, and takes the last
            pass in place of the best one.
    """

    config: EvaluatorConfig
    estimator: AnyEstimator
    passes: int = 20
    patience: int = 3

    @property
    def policies(self) -> dict[str, LinearPolicy]:
        """Return the policies to train, by name: the ones with weights."""
        policies = self.config.learned_policies.items()
        return {name: policy for name, policy in policies if isinstance(policy, LinearPolicy)}

    @property
    def confidence(self) -> float:
        """Return the confidence of each interval, Bonferroni-corrected over passes and policies."""
        return 1 - (1 - self.config.confidence) / (self.passes * max(1, len(self.policies)))

    def online(self) -> EvaluatorConfig:
        """Return the config of one pass over all events, in which each block is predicted before it is learned from."""
        return self._simple(self.config.for_policies(self.policies))

    def train(
        self,
        name: str,
        learn_from: Sequence[EventBatch],
        later: Sequence[EventBatch],
        advance: Callable[[int, float], None] = lambda events, lower: None,
    ) -> Trained:
        """Return the policy of this name after its passes.

        Args:
            name: the policy
            learn_from: events to learn from
            later: events that the weights are validated on
            advance: called with the number of events of each batch that is learned from, and the highest lower bound
        """
        config, policy = self._simple(self.config.for_policies([name])), self.policies[name]
        passes: list[Pass] = []
        for result in self._passes(config, policy, learn_from, later, lambda n: advance(n, _highest(passes))):
            passes.append(result)
            best = max(passes, key=lambda one: one.lower) if self.patience else result
            if self.patience and result.number - best.number >= self.patience:
                break
        frozen = self._simple(_with(config, name, frozen_at(policy, best.weights)))
        return Trained(name, policy, tuple(passes), best, _report(frozen, learn_from), _report(frozen, later))

    def _passes(
        self,
        config: EvaluatorConfig,
        policy: LinearPolicy,
        learn_from: Sequence[EventBatch],
        later: Sequence[EventBatch],
        advance: Callable[[int], None],
    ) -> Iterator[Pass]:
        name, state = config.policies[1], policy.start()
        for number in range(1, self.passes + 1):
            evaluator = Evaluator.from_config(config, {"learning": {name: state}})
            for batch in learn_from:
                evaluator.update(batch)
                advance(len(batch))
            state = evaluator.learned(name)
            training = self.estimate(evaluator.report(), name)
            weights = policy.weights_of(state)
            frozen = _with(config, name, frozen_at(policy, weights))
            validation = self.estimate(_report(self._simple(frozen), later), name)
            yield Pass(number, training, validation, weights)

    def estimate(self, report: Report, policy: str) -> Estimate:
        """Return the estimate of a policy in a Report."""
        return report.get(policy, self.estimator.label, "cumulative")

    def _simple(self, config: EvaluatorConfig) -> EvaluatorConfig:
        """Return the config with this estimator alone, on all events alike."""
        cumulative = Cumulative()
        simple = config.with_products([((self.estimator,), (cumulative,))])
        return replace(simple, confidence=self.confidence, drift=None, segments={}, versions={})


def frozen_at(policy: LinearPolicy, weights: Array) -> LinearPolicy:
    """Return the policy with these weights, without learning."""
    rows = tuple(tuple(row) for row in weights.tolist())
    kept = {name: getattr(policy, name) for name in EVALUATED if hasattr(policy, name)}
    made: LinearPolicy = cast(Any, type(policy))(**kept, weights=rows, step=0)
    return made


def split_by_time(batches: Sequence[EventBatch], share: float) -> tuple[list[EventBatch], list[EventBatch]]:
    """Split events at a moment, so that about this share of all comes after it.

    Events without a time are split by their order.
    """
    times = np.concatenate([batch.timestamp for batch in batches])
    order = np.arange(len(times)) if np.isnan(times).any() else times
    cut = np.sort(order)[max(0, int(len(order) * (1 - share)) - 1)]
    bounds = np.cumsum([0, *map(len, batches)])
    early, late = [], []
    for batch, first in zip(batches, bounds[:-1], strict=True):
        later = order[first : first + len(batch)] > cut
        early.append(batch.take(~later))
        late.append(batch.take(later))
    return [batch for batch in early if len(batch)], [batch for batch in late if len(batch)]


def _with(config: EvaluatorConfig, name: str, policy: LinearPolicy) -> EvaluatorConfig:
    return replace(config, computed_policies={name: policy})


def _report(config: EvaluatorConfig, batches: Sequence[EventBatch]) -> Report:
    evaluator = Evaluator.from_config(config)
    for batch in batches:
        evaluator.update(batch)
    return evaluator.report()


def _highest(passes: Sequence[Pass]) -> float:
    return max((result.lower for result in passes), default=-np.inf)
