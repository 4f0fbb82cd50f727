"""Turn the rewards of a log into the configured ones: clipped, shares beyond a threshold, and weighted sums."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct

from streameval.common.arrays import Array, Mask, decayed_path, running_sum
from streameval.common.text import significant
from streameval.events import EventBatch
from streameval.events.further_rewards import FurtherRewards
from streameval.ope.evidence.evidence import event_weight
from streameval.ope.promotion.guardrails import Reward
from streameval.ope.promotion.trust_checks import share_check
from streameval.ope.report import ClippedReward

FADING = math.exp(-1e-5)
"""Factor of the recent share of clipped rewards for each event: its horizon is 100,000 events."""

Column: TypeAlias = tuple[Array, Array | None]
"""A reward of events [n], and of their slots [S] if there are slates."""


class Clips(NamedTuple):
    """Hold what clipping did to the n events that have a reward.

    Args:
        below: whether the reward was below its range [n]
        above: whether the reward was above its range [n]
        steps: the weight of the event, again if it is clipped, and what clipping took from it [n, 3]
    """

    below: Mask
    above: Mask
    steps: Array

    @classmethod
    def from_columns(cls, weight: Array, below: Mask, above: Mask, cut: Array) -> Clips:
        """Weigh the events."""
        return cls(below, above, np.column_stack([weight, weight * (below | above), weight * cut]))


class ClippedSums(Struct, frozen=True):
    """Sum up what clipping did to one reward. Events count by the inverse of their sampling probability.

    Attributes:
        events: number of events with the reward
        below: number of events with a reward below its range
        above: number of events with a reward above its range
        weight: sum of the weights of events
        clipped: sum of the weights of clipped events
        cut: sum of what clipping took from rewards, less what it added
        recent_weight: decayed sum of the weights of events
        recent_clipped: decayed sum of the weights of clipped events
    """

    events: int = 0
    below: int = 0
    above: int = 0
    weight: float = 0.0
    clipped: float = 0.0
    cut: float = 0.0
    recent_weight: float = 0.0
    recent_clipped: float = 0.0

    def after(self, clips: Clips) -> ClippedSums:
        """Return the sums after some more events, to the last bit the same however these are cut."""
        below, above, steps = clips
        sums = running_sum(np.array([self.weight, self.clipped, self.cut]), steps)
        recent = decayed_path(np.array([self.recent_weight, self.recent_clipped]), steps[:, :2], FADING)
        return ClippedSums(
            self.events + len(steps),
            self.below + int(np.count_nonzero(below)),
            self.above + int(np.count_nonzero(above)),
            *sums[-1].tolist(),
            *recent[-1].tolist(),
        )

    def with_later(self, later: ClippedSums) -> ClippedSums:
        """Return the sums of both, if the events of the other sums came later."""
        fading = FADING**later.events
        factors = (1, 1, 1, 1.0, 1.0, 1.0, fading, fading)
        pairs = ((getattr(self, name), getattr(later, name)) for name in self.__struct_fields__)
        return ClippedSums(*(old * factor + new for (old, new), factor in zip(pairs, factors, strict=True)))

    @property
    def share(self) -> float | None:
        """Return the share of recent events that are clipped, or None without events."""
        return self.recent_clipped / self.recent_weight if self.recent_weight else None


def resolved(batch: EventBatch, rewards: Sequence[Reward]) -> tuple[EventBatch, dict[str, list[Clips]]]:
    """Return events with the configured rewards, and what clipping did, by the name of the reward.

    Args:
        batch: events with the rewards of the log
        rewards: the configured rewards, the goal first, at least one of them derived
    """
    if not len(batch) or batch.rankings is not None:
        return batch, {}
    columns: dict[str, Column] = {}
    clips: dict[str, list[Clips]] = {}
    for reward in sorted(rewards, key=lambda reward: bool(reward.of)):
        if reward.of:
            columns[reward.name] = _weighted_sum([(columns[part], weight) for part, weight in reward.of.items()])
            continue
        chosen = batch if reward is rewards[0] else batch.of_reward(reward.name)
        column = chosen.reward, None if chosen.slates is None else chosen.slates.reward
        if reward.is_share:
            column = _share(column, reward)
        elif reward.clips:
            has_reward = ~np.isnan(column[0])
            if reward is rewards[0] and batch.scored is not None:
                has_reward &= batch.scored.sizes == 0
            column, added = clipped(column, reward.range, has_reward, batch)
            clips[reward.name] = [added]
        columns[reward.name] = column
    batch = with_columns(batch, [columns[reward.name] for reward in rewards], rewards)
    if batch.scored is not None and rewards[0].clips:
        batch, added = _with_clipped_outcomes(batch, rewards[0])
        clips[rewards[0].name].append(added)
    return batch, clips


def _share(column: Column, reward: Reward) -> Column:
    """Return 1 for values beyond the threshold and 0 for others. Slots have no rewards that sum to it."""
    value, slots = column
    is_beyond = np.zeros(len(value), dtype=bool)
    if isinstance(reward.above, float):
        is_beyond = value > reward.above
    elif isinstance(reward.below, float):
        is_beyond = value < reward.below
    return np.where(np.isnan(value), np.nan, is_beyond), None if slots is None else np.full_like(slots, np.nan)


def _weighted_sum(parts: Sequence[tuple[Column, float]]) -> Column:
    """Return a weighted sum of rewards, NaN for events that lack one of them."""
    slots = [weight * of_slots for (_, of_slots), weight in parts if of_slots is not None]
    return np.sum([weight * value for (value, _), weight in parts], axis=0), np.sum(slots, axis=0) if slots else None


def clipped(
    column: Column, ends: tuple[float, float | Array], has_reward: Mask, batch: EventBatch
) -> tuple[Column, Clips]:
    """Clip a reward to its range, or to the range of each event.

    The rewards of slots shrink or grow in proportion, so that they still sum to the reward.
    """
    before, slots = column
    after = np.where(has_reward, np.clip(before, *ends), before)
    below, above = after > before, after < before
    if slots is not None and batch.slates is not None:
        factor = np.divide(after, before, out=np.ones_like(before), where=(below | above) & (before != 0))
        slots = slots * factor[batch.slates.owner]
    weight, cut = event_weight(batch)[has_reward], (before - after)[has_reward]
    return (after, slots), Clips.from_columns(weight, below[has_reward], above[has_reward], cut)


def _with_clipped_outcomes(batch: EventBatch, reward: Reward) -> tuple[EventBatch, Clips]:
    """Clip the outcomes of scored events. How much of a reward this takes is not known, and counts as 0."""
    assert batch.scored is not None
    scored = batch.scored
    after = np.clip(scored.outcomes, *reward.range)
    events = np.flatnonzero(scored.sizes)
    below, above = (
        np.bincount(scored.owner[rows.any(axis=1)], minlength=len(batch))[events] > 0
        for rows in (after > scored.outcomes, after < scored.outcomes)
    )
    clips = Clips.from_columns(event_weight(batch)[events], below, above, np.zeros(len(events)))
    return replace(batch, scored=replace(scored, outcomes=after)), clips


def with_columns(batch: EventBatch, columns: Sequence[Column], rewards: Sequence[Reward]) -> EventBatch:
    """Replace the rewards of a batch."""
    (goal, goal_slots), *others = columns
    further, slates = batch.further, batch.slates
    if others:
        further = FurtherRewards([reward.name for reward in rewards[1:]], np.column_stack([row for row, _ in others]))
    if slates is not None and goal_slots is not None:
        by_reward = [slots for _, slots in others if slots is not None]
        slates = replace(slates, reward=goal_slots, further=np.column_stack(by_reward) if by_reward else slates.further)
    return replace(batch, reward=goal, further=further, slates=slates)


def fold(before: Mapping[str, ClippedSums], clips: Mapping[str, list[Clips]]) -> dict[str, ClippedSums]:
    """Return the sums of all rewards after some more events."""
    sums = dict(before)
    for name, parts in clips.items():
        for part in parts:
            if len(part.steps):
                sums[name] = sums.get(name, ClippedSums()).after(part)
    return sums


def clipped_rows(rewards: Sequence[Reward], sums: Mapping[str, ClippedSums]) -> Iterator[ClippedReward]:
    """Yield a row of the Report for each reward that is clipped."""
    for reward in rewards:
        if reward.clips or reward.quantile is not None:
            total = sums.get(reward.name, ClippedSums())
            known = total.weight > 0
            yield ClippedReward(
                reward.name,
                below=total.below,
                above=total.above,
                share=total.clipped / total.weight if known else None,
                recent_share=total.share,
                worth=total.cut / total.weight if known else None,
            )


def clipped_check(sums: Mapping[str, ClippedSums], limit: float) -> tuple[str, bool, str]:
    """Check whether few of the latest rewards are clipped: decisions are about clipped rewards alone.

    Args:
        sums: by reward, at least one with events
        limit: the largest share that passes
    """
    share, name = max((total.share or 0.0, name) for name, total in sums.items())
    finding = f"{significant(100 * share, 2)} % of the latest rewards ({name}) were clipped"
    return share_check("clipped_share", share, limit, finding)
