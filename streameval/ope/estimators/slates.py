"""Estimate slates.

A slate as a whole has very many alternatives. Its importance weight, a product over slots, is nearly always 0 and now
and then huge. If the expected reward is a sum of contributions of the slots (which need not be known), weights that are
sums suffice. If every slot has its own reward, it may also depend on the slots before it.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array
from streameval.common.component import strict
from streameval.ope.estimators.base import Estimator, Range, TermRange, Terms
from streameval.ope.estimators.importance import MeansState, SelfNormalised, WeightedReward, controlled_range
from streameval.ope.evidence.actions import MODELLED_SLATES, Requirements
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.evidence.slate_weights import SLOTS_SHOWN


@dataclass(frozen=True, config=strict)
class PseudoInverse(Estimator):
    """Average `r G`: the pseudo-inverse estimator for slates.

    `G = q' Gamma^+ 1_s`, with the candidate's probabilities q in the slots, the second moments `Gamma` of the logging
    policy's slates, and the slate shown `1_s`. It has these forms:

    * If the slots were filled independently, it is `sum over slots of pi(a|x) / pi0(a|x) - slots + 1`. For one slot,
      and for events that are not slates, this is the importance weight.
    * For uniform rankings of l of m actions there is a closed form too. For `l = m` it is `(m - 1) (sum over slots of
      pi(a|x)) - m + 2`.
    * In general, with the logged slates listed, it solves a system of equations.

    The estimate is unbiased if the expected reward is a sum over slots, and the logging policy can show every slate of
    the candidate. Otherwise it is biased, and nothing reveals it, e.g. if all slots must please together or the second
    slot counts only after the first failed. `G` and the estimate may be negative. They are not clipped.

    In the example a coin fills each of two slots, and the candidate shows these actions with probability .8 and .2:

    >>> evidence = Evidence.from_numbers(importance_weight=[[0.8 / 0.5 + 0.2 / 0.5 - 2 + 1]], reward=[1.0])
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
        """Return the range of `r G` for `G` between minus and plus `max_weight`."""
        width = 2 * max_weight * max(map(abs, reward_range))
        return super().term_range(reward_range, max_weight)._replace(width=width)


@dataclass(frozen=True, config=strict)
class WeightedPseudoInverse(SelfNormalised):
    """Divide `mean(r G)` by `mean(G)`, with `G` as in `pseudo_inverse`: the self-normalised pseudo-inverse estimator.

    It mostly has less variance for a bias of order 1/n, and it does not change when a constant is added to all rewards.
    But `mean(G)` may come near 0 while events are few, and the value is then arbitrary. Trust it once the mean weight
    is near 1.

    Source: Swaminathan et al., NeurIPS 2017.
    """

    needs: ClassVar[Requirements] = frozenset({"slots"})
    preference: ClassVar[int] = 4
    kind: Literal["weighted_pseudo_inverse"] = field(default="weighted_pseudo_inverse", kw_only=True, repr=False)

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """Return the range of `snips` for weights that may be negative as well."""
        terms = super().term_range(reward_range, max_weight)
        return terms._replace(width=2 * terms.width)


