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
        sums: of events, of all events since the start, and of the averaged values with their weights [K, 10]
        last: the `Lift` of the last block end [K, 4]
        recent: the decayed number of events that both policies have [K]
    """

    sums: Array
    last: Array
    recent: Array


def start(candidates: int) -> LiftState:
    """Start before the first event."""
    last = np.column_stack([np.full((candidates, 3), np.nan), np.zeros(candidates)])
    return LiftState(np.zeros((candidates, 10)), last, np.zeros(candidates))


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
    that moves much is less certain. `together^2` is the same for the mean distance of the K candidates that started
    with this one: if the value of production drifts, the estimates of all may follow late. A mean of distances, and not
    of lifts, does not move if one of them leaves.
    """
    events, age = running_sum(before[:, 0], path.events), before[:, 1] + sizes.sum()
    spread2, of_spread = recent_mean(path.drift_square, before[:, 2:4], sizes)
    mean, of_value = recent_mean(path.value, before[:, 4:6], sizes)
    distance = path.value - mean
    moved2, of_moved = recent_mean(distance**2, before[:, 6:8], sizes)
    shared, number = _shared(distance, age)
    together2, of_shared = recent_mean(shared**2, before[:, 8:], sizes)
    after = np.concatenate([events[-1:].T, age[:, None], of_spread, of_value, of_moved, of_shared], axis=1)
    share = TOGETHER * (1.0 - 1.0 / np.maximum(number, 1))
    drift_square = SPREAD**2 * spread2 + MOVED**2 * moved2 + share * together2
    return Lift(path.value, path.sampling_variance, drift_square, events), after


def _shared(distance: Array, age: Array) -> tuple[Array, Integers]:
    """Return the mean distance of the candidates of the same age, and their number, both [blocks, candidates]."""
    known = ~np.isnan(distance)
    given, total, number = np.where(known, distance, 0.0), np.zeros(distance.shape), np.zeros(distance.shape, dtype=int)
    for each in np.unique(age):
        alike = age == each
        total[:, alike] = given[:, alike].sum(axis=1, keepdims=True)
        number[:, alike] = known[:, alike].sum(axis=1, keepdims=True)
    return ratio(total, number), number


def recent_mean(values: Array, before: Array, sizes: Integers | int) -> tuple[Array, Array]:
    """The mean of values [blocks, candidates] over the last 30,000 events, NaN while unknown; and the sums after."""
    given = ~np.isnan(values)
    steps = np.stack([np.where(given, values, 0.0), given], axis=-1)
    sums = decayed_path(before, steps, np.exp(-np.asarray(sizes) / HORIZON))
    return ratio(sums[..., 0], sums[..., 1]), sums[-1]
