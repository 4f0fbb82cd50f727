"""Turn handwritten digits into a bandit.

An image is the context, the ten digits are the actions, and the right one earns 1. A small part of the images trains
the logging policy, another part the target policy. Events are drawn from the rest. Only the reward of the logged action
is observed, but the true value is known, because every image has a label.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression

from streameval import EventBatch

Array = NDArray[np.float64]

CANDIDATE = "target"
DIGITS = 10
COMPONENTS = 8
"""Components of the images for the reward model: too few for an unbiased model."""
FOR_LOGGING, FOR_TARGET = 40, 400
"""Number of images that the policies are trained on."""


@dataclass(frozen=True)
class Digits:
    """Hold images as contexts of events, with the distributions of both policies.

    Args:
        label: Digit of each image, [images].
        logging: Distributions of the logging policy, [images, 10].
        target: Distributions of the target policy, [images, 10].
        features: Inputs of the reward model for each digit, [images, 10, d].
    """

    label: NDArray[np.int64]
    logging: Array
    target: Array
    features: Array

    @classmethod
    def prepared(cls, exploration: float = 0.01, supported: int = DIGITS, seed: int = 0) -> Digits:
        """Train the policies on images that no event is drawn from.

        Args:
            exploration: Probability that the logging policy takes a uniformly random action.
            supported: Number of top actions that the logging policy ever takes for an image.
            seed: Seed of the order of the images.
        """
        images, label = load_digits(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(label))
        images, label = images[order] / 16.0, label[order]
        first, second = slice(FOR_LOGGING), slice(FOR_LOGGING, FOR_LOGGING + FOR_TARGET)
        rest = slice(FOR_LOGGING + FOR_TARGET, None)
        logging = LogisticRegression(C=1.0, max_iter=1_000).fit(images[first], label[first])
        target = LogisticRegression(C=0.2, max_iter=1_000).fit(images[second], label[second])
        seen = PCA(COMPONENTS, random_state=0).fit(images[first]).transform(images[rest])
        return cls(
            label[rest],
            _exploring(_sharpened(logging.predict_proba(images[rest]), 2.0), exploration, supported),
            _sharpened(target.predict_proba(images[rest]), 1.5),
            _digit_features(seen),
        )

    @cached_property
    def value(self) -> float:
        """Return the target's true value."""
        return float(self.target[np.arange(len(self.label)), self.label].mean())

    @cached_property
    def unsupported(self) -> float:
        """Return the share of the target's actions that the logging policy never takes."""
        return float((self.target * (self.logging == 0)).sum(axis=1).mean())

    def log(self, events: int, seed: int) -> EventBatch:
        """Draw this number of events."""
        rng = np.random.default_rng(seed)
        image = rng.integers(len(self.label), size=events)
        propensities = self.logging[image]
        action = np.minimum((rng.random((events, 1)) > propensities.cumsum(axis=1)).sum(axis=1), DIGITS - 1)
        return EventBatch.from_arrays(
            reward=(action == self.label[image]).astype(float),
            action=action,
            propensities=propensities,
            features=self.features[image],
            policies={CANDIDATE: self.target[image]},
        )


def _sharpened(probabilities: Array, power: float) -> Array:
    sharp: Array = probabilities**power
    return sharp / sharp.sum(axis=1, keepdims=True)


def _exploring(probabilities: Array, exploration: float, supported: int) -> Array:
    """Return distributions on the likeliest actions, mixed with uniform exploration of these."""
    least = np.sort(probabilities, axis=1)[:, [DIGITS - supported]]
    kept = np.where(probabilities >= least, probabilities, 0.0)
    any_of_them = (kept > 0) / (kept > 0).sum(axis=1, keepdims=True)
    mixed = (1 - exploration) * kept / kept.sum(axis=1, keepdims=True) + exploration * any_of_them
    return np.minimum(mixed, 1.0)  # rounding


def _digit_features(seen: Array) -> Array:
    """Return features for a linear model per digit.

    An indicator of the digit and the features of the image stand in the columns of that digit.
    """
    images, components = seen.shape
    features = np.zeros((images, DIGITS, DIGITS * (1 + components)))
    block = np.concatenate([np.ones((images, 1)), seen], axis=1)
    for name in range(DIGITS):
        features[:, name, name * (1 + components) : (name + 1) * (1 + components)] = block
    return features
