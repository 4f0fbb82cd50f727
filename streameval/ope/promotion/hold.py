"""Holding: a test must pass for some block ends in a row; what has come of it, and when, is written down."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streameval.common.arrays import Array, Mask, State

KEPT = 200
"""Transitions that are remembered, the newest ones."""


def held(passed: Mask, kept: Mask, before: Array, hold: int) -> Array:
    """For how many block ends in a row each test has passed, after each block, [blocks, candidates].

    A test that fails begins anew; but once it has passed `hold` times, it is let through for as long as what `kept`
    asks is fulfilled, which is less: a bound that wavers about its limit must not ring each time it crosses.

    >>> passed, kept = np.array([[True], [False], [False], [True]]), np.array([[True], [True], [False], [True]])
    >>> held(passed, kept, before=np.array([5.0]), hold=3).ravel(), held(passed, kept, np.array([0.0]), 3).ravel()
    (array([6., 6., 0., 1.]), array([1., 0., 0., 1.]))
    """
    if not passed.any() and (before < hold).all():
        return np.zeros(passed.shape)
    path, now = np.empty(passed.shape), before
    for place, (passes, keeps) in enumerate(zip(passed, kept, strict=True)):
        path[place] = now = np.where(passes, now + 1, np.where(keeps & (now >= hold), now, 0.0))
    return path


class BlockClock(NamedTuple):
    """The number of the last event of each block, and the newest event time until then (NaN: not known), [blocks]."""

    events: Array
    times: Array


def start(candidates: int) -> State:
    """Nothing has been promotable yet."""
    nothing = np.full(candidates, np.nan)
    return {
        "held": np.zeros(candidates),
        "times": np.zeros(candidates),
        "total": np.zeros(candidates),
        "later": {"lift": np.zeros(candidates), "blocks": np.zeros(candidates)},
        "since": {name: nothing.copy() for name in ("event", "time", "lift")},
        "first": {name: nothing.copy() for name in ("event", "time", "lift")},
    }


def fold(
    state: State, passed: Mask, kept: Mask, lift: Array, clock: BlockClock, hold: int, block: int
) -> tuple[State, list[tuple[int, int, bool]]]:
    """The state after some blocks, and what changed: candidate, block, and whether it is promotable since.

    `times` counts how often a candidate became promotable, `total` the events for which it was; `since` and `first`
    tell of the stretch that lasts (NaN: none) and of the first one, `later` sums the lift at all block ends after its
    beginning.
    """
    path = held(passed, kept, state["held"], hold)
    promotable = np.concatenate([state["held"][None], path]) >= hold
    after = {
        "held": path[-1],
        "times": state["times"] + np.count_nonzero(~promotable[:-1] & promotable[1:], axis=0),
        "total": state["total"] + block * np.count_nonzero(promotable[1:], axis=0),
        "since": {name: column.copy() for name, column in state["since"].items()},
        "first": {name: column.copy() for name, column in state["first"].items()},
    }
    changes = []
    for place, candidate in np.argwhere(promotable[:-1] != promotable[1:]).tolist():
        begins = bool(promotable[place + 1, candidate])
        known = {"event": clock.events[place], "time": clock.times[place], "lift": lift[place, candidate]}
        earliest = begins and np.isnan(after["first"]["event"][candidate])
        for name, value in known.items():
            after["since"][name][candidate] = value if begins else np.nan
            if earliest:
                after["first"][name][candidate] = value
        changes.append((candidate, place, begins))
    later = (clock.events[:, None] > after["first"]["event"]) & ~np.isnan(lift)
    after["later"] = {
        "lift": state["later"]["lift"] + np.where(later, lift, 0.0).sum(axis=0),
        "blocks": state["later"]["blocks"] + np.count_nonzero(later, axis=0),
    }
    return after, changes
