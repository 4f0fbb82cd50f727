"""Estimators outside the interpolated family: self-normalised, with a control variate, stratified, and for slates.

A slate as a whole has so many alternatives that its importance weight, a product over slots, is nearly always 0 and now
and then huge. Where the expected reward is a sum of contributions of the slots (which need not be known), weights
that are sums do. Where every slot has its own reward, that may depend on the slots before it, too.

Few events with large weights carry the noise, many with small ones the drift. A stratified estimator splits its term by
the weight at a threshold, so that an average that can (`mixture`) remembers each part as long as suits it. Other
averages add the parts up again.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, State
from streameval.common.component import strict
from streameval.ope.estimators.base import Estimator, Range, TermRange, Terms
from streameval.ope.evidence.actions import Requirements
from streameval.ope.evidence.evidence import Evidence

Threshold = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, config=strict)
class SelfNormalised(Estimator):
    """A mean of weighted rewards divided by the mean weight."""

    ratio: ClassVar[bool] = True

    def terms(self, evidence: Evidence, state: State) -> tuple[Terms, State]:
        return Terms(evidence.weighted_reward, evidence.importance_weight), state

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """As of `ips`; the linearised term is `w (r - value)`, and the value lies inside the reward range."""
        width = max_weight * (reward_range[1] - reward_range[0])
        return super().term_range(reward_range, max_weight)._replace(width=width)


@dataclass(frozen=True, config=strict)
class SNIPS(SelfNormalised):
    """Self-normalised IPS: `mean(w r) / mean(w)`.

    Stays inside the range of the rewards seen, does not change when a constant is added to all rewards, and has far
    less variance than `ips`, for a bias of order 1/n. Its interval is the delta method's, in which the denominator
    moves too.

    >>> terms, _ = SNIPS().terms(Evidence.of(importance_weight=[[2.0], [0.5]], reward=[1.0, 1.0]), {})
    >>> float(terms.numerator.sum() / terms.denominator.sum())
    1.0

    Source: Swaminathan & Joachims, NIPS 2015.
    """

    preference: ClassVar[int] = 5
    kind: Literal["snips"] = field(default="snips", kw_only=True, repr=False)


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
    >>> PseudoInverse().terms(evidence, {})[0].numerator
    array([[1.]])

    Source: Swaminathan et al., Off-policy evaluation for slate recommendation, NeurIPS 2017.
    """

    needs: ClassVar[Requirements] = frozenset({"slots"})
    kind: Literal["pseudo_inverse"] = field(default="pseudo_inverse", kw_only=True, repr=False)

    def terms(self, evidence: Evidence, state: State) -> tuple[Terms, State]:
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
class _Weighted(Estimator):
    """The average of weighted rewards whose mean weight need not be 1."""

    def terms(self, evidence: Evidence, state: State) -> tuple[Terms, State]:
        return Terms(evidence.weighted_reward), state

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """The rewards of one sign lie inside the reward range together, and no weight of a part is larger than this.

        The mean weight is not used: the slot with the reward may have another one.
        """
        least, most = min(reward_range[0], 0.0), max(reward_range[1], 0.0)
        width = max_weight * (most - least)
        return TermRange.between((0.0, 0.0), (least, most), max_weight, width, controlled=False)


