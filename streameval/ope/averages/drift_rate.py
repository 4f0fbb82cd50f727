"""The drift rate (the Lipschitz constant of the value), the window or decay that suits it, and the bias it leaves.

"Published" is the rule in the code of the paper, "mse" the one in its text.

Source: Jagerman, Markov & de Rijke, WSDM 2019 (equation 5.12 and section 5.3.5 of Jagerman's thesis).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from streameval.common.arrays import ROUNDING, Array, Mask, State, decayed_path, exchange, ratio
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.moments import TERM_SUMS, MomentRow, variance

DRIFT_SPAN = 50_000
SMOOTHING_WINDOW = 10_000
SMOOTHING_DECAY = 0.99995
VARIANCE_DECAY = 1 - 1 / 100_000
LATEST_RATES = 5


class DriftRate(NamedTuple):
    """Drift rate `k` (NaN while unknown) and variance of the term, each [blocks, columns] at block ends."""

    per_event: Array
    variance: Array


UNKNOWN_DRIFT_RATE = DriftRate(np.array(np.nan), np.array(np.nan))


@dataclass(frozen=True, slots=True)
class DriftRateEstimator:
    """`k = |V(t) - V(t - span)| / span`, averaged over the last five block ends; unknown for the first `span` events.

    `V` is smoothed by a window of 10,000 events or a decay of 0.99995. The variance is over the last 100,000 events.
    """

    smoothing: Literal["window", "decay"]
    span: int = DRIFT_SPAN

    @property
    def name(self) -> str:
        """The key of its state."""
        return f"{self.smoothing} {self.span}"

    def start(self, columns: int, block: int) -> State:
        """The state before the first event."""
        return {
            "values": np.full((columns, max(1, -(-self.span // block))), np.nan),
            "blocks": 0,
            "latest": np.full((columns, LATEST_RATES), np.nan),
            "mean": np.full(columns, np.nan),
            "recent": np.zeros((columns, TERM_SUMS.stop)),
            "smoother": _sliding(columns, max(1, SMOOTHING_WINDOW // block))
            if self.smoothing == "window"
            else {"sums": np.zeros((columns, 2))},
        }

    def fold(self, state: State, blocks: Blocks) -> tuple[DriftRate, State]:
        """The drift rate at the end of each block, and the state after them."""
        sums, smoother = _smooth(state["smoother"], blocks.moments[:, :, MomentRow.U : MomentRow.V + 1], blocks.size)
        with np.errstate(divide="ignore", invalid="ignore"):
            values = sums[..., 0] / sums[..., 1]
        span = state["values"].shape[1] * blocks.size
        before = exchange(state["values"].T, state["blocks"], values)
        rates = np.concatenate([state["latest"].T, _distance(values, before) / span])
        recent = decayed_path(state["recent"], blocks.spread[..., TERM_SUMS], VARIANCE_DECAY**blocks.size)
        present = blocks.moments[..., MomentRow.WEIGHT] > 0
        means = _held(state["mean"], _mean_of_latest(rates[1:]), present)
        return DriftRate(means, variance(recent)), {
            "values": state["values"],
            "blocks": state["blocks"] + len(blocks),
            "latest": np.ascontiguousarray(rates[-LATEST_RATES:].T),
            "mean": means[-1],
            "recent": recent[-1],
            "smoother": smoother,
        }

    def read(self, state: State) -> DriftRate:
        """The drift rate at the last block end, [columns]."""
        return DriftRate(state["mean"], variance(state["recent"]))


def _distance(values: Array, before: Array) -> Array:
    """The distance between values; one that is only rounding counts as 0."""
    distance = np.abs(values - before)
    return np.where(distance <= ROUNDING * np.abs(values), 0.0, distance)


def _mean_of_latest(rates: Array) -> Array:
    """The mean of the known ones of each rate and the four before it, [blocks + 4, columns] to [blocks, columns]."""
    known = ~np.isnan(rates)
    both = np.stack([np.where(known, rates, 0.0), known])
    blocks = len(rates) - LATEST_RATES + 1
    total, count = np.sum([both[:, lag : lag + blocks] for lag in range(LATEST_RATES)], axis=0)
    return ratio(total, count)


def _held(before: Array, values: Array, present: Mask) -> Array:
    """Each column's values, the last one held through blocks without evidence about it."""
    held = np.concatenate([before[None], values])
    latest = np.maximum.accumulate(np.where(present, np.arange(1, len(held))[:, None], 0), axis=0)
    return np.take_along_axis(held, latest, axis=0)


def _sliding(columns: int, blocks: int) -> State:
    """A moving sum over the last `blocks` blocks that only ever adds.

    The past is cut into stretches of that length. A window is the end of one stretch, summed from its back, plus the
    start of the next, summed from its front.
    """
    return {"ends": np.zeros((columns, blocks + 1, 2)), "stretch": np.zeros((columns, 0, 2))}


def _smooth(state: State, sums: Array, block: int) -> tuple[Array, State]:
    if "sums" in state:
        path = decayed_path(state["sums"], sums, SMOOTHING_DECAY**block)
        return path, {"sums": path[-1]}
    ends, stretch, windows = state["ends"].swapaxes(0, 1), state["stretch"].swapaxes(0, 1), []
    while len(sums):
        part, sums = np.split(sums, [len(ends) - 1 - len(stretch)])
        stretch = np.concatenate([stretch, part])
        fronts = np.cumsum(stretch, axis=0)
        taken = np.arange(len(stretch) - len(part), len(stretch))
        windows.append(fronts[taken] + ends[taken + 1])
        if len(stretch) == len(ends) - 1:
            ends = np.concatenate([np.cumsum(stretch[::-1], axis=0)[::-1], np.zeros_like(ends[:1])])
            stretch = stretch[:0]
    kept = {"ends": ends, "stretch": stretch}
    return np.concatenate(windows), {name: np.ascontiguousarray(array.swapaxes(0, 1)) for name, array in kept.items()}


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
    """`sqrt(2 / (lambda k))`, the window of the published code, before its limits apply.

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
    """The minimum of `lambda (k (tau - 1) / 2)^2 + s2 / tau`: the root of `tau^2 (tau - 1) = 2 s2 / (lambda k^2)`.

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

    At a given t the best horizon `1 / (1 - alpha)` depends on `s2 / (lambda k^2)` alone, and grows with it. It is
    interpolated between the values at which two neighbours on a grid of horizons are equally good.

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
