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

from streameval.common.arrays import Array, Integers
from streameval.ope.core.state import Company, joined, select_policies
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.histogram import BUCKETS, EDGES, buckets
from streameval.ope.evaluator.room import Blocks, Owned, Present, Room
from streameval.ope.promotion.guardrails import Reward
from streameval.ope.report import QuantileEstimate


class QuantileState(Struct, frozen=True, eq=False):
    """Hold sums of weights and of their squares of one reward since the start, [policies, 2, buckets]."""

    sums: Array


class QuantileSums(Struct, frozen=True, eq=False):
    """Hold what blocks add.

    Attributes:
        places: the bucket of each event by name of the reward, -1 for events without it [blocks, events]
        weights: the weights of events [blocks, events, policies]
    """

    places: dict[str, Integers]
    weights: Array


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


def summarise(config: EvaluatorConfig, state: Quantiles, blocks: Blocks) -> QuantileSums:
    """Return the places and weights of the events of whole blocks, or of an unfinished one (half 1)."""
    weights = blocks.goal.importance_weight * blocks.goal.event_weight[:, None]
    rows = max(1, len(weights) // config.block)
    places = {}
    for reward in config.rewards:
        if reward.name in state:
            values = (blocks.events if reward is config.rewards[0] else blocks.events.of_reward(reward.name)).reward
            known = np.where(np.isnan(values), -1, buckets(values, reward.low))
            places[reward.name] = known.reshape(rows, -1)
    return QuantileSums(places, weights.reshape(rows, -1, weights.shape[1]))


def fold(_config: EvaluatorConfig, state: Quantiles, sums: QuantileSums) -> Quantiles:
    """Return the state after these sums, to the last bit the same however many blocks they have (half 2)."""
    weights = sums.weights.reshape(-1, sums.weights.shape[2])
    return {name: _after(known, sums.places[name].ravel(), weights) for name, known in state.items()}


def _after(state: QuantileState, places: Integers, weights: Array) -> QuantileState:
    sums, known = state.sums.copy(), places >= 0
    np.add.at(sums.transpose(2, 0, 1), places[known], np.stack([weights, weights**2], axis=2)[known])
    return QuantileState(sums)


def rows(config: EvaluatorConfig, state: Quantiles, present: Present) -> dict[str, tuple[QuantileEstimate, ...]]:
    """Return the quantiles for the Report, the unfinished block included."""
    now = state if present.tail is None else fold(config, state, summarise(config, state, present.tail))
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


ROOM = Room("quantiles", start, resume, join, summarise=summarise, sums=QuantileSums, fold=fold, rows=rows)
