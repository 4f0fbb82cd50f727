"""Eight estimators of one family, from the reward model alone to the importance weight alone.

With `q(x, a)` the reward model's prediction before it saw the event, and `W(a) = pi(a|x) / pi0(a|x)`, each of them is
the average of

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

So alpha is 1 where the model is corrected, 0 without a model, and `1 - beta(W)` otherwise. Where the logging policy
never takes an action that the candidate may take, `W(a)` is infinite: it has no rewards. `dm`, `dr`, `static_blend` and
`cab_dr` need the candidate's full distribution, `switch` and `cab` those of both policies.

The examples below compute the terms of one event with three actions: the logging policy took the first, with a
propensity of .5, and earned 1; the candidate takes it with .6; the model predicts .7, .2 and .4.

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
"""The weights at which a row of the table is looked at for its range; neighbours differ by less than .7 %."""
PREDICTED: Requirements = frozenset({"target", "prediction"})
WEIGHED: Requirements = frozenset({"target", "prediction", "logging"})


def within(weight: Array, cap: float) -> Array:
    """`min(cap / W, 1)`, the share of a weight that a cap leaves; 0 where W is infinite.

    >>> within(np.array([0.0, 2.0, 8.0, np.inf]), 4.0)
    array([1. , 1. , 0.5, 0. ])
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(weight <= cap, np.isfinite(weight), cap / weight)


@dataclass(frozen=True, config=strict)
class Interpolated(Estimator):
    """A row of the table, which `beta` and `needs` define; the terms, their range and the intervals follow.

    `corrected`: the model's prediction is subtracted from the reward.
    """

    corrected: ClassVar[bool] = False

    def beta(self, weight: Array) -> Array | float:
        """Return the factor of the weighted reward, between 0 and 1."""
        return 1.0

    @property
    def limit(self) -> float:
        """Return the weight beyond which `w beta(w)` is never larger than before.

        It is infinite if the product rises to the end of WEIGHTS, and if it is always 0. A finite limit bounds every
        term, however large the weights of later events may be. It can make intervals several times narrower, and the
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
            predicted = actions.of_logged(actions.prediction)
            term = term + actions.expected_reward - _times(beta, weight * predicted[:, None])
        elif "logging" in self.needs:
            term = term + actions.sum(actions.modelled * (1.0 - self.beta(actions.importance_weight)))
        else:  # every action counts the same
            term = term + _times(1.0 - beta, actions.expected_reward)
        return Terms(term), state

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """The model's part, wherever the weight lies, and the reward or a correction by it up to the limit.

        The model's part lies inside the reward range, or at 0. Only `ips` relies on a mean weight of 1. The terms of
        the others would have no limit at an infinite weight: without a `limit` the heaviest is the largest seen.
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
            beta: at WEIGHTS
            largest: the largest weight of each policy, up to the limit [policies, ...]
        """
        bounds = np.concatenate([[0.0], WEIGHTS[1:] * np.maximum(beta[1:], beta[:-1])])
        place = np.searchsorted(WEIGHTS, largest, side="right") - 1
        last = np.maximum(beta[place], self.beta(largest))
        with np.errstate(invalid="ignore"):
            product = np.where((last == 0) & np.isinf(largest), 0.0, last * largest)
        return np.asarray(np.maximum(np.maximum.accumulate(bounds)[place], product))


def _times(factor: Array | float, column: Array) -> Array:
    return column if isinstance(factor, float) and factor == 1.0 else column * factor


def _a_number(cap: float) -> float:
    if math.isnan(cap):
        raise ValueError("a cap must be a number")
    return cap


Cap: TypeAlias = Annotated[float, Field(allow_inf_nan=True), AfterValidator(_a_number)]
CAPS = (math.inf, 1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)
"""The caps that `cap: auto` chooses from."""


@dataclass(frozen=True, config=strict)
class Capped(Interpolated):
    """A row with a cap, the largest weight that counts in full; infinity is allowed.

    `auto` computes the row for each of the caps 1, 3, 10, ..., 1000 and infinity. A Report chooses one for each
    policy on each average by SLOPE, from the averaged events alone; see `evaluator.slope`.
    """

    cap: Annotated[Cap, Field(ge=0)] | Literal["auto"]
    is_biased_by_design: ClassVar[bool] = True

    @property
    def alternatives(self) -> Mapping[float, Estimator]:
        return {cap: replace(self, cap=cap) for cap in CAPS} if self.cap == "auto" else super().alternatives

    def beta(self, weight: Array) -> Array:
        return within(weight, self.limit)

    @property
    def limit(self) -> float:
        return math.inf if isinstance(self.cap, str) else self.cap


@dataclass(frozen=True, config=strict)
class IPS(Interpolated):
    """Inverse propensity scoring: the average of `w r`, with `w = pi(a|x) / p`.

    Unbiased where the logging policy gives every action the candidate may take a positive probability. Its variance
    grows with the largest weight: one rare action can dominate the sum.

    A candidate twice as likely as the logging policy (p = .3, pi = .6) to take a rewarded action:

    >>> IPS().terms(Evidence.of(importance_weight=[[0.6 / 0.3]], reward=[1.0]), None)[0].numerator
    array([[2.]])

    Source: Horvitz & Thompson 1952; Li et al., WSDM 2011.
    """

    averages_weighted_reward: ClassVar[bool] = True
    kind: Literal["ips"] = field(default="ips", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class ClippedIPS(Capped):
    """IPS with capped weights: the average of `min(w, cap) r`, cap > 0.

    Trades variance for a bias towards zero, so its interval covers its own expectation (`covers: estimand`), not the
    value of the policy.

    >>> ClippedIPS(cap=10).terms(Evidence.of(importance_weight=[[125.0]], reward=[1.0]), None)[0].numerator
    array([[10.]])

    Source: Ionides 2008; Bottou et al., JMLR 2013.
    """

    cap: Annotated[Cap, Field(gt=0)] | Literal["auto"]
    kind: Literal["clipped_ips"] = field(default="clipped_ips", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class DM(Interpolated):
    """Direct method: the reward that the model expects, the average of `sum over a of pi(a|x) q(x, a)`.

    Has little noise and all of the model's bias: the interval is about the model's own expectation.

    >>> evidence = Evidence.of_actions([1], [0], [[0.5, 0.5, 0]], [[0.6, 0.2, 0.2]], [[0.7, 0.2, 0.4]])
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
    """Doubly robust: `sum over a of pi(a|x) q(x, a) + w (r - q(x, logged action))`, the model and its correction.

    Unbiased where support is full, whatever the model says, because the model predicts before it learns; the better the
    model, the less noise. For an action that is never logged the model is not corrected.

    >>> evidence = Evidence.of_actions([1], [0], [[0.5, 0.5, 0]], [[0.6, 0.2, 0.2]], [[0.7, 0.2, 0.4]])
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
    """A fixed blend: `(1 - tau)` of `dm` and `tau` of `ips`, tau in [0, 1].

    >>> evidence = Evidence.of_actions([1], [0], [[0.5, 0.5, 0]], [[0.6, 0.2, 0.2]], [[0.7, 0.2, 0.4]])
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
    """The reward where the weight is small, the model where it is large; cap >= 0.

    `switch(0)` is `dm`, without a limit it is `ips`. The model stands in for actions that are never logged, such as the
    third one here, so that its part of .2 x .4 comes from the model:

    >>> evidence = Evidence.of_actions([1], [0], [[0.5, 0.5, 0]], [[0.6, 0.2, 0.2]], [[0.7, 0.2, 0.4]])
    >>> Switch(cap=2).terms(evidence, None)[0].numerator.round(3)  # .08 + 1.2
    array([[1.28]])
    >>> Switch(cap=1).terms(evidence, None)[0].numerator.round(3)  # .42 + .08: the weight of 1.2 is too large
    array([[0.5]])

    Source: Wang, Agarwal & Dudik, ICML 2017.
    """

    needs: ClassVar[Requirements] = WEIGHED
    kind: Literal["switch"] = field(default="switch", kw_only=True, repr=False)

    def beta(self, weight: Array) -> Array:
        return ((weight <= self.limit) & np.isfinite(weight)).astype(float)


