"""Estimators for slates.

A slate as a whole has so many alternatives that its importance weight, a product over slots, is nearly always 0 and now
and then huge. Where the expected reward is a sum of contributions of the slots (which need not be known), weights
that are sums do. Where every slot has its own reward, that may depend on the slots before it, too.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar, Literal

from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array
from streameval.common.component import strict
from streameval.ope.estimators.base import Estimator, Range, TermRange, Terms
from streameval.ope.estimators.importance import SelfNormalised, WeightedReward
from streameval.ope.evidence.actions import Requirements
from streameval.ope.evidence.evidence import Evidence


@dataclass(frozen=True, config=strict)
class PseudoInverse(Estimator):
    """The pseudo-inverse estimator for slates: the average of `r G`.

    `G = q' Gamma^+ 1_s` with q the candidate's probabilities in the slots, `Gamma` the second moments of the logging
    policy's slates and `1_s` the slate shown. Where the slots were filled each on its own this is
    `sum over slots of pi(a|x) / pi0(a|x) - slots + 1`; for one slot, and for events that are not slates, the importance
    weight. For uniform rankings of l of m actions there is a closed form too, which for `l = m` is
    `(m - 1) (sum over slots of pi(a|x)) - m + 2`; in general, with the logged slates listed, a system of equations.

    Unbiased if the expected reward is a sum over slots, and the logging policy can show every slate of the candidate.
    If it is not such a sum (all slots must please together, or the second counts only if the first failed) the estimate
    is biased, and nothing reveals it. `G` may be negative, and so may the estimate; it is not clipped.

    Two slots, each filled by a coin; the candidate shows the same actions with probability .8 and .2:

    >>> evidence = Evidence.of(importance_weight=[[0.8 / 0.5 + 0.2 / 0.5 - 2 + 1]], reward=[1.0])
    >>> PseudoInverse().terms(evidence, None)[0].numerator
    array([[1.]])

    Source: Swaminathan et al., Off-policy evaluation for slate recommendation, NeurIPS 2017.
    """

    averages_weighted_reward: ClassVar[bool] = True
    needs: ClassVar[Requirements] = frozenset({"slots"})
    sums_over_slots: ClassVar[bool] = True
    kind: Literal["pseudo_inverse"] = field(default="pseudo_inverse", kw_only=True, repr=False)

    def terms(self, evidence: Evidence, state: Any) -> tuple[Terms, Any]:
        return Terms(evidence.weighted_reward), state

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """That of `r G`, where `G` lies between plus and minus `max_weight`."""
        width = 2 * max_weight * max(map(abs, reward_range))
        return super().term_range(reward_range, max_weight)._replace(width=width)


@dataclass(frozen=True, config=strict)
class WeightedPseudoInverse(SelfNormalised):
    """The self-normalised pseudo-inverse estimator: `mean(r G) / mean(G)`, with `G` as in `pseudo_inverse`.

    Mostly less variance for a bias of order 1/n, and it does not change when a constant is added to all rewards. But
    `mean(G)` may come near 0 while events are few, and the value is then anything: trust it once the mean weight is
    near 1.

    Source: Swaminathan et al., NeurIPS 2017.
    """

    needs: ClassVar[Requirements] = frozenset({"slots"})
    preference: ClassVar[int] = 4
    kind: Literal["weighted_pseudo_inverse"] = field(default="weighted_pseudo_inverse", kw_only=True, repr=False)

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """As of `snips`, where the weight may be negative as well."""
        terms = super().term_range(reward_range, max_weight)
        return terms._replace(width=2 * terms.width)


@dataclass(frozen=True, config=strict)
class IIPS(WeightedReward):
    """Independent IPS: the average of `sum over slots j of r_j pi(s_j|x) / pi0(s_j|x)`.

    `r_j` is the reward of slot j, and `pi0(s_j|x)` the marginal probability of its action there. Unbiased if the reward
    of a slot depends on the action of that slot alone, and the logging policy can show every action of the candidate
    there. The rewards of one slate sum to its reward. An event that is not a slate counts as one slot.

    Two slots with weights 2 and 1/2, of which the second was clicked:

    >>> from streameval.events import EventBatch
    >>> log = {"reward": [[0, 1]], "propensity": [[0.25, 0.5]], "policies": {"new": [[0.5, 0.25]]}}
    >>> evidence = Evidence.of_slots(EventBatch.from_arrays(**log), ["new"], "slot_rewards")
    >>> IIPS().terms(evidence, None)[0].numerator
    array([[0.5]])

    Source: Li et al., Offline evaluation of ranking policies with click models, KDD 2018.
    """

    needs: ClassVar[Requirements] = frozenset({"slot_rewards"})
    kind: Literal["iips"] = field(default="iips", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class RIPS(WeightedReward):
    """Reward-interaction IPS: the average of `sum over slots j of r_j prod over i <= j of pi(s_i|x) / pi0(s_i|x)`.

    `r_j` is the reward of slot j; the product of `pi0` is the logging policy's probability of the actions up to slot j.
    Unbiased if the reward of a slot depends on its action and those before it alone, as where a reader reads from top
    to bottom (cascade). It assumes less than `iips`, and its weights are larger. The product of `pi` is exact if the
    candidate fills its slots independently or always shows the same slate.

    >>> from streameval.events import EventBatch
    >>> log = {"reward": [[0, 1]], "propensity": [[0.25, 0.5]], "policies": {"new": [[0.5, 0.25]]}}
    >>> evidence = Evidence.of_slots(EventBatch.from_arrays(**log), ["new"], "cascade")
    >>> RIPS().terms(evidence, None)[0].numerator
    array([[1.]])

    Source: McInerney et al., Counterfactual evaluation of slate recommendations with sequential reward interactions,
    KDD 2020.
    """

    needs: ClassVar[Requirements] = frozenset({"cascade"})
    kind: Literal["rips"] = field(default="rips", kw_only=True, repr=False)
