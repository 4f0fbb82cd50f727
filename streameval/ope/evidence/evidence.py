"""Compute the importance weights of policies on events. This is the only place that divides by a propensity."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from streameval.common.arrays import Array, Mask, decayed_path, ratio, split_blocks
from streameval.events import EventBatch
from streameval.ope.evidence.actions import FORMS, Actions, Form, Requirements
from streameval.ope.evidence.clicks import Clicks, Ranking
from streameval.ope.evidence.slate_weights import (
    SlotLifts,
    SlotLiftState,
    SlotWeights,
    lift_sums,
    mean_lifts,
    mean_ratios,
    modelled_rewards,
    ratio_sums,
    slot_gains,
    slot_terms,
    start_lifts,
    start_ratios,
    whole_weights,
)
from streameval.ope.policies.logged import LOGGING, target_probabilities, unsupported_probability

LARGEST_WEIGHT = 1e50
"""Above this weight the square of a term, summed over a stream, may overflow, so the event is missing."""
RECENT_MEMORY = 100_000
"""Horizon of recent sums and means, in events."""


class RecentSums(NamedTuple):
    """Hold the sums of each block behind recent means.

    Attributes:
        logged: over all logged events, of 1, of the reward and of its square [blocks, 3]
        weighed: over the events that have the policy, of 1 and of its squared importance weight. Then over the events
            that have production too, of 1 and of the squared distance to its weight. [blocks, P, 4]
    """

    logged: Array
    weighed: Array


class RecentMoments(NamedTuple):
    """Hold decayed means of recent events after each block, NaN before the first event.

    Attributes:
        reward: of all logged events [blocks]
        reward_square: of all logged events [blocks]
        weight_square: of the importance weights on events that have the policy [blocks, P]
        distance_square: of their differences to the weights of production [blocks, P]
    """

    reward: Array
    reward_square: Array
    weight_square: Array
    distance_square: Array

    @classmethod
    def unknown(cls, blocks: int, policies: int) -> RecentMoments:
        """Return unknown means, before the first event."""
        logged, weighed = np.full(blocks, np.nan), np.full((blocks, policies), np.nan)
        return cls(logged, logged, weighed, weighed)

    def select_blocks(self, is_selected: Mask) -> RecentMoments:
        """Select blocks by a mask [blocks]."""
        return self if is_selected.all() else RecentMoments(*(means[is_selected] for means in self))

    @classmethod
    def folded(cls, state: RecentState, sums: RecentSums, fading: Array | float) -> tuple[RecentMoments, RecentState]:
        """Return the means after each block, and the state after the last one.

        The distance to production comes from the events that have it, scaled to all events. In a block without such
        events it is the weight alone.
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
    """Hold the sums behind recent means: over all logged events, and over events that have a policy [P, 3]."""

    logged: list[float]
    weighed: Array


def start_recent(policies: int) -> RecentState:
    """Start before the first event."""
    return RecentState([0.0, 0.0, 0.0], np.zeros((policies, 3)))


class SlateState(Struct, frozen=True, eq=False):
    """Hold the state behind the weights of slates slot by slot.

    Attributes:
        recent: the sums behind recent means, in each form
        ratios: see `start_ratios`
        lifts: the sums of the lifts of slots
    """

    recent: dict[Form, RecentState]
    ratios: Array
    lifts: SlotLiftState


class SlateSums(NamedTuple):
    """Hold the sums of blocks with slates slot by slot.

    Attributes:
        recent: the sums behind recent means, in each form
        ratios: see `ratio_sums`
        lifts: see `lift_sums`, None without the form `slots`
    """

    recent: dict[Form, RecentSums]
    ratios: Array
    lifts: SlotLifts | None

    def fold(self, state: SlateState, block: int) -> tuple[dict[Form, RecentMoments], SlateState]:
        """Return the recent means in each form after each block, and the state after them."""
        moments, recent = {}, dict(state.recent)
        for form, sums in self.recent.items():
            moments[form], recent[form] = RecentMoments.folded(state.recent[form], sums, fading_of(block))
        ratios = decayed_path(state.ratios, self.ratios, fading_of(block))[-1]
        return moments, SlateState(recent, ratios, state.lifts if self.lifts is None else self.lifts.fold(state.lifts))


