"""Stratified estimators: few events with large weights carry the noise, many with small ones the drift.

A term is split by the importance weight at a threshold, so that an average that can (`mixture`) remembers each part
as long as suits it. Other averages add the parts up again.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, State
from streameval.common.component import strict
from streameval.ope.estimators.base import Estimator, Range, TermRange, Terms
from streameval.ope.estimators.importance import controlled_range, lagged_slope
from streameval.ope.evidence.actions import Requirement, Requirements
from streameval.ope.evidence.evidence import Evidence

THRESHOLD = 5.0

Threshold = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, config=strict)
class StratifiedIPS(Estimator):
    """IPS in two parts: `w r 1[w <= c]`, and `w r 1[w > c] - beta (w - 1)` with the weight as control variate.

    `threshold` c > 0 separates the strata; anything between 2 and 10 works. Both parts together are unbiased where
    support is full. `beta` as in `control_variate`, for the second part alone.

    >>> evidence = Evidence.of(importance_weight=[[125.0], [1.25]], reward=[1.0, 1.0], block=2)
    >>> estimator = StratifiedIPS()
    >>> low, high = estimator.terms(evidence, estimator.start(policies=1))[0].components
    >>> low.numerator.ravel(), high.numerator.ravel()
    (array([0.  , 1.25]), array([125.,   0.]))
    """

    threshold: Threshold = THRESHOLD
    parts: ClassVar[int] = 2
    preference: ClassVar[int] = 1
    kind: Literal["stratified_ips"] = field(default="stratified_ips", kw_only=True, repr=False)

    def start(self, policies: int) -> State:
        return {"control": np.zeros((policies, 5)), "means": np.zeros((policies, 2))}

    def terms(self, evidence: Evidence, state: State) -> tuple[Terms, State]:
        weight, reward = evidence.importance_weight, evidence.weighted_reward
        small = weight <= self.threshold
        rare = np.where(small, 0.0, reward)
        beta, controlled = lagged_slope(evidence, rare, state["control"])
        means, remembered = _recent_means(evidence, [np.where(small, weight, 0.0)], state["means"])
        share = np.clip(means[0], 0.0, 1.0)
        mean_reward = evidence.recent.reward[:, None]
        low = Terms(np.where(small, reward, 0.0), prior=share * mean_reward)
        high = Terms(rare - beta * (weight - 1.0), prior=(1 - share) * mean_reward)
        after = {"control": controlled, "means": remembered}
        return Terms(low.numerator + high.numerator, components=(low, high)), after

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        return controlled_range(reward_range, max_weight)


@dataclass(frozen=True, config=strict)
class StratifiedDR(Estimator):
    """Doubly robust only where weights are large: a reward model stands in for rare actions, and is corrected.

    With `q(x, a)` the reward model's prediction before it saw the event, `W(a) = pi(a|x) / pi0(a|x)` and threshold c:
    `w r 1[w <= c]`, the model's part `sum over a with W(a) > c of pi(a|x) q(x, a)`, and the correction
    `1[w > c] w (r - q(x, a))`. Unbiased where support is full, whatever the model says; the better the model, the less
    noise. Needs full distributions and features of all actions.

    Source: for the switch between the two, Wang, Agarwal & Dudik, ICML 2017.
    """

    threshold: Threshold = THRESHOLD
    needs: ClassVar[Requirements] = frozenset({Requirement.TARGET, Requirement.LOGGING, Requirement.PREDICTION})
    parts: ClassVar[int] = 3
    preference: ClassVar[int] = 0
    kind: Literal["stratified_dr"] = field(default="stratified_dr", kw_only=True, repr=False)

    def start(self, policies: int) -> State:
        return {"means": np.zeros((policies, 3))}

    def terms(self, evidence: Evidence, state: State) -> tuple[Terms, State]:
        weight, actions = evidence.importance_weight, evidence.actions
        small = weight <= self.threshold
        low = np.where(small, evidence.weighted_reward, 0.0)
        if actions is None:
            modelled, expected = np.zeros_like(weight), np.zeros(len(weight))
        else:
            expected = actions.of_logged(actions.prediction)
            stands_in = (actions.importance_weight > self.threshold) * actions.probability
            modelled = actions.sum(stands_in * actions.prediction[:, None])
        correction = np.where(small, 0.0, weight * (evidence.reward - expected)[:, None])
        means, remembered = _recent_means(evidence, [np.where(small, weight, 0.0), modelled], state["means"])
        share = np.clip(means[0], 0.0, 1.0)
        mean_reward = evidence.recent.reward[:, None]
        components = (
            Terms(low, prior=share * mean_reward),
            Terms(modelled),
            Terms(correction, prior=(1 - share) * mean_reward - means[1]),
        )
        return Terms(low + modelled + correction, components=components), {"means": remembered}

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """A small weight times the reward, or the model's part, inside the reward range, and a correction by weight
        times reward range to either side."""
        low, high = reward_range
        slopes = (min(low, low - high), max(high, high - low))
        width = (2 * max_weight + 1) * (high - low)
        return TermRange.between((min(low, 0.0), max(high, 0.0)), slopes, max_weight, width, controlled=False)


def _recent_means(evidence: Evidence, columns: list[Array], state: Array) -> tuple[Array, Array]:
    """Means over the last 100,000 events after each block, [columns, blocks, P], and the sums after them."""
    path = evidence.recent_sums((None, *columns), state)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = path[..., 1:] / path[..., :1]
    return np.moveaxis(means, -1, 0), path[-1]
