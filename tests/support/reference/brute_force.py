"""Spell out the definitions: slow, without any state between events, and obviously right.

Everything here looks at the whole past each time it is asked, takes differences from means in two passes, and has no
blocks unless the definition has them. The numbers of the package are compared with it, so it shares no code with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SHORTEST, LONGEST = 500, 500_000
INITIAL_TAU, INITIAL_ALPHA = 10_000, 0.9999


@dataclass(frozen=True)
class Terms:
    """Hold the terms of one estimator on a stream.

    Attributes:
        q: Averaging weights, 0 if the policy lacks the event.
        u: Numerators.
        v: Denominators.
        w: Importance weights.
    """

    q: Array
    u: Array
    v: Array
    w: Array

    def __getitem__(self, part: slice) -> Terms:
        return Terms(self.q[part], self.u[part], self.v[part], self.w[part])

    def __len__(self) -> int:
        return len(self.q)


DEFINED = ("ips", "snips", "clipped_ips", "control_variate", "stratified_ips")
"""Estimators that `terms` defines."""


def terms(
    estimator: str, q: Sequence[float], w: Sequence[float], r: Sequence[float], *, cap: float, block: int
) -> Terms:
    """Return the terms of an estimator.

    They are `w r` for ips, `w r` over `w` for snips, `min(w, cap) r` for clipped_ips, and `w r - beta (w - 1)`
    otherwise. Summed up, the strata of `stratified_ips` with threshold `cap` differ from `control_variate` in `beta`
    alone.
    """
    weight, reward, present = np.array(w, dtype=float), np.array(r, dtype=float), np.array(q, dtype=float)
    one = np.ones(len(weight))
    if estimator == "ips":
        return Terms(present, weight * reward, one, weight)
    if estimator == "snips":
        return Terms(present, weight * reward, weight, weight)
    if estimator == "clipped_ips":
        return Terms(present, np.array([min(one_weight, cap) for one_weight in weight]) * reward, one, weight)
    if estimator == "control_variate":
        beta = past_slopes(present, weight, reward, block)
        return Terms(present, weight * reward - beta * (weight - 1), one, weight)
    if estimator == "stratified_ips":
        rare = np.where(weight > cap, reward, 0.0)
        beta = past_slopes(present, weight, rare, block)
        return Terms(present, weight * reward - beta * (weight - 1), one, weight)
    raise ValueError(estimator)


def past_slopes(q: Array, w: Array, r: Array, block: int) -> Array:
    """Return the slope of the blocks before the block of each event."""
    slopes = [past_slope(q, w, r, blocks, block) for blocks in range(math.ceil(len(w) / block))]
    return np.repeat(slopes, block)[: len(w)]


def past_slope(q: Array, w: Array, r: Array, blocks: int, block: int) -> float:
    """Return `cov(w r, w) / var(w)` over the first `blocks` blocks.

    Each block counts `(1 - 1e-5)^block` times the next one.
    """
    end = blocks * block
    age = blocks - 1 - np.arange(end) // block
    kernel = q[:end] * (1 - 1 / 100_000) ** (block * age)
    if kernel.sum() == 0:
        return 0.0
    mean_w = np.average(w[:end], weights=kernel)
    mean_wr = np.average(w[:end] * r[:end], weights=kernel)
    variance = np.average((w[:end] - mean_w) ** 2, weights=kernel)
    covariance = np.average((w[:end] - mean_w) * (w[:end] * r[:end] - mean_wr), weights=kernel)
    return float(covariance / variance) if variance > 1e-12 * mean_w**2 else 0.0


def cumulative(n: int) -> Array:
    """Count every event 1."""
    return np.ones(n)


def window(n: int, tau: int, resolution: int = 1) -> Array:
    """Count the last `tau` events 1, the older ones 0, by equation 5.8. A bucket that is not wholly inside counts 0."""
    first_bucket = math.ceil(max(0, n - tau) / resolution)
    return np.array([1.0 if i // resolution >= first_bucket else 0.0 for i in range(n)])


def decay(n: int, alpha: float) -> Array:
    """Count an event of `age` (the newest: 0) `alpha^age`, by equation 5.11."""
    return np.array([alpha ** (n - 1 - i) for i in range(n)])


@dataclass(frozen=True)
class Moments:
    """Hold value and spread of a kernel and terms, by definition, NaN if there is no evidence."""

    value: float
    n_eff: float
    variance: float  # of the (linearised) term, divided by the sum of weights
    effective_sample_size: float
    mean_weight: float
    largest_share: float
    total: float
    largest_q: float


def moments(kernel: Array, stream: Terms) -> Moments:
    """Compute weighted means in two passes."""
    q = kernel * stream.q
    if q.sum() == 0 or (q * stream.v).sum() == 0:
        return Moments(*[math.nan] * 8)
    value = (q * stream.u).sum() / (q * stream.v).sum()
    n_eff = q.sum() ** 2 / (q**2).sum()
    mean_v = np.average(stream.v, weights=q)
    mean_w, mean_square = np.average(stream.w, weights=q), np.average(stream.w**2, weights=q)
    carried = abs((q * stream.u).sum())
    return Moments(
        value=float(value),
        n_eff=float(n_eff),
        variance=float(np.average((stream.u - value * stream.v) ** 2, weights=q) / mean_v**2),
        effective_sample_size=float(n_eff * mean_w**2 / mean_square),
        mean_weight=float(mean_w),
        largest_share=float(np.abs(q * stream.u).max() / carried) if carried else math.nan,
        total=float(q.sum()),
        largest_q=float(q.max()),
    )


Choice = Callable[[float, float, int], float]


def drift_rates(stream: Terms, block: int, span: int, smoother: Callable[[int], Array]) -> list[float]:
    """Return `|V_t - V_{t-s}| / s` at each block end, averaged over the last five, NaN until t > s.

    A block without evidence leaves the rate unchanged.
    """
    lag = math.ceil(span / block)
    values = [_value(smoother(end), stream[:end]) for end in range(block, len(stream) + 1, block)]
    rates = [abs(values[i] - values[i - lag]) / (lag * block) if i >= lag else math.nan for i in range(len(values))]
    means = [math.nan]
    for i in range(len(rates)):
        silent = stream[i * block : (i + 1) * block].q.sum() == 0
        means.append(means[-1] if silent else _mean_without_nan(rates[max(0, i - 4) : i + 1]))
    return means[1:]


def rates_over_spans(stream: Terms, block: int, span: int, smoother: Callable[[int], Array]) -> list[float]:
    """Return the largest drift rate over a span and over short spans at each block end, NaN until t > s."""
    longest, short = drift_rates(stream, block, span, smoother), short_rates(stream, block, span)
    return [k if math.isnan(k) else float(np.nanmax([k, other])) for k, other in zip(longest, short, strict=True)]


def short_rates(stream: Terms, block: int, span: int, smoothing: int = 10_000) -> list[float]:
    """Return the largest drift rate over an eighth, a quarter and half of a span at each block end.

    Each is the root mean square of the differences of values over `smoothing` events, beyond their noise. Means fade
    over 200,000 events. Values count from the second full window on.
    """
    whole, window = math.ceil(span / block), smoothing // block
    parts = [stream[i * block : (i + 1) * block] for i in range(len(stream) // block)]
    sums = [np.array([(part.q * part.u).sum(), (part.q * part.v).sum(), part.q.sum()]) for part in parts]
    fading = math.exp(-block / 200_000)
    values: list[float] = []
    noise, moved, largest, rates = [0.0, 0.0], {max(1, whole // share): [0.0, 0.0] for share in (8, 4, 2)}, math.nan, []
    for i, (u, v, weight) in enumerate(sums):
        before = np.sum(sums[max(0, i - window + 1) : i], axis=0) if i else np.zeros(3)
        if weight > 0 and before[1] != 0:
            change = sums[i] - sums[i - 1]
            deviation = change[0] - before[0] / before[1] * change[1]
            noise = [fading * noise[0] + deviation**2, fading * noise[1] + 1]
        numerator, denominator = before[0] + u, before[1] + v
        values.append(numerator / denominator if i >= 2 * window - 1 and denominator != 0 else math.nan)
        if weight > 0 and not math.isnan(values[-1]):
            found = []
            for lag, squares in moved.items():
                difference = values[i] - values[i - lag] if i >= lag else math.nan
                if not math.isnan(difference):
                    squares[:] = [fading * squares[0] + difference**2, fading * squares[1] + 1]
                independent = squares[1] / max(lag, window)
                if independent >= 2:
                    variance = window * noise[0] / noise[1] / denominator**2 * min(1, lag / window)
                    spread = 2 / (9 * independent)
                    beyond = squares[0] / squares[1] - (1 - spread + 2 * math.sqrt(spread)) ** 3 * variance
                    found.append(math.sqrt(max(0, beyond)) / (lag * block))
            largest = max(found, default=math.nan)
        rates.append(largest)
    return rates


def _value(kernel: Array, stream: Terms) -> float:
    below = (kernel * stream.q * stream.v).sum()
    return float((kernel * stream.q * stream.u).sum() / below) if below else math.nan


def _mean_without_nan(numbers: Sequence[float]) -> float:
    numbers = [number for number in numbers if not math.isnan(number)]
    return sum(numbers) / len(numbers) if numbers else math.nan


def running_variance(stream: Terms, end: int, block: int) -> float:
    """Return the variance of the terms of the first `end` events, fading over 100,000 events at block ends.

    Args:
        stream: Terms of all events.
        end: Number of events, a multiple of `block`.
        block: Number of events of a block.
    """
    age = end // block - 1 - np.arange(end) // block
    return moments((1 - 1 / 100_000) ** (block * age).astype(float), stream[:end]).variance


def smooth_window(end: int) -> Array:
    """Return the kernel of the moving average for the drift that chooses a window: 10,000 events."""
    return window(end, 10_000)


def smooth_decay(block: int) -> Callable[[int], Array]:
    """Return the kernel of the moving average for the drift that chooses an alpha: .99995 an event, at block ends."""
    return lambda end: 0.99995 ** (block * (end // block - 1 - np.arange(end) // block)).astype(float)


def chosen(stream: Terms, block: int, span: int, smoother: Callable[[int], Array], choose: Choice) -> list[float]:
    """Return `choose(drift rate, variance, events)` at each block end, NaN while the drift rate is unknown."""
    rates = rates_over_spans(stream, block, span, smoother)
    ends = range(block, len(stream) + 1, block)
    return [
        math.nan if math.isnan(k) else choose(k, running_variance(stream, end, block), end)
        for k, end in zip(rates, ends, strict=True)
    ]


def adaptive_window(n: int, block: int, choices: Sequence[float], growth: str) -> Array:
    """Return the kernel after `n` events: whole blocks inside `tau` of the last block end, and the events since.

    Args:
        n: Number of events.
        block: Number of events of a block.
        choices: Chosen `tau` at each block end.
        growth: With `by_event`, the window grows by at most one event per event.
    """
    length, tau = 0.0, float(INITIAL_TAU)
    for choice in choices[: n // block]:
        tau = INITIAL_TAU if math.isnan(choice) else min(max(choice, SHORTEST), LONGEST)
        length = min(tau, length + block) if growth == "by_event" else tau
    late = n % block
    reach = min(tau, length + late) if growth == "by_event" else tau
    whole = math.floor((reach - late) / block) * block
    return np.array([1.0 if i >= n - late - whole else 0.0 for i in range(n)])


def adaptive_decay(n: int, block: int, choices: Sequence[float]) -> Array:
    """Return the kernel after `n` events: m events of a block share `1 - alpha^m`, with alpha of the block end before.

    With a share of `(1 - alpha^m) / (1 - alpha)`, events that came while alpha was large would outweigh the newer ones
    for long after alpha has fallen.
    """
    alpha, kernel = INITIAL_ALPHA, np.zeros(n)
    for first in range(0, n, block):
        size = min(block, n - first)
        kernel[:first] *= alpha**size
        kernel[first : first + size] = (1 - alpha**size) / size
        if size == block:
            choice = choices[first // block]
            alpha = INITIAL_ALPHA if math.isnan(choice) else min(max(choice, 1 - 1 / SHORTEST), 1 - 1 / LONGEST)
    return kernel


def mse_tau(bias_weight: float) -> Choice:
    """Choose the minimum of `lambda (k (tau - 1) / 2)^2 + s2 / tau` by bisection of its derivative."""

    def choose(k: float, variance: float, events: int) -> float:
        def slope(tau: float) -> float:
            return bias_weight * k * k * (tau - 1) / 2 - variance / tau**2

        if slope(LONGEST) <= 0:
            return LONGEST
        low, high = 1.0, float(LONGEST)
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if slope(middle) < 0 else (low, middle)
        return low

    return choose


def published_tau(bias_weight: float) -> Choice:
    """Choose `sqrt(2 / (lambda k))`, with k per 100 events."""
    return lambda k, variance, events: math.sqrt(2 / (bias_weight * 100 * k)) if k > 0 else LONGEST


def decay_risk(horizon: Array, k: float, variance: float, t: int, bias_weight: float, bias: str) -> Array:
    """Return `lambda bias^2 + s2 (sum of squared normalised weights)` of a decay with this horizon after `t` events."""
    alpha = 1 - 1 / horizon
    if bias == "published":
        most = k * alpha / ((1 - alpha) * (1 - alpha**t))
    else:
        most = k * (alpha / (1 - alpha) - t * alpha**t / (1 - alpha**t))
    weights = ((1 - alpha) / (1 - alpha**t)) ** 2 * (1 - alpha ** (2 * t)) / (1 - alpha**2)
    return bias_weight * most**2 + variance * weights


def mse_alpha(bias_weight: float, bias: str) -> Choice:
    """Choose the alpha of least risk among 20,000 horizons, .035 % apart."""
    horizons = np.geomspace(SHORTEST, LONGEST, 20_001)

    def choose(k: float, variance: float, events: int) -> float:
        with np.errstate(all="ignore"):
            risks = decay_risk(horizons, k, variance, events, bias_weight, bias)
        return float(1 - 1 / horizons[int(np.nanargmin(risks))])

    return choose