def start_slates(policies: int) -> SlateState:
    """Start before the first event."""
    recent = {form: start_recent(policies) for form in FORMS}
    return SlateState(recent, start_ratios(policies), start_lifts(policies))


def slot_ratio_means(slates: SlateState, policy: int) -> list[float]:
    """Return the mean ratio of a policy in each slot, see `mean_ratios`."""
    return mean_ratios(slates.ratios[policy])


def slot_lifts(slates: SlateState, policy: int) -> list[float]:
    """Return the lift of a policy in each slot, see `mean_lifts`."""
    return mean_lifts(slates.lifts, slates.ratios, policy)


def event_weight(events: EventBatch) -> Array:
    """Return the inverse sampling probability of each event, 0 if it is too large to count [n]."""
    with np.errstate(over="ignore"):
        weight = 1.0 / events.sampling_probability
    return np.where(weight <= LARGEST_WEIGHT, weight, 0.0)


def fading_of(block: int) -> float:
    """Return the factor that recent sums decay by within a block."""
    return float((1 - 1 / RECENT_MEMORY) ** block)


@dataclass(frozen=True)
class Evidence:
    """Hold importance weights, rewards and more of `n` consecutive events for `P` policies.

    The events are whole blocks, or the unfinished one. Columns are contiguous over events.

    Attributes:
        importance_weight: `pi(a|x) / p`, 0 if missing [n, P]. For rankings, the value of the page's clicks for the
            policy, with another mean than 1.
        sample_weight: the inverse sampling probability, 0 if the event lacks the policy [n, P]
        reward: for rankings 1, or -1 if less is better [n]
        unsupported: the probability of the policy for actions that the logging policy never takes, 0 if unknown, None
            if always unknown [n, P]
        event_weight: the inverse sampling probability [n]
        block: the number of events in a block
        recent: decayed means of the events before
        actions: all available actions, None without any
        forms: these events with the weights of slates slot by slot, in each form that an estimator needs
        weighted: the weighted reward, None for the importance weight times `reward` [n, P]
        heaviest: the weight that no part of the weighted reward exceeds, None for the importance weight [n, P]
        timestamp: event time in seconds [n]
        signs: rademacher signs of the units of the events, None while no event has had a unit [n, 64]
        clicks: the clicks on rankings, None for other events
        slots: the weights of the slots of slates that have rewards, None without any
        correction: the reward that a model expects of the policy, minus the weight times what it expects of the slate,
            0 for the logging policy, NaN without full distributions, None without a model [n, P]
        cache: the arrays of `compute_once`
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
    slots: SlotWeights | None = None
    correction: Array | None = None
    cache: dict[tuple[str, int], tuple[Array, Array, Array]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_numbers(cls, importance_weight: Any, reward: Any, block: int = 100, sample_weight: Any = None) -> Evidence:
        """Build evidence from plain numbers, to try an estimator.

        >>> Evidence.from_numbers(importance_weight=[[2.0], [0.5]], reward=[1, 0]).sample_weight.ravel()
        array([1., 1.])
        """
        weight = np.asarray(importance_weight, dtype=float)
        present = np.ones_like(weight) if sample_weight is None else np.asarray(sample_weight, dtype=float)
        rewards = np.asarray(reward, dtype=float)
        recent = RecentMoments.unknown(max(1, len(rewards) // block), weight.shape[1])
        return cls(weight, present, rewards, None, np.ones(len(rewards)), block, recent)

    @classmethod
    def from_actions(
        cls, reward: Any, action: Any, propensities: Any, target: Any, prediction: Any, block: int = 100
    ) -> Evidence:
        """Build evidence about one policy from full distributions, to try an estimator.

        Args:
            reward: [n]
            action: the index of the logged action [n]
            propensities: [n, A]
            target: the distribution of the policy [n, A]
            prediction: the predictions of a reward model [n, A]
            block: the number of events in a block
        """
        policies = {"target": target}
        batch = EventBatch.from_arrays(reward=reward, action=action, propensities=propensities, policies=policies)
        return cls.from_batch(batch, list(policies), block).with_predictions(np.ravel(prediction).astype(float))

    @classmethod
    def from_slots(cls, batch: EventBatch, policies: Sequence[str], form: Form) -> Evidence:
        """Build evidence about slates slot by slot, to try an estimator."""
        return cls.from_batch(batch, policies, len(batch)).with_forms(batch, policies, [form])[0].forms[form]

    @classmethod
    def from_batch(cls, batch: EventBatch, policies: Sequence[str], block: int) -> Evidence:
        """Compute the importance weights of `policies` on the events of `batch`.

        An event that lacks a policy, or has an overflowing weight for it, is missing for that policy alone.
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
            event_weight=event_weight(batch),
            block=block,
            recent=RecentMoments.unknown(max(1, len(batch) // block), len(policies)),
            actions=None
            if batch.action_sets is None
            else Actions.from_sets(batch.action_sets, batch.policies, policies),
            timestamp=batch.timestamp,
        )

    @classmethod
    def without_rewards(cls, batch: EventBatch, policies: Sequence[str], block: int) -> Evidence:
        """Compute the importance weights alone, of events that may lack a reward, see `with_reward`."""
        return cls.from_batch(replace(batch, reward=np.zeros(len(batch))), policies, block)

    @classmethod
    def from_rankings(
        cls,
        batch: EventBatch,
        policies: Sequence[str],
        ranking: Ranking,
        block: int = 100,
        curves: Array | None = None,
        with_windows: bool = False,
    ) -> Evidence:
        """Compute the values of the clicks of `batch` under `policies`.

        A page that lacks a policy is missing for it alone.

        Args:
            batch: the pages
            policies: production first
            ranking: the metric and the examination
            block: the number of pages in a block
            curves: examination probabilities learned before each block [blocks, ranks]
            with_windows: whether an estimator needs windows. Importance weights then limit the terms of any window
        """
        clicks = ranking.clicks(batch, policies, curves, with_windows)
        plain = cls.from_batch(batch, policies, block)
        sign = -1.0 if ranking.metric.less_is_better else 1.0
        gain, reward = clicks.clicked_gain(), np.full(len(batch), sign)
        is_limit = np.ndim(clicks.noise) > 0 or clicks.windows is not None
        weight = clicks.gain_size() if is_limit else sign * gain
        usable = _usable(weight, reward) & clicks.present & (plain.sample_weight > 0)
        return replace(
            plain,
            importance_weight=np.where(usable, weight, 0.0),
            sample_weight=np.where(usable, plain.sample_weight, 0.0),
            reward=reward,
            weighted=np.where(usable, gain, 0.0) if is_limit else None,
            unsupported=clicks.unsupported_gain if clicks.unsupported_gain.any() else None,
            clicks=clicks,
        )

    def with_reward(self, reward: Array) -> Evidence:
        """Replace the reward. Events with a reward of NaN are dropped.

        Weights are shared, including the weights of slates slot by slot.
        """
        has_reward = ~np.isnan(reward)
        filled = np.where(has_reward, reward, 0.0)
        if has_reward.all() and _all_usable(self.importance_weight, filled, self.event_weight):
            return replace(self, reward=filled)
        usable = has_reward[:, None] & _usable(self.importance_weight, filled)
        return replace(
            self,
            reward=filled,
            sample_weight=np.where(usable, self.sample_weight, 0.0),
            event_weight=np.where(has_reward, self.event_weight, 0.0),
        )

    def with_recent_means(self, state: RecentState) -> tuple[Evidence, RecentState]:
        """Add the means of recent events, and return the state after these events."""
        recent, after = RecentMoments.folded(state, self.recent_steps(), fading_of(self.block))
        return self.with_recent(recent), after

    def with_recent(
        self, recent: RecentMoments | None, by_form: Mapping[Form, RecentMoments] = MappingProxyType({})
    ) -> Evidence:
        """Replace the means of recent events.

        Args:
            recent: the means, None to keep them
            by_form: the means of forms, missing ones are kept
        """
        evidence = copy(self)  # keep everything that is computed already
        forms = {form: form_evidence.with_recent(by_form.get(form)) for form, form_evidence in self.forms.items()}
        vars(evidence).update(recent=self.recent if recent is None else recent, forms=forms)
        return evidence

    def recent_steps(self) -> RecentSums:
        """Return the sums of each block behind recent means."""
        earned = self.reward if self.clicks is None else self.weighted_reward[:, 0]
        logged = np.stack([np.ones_like(self.reward), earned, self.reward**2]) * self.event_weight
        by_block = logged.reshape(3, self.blocks, -1).sum(axis=-1).T
        return RecentSums(by_block, self.compute_once("recent", self._recent_weights))

    def _recent_weights(self) -> Array:
        weight = self.importance_weight
        if self.counts_once:
            weights, distances = (split_blocks(columns, self.blocks) for columns in (weight, weight - weight[:, :1]))
            squares = (np.einsum("bpn,bpn->bp", columns, columns) for columns in (weights, distances))
            count = np.full(weights.shape[:2], float(weights.shape[-1]))
            return np.stack([count, next(squares), count, next(squares)], axis=-1)
        shared = (self.sample_weight[:, :1] > 0).astype(float)
        both = self.block_sums(np.broadcast_to(shared, weight.shape))
        distance = self.block_sums(shared * (weight - weight[:, :1]) ** 2)
        return np.stack([self.block_sums(None), self.block_sums(weight**2), both, distance], axis=-1)

    def with_forms(
        self, batch: EventBatch, policies: Sequence[str], forms: Collection[Form], parts: Array | None = None
    ) -> tuple[Evidence, SlateSums]:
        """Add the evidence of slates slot by slot in `forms`, and return their sums too.

        Args:
            batch: the events
            policies: production first
            forms: the forms
            parts: the part that each action of each slot has in the reward by a model, None without a model [rows]
        """
        gains = slot_gains(batch, policies) if "slots" in forms and batch.slates is not None else None
        by_form, lifts = {form: self._form_evidence(batch, policies, form, gains) for form in forms}, None
        if "slots" in by_form:
            lifts = lift_sums(
                batch.slates,
                gains,
                by_form["slots"].weighted_reward,
                by_form["slots"].sample_weight,
                self.reward,
                self.blocks,
            )
            if parts is not None:
                by_form["slots"] = by_form["slots"]._corrected(batch, policies, parts)
        recent = {form: form_evidence.recent_steps() for form, form_evidence in by_form.items()}
        ratios = ratio_sums(batch, policies, self.event_weight, self.block)
        return replace(self, forms=by_form), SlateSums(recent, ratios, lifts)

    def _form_evidence(
        self, batch: EventBatch, policies: Sequence[str], form: Form, gains: Array | None = None
    ) -> Evidence:
        """Weigh slates slot by slot: with `G` for the whole reward, or with the mean weight of rewarded slots."""
        if form == "scored":
            return self._outcome_evidence(batch, policies)
        if batch.slates is None:
            return self
        if gains is not None and form == "slots":
            weight = whole_weights(batch.slates, gains)
            weighted, heaviest, slots = weight * self.reward[:, None], np.abs(weight), None
        else:
            weighted, weight, heaviest, slots = slot_terms(batch, policies, form == "cascade")
        with np.errstate(invalid="ignore"):
            usable = (heaviest <= LARGEST_WEIGHT) & (np.abs(weighted) <= LARGEST_WEIGHT)
        single = (batch.slates.sizes == 0)[:, None]

        def fill_slates(values: Array, others: Array) -> Array:
            return np.where(single, others, np.where(usable, values, 0.0))

        averaging = np.broadcast_to(self.event_weight[:, None], usable.shape)
        return replace(
            self,
            importance_weight=fill_slates(weight, self.importance_weight),
            sample_weight=fill_slates(averaging, self.sample_weight),
            weighted=None if form == "slots" else fill_slates(weighted, self.weighted_reward),
            heaviest=fill_slates(heaviest, self.importance_weight),
            slots=slots,
        )

    def _corrected(self, batch: EventBatch, policies: Sequence[str], parts: Array) -> Evidence:
        """Add what a reward model says of slates slot by slot, and of other events."""
        correction = np.full(self.importance_weight.shape, np.nan)
        if self.actions is not None:
            logged = self.actions.logged_values(self.actions.prediction)[:, None]
            model = self.actions.expected_reward - self.importance_weight * logged
            correction = np.where(self.actions.targets_known, model, np.nan)
        if batch.slates is not None:
            expected, shown = modelled_rewards(batch, policies, parts)
            of_slates = expected - self.importance_weight * shown[:, None]
            correction = np.where((batch.slates.sizes > 0)[:, None], of_slates, correction)
        correction[:, [policy == LOGGING for policy in policies]] = 0.0
        return replace(self, correction=np.asfortranarray(correction))

    def _outcome_evidence(self, batch: EventBatch, policies: Sequence[str]) -> Evidence:
        """Weigh scored outcomes by one over the propensity, with 0 for outcomes that were not revealed.

        The reward of a revealed outcome is its value under production.
        """
        weighted, weight, averaging = np.zeros((3, len(policies), len(batch)))
        scored = batch.scored
        if scored is not None:
            events, revealed = scored.owner, scored.revealed
            with np.errstate(over="ignore"):
                inverse = np.where(revealed, 1.0 / np.where(revealed, scored.propensity, 1.0), 0.0)
            for index, policy in enumerate(policies):
                values = scored.outcomes[:, batch.policies.index(policy)] if policy != LOGGING else np.nan
                worth = np.where(revealed, values, 0.0)
                with np.errstate(over="ignore", invalid="ignore"):
                    is_usable = np.abs(np.maximum(np.abs(worth), 1.0) * inverse) <= LARGEST_WEIGHT
                weight[index, events] = np.where(is_usable, inverse, 0.0)
                weighted[index, events] = np.where(is_usable, worth * inverse, 0.0)
                averaging[index, events] = np.where(is_usable, self.event_weight[events], 0.0)
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
        """Return the evidence for promotion: slates slot by slot if an estimator needs them so."""
        return next(iter(self.forms.values()), self)

    @property
    def counts_once(self) -> bool:
        """Tell whether every event has every policy and stands for itself alone."""
        return bool(self.compute_once("counts once", lambda: np.asarray((self.sample_weight == 1.0).all())))

    @property
    def largest_weight(self) -> Array:
        """Return the largest weight in magnitude [P]."""
        weight = self.importance_weight if self.heaviest is None else self.heaviest
        return np.asarray(weight.max(axis=0, initial=0.0))

    def with_predictions(self, prediction: Array) -> Evidence:
        """Add the reward model's prediction for each action [rows]."""
        return self if self.actions is None else replace(self, actions=replace(self.actions, prediction=prediction))

    def restricted_to(self, needs: Requirements) -> Evidence:
        """Leave out the events that lack a required field."""
        if not needs:
            return self
        for form in FORMS:
            if form in needs:
                weighed = self.forms.get(form, self)
                if "prediction" not in needs or weighed.correction is None:
                    return weighed
                lacks = np.isnan(weighed.correction)
                return replace(weighed, sample_weight=np.where(lacks, 0.0, weighed.sample_weight))
        is_complete: Mask
        if self.clicks is not None:
            is_complete = self.clicks.completeness(needs)
        else:
            is_complete = np.zeros(1, bool) if self.actions is None else self.actions.completeness(needs)
        return replace(self, sample_weight=np.where(is_complete, self.sample_weight, 0.0))

    @property
    def used_blocks(self) -> Mask:
        """Tell whether a block has an event that is not missing for every policy [blocks]."""
        return np.asarray((split_blocks(self.sample_weight, self.blocks) != 0).any(axis=(1, 2)))

    def select_blocks(self, is_selected: Mask) -> Evidence:
        """Select blocks by a mask [blocks] that is not empty, without `forms`."""
        if is_selected.all():
            return self
        events = np.flatnonzero(np.repeat(is_selected, self.block))
        event_columns = ("reward", "event_weight", "timestamp", "signs")
        names = (
            "importance_weight",
            "sample_weight",
            "unsupported",
            "weighted",
            "heaviest",
            "correction",
            *event_columns,
        )
        before = ((name, getattr(self, name)) for name in names)
        columns: dict[str, Any] = {  # contiguous over events
            name: None if column is None else column.T[..., events].T for name, column in before
        }
        recent = self.recent.select_blocks(is_selected)
        columns["actions"] = self.actions and self.actions.take(events)
        columns["slots"] = self.slots and self.slots.take(events)
        return replace(self, **columns, recent=recent, forms={})

    @cached_property
    def weighted_reward(self) -> Array:
        """Return `w r` [n, P]. Estimators that average it share one array."""
        return self.importance_weight * self.reward[:, None] if self.weighted is None else self.weighted

    @property
    def blocks(self) -> int:
        """Return the number of blocks. An unfinished one counts."""
        return max(1, len(self.reward) // self.block)

    def block_sums(self, column: Array | None) -> Array:
        """Return sums of `q column` per block, or of the sample weight q alone without a column [blocks, P]."""
        weight = split_blocks(self.sample_weight, self.blocks)
        if column is None:
            return np.asarray(weight.sum(axis=-1))
        return np.asarray(np.einsum("bpn,bpn->bp", weight, split_blocks(column, self.blocks)))

    def recent_path(self, sums: Array, before: Array) -> Array:
        """Return decayed sums after each block.

        Args:
            sums: the sums of each block [blocks, P, ...]
            before: the decayed sums before the first block
        """
        return decayed_path(before, sums, fading_of(self.block))

    def compute_once(self, name: str, compute: Callable[[], Array]) -> Array:
        """Return an array that depends on the weights alone, computed once for all rewards of these events.

        Args:
            name: the name of the array, including all settings that it depends on
            compute: computes it
        """
        key, weights = (name, self.block), (self.importance_weight, self.sample_weight)
        entry = self.cache.get(key)
        if entry is None or entry[0] is not weights[0] or entry[1] is not weights[1]:
            entry = self.cache[key] = (*weights, compute())
        return entry[2]


def _usable(weight: Array, reward: Array) -> Mask:
    """Tell whether a weight is known, and its product with the reward may be squared and summed."""
    with np.errstate(over="ignore", invalid="ignore"):
        largest = np.maximum(np.abs(reward), 1.0)[:, None] * weight
    return np.asarray(largest <= LARGEST_WEIGHT)


def _all_usable(weight: Array, reward: Array, sampling: Array) -> bool:
    """Tell whether all weights are `_usable`, by the largest ones."""
    if not weight.size:
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        largest = max(1.0, np.abs(reward).max()) * weight.max()
    return bool(largest <= LARGEST_WEIGHT and sampling.max() <= LARGEST_WEIGHT and np.isfinite(reward).all())
