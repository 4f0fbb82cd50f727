"""How fast the world moves: the Lipschitz constant of the value, and the window or decay that suits it.

Source: Jagerman, Markov & de Rijke, WSDM 2019 (equation 5.12 and section 5.3.5 of Jagerman's thesis). "Published" is
the rule in the code of that paper, "mse" the one in its text.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from streameval.arrays import Array, State
from streameval.averages.blocks import Blocks
from streameval.averages.moments import Row

SMOOTHING_WINDOW = 10_000
SMOOTHING_DECAY = 0.99995
SHORTEST, LONGEST = 500, 500_000
LATEST_RATES = 5
PUBLISHED_UNIT = 100
"""The published rule takes the drift per batch of 100 interactions."""

Smoothing = Literal["window", "decay"]


def start(columns: int, block: int, drift_span: int, smoothing: Smoothing) -> State:
    """The memory of a drift rate over `drift_span` events; values are smoothed by a window or by a decay."""
    return {
        "values": np.full((max(1, -(-drift_span // block)), columns), np.nan),
        "blocks": 0,
        "latest": np.full((LATEST_RATES, columns), np.nan),
        "smoother": _sliding(columns, max(1, SMOOTHING_WINDOW // block))
        if smoothing == "window"
        else _decaying(columns),
    }


def push(state: State, blocks: Blocks) -> tuple[Array, State]:
    """The drift rate `k` at the end of each block, [blocks, columns], per event; NaN until the span has passed.

    `k = |V(t) - V(t - s)| / s`, averaged over the last five block ends.
    """
    sums, smoother = _smooth(state["smoother"], blocks.moments[:, :, [Row.U, Row.V]], blocks.size)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = sums[..., 0] / sums[..., 1]
    before = _exchange(state["values"], state["blocks"], values)
    rates = np.abs(values - before) / (len(state["values"]) * blocks.size)
    latest = np.concatenate([state["latest"], rates])
    windows = np.lib.stride_tricks.sliding_window_view(latest[1:], LATEST_RATES, axis=0)
    mean = _mean_of_known(windows)
    return mean, {
        **state,
        "blocks": state["blocks"] + len(blocks),
        "latest": latest[-LATEST_RATES:],
        "smoother": smoother,
    }


def latest_rate(state: State) -> Array:
    """The drift rate `k` at the last block end, [columns]; NaN while unknown."""
    return _mean_of_known(state["latest"].T)


def _mean_of_known(values: Array) -> Array:
    known = ~np.isnan(values)
    count = known.sum(axis=-1)
    total = np.where(known, values, 0.0).sum(axis=-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _exchange(ring: Array, written: int, values: Array) -> Array:
    """Put values into the ring and take out those of a whole ring's length before, in turn."""
    before = np.empty_like(values)
    for first in range(0, len(values), len(ring)):
        part = slice(first, first + len(ring))
        places = np.arange(written + first, written + min(first + len(ring), len(values))) % len(ring)
        before[part] = ring[places]
        ring[places] = values[part]
    return before


def _sliding(columns: int, blocks: int) -> State:
    """A moving sum over the last `blocks` blocks that only ever adds.

    The past is cut into stretches of that length; a window is the end of one stretch, summed from its back, and the
    beginning of the next, summed from its front.
    """
    return {"ends": np.zeros((blocks + 1, columns, 2)), "stretch": np.zeros((0, columns, 2))}


def _decaying(columns: int) -> State:
    return {"sums": np.zeros((columns, 2))}


