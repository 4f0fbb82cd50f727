"""The estimators of one family, from the reward model alone to the importance weight alone: a row of the table each.

One table of eight estimators, from the reward model alone to the importance weight alone.

With `q(x, a)` the reward model's prediction before it saw the event, and `W(a) = pi(a|x) / pi0(a|x)`, each of them is
the average of

    sum over a of alpha(W(a)) pi(a|x) q(x, a)  +  beta(w) w r  +  gamma(w) w q(x, logged action)

Where the logging policy never takes an action that the candidate may take, `W(a)` is infinite: no reward tells of it.

Source: Su, Wang, Santacatterina & Joachims, CAB: Continuous Adaptive Blending, ICML 2019, Table 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, State
from streameval.common.component import strict
from streameval.ope.estimators.base import Estimator, Terms
from streameval.ope.estimators.term_range import TermRange
from streameval.ope.evidence.actions import Actions
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.evidence.requirements import NOTHING, Requirement, Requirements

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


class TableRow(NamedTuple):
    """How much counts of the model's prediction for every action, of the reward, and of the logged one's prediction."""

    alpha: Weighting
    beta: Weighting
    gamma: Weighting
    needs: Requirements


PREDICTED: Requirements = frozenset({Requirement.TARGET, Requirement.PREDICTION})
WEIGHED: Requirements = PREDICTED | {Requirement.LOGGING}

TABLE = {
    "dm": TableRow(1, 0, 0, PREDICTED),
    "ips": TableRow(0, 1, 0, NOTHING),
    "clipped_ips": TableRow(0, within, 0, NOTHING),
    "dr": TableRow(1, 1, -1, PREDICTED),
    "static_blend": TableRow(rest, share, 0, PREDICTED),
    "switch": TableRow(above, up_to, 0, WEIGHED),
    "cab": TableRow(beyond, within, 0, WEIGHED),
    "cab_dr": TableRow(1, within, within_less, PREDICTED),
}


@dataclass(frozen=True, config=strict)
class Interpolated(Estimator):
    """A row of the table. `parameter`: its `M` or `tau`. `limit`: no larger weight counts in full."""

    row: ClassVar[TableRow]

    @property
    def parameter(self) -> float:
        return math.inf

    @property
    def limit(self) -> float:
        return math.inf

    def terms(self, evidence: Evidence, state: State) -> tuple[Terms, State]:
        weight, actions = evidence.importance_weight, evidence.actions
        term = self._weighed(self.row.beta, weight, evidence.weighted_reward)
        if actions is not None and self.row.alpha != 0:
            term = term + self._of_every_action(actions, weight)
        if actions is not None and self.row.gamma != 0:
            predicted = actions.of_logged(actions.prediction)
            term = term + self._weighed(self.row.gamma, weight, weight * predicted[:, None])
        return Terms(term), state

    def _of_every_action(self, actions: Actions, weight: Array) -> Array:
        if Requirement.LOGGING in self.needs:
            return actions.sum(self._weighed(self.row.alpha, actions.importance_weight, actions.modelled))
        return self._weighed(self.row.alpha, weight, actions.expected_reward)  # every action counts the same

    def _weighed(self, weighting: Weighting, weight: Array, column: Array) -> Array:
        if weighting == 1:
            return column
        return column * (weighting(weight, self.parameter) if callable(weighting) else weighting)

    def term_range(self, reward_range: tuple[float, float], max_weight: Array) -> Array:
        """The model's part lies inside the reward range, or at 0; a correction may be as large to either side."""
        low, high = reward_range
        widest = max(high, 0.0) - min(low, 0.0)
        largest = np.minimum(max_weight, self.limit)
        reach = self._weighed(self.row.beta, largest, largest)
        return (widest if self.row.alpha != 0 else 0.0) + reach * (2 * (high - low) if self.row.gamma != 0 else widest)

    def extremes(self, reward_range: tuple[float, float], seen: Array) -> TermRange:
        """The model's part, wherever the weight lies, and the reward or a correction by it up to the limit.

        Only `ips` stands on a mean weight of 1. Of the others an endless weight could make anything: if they have no
        limit, the heaviest is the largest seen.
        """
        low, high = reward_range
        if self.row.alpha == 0 and math.isinf(self.limit):
            return super().extremes(reward_range, seen)
        counts = self.parameter if self.row.beta is share else float(self.row.beta != 0)
        least, most = min(low, 0.0), max(high, 0.0)
        offsets = (least, most) if self.row.alpha != 0 else (0.0, 0.0)
        slopes = (low - high, high - low) if self.row.gamma != 0 else (counts * least, counts * most)
        heaviest = seen if math.isinf(self.limit) else np.full_like(seen, self.limit)
        return TermRange.between(offsets, slopes, heaviest, controlled=False)


