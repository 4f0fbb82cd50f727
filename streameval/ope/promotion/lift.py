"""The lift that rules read: the paired difference to production after each block, and its error."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from streameval.common.arrays import Array, Integers, Mask, decayed_path, ratio, running_sum
from streameval.events.action_sets import Index
from streameval.ope.core import Lift

HORIZON = 30_000.0
"""Horizon in events of the averages of `spread` and `moved`, which are noisy at any single moment."""
SPREAD, MOVED = 2.0, 1.0 / 3.0
"""The factors with which `spread` and `moved` enter the error."""
TOGETHER = 0.6
"""The share of the squared movement of the mean lift that enters the squared error, with many candidates."""
RECENT = 10_000.0
"""Horizon in events of the number of events that a lift could use."""
ENOUGH, TOO_FEW = 0.9, 0.5
"""Shares of the events that any lift could use: a preferred lift takes over from the first, the deciding one yields
below the second."""


class LiftState(Struct, frozen=True, eq=False):
    """Hold what is known about one lift; axis 0 counts candidates.

    Attributes:
        sums: of events, and of the averaged values with their weights [K, 11]
        last: the `Lift` of the last block end [K, 4]
        recent: the decayed number of events that both policies have [K]
    """

    sums: Array
    last: Array
    recent: Array


def start(candidates: int) -> LiftState:
    """Start before the first event."""
    last = np.column_stack([np.full((candidates, 3), np.nan), np.zeros(candidates)])
    return LiftState(np.zeros((candidates, 11)), last, np.zeros(candidates))


def follow(path: Lift, state: LiftState, sizes: Integers | int) -> tuple[Array, Array, LiftState]:
    """The `Lift` that rules read [4, blocks, candidates], `recent` [blocks, candidates], and the next state.

    `sizes`: the number of events in each block, [blocks] or one for all. A block that was left out
    changes nothing but `recent`.
    """
    sizes = np.broadcast_to(sizes, len(path.events))
    kept, after, sums = ~np.isnan(path.events[:, 0]), state.last.T[:, None], state.sums
    if kept.any():
        rows, sums = known(Lift(*(column[kept] for column in path)), sums, sizes[kept])
        after = np.concatenate([after, np.stack(rows)], axis=1)
    after = after[:, np.cumsum(kept)]
    recent = decayed_path(state.recent, np.nan_to_num(path.events), np.exp(-sizes / RECENT))
    return after, recent, LiftState(sums, after[:, -1].T.copy(), recent[-1])


def choose(recent: Array, before: Index) -> tuple[Index, Mask]:
    """The lift that decides after each block, and whether it differs from the one before, both [blocks, candidates].

    `recent` [lifts, blocks, candidates]: the number of recent events each could use, the preferred lift first.
    `before`: the lift that decided until now, -1 for none. A preferred lift takes over when it could use at least
    90 % of the events that any lift could use; the one that decides yields when it could use less than half of them.

    >>> counts = np.array([[[1.0], [40.0], [60.0], [90.0], [60.0], [49.0]], [[100.0]] * 6])
    >>> by, switched = choose(counts, np.array([-1]))
    >>> by.ravel(), switched.ravel()
    (array([1, 1, 1, 0, 0, 1]), array([False, False, False,  True, False,  True]))
    """
    most = recent.max(axis=0)
    fit = np.argmax(recent >= ENOUGH * most, axis=0)
    by = np.repeat(before[None], len(most), axis=0)
    if _changes(recent, most, fit, by).any():
        now = before
        for place in range(len(by)):
            here = slice(place, place + 1)
            changes = _changes(recent[:, here], most[here], fit[here], now[None])[0]
            now = by[place] = np.where(changes, fit[place], now)
    path = np.concatenate([before[None], by])
    return by, (path[1:] != path[:-1]) & (path[:-1] >= 0)


def _changes(recent: Array, most: Array, fit: Index, now: Index) -> Mask:
    own = np.take_along_axis(recent, np.maximum(now, 0)[None], axis=0)[0]
    return np.asarray((most > 0) & ((now < 0) | (fit < now) | (own < TOO_FEW * most)))


def known(path: Lift, before: Array, sizes: Integers) -> tuple[Lift, Array]:
    """The lift that rules read after each of these blocks, and the sums after them.

    `drift_square = (2 spread)^2 + (moved / 3)^2 + .6 (1 - 1 / K) together^2`. `spread^2` is the mean of the last 30,000
    events, and so is `moved^2`, the squared distance of the lift from its own mean of the last 30,000 events: a lift
    that moves much is less certain. `together^2` is the same of the mean lift of all K candidates: where the value of
    production drifts, the estimates of all candidates may follow late.
    """
    events = running_sum(before[:, 0], path.events)
    spread2, of_spread = recent_mean(path.drift_square, before[:, 1:3], sizes)
    moved2, of_value = _moved(path.value, before[:, 3:7], sizes)
    known = ~np.isnan(path.value)
    mean = ratio(np.where(known, path.value, 0.0).sum(axis=1), known.sum(axis=1))
    together2, of_mean = _moved(np.repeat(mean[:, None], path.value.shape[1], axis=1), before[:, 7:], sizes)
    after = np.concatenate([events[-1][:, None], of_spread, of_value, of_mean], axis=1)
    share = TOGETHER * (1.0 - 1.0 / np.maximum(known.sum(axis=1, keepdims=True), 1))
    drift_square = SPREAD**2 * spread2 + MOVED**2 * moved2 + share * together2
    return Lift(path.value, path.sampling_variance, drift_square, events), after


def _moved(values: Array, before: Array, sizes: Integers) -> tuple[Array, Array]:
    """The mean squared distance of values from their own mean, both over the last 30,000 events; and the sums after."""
    mean, of_values = recent_mean(values, before[:, :2], sizes)
    moved, of_moved = recent_mean((values - mean) ** 2, before[:, 2:], sizes)
    return moved, np.concatenate([of_values, of_moved], axis=1)


def recent_mean(values: Array, before: Array, sizes: Integers | int) -> tuple[Array, Array]:
    """The mean of values [blocks, candidates] over the last 30,000 events, NaN while unknown; and the sums after."""
    given = ~np.isnan(values)
    steps = np.stack([np.where(given, values, 0.0), given], axis=-1)
    sums = decayed_path(before, steps, np.exp(-np.asarray(sizes) / HORIZON))
    return ratio(sums[..., 0], sums[..., 1]), sums[-1]
