"""A ring of bucket sums: the recent past at a fixed resolution, only ever added up.

Many rows of moments are equal in every bucket: those of estimators with the same terms, those of all policies where
none of them lacks events, and where rewards are 0 or 1 those of `r` and `r^2`. Rows that have always been equal are
kept as one series. They part for good at the first bucket in which they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streameval.common.arrays import Array, Integers, State, take_columns
from streameval.common.text import counted
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.moments import ALL_ROWS, MAXIMA, merge, nothing, total

EXPECTED_SERIES = 12
"""The number of series a column expected before the first bucket. Those of estimators with the same terms are fewer."""


def start(columns: int, capacity: int) -> State:
    """A ring of full buckets [series, buckets], which grows to the `capacity`, and an open bucket [columns, rows].

    `series` [columns, rows]: the series that each row is, numbered in the order of their first rows.
    """
    counts = {"capacity": capacity, "written": 0, "open_events": 0}
    none = {"series": np.zeros((columns, ALL_ROWS), dtype=np.int64), "full": np.zeros((0, 0))}
    return {**none, "open": nothing(columns), **counts}


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
        full = state["full"]
        series = len(full) or EXPECTED_SERIES * len(state["series"])
        size += (int(state["capacity"]) * series - full.size) * full.itemsize
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
    capacity, written, rows = state["capacity"], state["written"] + len(buckets), buckets.reshape(len(buckets), -1)
    series, full = _parted(state["series"], state["full"], rows)
    count, places = full.shape
    if places < min(written, capacity):
        grown = np.zeros((count, min(max(written, 4 * places), capacity)))
        grown[:, :places] = full
        full = grown
    kept = rows[-capacity:, _first_rows(series, count)]
    full[:, np.arange(written - len(kept), written) % capacity] = kept.T
    return {**state, "series": series, "full": full, "written": written}


def _first_rows(series: Integers, count: int) -> Integers:
    """The place of the first row of each of `count` series."""
    flat, first = series.ravel(), np.zeros(count, dtype=np.int64)
    first[flat[::-1]] = np.arange(flat.size)[::-1]  # of several, the last assignment remains
    return first


def _parted(series: Integers, full: Array, rows: Array) -> tuple[Integers, Array]:
    """The series and their past, with one for each set of rows that have been equal, also in these [buckets, all rows].

    The result does not depend on how buckets are cut.
    """
    flat = series.ravel()
    apart = ~(rows[:, _first_rows(series, len(full) or 1)[flat]] == rows).all(axis=0)
    if not apart.any() and len(full):
        return series, full
    numbers: dict[tuple[int, bytes], int] = {}
    past: list[int] = []
    parted = np.empty_like(flat)
    for place, (number, differs, values) in enumerate(zip(flat.tolist(), apart.tolist(), rows.T.copy(), strict=True)):
        key = number, values.tobytes() if differs else b""
        if key not in numbers:
            numbers[key] = len(past)
            past.append(number)
        parted[place] = numbers[key]
    earlier = full if len(full) else np.zeros((1, 0))
    return parted.reshape(series.shape), earlier[past]


def newest(state: State, count: int) -> Array:
    """The newest `count` full buckets (or as many as there are) from old to new, [buckets, columns, rows]."""
    return np.asarray(state["full"][:, _places(state, count)].T[:, state["series"]])


def _places(state: State, count: int) -> Integers:
    """Where the newest `count` full buckets lie (or as many as there are), from old to new."""
    kept = min(count, state["written"], state["capacity"])
    places = np.arange(state["written"] - kept, state["written"])
    return np.asarray(places % state["capacity"])


def newest_total(state: State, count: int, columns: slice | Integers = slice(None)) -> Array:
    """The moments of the newest `count` full buckets together, [columns, rows]."""
    numbers = state["series"][columns]
    if not len(state["full"]):
        return nothing(len(numbers))
    wanted, place = np.unique(numbers, return_inverse=True)
    values = state["full"][np.ix_(wanted, _places(state, count))]
    place = place.reshape(numbers.shape)
    moments = values.sum(axis=1)[place]
    moments[:, MAXIMA] = values.max(axis=1, initial=0.0)[place[:, MAXIMA]]
    return np.asarray(moments)


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
    if not later["written"]:
        return {**earlier, "open": later["open"], "open_events": later["open_events"]}
    skipped = later["written"] - min(later["written"], later["capacity"])
    before = {**earlier, "full": earlier["full"].copy(), "written": earlier["written"] + skipped}
    joined = _append(before, newest(later, later["capacity"]))
    return {**joined, "open": later["open"], "open_events": later["open_events"]}


def select(state: State, policies: int, index: Sequence[int], columns: Sequence[int]) -> State:
    """The ring of some columns: see `take_columns`."""
    full = state["full"]
    taken: State = take_columns({**state, "full": None}, policies, index, columns)
    wanted = _first_seen(taken["series"])
    if not len(full) or len(wanted) == len(full):
        return {**taken, "full": full}
    numbers = np.zeros(len(full), dtype=np.int64)
    numbers[wanted] = np.arange(len(wanted))
    return {**taken, "series": numbers[taken["series"]], "full": full[wanted]}


def _first_seen(series: Integers) -> Integers:
    """The numbers of the series in the order of their first rows."""
    numbers, first = np.unique(series, return_index=True)
    return np.asarray(numbers[np.argsort(first)])


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
    summed = merge(newest_total(state, state["written"] - first // resolution), state["open"])
    return (summed if tail is None else merge(summed, tail.moments[0])), closed + late - first
