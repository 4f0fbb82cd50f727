"""Compute lower confidence sequences as wealth processes: sums over blocks of observations, and their evidence.

A process bounds the running mean of observations `X >= 0` from below, with means in [0, 1] or near it. It keeps `width`
sums a row: the count, the total, and the `costs` of its bets. Sums of consecutive stretches add up, as long as each
observation's centre was known before it.

`log_wealth` is the logarithm of the evidence that the running mean is above `mean`, and falls with `mean`. Against the
true running mean it ever reaches `ln(1 / error)` with probability at most `error`. `lower` is the mean with evidence `1
/ error` against it, NaN without observations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, TypeAlias

import numpy as np

from streameval.common.arrays import Array, Integers
from streameval.ope.intervals.sequences.observations import LIGHT, RANGE_ROUNDING, Observations

COUNT, TOTAL, SQUARES = 0, 1, 2
"""Indices of the sums of a row: the number of observations, their total, and in `BernsteinWealth` their squares."""
FRESH = 100
"""Number of observations up to which each has its own centre, because one for a whole block would be a guess."""
EDGE_RATIO = 1.5
CLASSES = 50
EDGES = EDGE_RATIO ** np.arange(CLASSES + 1.0)
"""Edges of the classes of deviations above 1."""
NEWTON_STEPS, DOUBLINGS, HALVINGS = 100, 200, 100


@dataclass(frozen=True)
class HeavyTailed:
    """Bet on observations with heavy tails, such as weighted rewards, for evidence against a mean.

    Let the centre `c` in [0, 1] be known beforehand, `e = X - c` the deviation, and 0 < lambda < 1. The wealth `exp(sum
    of lambda (X - E X) - h(lambda e))` with `h(z) = z - ln(1 + z)` is a supermartingale that starts at 1, because `1 +
    lambda e` is not negative, and has the mean `1 + lambda (E X - c) <= exp(lambda (E X - c))`. Any mixture over
    lambdas is one too. Hence, at all times at once and however the means change,

        sum over j of weight_j exp(lambda_j (S - count mean) - C_j) < 1 / error,    C_j >= sum of h(lambda_j e)

    holds for the true running mean with probability `1 - error` or more. The lower bound is the mean that would make
    the two sides equal. `lambda_j = largest / ratio^(j + 1/2)` for j = 0, 1, .. `count - 1`.

    `C_j` is bounded from above without a logarithm for each event and lambda:

    * If each event has its own centre, by `(lambda e)^2 / (2 (1 - lambda))` for e <= 0, by `(lambda e)^2 / 2` up to 1,
      and beyond by interpolating h between the edges of geometric classes, minus what its curvature grants.
    * If one centre serves a whole block, by a straight line above the convex `h(z) / z^2` between the least and the
      largest deviation. This is `(lambda e)^2 (a - b e)`, which is h for e = -1 and e = 3, and at most 3 % more if
      lambda < .15.

    Args:
        largest: the scale of the lambdas, in (0, 1)
        ratio: of neighbouring lambdas
        count: the number of lambdas
        weights: of the lambdas. By default they fall like `(j + 3)^-1.4`, the narrowest of those tried for intrinsic
            times (variance times events) from 100 to 10^9. With weights proportional to lambda, as published, intervals
            are up to 6 % narrower below a time of 10^3, and 4 % wider at 10^4, 12 % at 10^6.

    Source: Mineiro, A lower confidence sequence for the changing mean of non-negative right heavy-tailed observations
    with bounded mean, 2022; for the inequality, Fan, Grama & Liu, 2015.
    """

    largest: float = 0.5
    ratio: float = 1.6
    count: int = 28
    weights: tuple[float, ...] | None = None

    @property
    def width(self) -> int:
        return 2 + self.count

    @cached_property
    def lambdas(self) -> Array:
        """Return the lambdas, largest first."""
        return np.asarray(self.largest * self.ratio ** -(np.arange(self.count) + 0.5))

    @cached_property
    def log_weights(self) -> Array:
        """Return the logarithms of the weights, which add up to 1 or less."""
        if self.weights is not None:
            return np.log(self.weights)
        falling = (np.arange(self.count) + 3.0) ** -1.4
        return np.asarray(np.log(falling / falling.sum()))

    @cached_property
    def _costs_of_classes(self) -> tuple[Array, Array]:
        """Return for each edge `h(lambda e)`, and for each class half its least curvature [edges, lambdas]."""
        staked = EDGES[:, None] * self.lambdas
        exact = staked - np.log1p(staked)
        series = staked**2 * (1 / 2 - staked * (1 / 3 - staked / 4))
        steps = (EDGE_RATIO - 1) * staked[:-1] / (1 + staked[1:])
        return np.where(staked < 1e-3, series, exact), steps**2 / 2

    @cached_property
    def _line(self) -> Array:
        """Return the cost of each square and of each cube of a light deviation [2, lambdas]."""
        low, high = ((end * self.lambdas - np.log1p(end * self.lambdas)) / end**2 for end in (-1.0, LIGHT))
        slope = (low - high) / (1 + LIGHT)
        return np.stack([low - slope, -slope])

    def costs(self, seen: Observations, deviation: Array, part: Integers, shared: bool) -> Array:
        """Return the costs of observations [parts, policies, sides, width - 2].

        Args:
            seen: the observations
            deviation: their distances from centres in [0, 1], 0 for those that do not count, may be overwritten
            part: the part that each block belongs to [blocks]
            shared: whether all observations of a block have one centre
        """
        flat, indices = deviation.reshape(-1), np.empty(0, dtype=np.int64)
        if not shared:  # an unknown deviation is not large, and makes the sums unknown
            indices = np.flatnonzero(deviation > 1.0)
        elif seen.light is not None:
            indices = np.flatnonzero((deviation > 1.0) & ~seen.light)
        beyond = flat[indices]
        flat[indices] = 0.0
        if shared:
            powers = [_inner(deviation, deviation), _inner(deviation * deviation, deviation)]
            per_power = self._line
        else:
            powers = [_inner(half, half) for half in (np.minimum(deviation, 0.0), np.maximum(deviation, 0.0))]
            per_power = np.stack([self.lambdas**2 / 2 / (1 - self.lambdas), self.lambdas**2 / 2])
        sums = np.zeros((int(part[-1]) + 1, *deviation.shape[1:-1], 2))
        np.add.at(sums, part, np.stack(powers, axis=-1))
        rows = sums[0, ..., 0].size
        block, row = np.divmod(indices // deviation.shape[-1], rows)
        large_costs = self._cost_of_large(beyond, part[block] * rows + row, len(sums) * rows)
        return np.asarray(sums @ per_power + large_costs.reshape(*sums.shape[:-1], -1))

    def _cost_of_large(self, deviation: Array, row: Integers, rows: int) -> Array:
        """Return upper bounds of the sums of h(lambda e) over deviations above 1 [rows, lambdas]."""
        if not len(deviation):
            return np.zeros((rows, self.count))
        index = np.minimum((np.log(deviation) * (1 / np.log(EDGE_RATIO))).astype(np.int64), CLASSES - 1)
        classes = int(index.max()) + 1
        edge = EDGES[index]
        share = (EDGE_RATIO * edge - deviation) / ((EDGE_RATIO - 1) * edge)
        index += row * classes
        nearer, farther, between = (
            np.bincount(index, values, rows * classes).reshape(rows, classes)
            for values in (share, 1 - share, share * (1 - share))
        )
        costs, curved = self._costs_of_classes
        return np.asarray(nearer @ costs[:classes] + farther @ costs[1 : classes + 1] - between @ curved[:classes])

    def log_wealth(self, sums: Array, mean: Array) -> Array:
        return self.log_wealth_of_all(sums[..., None, :], np.ones(1), mean)

    def lower(self, sums: Array, error: Array) -> Array:
        return self.lower_of_all(sums[..., None, :], np.ones(1), error)

    def log_wealth_of_all(self, sums: Array, shares: Array, mean: Array) -> Array:
        """Return the log of the wealths of several sequences [.., sequences, width], added up with these shares."""
        exponents, speeds = self._bet_lines(sums, shares)
        return _log_sum(exponents - speeds * mean[..., None])[0]

    def lower_of_all(self, sums: Array, shares: Array, error: Array) -> Array:
        """Return the mean with evidence `1 / error` against it.

        The first sequence has seen all that any of them has.
        """
        exponents, speeds = self._bet_lines(sums, shares)
        exponents = exponents + np.log(error)[..., None]
        speeds = np.where(sums[..., :1, COUNT] > 0, speeds, np.nan)
        with np.errstate(divide="ignore"):
            mean = (exponents / speeds).max(axis=-1)  # one lambda alone: the mixture has more evidence still
        for _ in range(NEWTON_STEPS):  # a sum of falling exponentials is convex: from the left the root is not passed
            level, speed = _log_sum(exponents - speeds * mean[..., None], speeds)
            step = level / speed
            mean = mean + step
            if not (np.abs(step) > 1e-12 * (1 + np.abs(mean))).any():
                break
        return np.asarray(mean)

    def _bet_lines(self, sums: Array, shares: Array) -> tuple[Array, Array]:
        """Return the log wealth of each bet against a mean of 0, and its fall with the mean [.., bets]."""
        with np.errstate(divide="ignore"):
            weights = np.log(shares)[..., None] + self.log_weights
        made = weights + sums[..., TOTAL, None] * self.lambdas - sums[..., 2:]
        speeds = sums[..., COUNT, None] * self.lambdas
        return made.reshape(*made.shape[:-2], -1), speeds.reshape(*made.shape[:-2], -1)


def _inner(one: Array, other: Array) -> Array:
    return np.asarray(np.einsum("...n,...n->...", one, other))


def _log_sum(exponents: Array, values: Array | float = 1.0) -> tuple[Array, Array]:
    """Return `ln(sum of exp)` over the last axis, and the mean of `values` weighted by its terms."""
    highest = exponents.max(axis=-1, keepdims=True)
    terms = np.exp(exponents - highest)
    total = terms.sum(axis=-1)
    return np.log(total) + highest[..., 0], (terms * values).sum(axis=-1) / total


def normal_rho(v: float, error: float) -> float:
    """Return the width with which a one-sided mixture is about tightest at intrinsic time `v`.

    It is `v / (2 ln(1/e) + ln(1 + 2 ln(1/e)))` with `e` twice the error, in units of `v`.
    """
    log_inverse = -np.log(error * 2.0)
    return float(v / (2 * log_inverse + np.log1p(2 * log_inverse)))


@dataclass(frozen=True)
class BernsteinWealth:
    """Bet on observations up to 1 (empirical Bernstein). The lower bound is `(S - u(V)) / count`.

    With a centre `c` in [0, 1] known beforehand, `V` is the sum of `(X - c)^2`, the intrinsic time, and `u` the
    gamma-exponential boundary of scale 1 and width `rho`. `exp(lambda (X - E X) - psi(lambda) (X - c)^2)` with
    `psi(lambda) = -ln(1 - lambda) - lambda` has a mean of 1 or less, however the means change. A mixture over lambda
    gives a `u` with `P(some t: S_t - E S_t >= u(V_t)) <= error`. Stitching would give a closed form instead of a root.
    But it is wider, at error .025 by 12 % or more up to V = 10^4, and wins only beyond V = 10^6: 10^8 observations with
    a standard deviation of .1.

    An observation above 1 breaks the promise. From then on the bound is NaN.

    Source: Howard, Ramdas, McAuliffe & Sekhon, Time-uniform, nonparametric, nonasymptotic confidence sequences, Annals
    of Statistics 2021, theorem 4.
    """

    rho: float = normal_rho(100, 0.025)
    """About 12.6, tightest at an intrinsic time of 100, or 10,000 observations with a standard deviation of .1."""
    width: ClassVar[int] = 3

    def costs(self, seen: Observations, deviation: Array, part: Integers, shared: bool) -> Array:
        """Return costs as `HeavyTailed` does."""
        squares = _inner(deviation, deviation)
        squares[seen.values.max(axis=-1, initial=0.0) > 1.0 + RANGE_ROUNDING] = np.nan
        result = np.zeros((int(part[-1]) + 1, *squares.shape[1:], 1))
        np.add.at(result, part, squares[..., None])
        return result

    def log_wealth(self, sums: Array, mean: Array) -> Array:
        excess = sums[..., TOTAL] - sums[..., COUNT] * mean
        return log_gamma_exponential(excess, sums[..., SQUARES], self.rho)

    def lower(self, sums: Array, error: Array) -> Array:
        count = np.where(sums[..., COUNT] > 0, sums[..., COUNT], np.nan)
        return np.asarray((sums[..., TOTAL] - gamma_exponential_mixture(sums[..., SQUARES], error, self.rho)) / count)


def gamma_exponential_mixture(v: Array | float, error: Array | float, rho: float) -> Array:
    """Return the boundary for sub-exponential sums of scale 1, at which the mixture, increasing in `S`, is `1 / error`.

    It is found by halving, and never below the true one. With scale c it is `c u(v / c^2)` of the width `rho / c^2`.
    """
    v, threshold = np.broadcast_arrays(np.asarray(v, dtype=float), -np.log(error))
    low, high = np.zeros(v.shape), np.sqrt(v + 1.0)
    for _ in range(DOUBLINGS):
        short = log_gamma_exponential(high, v, rho) < threshold
        if not short.any():
            break
        low, high = np.where(short, high, low), np.where(short, 2 * high, high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if ((middle <= low) | (middle >= high) | np.isnan(middle)).all():
            break
        short = log_gamma_exponential(middle, v, rho) < threshold
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return np.where(np.isnan(v), np.nan, high)[()]


def log_gamma_exponential(s: Array, v: Array, rho: float) -> Array:
    """Return the logarithm of the mixture, the evidence that `S` is not centred.

    With `r = rho`, `a = v + r`, `x = s + v + r` and the lower incomplete gamma function `g(a, x)` it is `ln(r^r / g(r,
    r)) + ln g(a, x) - a ln x + x - r`, and minus infinity if `x <= 0`.
    """
    from scipy.special import gammainc, gammaln  # slow to import

    a, x = v + rho, np.maximum(s + v + rho, 1e-300)
    normaliser = rho * np.log(rho) - gammaln(rho) - np.log(gammainc(rho, rho))
    with np.errstate(divide="ignore"):
        inside = np.log(gammainc(a, x))
    return np.asarray(normaliser + gammaln(a) + inside - a * np.log(x) + x - rho)


WealthProcess: TypeAlias = HeavyTailed | BernsteinWealth


def measure(process: WealthProcess, seen: Observations, before: Array, parts: Sequence[int]) -> tuple[Array, Array]:
    """Return the sums of consecutive parts [parts, policies, sides, width], and the counts and totals after them.

    The centre of a block is `min(1, (S + 1/2) / (count + 1))` of the count and total S before it. Observations of a row
    that had fewer than `FRESH` of them before the block have their own centres, from the observations before each.

    Args:
        process: bets on the observations
        seen: the observations
        before: the counts and totals before the first block [policies, sides, 2]
        parts: the number of blocks in each part
    """
    counts, totals = seen.counts, seen.values @ np.ones(seen.values.shape[-1])
    count, total = (
        np.cumsum(np.concatenate([before[None, ..., index], steps]), axis=0)
        for index, steps in ((COUNT, counts), (TOTAL, totals))
    )
    fresh = (count[:-1] < FRESH) & (counts > 0)
    part = np.repeat(np.arange(len(parts)), parts)
    sums = np.empty((len(parts), *before.shape[:-1], process.width))
    firsts = np.searchsorted(part, np.arange(len(parts)))
    sums[..., COUNT], sums[..., TOTAL] = np.add.reduceat(counts, firsts), np.add.reduceat(totals, firsts)
    deviation = seen.values - _centre_after(count[:-1], total[:-1])[..., None]
    if seen.present is not None:
        deviation *= seen.present
    deviation[fresh] = 0.0
    sums[..., 2:] = process.costs(seen, deviation, part, shared=True)
    early = np.flatnonzero(fresh.any(axis=(1, 2)))
    if len(early):
        early_observations = seen.select_blocks(early)
        deviation = early_observations.values - _own_centres(early_observations, count[early], total[early])
        deviation[~fresh[early]] = 0.0
        if early_observations.present is not None:
            deviation *= early_observations.present
        costs = process.costs(early_observations, deviation, np.arange(len(early)), shared=False)
        np.add.at(sums[..., 2:], part[early], np.where(fresh[early][..., None], costs, 0.0))
    return sums, np.stack([count[-1], total[-1]], axis=-1)


def _centre_after(count: Array, total: Array) -> Array:
    """Return the centre of the next observation after `count` of them that add up to `total`."""
    return np.minimum((total + 0.5) / (count + 1.0), 1.0)


def _own_centres(seen: Observations, count: Array, total: Array) -> Array:
    """Return the centre of each observation from the ones before it, given `count` and `total` before each block."""
    ones = np.ones_like(seen.values) if seen.present is None else seen.present
    counts, totals = (
        np.cumsum(np.concatenate([start[..., None], steps[..., :-1]], axis=-1), axis=-1)
        for start, steps in ((count, ones), (total, seen.values))
    )
    return _centre_after(counts, totals)