@dataclass(frozen=True, config=strict)
class DRPI(Estimator):
    """Average `sum over slots j and actions a of q_j(a) f_j(a) + G (r - sum over j of f_j(s_j))`: doubly robust `r G`.

    `G` is the weight of `pseudo_inverse`, q the candidate's probabilities in the slots, and `f_j(a)` what the reward
    model says, before it saw the event, about the part of the action in the reward of the slate. The estimate is
    unbiased if that of `pseudo_inverse` is, whatever the model says, and has less noise if the model explains rewards.
    Events need the candidate's full distribution in each slot. An event that is not a slate has the term of `dr`.

    The model learns from each of the first 20 slots as from an event with the reward of the slate. Its horizons count
    slots, and 20 for each event. Where it expects a reward outside the range, terms may leave their range too.

    In the example a coin fills each of two slots. The candidate shows these actions with probability .8 and .2. The
    model says that the actions shown have the parts .4 and .1, and the others 0:

    >>> from streameval.events import EventBatch
    >>> coin, new = [[[0.5, 0.5], [0.5, 0.5]]], {"new": [[[0.8, 0.2], [0.2, 0.8]]]}
    >>> batch = EventBatch.from_arrays(reward=[1], action=[[0, 0]], propensities=coin, policies=new)
    >>> whole = Evidence.from_batch(batch, ["new"], 1)
    >>> evidence, _ = whole.with_forms(batch, ["new"], ["slots"], parts=np.array([0.4, 0.0, 0.1, 0.0]))
    >>> DRPI().terms(evidence.forms["slots"], None)[0].numerator.round(9)  # .34 + 1 (1 - .5)
    array([[0.84]])

    Source: Dudik, Langford & Li, ICML 2011, with the weights of Swaminathan et al., NeurIPS 2017.
    """

    needs: ClassVar[Requirements] = MODELLED_SLATES
    kind: Literal["dr_pi"] = field(default="dr_pi", kw_only=True, repr=False)

    def terms(self, evidence: Evidence, state: Any) -> tuple[Terms, Any]:
        if evidence.correction is None:  # no model predicts
            return Terms(evidence.weighted_reward), state
        return Terms(evidence.weighted_reward + np.nan_to_num(evidence.correction)), state

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """Return the range of the expected reward, plus a correction of up to the reward range times `G`."""
        low, high = reward_range
        least, most = min(low, 0.0), max(high, 0.0)
        width = (most - least) + 2 * max_weight * (high - low)
        return TermRange.between((least, most), (low - high, high - low), max_weight, width, controlled=False)


