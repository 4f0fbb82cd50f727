"""Averages whose memory is fixed beforehand: all events, a window, a decay; in events or by the clock.

The clock shows the newest timestamp that a tenth of a block has reached, and advances at the ends of blocks: a few
timestamps far in the future do not make all other events old. Events with a timestamp after the clock count as of now,
late events as of their timestamp, and events without a timestamp do not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, Mask, State, ratio
from streameval.common.component import strict
from streameval.common.text import Duration, EventsOrDuration, counted, parse_duration
from streameval.ope.averages import ring
from streameval.ope.averages.base import Kernel, KernelAverage, KernelReading
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.drift_rate import DriftRateEstimator, decay_bias, window_bias
from streameval.ope.averages.moments import ALL_ROWS, fade, fold, merge, nothing, total

DEFAULT_TAU, DEFAULT_ALPHA = 10_000, 0.9999
BUCKETS = 100
"""The number of buckets of equal time in a window of time; a window of events has about as many by default."""
REACHED_BY = 0.1
"""The clock shows a time that this share of a block has reached."""
FEW_RUNS = 8
"""Up to this many runs of events of one bucket are summed run by run, else event by event."""
NEVER = -math.inf
NO_BUCKET = int(np.iinfo(np.int64).min)


@dataclass(frozen=True, config=strict)
class Cumulative(KernelAverage):
    """All events since the start count alike: the smallest variance in a stationary world; it hardly follows drift.

    Where an interval includes drift, the drift rate is measured. If the value moves by at most `k_i` at event i, the
    bias after t events is at most `sum i k_i / t`: with a constant rate `k (t - 1) / 2`. The rate `k` of a Report is
    the mean of the measured rates, that of event i counting i times, and stands in for rates that are unknown.

    Source: Jagerman's thesis, lemma 5.3.3.
    """

    drift_on_request: ClassVar[bool] = True
    kind: Literal["cumulative"] = field(default="cumulative", kw_only=True, repr=False)

    @property
    def drift(self) -> DriftRateEstimator:
        return DriftRateEstimator("window", only_full=True)

    @property
    def last_events(self) -> float:
        return math.inf

    @property
    def factor(self) -> float:
        return 1.0

    def start_kernel(self, columns: int, block: int) -> State:
        """`rates` [columns, 2, 2]: sums over the events i with a known rate k of 1 and i, and of k and i k."""
        return {"events": 0, "moments": nothing(columns), "rates": np.zeros((columns, 2, 2))}

    def fold_kernel(self, state: State, blocks: Blocks, rate: Array) -> tuple[State, Array | float]:
        last = state["events"] + blocks.size * np.arange(1, len(blocks) + 1)
        sums = np.stack([np.full(len(last), blocks.size), blocks.size * (last - (blocks.size - 1) / 2)], axis=-1)
        known = np.isfinite(rate)
        moved = np.stack([known, np.where(known, rate, 0.0)], axis=-1)
        added = (moved[..., None] * sums[:, None, None]).sum(axis=0)
        moments = merge(state["moments"], total(blocks.moments))
        return {"events": int(last[-1]), "moments": moments, "rates": state["rates"] + added}, math.inf

    def read_kernel(self, state: State, tail: Blocks | None, rate: Array) -> KernelReading:
        moments, events = state["moments"], state["events"]
        if tail is not None:
            moments, events = merge(moments, tail.moments[0]), events + tail.size
        if not rate.ndim:  # no interval includes drift
            return moments, None, {}
        mean = ratio(state["rates"][:, 1, 1], state["rates"][:, 0, 1])
        return moments, window_bias(mean, events), {"lipschitz_per_event": mean}

    def merge_kernels(self, earlier: State, later: State) -> tuple[State, float, float]:
        before, rates = earlier["events"], later["rates"].copy()
        rates[..., 1] += before * rates[..., 0]  # the later events have higher numbers
        merged = {
            "events": before + later["events"],
            "moments": merge(earlier["moments"], later["moments"]),
            "rates": earlier["rates"] + rates,
        }
        return merged, 0, math.inf


@dataclass(frozen=True, config=strict)
class Window(KernelAverage):
    """The last `tau` events count alike (equation 5.8 of Jagerman's thesis).

    Kept as bucket sums of `resolution` events: 1 is exact at every event; otherwise the window holds between
    `tau - resolution` and `tau` events and is exact at the ends of buckets. `resolution` must divide the block (100
    events) or be a multiple of it; by default it makes about a hundred buckets.

    With a `span`, a duration such as `1h`, in place of `tau` the events of that time count: see `TimedWindow`.

    >>> Window(tau=10_000).bucket(block=100), Window(tau=4).bucket(block=100)
    (100, 1)
    """

    weighting: ClassVar[str] = "is measured by the clock, not by events"
    tau: PositiveInt = DEFAULT_TAU
    resolution: PositiveInt | None = None
    span: Duration | None = None
    kind: Literal["window"] = field(default="window", kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if self.resolution is not None and self.resolution > self.tau:
            raise ValueError(f"resolution {self.resolution} is larger than the window of {counted(self.tau, 'event')}")
        if self.span is not None and (self.tau != DEFAULT_TAU or self.resolution is not None):
            raise ValueError("give either span, a time, or tau and resolution in events, not both")

    @property
    def kernel(self) -> Kernel:
        return self if self.time_span is None else TimedWindow(self.time_span)

    @property
    def time_span(self) -> float | None:
        return None if self.span is None else parse_duration(self.span)

    @property
    def drift(self) -> DriftRateEstimator | None:
        return DriftRateEstimator("window") if self.span is None else None

    @property
    def last_events(self) -> float | None:
        return self.tau if self.span is None else None

    @property
    def effective_events(self) -> float | None:
        return self.last_events

    def bucket(self, block: int) -> int:
        """Events in a bucket.

        Raises:
            ValueError: The resolution does not fit the block.
        """
        if self.resolution is None:
            finest = max(1, self.tau // BUCKETS)
            if finest >= block:
                return finest // block * block
            return next(divisor for divisor in range(finest, 0, -1) if block % divisor == 0)
        if self.resolution % block and block % self.resolution:
            raise ValueError(
                f"resolution {self.resolution} neither divides the block of {block} events nor is a multiple of it"
            )
        return self.resolution

    def check(self, block: int) -> None:
        self.bucket(block)

    def start_kernel(self, columns: int, block: int) -> State:
        resolution = self.bucket(block)
        return {**ring.start(columns, self.tau // resolution), "resolution": resolution}

    def fold_kernel(self, state: State, blocks: Blocks, rate: Array) -> tuple[State, Array | float]:
        return ring.push(state, blocks, state["resolution"]), self.tau

    def read_kernel(self, state: State, tail: Blocks | None, rate: Array) -> KernelReading:
        moments, events = ring.last_events(state, self.tau, state["resolution"], tail)
        details = {"window_events": np.full_like(rate, events), "lipschitz_per_event": rate}
        return moments, window_bias(rate, events), details

    def merge_kernels(self, earlier: State, later: State) -> tuple[State, float, float]:
        return ring.concatenate(earlier, later), ring.events(later, later["resolution"]), self.tau

    def select_kernel(self, state: State, count: int, policies: Sequence[int], estimators: Sequence[int]) -> State:
        return ring.select(state, count, policies, estimators)


@dataclass(frozen=True, config=strict)
class Decay(KernelAverage):
    """An event that is `age` events old counts `alpha^age`, normalised (equation 5.11 of Jagerman's thesis).

    `alpha` in (0, 1), default 0.9999; or a `half_life` in events, or as a duration such as `30m`: see `TimedDecay`. The
    horizon, `1 / (1 - alpha)`, is the mean age plus one.

    >>> round(Decay(half_life=100).decay ** 100, 12)
    0.5
    """

    alpha: Annotated[float, Field(gt=0, lt=1)] | None = None
    half_life: EventsOrDuration | None = None
    kind: Literal["decay"] = field(default="decay", kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if self.alpha is not None and self.half_life is not None:
            raise ValueError("give either alpha or half_life, not both")

    @property
    def kernel(self) -> Kernel:
        return self if self.time_half_life is None else TimedDecay(self.time_half_life)

    @property
    def time_half_life(self) -> float | None:
        return parse_duration(self.half_life) if isinstance(self.half_life, str) else None

    @property
    def drift(self) -> DriftRateEstimator | None:
        return None if isinstance(self.half_life, str) else DriftRateEstimator("decay")

    @property
    def effective_events(self) -> float | None:
        return None if isinstance(self.half_life, str) else (1 + self.decay) / (1 - self.decay)

    @property
    def factor(self) -> float | None:
        return None if isinstance(self.half_life, str) else self.decay

    @property
    def decay(self) -> float:
        """The factor by which an event counts less with each event that follows.

        Raises:
            ValueError: The average decays by the clock.
        """
        if isinstance(self.half_life, str):
            raise ValueError(f"{self.label!r} decays by the clock, not by events")
        if self.half_life is not None:
            return float(0.5 ** (1 / self.half_life))
        return DEFAULT_ALPHA if self.alpha is None else self.alpha

    def start_kernel(self, columns: int, block: int) -> State:
        return {"events": 0, "moments": nothing(columns)}

    def fold_kernel(self, state: State, blocks: Blocks, rate: Array) -> tuple[State, Array | float]:
        factors = np.full(len(blocks), self.decay**blocks.size)
        moments = fold(state["moments"], blocks.decayed(self.decay), factors)
        return {"events": state["events"] + len(blocks) * blocks.size, "moments": moments}, 1 / (1 - self.decay)

    def read_kernel(self, state: State, tail: Blocks | None, rate: Array) -> KernelReading:
        moments, events = state["moments"], state["events"]
        if tail is not None:
            events += tail.size
            moments = merge(fade(moments, self.decay**tail.size), tail.decayed(self.decay)[0])
        details = {
            "alpha": np.full_like(rate, self.decay),
            "horizon_events": np.full_like(rate, 1 / (1 - self.decay)),
            "lipschitz_per_event": rate,
        }
        return moments, decay_bias(rate, self.decay, events), details

    def merge_kernels(self, earlier: State, later: State) -> tuple[State, float, float]:
        since = later["events"]
        moments = merge(fade(earlier["moments"], self.decay**since), later["moments"])
        return {"events": earlier["events"] + since, "moments": moments}, since, 1 / (1 - self.decay)


@plain_dataclass(frozen=True)
class TimedWindow(Kernel):
    """The events of the last 99 to 100 hundredths of `span` seconds count alike; kept as sums over buckets of time."""

    span: float

    def start_kernel(self, columns: int, block: int) -> State:
        return {
            "clock": NEVER,
            "enough": math.ceil(REACHED_BY * block),
            "events": np.zeros((columns, BUCKETS)),
            "moments": np.zeros((columns, BUCKETS, ALL_ROWS)),
        }

    def fold_kernel(self, state: State, blocks: Blocks, rate: Array) -> tuple[State, Array | float]:
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
        before, after = (self._within(part, clock)[:, None] for part in (earlier, later))
        merged = {
            "clock": clock,
            "events": earlier["events"] * before[:, 0] + later["events"] * after[:, 0],
            "moments": merge(earlier["moments"] * before, later["moments"] * after),
        }
        return {**later, **merged}, max(0.0, clock - earlier["clock"]), self.span

    def _numbers(self, blocks: Blocks, clocks: Array) -> NDArray[np.int64]:
        """The bucket of each event, [blocks, events]; bucket number i lies at i modulo their count."""
        times = np.minimum(blocks.times, clocks[:, None])
        known = np.isfinite(times)
        numbers = np.floor(np.where(known, times, 0.0) / (self.span / BUCKETS)).astype(np.int64)
        return np.where(known, numbers, NO_BUCKET)

    def _first(self, clock: float) -> int:
        """The oldest bucket of the window that ends now."""
        return math.floor(clock / (self.span / BUCKETS)) - BUCKETS + 1 if clock > NEVER else NO_BUCKET + 1

    def _within(self, state: State, clock: float) -> Mask:
        """Which buckets of a state are still in the window at this time."""
        if state["clock"] == NEVER:
            return np.ones(BUCKETS, dtype=bool)
        oldest = self._first(state["clock"])
        return np.asarray((np.arange(BUCKETS) - oldest) % BUCKETS >= self._first(clock) - oldest)


@plain_dataclass(frozen=True)
class TimedDecay(Kernel):
    """An event that is `age` seconds old counts `0.5^(age / half_life)`, normalised."""

    half_life: float

    @property
    def horizon(self) -> float:
        """The mean age of the averaged events, in seconds."""
        return self.half_life / math.log(2.0)

    def start_kernel(self, columns: int, block: int) -> State:
        enough = math.ceil(REACHED_BY * block)
        return {"clock": NEVER, "enough": enough, "events": 0.0, "moments": nothing(columns)}

    def fold_kernel(self, state: State, blocks: Blocks, rate: Array) -> tuple[State, Array | float]:
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
    """A number of seconds in events, at the rate of each block, [blocks]."""
    with np.errstate(divide="ignore"):
        return np.asarray(blocks.size * seconds / _passed(before, clocks))
