"""Averages whose memory is fixed beforehand: all events, a window, a decay."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, State
from streameval.common.component import strict
from streameval.common.text import Duration, EventsOrDuration, counted, parse_duration
from streameval.ope.averages import ring
from streameval.ope.averages.base import Kernel, KernelAverage, KernelReading
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.drift_rate import DriftRate, DriftRateEstimator, decay_bias, window_bias
from streameval.ope.averages.event_time import TimedDecay, TimedWindow
from streameval.ope.averages.moments import fade, fold, merge, nothing, total

DEFAULT_TAU, DEFAULT_ALPHA = 10_000, 0.9999
BUCKETS = 100
"""A window without a resolution is kept in about this many buckets."""


@dataclass(frozen=True, config=strict)
class Cumulative(KernelAverage):
    """All events since the start count alike.

    The average with the smallest variance, for a stationary world; it follows drift ever more slowly.
    """

    kind: Literal["cumulative"] = field(default="cumulative", kw_only=True, repr=False)

    @property
    def last_events(self) -> float:
        return math.inf

    def start_kernel(self, columns: int, block: int) -> State:
        return {"moments": nothing(columns)}

    def fold_kernel(self, state: State, blocks: Blocks, rate: DriftRate) -> tuple[State, Array | float]:
        return {"moments": merge(state["moments"], total(blocks.moments))}, math.inf

    def read_kernel(self, state: State, tail: Blocks | None, rate: Array) -> KernelReading:
        return state["moments"] if tail is None else merge(state["moments"], tail.moments[0]), None, {}

    def merge_kernels(self, earlier: State, later: State) -> tuple[State, float, float]:
        return {"moments": merge(earlier["moments"], later["moments"])}, 0, math.inf


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
        return self if self.span is None else TimedWindow(parse_duration(self.span))

    @property
    def drift(self) -> DriftRateEstimator | None:
        return DriftRateEstimator("window") if self.span is None else None

    @property
    def last_events(self) -> float | None:
        return self.tau if self.span is None else None

    @property
    def effective_events(self) -> float | None:
        return self.last_events

    @property
    def weighting(self) -> str:
        return "counts its events alike" if self.span is None else "is measured by the clock, not by events"

    def bucket(self, block: int) -> int:
        """Events in a bucket."""
        if self.resolution is None:
            finest = max(1, self.tau // BUCKETS)
            return finest // block * block if finest >= block else _largest_divisor(block, finest)
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

    def fold_kernel(self, state: State, blocks: Blocks, rate: DriftRate) -> tuple[State, Array | float]:
        return ring.push(state, blocks, state["resolution"]), self.tau

    def read_kernel(self, state: State, tail: Blocks | None, rate: Array) -> KernelReading:
        moments, events = ring.last_events(state, self.tau, state["resolution"], tail)
        details = {"window_events": np.full_like(rate, events), "lipschitz_per_event": rate}
        return moments, window_bias(rate, events), details

    def merge_kernels(self, earlier: State, later: State) -> tuple[State, float, float]:
        return ring.concatenate(earlier, later), ring.events(later, later["resolution"]), self.tau


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
        return TimedDecay(parse_duration(self.half_life)) if isinstance(self.half_life, str) else self

    @property
    def drift(self) -> DriftRateEstimator | None:
        return None if isinstance(self.half_life, str) else DriftRateEstimator("decay")

    @property
    def effective_events(self) -> float | None:
        return None if isinstance(self.half_life, str) else (1 + self.decay) / (1 - self.decay)

    @property
    def decay(self) -> float:
        """The factor by which an event counts less with each event that follows."""
        if isinstance(self.half_life, str):
            raise ValueError(f"{self.label!r} decays by the clock, not by events")
        if self.half_life is not None:
            return float(0.5 ** (1 / self.half_life))
        return DEFAULT_ALPHA if self.alpha is None else self.alpha

    def start_kernel(self, columns: int, block: int) -> State:
        return {"events": 0, "moments": nothing(columns)}

    def fold_kernel(self, state: State, blocks: Blocks, rate: DriftRate) -> tuple[State, Array | float]:
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


def _largest_divisor(number: int, limit: int) -> int:
    return next(divisor for divisor in range(min(number, limit), 0, -1) if number % divisor == 0)
