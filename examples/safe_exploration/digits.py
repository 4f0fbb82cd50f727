"""Handwritten digits as a bandit: an image is the context, the ten digits are the actions, the correct one earns 1.

The baseline is a classifier that has seen few images. Only the reward of the chosen digit is observed, but the true
value of every policy is known, because every image has a label.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits, load_svmlight_file
from sklearn.linear_model import LogisticRegression

from streameval import EventBatch

Array = NDArray[np.float64]

DIGITS = 10
EXPLORATION = 0.2
"""Probability that the recommender chooses a uniformly random digit."""
FOR_BASELINE = 25
"""Number of images that the baseline is trained on; its accuracy is then about .6."""
PRODUCTION = "production"


@dataclass(frozen=True)
class Digits:
    """The images from which events are drawn: `features` [images, d], a constant and the pixels; `label` [images]."""

    features: Array
    label: NDArray[np.int64]
    baseline: Array

    @classmethod
    def prepared(cls, seed: int, dataset: Path | None = None) -> Digits:
        """All images but those of the baseline; `baseline` [images, 10] are its distributions, each on one digit.

        `dataset`: a file in the format of LIBSVM, such as `usps.bz2`, in place of the digits; actions are its labels.
        """
        pixels, label = load_digits(return_X_y=True) if dataset is None else from_libsvm(dataset)
        actions = int(label.max()) + 1
        order = np.random.default_rng(seed).permutation(len(label))
        pixels, label = pixels[order] / np.abs(pixels).max(), label[order]
        classifier = LogisticRegression(max_iter=1_000).fit(pixels[:FOR_BASELINE], label[:FOR_BASELINE])
        pixels, label = pixels[FOR_BASELINE:], label[FOR_BASELINE:]
        return cls(with_constant(pixels), label, one_hot(classifier.predict(pixels), actions))

    @cached_property
    def by_action(self) -> Array:
        """The features [images, 10, d], the same for each digit: a policy that learns has weights for each of them."""
        return np.repeat(self.features[:, None], self.actions, axis=1)

    @property
    def actions(self) -> int:
        """The number of actions."""
        return self.baseline.shape[1]

    def chosen_by(self, weights: Array) -> Array:
        """The distributions [images, 10] of a policy with these weights [10, d]: the softmax of its scores."""
        scores = self.features @ weights.T
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def value(self, policy: Array) -> float:
        """The true value of a policy without exploration."""
        return float(policy[np.arange(len(self.label)), self.label].mean())

    def log(self, served: Array, events: int, rng: np.random.Generator) -> EventBatch:
        """Events of a recommender that serves a policy [images, 10] and explores.

        The policy itself, without exploration, is logged as production, and candidates are compared with that: all
        would be served with the same exploration.
        """
        image = rng.integers(len(self.label), size=events)
        propensities = (1 - EXPLORATION) * served[image] + EXPLORATION / self.actions
        action = np.minimum((rng.random((events, 1)) > propensities.cumsum(axis=1)).sum(axis=1), self.actions - 1)
        return EventBatch.from_arrays(
            reward=(action == self.label[image]).astype(float),
            action=action,
            propensities=propensities,
            features=self.by_action[image],
            policies={PRODUCTION: served[image]},
        )


def from_libsvm(dataset: Path) -> tuple[Array, NDArray[np.int64]]:
    """The features [images, d] and the labels, numbered from 0."""
    features, label = load_svmlight_file(str(dataset))
    return features.toarray(), np.unique(label, return_inverse=True)[1]


def with_constant(pixels: Array) -> Array:
    return np.concatenate([np.ones((len(pixels), 1)), pixels], axis=1)


def one_hot(digit: NDArray[np.int64], actions: int) -> Array:
    chosen = np.zeros((len(digit), actions))
    chosen[np.arange(len(digit)), digit] = 1.0
    return chosen
