"""A lower confidence sequence for the mean of observations between 0 and 1, from their empirical variance.

Time-uniform boundaries: curves that a whole path of sums stays below, at every time at once.

Let `S_t` be a sum of centred terms and `V_t` its intrinsic time, a measure of how much it may have varied, such that
`exp(lambda S_t - psi(lambda) V_t)` is bounded by a supermartingale that starts at 1, for every lambda in a range. Each
boundary `u` below has `P(some t: S_t >= u(V_t)) <= error`. `V` is in squared units of `S`, `u` in units of `S`. What
differs is `psi`, that is, which terms are allowed:

| boundary | terms | psi |
|---|---|---|
| normal mixture | sub-Gaussian: variances known, or symmetric | `lambda^2 / 2` |
| gamma-exponential mixture | sub-exponential: bounded, with their squares | `(-ln(1 - c lambda) - c lambda) / c^2` |
| gamma-Poisson mixture | sub-Poisson: bounded above, with the true variance | `(e^(c lambda) - c lambda - 1) / c^2` |
| polynomial stitching | sub-gamma: any of them | `lambda^2 / (2 (1 - c lambda))` |

`c` has the unit of `S` and is the scale of a single term. A mixture integrates over lambda with a density whose width
is `rho`, in units of `V`; `normal_rho` makes it tightest about the intrinsic time one cares most for.

Source: Howard, Ramdas, McAuliffe & Sekhon, Time-uniform, nonparametric, nonasymptotic confidence sequences, Annals of
Statistics 2021.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import gammainc, gammaincc, gammaln, log_ndtr, zeta

from streameval.common.arrays import Array, Mask
from streameval.ope.intervals.sequences.wealth import COUNT, TOTAL, Places

DOUBLINGS = 200
HALVINGS = 100


def normal_rho(v: float, error: float, sides: int = 2) -> float:
    """The `rho` with which the normal mixture is about tightest at intrinsic time `v`, for one side or two.

    `v / (2 ln(1/e) + ln(1 + 2 ln(1/e)))`, with `e` the error, doubled for one side.

    >>> round(normal_rho(100, 0.05), 5)
    12.60056
    """
    log_inverse = -np.log(error * (2 / sides))
    return float(v / (2 * log_inverse + np.log1p(2 * log_inverse)))


def normal_mixture(v: Array | float, error: Array | float, rho: float) -> Array:
    """Two-sided: `|S_t|` stays below `sqrt((V + rho) (ln(1 + V/rho) + 2 ln(1/error)))`.

    >>> normal_mixture(100, 0.05, normal_rho(100, 0.05)).round(5)
    np.float64(30.35209)
    """
    v = np.asarray(v)
    return np.asarray(np.sqrt((v + rho) * (np.log1p(v / rho) - 2 * np.log(error))))


def normal_mixture_one_sided(v: Array | float, error: Array | float, rho: float) -> Array:
    """As `normal_mixture` for `S_t` alone, with half a normal density on positive lambda.

    >>> normal_mixture_one_sided(100, 0.05, normal_rho(100, 0.05, sides=1)).round(5)
    np.float64(27.66071)
    """

    def log_mixture(s: Array, v: Array) -> Array:
        spread = v + rho
        return np.asarray(np.log(4 * rho / spread) / 2 + s * s / (2 * spread) + log_ndtr(s / np.sqrt(spread)))

    return _boundary(log_mixture, v, error)


def gamma_exponential_mixture(v: Array | float, error: Array | float, rho: float, c: float = 1.0) -> Array:
    """The boundary for sub-exponential sums of scale `c > 0`: of bounded terms, whose range is `c`.

    >>> gamma_exponential_mixture(100, 0.05, normal_rho(100, 0.05, sides=1), c=2).round(5)
    np.float64(33.02017)
    """
    return _boundary(lambda s, v: log_gamma_exponential(s, v, rho, c), v, error)


def log_gamma_exponential(s: Array, v: Array, rho: float, c: float = 1.0) -> Array:
    """Logarithm of the mixture that the boundary is the level set of: the evidence against `S` being centred.

    With `r = rho / c^2`, `a = (v + rho) / c^2`, `x = (c s + v + rho) / c^2` and the lower incomplete gamma function
    `g(a, x)`: `ln(r^r / g(r, r)) + ln g(a, x) - a ln x + x - r`. Nothing, minus infinity, where `x <= 0`.
    """
    r = rho / c**2
    a = (v + rho) / c**2
    x = np.maximum((c * s + v + rho) / c**2, 1e-300)
    with np.errstate(divide="ignore"):
        inside = np.log(gammainc(a, x))
    return np.asarray(_per_gamma(r, gammainc(r, r)) + gammaln(a) + inside - a * np.log(x) + x - r)


def gamma_poisson_mixture(v: Array | float, error: Array | float, rho: float, c: float = 1.0) -> Array:
    """The boundary for sub-Poisson sums of scale `c > 0`: terms at most `c` above their mean, `V` their variance.

    >>> gamma_poisson_mixture(100, 0.05, normal_rho(100, 0.05, sides=1), c=2).round(4)
    np.float64(30.1949)
    """
    r = rho / c**2

    def log_mixture(s: Array, v: Array) -> Array:
        x = (v + rho) / c**2
        a = s / c + x
        inside = np.log(gammaincc(a, x))
        return np.asarray(_per_gamma(r, gammaincc(r, r)) + gammaln(a) + inside - a * np.log(x) + v / c**2)

    return _boundary(log_mixture, v, error)


def polynomial_stitching(
    v: Array | float, error: Array | float, v_min: float, c: float = 0.0, s: float = 1.4, eta: float = 2.0
) -> Array:
    """The boundary for sub-gamma sums, in closed form: an epoch for each factor `eta` of intrinsic time, stitched.

    With `l = s ln ln(eta V / v_min) + ln(zeta(s) / (error ln(eta)^s))`, `k1 = (eta^1/4 + eta^-1/4) / sqrt 2` and
    `k2 = (sqrt eta + 1) / 2`: `sqrt(k1^2 V l + (k2 c l)^2) + k2 c l`. Constant before `v_min > 0`. `s > 1` says how the
    error is spread over the epochs, `eta > 1` how long they are. A negative `c` is for sums whose tail is lighter than
    a Gaussian one.

    >>> polynomial_stitching(100, 0.05, v_min=10, c=3).round(5), polynomial_stitching(100, 0.05, 10, c=-1).round(5)
    (np.float64(64.48755), np.float64(28.99389))
    """
    v = np.maximum(v, v_min)
    epochs = s * np.log(np.log(eta * v / v_min)) + np.log(zeta(s) / np.log(eta) ** s) - np.log(error)
    linear = (np.sqrt(eta) + 1) / 2 * c * epochs
    return np.asarray(np.sqrt((eta**0.25 + eta**-0.25) ** 2 / 2 * v * epochs + linear**2) + linear)


def _per_gamma(r: float, share: float) -> float:
    """`ln(r^r / (share gamma(r)))`: what makes a gamma density that is cut off integrate to 1."""
    return float(r * np.log(r) - gammaln(r) - np.log(share))


def _boundary(log_mixture: Callable[[Array, Array], Array], v: Array | float, error: Array | float) -> Array:
    """Where a mixture, increasing in `s`, reaches `1 / error`: found by halving, never below the true place."""
    v, threshold = np.broadcast_arrays(np.asarray(v, dtype=float), -np.log(error))
    low, high = np.zeros(v.shape), np.sqrt(v + 1.0)
    for _ in range(DOUBLINGS):
        short = log_mixture(high, v) < threshold
        if not short.any():
            break
        low, high = np.where(short, high, low), np.where(short, 2 * high, high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if ((middle <= low) | (middle >= high) | np.isnan(middle)).all():
            break
        short = log_mixture(middle, v) < threshold
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return np.where(np.isnan(v), np.nan, high)[()]


SQUARES = 2
ROUNDING = 1e-6
"""By how much an observation may exceed 1: distributions add up to 1 no more exactly than this."""
DEFAULT_RHO = normal_rho(100, 0.025, sides=1)
"""About 12.6: tightest at an intrinsic time of 100, or 10,000 observations with a standard deviation of .1."""


@dataclass(frozen=True)
class BernsteinWealth:
    """`(S - u(V)) / count`, with `V` the sum of `(X - c)^2`, `c` in [0, 1] a centre known beforehand, and `u` the
    gamma-exponential boundary of scale 1 and width `rho`.

    For `0 <= X <= 1`, `exp(lambda (X - E X) - psi(lambda) (X - c)^2)` with `psi(lambda) = -ln(1 - lambda) - lambda`
    has a mean of 1 or less, however the means change: the sums are sub-exponential with the intrinsic time V. Stitching
    would give a closed form instead of a root, but it is wider, at error .025 by 12 % or more up to V = 10^4, and wins
    only beyond V = 10^6: 10^8 observations with a standard deviation of .1.

    An observation above 1 breaks the promise: from then on the bound is NaN.

    Source: Howard, Ramdas, McAuliffe & Sekhon, Annals of Statistics 2021, theorem 4.
    """

    rho: float = DEFAULT_RHO

    order: ClassVar[int] = 2
    limit: ClassVar[float] = 1.0 + ROUNDING

    @property
    def width(self) -> int:
        return 3

    def sums(self, observed: Array, centre: Array, present: Mask | None) -> Array:
        broken = (observed > 1.0 + ROUNDING).any(axis=-1)
        deviation = observed - centre
        if present is not None:
            deviation *= present
        result = np.empty((*observed.shape[:-1], self.width))
        result[..., COUNT] = observed.shape[-1] if present is None else present.sum(axis=-1)
        result[..., TOTAL] = observed.sum(axis=-1)
        result[..., SQUARES] = np.where(broken, np.nan, np.einsum("...n,...n->...", deviation, deviation))
        return result

    def costs(self, squares: Array, observed: Array, centre: Array, row: Places) -> Array:
        broken = observed > 1.0 + ROUNDING
        added = np.where(broken, np.nan, (observed - centre) ** 2)
        return squares + np.bincount(row, added, squares.size).reshape(squares.shape)

    def log_wealth(self, sums: Array, mean: Array) -> Array:
        excess = sums[..., TOTAL] - sums[..., COUNT] * mean
        return log_gamma_exponential(excess, sums[..., SQUARES], self.rho)

    def lower(self, sums: Array, error: Array) -> Array:
        count = np.where(sums[..., COUNT] > 0, sums[..., COUNT], np.nan)
        return np.asarray((sums[..., TOTAL] - gamma_exponential_mixture(sums[..., SQUARES], error, self.rho)) / count)
