"""The path of the lift: the paired difference to production after each block, and how well it is known."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from streameval.common.arrays import Array, decayed_path, ratio
from streameval.ope.promotion.block_sums import running_sum

HORIZON = 30_000.0
"""Horizon in events of how much a lift has moved, and of how far its decays disagree: both are noisy at any moment."""
SPREAD, MOVED = 2.0, 1.0 / 3.0
"""How many times each counts as error."""


class LiftSeries(NamedTuple):
    """The paired difference to production on the mixture after each block; all are [blocks, candidates].

    `value`: the lift. `se2`: its sampling variance, the design effect included; `spread2`: the square of how far the
    decays disagree. `events`: how many events of the block both policies have.
    """

    value: Array
    se2: Array
    spread2: Array
    events: Array


class LiftEstimate(NamedTuple):
    """The lift after each block, and how well it is known; all are [blocks, candidates].

    `error2`, the squared error that more events make smaller: the sampling variance. `moving2`, the one that they do
    not: because the world moves. `events` that both policies had until then.
    """

    value: Array
    error2: Array
    moving2: Array
    events: Array


def start(candidates: int) -> Array:
    """The sums before the first event: of events, and of what is averaged, with its weight."""
    return np.zeros((candidates, 7))


def known(path: LiftSeries, before: Array, block: int) -> tuple[LiftEstimate, Array]:
    """How well the lift is known after each of these blocks, and the sums after them.

    `moving2 = (2 spread)^2 + (moved / 3)^2`. `spread^2` is the mean of the last 30,000 events, and so is `moved^2`, the
    square of how far the lift was from its own mean of the last 30,000 events: what has moved much is known less.
    """
    events = running_sum(before[:, 0], path.events)
    spread2, of_spread = lately(path.spread2, before[:, 1:3], block)
    mean, of_value = lately(path.value, before[:, 3:5], block)
    moved2, of_moved = lately((path.value - mean) ** 2, before[:, 5:7], block)
    after = np.concatenate([events[-1][:, None], of_spread, of_value, of_moved], axis=1)
    return LiftEstimate(path.value, path.se2, SPREAD**2 * spread2 + MOVED**2 * moved2, events), after


def lately(values: Array, before: Array, block: int) -> tuple[Array, Array]:
    """The mean of the last 30,000 events of values [blocks, candidates], NaN while none is known; and the sums after.

    >>> lately(np.array([[np.nan], [1.0], [3.0]]), np.zeros((1, 2)), block=1)[0].ravel().round(4)
    array([nan,  1.,  2.])
    """
    given = ~np.isnan(values)
    steps = np.stack([np.where(given, values, 0.0), given], axis=-1)
    sums = decayed_path(before, steps, math.exp(-block / HORIZON))
    return ratio(sums[..., 0], sums[..., 1]), sums[-1]
