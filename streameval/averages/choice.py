"""Which window or decay suits a drift rate, and what bias it leaves.

Source: Jagerman, Markov & de Rijke, WSDM 2019 (section 5.3.5 of Jagerman's thesis). "Published" is the rule in the
code of that paper, "mse" the one in its text.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from streameval.arrays import Array

SHORTEST, LONGEST = 500, 500_000
"""Limits of a window, and of the horizon `1 / (1 - alpha)` of a decay, in events."""
PUBLISHED_UNIT = 100
"""The published rule takes the drift per batch of 100 interactions."""
GRID = np.geomspace(SHORTEST, LONGEST, 65)
BETWEEN = np.concatenate([np.log(GRID[:1]), np.log(GRID[1:] * GRID[:-1]) / 2, np.log(GRID[-1:])])
"""Logarithms of horizons half way between neighbours on the grid, and of its ends."""


def window_bias(k: Array, tau: Array | float) -> Array:
    """Bound on the bias of a window of `tau` events: `k (tau - 1) / 2`."""
    return k * (tau - 1.0) / 2


def decay_bias(k: Array, alpha: Array | float, t: float) -> Array:
    """Bound on the bias of a decay after `t` events: `k alpha / ((1 - alpha) (1 - alpha^t))`."""
    alpha = np.asarray(alpha)
    return k * _published_bias(alpha, alpha ** float(t))


def _published_bias(alpha: Array, fading: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(alpha / ((1 - alpha) * (1 - fading)))


def _exact_bias(alpha: Array, fading: Array, t: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(alpha / (1 - alpha) - t * fading / (1 - fading))


def published_window(scaled_rate: Array) -> Array:
    """`sqrt(2 / (lambda k))`, the window of the published code, before it is kept within its limits.

    >>> published_window(np.array([250 * 1e-4])).round(6)
    array([8.944272])
    """
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(np.sqrt(2.0 / scaled_rate))


def published_decay(scaled_rate: Array) -> Array:
    """`(sqrt 2 - sqrt(lambda k)) / (sqrt 2 + sqrt(lambda k))`, the alpha of the published code.

    >>> published_decay(np.array([250 * 1e-4])).round(6)
    array([0.798879])
    """
    root = np.sqrt(scaled_rate)
    return np.asarray((np.sqrt(2.0) - root) / (np.sqrt(2.0) + root))


def mse_window(k: Array, variance: Array, bias_weight: float) -> Array:
    """The window that minimises `lambda (k (tau - 1) / 2)^2 + s2 / tau`: the real root of `tau^2 (tau - 1) = 2 s2 /
    (lambda k^2)`.

    >>> tau = mse_window(np.array([1e-5]), np.array([1.0]), bias_weight=1.0)
    >>> float((tau**2 * (tau - 1) / 2e10).round(9)[0])
    1.0
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        target = np.minimum(2 * variance / (bias_weight * k * k), 8.0 * LONGEST**3)  # beyond that: the longest anyway
        tau = np.cbrt(target) + 1.0
        for _ in range(6):
            tau = tau - (tau * tau * (tau - 1.0) - target) / (tau * (3 * tau - 2))
    return np.asarray(tau)


def mse_decay(k: Array, variance: Array, bias_weight: float, t: Array, bias: Literal["published", "exact"]) -> Array:
    """The alpha that minimises `lambda bias^2 + s2 sum of squared kernel weights` after `t` events, [blocks, columns].

    At one t the best horizon `1 / (1 - alpha)` depends on the single number `s2 / (lambda k^2)`, and grows with it. On
    a grid of horizons, the numbers at which two neighbours are equally good are known; it is interpolated between them.

    >>> k, variance, t = np.array([[1e-6]]), np.array([[1.0]]), np.array([1e7])
    >>> horizon = 1 / (1 - mse_decay(k, variance, 1.0, t, "exact"))
    >>> float((horizon**3 * 4 * k**2).round(2)[0, 0])  # for large t: the minimum of k^2 h^2 + 1 / (2 h)
    1.0
    """
    alpha = 1 - 1 / GRID
    fading = alpha ** t[:, None]
    bound = _published_bias(alpha, fading) if bias == "published" else _exact_bias(alpha, fading, t[:, None])
    squared_weights = (1 - alpha) * (1 + fading) / ((1 + alpha) * (1 - fading))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        noise = np.log(variance / (bias_weight * k * k))
        gained, lost = -np.diff(squared_weights), np.diff(bound**2)
        even = np.maximum.accumulate(np.where(gained > 0, np.log(lost / gained), np.inf), axis=1)
    ends = 1.5 * np.log(GRID[1] / GRID[0])  # half a step of the horizon; the number grows with its third power
    even = np.concatenate([even[:, :1] - ends, even, even[:, -1:] + ends], axis=1)
    best = np.stack([np.interp(now, edges, BETWEEN) for now, edges in zip(noise, even, strict=True)])
    return np.asarray(1 - 1 / np.exp(best))