@dataclass(frozen=True, config=strict)
class CAB(Capped):
    """Continuous adaptive blending: capped IPS, with the model standing in for what the cap cuts off; cap >= 0.

    `cab(0)` is `dm`, without a limit it is `ips`. Less noise than `ips` and, with any reasonable model, less bias than
    `clipped_ips`; continuous in the cap, as `switch` is not. The model stands in for actions that are never logged.

    >>> evidence = Evidence.of_actions([1], [0], [[0.5, 0.5, 0]], [[0.6, 0.2, 0.2]], [[0.7, 0.2, 0.4]])
    >>> CAB(cap=1).terms(evidence, None)[0].numerator.round(3)  # .42 (1 - 1 / 1.2) + .08 + 1
    array([[1.15]])

    Source: Su, Wang, Santacatterina & Joachims, ICML 2019.
    """

    needs: ClassVar[Requirements] = WEIGHED
    kind: Literal["cab"] = field(default="cab", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class CABDR(Capped):
    """Doubly robust with capped corrections: `sum over a of pi(a|x) q(x, a) + min(w, cap) (r - q(x, logged action))`.

    cap >= 0: `cab_dr(0)` is `dm`, without a limit it is `dr`.

    >>> evidence = Evidence.of_actions([1], [0], [[0.5, 0.5, 0]], [[0.6, 0.2, 0.2]], [[0.7, 0.2, 0.4]])
    >>> CABDR(cap=1).terms(evidence, None)[0].numerator.round(3)  # .54 + 1 (1 - .7)
    array([[0.84]])

    Source: Su, Wang, Santacatterina & Joachims, ICML 2019.
    """

    needs: ClassVar[Requirements] = PREDICTED
    corrected: ClassVar[bool] = True
    takes_estimated: ClassVar[bool] = True
    kind: Literal["cab_dr"] = field(default="cab_dr", kw_only=True, repr=False)
