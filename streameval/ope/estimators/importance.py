"""Average weighted rewards: self-normalised, with a control variate, and stratified.

Few events with large weights carry the noise, and many events with small weights carry the drift. A stratified
estimator splits its term by the weight at a threshold. An average that can (`mixture`) then gives each part its own
memory. Other averages add the parts up again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal

import numpy as np
from msgspec import Struct
from pydantic import PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array
from streameval.common.component import strict
from streameval.ope.estimators import kernel
from streameval.ope.estimators.base import Estimator, Range, TermRange, Terms
from streameval.ope.evidence.actions import Requirements
from streameval.ope.evidence.evidence import Evidence, fading_of


@dataclass(frozen=True, config=strict)
class SelfNormalised(Estimator):
    """Divide the mean weighted reward by the mean weight."""

    ratio: ClassVar[bool] = True
    averages_weighted_reward: ClassVar[bool] = True
    divides_by_weight: ClassVar[bool] = True

    def terms(self, evidence: Evidence, state: Any) -> tuple[Terms, Any]:
        return Terms(evidence.weighted_reward, evidence.importance_weight), state

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """Return the range of the linearised term `w (r - value)`, with the value inside the reward range."""
        width = max_weight * (reward_range[1] - reward_range[0])
        return super().term_range(reward_range, max_weight)._replace(width=width)


@dataclass(frozen=True, config=strict)
class WeightedReward(Estimator):
    """Average weighted rewards without assuming a mean weight of 1."""

    averages_weighted_reward: ClassVar[bool] = True

    def terms(self, evidence: Evidence, state: Any) -> tuple[Terms, Any]:
        return Terms(evidence.weighted_reward), state

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """Return the range of sums of weighted rewards.

        The rewards of one sign add up inside the reward range, and no weight of a part exceeds the largest weight. The
        mean weight is not used, because the slot with the reward may have another one.
        """
        least, most = min(reward_range[0], 0.0), max(reward_range[1], 0.0)
        width = max_weight * (most - least)
        return TermRange.between((0.0, 0.0), (least, most), max_weight, width, controlled=False)


@dataclass(frozen=True, config=strict)
class SNIPS(SelfNormalised):
    """Divide the mean weighted reward by the mean weight (self-normalised IPS): `mean(w r) / mean(w)`.

    It stays inside the range of the rewards seen and does not change when a constant is added to all rewards. It has
    far less variance than `ips`, for a bias of order 1/n. Its interval uses the delta method, so it counts the noise of
    the denominator too.

    >>> terms, _ = SNIPS().terms(Evidence.from_numbers(importance_weight=[[2.0], [0.5]], reward=[1.0, 1.0]), None)
    >>> float(terms.numerator.sum() / terms.denominator.sum())
    1.0

    Source: Swaminathan & Joachims, NIPS 2015.
    """

    preference: ClassVar[int] = 5
    takes_estimated: ClassVar[bool] = True
    kind: Literal["snips"] = field(default="snips", kw_only=True, repr=False)


class SlopeState(Struct, frozen=True, eq=False):
    """Hold the sums behind a coefficient [P, 5], see `kernel.controlled_terms`."""

    slope: Array


class StratifiedState(Struct, frozen=True, eq=False):
    """Hold the sums behind a coefficient [P, 5], and the sums of the weights of common actions [P, 2]."""

    control: Array
    means: Array


class MeansState(Struct, frozen=True, eq=False):
    """Hold recent sums of weights [P, ...]."""

    means: Array


@dataclass(frozen=True, config=strict)
class ControlVariate(Estimator):
    """Average `w r - beta (w - 1)`: IPS with the weight as control variate.

    `beta = cov(w r, w) / var(w)` comes from an exponentially decayed past (horizon 100,000 events). The past ends one
    block before the event, so that no reward touches its own coefficient and the estimate stays unbiased. `beta` is 0
    at first, and if the weight does not vary. Without full support the mean weight is not 1, and the term is biased.

    >>> evidence = Evidence.from_numbers(importance_weight=[[2.0], [0.5]], reward=[1.0, 0.0], block=2)
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

    def start(self, policies: int) -> SlopeState:
        return SlopeState(np.zeros((policies, 5)))

    def terms(self, evidence: Evidence, state: SlopeState) -> tuple[Terms, SlopeState]:
        terms, sums, after = controlled_terms(evidence, state.slope)
        return Terms(terms[0], lesson={"slope": sums[..., :5]}), SlopeState(after)

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        return controlled_range(reward_range, max_weight)


def controlled_terms(
    evidence: Evidence, recent: Array, threshold: float = -math.inf
) -> tuple[tuple[Array, Array, Array], Array, Array]:
    """Return terms with the weight as control variate of their part above a threshold, see `kernel.controlled_terms`.

    Args:
        evidence: the events
        recent: the sums before these events, not modified [P, 5]
        threshold: the largest weight of the part below

    Returns:
        The whole terms and their parts below and above [n, P], the sums of each block, and the recent sums afterwards.
    """
    (events, policies), blocks, after = evidence.importance_weight.shape, evidence.blocks, recent.copy()
    terms, sums = np.empty((3, policies, events)), np.empty((blocks, policies, 6))
    columns = (evidence.importance_weight, evidence.weighted_reward, evidence.sample_weight)
    weight, reward, averaging = (np.ascontiguousarray(column.T) for column in columns)
    edges, fading = np.linspace(0, events, blocks + 1).astype(np.int64), fading_of(evidence.block)
    kernel.controlled_terms(weight, reward, averaging, edges, threshold, fading, after, terms, sums)
    return (terms[0].T, terms[1].T, terms[2].T), sums, after


