"""Clip rewards at a quantile of the rewards before them (`reward: {max: auto, quantile: 0.999}`).

The events of a block are clipped at the quantile of the rewards of all blocks before it, so no event sets its own
limit. The first block is not clipped. A histogram of the rewards, in which buckets grow by 1 %, fades with a memory of
`1000 / (1 - quantile)` events, so that the quantile rests on about 1,000 larger rewards. The limit is the upper end of
the bucket of the quantile. There is no limit as long as the quantile is at most the smallest reward, such as the 0.999
quantile of revenue that fewer than one event in 1,000 has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from msgspec import Struct

from streameval.common.arrays import Array
from streameval.events import EventBatch
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.rewards import Clips, clipped, with_columns
from streameval.ope.evaluator.room import Present, Room
from streameval.ope.evidence.evidence import LARGEST_WEIGHT, event_weight
from streameval.ope.promotion.guardrails import Reward
from streameval.ope.report import RewardLimit

EDGES = np.geomspace(1e-9, 1e18, 6_250)
"""Upper ends of buckets, as distances from the smallest reward. A bucket is 1 % wider than the one before it."""
BEYOND = 1_000.0
"""Number of rewards above the limit in the memory of the histogram."""


class LimitState(Struct, frozen=True, eq=False):
    """Hold what is known about one reward after whole blocks.

    Attributes:
        histogram: decayed sums of the weights of rewards, by bucket; empty before the first reward
        highest: the largest reward after clipping
    """

    histogram: Array
    highest: float

    def limit(self, reward: Reward) -> float:
        """Return the limit of the next block, infinite if there is none."""
        if reward.quantile is None or not self.histogram.any():
            return math.inf
        below = np.cumsum(self.histogram)
        bucket = int(np.searchsorted(below, reward.quantile * below[-1]))
        return reward.low + float(EDGES[bucket]) if 0 < bucket < len(EDGES) else math.inf

    def after(self, reward: Reward, values: Array, weights: Array, highest: float, block: int) -> LimitState:
        """Return the state after a block.

        Args:
            reward: the reward
            values: the rewards of the block before clipping
            weights: the weights of its events
            highest: the largest reward of the block after clipping
            block: the number of events in a block
        """
        buckets = np.searchsorted(EDGES, values - reward.low)
        added = np.bincount(buckets, weights, len(EDGES) + 1)
        fading = math.exp(-block * (1.0 - (reward.quantile or 0.0)) / BEYOND)
        histogram = fading * self.histogram + added if len(self.histogram) else np.asarray(added, dtype=np.float64)
        return LimitState(histogram, max(self.highest, highest))


Limits = dict[str, LimitState]
"""States by name of the reward."""


def start(config: EvaluatorConfig) -> Limits | None:
    """Start before the first event, with None if no limit is learned."""
    names = [reward.name for reward in config.rewards if reward.quantile is not None]
    return {name: LimitState(np.zeros(0), -math.inf) for name in names} or None


def resume(_config: EvaluatorConfig, _before: EvaluatorConfig, state: Limits | None) -> Limits | None:
    """Return the state under another config, which has the same rewards."""
    return state


def derive(
    config: EvaluatorConfig, state: Limits, events: EventBatch
) -> tuple[EventBatch, Limits, Mapping[str, list[Clips]]]:
    """Clip the events, and return the state after their whole blocks and what clipping did."""
    columns, clips, after = [], {}, dict(state)
    for reward in config.rewards:
        chosen = events if reward is config.rewards[0] else events.of_reward(reward.name)
        column = chosen.reward, None if chosen.slates is None else chosen.slates.reward
        if reward.quantile is not None:
            counts = ~np.isnan(chosen.reward) & (event_weight(events) > 0)
            if reward is config.rewards[0] and events.scored is not None:
                counts &= events.scored.sizes == 0
            upper = np.full(len(events), math.inf)
            for first in range(0, len(events), config.block):
                part, known = slice(first, first + config.block), after[reward.name]
                upper[part] = limit = known.limit(reward)
                kept = counts[part]
                if len(kept) == config.block:
                    values, weights = chosen.reward[part][kept], event_weight(events)[part][kept]
                    highest = float(np.minimum(values, limit).max(initial=-math.inf))
                    after[reward.name] = known.after(reward, values, weights, highest, config.block)
            ends = -math.inf if reward.below != "clip" else reward.low, upper
            column, added = clipped(column, ends, counts, events)
            clips[reward.name] = [added]
        columns.append(column)
    return with_columns(events, columns, config.rewards), after, clips


def ranged(config: EvaluatorConfig, state: Limits) -> EvaluatorConfig:
    """Return the config with the range that rewards have had until now."""

    def reached(reward: Reward) -> Reward:
        known = state.get(reward.name)
        high = math.inf if known is None else max(known.highest, known.limit(reward))
        return replace(reward, high=high) if reward.low < high < LARGEST_WEIGHT else reward

    return replace(config, rewards=tuple(map(reached, config.rewards)))


def rows(config: EvaluatorConfig, state: Limits, _present: Present) -> dict[str, tuple[RewardLimit, ...]]:
    """Return the limits for the Report."""
    return {"limits": tuple(_rows(config, state))}


def _rows(config: EvaluatorConfig, state: Limits) -> Iterator[RewardLimit]:
    for reward in config.rewards:
        if reward.quantile is not None:
            limit = state[reward.name].limit(reward)
            yield RewardLimit(reward.name, reward.quantile, limit if math.isfinite(limit) else None)


ROOM = Room("limits", start, resume, derive=derive, ranged=ranged, rows=rows)
