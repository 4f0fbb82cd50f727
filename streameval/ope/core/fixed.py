"""Averages with a fixed memory: all events, a window, a decay, in events or by the clock.

The clock shows the newest timestamp that a tenth of a block has reached, and advances at the ends of blocks: a few
timestamps far in the future do not make all other events old. Events with a timestamp after the clock count as of now,
late events as of their timestamp, and events without a timestamp do not count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, Integers, Mask, ratio
from streameval.common.component import strict
from streameval.common.text import Duration, EventsOrDuration, counted, parse_duration
from streameval.ope.core import past, ring
from streameval.ope.core.bank import Bank
from streameval.ope.core.base import Average, Fading, Path, Step, Sums, reading
from streameval.ope.core.drift_rate import DriftRateEstimator, decay_bias, window_bias
from streameval.ope.core.past import LONGER, Past
from streameval.ope.core.reading import Lift, Reading
from streameval.ope.core.ring import Ring
from streameval.ope.core.selection import Selection
from streameval.ope.core.state import Company, joined
from streameval.ope.core.summary import REACHED_BY, BlockSeries, BlockSums, View

DEFAULT_TAU, DEFAULT_ALPHA = 10_000, 0.9999
BUCKETS = 100
"""The number of buckets of equal time in a window of time. A window of events has about as many by default."""
NEVER = -math.inf
NO_BUCKET = -(2.0**62)
"""The number of the bucket of events without a time."""


class CumulativeSums(Sums):
    """Hold the state of `cumulative`.

    Attributes:
        rates: sums over the events i with a known rate k of 1 and i, and of k and i k [P, E, 2, 2]
        lost: what rounding has added to the moments, which a long stream would otherwise add up [P, 1, rows]
    """

    rates: Array = msgspec.field(default_factory=lambda: np.zeros((0, 0, 2, 2)))
    lost: Array = msgspec.field(default_factory=lambda: np.zeros((0, 1, 0)))


@dataclass(frozen=True, config=strict)
class Cumulative(Fading):
    """Count all events since the start alike: the smallest variance in a stationary world, which hardly follows drift.

    The drift rate is measured if an interval includes drift. If the value moves by at most `k_i` at event i, the bias
    after t events is at most `sum i k_i / t`, with a constant rate `k (t - 1) / 2`. The rate `k` of a Report is the
    mean of the measured rates, in which the rate of event i counts i times. It stands in for rates that are unknown.

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

    def start(self, bank: Bank) -> CumulativeSums:
        fresh = super().start(bank)
        rates = np.zeros((bank.policies, bank.columns, 2, 2))
        return CumulativeSums(fresh.moments, fresh.past, fresh.events, rates, np.zeros_like(fresh.moments))

    def lost(self, state: CumulativeSums) -> Array:
        return state.lost

    def step(self, path: Path, state: CumulativeSums, bank: Bank) -> Step:
        if path.rate is not None:
            size = path.sums.size
            last = state.events + size * np.arange(1, len(path.rate) + 1)[:, None]
            sums = np.stack([np.full(last.shape, size), size * (last - (size - 1) / 2)], axis=-1)
            is_finite = np.isfinite(path.rate)
            moved = np.stack([is_finite, np.where(is_finite, path.rate, 0.0)], axis=-1)
            state.rates += (moved[..., None] * sums[:, :, None, None]).sum(axis=0)
        return Step(1.0, 1.0, math.inf)

    def tail_step(self, state: Any, tail: BlockSums, bank: Bank) -> Step:
        return Step(1.0, 1.0, math.inf)

    def select(self, state: Any, selection: Selection) -> Any:
        state.rates = state.rates[:, selection.columns]
        state.lost = np.ascontiguousarray(state.lost[..., selection.kept])
        return super().select(state, selection)

    def diagnose(self, state: Any, rate: Array | None, events: Array) -> tuple[Array | None, Mapping[str, Array]]:
        if rate is None:
            return None, {}
        rates = state.rates.reshape(-1, 2, 2)
        mean = ratio(rates[:, 1, 1], rates[:, 0, 1])
        return window_bias(mean, events), {"lipschitz_per_event": mean}


class Buckets(msgspec.Struct):
    """Hold the state of a window of events: buckets, the past of the variance, and the events of each policy [P]."""

    ring: Ring
    past: Past
    events: Integers


class TimeBuckets(msgspec.Struct):
    """Hold the state of a window of time.

    Attributes:
        moments: of each bucket [P, 100, rows]. Bucket number i lies at i modulo 100
        events: the number of events in each bucket [P, 100]
        clock: the time at the end of the last block
    """

    moments: Array
    events: Array
    past: Past
    clock: float = NEVER


