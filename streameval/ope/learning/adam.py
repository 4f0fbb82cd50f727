"""Move the weights of linear scores by one step of Adam a block."""

from __future__ import annotations

import numpy as np

from streameval.common.arrays import Array, State
from streameval.ope.policies import policy_file
from streameval.ope.policies.base import Copied, LearningPolicy

FADING_GRADIENT, FADING_SQUARE = 0.9, 0.999
"""Fading factors of Adam, for the mean gradient and for its mean square."""
MIN_SCALE = 1e-8
"""Smallest scale of gradients, relative to the width of the reward range."""


class LinearPolicy(LearningPolicy):
    """Learn the weights of linear scores. Subclasses are dataclasses with these options.

    With `average`, the policy has the mean of the weights after each step, and steps go on from the last weights. With
    n steps so far, the newest weights count `max(1/n, 1 - exp(-events of a block / horizon))` in this mean.

    Source: Kingma & Ba, ICLR 2015, for Adam; Polyak & Juditsky, SIAM Journal on Control and Optimization 1992, for the
    mean.
    """

    step: float
    horizon: float | None
    average: bool
    weights: tuple[tuple[float, ...], ...]

    @property
    def keeps_learning(self) -> bool:
        return self.step > 0

    def start(self) -> State:
        """Return the state before the first event. Without initial weights the number of features is unknown.

        `weights` are [1 or positions, features], as is their mean `average`. `mean` and `square` belong to gradients.
        """
        weights = np.array(self.weights) if self.weights else np.zeros((0, 0))
        none = np.zeros_like(weights)
        average = {"average": weights} if self.average else {}
        return {"steps": 0, "weights": weights, "mean": none, "square": none, **average}

    def weights_of(self, state: State) -> Array:
        """Return the weights that the policy has in this state."""
        weights: Array = state["average"] if self.average else state["weights"]
        return weights

    def opened(self, state: State, positions: int, width: int) -> State:
        """Return the state with weights of 0 for this many features, if it has none."""
        if len(state["weights"]) or not width:
            return state
        names = ("weights", "mean", "square", *(("average",) if self.average else ()))
        return state | {name: np.zeros((positions, width)) for name in names}

    def climbed(self, state: State, gradient: Array, events: int, reward_range: tuple[float, float]) -> State:
        """Return the state after one step of Adam in the direction of the gradient of this many events."""
        steps = state["steps"] + 1
        mean = FADING_GRADIENT * state["mean"] + (1 - FADING_GRADIENT) * gradient
        square = FADING_SQUARE * state["square"] + (1 - FADING_SQUARE) * gradient**2
        fading = 1.0 if self.horizon is None else np.exp(-events / self.horizon)
        weights = state["weights"] * fading + self._move(steps, mean, square, reward_range)
        after = state | {"steps": steps, "weights": weights, "mean": mean, "square": square}
        if self.average:
            after["average"] = state["average"] + (weights - state["average"]) * max(1 / steps, 1 - fading)
        return after

    def _move(self, steps: int, mean: Array, square: Array, reward_range: tuple[float, float]) -> Array:
        """Return the step of Adam from the mean gradient and its mean square."""
        scale = np.sqrt(square / (1 - FADING_SQUARE**steps)) + MIN_SCALE * (reward_range[1] - reward_range[0])
        return np.asarray(self.step * mean / (1 - FADING_GRADIENT**steps) / scale)

    def step_norm(self, state: State, reward_range: tuple[float, float] = (0.0, 1.0)) -> float | None:
        """Return the Euclidean length of the last step, or None before the first one."""
        steps = state["steps"]
        return float(np.linalg.norm(self._move(steps, state["mean"], state["square"], reward_range))) if steps else None

    def file_content(self, state: State, copied: Copied) -> bytes:
        return policy_file.to_bytes(self, self.weights_of(state), copied.events)


def drawn(step: int, size: Array) -> Array:
    """Draw as many items as there are with probability proportional to `size`.

    Return how often each is drawn, relative to the expectation.
    """
    share = size / size.sum()
    return np.asarray(np.random.default_rng(step).multinomial(len(share), share) / (len(share) * share))
