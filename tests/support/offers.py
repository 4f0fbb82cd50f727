"""Draw logs of offers with features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streameval import Evaluator
from streameval.events import EventBatch
from streameval.ope.core import Cumulative
from streameval.ope.reward_models import Ridge
from streameval.ope.reward_models.base import LoggedActions

Array = NDArray[np.float64]
ACTIONS, FEATURES, BLOCK = 5, 3, 20


class Offers:
    """Draw events with features that predict the reward, in a drifting way. The candidate is greedy."""

    def __init__(self, seed: int, n: int, *, exploration: float = 0.25) -> None:
        random = np.random.default_rng(seed)
        self.features = random.normal(size=(n, ACTIONS, FEATURES))
        self.chance = np.clip(0.4 + 0.25 * self.features[..., 0], 0.02, 0.98)
        self.target = np.eye(ACTIONS)[self.features[..., 0].argmax(axis=1)]
        favourite = np.eye(ACTIONS)[self.features[..., 1].argmax(axis=1)]
        self.propensities = exploration / ACTIONS + (1 - exploration) * favourite
        self.action = (random.random((n, 1)) > self.propensities.cumsum(axis=1)[:, :-1]).sum(axis=1)
        self.reward = (random.random(n) < self.chance[np.arange(n), self.action]).astype(float)
        self.sampling = random.choice([0.5, 1.0], n)

    @property
    def truth(self) -> float:
        return float((self.target * self.chance).sum(axis=1).mean())

    def batch(self, rows: slice = slice(None), **other: Any) -> EventBatch:
        columns: dict[str, Any] = {
            "reward": self.reward[rows],
            "action": self.action[rows],
            "propensities": self.propensities[rows],
            "features": self.features[rows],
            "policies": {"a": self.target[rows]},
            "sampling_probability": self.sampling[rows],
        }
        return EventBatch.from_arrays(**columns | other)


def folded(offers: Offers, model: Ridge) -> Array:
    """Return the predictions for events in whole blocks, [n, actions]."""
    sets = offers.batch().action_sets
    assert sets is not None
    log = LoggedActions(sets, offers.reward, 1 / offers.sampling, BLOCK, (0.0, 1.0))
    return model.fold(model.start(), log)[0].reshape(-1, ACTIONS)


def error_of(estimator: Any, offers: Offers, **columns: Any) -> float:
    evaluator = Evaluator(["a"], estimators=[estimator], averages=[Cumulative()])
    evaluator.update(offers.batch(**columns))
    value = evaluator.report().get("a", estimator.label, "cumulative").value
    assert value is not None
    return abs(value - offers.truth)


NONSENSE: dict[str, Callable[[Array], Array]] = {
    "constant": np.ones_like,
    "zero": np.zeros_like,
    "noise": lambda features: np.random.default_rng(0).normal(size=features.shape),
    "huge": lambda features: features * 1e25,
    "beyond": lambda features: features * 1e200,
    "tiny": lambda features: features * 1e-300,
    "collinear": lambda features: np.repeat(features[..., :1], FEATURES, axis=2) * 1e8,
    "one outlier": lambda features: np.where(np.arange(features.size).reshape(features.shape) == 7, 1e29, features),
}
