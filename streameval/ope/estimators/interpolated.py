"""Estimate with the reward model alone, the importance weight alone, or something between: eight rows of one table.

Let `q(x, a)` be the reward model's prediction before it saw the event, and `W(a) = pi(a|x) / pi0(a|x)`. Every row
averages

    sum over a of alpha(W(a)) pi(a|x) q(x, a)  +  beta(w) w r  -  corrected beta(w) w q(x, logged action)

| estimator | alpha | beta | corrected |
|---|---|---|---|
| `dm` | 1 | 0 | |
| `ips` | 0 | 1 | |
| `clipped_ips` | 0 | `min(cap / w, 1)` | |
| `dr` | 1 | 1 | yes |
| `static_blend` | `1 - tau` | `tau` | |
| `switch` | `1[W > cap]` | `1[w <= cap]` | |
| `cab` | `1 - min(cap / W, 1)` | `min(cap / w, 1)` | |
| `cab_dr` | 1 | `min(cap / w, 1)` | yes |

So alpha is 1 if the model is corrected, 0 without a model, and `1 - beta(W)` otherwise. `W(a)` is infinite, without
rewards, if the logging policy never takes an action that the candidate may take. `dm`, `dr`, `static_blend` and
`cab_dr` need the candidate's full distribution, and `switch` and `cab` need both policies' distributions.

The examples below compute the terms of one event with three actions. The logging policy took the first action with a
propensity of .5 and earned 1. The candidate takes it with .6. The model predicts .7, .2 and .4.

Source: Su, Wang, Santacatterina & Joachims, CAB: Continuous Adaptive Blending, ICML 2019, Table 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from streameval.common.arrays import ROUNDING, Array
from streameval.common.component import strict
from streameval.ope.estimators.base import Estimator, Range, TermRange, Terms
from streameval.ope.evidence.actions import Requirements
from streameval.ope.evidence.evidence import Evidence

WEIGHTS = np.concatenate([[0.0], np.geomspace(1e-4, 1e8, 2**12)])
"""Weights at which the range of a row is evaluated. Neighbours differ by less than .7 %."""
PREDICTED: Requirements = frozenset({"target", "prediction"})
WEIGHED: Requirements = frozenset({"target", "prediction", "logging"})


def capped_share(weight: Array, cap: float) -> Array:
    """Return `min(cap / W, 1)`, the share of a weight that a cap leaves. It is 0 if W is infinite.

    >>> capped_share(np.array([0.0, 2.0, 8.0, np.inf]), 4.0)
    array([1. , 1. , 0.5, 0. ])
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(weight <= cap, np.isfinite(weight), cap / weight)


def share_below(weight: Array, cap: float) -> Array:
    """Return 1 for a finite weight up to the cap, else 0."""
    return ((weight <= cap) & np.isfinite(weight)).astype(float)


