"""The importance weight as control variate: how much of a term can be foretold from the weight alone."""

from __future__ import annotations

import numpy as np

from streameval.arrays import Array, State, decayed_path
from streameval.evidence import Evidence
from streameval.extremes import Extremes
from streameval.recent import fading_of


def start(policies: int) -> State:
    """The memory of nothing."""
    return {"sums": np.zeros((policies, 5))}


def lagged_slope(evidence: Evidence, term: Array, state: State) -> tuple[Array, State]:
    """`beta = cov(term, w) / var(w)` over the last 100,000 events, for each event as known a block before, [n, P]."""
    weight = evidence.importance_weight
    columns = (None, weight, term, weight * weight, term * weight)
    sums = np.stack([evidence.block_sums(column) for column in columns], axis=-1)
    path = decayed_path(state["sums"], sums, fading_of(evidence.block))
    before = np.concatenate([state["sums"][None], path[:-1]])
    return evidence.spread_over_events(_slope(before)), {"sums": path[-1]}


def extremes(reward_range: tuple[float, float], seen: Array) -> Extremes:
    """Of `beta + w (r - beta)` for any `beta` inside the reward range, and for the 0 to begin with.

    Its slope may go either way, so that an endless weight could be anything: the heaviest is the largest seen.
    """
    low, high = reward_range
    least, most = min(low, 0.0), max(high, 0.0)
    return Extremes.between((least, most), (low - most, high - least), seen)


def _slope(sums: Array) -> Array:
    """`cov(u, w) / var(w)` from the sums of `1, w, u, w w, u w` on the last axis; 0 where `w` does not vary."""
    count, weight, reward, square, product = np.moveaxis(sums, -1, 0)
    variance = square * count - weight * weight
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = (product * count - reward * weight) / variance
    return np.where(variance > 1e-12 * square * count, slope, 0.0)
