"""Estimators of rankings from clicks: sums over clicked items in place of weighted rewards.

With the gain `lambda` of the rank that a policy gives an item, and the probability `theta` that the user looked at the
rank at which production showed it, each click counts `lambda / theta`. Production is the order that was shown, so that
a lift compares both orders on the same clicks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array
from streameval.common.component import strict
from streameval.ope.estimators.base import Estimator, Range, TermRange, Terms
from streameval.ope.estimators.interpolated import Cap
from streameval.ope.evidence.actions import Requirements
from streameval.ope.evidence.clicks import Clicks
from streameval.ope.evidence.evidence import Evidence


@dataclass(frozen=True, config=strict)
class ClickEstimator(Estimator):
    """The base of estimators from clicks. `limit`: the largest `1 / theta` that counts in full."""

    of_clicks: ClassVar[bool] = True

    @property
    def limit(self) -> float:
        return math.inf

    def numerator(self, evidence: Evidence, clicks: Clicks) -> Array:
        """The numbers to average, [n, P]."""
        return evidence.weighted_reward if math.isinf(self.limit) else clicks.clicked_gain(self.limit)

    def terms(self, evidence: Evidence, state: Any) -> tuple[Terms, Any]:
        assert evidence.clicks is not None
        return Terms(self.numerator(evidence, evidence.clicks), self.denominator(evidence.clicks)), state

    def priors(self, mean_reward: Array, sums: Mapping[str, Array]) -> tuple[Array | None, ...]:
        """The recent value of production."""
        return (None if self.ratio else mean_reward,)

    def denominator(self, clicks: Clicks) -> Array | None:
        """The numbers whose mean divides the mean of the numerators, [n, P]; None for 1."""
        return None

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """A term is 0 or on one side of it, and at most the cap times the full value; no mean weight is assumed."""
        low, high = reward_range
        with np.errstate(invalid="ignore"):
            heaviest = np.fmin(max_weight, self.limit * (high - low))
        slopes = (-1.0, 0.0) if low < 0 else (0.0, 1.0)
        return TermRange.between((0.0, 0.0), slopes, heaviest, heaviest.copy(), controlled=False)


@dataclass(frozen=True, config=strict)
class ClickIPS(ClickEstimator):
    """The average of the sum over clicked items of `lambda / theta`.

    Its expectation is the metric of the policy if the probabilities of looks are right and above 0 wherever an
    attractive item is shown, and if production shows all items that the policy ranks above its cut.

    The policy moves an item that was clicked at rank 3, where every third user looks, to rank 1:

    >>> from streameval.events import EventBatch
    >>> from streameval.ope.evidence.clicks import Ranking
    >>> batch = EventBatch.from_rankings(clicks=[[0, 0, 1]], ranks={"new": [[3, 2, 1]]})
    >>> evidence = Evidence.of_rankings(batch, ["logging", "new"], Ranking())
    >>> ClickIPS().terms(evidence, None)[0].numerator.round(3)
    array([[1.5, 3. ]])

    Source: Joachims, Swaminathan & Schnabel, WSDM 2017; Swaminathan's thesis 2017, equation 4.7.
    """

    averages_weighted_reward: ClassVar[bool] = True
    preference: ClassVar[int] = 1
    kind: Literal["click_ips"] = field(default="click_ips", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class ClippedClickIPS(ClickEstimator):
    """`click_ips` in which `1 / theta` counts up to `cap`: less noise from low ranks, and a bias towards 0.

    Without a limit it is `click_ips`; `cap` 1 is the metric of the plain clicks.
    """

    is_biased_by_design: ClassVar[bool] = True
    cap: Annotated[Cap, Field(gt=0, description="the largest weight of a click")]
    kind: Literal["clipped_click_ips"] = field(default="clipped_click_ips", kw_only=True, repr=False)

    @property
    def limit(self) -> float:
        return self.cap


@dataclass(frozen=True, config=strict)
class ClickSNIPS(ClickEstimator):
    """The sum of `lambda / theta` over all clicks, over the sum of `1 / theta`: the mean gain of attractive items.

    It does not depend on how many items users find attractive; with `average_relevance_position` it is the mean rank.
    """

    ratio: ClassVar[bool] = True
    averages_weighted_reward: ClassVar[bool] = True
    preference: ClassVar[int] = 2
    kind: Literal["click_snips"] = field(default="click_snips", kw_only=True, repr=False)

    def denominator(self, clicks: Clicks) -> Array:
        return clicks.clicked_weight()

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """The linearised term may be on either side of 0."""
        terms = super().term_range(reward_range, max_weight)
        slope = np.ones_like(max_weight)
        return terms._replace(low_slope=-slope, high_slope=slope, width=2 * terms.width)


@dataclass(frozen=True, config=strict)
class ClickCAB(ClickEstimator):
    """`clipped_click_ips`, in which a model of attractiveness stands in for what the cap cuts off.

    For each item d that was shown, `(1 - min(cap theta, 1)) q(d) lambda` is added; `q` is the reward model's prediction
    of the item's attractiveness. `click_cab(0)` is the model alone, without a limit it is `click_ips`. It needs the
    features of the items and whole lists.

    Source: Su, Wang, Santacatterina & Joachims, ICML 2019, Table 3.
    """

    needs: ClassVar[Requirements] = frozenset({"target", "prediction"})
    is_biased_by_design: ClassVar[bool] = True
    cap: Annotated[Cap, Field(ge=0, description="the model replaces the part of a weight above it")]
    kind: Literal["click_cab"] = field(default="click_cab", kw_only=True, repr=False)

    @property
    def limit(self) -> float:
        return self.cap

    def numerator(self, evidence: Evidence, clicks: Clicks) -> Array:
        return clicks.clicked_gain(self.cap) + clicks.modelled_gain(self.cap)

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """That of `clipped_click_ips`, plus a model's part inside the range of the metric."""
        terms = super().term_range(reward_range, max_weight)
        return terms._replace(
            low_offset=np.full_like(max_weight, min(reward_range[0], 0.0)),
            high_offset=np.full_like(max_weight, max(reward_range[1], 0.0)),
            width=terms.width + reward_range[1] - reward_range[0],
        )