@dataclass(frozen=True, config=strict)
class Interpolated(Estimator):
    """Define one row of the table by `beta` and `needs`. The terms, their range and the intervals follow from them.

    Attributes:
        corrected: whether the model's prediction is subtracted from the reward
    """

    corrected: ClassVar[bool] = False

    def beta(self, weight: Array) -> Array | float:
        """Return the factor of the weighted reward, between 0 and 1."""
        return 1.0

    @property
    def limit(self) -> float:
        """Return the weight beyond which `w beta(w)` is never larger than before.

        It is infinite if the product rises to the end of WEIGHTS, and if it is always 0. A finite limit bounds every
        term, however large the weights of later events may be. It can make intervals several times narrower. The
        `confidence_sequence` of an estimator that is biased by design then needs no `max_weight`.

        The search among WEIGHTS finds a limit that is at most 1.4 % too large. A row that knows its limit overrides
        this. If that limit is too small, intervals miss too often.

        >>> ClippedIPS(cap=10).limit, IPS().limit
        (10.0, inf)
        """
        product = WEIGHTS * self.beta(WEIGHTS)
        largest = int(np.argmax(product > product.max() * (1 - ROUNDING)))
        rises = largest + 1 == len(WEIGHTS) or not product.any()
        return math.inf if rises else float(WEIGHTS[largest + 1])

    def terms(self, evidence: Evidence, state: Any) -> tuple[Terms, Any]:
        weight, actions = evidence.importance_weight, evidence.actions
        beta = self.beta(weight)
        term = _times(beta, evidence.weighted_reward)
        if actions is None or "prediction" not in self.needs:
            return Terms(term), state
        if self.corrected:
            predicted = actions.logged_values(actions.prediction)
            term = term + actions.expected_reward - _times(beta, weight * predicted[:, None])
        elif "logging" in self.needs:
            term = term + actions.sum(actions.modelled * (1.0 - self.beta(actions.importance_weight)))
        else:  # beta does not depend on the action
            term = term + _times(1.0 - beta, actions.expected_reward)
        return Terms(term), state

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """Return the range of the model's part, plus the reward or its correction up to the limit.

        The model's part lies inside the reward range, or at 0. Only `ips` relies on a mean weight of 1. All other terms
        would be unlimited at an infinite weight, so without a `limit` the heaviest weight is the largest one seen.
        """
        low, high = reward_range
        least, most = min(low, 0.0), max(high, 0.0)
        modelled = "prediction" in self.needs
        beta = np.broadcast_to(self.beta(WEIGHTS), WEIGHTS.shape)
        limit, size = self.limit, 2 * (high - low) if self.corrected else most - least
        reach = self._largest_product(beta, np.minimum(max_weight, limit)) * size
        width = (most - least if modelled else 0.0) + reach
        if not modelled and math.isinf(limit) and (beta == 1.0).all():
            return super().term_range(reward_range, max_weight)._replace(width=width)
        share = float(beta.max())
        slopes = (low - high, high - low) if self.corrected else (share * least, share * most)
        heaviest = max_weight if math.isinf(limit) else np.full_like(max_weight, limit)
        offsets = (least, most) if modelled else (0.0, 0.0)
        return TermRange.between(offsets, slopes, heaviest, width, controlled=False)

    def _largest_product(self, beta: Array, largest: Array) -> Array:
        """Bound `w beta(w)` over all weights up to the largest one, which need not have the largest product.

        The bound between two neighbouring WEIGHTS is the larger weight times the larger beta. It is exact if beta is
        constant up to the limit, as in every row of the table, and otherwise at most .7 % too large. It could be too
        small only if beta rose and fell again between two neighbours.

        Args:
            beta: the factor at each of WEIGHTS
            largest: the largest weight of each policy, up to the limit [policies, ...]
        """
        bounds = np.concatenate([[0.0], WEIGHTS[1:] * np.maximum(beta[1:], beta[:-1])])
        index = np.searchsorted(WEIGHTS, largest, side="right") - 1
        last = np.maximum(beta[index], self.beta(largest))
        with np.errstate(invalid="ignore"):
            product = np.where((last == 0) & np.isinf(largest), 0.0, last * largest)
        return np.asarray(np.maximum(np.maximum.accumulate(bounds)[index], product))


def _times(factor: Array | float, column: Array) -> Array:
    return column if isinstance(factor, float) and factor == 1.0 else column * factor


def _a_number(cap: float) -> float:
    if math.isnan(cap):
        raise ValueError("a cap must be a number")
    return cap


Cap: TypeAlias = Annotated[float, Field(allow_inf_nan=True), AfterValidator(_a_number)]
CAPS = (math.inf, 1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)
"""Caps that `cap: auto` chooses from."""


@dataclass(frozen=True, config=strict)
class CappedEstimator(Estimator):
    """Define an estimator with a cap.

    Args:
        cap: the largest weight that counts in full, may be infinite. `auto` computes the estimator for each of the caps
            1, 3, 10, ..., 1000 and infinity. A Report then chooses one cap for each policy and average by SLOPE, from
            the averaged events alone, see `evaluator.slope`.
    """

    cap: Annotated[Cap, Field(ge=0)] | Literal["auto"]
    is_biased_by_design: ClassVar[bool] = True

    @property
    def alternatives(self) -> Mapping[float, Estimator]:
        return {cap: replace(self, cap=cap) for cap in CAPS} if self.cap == "auto" else super().alternatives

    @property
    def limit(self) -> float:
        return math.inf if isinstance(self.cap, str) else self.cap

    def beta(self, weight: Array) -> Array:
        """Return the factor of the weighted reward, between 0 and 1."""
        return capped_share(weight, self.limit)


