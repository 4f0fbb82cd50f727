"""A ring of bucket sums: the recent past at a fixed resolution, only ever added up."""

from __future__ import annotations

import numpy as np

from streameval.common.arrays import Array, State
from streameval.common.text import counted
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.moments import ALL_ROWS, merge, nothing, total


def start(columns: int, capacity: int) -> State:
    """A ring of `capacity` full buckets, [columns, buckets, rows], and an open one."""
    moments = {"full": _empty(columns, capacity), "open": nothing(columns)}
    return {"moments": moments, "written": 0, "open_events": 0}


def _empty(columns: int, capacity: int) -> Array:
    """Buckets of zeros, one after the other in memory, so that memory is touched only as the ring fills."""
    return np.zeros((capacity, columns, ALL_ROWS)).swapaxes(0, 1)


def push(state: State, blocks: Blocks, resolution: int) -> State:
    """Add whole blocks, in buckets of `resolution` events: a divisor or a multiple of the block's size."""
    if resolution == blocks.size:
        return _append(state, blocks.moments)
    if resolution < blocks.size:
        return _append(state, blocks.by_bucket(resolution).moments)
    per_bucket = resolution // blocks.size
    opened = state["open_events"] // blocks.size
    closing = min(len(blocks), per_bucket - opened)
    filled = merge(state["moments"]["open"], total(blocks.moments[:closing]))
    if opened + closing < per_bucket:
        return _with_open(state, filled, (opened + closing) * blocks.size)
    rest = blocks.moments[closing:]
    whole = len(rest) // per_bucket
    buckets = [filled] + [total(rest[index * per_bucket : (index + 1) * per_bucket]) for index in range(whole)]
    left = rest[whole * per_bucket :]
    return _with_open(_append(state, np.stack(buckets)), total(left), len(left) * blocks.size)


def _with_open(state: State, moments: Array, events: int) -> State:
    return {**state, "moments": {**state["moments"], "open": moments}, "open_events": events}


def _append(state: State, buckets: Array) -> State:
    """Overwrite the oldest buckets; the array belongs to the state and is changed in place."""
    written = state["written"] + len(buckets)
    _place(state["moments"]["full"], buckets, written)
    return {**state, "written": written}


def _place(ring: Array, buckets: Array, written: int) -> None:
    """Put the newest of `written` buckets in their places: bucket number i lies at i modulo the capacity."""
    capacity = ring.shape[1]
    kept = buckets[-capacity:]
    ring.swapaxes(0, 1)[np.arange(written - len(kept), written) % capacity] = kept


def newest(state: State, count: int, columns: slice = slice(None)) -> Array:
    """The newest `count` full buckets (or as many as there are) from old to new, [buckets, columns, rows]."""
    ring, written = state["moments"]["full"], state["written"]
    capacity = ring.shape[1]
    count = min(count, written, capacity)
    first, last = (written - count) % capacity, written % capacity
    if count and first >= last:
        return np.concatenate([ring[columns, first:], ring[columns, :last]], axis=1).swapaxes(0, 1)
    return np.asarray(ring[columns, first : first + count].swapaxes(0, 1))


def concatenate(earlier: State, later: State) -> State:
    """The ring that saw the events of both; ValueError unless the earlier one ends with a full bucket."""
    if earlier["open_events"]:
        raise ValueError(
            f"the earlier part ends {counted(earlier['open_events'], 'event')} into a bucket: "
            "cut the stream at a bucket's end"
        )
    full, written = earlier["moments"]["full"].copy(order="K"), earlier["written"] + later["written"]
    _place(full, newest(later, full.shape[1]), written)
    return {**later, "moments": {**later["moments"], "full": full}, "written": written}


def events(state: State, resolution: int) -> int:
    """Events pushed so far."""
    return int(state["written"] * resolution + state["open_events"])


def last_events(state: State, tau: int, resolution: int, tail: Blocks | None) -> tuple[Array, int]:
    """Moments and number of the newest events, from the first end of a bucket that is at most `tau` events ago."""
    late = 0 if tail is None else tail.size
    closed = events(state, resolution)
    first = max(0, -(-(closed + late - tau) // resolution) * resolution)
    if tail is not None and first >= closed:
        return tail.since(first - closed).moments[0], closed + late - first
    summed = merge(total(newest(state, state["written"] - first // resolution)), state["moments"]["open"])
    return (summed if tail is None else merge(summed, tail.moments[0])), closed + late - first


def to_state(state: State) -> State:
    """The ring without the places that are still empty, [buckets, columns, rows]: nothing is copied."""
    full = state["moments"]["full"]
    moments = {**state["moments"], "full": full.swapaxes(0, 1)[: state["written"]]}
    return {**state, "moments": moments, "capacity": full.shape[1]}


def from_state(saved: State) -> State:
    """The inverse of `to_state`."""
    filled = saved["moments"]["full"]
    full = _empty(filled.shape[1], saved["capacity"])
    full[:, : len(filled)] = filled.swapaxes(0, 1)
    kept = {name: value for name, value in saved.items() if name != "capacity"}
    return {**kept, "moments": {**saved["moments"], "full": full}}