@dataclass(frozen=True, config=strict)
class IIPS(_Weighted):
    """Independent IPS: the average of `sum over slots j of r_j pi(s_j|x) / pi0(s_j|x)`.

    `r_j` is the reward of slot j, and `pi0(s_j|x)` the marginal probability of its action there. Unbiased if the reward
    of a slot depends on the action of that slot alone, and the logging policy can show every action of the candidate
    there. The rewards of one slate sum to its reward. An event that is not a slate counts as one slot.

    Two slots with weights 2 and 1/2, of which the second was clicked:

    >>> from streameval.events import EventBatch
    >>> log = {"reward": [[0, 1]], "propensity": [[0.25, 0.5]], "policies": {"new": [[0.5, 0.25]]}}
    >>> evidence = Evidence.of_slots(EventBatch.from_arrays(**log), ["new"], "slot_rewards")
    >>> IIPS().terms(evidence, {})[0].numerator
    array([[0.5]])

    Source: Li et al., Offline evaluation of ranking policies with click models, KDD 2018.
    """

    needs: ClassVar[Requirements] = frozenset({"slot_rewards"})
    kind: Literal["iips"] = field(default="iips", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class RIPS(_Weighted):
    """Reward-interaction IPS: the average of `sum over slots j of r_j prod over i <= j of pi(s_i|x) / pi0(s_i|x)`.

    `r_j` is the reward of slot j; the product of `pi0` is the logging policy's probability of the actions up to slot j.
    Unbiased if the reward of a slot depends on its action and those before it alone, as where a reader reads from top
    to bottom (cascade). It assumes less than `iips`, and its weights are larger. The product of `pi` is exact if the
    candidate fills its slots independently or always shows the same slate.

    >>> from streameval.events import EventBatch
    >>> log = {"reward": [[0, 1]], "propensity": [[0.25, 0.5]], "policies": {"new": [[0.5, 0.25]]}}
    >>> evidence = Evidence.of_slots(EventBatch.from_arrays(**log), ["new"], "cascade")
    >>> RIPS().terms(evidence, {})[0].numerator
    array([[1.]])

    Source: McInerney et al., Counterfactual evaluation of slate recommendations with sequential reward interactions,
    KDD 2020.
    """

    needs: ClassVar[Requirements] = frozenset({"cascade"})
    kind: Literal["rips"] = field(default="rips", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class ScoredIPS(_Weighted):
    """The average of `delta / p` over all decisions, for a metric that only a revealed outcome shows.

    `delta` is the value of the revealed outcome under a policy, such as minus the squared error of its prediction, and
    `p` the probability that the outcome was revealed; the term of an outcome that was not revealed is 0. Unbiased if
    the log has an event for each of these, too (`revealed: false`), and every outcome may be revealed. Without them it
    estimates the mean divided by the share of revealed outcomes: the mean weight is then above 1, and `scored_snips`
    applies. Production is a named policy with its own values.

    Source: Schnabel et al., Recommendations as treatments, ICML 2016; Swaminathan's thesis, equation 3.10.
    """

    needs: ClassVar[Requirements] = frozenset({"scored"})
    kind: Literal["scored_ips"] = field(default="scored_ips", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class ScoredSNIPS(SelfNormalised):
    """The average of `delta / p` divided by that of `1 / p`, with `delta` and `p` as in `scored_ips`.

    It needs only the revealed outcomes, and stays inside the range of their values, for a bias of order 1/n.

    >>> terms, _ = ScoredSNIPS().terms(Evidence.of(importance_weight=[[8.0], [2.0]], reward=[0.5, 1.0]), {})
    >>> float(terms.numerator.sum() / terms.denominator.sum())
    0.6

    Source: Schnabel et al., Recommendations as treatments, ICML 2016; Swaminathan's thesis, equation 3.12.
    """

    needs: ClassVar[Requirements] = frozenset({"scored"})
    preference: ClassVar[int] = 5
    kind: Literal["scored_snips"] = field(default="scored_snips", kw_only=True, repr=False)

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """That of the linearised term `(delta - value) / p`; the mean weight need not be 1."""
        span = reward_range[1] - reward_range[0]
        return TermRange.between((0.0, 0.0), (-span, span), max_weight, max_weight * span, controlled=False)


@dataclass(frozen=True, config=strict)
class ControlVariate(Estimator):
    """IPS with the weight as control variate: the average of `w r - beta (w - 1)`.

    `beta = cov(w r, w) / var(w)` from an exponentially decayed past (horizon 100,000 events) that ends one block before
    the event, so that no reward touches its own coefficient and the estimate stays unbiased. `beta` is 0 at first and
    where the weight does not vary. Needs full support: without it the mean weight is not 1 and the term is biased.

    >>> evidence = Evidence.of(importance_weight=[[2.0], [0.5]], reward=[1.0, 0.0], block=2)
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

    def start(self, policies: int) -> State:
        return {"slope": np.zeros((policies, 5))}

    def terms(self, evidence: Evidence, state: State) -> tuple[Terms, State]:
        beta, after = lagged_slope(evidence, evidence.weighted_reward, state["slope"])
        return Terms(evidence.weighted_reward - beta * (evidence.importance_weight - 1.0)), {"slope": after}

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        return controlled_range(reward_range, max_weight)


def lagged_slope(evidence: Evidence, term: Array, sums: Array) -> tuple[Array, Array]:
    """`beta = cov(term, w) / var(w)` as known one block before each event, [n, P], 0 where `w` does not vary.

    `sums` [P, 5]: recent sums of `1, w, term, w w, term w` before these events; those after them are returned too.
    """
    weight = evidence.importance_weight
    path = evidence.recent_sums((None, weight, term, weight * weight, term * weight), sums)
    count, total, reward, square, product = np.moveaxis(np.concatenate([sums[None], path[:-1]]), -1, 0)
    variance = square * count - total * total
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(variance > 1e-12 * square * count, (product * count - reward * total) / variance, 0.0)
    return np.repeat(slope.T, len(weight) // evidence.blocks, axis=1).T, path[-1]


def controlled_range(reward_range: Range, max_weight: Array) -> TermRange:
    """The range of `beta + w (r - beta)` for any `beta` inside the reward range, and for the 0 at the start.

    Its slope may go either way, so that an infinite weight could be anything: the heaviest is the largest seen. A beta
    outside the reward range is possible.
    """
    low, high = reward_range
    least, most = min(low, 0.0), max(high, 0.0)
    return TermRange.between((least, most), (low - most, high - least), max_weight, 2 * max_weight * (most - least))


@dataclass(frozen=True, config=strict)
class StratifiedIPS(Estimator):
    """IPS in two parts: `w r 1[w <= c]`, and `w r 1[w > c] - beta (w - 1)` with the weight as control variate.

    `threshold` c > 0 separates the strata. Both parts together are unbiased where support is full. `beta` as in
    `control_variate`, for the second part alone.

    >>> evidence = Evidence.of(importance_weight=[[125.0], [1.25]], reward=[1.0, 1.0], block=2)
    >>> estimator = StratifiedIPS()
    >>> low, high = estimator.terms(evidence, estimator.start(policies=1))[0].components
    >>> low.numerator.ravel(), high.numerator.ravel()
    (array([0.  , 1.25]), array([125.,   0.]))
    """

    threshold: Threshold = 5.0
    parts: ClassVar[int] = 2
    preference: ClassVar[int] = 1
    kind: Literal["stratified_ips"] = field(default="stratified_ips", kw_only=True, repr=False)

    def start(self, policies: int) -> State:
        return {"control": np.zeros((policies, 5)), "means": np.zeros((policies, 2))}

    def terms(self, evidence: Evidence, state: State) -> tuple[Terms, State]:
        weight, reward = evidence.importance_weight, evidence.weighted_reward
        small = weight <= self.threshold
        rare = np.where(small, 0.0, reward)
        beta, controlled = lagged_slope(evidence, rare, state["control"])
        means, remembered = _recent_means(evidence, [np.where(small, weight, 0.0)], state["means"])
        share = np.clip(means[0], 0.0, 1.0)
        mean_reward = evidence.recent.reward[:, None]
        low = Terms(np.where(small, reward, 0.0), prior=share * mean_reward)
        high = Terms(rare - beta * (weight - 1.0), prior=(1 - share) * mean_reward)
        after = {"control": controlled, "means": remembered}
        return Terms(low.numerator + high.numerator, components=(low, high)), after

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        return controlled_range(reward_range, max_weight)


@dataclass(frozen=True, config=strict)
class StratifiedDR(Estimator):
    """Doubly robust only where weights are large: a reward model stands in for rare actions, and is corrected.

    With `q(x, a)` the reward model's prediction before it saw the event, `W(a) = pi(a|x) / pi0(a|x)` and threshold c:
    `w r 1[w <= c]`, the model's part `sum over a with W(a) > c of pi(a|x) q(x, a)`, and the correction
    `1[w > c] w (r - q(x, a))`. Unbiased where support is full, whatever the model says; the better the model, the less
    noise. Needs full distributions and features of all actions.

    Source: for the switch between the two, Wang, Agarwal & Dudik, ICML 2017.
    """

    threshold: Threshold = 5.0
    needs: ClassVar[Requirements] = frozenset({"target", "logging", "prediction"})
    parts: ClassVar[int] = 3
    preference: ClassVar[int] = 0
    kind: Literal["stratified_dr"] = field(default="stratified_dr", kw_only=True, repr=False)

    def start(self, policies: int) -> State:
        return {"means": np.zeros((policies, 3))}

    def terms(self, evidence: Evidence, state: State) -> tuple[Terms, State]:
        weight, actions = evidence.importance_weight, evidence.actions
        small = weight <= self.threshold
        low = np.where(small, evidence.weighted_reward, 0.0)
        if actions is None:
            modelled, expected = np.zeros_like(weight), np.zeros(len(weight))
        else:
            expected = actions.of_logged(actions.prediction)
            stands_in = (actions.importance_weight > self.threshold) * actions.probability
            modelled = actions.sum(stands_in * actions.prediction[:, None])
        correction = np.where(small, 0.0, weight * (evidence.reward - expected)[:, None])
        means, remembered = _recent_means(evidence, [np.where(small, weight, 0.0), modelled], state["means"])
        share = np.clip(means[0], 0.0, 1.0)
        mean_reward = evidence.recent.reward[:, None]
        components = (
            Terms(low, prior=share * mean_reward),
            Terms(modelled),
            Terms(correction, prior=(1 - share) * mean_reward - means[1]),
        )
        return Terms(low + modelled + correction, components=components), {"means": remembered}

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """A small weight times the reward, or the model's part, inside the reward range, and a correction by weight
        times reward range to either side."""
        low, high = reward_range
        slopes = (min(low, low - high), max(high, high - low))
        least, most = min(low, 0.0), max(high, 0.0)
        width = (2 * max_weight + 1) * (most - least)
        return TermRange.between((least, most), slopes, max_weight, width, controlled=False)


def _recent_means(evidence: Evidence, columns: list[Array], state: Array) -> tuple[Array, Array]:
    """Means over the last 100,000 events after each block, [columns, blocks, P], and the sums after them."""
    path = evidence.recent_sums((None, *columns), state)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = path[..., 1:] / path[..., :1]
    return np.moveaxis(means, -1, 0), path[-1]