def _smooth(state: State, sums: Array, block: int) -> tuple[Array, State]:
    if "sums" in state:
        path = decayed_path(state["sums"], sums, SMOOTHING_DECAY**block)
        return path, {"sums": path[-1]}
    ends, stretch, windows = state["ends"], state["stretch"], []
    while len(sums):
        part, sums = np.split(sums, [len(ends) - 1 - len(stretch)])
        stretch = np.concatenate([stretch, part])
        beginnings = np.cumsum(stretch, axis=0)
        taken = np.arange(len(stretch) - len(part), len(stretch))
        windows.append(beginnings[taken] + ends[taken + 1])
        if len(stretch) == len(ends) - 1:
            ends = np.concatenate([np.cumsum(stretch[::-1], axis=0)[::-1], np.zeros_like(ends[:1])])
            stretch = stretch[:0]
    return np.concatenate(windows), {"ends": ends, "stretch": stretch}


def decayed_path(state: Array, steps: Array, factor: float) -> Array:
    """The states after each step of `state = factor state + step`, stacked."""
    lag = np.subtract.outer(np.arange(len(steps)), np.arange(len(steps)))
    weights = np.where(lag >= 0, factor ** np.maximum(lag, 0), 0.0)
    start_weights = factor ** np.arange(1, len(steps) + 1)
    flat = weights @ steps.reshape(len(steps), -1)
    return np.asarray(flat.reshape(steps.shape) + start_weights.reshape(-1, *[1] * state.ndim) * state)


def window_bias(k: Array, tau: Array | float) -> Array:
    """Bound on the bias of a window of `tau` events: `k (tau - 1) / 2`."""
    return k * (tau - 1.0) / 2


def decay_bias(k: Array, alpha: Array | float, t: float) -> Array:
    """Bound on the bias of a decay after `t` events: `k alpha / ((1 - alpha) (1 - alpha^t))`."""
    return k * _published_bias(np.asarray(alpha), np.asarray(float(t)))


def _published_bias(alpha: Array, t: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(alpha / ((1 - alpha) * (1 - alpha**t)))


def _exact_bias(alpha: Array, t: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(alpha / (1 - alpha) - t * alpha**t / (1 - alpha**t))


def published_window(scaled_rate: Array) -> Array:
    """`sqrt(2 / (lambda k))`, the window of the published code, before it is kept within its limits.

    >>> published_window(np.array([250 * 1e-4])).round(6)
    array([8.944272])
    """
    with np.errstate(divide="ignore"):
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
    with np.errstate(divide="ignore", invalid="ignore"):
        target = 2 * variance / (bias_weight * k * k)
        tau = np.cbrt(target) + 1.0
        for _ in range(6):
            tau = tau - (tau * tau * (tau - 1.0) - target) / (tau * (3 * tau - 2))
    return np.where(np.isinf(target), np.inf, tau)


def mse_decay(k: Array, variance: Array, bias_weight: float, t: Array, bias: Literal["published", "exact"]) -> Array:
    """The alpha that minimises `lambda bias^2 + s2 sum of squared kernel weights` after `t` events, [blocks, columns].

    The horizon `1 / (1 - alpha)` is searched on a logarithmic grid between its limits and refined by a parabola.
    """
    grid = np.geomspace(SHORTEST, LONGEST, 49)
    alpha = 1 - 1 / grid
    fading = alpha ** t[:, None]
    bias_of = _published_bias if bias == "published" else _exact_bias
    squared_bias = bias_weight * bias_of(alpha, t[:, None]) ** 2
    squared_weights = (1 - alpha) * (1 + fading) / ((1 + alpha) * (1 - fading))
    risk = (k * k)[..., None] * squared_bias[:, None] + variance[..., None] * squared_weights[:, None]
    best = np.argmin(np.where(np.isnan(risk), np.inf, risk), axis=-1)
    inner = np.clip(best, 1, len(grid) - 2)[..., None]
    left, middle, right = (np.take_along_axis(risk, inner + side, axis=-1)[..., 0] for side in (-1, 0, 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = 0.5 * (left - right) / (left - 2 * middle + right)
    refined = np.where((best == inner[..., 0]) & np.isfinite(shift), shift, 0.0)
    step = np.log(grid[1] / grid[0])
    return 1 - 1 / (grid[best] * np.exp(step * refined))
