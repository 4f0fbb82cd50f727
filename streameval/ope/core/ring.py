"""Keep the recent past as sums over buckets of blocks, only ever added up."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from streameval.common.arrays import Array, Integers, Mask
from streameval.ope.core.layout import FADING_MAXIMUM, MAXIMUM


class Ring(msgspec.Struct):
    """Buckets of one length: full ones in a circle, and an open one.

    Attributes:
        full: [P, capacity so far, rows]
        open: [P, rows]
        capacity: the largest number of full buckets
        written: the number of full buckets so far
        open_events: events in the open bucket
    """

    full: Array
    open: Array
    capacity: int
    written: int = 0
    open_events: int = 0


def start(policies: int, rows: int, capacity: int) -> Ring:
    """Start without buckets."""
    return Ring(np.zeros((policies, 0, rows)), np.zeros((policies, rows)), capacity)


def is_maximum(power: Integers) -> Mask:
    """Return which rows are maxima."""
    return np.asarray((power == MAXIMUM) | (power == FADING_MAXIMUM))


def merge(older: Array, newer: Array, maxima: Mask) -> Array:
    """Merge the rows of two disjoint sets of events: sums add, maxima compare."""
    return np.where(maxima, np.maximum(older, newer), older + newer)


def total(parts: Array, maxima: Mask) -> Array:
    """Merge all parts along the second axis, [P, parts, rows] to [P, rows]."""
    merged = np.asarray(parts.sum(axis=1))
    merged[:, maxima] = parts[:, :, maxima].max(axis=1, initial=0.0)
    return merged


def _capacity(buckets: int, limit: int) -> int:
    """Return the capacity to allocate for this number of buckets, however they have come."""
    return min(limit, 1 << max(3, (buckets - 1).bit_length()))


def append(ring: Ring, buckets: Array) -> None:
    """Add full buckets [buckets, P, rows], which take the places of the oldest ones."""
    written, capacity = ring.written + len(buckets), ring.capacity
    policies, indices, rows = ring.full.shape
    if indices < min(written, capacity):
        grown = np.zeros((policies, _capacity(written, capacity), rows))
        grown[:, :indices] = ring.full
        ring.full = grown
    kept = buckets[-capacity:]
    ring.full[:, np.arange(written - len(kept), written) % capacity] = kept.swapaxes(0, 1)
    ring.written = written


def push(ring: Ring, blocks: Array, size: int, resolution: int, maxima: Mask) -> None:
    """Add blocks [B, P, rows] of `size` events in buckets of `resolution` events, a multiple of the size."""
    per_bucket = resolution // size
    if per_bucket == 1:
        append(ring, blocks)
        return
    index = ring.open_events // size
    for block in blocks:
        ring.open = merge(ring.open, block, maxima)
        index += 1
        if index == per_bucket:
            append(ring, ring.open[None])
            ring.open, index = np.zeros_like(ring.open), 0
    ring.open_events = index * size


def padded(ring: Ring, written: int) -> Ring:
    """Return a ring as if so many buckets had been written: the oldest ones have no events."""
    if written == ring.written:
        return ring
    kept = np.arange(max(0, ring.written - ring.capacity), ring.written)
    full = np.zeros((len(ring.full), _capacity(written, ring.capacity), ring.full.shape[2]))
    full[:, (kept + written - ring.written) % ring.capacity] = ring.full[:, kept % ring.capacity]
    return msgspec.structs.replace(ring, full=full, written=written)


def newest(ring: Ring, count: int, maxima: Mask) -> Array:
    """Merge the newest `count` full buckets, or as many as there are, [P, rows]."""
    kept = min(count, ring.written, ring.capacity)
    if not kept:
        return np.zeros_like(ring.open)
    return total(ring.full[:, np.arange(ring.written - kept, ring.written) % ring.capacity], maxima)


def full_bytes(state: Any) -> int:
    """Return the bytes of a nested state once all its windows are full."""
    if isinstance(state, np.ndarray):
        return int(state.nbytes)
    if isinstance(state, Ring):
        return int(state.open.nbytes * (state.capacity + 1))
    if isinstance(state, Ladder):
        limits = sum(_limit(level) for level in range(len(state.levels)))
        return int(limits * state.levels[0].itemsize * len(state.levels[0]) * state.levels[0].shape[-1])
    if isinstance(state, msgspec.Struct):
        return sum(full_bytes(getattr(state, name)) for name in state.__struct_fields__)
    if isinstance(state, dict):
        return sum(map(full_bytes, state.values()))
    return sum(map(full_bytes, state)) if isinstance(state, list | tuple) else 0


class Ladder(msgspec.Struct):
    """Buckets of blocks that grow coarser with age: a bucket is at most 1 % as long as it is old.

    Level l has buckets of `2^l` blocks, the newest last. If a level has one bucket too many, its two oldest become one
    of the next level.

    Attributes:
        levels: of each level [P, buckets, rows]
        numbers: the number of buckets of each level
        first: the place of the oldest bucket of each level
    """

    levels: list[Array]
    numbers: list[int]
    first: list[int]


FINEST, COARSER = 200, 100
"""The number of buckets of the first level and of the others, with which no bucket is longer than 1 % of its age."""


def start_ladder(policies: int, rows: int, blocks: int) -> Ladder:
    """Start without buckets, with room for `blocks` blocks or more."""
    kept, count, level = FINEST, 1, 0
    while kept < blocks:
        level += 1
        kept, count = kept + COARSER * 2**level, count + 1
    return Ladder([np.zeros((policies, 0, rows)) for _ in range(count)], [0] * count, [0] * count)


def climb(ladder: Ladder, blocks: Array, maxima: Mask) -> None:
    """Add blocks [B, P, rows]."""
    for first in range(0, len(blocks), COARSER):
        _put(ladder, 0, blocks[first : first + COARSER], maxima)


def _limit(level: int) -> int:
    return (FINEST if level == 0 else COARSER) + 1


def _put(ladder: Ladder, level: int, buckets: Array, maxima: Mask) -> None:
    """Add buckets [buckets, P, rows] to a level. If its circle is full, its oldest two become one a level higher."""
    limit, number, kept = _limit(level), ladder.numbers[level], ladder.levels[level]
    after = number + len(buckets)
    if kept.shape[1] < min(after, limit):
        grown = np.zeros((len(kept), _capacity(after, limit), kept.shape[2]))
        grown[:, :number] = kept[:, :number]
        ladder.levels[level] = kept = grown
    if after > limit:
        last, first = level == len(ladder.levels) - 1, ladder.first[level]
        gone = after - limit if last else 2 * -((limit - after) // 2)
        oldest = kept[:, (first + np.arange(gone)) % limit].swapaxes(0, 1)
        ladder.first[level] = (first + gone) % limit
        number, after = number - gone, after - gone
        if not last:
            _put(ladder, level + 1, merge(oldest[::2], oldest[1::2], maxima), maxima)
    kept[:, (ladder.first[level] + np.arange(number, after)) % limit] = buckets.swapaxes(0, 1)
    ladder.numbers[level] = after


def blocks(ladder: Ladder) -> int:
    """Return the number of blocks that are kept."""
    return sum(number << level for level, number in enumerate(ladder.numbers))


def laid_out(ladder: Ladder, like: Ladder, maxima: Mask) -> Ladder:
    """Return the same blocks in the buckets of a ladder with more blocks: each bucket goes to the one at its middle."""
    rows, ends = unrolled(ladder)
    _, edges = unrolled(like)
    indices = np.searchsorted(edges, (ends + np.append(0, ends)[:-1]) / 2)
    added, largest = np.zeros((2, len(edges), len(rows), rows.shape[2]))
    np.add.at(added, indices, rows.swapaxes(0, 1))
    np.maximum.at(largest, indices, rows.swapaxes(0, 1))
    every = np.where(maxima, largest, added).swapaxes(0, 1)
    levels, start = [], 0
    for level, (kept, number, first) in enumerate(zip(like.levels, like.numbers, like.first, strict=True)):
        laid = np.zeros((len(rows), *kept.shape[1:]))
        laid[:, (first + np.arange(number)[::-1]) % _limit(level)] = every[:, start : start + number]
        levels.append(laid)
        start += number
    return Ladder(levels, list(like.numbers), list(like.first))


def unrolled(ladder: Ladder) -> tuple[Array, Integers]:
    """Return all buckets from new to old [P, buckets, rows], and the number of blocks up to each."""
    parts, lengths = [], []
    for level, (kept, number) in enumerate(zip(ladder.levels, ladder.numbers, strict=True)):
        limit = _limit(level)
        indices = (ladder.first[level] + np.arange(number)) % limit
        parts.append(kept[:, indices[::-1]])
        lengths += [2**level] * number
    return np.concatenate(parts, axis=1), np.cumsum(np.array(lengths, dtype=np.int64))
