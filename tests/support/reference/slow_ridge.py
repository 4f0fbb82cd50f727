"""Predict by ridge regression in closed form, anew for each block."""

from __future__ import annotations

import numpy as np

from streameval.common.arrays import Array, Integers


def slow_ridge(
    features: Array, action: Integers, reward: Array, weight: Array, block: int, horizon: float, penalty: float = 1.0
) -> Array:
    """Return predictions of weighted ridge regression on all events in earlier blocks, not clipped, [n, actions]."""
    n, actions, width = features.shape
    design = np.concatenate([np.ones((n, actions, 1)), features], axis=2)
    expected = np.zeros((n, actions))
    for start in range(0, n, block):
        ages = block * (start // block - 1 - np.arange(start) // block)
        x, fading = design[np.arange(start), action[:start]], (1 - 1 / horizon) ** ages * weight[:start]
        square = (x * fading[:, None]).T @ x + penalty * np.eye(1 + width)
        beta = np.linalg.solve(square, (x * fading[:, None]).T @ reward[:start])
        expected[start : start + block] = design[start : start + block] @ beta
    return expected
