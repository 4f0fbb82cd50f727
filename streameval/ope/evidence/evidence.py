"""Evidence: the importance weights of policies on events. The only place that divides by a propensity."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from streameval.common.arrays import Array, Mask, decayed_path, per_block, ratio
from streameval.events import EventBatch
from streameval.ope.evidence.actions import FORMS, Actions, Form, Requirements
from streameval.ope.evidence.clicks import Clicks, Ranking
from streameval.ope.evidence.slate_weights import (
    SlotLifts,
    SlotLiftState,
    lift_sums,
    mean_lifts,
    mean_ratios,
    ratio_sums,
    slot_gains,
    slot_terms,
    start_lifts,
    start_ratios,
    whole_weights,
)
from streameval.ope.policies.logged import LOGGING, target_probabilities, unsupported_probability

LARGEST_WEIGHT = 1e50
"""Above this the square of a term, summed over a stream, may leave the floating-point range: the event is missing."""
RECENT_MEMORY = 100_000
"""The horizon of recent sums and means, in events."""


class RecentSums(NamedTuple):
    """The sums of each block behind recent means.

    `logged` [blocks, 3]: over all logged events, of 1, of the reward and of its square. `weighed` [blocks, P, 4]: over
    the events that have the policy, of 1 and of its squared importance weight, and over those that have production too,
    of 1 and of the squared distance to its weight.
    """

    logged: Array
    weighed: Array


class RecentMoments(NamedTuple):
    """Decayed means of recent events after each block; NaN before the first event.

    `reward` and `reward_square` [blocks]: of all logged events. On the events that have the policy, [blocks, P]:
    `weight_square` of its importance weights, `distance_square` of their difference to those of production.
    """

    reward: Array
    reward_square: Array
    weight_square: Array
    distance_square: Array

    @classmethod
    def unknown(cls, blocks: int, policies: int) -> RecentMoments:
        """No events yet."""
        logged, weighed = np.full(blocks, np.nan), np.full((blocks, policies), np.nan)
        return cls(logged, logged, weighed, weighed)

    def of_blocks(self, kept: Mask) -> RecentMoments:
        """The means after some of these blocks; `kept` [blocks]."""
        return self if kept.all() else RecentMoments(*(means[kept] for means in self))

    @classmethod
    def folded(cls, state: RecentState, sums: RecentSums, fading: Array | float) -> tuple[RecentMoments, RecentState]:
        """The means after some blocks, and the state after them.

        The distance to production comes from the events that have it, scaled to all events; in a block without such
        events, it is the weight alone.
        """
        count, square, both, distance = np.moveaxis(sums.weighed, -1, 0)
        distance = np.where(both > 0, np.nan_to_num(ratio(distance, both)) * count, square)
        logged = decayed_path(np.array(state.logged), sums.logged, fading)
        weighed = decayed_path(state.weighed, np.stack([count, square, distance], axis=-1), fading)
        with np.errstate(divide="ignore", invalid="ignore"):
            means = logged[:, 1:] / logged[:, :1], weighed[..., 1:] / weighed[..., :1]
        recent = cls(*means[0].T, *np.moveaxis(means[1], -1, 0))
        return recent, RecentState(logged[-1].tolist(), weighed[-1])


class RecentState(Struct, frozen=True, eq=False):
    """Hold the sums behind recent means: of all logged events, and of those that have a policy [P, 3]."""

    logged: list[float]
    weighed: Array


def start_recent(policies: int) -> RecentState:
    """Start before the first event."""
    return RecentState([0.0, 0.0, 0.0], np.zeros((policies, 3)))


class SlateState(Struct, frozen=True, eq=False):
    """Hold what is behind the weights of slates slot by slot.

    Attributes:
        recent: the sums behind recent means, in each form
        ratios: see `start_ratios`
        lifts: of each slot
    """

    recent: dict[Form, RecentState]
    ratios: Array
    lifts: SlotLiftState


class SlateSums(NamedTuple):
    """The sums of blocks with slates slot by slot: recent ones in each form, `ratio_sums`, and of the form `slots` also
    `lift_sums`.
    """

    recent: dict[Form, RecentSums]
    ratios: Array
    lifts: SlotLifts | None

    def fold(self, state: SlateState, block: int) -> tuple[dict[Form, RecentMoments], SlateState]:
        """Return the recent means in each form after each block, and the state after them."""
        found, recent = {}, dict(state.recent)
        for form, sums in self.recent.items():
            found[form], recent[form] = RecentMoments.folded(state.recent[form], sums, fading_of(block))
        ratios = decayed_path(state.ratios, self.ratios, fading_of(block))[-1]
        return found, SlateState(recent, ratios, state.lifts if self.lifts is None else self.lifts.fold(state.lifts))


def start_slates(policies: int) -> SlateState:
    """Start before the first event."""
    recent = {form: start_recent(policies) for form in FORMS}
    return SlateState(recent, start_ratios(policies), start_lifts(policies))


def slot_ratio_means(slates: SlateState, place: int) -> list[float]:
    """Return the mean ratio of a policy in each slot: see `mean_ratios`."""
    return mean_ratios(slates.ratios[place])


def slot_lifts(slates: SlateState, place: int) -> list[float]:
    """Return the lift of a policy in each slot: see `mean_lifts`."""
    return mean_lifts(slates.lifts, slates.ratios, place)


def fading_of(block: int) -> float:
    """The factor by which recent sums decay within a block."""
    return float((1 - 1 / RECENT_MEMORY) ** block)


@dataclass(frozen=True)
class Evidence:
    """Importance weights, rewards and more of `n` consecutive events for `P` policies.

    The events are whole blocks, or the unfinished one. Columns are contiguous over events.

    Attributes:
        importance_weight: [n, P] `pi(a|x) / p`, 0 where missing
        sample_weight: [n, P] the inverse sampling probability; 0 where the event lacks the policy
        reward: [n]
        unsupported: [n, P] the probability of the policy for actions that the logging policy never takes, 0 where it
            is unknown; None where it always is
        event_weight: [n] the inverse sampling probability
        block: events in a block
        recent: decayed means of the events before
        actions: all available actions, None where events have none
        forms: the same events with the weights of slates slot by slot, in each form that an estimator needs
        weighted: [n, P] the weighted reward; None where that is the importance weight times `reward`
        heaviest: [n, P] the weight that no part of the weighted reward exceeds; None: that is the importance weight
        timestamp: [n] event time in seconds
        signs: [n, 64] Rademacher signs of the units of the events, None while no event has had a unit
        clicks: of rankings, where the importance weight of a policy is the value of the page's clicks for it, whose
            mean is not 1, and `reward` is 1, or -1 if less is better
        known: the arrays of `of_weights`
    """

    importance_weight: Array
    sample_weight: Array
    reward: Array
    unsupported: Array | None
    event_weight: Array
    block: int
    recent: RecentMoments
    actions: Actions | None = None
    forms: Mapping[Form, Evidence] = field(default_factory=dict)
    weighted: Array | None = None
    heaviest: Array | None = None
    timestamp: Array | None = None
    signs: Array | None = None
    clicks: Clicks | None = None
    known: dict[tuple[str, int], tuple[Array, Array, Array]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, importance_weight: Any, reward: Any, block: int = 100, sample_weight: Any = None) -> Evidence:
        """Evidence from plain numbers, to try an estimator.

        >>> Evidence.of(importance_weight=[[2.0], [0.5]], reward=[1, 0]).sample_weight.ravel()
        array([1., 1.])
        """
        weight = np.asarray(importance_weight, dtype=float)
        present = np.ones_like(weight) if sample_weight is None else np.asarray(sample_weight, dtype=float)
        rewards = np.asarray(reward, dtype=float)
        recent = RecentMoments.unknown(max(1, len(rewards) // block), weight.shape[1])
        return cls(weight, present, rewards, None, np.ones(len(rewards)), block, recent)

    @classmethod
    def of_actions(
        cls, reward: Any, action: Any, propensities: Any, target: Any, prediction: Any, block: int = 100
    ) -> Evidence:
        """Evidence about one policy from full distributions [n, A], to try an estimator.

        `action` [n]: the logged one. `prediction` [n, A]: those of a reward model.
        """
        policies = {"target": target}
        batch = EventBatch.from_arrays(reward=reward, action=action, propensities=propensities, policies=policies)
        return cls.from_batch(batch, list(policies), block).with_predictions(np.ravel(prediction).astype(float))

    @classmethod
    def of_slots(cls, batch: EventBatch, policies: Sequence[str], form: Form) -> Evidence:
        """Evidence about slates slot by slot, to try an estimator."""
        return cls.from_batch(batch, policies, len(batch)).with_forms(batch, policies, [form])[0].forms[form]

    @classmethod
    def from_batch(cls, batch: EventBatch, policies: Sequence[str], block: int) -> Evidence:
        """Importance weights of `policies` on the events of `batch`.

        An event that lacks a policy, or whose weight overflows for it, is missing for that policy alone.
        """
        target = target_probabilities(batch, policies)
        with np.errstate(over="ignore", invalid="ignore"):
            weight = np.divide(target, batch.propensity[:, None], out=target)
            sampling = 1.0 / batch.sampling_probability
        averaging = np.repeat(sampling[None], len(policies), axis=0).T
        if not _all_usable(weight, batch.reward, sampling):
            usable = _usable(weight, batch.reward) & (sampling <= LARGEST_WEIGHT)[:, None]
            weight, averaging = np.where(usable, weight, 0.0), np.where(usable, averaging, 0.0)
        return cls(
            importance_weight=weight,
            sample_weight=averaging,
            reward=batch.reward,
            unsupported=unsupported_probability(batch, policies),
            event_weight=np.where(sampling <= LARGEST_WEIGHT, sampling, 0.0),
            block=block,
            recent=RecentMoments.unknown(max(1, len(batch) // block), len(policies)),
            actions=None if batch.action_sets is None else Actions.of(batch.action_sets, batch.policies, policies),
            timestamp=batch.timestamp,
        )

    @classmethod
    def without_rewards(cls, batch: EventBatch, policies: Sequence[str], block: int) -> Evidence:
        """The importance weights alone, of events that may lack a reward: see `of_reward`."""
        return cls.from_batch(replace(batch, reward=np.zeros(len(batch))), policies, block)

    @classmethod
    def of_rankings(
        cls,
        batch: EventBatch,
        policies: Sequence[str],
        ranking: Ranking,
        block: int = 100,
        curves: Array | None = None,
    ) -> Evidence:
        """The clicks of `batch` under `policies`. A page that lacks a policy is missing for that policy alone.

        `curves` [blocks, ranks]: the probabilities of looks that were learned before each block.
        """
        clicks, plain = ranking.clicks(batch, policies, curves), cls.from_batch(batch, policies, block)
        sign = -1.0 if ranking.metric.less_is_better else 1.0
        weight, reward = sign * clicks.clicked_gain(), np.full(len(batch), sign)
        usable = _usable(weight, reward) & clicks.present & (plain.sample_weight > 0)
        return replace(
            plain,
            importance_weight=np.where(usable, weight, 0.0),
            sample_weight=np.where(usable, plain.sample_weight, 0.0),
            reward=reward,
            unsupported=clicks.unsupported_gain if clicks.unsupported_gain.any() else None,
            clicks=clicks,
        )

    def of_reward(self, reward: Array) -> Evidence:
        """The same events with another reward, of which one that is NaN makes the event missing.

        Weights are shared, and so are those of slates slot by slot.
        """
        known = ~np.isnan(reward)
        given = np.where(known, reward, 0.0)
        if known.all() and _all_usable(self.importance_weight, given, self.event_weight):
            return replace(self, reward=given)
        usable = known[:, None] & _usable(self.importance_weight, given)
        return replace(
            self,
            reward=given,
            sample_weight=np.where(usable, self.sample_weight, 0.0),
            event_weight=np.where(known, self.event_weight, 0.0),
        )

    def with_recent_means(self, state: RecentState) -> tuple[Evidence, RecentState]:
        """The same evidence with the means of recent events, and the state after it."""
        recent, after = RecentMoments.folded(state, self.recent_steps(), fading_of(self.block))
        return self.with_recent(recent), after

    def with_recent(
        self, recent: RecentMoments | None, of_forms: Mapping[Form, RecentMoments] = MappingProxyType({})
    ) -> Evidence:
        """The same evidence with the means of recent events; None for those that it has."""
        found = copy(self)  # with all that is computed already
        forms = {form: seen.with_recent(of_forms.get(form)) for form, seen in self.forms.items()}
        vars(found).update(recent=self.recent if recent is None else recent, forms=forms)
        return found

    def recent_steps(self) -> RecentSums:
        """The sums of each block behind recent means."""
        earned = self.reward if self.clicks is None else self.weighted_reward[:, 0]
        logged = np.stack([np.ones_like(self.reward), earned, self.reward**2]) * self.event_weight
        by_block = logged.reshape(3, self.blocks, -1).sum(axis=-1).T
        return RecentSums(by_block, self.of_weights("recent", self._recent_weights))

    def _recent_weights(self) -> Array:
        weight = self.importance_weight
        if self.counts_once:
            own, apart = (per_block(each, self.blocks) for each in (weight, weight - weight[:, :1]))
            squares = (np.einsum("bpn,bpn->bp", each, each) for each in (own, apart))
            count = np.full(own.shape[:2], float(own.shape[-1]))
            return np.stack([count, next(squares), count, next(squares)], axis=-1)
        shared = (self.sample_weight[:, :1] > 0).astype(float)
        both = self.block_sums(np.broadcast_to(shared, weight.shape))
        distance = self.block_sums(shared * (weight - weight[:, :1]) ** 2)
        return np.stack([self.block_sums(None), self.block_sums(weight**2), both, distance], axis=-1)

    def with_forms(
        self, batch: EventBatch, policies: Sequence[str], forms: Collection[Form]
    ) -> tuple[Evidence, SlateSums]:
        """The same evidence with that of slates slot by slot in `forms`, and their sums."""
        gains = slot_gains(batch, policies) if "slots" in forms and batch.slates is not None else None
        found, lifts = {form: self._of_form(batch, policies, form, gains) for form in forms}, None
        if "slots" in found:
            lifts = lift_sums(
                batch.slates,
                gains,
                found["slots"].weighted_reward,
                found["slots"].sample_weight,
                self.reward,
                self.blocks,
            )
        recent = {form: seen.recent_steps() for form, seen in found.items()}
        ratios = ratio_sums(batch, policies, self.event_weight, self.block)
        return replace(self, forms=found), SlateSums(recent, ratios, lifts)

    def _of_form(self, batch: EventBatch, policies: Sequence[str], form: Form, gains: Array | None = None) -> Evidence:
        """The weights of slates slot by slot: `G` for the whole reward, or the mean weight of rewarded slots."""
        if form == "scored":
            return self._of_outcomes(batch, policies)
        if batch.slates is None:
            return self
        if gains is not None and form == "slots":
            weight = whole_weights(batch.slates, gains)
            weighted, heaviest = weight * self.reward[:, None], np.abs(weight)
        else:
            weighted, weight, heaviest = slot_terms(batch, policies, form == "cascade")
        with np.errstate(invalid="ignore"):
            usable = (heaviest <= LARGEST_WEIGHT) & (np.abs(weighted) <= LARGEST_WEIGHT)
        single = (batch.slates.sizes == 0)[:, None]

        def of_slates(values: Array, others: Array) -> Array:
            return np.where(single, others, np.where(usable, values, 0.0))

        averaging = np.broadcast_to(self.event_weight[:, None], usable.shape)
        return replace(
            self,
            importance_weight=of_slates(weight, self.importance_weight),
            sample_weight=of_slates(averaging, self.sample_weight),
            weighted=None if form == "slots" else of_slates(weighted, self.weighted_reward),
            heaviest=of_slates(heaviest, self.importance_weight),
        )

    def _of_outcomes(self, batch: EventBatch, policies: Sequence[str]) -> Evidence:
        """The weights of scored outcomes: one over the propensity, and 0 where the outcome was not revealed.

        The reward, known where the outcome was revealed, is its value under production.
        """
        weighted, weight, averaging = np.zeros((3, len(policies), len(batch)))
        found = batch.scored
        if found is not None:
            events, revealed = found.owner, found.revealed
            with np.errstate(over="ignore"):
                inverse = np.where(revealed, 1.0 / np.where(revealed, found.propensity, 1.0), 0.0)
            for place, policy in enumerate(policies):
                values = found.outcomes[:, batch.policies.index(policy)] if policy != LOGGING else np.nan
                worth = np.where(revealed, values, 0.0)
                with np.errstate(over="ignore", invalid="ignore"):
                    known = np.abs(np.maximum(np.abs(worth), 1.0) * inverse) <= LARGEST_WEIGHT
                weight[place, events] = np.where(known, inverse, 0.0)
                weighted[place, events] = np.where(known, worth * inverse, 0.0)
                averaging[place, events] = np.where(known, self.event_weight[events], 0.0)
        with np.errstate(invalid="ignore"):
            reward = np.nan_to_num(weighted[0] / weight[0])
        return replace(
            self,
            importance_weight=weight.T,
            sample_weight=averaging.T,
            reward=reward,
            event_weight=np.where(weight.any(axis=0), self.event_weight, 0.0),
            weighted=weighted.T,
            heaviest=weight.T,
            unsupported=None,
            actions=None,
        )

    @property
    def deciding(self) -> Evidence:
        """The evidence that promotion judges by: slates slot by slot, where an estimator needs them so."""
        return next(iter(self.forms.values()), self)

    @property
    def counts_once(self) -> bool:
        """Whether every event has every policy and stands for itself alone."""
        return bool(self.of_weights("counts once", lambda: np.asarray((self.sample_weight == 1.0).all())))

    @property
    def largest_weight(self) -> Array:
        """The largest weight in magnitude, [P]."""
        weight = self.importance_weight if self.heaviest is None else self.heaviest
        return np.asarray(weight.max(axis=0, initial=0.0))

    def with_predictions(self, prediction: Array) -> Evidence:
        """The same evidence with the reward model's prediction for each action, [rows]."""
        return self if self.actions is None else replace(self, actions=replace(self.actions, prediction=prediction))

    def restricted_to(self, needs: Requirements) -> Evidence:
        """The same evidence without the events that lack a required field."""
        if not needs:
            return self
        for form in FORMS:
            if form in needs:
                return self.forms.get(form, self)
        known: Mask
        if self.clicks is not None:
            known = self.clicks.whole
        else:
            known = np.zeros(1, bool) if self.actions is None else self.actions.known(needs)
        return replace(self, sample_weight=np.where(known, self.sample_weight, 0.0))

    @property
    def used_blocks(self) -> Mask:
        """Whether a block has an event that is not missing for every policy, [blocks]."""
        return np.asarray((per_block(self.sample_weight, self.blocks) != 0).any(axis=(1, 2)))

    def of_blocks(self, kept: Mask) -> Evidence:
        """The evidence of some of these blocks, without `forms`; `kept` [blocks] must not be empty."""
        if kept.all():
            return self
        events = np.flatnonzero(np.repeat(kept, self.block))
        of_events = ("reward", "event_weight", "timestamp", "signs")
        names = ("importance_weight", "sample_weight", "unsupported", "weighted", "heaviest", *of_events)
        before = ((name, getattr(self, name)) for name in names)
        columns: dict[str, Any] = {  # contiguous over events
            name: None if column is None else column.T[..., events].T for name, column in before
        }
        recent = self.recent.of_blocks(kept)
        return replace(self, **columns, recent=recent, actions=self.actions and self.actions.take(events), forms={})

    @cached_property
    def weighted_reward(self) -> Array:
        """`w r`, [n, P]; estimators that average it share one array."""
        return self.importance_weight * self.reward[:, None] if self.weighted is None else self.weighted

    @property
    def blocks(self) -> int:
        """The number of blocks; an unfinished one counts."""
        return max(1, len(self.reward) // self.block)

    def block_sums(self, column: Array | None) -> Array:
        """Sums of `q column` per block, [blocks, P]; of the sample weight alone without a column."""
        weight = per_block(self.sample_weight, self.blocks)
        if column is None:
            return np.asarray(weight.sum(axis=-1))
        return np.asarray(np.einsum("bpn,bpn->bp", weight, per_block(column, self.blocks)))

    def recent_path(self, sums: Array, before: Array) -> Array:
        """Decayed sums after each block, from those of each block [blocks, P, ...]; `before`: those before it."""
        return decayed_path(before, sums, fading_of(self.block))

    def of_weights(self, name: str, compute: Callable[[], Array]) -> Array:
        """An array that depends on the weights alone, computed once for all rewards that the same events have.

        `name`: of the array, with all settings that it depends on.
        """
        place, weights = (name, self.block), (self.importance_weight, self.sample_weight)
        kept = self.known.get(place)
        if kept is None or kept[0] is not weights[0] or kept[1] is not weights[1]:
            kept = self.known[place] = (*weights, compute())
        return kept[2]


def _usable(weight: Array, reward: Array) -> Mask:
    """Where a weight is known, and its product with the reward may be squared and summed."""
    with np.errstate(over="ignore", invalid="ignore"):
        largest = np.maximum(np.abs(reward), 1.0)[:, None] * weight
    return np.asarray(largest <= LARGEST_WEIGHT)


def _all_usable(weight: Array, reward: Array, sampling: Array) -> bool:
    """Whether all weights are `_usable`, by their largest ones."""
    if not weight.size:
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        largest = max(1.0, np.abs(reward).max()) * weight.max()
    return bool(largest <= LARGEST_WEIGHT and sampling.max() <= LARGEST_WEIGHT and np.isfinite(reward).all())
