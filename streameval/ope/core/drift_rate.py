"""Estimate the drift rate (the Lipschitz constant of the value), the memory that suits it, and the bias it leaves.

"Published" is the rule in the code of the paper, "mse" the one in its text.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import msgspec
import numpy as np

from streameval.common.arrays import Array, Integers
from streameval.ope.core import kernel

Bias = Literal["published", "exact"]
"""The bound on the bias of a decay: as published, which explodes for small t, or exact."""
Smoothing = Literal["window", "decay"]
DRIFT_SPAN = 50_000
SMOOTHING_WINDOW = 10_000
SMOOTHING_DECAY = 0.99995
LATEST_RATES = 5
SHARES = (8, 4, 2)
"""A drift rate over several spans looks at these fractions of the longest one too."""
SPANS_MEMORY = 200_000
"""The horizon of the mean squares of differences over the short spans, in events."""


class DriftState(msgspec.Struct):
    """Hold the memory of a drift rate, see `kernel.follow_values`. `blocks`: since each policy was added [P]."""

    smoothed: Array
    values: Array
    latest: Array
    mean: Array
    blocks: Integers


class SpansState(msgspec.Struct):
    """Hold the memory of a drift rate over short spans, see `kernel.follow_spans`.

    `blocks`: since each policy was added [P].
    """

    smoothed: Array
    values: Array
    moved: Array
    noise: Array
    rate: Array
    blocks: Integers


@dataclass(frozen=True, slots=True)
class ShortSpans:
    """Estimate the drift rate over an eighth, a quarter and half of a span, from the value over 10,000 events.

    The rate of a span a is `sqrt(max(0, D - c nu)) / a`. D is the mean of `(V(t) - V(t - a))^2` over the last 200,000
    events, and nu its noise. Noise alone exceeds `c nu` in 2 % of cases. A span needs two independent differences. The
    largest rate counts.

    Attributes:
        span: in events
    """

    span: int

    @property
    def name(self) -> str:
        """Return the key of its state."""
        return str(self.span)

    def start(self, policies: int, columns: int, block: int) -> SpansState:
        """Start before the first event."""
        shape = (policies, columns)
        return SpansState(
            np.zeros((*shape, max(1, SMOOTHING_WINDOW // block), 2)),
            np.full((*shape, self._blocks(block)[-1]), np.nan),
            np.zeros((*shape, len(SHARES), 2)),
            np.zeros((*shape, 2)),
            np.full(shape, np.nan),
            np.zeros(policies, dtype=np.int64),
        )

    def fold(self, state: SpansState, terms: Array, block: int) -> Array:
        """Fold blocks into the state, and return the rate at the end of each, NaN while unknown [B, P, E].

        Args:
            terms: sums of weights, numerators and denominators of each block [B, P, E, 3]
            block: events in a block
        """
        rates = np.empty(terms.shape[:3])
        kernel.follow_spans(
            terms,
            state.smoothed,
            state.values,
            state.moved,
            state.noise,
            state.rate,
            state.blocks,
            self._blocks(block),
            np.exp(-block / SPANS_MEMORY),
            float(block),
            rates,
        )
        state.blocks = state.blocks + len(terms)
        return rates

    def _blocks(self, block: int) -> Integers:
        """Return the short spans in blocks, in ascending order."""
        return np.array([max(1, -(-self.span // block) // share) for share in SHARES], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class DriftRateEstimator:
    """Estimate `k = |V(t) - V(t - span)| / span`, averaged over the last five block ends.

    It is unknown for the first `span` events. `V` is smoothed by a window of 10,000 events or a decay of 0.99995. A
    value that goes up and down within a span does not move over the whole of it. So the rate is the largest one over
    the span and over the `ShortSpans`, unless the published rule asks for the span alone.

    Attributes:
        smoothing: `window` or `decay`
        span: the distance in events
        only_full: whether to leave out the values of a window that is not full, with later events than a full one
        short: whether the short spans count too
    """

    smoothing: Smoothing
    span: int = DRIFT_SPAN
    only_full: bool = False
    short: bool = True

    @property
    def name(self) -> str:
        """Return the key of its state."""
        return f"{self.smoothing} {self.span}{' only full' * self.only_full}"

    def start(self, policies: int, columns: int, block: int) -> DriftState:
        """Start before the first event."""
        window = max(1, SMOOTHING_WINDOW // block) if self.smoothing == "window" else 1
        shape = (policies, columns)
        return DriftState(
            np.zeros((*shape, window, 2)),
            np.full((*shape, max(1, -(-self.span // block))), np.nan),
            np.full((*shape, LATEST_RATES), np.nan),
            np.full(shape, np.nan),
            np.zeros(policies, dtype=np.int64),
        )

    def fold(self, state: DriftState, terms: Array, block: int) -> Array:
        """Fold blocks into the state, and return the rate at the end of each, NaN while unknown [B, P, E].

        Args:
            terms: sums of weights, numerators and denominators of each block [B, P, E, 3]
            block: events in a block
        """
        rates = np.empty(terms.shape[:3])
        fading = SMOOTHING_DECAY**block if self.smoothing == "decay" else 0.0
        least = state.smoothed.shape[2] - 1 if self.only_full else 0
        span = float(state.values.shape[2] * block)
        kernel.follow_values(
            terms,
            state.smoothed,
            state.values,
            state.latest,
            state.mean,
            state.blocks,
            fading,
            least,
            span,
            rates,
        )
        state.blocks = state.blocks + len(terms)
        return rates


def largest(rate: Array, short: Array) -> Array:
    """Return the larger rate of the span and of the short spans, NaN while the rate of the span is unknown."""
    return np.where(np.isnan(rate), np.nan, np.fmax(rate, short))


SHORTEST, LONGEST = 500, 500_000
"""Limits of a window, and of the horizon `1 / (1 - alpha)` of a decay, in events."""
PUBLISHED_UNIT = 100
"""The published rule uses the drift per batch of 100 interactions."""
GRID = np.geomspace(SHORTEST, LONGEST, 65)
BETWEEN = np.concatenate([np.log(GRID[:1]), np.log(GRID[1:] * GRID[:-1]) / 2, np.log(GRID[-1:])])
"""Logarithms of horizons half way between neighbours on the grid, and of its ends."""


def window_bias(k: Array, tau: Array | float) -> Array:
    """Bound on the bias of a window of `tau` events: `k (tau - 1) / 2`."""
    return k * (tau - 1.0) / 2


def decay_bias(k: Array, alpha: Array | float, t: Array | float) -> Array:
    """Bound on the bias of a decay after `t` events: `k alpha / ((1 - alpha) (1 - alpha^t))`."""
    alpha = np.asarray(alpha)
    return k * _bias_per_rate(alpha, alpha**t, t, "published")


def _bias_per_rate(alpha: Array, fading: Array, t: Array | float, bias: Bias) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        if bias == "exact":
            return np.asarray(alpha / (1 - alpha) - t * fading / (1 - fading))
        return np.asarray(alpha / ((1 - alpha) * (1 - fading)))


def published_window(scaled_rate: Array) -> Array:
    """Return `sqrt(2 / (lambda k))`, the window of the published code, before its limits apply."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(np.sqrt(2.0 / scaled_rate))


