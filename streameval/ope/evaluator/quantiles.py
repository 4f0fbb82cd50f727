"""Estimate quantiles of rewards under each policy (`latency: {max: 60, quantiles: [0.5, 0.95]}`).

A histogram for each policy sums up importance weights, and another one their squares. The distribution function of a
policy is the weighted share of rewards up to a value, as SNIPS estimates it, and a quantile is its inverse. Its
interval inverts the distribution function at both ends of the normal interval of the share (Woodruff). The variance of
the share is

    sum w^2 (1[r <= t] - q)^2 / (sum w)^2

and at least `q (1 - q) sum w^2 / (sum w)^2`, for quantiles that few or no rewards exceed.

Source: Woodruff, Confidence intervals for medians and other position measures, JASA 1952.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import NormalDist

import numpy as np
from msgspec import Struct

from streameval.common.arrays import Array
from streameval.ope.core.state import Company, joined, select_policies
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.histogram import BUCKETS, EDGES, buckets
from streameval.ope.evaluator.room import Blocks, Owned, Present, Room
from streameval.ope.promotion.guardrails import Reward
from streameval.ope.report import QuantileEstimate


class QuantileState(Struct, frozen=True, eq=False):
    """Hold sums of weights and of their squares of one reward since the start, [policies, 2, buckets]."""

    sums: Array


Quantiles = dict[str, QuantileState]
"""States by name of the reward."""


def start(config: EvaluatorConfig) -> Quantiles | None:
    """Start before the first event, with None if no quantile is asked for."""
    shape = len(config.policies), 2, BUCKETS
    return {reward.name: QuantileState(np.zeros(shape)) for reward in config.rewards if reward.quantiles} or None


def resume(config: EvaluatorConfig, before: EvaluatorConfig, state: Quantiles | None) -> Quantiles | None:
    """Return the state of the config `before` under another one, which has the same rewards."""
    kept = [before.policies.index(name) for name in config.policies]
    return None if state is None else select_policies(state, kept)


def join(_both: EvaluatorConfig, own: Owned, late: Owned, company: Company) -> Quantiles | None:
    """Return the state of a config that joins two others."""
    return None if own.state is None else joined(own.state, late.state, company)


def observe(config: EvaluatorConfig, state: Quantiles | None, blocks: Blocks) -> Quantiles | None:
    """Return the state after whole blocks, to the last bit the same however many they are."""
    return None if state is None else {name: _after(config, name, known, blocks) for name, known in state.items()}


def _after(config: EvaluatorConfig, name: str, state: QuantileState, blocks: Blocks) -> QuantileState:
    goal, reward = config.rewards[0], next(reward for reward in config.rewards if reward.name == name)
    values = (blocks.events if reward is goal else blocks.events.of_reward(name)).reward
    known = ~np.isnan(values)
    weights = (blocks.goal.importance_weight * blocks.goal.event_weight[:, None])[known]
    places, sums = buckets(values[known], reward.low), state.sums.copy()
    np.add.at(sums.transpose(2, 0, 1), places, np.stack([weights, weights**2], axis=2))
    return QuantileState(sums)


def rows(config: EvaluatorConfig, state: Quantiles, present: Present) -> dict[str, tuple[QuantileEstimate, ...]]:
    """Return the quantiles for the Report, the unfinished block included."""
    now = state if present.tail is None else observe(config, state, present.tail) or state
    return {"quantiles": tuple(_rows(config, now))}


def _rows(config: EvaluatorConfig, state: Quantiles) -> Iterator[QuantileEstimate]:
    z = NormalDist().inv_cdf((1 + config.confidence) / 2)
    for reward in config.rewards:
        if reward.quantiles:
            for policy, (weight, square) in zip(config.policies, state[reward.name].sums, strict=True):
                for quantile in reward.quantiles:
                    numbers = _numbers(reward, quantile, weight, square, z)
                    yield QuantileEstimate(policy, reward.name, quantile, *numbers)


def _numbers(reward: Reward, quantile: float, weight: Array, square: Array, z: float) -> list[float | None]:
    """Return a quantile and the ends of its interval, None without events or with too few beyond it."""
    below, total = np.cumsum(weight), weight.sum()
    if not total > 0:
        return [None, None, None]
    share = below / total
    place = int(np.searchsorted(share, quantile))
    lower, upper = square[: place + 1].sum(), square[place + 1 :].sum()
    variance = max((1 - quantile) ** 2 * lower + quantile**2 * upper, quantile * (1 - quantile) * (lower + upper))
    error = z * float(np.sqrt(variance)) / float(total)
    shares = (quantile, quantile - error, quantile + error)
    return [reward.low + float(np.interp(one, share[:-1], EDGES, left=0.0)) if 0 < one < 1 else None for one in shares]


ROOM = Room("quantiles", start, resume, join, observe=observe, rows=rows)
