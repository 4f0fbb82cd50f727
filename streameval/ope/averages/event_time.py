"""Windows and decays in event time: measured by the clock, not by the number of events.

The clock shows the newest timestamp that a tenth of a block has reached, and advances at the ends of blocks: a few
timestamps far in the future do not make all other events old. Events with a timestamp after the clock count as of now,
late events as of their timestamp, and events without a timestamp do not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from streameval.common.arrays import Array, Mask, State
from streameval.ope.averages.base import Kernel, KernelReading
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.drift_rate import DriftRate
from streameval.ope.averages.moments import ALL_ROWS, fade, fold, merge, nothing, total

BUCKETS = 100
"""The number of buckets of equal time in a window."""
REACHED_BY = 0.1
"""The clock shows a time that this share of a block has reached."""
FEW_RUNS = 8
"""Up to this many runs of events of one bucket are summed run by run, else event by event."""
NEVER = -math.inf

NO_BUCKET = int(np.iinfo(np.int64).min)


@dataclass(frozen=True)
class TimedWindow(Kernel):
    """The events of the last 99 to 100 hundredths of `span` seconds count alike; kept as sums over buckets of time."""

    span: float

    @property
    def width(self) -> float:
        """Seconds in a bucket."""
        return self.span / BUCKETS

    def start_kernel(self, columns: int, block: int) -> State:
        return {
            "clock": NEVER,
            "enough": math.ceil(REACHED_BY * block),
            "events": np.zeros((columns, BUCKETS)),
            "moments": np.zeros((columns, BUCKETS, ALL_ROWS)),
        }

    def fold_kernel(self, state: State, blocks: Blocks, rate: DriftRate) -> tuple[State, Array | float]:
        clocks = _clocks(state, blocks)
        numbers, clock = self._numbers(blocks, clocks), float(clocks[-1])
        events, moments, left = state["events"], state["moments"], ~self._within(state, clock)
        events[:, left] = moments[:, left] = 0.0
        for block in np.flatnonzero(numbers.max(axis=1) >= self._first(clock)).tolist():
            for number, count, added in _by_number(blocks, block, numbers[block]):
                if number >= self._first(clock):
                    place = number % BUCKETS
                    events[:, place] += count
                    moments[:, place] = merge(moments[:, place], added)
        after = {**state, "clock": clock, "events": events, "moments": moments}
        return after, _horizon(state["clock"], clocks, self.span, blocks)

    def read_kernel(self, state: State, tail: Blocks | None, rate: Array) -> KernelReading:
        clock = state["clock"] if tail is None else float(_clocks(state, tail)[-1])
        within = self._within(state, clock)
        events, moments = state["events"][:, within].sum(axis=1), total(state["moments"][:, within].swapaxes(0, 1))
        if tail is not None:
            (own,) = self._numbers(tail, np.array([clock])) >= self._first(clock)
            late = tail.moments if own.all() else tail.by_bucket(1).moments[own]
            moments, events = merge(moments, total(late)), events + np.count_nonzero(own)
        return moments, None, {"window_events": events}

    def merge_kernels(self, earlier: State, later: State) -> tuple[State, float, float]:
        clock = max(earlier["clock"], later["clock"])
        events, moments = [], []
        for part in (earlier, later):
            within = self._within(part, clock)
            events.append(part["events"] * within)
            moments.append(part["moments"] * within[:, None])
        merged = {"clock": clock, "events": sum(events), "moments": merge(*moments)}
        return {**later, **merged}, max(0.0, clock - earlier["clock"]), self.span

    def _numbers(self, blocks: Blocks, clocks: Array) -> NDArray[np.int64]:
        """The bucket of each event, [blocks, events]; bucket number i lies at i modulo their count."""
        times = np.minimum(blocks.times, clocks[:, None])
        known = np.isfinite(times)
        return np.where(known, np.floor(np.where(known, times, 0.0) / self.width).astype(np.int64), NO_BUCKET)

    def _first(self, clock: float) -> int:
        """The oldest bucket of the window that ends now."""
        return math.floor(clock / self.width) - BUCKETS + 1 if clock > NEVER else NO_BUCKET + 1

    def _within(self, state: State, clock: float) -> Mask:
        """Which buckets of a state are still in the window at this time."""
        if state["clock"] == NEVER:
            return np.ones(BUCKETS, dtype=bool)
        oldest = self._first(state["clock"])
        return np.asarray((np.arange(BUCKETS) - oldest) % BUCKETS >= self._first(clock) - oldest)


@dataclass(frozen=True)
class TimedDecay(Kernel):
    """An event that is `age` seconds old counts `0.5^(age / half_life)`, normalised."""

    half_life: float

    @property
    def horizon(self) -> float:
        """The mean age of what is averaged, in seconds."""
        return self.half_life / math.log(2.0)

    def start_kernel(self, columns: int, block: int) -> State:
        enough = math.ceil(REACHED_BY * block)
        return {"clock": NEVER, "enough": enough, "events": 0.0, "moments": nothing(columns)}

    def fold_kernel(self, state: State, blocks: Blocks, rate: DriftRate) -> tuple[State, Array | float]:
        clocks = _clocks(state, blocks)
        weights, faded = self._weights(blocks, clocks), self._faded(_passed(state["clock"], clocks))
        events = state["events"]
        for own, factor in zip(weights.sum(axis=1), faded, strict=True):
            events = events * factor + own
        moments = fold(state["moments"], blocks.weighed(weights), faded)
        after = {**state, "clock": float(clocks[-1]), "events": float(events), "moments": moments}
        return after, _horizon(state["clock"], clocks, self.horizon, blocks)

    def read_kernel(self, state: State, tail: Blocks | None, rate: Array) -> KernelReading:
        moments, events = state["moments"], state["events"]
        if tail is not None:
            clocks = _clocks(state, tail)
            weights, faded = self._weights(tail, clocks), self._faded(_passed(state["clock"], clocks))[0]
            moments = merge(fade(moments, faded), tail.weighed(weights)[0])
            events = events * faded + weights.sum()
        return moments, None, {"horizon_events": np.full(len(moments), float(events))}

    def merge_kernels(self, earlier: State, later: State) -> tuple[State, float, float]:
        clock = max(earlier["clock"], later["clock"])
        (first,), (second,) = (self._faded(_passed(part["clock"], np.array([clock]))) for part in (earlier, later))
        merged = {
            "clock": clock,
            "events": earlier["events"] * first + later["events"] * second,
            "moments": merge(fade(earlier["moments"], first), fade(later["moments"], second)),
        }
        return {**later, **merged}, float(_passed(earlier["clock"], np.array([clock]))[0]), self.horizon

    def _weights(self, blocks: Blocks, clocks: Array) -> Array:
        """The weight of each event at the end of its block, [blocks, events]."""
        with np.errstate(invalid="ignore"):
            weights = self._faded(clocks[:, None] - np.minimum(blocks.times, clocks[:, None]))
        return np.nan_to_num(weights)

    def _faded(self, seconds: Array) -> Array:
        return np.asarray(0.5 ** (seconds / self.half_life))


def _by_number(blocks: Blocks, block: int, numbers: NDArray[np.int64]) -> Iterator[tuple[int, int, Array]]:
    """The buckets of the events of a block, the number of its events in each, and their moments."""
    starts = np.flatnonzero(np.diff(numbers)) + 1
    if not len(starts):
        yield int(numbers[0]), len(numbers), blocks.moments[block]
    elif len(starts) < FEW_RUNS:
        for start, stop in pairwise([0, *starts.tolist(), len(numbers)]):
            yield int(numbers[start]), stop - start, blocks.piece(block, start, stop).moments[0]
    else:
        single = blocks.piece(block, 0, len(numbers)).by_bucket(1).moments
        for number in np.unique(numbers).tolist():
            yield number, int(np.count_nonzero(numbers == number)), total(single[numbers == number])


def _clocks(state: State, blocks: Blocks) -> Array:
    """The clock at the end of each block, [blocks]; a few events move it only if it has no time yet."""
    times = np.where(np.isnan(blocks.times), NEVER, blocks.times)
    enough = min(state["enough"], blocks.size)
    if enough < state["enough"] and state["clock"] > NEVER:
        return np.full(len(blocks), state["clock"])
    reached = np.partition(times, blocks.size - enough, axis=1)[:, blocks.size - enough]
    return np.maximum.accumulate(np.append(state["clock"], reached))[1:]


def _passed(before: float, clocks: Array) -> Array:
    """Seconds that each block took; 0 if there was no time before."""
    earlier = np.append(before, clocks[:-1])
    known = np.isfinite(earlier)
    return np.where(known, clocks - np.where(known, earlier, 0.0), 0.0)


def _horizon(before: float, clocks: Array, seconds: float, blocks: Blocks) -> Array:
    """A number of seconds in events, at the rate of each block: [blocks, columns]."""
    with np.errstate(divide="ignore"):
        events = blocks.size * seconds / _passed(before, clocks)
    return np.repeat(events[:, None], blocks.moments.shape[1], axis=1)