def published_decay(scaled_rate: Array) -> Array:
    """Return `(sqrt 2 - sqrt(lambda k)) / (sqrt 2 + sqrt(lambda k))`, the alpha of the published code."""
    root = np.sqrt(scaled_rate)
    return np.asarray((np.sqrt(2.0) - root) / (np.sqrt(2.0) + root))


def mse_window(k: Array, variance: Array, bias_weight: float) -> Array:
    """Minimise `lambda (k (tau - 1) / 2)^2 + s2 / tau`: return the root of `tau^2 (tau - 1) = 2 s2 / (lambda k^2)`.

    >>> tau = mse_window(np.array([1e-5, 1 / 3]), np.array([1.0, 1.0]), bias_weight=1.0)
    >>> (tau**2 * (tau - 1) / [2e10, 18.0]).round(9).tolist()
    [1.0, 1.0]
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        target = np.minimum(2 * variance / (bias_weight * k * k), 8.0 * LONGEST**3)  # beyond that: the longest anyway
        tau = np.cbrt(target) + 1.0
        for _ in range(6):
            tau = tau - (tau * tau * (tau - 1.0) - target) / (tau * (3 * tau - 2))
    return np.asarray(tau)


def mse_decay(k: Array, variance: Array, bias_weight: float, t: Array, bias: Bias) -> Array:
    """Return the alpha that minimises `lambda bias^2 + s2 sum of squared kernel weights` after `t` events.

    At a given t the best horizon `1 / (1 - alpha)` depends on `s2 / (lambda k^2)` alone, and grows with it. It is
    interpolated between the values at which two neighbours on a grid of horizons are equally good.

    >>> k, variance, t = np.array([[1e-6]]), np.array([[1.0]]), np.array([1e7])
    >>> horizon = 1 / (1 - mse_decay(k, variance, 1.0, t, "exact"))
    >>> float((horizon**3 * 4 * k**2).round(2)[0, 0])  # for large t: the minimum of k^2 h^2 + 1 / (2 h)
    1.0
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        noise = np.log(variance / (bias_weight * k * k))
    even = _equally_good(np.asarray(t, dtype=float).tobytes(), bias)
    best = np.empty(noise.shape)
    kernel.interpolate(np.ascontiguousarray(noise), even, BETWEEN, best)
    return np.asarray(1 - 1 / np.exp(best))


@lru_cache(maxsize=4)
def _equally_good(t: bytes, bias: Bias) -> Array:
    """Return the numbers at which two neighbours on the grid are equally good, [blocks, horizons].

    All rewards of a stream have the same blocks, so the last ones are kept. `t`: the bytes of the numbers of events.
    """
    events, alpha = np.frombuffer(t)[:, None], 1 - 1 / GRID
    fading = alpha**events
    bound = _bias_per_rate(alpha, fading, events, bias)
    squared_weights = (1 - alpha) * (1 + fading) / ((1 + alpha) * (1 - fading))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        gained, lost = -np.diff(squared_weights), np.diff(bound**2)
        even = np.maximum.accumulate(np.where(gained > 0, np.log(lost / gained), np.inf), axis=1)
    ends = 1.5 * np.log(GRID[1] / GRID[0])  # half a step of the horizon; the number grows with its third power
    return np.concatenate([even[:, :1] - ends, even, even[:, -1:] + ends], axis=1)
