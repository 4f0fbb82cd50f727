"""Make logs of bandit events with a known truth: equally frequent contexts, a few actions, rewards of 0 and 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streameval.events import EventBatch
from streameval.events.action_sets import Features, cumulative_offsets
from streameval.ope.core import Cumulative
from streameval.ope.estimators import AnyEstimator
from support.streams import CANDIDATE, evaluated

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Bandit:
    """Hold the parameters of a log, all [contexts, actions].

    Attributes:
        logging: Distributions of the logging policy.
        target: Distributions of the target policy.
        mean: Mean rewards.
    """

    logging: Array
    target: Array
    mean: Array

    @property
    def value(self) -> float:
        """Return the true value of the target policy. Contexts are equally frequent."""
        return float((self.target * self.mean).sum(axis=1).mean())

    def log(self, events: int, seed: int) -> EventBatch:
        """Draw events. The features of an action are its index and its context, one-hot encoded."""
        rng = np.random.default_rng(seed)
        contexts, actions = self.mean.shape
        context = rng.integers(contexts, size=events)
        propensities = self.logging[context]
        action = (rng.random((events, 1)) > propensities.cumsum(axis=1)[:, :-1]).sum(axis=1)
        features = np.concatenate(
            [
                np.broadcast_to(np.eye(actions), (events, actions, actions)),
                np.broadcast_to(np.eye(contexts)[context][:, None], (events, actions, contexts)),
            ],
            axis=2,
        )
        return EventBatch.from_arrays(
            reward=(rng.random(events) < self.mean[context, action]).astype(float),
            action=action,
            propensities=propensities,
            features=features,
            policies={CANDIDATE: self.target[context]},
        )


def logging_with(smallest: float, actions: int, contexts: int) -> Array:
    """Make distributions with this smallest propensity, at a different action for each context."""
    ladder = np.geomspace(smallest, 1.0, actions)
    ladder[1:] *= (1 - smallest) / ladder[1:].sum()
    return np.stack([np.roll(ladder, context) for context in range(contexts)])


def random_bandit(seed: int, actions: int = 5, contexts: int = 3, smallest: float = 0.001) -> Bandit:
    """Draw a bandit with `smallest` as the smallest propensity of the logging policy."""
    rng = np.random.default_rng(seed)
    return Bandit(
        logging_with(smallest, actions, contexts),
        rng.dirichlet(np.ones(actions), contexts),
        rng.uniform(0.1, 0.9, (contexts, actions)),
    )


def cut(batch: EventBatch, indices: ArrayLike) -> list[EventBatch]:
    """Cut the batch into pieces at these indices."""
    return [batch[first:last] for first, last in pairwise([0, *np.asarray(indices).tolist(), len(batch)])]


def values_of(batch: EventBatch, estimators: Sequence[AnyEstimator], **options: Any) -> dict[str, float | None]:
    """Return the value of the target by each estimator, over all events."""
    report = evaluated(batch, estimators=estimators, averages=[Cumulative()], **options).report()
    return {estimator.label: report.get(CANDIDATE, estimator.label, "cumulative").value for estimator in estimators}


def without_features(batch: EventBatch, events: NDArray[np.bool_]) -> EventBatch:
    """Return the batch without the features of these events."""
    sets = batch.action_sets
    assert sets is not None
    assert sets.features is not None
    sizes = np.where(events, 0, sets.features.sizes)
    values = sets.features.values[np.repeat(~events, sets.features.sizes)]
    return replace(batch, action_sets=replace(sets, features=Features(cumulative_offsets(sizes), values)))