@dataclass(frozen=True, config=strict)
class Capped(CappedEstimator, Interpolated):
    """Define a row with a cap."""


@dataclass(frozen=True, config=strict)
class IPS(Interpolated):
    """Average `w r` with `w = pi(a|x) / p`: inverse propensity scoring.

    It is unbiased if the logging policy gives every action that the candidate may take a positive probability. Its
    variance grows with the largest weight, so that one rare action can dominate the sum.

    In the example the candidate takes a rewarded action twice as often as the logging policy (p = .3, pi = .6):

    >>> IPS().terms(Evidence.from_numbers(importance_weight=[[0.6 / 0.3]], reward=[1.0]), None)[0].numerator
    array([[2.]])

    Source: Horvitz & Thompson 1952; Li et al., WSDM 2011.
    """

    averages_weighted_reward: ClassVar[bool] = True
    kind: Literal["ips"] = field(default="ips", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class ClippedIPS(Capped):
    """Average `min(w, cap) r`, cap > 0: IPS with capped weights.

    It trades variance for a bias towards zero. So its interval covers its own expectation (`covers: estimand`), not the
    value of the policy.

    Args:
        cap: the largest weight, > 0, or `auto`

    >>> ClippedIPS(cap=10).terms(Evidence.from_numbers(importance_weight=[[125.0]], reward=[1.0]), None)[0].numerator
    array([[10.]])

    Source: Ionides 2008; Bottou et al., JMLR 2013.
    """

    cap: Annotated[Cap, Field(gt=0)] | Literal["auto"]
    kind: Literal["clipped_ips"] = field(default="clipped_ips", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class DM(Interpolated):
    """Average the reward that the model expects, `sum over a of pi(a|x) q(x, a)`: the direct method.

    It has little noise and all of the model's bias. The interval is about the model's own expectation.

    >>> evidence = Evidence.from_actions([1], [0], [[0.5, 0.5, 0]], [[0.6, 0.2, 0.2]], [[0.7, 0.2, 0.4]])
    >>> DM().terms(evidence, None)[0].numerator.round(3)  # .42 + .04 + .08
    array([[0.54]])
    """

    needs: ClassVar[Requirements] = PREDICTED
    is_biased_by_design: ClassVar[bool] = True
    takes_estimated: ClassVar[bool] = True
    kind: Literal["dm"] = field(default="dm", kw_only=True, repr=False)

    def beta(self, weight: Array) -> float:
        return 0.0


@dataclass(frozen=True, config=strict)
class DR(Interpolated):
    """Average a model and its correction, `sum over a of pi(a|x) q(x, a) + w (r - q(x, logged action))`.

    This is the doubly robust estimator. It is unbiased under full support, whatever the model says, because the model
    predicts before it learns. A better model gives less noise. The model is not corrected for an action that is never
    logged.

    >>> evidence = Evidence.from_actions([1], [0], [[0.5, 0.5, 0]], [[0.6, 0.2, 0.2]], [[0.7, 0.2, 0.4]])
    >>> DR().terms(evidence, None)[0].numerator.round(3)  # .54 + 1.2 (1 - .7)
    array([[0.9]])

    Source: Dudik, Langford & Li, ICML 2011.
    """

    needs: ClassVar[Requirements] = PREDICTED
    corrected: ClassVar[bool] = True
    preference: ClassVar[int] = 2
    takes_estimated: ClassVar[bool] = True
    kind: Literal["dr"] = field(default="dr", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class StaticBlend(Interpolated):
    """Blend `dm` and `ips` in fixed shares: `(1 - tau)` of `dm` and `tau` of `ips`, tau in [0, 1].

    Args:
        tau: the share of `ips`, in [0, 1]

    >>> evidence = Evidence.from_actions([1], [0], [[0.5, 0.5, 0]], [[0.6, 0.2, 0.2]], [[0.7, 0.2, 0.4]])
    >>> StaticBlend(tau=0.5).terms(evidence, None)[0].numerator.round(3)  # half of .54 and half of 1.2
    array([[0.87]])

    Source: Thomas & Brunskill, ICML 2016; Su et al., ICML 2019.
    """

    tau: Annotated[float, Field(ge=0, le=1)]
    needs: ClassVar[Requirements] = PREDICTED
    is_biased_by_design: ClassVar[bool] = True
    kind: Literal["static_blend"] = field(default="static_blend", kw_only=True, repr=False)

    def beta(self, weight: Array) -> float:
        return self.tau


@dataclass(frozen=True, config=strict)
class Switch(Capped):
    """Use the reward if the weight is at most the cap, and the model if it is larger.

    `switch(0)` is `dm`, and without a limit it is `ips`.

    Args:
        cap: the largest weight of the reward, >= 0, or `auto`

    The model stands in for actions that are never logged. In the example this is the third action, with a part of .2 x
    .4:

    >>> evidence = Evidence.from_actions([1], [0], [[0.5, 0.5, 0]], [[0.6, 0.2, 0.2]], [[0.7, 0.2, 0.4]])
    >>> Switch(cap=2).terms(evidence, None)[0].numerator.round(3)  # .08 + 1.2
    array([[1.28]])
    >>> Switch(cap=1).terms(evidence, None)[0].numerator.round(3)  # .42 + .08: the weight of 1.2 is too large
    array([[0.5]])

    Source: Wang, Agarwal & Dudik, ICML 2017.
    """

    needs: ClassVar[Requirements] = WEIGHED
    kind: Literal["switch"] = field(default="switch", kw_only=True, repr=False)

    def beta(self, weight: Array) -> Array:
        return share_below(weight, self.limit)


@dataclass(frozen=True, config=strict)
class CAB(Capped):
    """Cap the weights of IPS, and let the model stand in for what the cap cuts off: continuous adaptive blending.

    `cab(0)` is `dm`, and without a limit it is `ips`. It has less noise than `ips` and, with any reasonable model, less
    bias than `clipped_ips`. Unlike `switch` it is continuous in the cap. The model stands in for actions that are never
    logged.

    Args:
        cap: the largest weight, >= 0, or `auto`

    >>> evidence = Evidence.from_actions([1], [0], [[0.5, 0.5, 0]], [[0.6, 0.2, 0.2]], [[0.7, 0.2, 0.4]])
    >>> CAB(cap=1).terms(evidence, None)[0].numerator.round(3)  # .42 (1 - 1 / 1.2) + .08 + 1
    array([[1.15]])

    Source: Su, Wang, Santacatterina & Joachims, ICML 2019.
    """

    needs: ClassVar[Requirements] = WEIGHED
    kind: Literal["cab"] = field(default="cab", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class CABDR(Capped):
    """Cap the corrections of DR: average `sum over a of pi(a|x) q(x, a) + min(w, cap) (r - q(x, logged action))`.

    `cab_dr(0)` is `dm`, and without a limit it is `dr`.

    Args:
        cap: the largest weight of a correction, >= 0, or `auto`

    >>> evidence = Evidence.from_actions([1], [0], [[0.5, 0.5, 0]], [[0.6, 0.2, 0.2]], [[0.7, 0.2, 0.4]])
    >>> CABDR(cap=1).terms(evidence, None)[0].numerator.round(3)  # .54 + 1 (1 - .7)
    array([[0.84]])

    Source: Su, Wang, Santacatterina & Joachims, ICML 2019.
    """

    needs: ClassVar[Requirements] = PREDICTED
    corrected: ClassVar[bool] = True
    takes_estimated: ClassVar[bool] = True
    kind: Literal["cab_dr"] = field(default="cab_dr", kw_only=True, repr=False)
