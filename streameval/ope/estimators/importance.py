"""IPS with less variance from the importance weights alone: divided by their mean, or with them as control variate."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, State
from streameval.common.component import strict
from streameval.ope.estimators.base import Estimator, TermRange, Terms
from streameval.ope.evidence.evidence import Evidence


@dataclass(frozen=True, config=strict)
class SNIPS(Estimator):
    """Self-normalised IPS: `mean(w r) / mean(w)`.

    Stays inside the range of the rewards seen, does not change when a constant is added to all rewards, and has far
    less variance than `ips`, for a bias of order 1/n. Its interval is the delta method's, in which the denominator
    moves too.

    >>> terms, _ = SNIPS().terms(Evidence.of(importance_weight=[[2.0], [0.5]], reward=[1.0, 1.0]), {})
    >>> float(terms.numerator.sum() / terms.denominator.sum())
    1.0

    Source: Swaminathan & Joachims, NIPS 2015.
    """

    ratio: ClassVar[bool] = True
    preference: ClassVar[int] = 5
    kind: Literal["snips"] = field(default="snips", kw_only=True, repr=False)

    def terms(self, evidence: Evidence, state: State) -> tuple[Terms, State]:
        return Terms(evidence.weighted_reward, evidence.importance_weight), state

    def term_range(self, reward_range: tuple[float, float], max_weight: Array) -> TermRange:
        """As of `ips`; the linearised term is `w (r - value)`, and the value lies inside the reward range."""
        width = max_weight * (reward_range[1] - reward_range[0])
        return super().term_range(reward_range, max_weight)._replace(width=width)


@dataclass(frozen=True, config=strict)
class ControlVariate(Estimator):
    """IPS with the weight as control variate: the average of `w r - beta (w - 1)`.

    `beta = cov(w r, w) / var(w)` from an exponentially decayed past (horizon 100,000 events) that ends one block before
    the event, so that no reward touches its own coefficient and the estimate stays unbiased. `beta` is 0 at first and
    where the weight does not vary. Needs full support: without it the mean weight is not 1 and the term is biased.

    >>> evidence = Evidence.of(importance_weight=[[2.0], [0.5]], reward=[1.0, 0.0], block=2)
    >>> estimator = ControlVariate()
    >>> first, state = estimator.terms(evidence, estimator.start(policies=1))
    >>> first.numerator.ravel()  # nothing is known before the first block: plain IPS
    array([2., 0.])
    >>> second, _ = estimator.terms(evidence, state)
    >>> second.numerator.ravel().round(3)  # beta = 4/3
    array([0.667, 0.667])

    Source: Owen, Monte Carlo theory, 2013, ch. 8.9; Swaminathan, thesis 2017.
    """

    preference: ClassVar[int] = 3
    kind: Literal["control_variate"] = field(default="control_variate", kw_only=True, repr=False)

    def start(self, policies: int) -> State:
        return {"slope": start_slope(policies)}

    def terms(self, evidence: Evidence, state: State) -> tuple[Terms, State]:
        beta, after = lagged_slope(evidence, evidence.weighted_reward, state["slope"])
        return Terms(evidence.weighted_reward - beta * (evidence.importance_weight - 1.0)), {"slope": after}

    def term_range(self, reward_range: tuple[float, float], max_weight: Array) -> TermRange:
        return controlled_range(reward_range, max_weight)


def start_slope(policies: int) -> Array:
    """The sums of `lagged_slope` before the first event."""
    return np.zeros((policies, 5))


def lagged_slope(evidence: Evidence, term: Array, sums: Array) -> tuple[Array, Array]:
    """`beta = cov(term, w) / var(w)` over the last 100,000 events, and the sums after these events.

    Args:
        evidence: the events
        term: [n, P]
        sums: [P, 5] the sums before them

    Returns:
        `beta` of each event as known one block before it, [n, P], and the sums.
    """
    weight = evidence.importance_weight
    path = evidence.recent_sums((None, weight, term, weight * weight, term * weight), sums)
    before = np.concatenate([sums[None], path[:-1]])
    return evidence.spread_over_events(_slope(before)), path[-1]


def controlled_range(reward_range: tuple[float, float], max_weight: Array) -> TermRange:
    """The range of `beta + w (r - beta)` for any `beta` inside the reward range, and for the 0 at the start.

    Its slope may go either way, so that an infinite weight could be anything: the heaviest is the largest seen. A beta
    outside the reward range is possible.
    """
    low, high = reward_range
    least, most = min(low, 0.0), max(high, 0.0)
    return TermRange.between((least, most), (low - most, high - least), max_weight, 2 * max_weight * (high - low))


def _slope(sums: Array) -> Array:
    """`cov(u, w) / var(w)` from the sums of `1, w, u, w w, u w` on the last axis; 0 where `w` does not vary."""
    count, weight, reward, square, product = np.moveaxis(sums, -1, 0)
    variance = square * count - weight * weight
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = (product * count - reward * weight) / variance
    return np.where(variance > 1e-12 * square * count, slope, 0.0)
