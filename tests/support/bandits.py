"""Logs of bandit events whose truth is known: contexts of one kind, a few actions, rewards of 0 and 1."""

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
    """The parameters of a log: logging and target distributions and mean rewards, all [contexts, actions]."""

    logging: Array
    target: Array
    mean: Array

    @property
    def value(self) -> float:
        """The true value of the target; contexts are equally frequent."""
        return float((self.target * self.mean).sum(axis=1).mean())

    def log(self, events: int, seed: int) -> EventBatch:
        """This many events; the features of an action are its position and its context's, each as marks."""
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
    """Distributions whose smallest propensity is this, in a different place for each context."""
    ladder = np.geomspace(smallest, 1.0, actions)
    ladder[1:] *= (1 - smallest) / ladder[1:].sum()
    return np.stack([np.roll(ladder, context) for context in range(contexts)])


def random_bandit(seed: int, actions: int = 5, contexts: int = 3, smallest: float = 0.001) -> Bandit:
    """A bandit whose rarest logged action has this propensity."""
    rng = np.random.default_rng(seed)
    return Bandit(
        logging_with(smallest, actions, contexts),
        rng.dirichlet(np.ones(actions), contexts),
        rng.uniform(0.1, 0.9, (contexts, actions)),
    )


def cut(batch: EventBatch, places: ArrayLike) -> list[EventBatch]:
    """The batch in pieces, cut at these places."""
    return [batch[first:last] for first, last in pairwise([0, *np.asarray(places).tolist(), len(batch)])]


def values_of(batch: EventBatch, estimators: Sequence[AnyEstimator], **options: Any) -> dict[str, float | None]:
    """The value of the target by each estimator, over all events."""
    report = evaluated(batch, estimators=estimators, averages=[Cumulative()], **options).report()
    return {each.label: report.get(CANDIDATE, each.label, "cumulative").value for each in estimators}


def without_features(batch: EventBatch, events: NDArray[np.bool_]) -> EventBatch:
    """The batch in which these events have no features."""
    sets = batch.action_sets
    assert sets is not None
    assert sets.features is not None
    sizes = np.where(events, 0, sets.features.sizes)
    values = sets.features.values[np.repeat(~events, sets.features.sizes)]
    return replace(batch, action_sets=replace(sets, features=Features(cumulative_offsets(sizes), values)))