def controlled_range(reward_range: Range, max_weight: Array) -> TermRange:
    """Return the range of `beta + w (r - beta)` for any `beta` inside the reward range, and for the 0 at the start.

    The slope may have either sign, so the range has no limit at an infinite weight and the largest weight seen is the
    heaviest. A `beta` outside the reward range is possible.
    """
    low, high = reward_range
    least, most = min(low, 0.0), max(high, 0.0)
    return TermRange.between((least, most), (low - most, high - least), max_weight, 2 * max_weight * (most - least))


@dataclass(frozen=True, config=strict)
class StratifiedIPS(Estimator):
    """Average IPS in two parts: `w r 1[w <= c]`, and `w r 1[w > c] - beta (w - 1)` with the weight as control variate.

    Both parts together are unbiased under full support. `beta` is defined as in `control_variate`, for the second part
    alone.

    Args:
        threshold: the weight c > 0 between the strata

    >>> evidence = Evidence.from_numbers(importance_weight=[[125.0], [1.25]], reward=[1.0, 1.0], block=2)
    >>> estimator = StratifiedIPS()
    >>> low, high = estimator.terms(evidence, estimator.start(policies=1))[0].components
    >>> low.numerator.ravel(), high.numerator.ravel()
    (array([0.  , 1.25]), array([125.,   0.]))
    """

    threshold: PositiveFloat = 5.0
    parts: ClassVar[int] = 2
    preference: ClassVar[int] = 1
    kind: Literal["stratified_ips"] = field(default="stratified_ips", kw_only=True, repr=False)

    def start(self, policies: int) -> StratifiedState:
        return StratifiedState(np.zeros((policies, 5)), np.zeros((policies, 2)))

    def terms(self, evidence: Evidence, state: StratifiedState) -> tuple[Terms, StratifiedState]:
        terms, sums, controlled = controlled_terms(evidence, state.control, self.threshold)
        lesson = {"control": sums[..., :5], "means": sums[..., [0, 5]]}
        after = StratifiedState(controlled, evidence.recent_path(lesson["means"], state.means)[-1])
        return Terms(terms[0], components=(Terms(terms[1]), Terms(terms[2])), lesson=lesson), after

    def priors(self, mean_reward: Array, sums: Mapping[str, Array]) -> tuple[Array | None, ...]:
        share = np.clip(_means(sums["means"])[0], 0.0, 1.0)
        return share * mean_reward, (1 - share) * mean_reward

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        return controlled_range(reward_range, max_weight)


@dataclass(frozen=True, config=strict)
class StratifiedDR(Estimator):
    """Average a doubly robust term only at large weights: a reward model stands in for rare actions, and is corrected.

    Let `q(x, a)` be the reward model's prediction before it saw the event, and `W(a) = pi(a|x) / pi0(a|x)`. The term
    has three parts: `w r 1[w <= c]`, the model's part `sum over a with W(a) > c of pi(a|x) q(x, a)`, and the correction
    `1[w > c] w (r - q(x, a))`. It is unbiased under full support, whatever the model says. A better model gives less
    noise. It needs full distributions and features of all actions.

    Args:
        threshold: the largest weight c > 0 without the model

    Source: for the switch between the two, Wang, Agarwal & Dudik, ICML 2017.
    """

    threshold: PositiveFloat = 5.0
    needs: ClassVar[Requirements] = frozenset({"target", "logging", "prediction"})
    parts: ClassVar[int] = 3
    preference: ClassVar[int] = 0
    kind: Literal["stratified_dr"] = field(default="stratified_dr", kw_only=True, repr=False)

    def start(self, policies: int) -> MeansState:
        return MeansState(np.zeros((policies, 3)))

    def terms(self, evidence: Evidence, state: MeansState) -> tuple[Terms, MeansState]:
        weight, actions = evidence.importance_weight, evidence.actions
        small = weight <= self.threshold
        low = np.where(small, evidence.weighted_reward, 0.0)
        if actions is None:
            modelled, expected = np.zeros_like(weight), np.zeros(len(weight))
        else:
            expected = actions.logged_values(actions.prediction)
            stands_in = (actions.importance_weight > self.threshold) * actions.probability
            modelled = actions.sum(stands_in * actions.prediction[:, None])
        correction = np.where(small, 0.0, weight * (evidence.reward - expected)[:, None])
        columns = (None, np.where(small, weight, 0.0), modelled)
        sums = np.stack([evidence.block_sums(column) for column in columns], axis=-1)
        components = tuple(map(Terms, (low, modelled, correction)))
        after = MeansState(evidence.recent_path(sums, state.means)[-1])
        return Terms(low + modelled + correction, components=components, lesson={"means": sums}), after

    def priors(self, mean_reward: Array, sums: Mapping[str, Array]) -> tuple[Array | None, ...]:
        small, modelled = _means(sums["means"])
        share = np.clip(small, 0.0, 1.0)
        return share * mean_reward, None, (1 - share) * mean_reward - modelled

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """Return the range of the three parts.

        A small weight times the reward, or the model's part, lies inside the reward range. A correction adds weight
        times reward range to either side.
        """
        low, high = reward_range
        slopes = (min(low, low - high), max(high, high - low))
        least, most = min(low, 0.0), max(high, 0.0)
        width = (2 * max_weight + 1) * (most - least)
        return TermRange.between((least, most), slopes, max_weight, width, controlled=False)


def _means(sums: Array) -> Array:
    """Divide sums by the sum of weights, the first one: [blocks, P, 1 + columns] to [columns, blocks, P]."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.moveaxis(sums[..., 1:] / sums[..., :1], -1, 0)
