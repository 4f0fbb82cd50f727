"""A ring of bucket sums: the recent past at a fixed resolution, only ever added up."""

from __future__ import annotations

from typing import Any

import numpy as np

from streameval.common.arrays import Array, State
from streameval.common.text import counted
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.moments import ALL_ROWS, merge, nothing, total


def start(columns: int, capacity: int) -> State:
    """A ring of full buckets [columns, buckets, rows], which grows to the `capacity`, and an open one."""
    counts = {"capacity": capacity, "written": 0, "open_events": 0}
    return {"full": np.zeros((columns, 0, ALL_ROWS)), "open": nothing(columns), **counts}


def full_bytes(state: Any) -> int:
    """Bytes of a nested state once each ring in it has all its buckets."""
    if isinstance(state, np.ndarray):
        return int(state.nbytes)
    if isinstance(state, list | tuple):
        return sum(map(full_bytes, state))
    if not isinstance(state, dict):
        return 0
    size = sum(map(full_bytes, state.values()))
    if "capacity" in state:
        columns, buckets, rows = state["full"].shape
        size += int(state["capacity"] - buckets) * columns * rows * state["full"].itemsize
    return size


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
    """Overwrite the oldest buckets; the array belongs to the state and is changed in place.

    Bucket number i lies at i modulo the capacity.
    """
    full, capacity, written = state["full"], state["capacity"], state["written"] + len(buckets)
    columns, places, rows = full.shape
    if places < min(written, capacity):
        grown = np.zeros((columns, min(max(written, 4 * places), capacity), rows))
        grown[:, :places] = full
        full = grown
    kept = buckets[-capacity:]
    full[:, np.arange(written - len(kept), written) % capacity] = kept.swapaxes(0, 1)
    return {**state, "full": full, "written": written}


def newest(state: State, count: int, columns: slice = slice(None)) -> Array:
    """The newest `count` full buckets (or as many as there are) from old to new, [buckets, columns, rows]."""
    kept = min(count, state["written"], state["capacity"])
    places = np.arange(state["written"] - kept, state["written"]) % state["capacity"]
    return np.asarray(state["full"][columns].take(places, axis=1).swapaxes(0, 1))


def concatenate(earlier: State, later: State) -> State:
    """The ring that saw the events of both.

    Raises:
        ValueError: The earlier one does not end with a full bucket.
    """
    if earlier["open_events"]:
        raise ValueError(
            f"the earlier part ends {counted(earlier['open_events'], 'event')} into a bucket: "
            "cut the stream at a bucket's end"
        )
    skipped = later["written"] - min(later["written"], later["capacity"])
    before = {**earlier, "full": earlier["full"].copy(), "written": earlier["written"] + skipped}
    joined = _append(before, newest(later, later["capacity"]))
    return {**joined, "open": later["open"], "open_events": later["open_events"]}


def events(state: State, resolution: int) -> int:
    """Events pushed so far."""
    return int(state["written"] * resolution + state["open_events"])


def last_events(state: State, tau: int, resolution: int, tail: Blocks | None) -> tuple[Array, int]:
    """Moments and number of the newest events, from the first end of a bucket that is at most `tau` events ago."""
    late = 0 if tail is None else tail.size
    closed = events(state, resolution)
    first = max(0, -(-(closed + late - tau) // resolution) * resolution)
    if tail is not None and first >= closed:
        return tail.piece(0, first - closed, late).moments[0], closed + late - first
    summed = merge(total(newest(state, state["written"] - first // resolution)), state["open"])
    return (summed if tail is None else merge(summed, tail.moments[0])), closed + late - first
