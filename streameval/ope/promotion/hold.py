"""The hold period: a rule must pass at some block ends in a row before a candidate is promotable."""

from __future__ import annotations

import numpy as np

from streameval.common.arrays import Array, Mask, State

KEPT = 200
"""The number of transitions kept, the newest ones."""


def held(enter: Mask, stay: Mask, before: Array, hold: int) -> Array:
    """For how many block ends in a row each rule has passed, after each block, [blocks, candidates].

    A rule that fails counts from zero. Once it has passed `hold` times, the weaker condition `stay` keeps the count, so
    that a bound that wavers about its limit does not alert at every crossing.

    >>> enter, stay = np.array([[True], [False], [False], [True]]), np.array([[True], [True], [False], [True]])
    >>> held(enter, stay, before=np.array([5.0]), hold=3).ravel(), held(enter, stay, np.array([0.0]), 3).ravel()
    (array([6., 6., 0., 1.]), array([1., 0., 0., 1.]))
    """
    if not enter.any() and (before < hold).all():
        return np.zeros(enter.shape)
    path, now = np.empty(enter.shape), before
    for place, (enters, stays) in enumerate(zip(enter, stay, strict=True)):
        path[place] = now = np.where(enters, now + 1, np.where(stays & (now >= hold), now, 0.0))
    return path


def start(candidates: int) -> State:
    """The state before any candidate was promotable; candidates are axis 0."""
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
    state: State, enter: Mask, stay: Mask, lift: Array, numbers: Array, times: Array, hold: int, block: int
) -> tuple[State, list[tuple[int, int, bool]]]:
    """The state after some blocks, and the transitions: candidate, block, and whether it became promotable.

    In the state, `times` counts how often a candidate became promotable and `total` the events for which it was;
    `since` and `first` are the start of the present stretch (NaN: none) and of the first one; `later` sums the lift at
    all block ends after that first start.

    Args:
        enter, stay, lift: [blocks, candidates], see `Judgement`.
        numbers, times: [blocks], the number of each block's last event and the newest event time until then.
    """
    path = held(enter, stay, state["held"], hold)
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
        starts = bool(promotable[place + 1, candidate])
        known = {"event": numbers[place], "time": times[place], "lift": lift[place, candidate]}
        first = starts and np.isnan(after["first"]["event"][candidate])
        for name, value in known.items():
            after["since"][name][candidate] = value if starts else np.nan
            if first:
                after["first"][name][candidate] = value
        changes.append((candidate, place, starts))
    later = (numbers[:, None] > after["first"]["event"]) & ~np.isnan(lift)
    after["later"] = {
        "lift": state["later"]["lift"] + np.where(later, lift, 0.0).sum(axis=0),
        "blocks": state["later"]["blocks"] + np.count_nonzero(later, axis=0),
    }
    return after, changes
