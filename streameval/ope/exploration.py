"""Plan exploration: how much less noise the lift of a candidate has if a share of events is logged otherwise."""

from __future__ import annotations

import msgspec
import numpy as np

from streameval.common.arrays import Array
from streameval.ope.evidence.evidence import Evidence

SHARES = np.arange(101) / 100
"""Shares of events to explore with."""


class ExplorationPlan(msgspec.Struct, frozen=True):
    """Hold the exploration that halves the events still needed for one candidate.

    Attributes:
        events: the number of events with full distributions, which the plan is made of
        focused: the smallest share of events that suffices if their actions are drawn in proportion to the absolute
            difference between the candidate's and production's probabilities, None if none does
        uniform: the same, if their actions are drawn at random
        best_share: the share of focused events that leaves the fewest events needed
        best_factor: the events then needed, relative to the log as it is
    """

    events: int
    focused: float | None
    uniform: float | None
    best_share: float
    best_factor: float


class ExplorationSums:
    """Sum up second moments of a log, by policy.

    With the probabilities p of the log, `delta(a|x) = pi(a|x) - pi_production(a|x)` and a constant c, a share e of
    events logged by another policy m gives the propensities `p_e = (1 - e) p + e m`. The variance of one event is then

    `V(e) = sum over x, a of P(x) delta(a|x)^2 E[(r - c)^2] / p_e(a|x) - lift^2`

    which is the mean of `(delta / p)^2 (r - c)^2 p / p_e` over the log, less the squared lift. It is least for m in
    proportion to `|delta(a|x)|` if all actions have equal second moments of rewards. The events needed for any lift are
    in proportion to V. `c` is production's value, as for a self-normalised estimator.

    Source: Swaminathan, thesis 2017, ch. 2.2, for the best logging policy.
    """

    def __init__(self, policies: int) -> None:
        # Sums of q, d, d r, and of f, f r, f r^2 with f = d^2 p / p_e [focused or uniform, shares]
        self._mixed = np.zeros((policies, 3, 2, len(SHARES)))
        self._plain = np.zeros((policies, 5))
        self._events = np.zeros(policies, dtype=np.int64)

    def add(self, evidence: Evidence) -> None:
        """Add events. Events without the full distributions of both policies and of the log are left out."""
        actions = evidence.actions
        if actions is None:
            return
        whole = actions.targets_known & actions.logging_known[:, None] & (evidence.sample_weight > 0)
        propensity, size = actions.logged_values(actions.propensity), actions.sets.sizes
        spread = actions.sum(np.abs(actions.probability - actions.probability[:, :1]))
        weight = evidence.importance_weight
        for index in range(1, weight.shape[1]):
            events = np.flatnonzero(whole[:, index] & whole[:, 0])
            if not len(events):
                continue
            q, r = evidence.sample_weight[events, index], evidence.reward[events]
            v, p, total = weight[events, 0], propensity[events], spread[events, index]
            distance = weight[events, index] - v
            focused = np.divide(np.abs(distance) * p, total, out=p.copy(), where=total > 0)
            chosen = np.stack([focused, 1 / size[events]])[:, None]
            mixed = (1 - SHARES[:, None]) * p + SHARES[:, None] * chosen  # [2, shares, events]
            terms = q * distance**2 * np.divide(p, mixed, out=np.zeros_like(mixed), where=mixed > 0)
            self._mixed[index] += np.stack([terms.sum(axis=-1), terms @ r, terms @ r**2])
            self._plain[index] += q.sum(), q @ distance, q @ (distance * r), q @ v, q @ (v * r)
            self._events[index] += len(events)

    def plan(self, policy: int) -> ExplorationPlan | None:
        """Return the plan for a policy, None without events or noise."""
        total, shift, lift, weight, rewarded = self._plain[policy]
        if not (total > 0 and weight > 0):
            return None
        centre = rewarded / weight
        ones, by_reward, squares = self._mixed[policy] / total
        mean = (lift - centre * shift) / total
        variance = squares - 2 * centre * by_reward + centre**2 * ones - mean**2
        if not variance[0, 0] > 0:
            return None
        focused, uniform = variance / variance[0, 0]
        best = int(np.argmin(focused))
        return ExplorationPlan(
            events=int(self._events[policy]),
            focused=_first(focused),
            uniform=_first(uniform),
            best_share=float(SHARES[best]),
            best_factor=float(focused[best]),
        )


def _first(factors: Array) -> float | None:
    """Return the smallest share that halves the noise, or None."""
    enough = np.flatnonzero(factors <= 0.5)
    return float(SHARES[enough[0]]) if len(enough) else None