def _a_number(cap: float) -> float:
    if math.isnan(cap):
        raise ValueError("a cap must be a number")
    return cap


Cap: TypeAlias = Annotated[float, Field(allow_inf_nan=True), AfterValidator(_a_number)]


@dataclass(frozen=True, config=strict)
class Capped(Interpolated):
    """A row whose parameter is the largest weight that counts in full; infinity is allowed."""

    cap: Annotated[Cap, Field(ge=0)]

    @property
    def parameter(self) -> float:
        return self.cap

    @property
    def limit(self) -> float:
        return self.cap


@dataclass(frozen=True, config=strict)
class IPS(Interpolated):
    """Inverse propensity scoring: the average of `w r`, with `w = pi(a|x) / p`.

    Unbiased where the logging policy gives every action the candidate may take a positive probability. Its variance
    grows with the largest weight: one rare action can dominate the sum.

    A candidate twice as likely as the logging policy (p = .3, pi = .6) to take a rewarded action:

    >>> import numpy as np
    >>> from streameval.ope.evidence.evidence import Evidence
    >>> evidence = Evidence.of(importance_weight=[[0.6 / 0.3]], reward=[1.0])
    >>> IPS().terms(evidence, {})[0].u
    array([[2.]])

    Source: Horvitz & Thompson 1952; Li et al., WSDM 2011.
    """

    row: ClassVar[TableRow] = TABLE["ips"]
    needs: ClassVar[Requirements] = row.needs
    kind: Literal["ips"] = field(default="ips", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class ClippedIPS(Capped):
    """IPS with capped weights: the average of `min(w, cap) r`, cap > 0 (infinity is allowed: then it is `ips`).

    Trades variance for a bias towards zero, so its interval covers its own expectation (`covers: estimand`), not the
    value of the policy.

    >>> from streameval.ope.evidence.evidence import Evidence
    >>> ClippedIPS(cap=10).terms(Evidence.of(importance_weight=[[125.0]], reward=[1.0]), {})[0].u
    array([[10.]])

    Source: Ionides 2008; Bottou et al., JMLR 2013.
    """

    cap: Annotated[Cap, Field(gt=0)]
    row: ClassVar[TableRow] = TABLE["clipped_ips"]
    needs: ClassVar[Requirements] = row.needs
    covers_estimand: ClassVar[bool] = True
    kind: Literal["clipped_ips"] = field(default="clipped_ips", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class DM(Interpolated):
    """Direct method: what the reward model expects, the average of `sum over a of pi(a|x) q(x, a)`.

    Has little noise and all of the model's bias, whatever the logging policy did: the interval is about the model's
    own expectation. Needs the candidate's whole distribution.

    Three actions, the first of which was logged with a propensity of .5 and earned 1:

    >>> from streameval.ope.evidence.evidence import Evidence
    >>> evidence = Evidence.of_actions(
    ...     reward=[1], action=[0], propensities=[[0.5, 0.5, 0]], target=[[0.6, 0.2, 0.2]], prediction=[0.7, 0.2, 0.4]
    ... )
    >>> DM().terms(evidence, {})[0].u.round(3)  # .42 + .04 + .08
    array([[0.54]])
    """

    row: ClassVar[TableRow] = TABLE["dm"]
    needs: ClassVar[Requirements] = row.needs
    covers_estimand: ClassVar[bool] = True
    kind: Literal["dm"] = field(default="dm", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class DR(Interpolated):
    """Doubly robust: `sum over a of pi(a|x) q(x, a) + w (r - q(x, logged action))`, the model and its correction.

    Unbiased where support is full, whatever the model says, because the model predicts before it learns; the better the
    model, the less noise. For an action that is never logged the model is not corrected. Needs the candidate's whole
    distribution.

    The event of `DM`, whose weight is 1.2:

    >>> from streameval.ope.evidence.evidence import Evidence
    >>> evidence = Evidence.of_actions(
    ...     reward=[1], action=[0], propensities=[[0.5, 0.5, 0]], target=[[0.6, 0.2, 0.2]], prediction=[0.7, 0.2, 0.4]
    ... )
    >>> DR().terms(evidence, {})[0].u.round(3)  # .54 + 1.2 (1 - .7)
    array([[0.9]])

    Source: Dudik, Langford & Li, ICML 2011.
    """

    row: ClassVar[TableRow] = TABLE["dr"]
    needs: ClassVar[Requirements] = row.needs
    preference: ClassVar[int] = 2
    kind: Literal["dr"] = field(default="dr", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class StaticBlend(Interpolated):
    """A fixed blend: `(1 - tau)` of `dm` and `tau` of `ips`, tau in [0, 1].

    >>> from streameval.ope.evidence.evidence import Evidence
    >>> evidence = Evidence.of_actions(
    ...     reward=[1], action=[0], propensities=[[0.5, 0.5, 0]], target=[[0.6, 0.2, 0.2]], prediction=[0.7, 0.2, 0.4]
    ... )
    >>> StaticBlend(tau=0.5).terms(evidence, {})[0].u.round(3)  # half of .54 and half of 1.2
    array([[0.87]])

    Source: Thomas & Brunskill, ICML 2016; Su et al., ICML 2019.
    """

    tau: Annotated[float, Field(ge=0, le=1)]
    row: ClassVar[TableRow] = TABLE["static_blend"]
    needs: ClassVar[Requirements] = row.needs
    covers_estimand: ClassVar[bool] = True
    kind: Literal["static_blend"] = field(default="static_blend", kw_only=True, repr=False)

    @property
    def parameter(self) -> float:
        return self.tau


@dataclass(frozen=True, config=strict)
class Switch(Capped):
    """The reward where the weight is small, the model where it is large.

    `sum over a with W(a) > cap of pi(a|x) q(x, a) + w r 1[w <= cap]`, cap >= 0: `switch(0)` is `dm`, without a limit it
    is `ips`. The model stands in for actions that are never logged. Needs the whole distributions of both policies.

    The third action is never logged, so that its part of .2 x .4 comes from the model:

    >>> from streameval.ope.evidence.evidence import Evidence
    >>> evidence = Evidence.of_actions(
    ...     reward=[1], action=[0], propensities=[[0.5, 0.5, 0]], target=[[0.6, 0.2, 0.2]], prediction=[0.7, 0.2, 0.4]
    ... )
    >>> Switch(cap=2).terms(evidence, {})[0].u.round(3)  # .08 + 1.2
    array([[1.28]])
    >>> Switch(cap=1).terms(evidence, {})[0].u.round(3)  # .42 + .08: the weight of 1.2 is too large
    array([[0.5]])

    Source: Wang, Agarwal & Dudik, ICML 2017.
    """

    row: ClassVar[TableRow] = TABLE["switch"]
    needs: ClassVar[Requirements] = row.needs
    covers_estimand: ClassVar[bool] = True
    kind: Literal["switch"] = field(default="switch", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class CAB(Capped):
    """Continuous adaptive blending: capped IPS, with the model standing in for what the cap cuts off.

    `sum over a of pi(a|x) q(x, a) (1 - min(cap / W(a), 1)) + min(w, cap) r`, cap >= 0: `cab(0)` is `dm`, without a
    limit it is `ips`. Less noise than `ips` and, with any reasonable model, less bias than `clipped_ips`; continuous
    in the cap, as `switch` is not. The model stands in for actions that are never logged. Needs the whole
    distributions of both policies.

    >>> from streameval.ope.evidence.evidence import Evidence
    >>> evidence = Evidence.of_actions(
    ...     reward=[1], action=[0], propensities=[[0.5, 0.5, 0]], target=[[0.6, 0.2, 0.2]], prediction=[0.7, 0.2, 0.4]
    ... )
    >>> CAB(cap=1).terms(evidence, {})[0].u.round(3)  # .42 (1 - 1 / 1.2) + .08 + 1
    array([[1.15]])

    Source: Su, Wang, Santacatterina & Joachims, ICML 2019.
    """

    row: ClassVar[TableRow] = TABLE["cab"]
    needs: ClassVar[Requirements] = row.needs
    covers_estimand: ClassVar[bool] = True
    kind: Literal["cab"] = field(default="cab", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class CABDR(Capped):
    """Doubly robust with capped corrections: `sum over a of pi(a|x) q(x, a) + min(w, cap) (r - q(x, logged action))`.

    cap >= 0: `cab_dr(0)` is `dm`, without a limit it is `dr`. Needs the candidate's whole distribution.

    >>> from streameval.ope.evidence.evidence import Evidence
    >>> evidence = Evidence.of_actions(
    ...     reward=[1], action=[0], propensities=[[0.5, 0.5, 0]], target=[[0.6, 0.2, 0.2]], prediction=[0.7, 0.2, 0.4]
    ... )
    >>> CABDR(cap=1).terms(evidence, {})[0].u.round(3)  # .54 + 1 (1 - .7)
    array([[0.84]])

    Source: Su, Wang, Santacatterina & Joachims, ICML 2019.
    """

    row: ClassVar[TableRow] = TABLE["cab_dr"]
    needs: ClassVar[Requirements] = row.needs
    covers_estimand: ClassVar[bool] = True
    kind: Literal["cab_dr"] = field(default="cab_dr", kw_only=True, repr=False)