@dataclass(frozen=True, config=strict)
class Window(Average):
    """Count the last `tau` events alike (equation 5.8 of Jagerman's thesis).

    Args:
        tau: the number of events
        resolution: the window is kept as sums over buckets of this many events. 1 is exact at every event. Otherwise
            the window holds between `tau - resolution` and `tau` events and is exact at the ends of buckets. It must
            divide the block (100 events) or be a multiple of it. By default there are about a hundred buckets.
        span: a duration such as `1h` in place of `tau`. The events of the last 99 to 100 hundredths of it count, as
            sums over buckets of time.

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
        """Return the number of events in a bucket.

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

    def start(self, bank: Bank) -> Buckets | TimeBuckets:
        before = past.start(bank.policies, bank.shared)
        if self.time_span is not None:
            shape = (bank.policies, BUCKETS)
            return TimeBuckets(np.zeros((*shape, len(bank.kept))), np.zeros(shape), before)
        buckets = ring.start(bank.policies, len(bank.kept), self.tau // self.bucket(bank.block))
        return Buckets(buckets, before, np.zeros(bank.policies, dtype=np.int64))

    def view(self, events: BlockSeries, state: Any) -> View | None:
        """Sum up buckets that are smaller than a block, or buckets of time."""
        if self.time_span is not None:
            return _by_time(events, self.time_span / BUCKETS)
        resolution = self.bucket(events.block)
        if resolution >= events.block:
            return None
        edges = np.append(np.arange(0, events.events, resolution), events.events).astype(np.int64)
        sizes = np.diff(edges).astype(float)
        return View(events.rows(edges=edges), edges[:-1] // events.block, edges[:-1].astype(float), sizes)

    def fold(self, state: Any, path: Path, bank: Bank) -> Lift | None:
        sums, maxima = path.sums, ring.is_maximum(bank.power)
        horizon: Array | float = self.tau
        if self.time_span is not None:
            horizon = self._fold_time(state, sums, sums.views[self.label], bank, maxima)
        else:
            state.events = state.events + len(sums) * sums.size
            if self.label in sums.views:
                ring.append(state.ring, sums.views[self.label].rows[..., bank.kept])
            else:
                ring.push(state.ring, sums.rows[..., bank.kept], sums.size, self.bucket(bank.block), maxima)
        fading = np.exp(-sums.size / (LONGER * np.broadcast_to(np.asarray(horizon, dtype=float), (len(sums),))))
        past.fold(state.past, path.steps, bank.shared, np.ascontiguousarray(fading[:, None, None]))
        return None

    def read(self, state: Any, tail: BlockSums | None, rate: Array | None, bank: Bank) -> Reading:
        maxima = ring.is_maximum(bank.power)
        if self.time_span is not None:
            rows, events = self._read_time(state, tail, bank, maxima)
            bias, details = None, {"window_events": np.repeat(events, bank.columns)}
        else:
            rows, length = self._read_events(state.ring, tail, bank, maxima)
            assert rate is not None
            late = 0 if tail is None else tail.size
            columns, count = rate.ravel(), np.repeat(np.minimum(state.events + late, length), bank.columns)
            bias = window_bias(columns, count)
            details = {"window_events": count.astype(float), "lipschitz_per_event": columns}
        return reading(state.past, bank.shared, bank.moments(rows), tail, bias, details, bank)

    def select(self, state: Any, selection: Selection) -> Any:
        if isinstance(state, TimeBuckets):
            state.moments = np.ascontiguousarray(state.moments[..., selection.kept])
        else:
            state.ring.full, state.ring.open = (
                np.ascontiguousarray(rows[..., selection.kept]) for rows in (state.ring.full, state.ring.open)
            )
        state.past = selection.past(state.past, alike=True)
        return state

    def join(self, state: Any, late: Any, company: Company, bank: Bank) -> Any:
        if isinstance(state, TimeBuckets):
            clock = max(state.clock, late.clock)
            for one in (state, late):
                self._advance(one, clock)
        else:
            written = max(state.ring.written, late.ring.written)
            for one in (state, late):
                one.ring = ring.padded(one.ring, written)
        return joined(state, late, company)

    def _read_events(self, kept: Ring, tail: BlockSums | None, bank: Bank, maxima: Mask) -> tuple[Array, int]:
        """Return rows and number of the newest events, from the first end of a bucket at most `tau` events ago."""
        resolution, late = self.bucket(bank.block), 0 if tail is None else tail.size
        closed = kept.written * resolution + kept.open_events
        first = max(0, -(-(closed + late - self.tau) // resolution) * resolution)
        if tail is not None and first >= closed:
            pieces = tail.views.get(self.label)
            if pieces is None:
                return tail.rows[0][:, bank.kept], closed + late - first
            inside = pieces.key >= first - closed
            rows = pieces.rows[inside][..., bank.kept].swapaxes(0, 1)
            return ring.total(rows, maxima), closed + late - first
        rows = ring.merge(ring.newest(kept, kept.written - first // resolution, maxima), kept.open, maxima)
        if tail is not None:
            rows = ring.merge(rows, tail.rows[0][:, bank.kept], maxima)
        return rows, closed + late - first

    def _fold_time(self, state: TimeBuckets, sums: BlockSums, view: View, bank: Bank, maxima: Mask) -> Array:
        clocks, width = clocks_of(state.clock, sums, bank.block), self._width
        clock, before = float(clocks[-1]), state.clock
        self._advance(state, clock)
        first = self._first(clock)
        for rows, block, key, events in zip(view.rows, view.block, view.key, view.events, strict=True):
            number = min(key, math.floor(clocks[block] / width)) if clocks[block] > NEVER else NO_BUCKET
            if number >= first and key > NO_BUCKET:
                index = int(number) % BUCKETS
                state.events[:, index] += events
                state.moments[:, index] = ring.merge(state.moments[:, index], rows[:, bank.kept], maxima)
        return seconds_in_events(before, clocks, self.time_span or 0.0, sums.size)

    def _advance(self, state: TimeBuckets, clock: float) -> None:
        """Move on to this time, and forget the buckets that the window leaves."""
        left = ~self._within(state, clock)
        state.moments[:, left] = state.events[:, left] = 0.0
        state.clock = clock

    def _read_time(self, state: TimeBuckets, tail: BlockSums | None, bank: Bank, maxima: Mask) -> tuple[Array, Array]:
        clock = state.clock if tail is None else float(clocks_of(state.clock, tail, bank.block)[-1])
        within = self._within(state, clock)
        events, rows = state.events[:, within].sum(axis=1), ring.total(state.moments[:, within], maxima)
        if tail is not None:
            view, newest = tail.views[self.label], math.floor(clock / self._width) if clock > NEVER else NO_BUCKET
            own = (view.key > NO_BUCKET) & (np.minimum(view.key, newest) >= self._first(clock))
            late = ring.total(view.rows[own][..., bank.kept].swapaxes(0, 1), maxima)
            rows, events = ring.merge(rows, late, maxima), events + view.events[own].sum()
        return rows, events

    @property
    def _width(self) -> float:
        """Return the seconds of a bucket."""
        return (self.time_span or 0.0) / BUCKETS

    def _first(self, clock: float) -> float:
        """Return the number of the oldest bucket of the window that ends now."""
        return math.floor(clock / self._width) - BUCKETS + 1 if clock > NEVER else NO_BUCKET + 1

    def _within(self, state: TimeBuckets, clock: float) -> Mask:
        """Return which buckets of a state are still in the window at this time."""
        if state.clock == NEVER:
            return np.ones(BUCKETS, dtype=bool)
        oldest = int(self._first(state.clock))
        return np.asarray((np.arange(BUCKETS) - oldest) % BUCKETS >= self._first(clock) - oldest)


class TimedSums(Sums):
    """Hold the state of a decay by the clock.

    Attributes:
        weight: the weight of all events [P]
        clock: the time at the end of the last block
    """

    weight: Array
    clock: float = NEVER


@dataclass(frozen=True, config=strict)
class Decay(Fading):
    """Count an event that is `age` events old `alpha^age`, normalised (equation 5.11 of Jagerman's thesis).

    The horizon, `1 / (1 - alpha)`, is the mean age plus one.

    Args:
        alpha: in (0, 1), by default 0.9999
        half_life: in events, or a duration such as `30m`. An event that is `age` seconds old then counts `0.5^(age /
            half_life)`.

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
        """Return the weight of an event relative to the next one.

        Raises:
            ValueError: The average decays by the clock.
        """
        if isinstance(self.half_life, str):
            raise ValueError(f"{self.label!r} decays by the clock, not by events")
        if self.half_life is not None:
            return float(0.5 ** (1 / self.half_life))
        return DEFAULT_ALPHA if self.alpha is None else self.alpha

    def start(self, bank: Bank) -> Sums:
        fresh = super().start(bank)
        if self.time_half_life is None:
            return fresh
        return TimedSums(fresh.moments, fresh.past, fresh.events, np.zeros(bank.policies))

    def view(self, events: BlockSeries, state: Any) -> View:
        """Sum up the events of each block by their age."""
        indices = np.arange(events.blocks)
        if self.time_half_life is None:
            weights = np.tile(self.decay ** np.arange(events.size - 1.0, -1.0, -1.0), events.blocks)
            return View(events.rows(weights), indices, np.zeros(events.blocks), np.zeros(events.blocks))
        clocks = clocks_from(state.clock, events.reached, events.size, events.block)[:, None]
        with np.errstate(invalid="ignore"):
            weights = np.nan_to_num(0.5 ** ((clocks - np.minimum(events.times, clocks)) / self.time_half_life))
        return View(events.rows(weights.ravel()), indices, clocks[:, 0], weights.sum(axis=1))

    def rows(self, sums: BlockSums) -> Array:
        return sums.views[self.label].rows

    def step(self, path: Path, state: Any, bank: Bank) -> Step:
        if self.time_half_life is None:
            return Step(self.decay**path.sums.size, 1.0, 1 / (1 - self.decay))
        view = path.sums.views[self.label]
        clocks = np.maximum.accumulate(np.append(state.clock, view.key))[1:]
        faded = 0.5 ** (passed(state.clock, clocks) / self.time_half_life)
        behind = np.where(np.isfinite(view.key), clocks, 0.0) - np.where(np.isfinite(view.key), view.key, 0.0)
        share = 0.5 ** (behind / self.time_half_life)  # 1, unless the view was made where the clock was behind
        horizon = seconds_in_events(state.clock, clocks, self.time_half_life / math.log(2.0), path.sums.size)
        for own, factor in zip((view.events * share).tolist(), faded.tolist(), strict=True):
            state.weight = state.weight * factor + own
        state.clock = float(clocks[-1])
        return Step(faded, share, horizon)

    def tail_step(self, state: Any, tail: BlockSums, bank: Bank) -> Step:
        if self.time_half_life is None:
            return Step(self.decay**tail.size, 1.0, 1.0)
        return Step(0.5 ** (passed(state.clock, tail.views[self.label].key) / self.time_half_life), 1.0, 1.0)

    def join(self, state: Any, late: Any, company: Company, bank: Bank) -> Any:
        if self.time_half_life is not None:
            clock = max(state.clock, late.clock)
            for one in (state, late):
                faded = 0.5 ** (passed(one.clock, np.array([clock])) / self.time_half_life)
                nothing = np.zeros((1, len(one.moments), len(bank.layout.power)))
                self._accumulate(one.moments, nothing, Step(faded, 1.0, 1.0), bank, self.lost(one))
                one.weight, one.clock = one.weight * faded, clock
        return joined(state, late, company)

    def read(self, state: Any, tail: BlockSums | None, rate: Array | None, bank: Bank) -> Reading:
        reading = super().read(state, tail, rate, bank)
        if self.time_half_life is not None:
            weight = state.weight
            if tail is not None:
                view = tail.views[self.label]
                faded = 0.5 ** (passed(state.clock, view.key)[0] / self.time_half_life)
                weight = weight * faded + view.events[0]
            reading.details = {"horizon_events": np.repeat(weight, bank.columns)}
        return reading

    def diagnose(self, state: Any, rate: Array | None, events: Array) -> tuple[Array | None, Mapping[str, Array]]:
        if rate is None:
            return None, {}
        details = {
            "alpha": np.full_like(rate, self.decay),
            "horizon_events": np.full_like(rate, 1 / (1 - self.decay)),
            "lipschitz_per_event": rate,
        }
        return decay_bias(rate, self.decay, events), details


def _by_time(events: BlockSeries, width: float) -> View:
    """Sum up the events of each block by bucket of time."""
    with np.errstate(invalid="ignore"):
        numbers = np.where(np.isfinite(events.times), np.floor(events.times / width), NO_BUCKET)
    starts = np.ones(numbers.shape, dtype=bool)
    starts[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
    first = np.flatnonzero(starts)
    edges = np.append(first, events.events).astype(np.int64)
    return View(
        events.rows(edges=edges), first // max(1, events.size), numbers.ravel()[first], np.diff(edges).astype(float)
    )


def clocks_from(before: float, reached: Array, size: int, block: int) -> Array:
    """Return the clock at the end of each block. A few events move it only if it has no time yet."""
    if size < math.ceil(REACHED_BY * block) and before > NEVER:
        return np.full(len(reached), before)
    return np.asarray(np.maximum.accumulate(np.append(before, reached))[1:])


def clocks_of(before: float, sums: BlockSums, block: int) -> Array:
    """Return the clock at the end of each of these blocks."""
    return clocks_from(before, sums.reached, sums.size, block)


def passed(before: float, clocks: Array) -> Array:
    """Return the seconds that each block took, 0 if there was no time before."""
    earlier = np.append(before, clocks[:-1])
    is_finite = np.isfinite(earlier)
    return np.where(is_finite, clocks - np.where(is_finite, earlier, 0.0), 0.0)


def seconds_in_events(before: float, clocks: Array, seconds: float, size: int) -> Array:
    """Return a number of seconds in events, at the rate of each block."""
    with np.errstate(divide="ignore"):
        return np.asarray(size * seconds / passed(before, clocks))