@dataclass(frozen=True, config=strict)
class IIPS(WeightedReward):
    """Average `sum over slots j of r_j pi(s_j|x) / pi0(s_j|x)`: independent IPS.

    `r_j` is the reward of slot j, and `pi0(s_j|x)` the marginal probability of its action there. The estimate is
    unbiased if the reward of a slot depends on the action of that slot alone, and the logging policy can show every
    action of the candidate there. The rewards of one slate sum to its reward. An event that is not a slate counts as
    one slot.

    In the example two slots have the weights 2 and 1/2, and the second was clicked:

    >>> from streameval.events import EventBatch
    >>> log = {"reward": [[0, 1]], "propensity": [[0.25, 0.5]], "policies": {"new": [[0.5, 0.25]]}}
    >>> evidence = Evidence.from_slots(EventBatch.from_arrays(**log), ["new"], "slot_rewards")
    >>> IIPS().terms(evidence, None)[0].numerator
    array([[0.5]])

    Source: Li et al., Offline evaluation of ranking policies with click models, KDD 2018.
    """

    needs: ClassVar[Requirements] = frozenset({"slot_rewards"})
    kind: Literal["iips"] = field(default="iips", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class RIPS(WeightedReward):
    """Average `sum over slots j of r_j prod over i <= j of pi(s_i|x) / pi0(s_i|x)`: reward-interaction IPS.

    `r_j` is the reward of slot j, and the product of `pi0` is the logging policy's probability of the actions up to
    slot j. The estimate is unbiased if the reward of a slot depends only on its action and the actions before it, as
    for a reader from top to bottom (cascade). It assumes less than `iips`, and its weights are larger. The product of
    `pi` is exact if the candidate fills its slots independently or always shows one slate.

    >>> from streameval.events import EventBatch
    >>> log = {"reward": [[0, 1]], "propensity": [[0.25, 0.5]], "policies": {"new": [[0.5, 0.25]]}}
    >>> evidence = Evidence.from_slots(EventBatch.from_arrays(**log), ["new"], "cascade")
    >>> RIPS().terms(evidence, None)[0].numerator
    array([[1.]])

    Source: McInerney et al., Counterfactual evaluation of slate recommendations with sequential reward interactions,
    KDD 2020.
    """

    needs: ClassVar[Requirements] = frozenset({"cascade"})
    kind: Literal["rips"] = field(default="rips", kw_only=True, repr=False)


class SlotNormalised(Estimator):
    """Subtract from each slot's weighted reward what its weight alone explains."""

    def start(self, policies: int) -> MeansState:
        """Start with sums of `w_j` and of `w_j r_j` by slot [P, slots, 2]."""
        return MeansState(np.zeros((policies, SLOTS_SHOWN, 2)))

    def terms(self, evidence: Evidence, state: MeansState) -> tuple[Terms, MeansState]:
        (events, policies), blocks = evidence.importance_weight.shape, evidence.blocks
        event, position = np.arange(events), np.zeros(events, dtype=np.int64)
        weights, reward = evidence.importance_weight, evidence.reward
        if evidence.slots is not None:
            event, position, weights, reward = evidence.slots.with_singles(weights, reward)
        counted = evidence.sample_weight[event] > 0
        weights, reward = np.where(counted, weights, 0.0), np.nan_to_num(reward)
        cell = event * blocks // events * SLOTS_SHOWN + position
        sums = np.zeros((blocks, *state.means.shape))
        for policy, averaging in enumerate(evidence.sample_weight[event].T * weights.T):
            for column, values in enumerate((averaging, averaging * reward)):
                by_cell = np.bincount(cell, values, blocks * SLOTS_SHOWN)
                sums[:, policy, :, column] = by_cell.reshape(blocks, -1)
        path = evidence.recent_path(sums, state.means)
        before = np.concatenate([state.means[None], path[:-1]])
        expected = np.divide(before[..., 1], before[..., 0], out=np.zeros(before.shape[:-1]), where=before[..., 0] > 0)
        by_slot = expected.swapaxes(1, 2).reshape(-1, policies)[cell]
        parts = np.where(counted, by_slot + weights * (reward[:, None] - by_slot), 0.0)
        terms = np.stack([np.bincount(event, column, events).astype(float) for column in parts.T])
        return Terms(terms.T, lesson={"means": sums}), MeansState(path[-1])

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """Return the range of the sum of `R_j + w_j (r_j - R_j)`, if rewards of one sign add up inside their range."""
        return controlled_range(reward_range, max_weight)._replace(controlled=np.zeros(max_weight.shape, dtype=bool))


@dataclass(frozen=True, config=strict)
class WeightedIIPS(SlotNormalised):
    """Average `sum over slots j of R_j + w_j (r_j - R_j)`: independent IPS, self-normalised in each slot.

    `w_j` and `r_j` are the weight and the reward of slot j as in `iips`, and `R_j = sum of w_j r_j / sum of w_j` is the
    slot's self-normalised value. To first order the mean is `sum over slots of mean(w_j r_j) / mean(w_j)`, and equal to
    it if `R_j` is from the same events. Here `R_j` is from the blocks before (horizon 100,000 events), and 0 at first,
    so that the estimate has no bias of order 1/n and every average can be used. It has mostly less variance than
    `iips`, above all if slots earn rewards with high probability. Slots after the 20th share one `R_j`.

    In the second block of the example, slots had the values 0 and 1 before:

    >>> from streameval.events import EventBatch
    >>> log = {"reward": [[0, 1]], "propensity": [[0.25, 0.5]], "policies": {"new": [[0.5, 0.25]]}}
    >>> evidence = Evidence.from_slots(EventBatch.from_arrays(**log), ["new"], "slot_rewards")
    >>> estimator = WeightedIIPS()
    >>> first, state = estimator.terms(evidence, estimator.start(policies=1))
    >>> first.numerator, estimator.terms(evidence, state)[0].numerator
    (array([[0.5]]), array([[1.]]))

    Source: Li et al., KDD 2018, for the weights; Swaminathan & Joachims, NIPS 2015, for self-normalisation.
    """

    needs: ClassVar[Requirements] = frozenset({"slot_rewards"})
    kind: Literal["weighted_iips"] = field(default="weighted_iips", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class WeightedRIPS(SlotNormalised):
    """Average `sum over slots j of R_j + w_j (r_j - R_j)` with the weights of `rips`, self-normalised in each slot.

    `w_j` is the product of the ratios up to slot j. All else is as in `weighted_iips`.

    Source: McInerney et al., KDD 2020.
    """

    needs: ClassVar[Requirements] = frozenset({"cascade"})
    kind: Literal["weighted_rips"] = field(default="weighted_rips", kw_only=True, repr=False)
