"""Averages whose memory is fixed beforehand: everything, a window, a decay."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass

from streameval.common.arrays import State
from streameval.common.component import strict
from streameval.common.text import Duration, EventsOrDuration, counted, parse_duration
from streameval.ope.averages import ring, variance
from streameval.ope.averages.base import Average, ColumnLayout, Context, MixturePath, Reading
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.drift_rate import DriftRateEstimator, decay_bias, window_bias
from streameval.ope.averages.event_time import TimedDecay, TimedWindow
from streameval.ope.averages.moments import Moments, fade, fold, merge, nothing, total, without_pairs
from streameval.ope.averages.variance import LONGER, VarianceMoments

DEFAULT_TAU, DEFAULT_ALPHA = 10_000, 0.9999
BUCKETS = 100
"""A window is kept in about this many buckets unless its resolution says otherwise."""


@dataclass(frozen=True, config=strict)
class Cumulative(Average):
    """All events since the start count alike.

    The smallest variance there is, and the value of a world that stands still; in a moving one it follows ever more
    slowly.
    """

    kind: Literal["cumulative"] = field(default="cumulative", kw_only=True, repr=False)

    @property
    def last_events(self) -> float:
        return math.inf

    def start(self, layout: ColumnLayout, block: int) -> State:
        return {"all": nothing(layout.columns), "spread": variance.nothing(layout.columns)}

    def fold(self, state: State, blocks: Blocks, context: Context) -> tuple[State, MixturePath | None]:
        after = {
            "all": merge(state["all"], total(blocks.moments)),
            "spread": variance.fold(state["spread"], blocks, np.inf),
        }
        return after, None

    def read(self, state: State, tail: Blocks | None, context: Context) -> Reading:
        moments = state["all"] if tail is None else merge(state["all"], tail.moments[0])
        return Reading(Moments(moments), VarianceMoments(state["spread"]), tail)

    def merge(self, earlier: State, later: State) -> State:
        return {
            "all": merge(earlier["all"], later["all"]),
            "spread": variance.merge(earlier["spread"], later["spread"], 0, np.inf),
        }

    def without_lifts(self, state: State) -> State:
        return {"all": without_pairs(state["all"]), "spread": variance.without_pairs(state["spread"])}


@dataclass(frozen=True, config=strict)
class Window(Average):
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
    def timed(self) -> TimedWindow | None:
        """What keeps it, where it is measured by the clock."""
        return None if self.span is None else TimedWindow(parse_duration(self.span))

    @property
    def drift(self) -> DriftRateEstimator | None:
        return None if self.span is not None else DriftRateEstimator("window")

    @property
    def last_events(self) -> float | None:
        return None if self.span is not None else self.tau

    @property
    def effective_events(self) -> float | None:
        return None if self.span is not None else float(self.tau)

    @property
    def weighting(self) -> str:
        return "is measured by the clock, not by events" if self.span is not None else "counts its events alike"

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

    def start(self, layout: ColumnLayout, block: int) -> State:
        if self.timed is not None:
            return self.timed.start(layout.columns, block)
        return {
            "resolution": self.bucket(block),
            "ring": ring.start(layout.columns, self.tau // self.bucket(block)),
            "spread": variance.nothing(layout.columns),
        }

    def fold(self, state: State, blocks: Blocks, context: Context) -> tuple[State, MixturePath | None]:
        if self.timed is not None:
            return self.timed.fold(state, blocks), None
        after = {
            "resolution": state["resolution"],
            "ring": ring.push(state["ring"], blocks, state["resolution"]),
            "spread": variance.fold(state["spread"], blocks, LONGER * self.tau),
        }
        return after, None

    def read(self, state: State, tail: Blocks | None, context: Context) -> Reading:
        if self.timed is not None:
            return self.timed.read(state, tail)
        rate = context.drift_rate(self.drift).per_event
        moments, events = ring.last_events(state["ring"], self.tau, state["resolution"], tail)
        details = {"window_events": np.full_like(rate, events), "lipschitz_per_event": rate}
        bias = window_bias(rate, events)
        return Reading(Moments(moments), VarianceMoments(state["spread"]), tail, bias, details)

    def merge(self, earlier: State, later: State) -> State:
        if self.timed is not None:
            return self.timed.merge(earlier, later)
        since = ring.events(later["ring"], later["resolution"])
        return {
            "resolution": later["resolution"],
            "ring": ring.concatenate(earlier["ring"], later["ring"]),
            "spread": variance.merge(earlier["spread"], later["spread"], since, LONGER * self.tau),
        }

    def without_lifts(self, state: State) -> State:
        if self.timed is not None:
            return self.timed.without_lifts(state)
        spread = variance.without_pairs(state["spread"])
        return {**state, "ring": ring.without_pairs(state["ring"]), "spread": spread}

    def to_state(self, state: State) -> State:
        if self.timed is not None:
            return self.timed.to_state(state)
        return {**state, "ring": ring.to_state(state["ring"])}

    def from_state(self, saved: State) -> State:
        if self.timed is not None:
            return self.timed.from_state(saved)
        return {**saved, "ring": ring.from_state(saved["ring"])}


@dataclass(frozen=True, config=strict)
class Decay(Average):
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
    def timed(self) -> TimedDecay | None:
        """What keeps it, where it is measured by the clock."""
        return TimedDecay(parse_duration(self.half_life)) if isinstance(self.half_life, str) else None

    @property
    def drift(self) -> DriftRateEstimator | None:
        return None if self.timed is not None else DriftRateEstimator("decay")

    @property
    def effective_events(self) -> float | None:
        return None if self.timed is not None else (1 + self.decay) / (1 - self.decay)

    @property
    def decay(self) -> float:
        """The factor by which an event counts less with each event that follows."""
        if isinstance(self.half_life, str):
            raise ValueError(f"{self.label!r} decays by the clock, not by events")
        if self.half_life is not None:
            return float(0.5 ** (1 / self.half_life))
        return DEFAULT_ALPHA if self.alpha is None else self.alpha

    def start(self, layout: ColumnLayout, block: int) -> State:
        if self.timed is not None:
            return self.timed.start(layout.columns, block)
        return {
            "events": 0,
            "kernel": nothing(layout.columns),
            "spread": variance.nothing(layout.columns),
        }

    def fold(self, state: State, blocks: Blocks, context: Context) -> tuple[State, MixturePath | None]:
        if self.timed is not None:
            return self.timed.fold(state, blocks), None
        factors = np.full(len(blocks), self.decay**blocks.size)
        after = {
            "events": state["events"] + len(blocks) * blocks.size,
            "kernel": fold(state["kernel"], blocks.decayed(self.decay), factors),
            "spread": variance.fold(state["spread"], blocks, LONGER / (1 - self.decay)),
        }
        return after, None

    def read(self, state: State, tail: Blocks | None, context: Context) -> Reading:
        if self.timed is not None:
            return self.timed.read(state, tail)
        rate = context.drift_rate(self.drift).per_event
        moments, events = state["kernel"], state["events"]
        if tail is not None:
            events += tail.size
            moments = merge(fade(moments, self.decay**tail.size), tail.decayed(self.decay)[0])
        details = {
            "alpha": np.full_like(rate, self.decay),
            "horizon_events": np.full_like(rate, 1 / (1 - self.decay)),
            "lipschitz_per_event": rate,
        }
        bias = decay_bias(rate, self.decay, events)
        return Reading(Moments(moments), VarianceMoments(state["spread"]), tail, bias, details)

    def merge(self, earlier: State, later: State) -> State:
        if self.timed is not None:
            return self.timed.merge(earlier, later)
        since = later["events"]
        return {
            "events": earlier["events"] + since,
            "kernel": merge(fade(earlier["kernel"], self.decay**since), later["kernel"]),
            "spread": variance.merge(earlier["spread"], later["spread"], since, LONGER / (1 - self.decay)),
        }

    def without_lifts(self, state: State) -> State:
        spread = variance.without_pairs(state["spread"])
        return {**state, "kernel": without_pairs(state["kernel"]), "spread": spread}


def _largest_divisor(number: int, limit: int) -> int:
    return next(divisor for divisor in range(min(number, limit), 0, -1) if number % divisor == 0)
