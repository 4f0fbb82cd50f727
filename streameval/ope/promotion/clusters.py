"""Check for clusters: whether rewards repeat at distances that only the `unit` of events would explain.

Events of one user or session are alike. If many sessions run at a time, their events are hundreds of events apart, and
without a `unit` intervals allow for them only in part. In the log, the rewards of blocks that are near each other are
then correlated. Drift correlates them as well, but over longer times.

So the mean rewards of 100 successive blocks are compared after a polynomial of degree 6 has taken out their trend. It
follows cycles of 80 blocks or more. Let `r_i` be the residuals. The sum of `(1 - |i - j| / 10) r_i r_j` over all pairs
of blocks less than ten apart, minus its expectation for independent blocks, over the variance of the `r_i`, is scaled
to the design effect that such correlations cause. Its mean over all stretches, which fade over 200,000 events, is
compared with its standard deviation for independent blocks. A design effect of up to 1.25 passes.

Source: Durbin & Watson, Testing for serial correlation in least squares regression, 1950, for quadratic forms of
residuals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from statistics import NormalDist

import numpy as np
from msgspec import Struct

from streameval.common.arrays import ROUNDING, Array, ratio
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.promotion.trust_checks import SPAN

STRETCH, DEGREE = 100, 6
"""Blocks of a stretch, and the degree of the polynomial that describes their drift."""
REACH = 10
"""Blocks that are this far apart count as independent."""
TOLERATED = 0.25
"""Excess of the design effect over 1 that passes in any case."""
LOOKS = 150
"""Divisor of the error, because the check is read repeatedly and rewards may vary more at some times."""
SMALLEST = 1e-300  # quantiles are not defined at 0


class ClusterState(Struct, frozen=True, eq=False):
    """Hold the mean rewards of an unfinished stretch, and sums over the stretches before.

    Attributes:
        units: whether an event has had a unit
        filled: the number of known means
        means: the mean rewards of the blocks of the stretch
        sums: fading sums of the effects of stretches, of 1, and of the squares of the fading weights
    """

    units: bool
    filled: int
    means: Array
    sums: Array


def start() -> ClusterState:
    """Start before the first event."""
    return ClusterState(False, 0, np.zeros(STRETCH), np.zeros(3))


def mean_rewards(evidence: Evidence) -> Array:
    """Return the mean reward of each block [blocks], of downsampled events with their weights."""
    reward, weight = (column.reshape(evidence.blocks, -1) for column in (evidence.reward, evidence.event_weight))
    with np.errstate(over="ignore"):
        plain = reward.mean(axis=1)
        if (weight == 1.0).all():
            return np.asarray(plain)
        return np.where(weight.any(axis=1), ratio((weight * reward).sum(axis=1), weight.sum(axis=1)), plain)


def fold(state: ClusterState, rewards: Array, block: int, named: bool) -> ClusterState:
    """Return the state after some whole blocks.

    Args:
        state: the state before
        rewards: see `mean_rewards`
        block: the number of events in a block
        named: whether an event has had a unit
    """
    means, sums = np.concatenate([state.means[: state.filled], rewards]), state.sums
    finished, filled = divmod(len(means), STRETCH)
    fading = math.exp(-STRETCH * block / SPAN) ** np.array([1.0, 1.0, 2.0])
    for excess in _excesses(means[: finished * STRETCH].reshape(-1, STRETCH)):
        sums = sums * fading + [excess, 1.0, 1.0]
    unfinished = np.pad(means[finished * STRETCH :], (0, STRETCH - filled))
    return ClusterState(state.units or named, filled, unfinished, sums)


def check(state: ClusterState, block: int, error: float) -> Iterator[tuple[str, bool, str]]:
    """Yield the name of the check, whether it passes, and why, once three stretches are known."""
    excess, stretches, squares = state.sums.tolist()
    if stretches <= 2:
        return
    deviation = math.sqrt(_form()[2] * squares)
    ok = excess - TOLERATED * stretches <= -NormalDist().inv_cdf(max(error / LOOKS, SMALLEST)) * deviation
    effect, distance = 1 + excess / stretches, f"{block:,} to {REACH * block:,}"
    finding = f"rewards of events that are {distance} apart have a design effect of {effect:.1f}"
    if state.units:
        ok, finding = True, "events log their `unit`"
    yield "clusters", ok, finding if ok else f"{finding}, which intervals allow for only in part: log a `unit`"


def _excesses(means: Array) -> Array:
    """Return the excess of the design effect over 1 in each stretch [stretches], 0 if rewards do not vary."""
    detrend, products, _ = _form()
    with np.errstate(invalid="ignore"):
        residuals = means @ detrend
        largest = np.abs(residuals).max(axis=1, keepdims=True)
        varies = largest > ROUNDING * np.abs(means).max(axis=1, keepdims=True)
        scaled = np.where(varies, residuals / np.where(varies, largest, 1.0), 0.0)
    squares = np.square(scaled).sum(axis=1)
    return np.asarray((scaled @ products * scaled).sum(axis=1) / np.where(squares > 0, squares, 1.0))


@cache
def _form() -> tuple[Array, Array, float]:
    """Return the matrices that detrend and that sum products, and the variance for independent blocks."""
    index = np.arange(STRETCH)
    basis = np.linalg.qr(np.polynomial.legendre.legvander(np.linspace(-1, 1, STRETCH), DEGREE))[0]
    detrend, free = np.eye(STRETCH) - basis @ basis.T, STRETCH - DEGREE - 1
    distance = np.abs(index[:, None] - index)
    near = np.where(distance > 0, np.maximum(0.0, 1.0 - distance / REACH), 0.0)
    centred = detrend @ near @ detrend
    centred -= np.trace(centred) / free * detrend
    products = centred * (REACH - 1) / np.trace(centred @ near)
    return detrend, free * products, 2.0 * float(np.square(products).sum()) * free / (free + 2)
