"""Define reward models as users write them, good and bad. `target: support.own_models:Mean` names one."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Mean:
    """Predict the mean of all rewards learned, plus `offset`."""

    def __init__(self, offset: float = 0.0) -> None:
        self.offset, self.count, self.total = offset, 0, 0.0

    def predict(self, features: Array) -> Any:
        return np.full(len(features), self.total / max(self.count, 1) + self.offset)

    def learn(self, features: Array, reward: Array) -> None:
        self.count, self.total = self.count + len(reward), self.total + float(reward.sum())


class Witness(Mean):
    """Record all calls in `seen`, in order."""

    seen: tuple[tuple[str, Array, Array | None], ...] = ()

    def predict(self, features: Array) -> Any:
        Witness.seen = (*Witness.seen, ("predict", features.copy(), None))
        return super().predict(features)

    def learn(self, features: Array, reward: Array) -> None:
        Witness.seen = (*Witness.seen, ("learn", features.copy(), reward.copy()))
        super().learn(features, reward)


class Raising(Mean):
    """Raise at each prediction."""

    def predict(self, features: Array) -> Any:
        raise RuntimeError("out of order")


class Unteachable(Mean):
    """Raise while learning."""

    def learn(self, features: Array, reward: Array) -> None:
        raise RuntimeError("out of order")


class Infinite(Mean):
    """Predict infinity for every third action."""

    def predict(self, features: Array) -> Any:
        predictions = super().predict(features)
        predictions[::3] = np.inf
        return predictions


class Short(Mean):
    """Leave out the last action."""

    def predict(self, features: Array) -> Any:
        return super().predict(features)[:-1]


class Talkative(Mean):
    """Answer in words."""

    def predict(self, features: Array) -> Any:
        return ["plenty"] * len(features)


class Unsaveable(Mean):
    """Hold a lock, which cannot be stored."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def nothing() -> None:
    """Return no model."""


def broken() -> Mean:
    """Raise instead of returning a model."""
    raise OSError("no such file")
