"""Turn handwritten digits into a bandit.

An image is the context, the ten digits are the actions, and the right one earns 1. The baseline is a classifier that
has seen few images. Only the reward of the chosen digit is observed, but the true value of every policy is known,
because every image has a label.
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
"""Number of images that the baseline is trained on. Its accuracy is then about .6."""
PRODUCTION = "production"
SHARPNESS = 5.0
"""Factor of the classifier's weights, so that their softmax is almost as sure as the baseline."""


@dataclass(frozen=True)
class Digits:
    """Hold images as contexts of events, with the distributions of the baseline.

    Args:
        features: A constant and the pixels, [images, d].
        label: Digit of each image, [images].
        baseline: Distributions of the baseline, [images, 10]. Each puts all probability on one digit.
        weights: Weights of the baseline, [10, d]. The likeliest digit of their softmax is the baseline's.
    """

    features: Array
    label: NDArray[np.int64]
    baseline: Array
    weights: Array

    @classmethod
    def prepared(cls, seed: int, dataset: Path | None = None) -> Digits:
        """Train the baseline on some images, and keep the others.

        Args:
            seed: Seed of the order of the images.
            dataset: File in the format of LIBSVM, such as `usps.bz2`, in place of the digits. Its labels are the
                actions.
        """
        pixels, label = load_digits(return_X_y=True) if dataset is None else read_libsvm(dataset)
        actions = int(label.max()) + 1
        order = np.random.default_rng(seed).permutation(len(label))
        pixels, label = pixels[order] / np.abs(pixels).max(), label[order]
        classifier = LogisticRegression(max_iter=1_000).fit(pixels[:FOR_BASELINE], label[:FOR_BASELINE])
        pixels, label = pixels[FOR_BASELINE:], label[FOR_BASELINE:]
        baseline = one_hot(classifier.predict(pixels), actions)
        return cls(add_constant(pixels), label, baseline, weights_of(classifier, actions))

    @cached_property
    def action_features(self) -> Array:
        """Return the features repeated for each digit, [images, 10, d]. A learned policy has weights for each digit."""
        return np.repeat(self.features[:, None], self.actions, axis=1)

    @property
    def actions(self) -> int:
        """Return the number of actions."""
        return self.baseline.shape[1]

    def chosen_by(self, weights: Array) -> Array:
        """Return the distributions [images, 10] of a policy with weights [10, d]: the softmax of its scores."""
        scores = self.features @ weights.T
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def value(self, policy: Array) -> float:
        """Return the true value of a policy without exploration."""
        return float(policy[np.arange(len(self.label)), self.label].mean())

    def log(self, served: Array, events: int, rng: np.random.Generator) -> EventBatch:
        """Draw events of a recommender that serves a policy and explores.

        The policy itself, without exploration, is logged as production. Candidates are compared with it, because all of
        them would be served with equal exploration.

        Args:
            served: Distributions of the policy, [images, 10].
            events: Number of events.
            rng: Generator of random numbers.
        """
        image = rng.integers(len(self.label), size=events)
        propensities = (1 - EXPLORATION) * served[image] + EXPLORATION / self.actions
        action = np.minimum((rng.random((events, 1)) > propensities.cumsum(axis=1)).sum(axis=1), self.actions - 1)
        return EventBatch.from_arrays(
            reward=(action == self.label[image]).astype(float),
            action=action,
            propensities=propensities,
            features=self.action_features[image],
            policies={PRODUCTION: served[image]},
        )


def read_libsvm(dataset: Path) -> tuple[Array, NDArray[np.int64]]:
    """Read the features [images, d] and the labels, numbered from 0."""
    features, label = load_svmlight_file(str(dataset))
    return features.toarray(), np.unique(label, return_inverse=True)[1]


def weights_of(classifier: LogisticRegression, actions: int) -> Array:
    """Return the weights [actions, d] of a classifier, for features with a constant.

    A digit that the classifier has not seen scores -1. The best of the others has 0 or more.
    """
    weights = np.zeros((actions, 1 + classifier.coef_.shape[1]))
    weights[:, 0] = -1.0
    rows = np.column_stack([classifier.intercept_, classifier.coef_])
    weights[classifier.classes_] = rows if len(rows) > 1 else np.concatenate([-rows, rows]) / 2
    return SHARPNESS * weights


def add_constant(pixels: Array) -> Array:
    return np.concatenate([np.ones((len(pixels), 1)), pixels], axis=1)


def one_hot(digit: NDArray[np.int64], actions: int) -> Array:
    chosen = np.zeros((len(digit), actions))
    chosen[np.arange(len(digit)), digit] = 1.0
    return chosen
