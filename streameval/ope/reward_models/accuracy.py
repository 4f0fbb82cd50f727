"""How good a reward model is: its progressive squared error, beside that of the mean reward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from streameval.common.arrays import Array, Mask, decayed_path
from streameval.ope.evidence.recent_moments import fading_of


class RewardModelAccuracy(msgspec.Struct, frozen=True):
    """How well the reward model foretells the rewards of logged actions, each before it learned from it.

    `squared_error`: of its predictions, mean of the last 100,000 events. `baseline_squared_error`: of the mean reward
    of the blocks before, on the same events; a model that is not below it is of no use. `failures`: by reason, how
    often a model that is code of others failed.
    """

    model: str
    squared_error: float | None
    baseline_squared_error: float | None
    failures: Mapping[str, int] = {}


class Accuracy(NamedTuple):
    """Means over the last 100,000 events, each predicted before it was learned from; NaN before there is one.

    `squared_error`: of the model. `baseline`: of the mean reward of the blocks before, which any model should beat.
    """

    squared_error: float
    baseline: float


def start() -> Array:
    """Sums of nothing: of `1, r` of all that was predicted, and of `1`, both squared errors where a mean was known."""
    return np.zeros(5)


def fold(sums: Array, predicted: Array, reward: Array, weight: Array, known: Mask, block: int) -> Array:
    """The sums after these events, [n] each; `known`: whether the model could predict the logged action."""
    blocks = max(1, len(reward) // block)
    fading = fading_of(block)
    counted = np.where(known, weight, 0.0)
    logged = np.stack([counted, counted * reward], axis=1).reshape(blocks, -1, 2).sum(axis=1)
    path = np.concatenate([sums[None, :2], decayed_path(sums[:2], logged, fading)])
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.repeat(path[:-1, 1] / path[:-1, 0], len(reward) // blocks)
    compared = np.where(np.isnan(mean), 0.0, counted)
    errors = np.stack([np.ones_like(reward), (reward - predicted) ** 2, (reward - np.nan_to_num(mean)) ** 2], axis=1)
    added = (compared[:, None] * errors).reshape(blocks, -1, 3).sum(axis=1)
    return np.concatenate([path[-1], decayed_path(sums[2:], added, fading)[-1]])


def read(sums: Array) -> Accuracy:
    """What the sums say."""
    with np.errstate(invalid="ignore", divide="ignore"):
        error, baseline = sums[3:] / sums[2]
    return Accuracy(float(error), float(baseline))
