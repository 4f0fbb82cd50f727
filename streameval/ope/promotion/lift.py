"""Compute the lift that rules read: the paired difference to production after each block, and its error."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from streameval.common.arrays import Array, Integers, Mask, decayed_path, ratio, running_sum
from streameval.events.action_sets import Index
from streameval.ope.core import Lift

HORIZON = 30_000.0
"""Horizon in events of the averages of `spread` and `moved`, which are noisy at any single moment."""
SPREAD, MOVED = 2.0, 1.0 / 3.0
"""Factors of `spread` and `moved` in the error."""
SHARED_MOVEMENT = 0.6
"""Share of the squared movement of the mean lift that enters the squared error, with many candidates."""
RECENT = 10_000.0
"""Horizon in events of the number of events that a lift could use."""
ENOUGH, TOO_FEW = 0.9, 0.5
"""Shares of the events that any lift could use.

A preferred lift takes over from the first share, and the deciding one yields below the second.
"""


class LiftState(Struct, frozen=True, eq=False):
    """Hold what is known about one lift, with candidates on axis 0.

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
    """Return the `Lift` that rules read [4, blocks, candidates], `recent` [blocks, candidates], and the next state.

    A block that was left out changes nothing but `recent`.

    Args:
        path: the lift after each block
        state: the state before
        sizes: the number of events in each block, [blocks] or one for all
    """
    sizes = np.broadcast_to(sizes, len(path.events))
    is_known, after, sums = ~np.isnan(path.events[:, 0]), state.last.T[:, None], state.sums
    if is_known.any():
        rows, sums = add_errors(path.select_blocks(is_known), sums, sizes[is_known])
        after = np.concatenate([after, np.stack(rows[:4])], axis=1)
    after = after[:, np.cumsum(is_known)]
    recent = decayed_path(state.recent, np.nan_to_num(path.events), np.exp(-sizes / RECENT))
    return after, recent, LiftState(sums, after[:, -1].T.copy(), recent[-1])


def choose(recent: Array, before: Index) -> tuple[Index, Mask]:
    """Return the deciding lift after each block, and whether it differs from the one before [blocks, candidates].

    A preferred lift takes over when it could use at least 90 % of the events that any lift could use. The deciding lift
    yields when it could use less than half of them.

    Args:
        recent: the number of recent events that each lift could use, the preferred lift first [lifts, blocks,
            candidates]
        before: the lift that decided until now, -1 for none [candidates]

    >>> counts = np.array([[[1.0], [40.0], [60.0], [90.0], [60.0], [49.0]], [[100.0]] * 6])
    >>> by, switched = choose(counts, np.array([-1]))
    >>> by.ravel(), switched.ravel()
    (array([1, 1, 1, 0, 0, 1]), array([False, False, False,  True, False,  True]))
    """
    largest = recent.max(axis=0)
    fit = np.argmax(recent >= ENOUGH * largest, axis=0)
    by = np.repeat(before[None], len(largest), axis=0)
    if _changes(recent, largest, fit, by).any():
        now = before
        for index in range(len(by)):
            window = slice(index, index + 1)
            changes = _changes(recent[:, window], largest[window], fit[window], now[None])[0]
            now = by[index] = np.where(changes, fit[index], now)
    path = np.concatenate([before[None], by])
    return by, (path[1:] != path[:-1]) & (path[:-1] >= 0)


def _changes(recent: Array, largest: Array, fit: Index, now: Index) -> Mask:
    current = np.take_along_axis(recent, np.maximum(now, 0)[None], axis=0)[0]
    return np.asarray((largest > 0) & ((now < 0) | (fit < now) | (current < TOO_FEW * largest)))


def add_errors(path: Lift, before: Array, sizes: Integers) -> tuple[Lift, Array]:
    """Return the lift that rules read after each of these blocks, and the sums after them.

    `drift_square = (2 spread)^2 + (moved / 3)^2 + .6 (1 - 1 / K) together^2`. `spread^2` and `moved^2` are means over
    the last 30,000 events. `moved^2` averages the squared distance of the lift from its own mean over the last 30,000
    events, because a lift that moves much is less certain. `together^2` averages the squared mean distance of the K
    candidates that started with this one. If the value of production drifts, the estimates of all may follow late. A
    mean of distances does not move if one of the candidates leaves, unlike a mean of lifts.
    """
    events, age = running_sum(before[:, 0], path.events), before[:, 1] + sizes.sum()
    spread2, spread_sums = recent_mean(path.drift_square, before[:, 2:4], sizes)
    mean, value_sums = recent_mean(path.value, before[:, 4:6], sizes)
    distance = path.value - mean
    moved2, moved_sums = recent_mean(distance**2, before[:, 6:8], sizes)
    shared, number = _shared(distance, age)
    together2, shared_sums = recent_mean(shared**2, before[:, 8:], sizes)
    after = np.concatenate([events[-1:].T, age[:, None], spread_sums, value_sums, moved_sums, shared_sums], axis=1)
    share = SHARED_MOVEMENT * (1.0 - 1.0 / np.maximum(number, 1))
    drift_square = SPREAD**2 * spread2 + MOVED**2 * moved2 + share * together2
    return Lift(path.value, path.sampling_variance, drift_square, events), after


def _shared(distance: Array, age: Array) -> tuple[Array, Integers]:
    """Return the mean distance of the candidates with equal age, and their number, both [blocks, candidates]."""
    is_known = ~np.isnan(distance)
    filled, total, number = (
        np.where(is_known, distance, 0.0),
        np.zeros(distance.shape),
        np.zeros(distance.shape, dtype=int),
    )
    for started in np.unique(age):
        alike = age == started
        total[:, alike] = filled[:, alike].sum(axis=1, keepdims=True)
        number[:, alike] = is_known[:, alike].sum(axis=1, keepdims=True)
    return ratio(total, number), number


def recent_mean(values: Array, before: Array, sizes: Integers | int) -> tuple[Array, Array]:
    """Return means of values over the last 30,000 events [blocks, candidates], and the sums after them.

    The means are NaN while unknown.
    """
    is_known = ~np.isnan(values)
    steps = np.stack([np.where(is_known, values, 0.0), is_known], axis=-1)
    sums = decayed_path(before, steps, np.exp(-np.asarray(sizes) / HORIZON))
    return ratio(sums[..., 0], sums[..., 1]), sums[-1]
