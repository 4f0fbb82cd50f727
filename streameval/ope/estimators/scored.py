"""Estimate from outcomes that were revealed with a known probability, with a value under each policy."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array
from streameval.common.component import strict
from streameval.ope.estimators.base import Range, TermRange
from streameval.ope.estimators.importance import SelfNormalised, WeightedReward
from streameval.ope.evidence.actions import Requirements


@dataclass(frozen=True, config=strict)
class ScoredIPS(WeightedReward):
    """Average `delta / p` over all decisions, for a metric that only a revealed outcome shows.

    `delta` is the value of the revealed outcome under a policy, such as minus the squared error of its prediction. `p`
    is the probability that the outcome was revealed. The term of an outcome that was not revealed is 0. The estimate is
    unbiased if the log also has events for hidden outcomes (`revealed: false`), and every outcome may be revealed.
    Without them it estimates the mean divided by the share of revealed outcomes. The mean weight is then above 1, and
    `scored_snips` applies. Production is a named policy with its own values.

    Source: Schnabel et al., Recommendations as treatments, ICML 2016; Swaminathan's thesis, equation 3.10.
    """

    needs: ClassVar[Requirements] = frozenset({"scored"})
    kind: Literal["scored_ips"] = field(default="scored_ips", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class ScoredSNIPS(SelfNormalised):
    """Divide the average of `delta / p` by the average of `1 / p`, with `delta` and `p` as in `scored_ips`.

    It needs only the revealed outcomes, and stays inside the range of their values, for a bias of order 1/n. With
    estimated propensities it needs hidden outcomes, too.

    >>> from streameval.ope.evidence import Evidence
    >>> terms, _ = ScoredSNIPS().terms(Evidence.from_numbers(importance_weight=[[8.0], [2.0]], reward=[0.5, 1.0]), None)
    >>> float(terms.numerator.sum() / terms.denominator.sum())
    0.6

    Source: Schnabel et al., Recommendations as treatments, ICML 2016; Swaminathan's thesis, equation 3.12.
    """

    needs: ClassVar[Requirements] = frozenset({"scored"})
    preference: ClassVar[int] = 5
    takes_estimated: ClassVar[bool] = True
    kind: Literal["scored_snips"] = field(default="scored_snips", kw_only=True, repr=False)

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """Return the range of the linearised term `(delta - value) / p`. The mean weight need not be 1."""
        span = reward_range[1] - reward_range[0]
        return TermRange.between((0.0, 0.0), (-span, span), max_weight, max_weight * span, controlled=False)
