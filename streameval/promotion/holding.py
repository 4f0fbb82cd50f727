"""Holding: a test must pass for some block ends in a row; what has come of it, and when, is written down."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streameval.arrays import Array, Mask, State

KEPT = 200
"""Transitions that are remembered, the newest ones."""


def held(passed: Mask, before: Array) -> Array:
    """For how many block ends in a row each test has passed, after each block, [blocks, candidates].

    A test that fails begins anew.

    >>> passed = np.array([[True], [True], [False], [True]])
    >>> held(passed, before=np.array([5.0])).ravel()
    array([6., 7., 0., 1.])
    """
    place = np.arange(1, len(passed) + 1)[:, None]
    failed = np.maximum.accumulate(np.where(passed, 0, place))
    return np.asarray(np.where(failed > 0, place - failed, before + place), dtype=float)


class Clock(NamedTuple):
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
        "since": {name: nothing.copy() for name in ("event", "time", "lift")},
        "first": {name: nothing.copy() for name in ("event", "time", "lift")},
    }


def fold(
    state: State, passed: Mask, lift: Array, clock: Clock, hold: int, block: int
) -> tuple[State, list[tuple[int, int, bool]]]:
    """The state after some blocks, and what changed: candidate, block, and whether it is promotable since.

    `times` counts how often a candidate became promotable, `total` the events for which it was; `since` and `first`
    tell of the stretch that lasts (NaN: none) and of the first one.
    """
    path = held(passed, state["held"])
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
    return after, changes
