"""A ring of bucket sums: the recent past at a fixed resolution, added up and never subtracted from."""

from __future__ import annotations

import numpy as np

from streameval.common.arrays import Array, State
from streameval.common.text import counted
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.moments import ALL_ROWS, merge, nothing, total


def start(columns: int, capacity: int) -> State:
    """A ring for `capacity` full buckets and the one being filled; memory is touched only as it fills."""
    return {
        "buckets": np.zeros((capacity, columns, ALL_ROWS)),
        "written": 0,
        "open": nothing(columns),
        "open_events": 0,
    }


def push(state: State, blocks: Blocks, resolution: int) -> State:
    """Add whole blocks, in buckets of `resolution` events: a divisor or a multiple of the block's size."""
    if resolution == blocks.size:
        return _append(state, blocks.moments)
    if resolution < blocks.size:
        return _append(state, blocks.by_bucket(resolution).moments)
    per_bucket = resolution // blocks.size
    opened = state["open_events"] // blocks.size
    closing = min(len(blocks), per_bucket - opened)
    filled = merge(state["open"], total(blocks.moments[:closing]))
    if opened + closing < per_bucket:
        return {**state, "open": filled, "open_events": (opened + closing) * blocks.size}
    rest = blocks.moments[closing:]
    whole = len(rest) // per_bucket
    buckets = [filled] + [total(rest[index * per_bucket : (index + 1) * per_bucket]) for index in range(whole)]
    left = rest[whole * per_bucket :]
    return {**_append(state, np.stack(buckets)), "open": total(left), "open_events": len(left) * blocks.size}


def _append(state: State, buckets: Array) -> State:
    """Overwrite the oldest buckets; the array belongs to the state and is changed in place."""
    written = state["written"] + len(buckets)
    _place(state["buckets"], buckets, written)
    return {**state, "written": written}


def _place(ring: Array, buckets: Array, written: int) -> None:
    """Put buckets where the newest of `written` buckets belong: bucket number i lies at place i modulo the capacity."""
    kept = buckets[-len(ring) :]
    ring[np.arange(written - len(kept), written) % len(ring)] = kept


def newest(state: State, count: int, columns: slice = slice(None)) -> Array:
    """The newest `count` full buckets (or as many as there are) from old to new, [buckets, columns, rows]."""
    ring, written = state["buckets"], state["written"]
    count = min(count, written, len(ring))
    first, last = (written - count) % len(ring), written % len(ring)
    if count and first >= last:
        return np.concatenate([ring[first:, columns], ring[:last, columns]])
    return np.asarray(ring[first : first + count, columns])


def concatenate(earlier: State, later: State) -> State:
    """The ring that saw the events of both; ValueError unless the earlier one ends with a full bucket."""
    if earlier["open_events"]:
        raise ValueError(
            f"the earlier part ends {counted(earlier['open_events'], 'event')} into a bucket: "
            "cut the stream at a bucket's end"
        )
    buckets, written = earlier["buckets"].copy(), earlier["written"] + later["written"]
    _place(buckets, newest(later, len(buckets)), written)
    return {**later, "buckets": buckets, "written": written}


def events(state: State, resolution: int) -> int:
    """Events pushed so far."""
    return int(state["written"] * resolution + state["open_events"])


def last_events(state: State, tau: int, resolution: int, tail: Blocks | None) -> tuple[Array, int]:
    """Moments and number of the newest events: from the first end of a bucket that is at most `tau` events ago."""
    late = 0 if tail is None else tail.size
    closed = events(state, resolution)
    first = max(0, -(-(closed + late - tau) // resolution) * resolution)
    if tail is not None and first >= closed:
        return tail.since(first - closed).moments[0], closed + late - first
    moments = total(newest(state, state["written"] - first // resolution))
    moments = merge(moments, state["open"])
    return (moments if tail is None else merge(moments, tail.moments[0])), closed + late - first


def to_state(state: State) -> State:
    """The ring as it lies in memory, without the places that are still empty: nothing is copied."""
    kept = {key: value for key, value in state.items() if key != "buckets"}
    ring = state["buckets"]
    return {**kept, "places": ring[: min(state["written"], len(ring))], "capacity": len(ring)}


def from_state(saved: State) -> State:
    """The inverse of `to_state`; earlier versions wrote `buckets` from old to new."""
    saved = dict(saved)
    if "buckets" in saved:
        buckets = saved["buckets"]
        ring = np.zeros((saved.pop("capacity"), *buckets.shape[1:]))
        _place(ring, buckets, saved["written"])
        return {**saved, "buckets": ring}
    places = saved.pop("places")
    ring = np.zeros((saved.pop("capacity"), *places.shape[1:]))
    ring[: len(places)] = places
    return {**saved, "buckets": ring}
