"""Estimators for slates: one reward for several actions, to which every slot adds its share.

A slate as a whole has so many alternatives that its importance weight, a product over slots, is nearly always 0 and now
and then huge. Where the expected reward is a sum of contributions of the slots (which need not be known), weights
that are sums do.
"""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, State
from streameval.common.component import strict
from streameval.ope.estimators.base import Estimator, TermRange, Terms
from streameval.ope.evidence.actions import Requirement, Requirements
from streameval.ope.evidence.evidence import Evidence


@dataclass(frozen=True, config=strict)
class PseudoInverse(Estimator):
    """The pseudo-inverse estimator for slates: the average of `r G`.

    `G = q' Gamma^+ 1_s` with q the candidate's probabilities in the slots, `Gamma` the second moments of the logging
    policy's slates and `1_s` the slate shown. Where the slots were filled each on its own this is
    `sum over slots of pi(a|x) / pi0(a|x) - slots + 1`; for one slot, and for events that are no slates, the importance
    weight. For uniform rankings of l of m actions there is a closed form too, which for `l = m` is
    `(m - 1) (sum over slots of pi(a|x)) - m + 2`; in general, with the logged slates listed, a system of equations.

    Unbiased if the expected reward is a sum over slots, and the logging policy can show what the candidate shows. If it
    is not such a sum (all slots must please together, or the second counts only if the first failed) the estimate is
    biased without a sign of it. `G` may be negative, and so may the estimate; it is not clipped.

    Two slots, each filled by a coin; the candidate shows what was shown with probability .8 and .2:

    >>> evidence = Evidence.of(importance_weight=[[0.8 / 0.5 + 0.2 / 0.5 - 2 + 1]], reward=[1.0])
    >>> PseudoInverse().terms(evidence, {})[0].numerator
    array([[1.]])

    Source: Swaminathan et al., Off-policy evaluation for slate recommendation, NeurIPS 2017.
    """

    needs: ClassVar[Requirements] = frozenset({Requirement.SLOTS})
    kind: Literal["pseudo_inverse"] = field(default="pseudo_inverse", kw_only=True, repr=False)

    def terms(self, evidence: Evidence, state: State) -> tuple[Terms, State]:
        return Terms(evidence.weighted_reward), state

    def term_range(self, reward_range: tuple[float, float], max_weight: Array) -> TermRange:
        """That of `r G`, where `G` lies between plus and minus `max_weight`."""
        width = 2 * max_weight * max(map(abs, reward_range))
        return super().term_range(reward_range, max_weight)._replace(width=width)


@dataclass(frozen=True, config=strict)
class WeightedPseudoInverse(Estimator):
    """The self-normalised pseudo-inverse estimator: `mean(r G) / mean(G)`, with `G` as in `pseudo_inverse`.

    Mostly less variance for a bias of order 1/n, and it does not change when a constant is added to all rewards. But
    `mean(G)` may come near 0 while events are few, and the value is then anything: trust it once the mean weight is
    near 1.

    >>> terms, _ = WeightedPseudoInverse().terms(Evidence.of(importance_weight=[[2.2], [-0.2]], reward=[1.0, 1.0]), {})
    >>> float(terms.numerator.sum() / terms.denominator.sum())
    1.0

    Source: Swaminathan et al., NeurIPS 2017.
    """

    needs: ClassVar[Requirements] = frozenset({Requirement.SLOTS})
    ratio: ClassVar[bool] = True
    preference: ClassVar[int] = 4
    kind: Literal["weighted_pseudo_inverse"] = field(default="weighted_pseudo_inverse", kw_only=True, repr=False)

    def terms(self, evidence: Evidence, state: State) -> tuple[Terms, State]:
        return Terms(evidence.weighted_reward, evidence.importance_weight), state

    def term_range(self, reward_range: tuple[float, float], max_weight: Array) -> TermRange:
        """As of `pseudo_inverse`; the linearised term is `G (r - value)` with a value inside the reward range."""
        width = 2 * max_weight * (reward_range[1] - reward_range[0])
        return super().term_range(reward_range, max_weight)._replace(width=width)
