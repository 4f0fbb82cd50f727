"""Decayed means of the last 100,000 events, from which initial values and priors are taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streameval.common.arrays import Array, State, decayed_path

HORIZON = 100_000


class RecentMoments(NamedTuple):
    """Means after each block; NaN before the first event.

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


def start(policies: int) -> State:
    """The state before the first event."""
    return {"logged": np.zeros(3), "weighed": np.zeros((policies, 3))}


def select_policies(state: State, index: Sequence[int]) -> State:
    """The memory of some of the policies; `index`: their places."""
    return {**state, "weighed": state["weighed"][index]}


def fold(state: State, logged: Array, weighed: Array, block: int) -> tuple[RecentMoments, State]:
    """The means after each block, from block sums.

    `logged` [blocks, 3]: of `1, r, r^2`. `weighed` [blocks, P, 3]: of `1, w^2` and the square of w less that of
    production.
    """
    fading = fading_of(block)
    logged_path = decayed_path(state["logged"], logged, fading)
    weighed_path = decayed_path(state["weighed"], weighed, fading)
    with np.errstate(divide="ignore", invalid="ignore"):
        recent = RecentMoments(
            logged_path[:, 1] / logged_path[:, 0],
            logged_path[:, 2] / logged_path[:, 0],
            weighed_path[..., 1] / weighed_path[..., 0],
            weighed_path[..., 2] / weighed_path[..., 0],
        )
    return recent, {"logged": logged_path[-1], "weighed": weighed_path[-1]}


def fading_of(block: int) -> float:
    """The factor by which the past decays within a block."""
    return float((1 - 1 / HORIZON) ** block)
