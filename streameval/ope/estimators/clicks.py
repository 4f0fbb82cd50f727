"""Estimate rankings from clicks: sums over clicked items replace weighted rewards.

Let `lambda` be the gain of the rank that a policy gives an item, and `theta` the probability that the user examined the
rank that production showed it at. Each click counts `lambda / theta`. Production is the order that was shown, so a lift
compares both orders on the same clicks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array
from streameval.common.component import strict
from streameval.ope.estimators.base import Estimator, Range, TermRange, Terms
from streameval.ope.estimators.interpolated import Cap, CappedEstimator, share_below
from streameval.ope.evidence.actions import Requirements
from streameval.ope.evidence.clicks import Clicks
from streameval.ope.evidence.evidence import Evidence


@dataclass(frozen=True, config=strict)
class ClickEstimator(Estimator):
    """Define the base of estimators from clicks."""

    uses_clicks: ClassVar[bool] = True

    @property
    def limit(self) -> float:
        """Return the largest `1 / theta` that counts in full."""
        return math.inf

    def numerator(self, evidence: Evidence, clicks: Clicks) -> Array:
        """Return the numbers to average [n, P]."""
        return evidence.weighted_reward

    def terms(self, evidence: Evidence, state: Any) -> tuple[Terms, Any]:
        assert evidence.clicks is not None
        return Terms(self.numerator(evidence, evidence.clicks), self.denominator(evidence.clicks)), state

    def priors(self, mean_reward: Array, sums: Mapping[str, Array]) -> tuple[Array | None, ...]:
        """Return the recent value of production."""
        return (None if self.ratio else mean_reward,)

    def denominator(self, clicks: Clicks) -> Array | None:
        """Return the numbers with the mean that the mean numerator is divided by [n, P]. None stands for 1."""
        return None

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """Return a range on one side of 0, up to the cap times the full value. No mean weight is assumed.

        With noise in the clicks it is on both sides.
        """
        low, high = reward_range
        with np.errstate(invalid="ignore"):
            heaviest = np.fmin(max_weight, self.limit * (high - low))
        slopes = -float(low < 0), float(high > 0)
        return TermRange.between((0.0, 0.0), slopes, heaviest, heaviest * sum(map(abs, slopes)), controlled=False)


@dataclass(frozen=True, config=strict)
class ClickIPS(ClickEstimator):
    """Average the sum over clicked items of `lambda / theta`.

    The expectation is the metric of the policy under two conditions. The examination probabilities are right, and
    positive wherever an attractive item is shown. Production shows all items that the policy ranks above its cut.

    In the example the policy moves an item from rank 3, which every third user examines, to rank 1:

    >>> from streameval.events import EventBatch
    >>> from streameval.ope.evidence.clicks import Ranking
    >>> batch = EventBatch.from_rankings(clicks=[[0, 0, 1]], ranks={"new": [[3, 2, 1]]})
    >>> evidence = Evidence.from_rankings(batch, ["logging", "new"], Ranking())
    >>> ClickIPS().terms(evidence, None)[0].numerator.round(3)
    array([[1.5, 3. ]])

    Source: Joachims, Swaminathan & Schnabel, WSDM 2017; Swaminathan's thesis 2017, equation 4.7.
    """

    averages_weighted_reward: ClassVar[bool] = True
    preference: ClassVar[int] = 1
    kind: Literal["click_ips"] = field(default="click_ips", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class ClippedClickIPS(CappedEstimator, ClickEstimator):
    """Average `min(1 / theta, cap) lambda` over clicks: less noise from low ranks, and a bias towards 0.

    Without a limit it is `click_ips`. With a `cap` of 1 it is the metric of the plain clicks.

    Args:
        cap: the largest weight of a click, > 0, or `auto`
    """

    cap: Annotated[Cap, Field(gt=0)] | Literal["auto"]
    kind: Literal["clipped_click_ips"] = field(default="clipped_click_ips", kw_only=True, repr=False)

    def numerator(self, evidence: Evidence, clicks: Clicks) -> Array:
        return clicks.clicked_gain(self.beta(clicks.weight))


@dataclass(frozen=True, config=strict)
class ClickSNIPS(ClickEstimator):
    """Divide the sum of `lambda / theta` over all clicks by the sum of `1 / theta`: the mean gain of attractive items.

    It does not depend on how many items users find attractive. With `average_relevance_position` it is the mean rank.
    """

    ratio: ClassVar[bool] = True
    averages_weighted_reward: ClassVar[bool] = True
    preference: ClassVar[int] = 2
    kind: Literal["click_snips"] = field(default="click_snips", kw_only=True, repr=False)

    def denominator(self, clicks: Clicks) -> Array:
        return clicks.clicked_weight()

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """Return a range on both sides of 0 for the linearised term."""
        terms = super().term_range(reward_range, max_weight)
        slope = np.ones_like(max_weight)
        return terms._replace(low_slope=-slope, high_slope=slope, width=2 * terms.width)


@dataclass(frozen=True, config=strict)
class ModelledClicks(ClickEstimator):
    """Define `sum over clicked items of beta lambda / theta + sum over shown items of (1 - beta) q lambda`.

    With the reward model's prediction `q` of the attractiveness of an item, and `W = 1 / theta` for its weight:

    | estimator | beta |
    |---|---|
    | `click_static_blend` | `tau` |
    | `click_switch` | `1[W <= cap]` |
    | `click_cab` | `min(cap / W, 1)` |

    They need the features of the items and whole lists. There is no doubly robust one, because nobody sees whether a
    user looked at an item without a click.

    Source: Su, Wang, Santacatterina & Joachims, ICML 2019, Table 3.
    """

    needs: ClassVar[Requirements] = frozenset({"target", "prediction"})
    is_biased_by_design: ClassVar[bool] = True

    def beta(self, weight: Array) -> Array | float:
        """Return the factor of `lambda / theta`, between 0 and 1, by `1 / theta`."""
        raise NotImplementedError

    def numerator(self, evidence: Evidence, clicks: Clicks) -> Array:
        beta = self.beta(clicks.weight)
        return clicks.clicked_gain(beta) + clicks.modelled_gain(1.0 - beta)

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """Return the range of the clicks' part plus a model's part inside the range of the metric."""
        terms = super().term_range(reward_range, max_weight)
        return terms._replace(
            low_offset=np.full_like(max_weight, min(reward_range[0], 0.0)),
            high_offset=np.full_like(max_weight, max(reward_range[1], 0.0)),
            width=terms.width + reward_range[1] - reward_range[0],
        )


@dataclass(frozen=True, config=strict)
class ClickCAB(CappedEstimator, ModelledClicks):
    """Average `clipped_click_ips`, with a model of attractiveness in place of what the cap cuts off.

    `click_cab(0)` is the model alone, and without a limit it is `click_ips`.

    Args:
        cap: the model replaces the part of a weight above it, >= 0, or `auto`
    """

    kind: Literal["click_cab"] = field(default="click_cab", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class ClickSwitch(CappedEstimator, ModelledClicks):
    """Use the clicks at ranks with `1 / theta` up to the cap, and a model of attractiveness at all others.

    `click_switch(0)` is the model alone, and without a limit it is `click_ips`.

    Args:
        cap: the largest weight of a click, >= 0, or `auto`
    """

    kind: Literal["click_switch"] = field(default="click_switch", kw_only=True, repr=False)

    def beta(self, weight: Array) -> Array:
        return share_below(weight, self.limit)


@dataclass(frozen=True, config=strict)
class ClickStaticBlend(ModelledClicks):
    """Blend `click_ips` and a model of attractiveness in fixed shares.

    Args:
        tau: the share of `click_ips`, in [0, 1]
    """

    tau: Annotated[float, Field(ge=0, le=1)]
    kind: Literal["click_static_blend"] = field(default="click_static_blend", kw_only=True, repr=False)

    def beta(self, weight: Array) -> float:
        return self.tau


WINDOWS = (0.0, 1.0, 2.0, 4.0, 8.0, math.inf)
"""Windows that `window: auto` chooses from."""


@dataclass(frozen=True, config=strict)
class ClickInterpol(ClickEstimator):
    """Average the gain of each click times its weight within a window of ranks: INTERPOL.

    A click at rank k on an item that the policy shows at rank t counts if `|k - t| <= window`. Its weight is
    `lambda(t) / sum over j with |j - t| <= window of P(item at j) theta_j`. Window 0
    is the item-position model: it assumes nothing about users that could be wrong, and has much noise. An infinite
    window is the position-based model, as `click_ips`. Events need `rank_probabilities`, and a curve of looks that they
    do not give themselves. `Windows` has what is derived.

    With a learned curve, intervals have the error that the curve has in `click_ips`.

    Args:
        window: the largest distance of two ranks, may be infinite. `auto` computes the windows 0, 1, 2, 4, 8 and
            infinity. A Report then chooses one for each policy and average by SLOPE, from the item-position model on

    Source: Buchholz, London, Di Benedetto & Joachims, CONSEQUENCES workshop at RecSys 2022.
    """

    needs: ClassVar[Requirements] = frozenset({"window"})
    is_biased_by_design: ClassVar[bool] = True
    choice: ClassVar[str] = "click_window"
    window: Annotated[Cap, Field(ge=0)] | Literal["auto"] = "auto"
    kind: Literal["click_interpol"] = field(default="click_interpol", kw_only=True, repr=False)

    @property
    def alternatives(self) -> Mapping[float, Estimator]:
        windows = WINDOWS if isinstance(self.window, str) else ()
        return {window: replace(self, window=window) for window in windows} or super().alternatives

    def numerator(self, evidence: Evidence, clicks: Clicks) -> Array:
        if clicks.windows is None or isinstance(self.window, str):
            return np.zeros_like(evidence.weighted_reward)
        return clicks.window_gain(self.window)
