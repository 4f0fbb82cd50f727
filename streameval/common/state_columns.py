"""A state for other policies: the columns of those that stay are carried over, those that come begin with nothing.

Which axis of an array counts policies is not written down anywhere: it is the one that is longer in the fresh state of
one policy more. Where it is shorter than the number of policies, it counts all but the first: lifts over production.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from streameval.common.arrays import Array


def transplanted(state: Any, fresh: Callable[[int], Any], policies: int, places: Sequence[int | None]) -> Any:
    """The `state` of so many `policies` with other ones; `places`: where each was before, None for one that begins.

    `fresh` makes the state of any number of policies before the first event. Where there are arrays of all but the
    first policy, that one must be the same before and after.

    >>> start = lambda policies: {"events": 0, "sums": np.zeros((2, 3 * policies))}
    >>> state = {"events": 7, "sums": np.arange(12.0).reshape(2, 6)}
    >>> transplanted(state, start, 2, [1, None])["sums"]
    array([[ 3.,  4.,  5.,  0.,  0.,  0.],
           [ 9., 10., 11.,  0.,  0.,  0.]])
    """
    return _carried(state, fresh(policies), fresh(policies + 1), fresh(len(places)), policies, places)


def _carried(state: Any, small: Any, large: Any, new: Any, policies: int, places: Sequence[int | None]) -> Any:
    if isinstance(state, dict):
        return {key: _carried(state[key], small[key], large[key], new[key], policies, places) for key in state}
    if isinstance(state, list | tuple):
        return [_carried(*each, policies, places) for each in zip(state, small, large, new, strict=True)]
    if isinstance(state, np.ndarray):
        return _carried_array(state, small, large, new, policies, places)
    return state


def _carried_array(
    state: Array, small: Array, large: Array, new: Array, policies: int, places: Sequence[int | None]
) -> Array:
    longer = [axis for axis, (one, other) in enumerate(zip(small.shape, large.shape, strict=True)) if one != other]
    if not longer:
        return state
    axis = longer[0]
    per_policy = large.shape[axis] - small.shape[axis]
    first = policies - small.shape[axis] // per_policy
    places = [None if place is None else place - first for place in places[first:]]
    before = np.moveaxis(state, axis, 0)
    after = np.zeros((per_policy * len(places), *before.shape[1:]), dtype=state.dtype)
    beginning = np.moveaxis(new, axis, 0)
    if beginning.shape == after.shape:  # else it has grown with the stream, from nothing
        after[:] = beginning
    for place, old in enumerate(places):
        if old is not None:
            after[place * per_policy : (place + 1) * per_policy] = before[old * per_policy : (old + 1) * per_policy]
    return np.ascontiguousarray(np.moveaxis(after, 0, axis))
