"""One table of eight estimators, from the reward model alone to the importance weight alone.

With `q(x, a)` the reward model's prediction before it saw the event, and `W(a) = pi(a|x) / pi0(a|x)`, each of them is
the average of

    sum over a of alpha(W(a)) pi(a|x) q(x, a)  +  beta(w) w r  +  gamma(w) w q(x, logged action)

Where the logging policy never takes an action that the candidate may take, `W(a)` is infinite: no reward tells of it.

Source: Su, Wang, Santacatterina & Joachims, CAB: Continuous Adaptive Blending, ICML 2019, Table 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from streameval.arrays import Array
from streameval.needs import NOTHING, Need, Needs

Weighting: TypeAlias = Callable[[Array, float], "Array | float"] | float
"""A function of the importance weight and the estimator's parameter, or a number that is the same for all."""


def up_to(weight: Array, cap: float) -> Array:
    """`1[W <= M]`; 0 where W is infinite."""
    return ((weight <= cap) & np.isfinite(weight)).astype(float)


def above(weight: Array, cap: float) -> Array:
    """`1[W > M]`; 1 where W is infinite."""
    return 1.0 - up_to(weight, cap)


def within(weight: Array, cap: float) -> Array:
    """`min(M / W, 1)`, the share of a weight that a cap leaves; 0 where W is infinite.

    >>> within(np.array([0.0, 2.0, 8.0, np.inf]), 4.0)
    array([1. , 1. , 0.5, 0. ])
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(weight <= cap, np.isfinite(weight), cap / weight)


def beyond(weight: Array, cap: float) -> Array:
    """`1 - min(M / W, 1)`, what a cap cuts off."""
    return 1.0 - within(weight, cap)


def within_less(weight: Array, cap: float) -> Array:
    """`-min(M / W, 1)`."""
    return -within(weight, cap)


def share(_: Array, tau: float) -> float:
    """`tau`."""
    return tau


def rest(_: Array, tau: float) -> float:
    """`1 - tau`."""
    return 1.0 - tau


class Row(NamedTuple):
    """How much counts of the model's prediction for every action, of the reward, and of the logged one's prediction."""

    alpha: Weighting
    beta: Weighting
    gamma: Weighting
    needs: Needs


PREDICTED: Needs = frozenset({Need.TARGET, Need.PREDICTION})
WEIGHED: Needs = PREDICTED | {Need.LOGGING}

TABLE = {
    "dm": Row(1, 0, 0, PREDICTED),
    "ips": Row(0, 1, 0, NOTHING),
    "clipped_ips": Row(0, within, 0, NOTHING),
    "dr": Row(1, 1, -1, PREDICTED),
    "static_blend": Row(rest, share, 0, PREDICTED),
    "switch": Row(above, up_to, 0, WEIGHED),
    "cab": Row(beyond, within, 0, WEIGHED),
    "cab_dr": Row(1, within, within_less, PREDICTED),
}
