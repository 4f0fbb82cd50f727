"""Averages whose memory adapts to the drift rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, State, decayed_path
from streameval.common.component import strict
from streameval.ope.averages import drift_rate, ring
from streameval.ope.averages.base import KernelAverage, KernelReading
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.drift_rate import LONGEST, SHORTEST, Bias, DriftRateEstimator, Smoothing
from streameval.ope.averages.fixed import DEFAULT_ALPHA, DEFAULT_TAU
from streameval.ope.averages.moments import ALL_ROWS, TERM_SUMS, fade, fold, merge, nothing, variance

VARIANCE_DECAY = 1 - 1 / 100_000


@dataclass(frozen=True, kw_only=True, config=strict)
class Adaptive(KernelAverage):
    """The objective that adaptive window and adaptive decay share.

    `drift_span` (events): the distance between the two values whose difference is the drift. `objective`: `mse`
    minimises `bias_weight bias^2 + variance` (default weight 1); `published` is the rule of the published code (default
    weight 5e-5), which ignores the variance.
    """

    smoothing: ClassVar[Smoothing]
    bias_weight: PositiveFloat | None = None
    drift_span: Annotated[int, Field(ge=1)] = drift_rate.DRIFT_SPAN
    objective: Literal["mse", "published"] = "mse"

    @property
    def drift(self) -> DriftRateEstimator:
        return DriftRateEstimator(self.smoothing, self.drift_span)

    def variance(self, sums: Array, blocks: Blocks) -> tuple[Array, Array]:
        """Variance of the term over the last 100,000 events at each block end [blocks, columns], and the next sums."""
        path = decayed_path(sums, blocks.spread[..., TERM_SUMS], VARIANCE_DECAY**blocks.size)
        return variance(path), path[-1]

    @property
    def weight(self) -> float:
        """The papers' lambda."""
        return self.bias_weight or (5e-5 if self.objective == "published" else 1.0)


@dataclass(frozen=True, config=strict)
class AdaptiveWindow(Adaptive):
    """A window whose length follows the drift: between 500 and 500,000 events, 10,000 until the drift is known.

    `growth`: `by_event` lets a window that shrank grow back by one event per event, because events before a change stay
    stale; `immediate` lets it reach back at once. Kept as buckets of one block each.
    """

    growth: Literal["by_event", "immediate"] = "by_event"
    smoothing: ClassVar[Smoothing] = "window"
    weighting: ClassVar[str] = "chooses its length by the data"
    preference: ClassVar[int] = 1
    kind: Literal["adaptive_window"] = field(default="adaptive_window", kw_only=True, repr=False)

    def start_kernel(self, columns: int, block: int) -> State:
        return {
            **ring.start(columns, -(-LONGEST // block)),
            "block": block,
            "recent": np.zeros((columns, TERM_SUMS.stop)),
            "length": np.zeros(columns),
            "tau": np.full(columns, float(DEFAULT_TAU)),
        }

    def fold_kernel(self, state: State, blocks: Blocks, rate: Array) -> tuple[State, Array | float]:
        noise, recent = self.variance(state["recent"], blocks)
        tau = self.choose(rate, noise)
        lengths = tau
        if self.growth == "by_event":
            grown = blocks.size * np.arange(1, len(tau) + 1)[:, None]
            lengths = np.minimum.accumulate(np.concatenate([state["length"][None], tau - grown]))[1:] + grown
        after = {**ring.push(state, blocks, blocks.size), "recent": recent, "length": lengths[-1], "tau": tau[-1]}
        return after, np.maximum(lengths, SHORTEST)

    def choose(self, rate: Array, variance: Array) -> Array:
        """The window for this drift rate and variance of the term, within its limits."""
        if self.objective == "published":
            tau = drift_rate.published_window(self.weight * drift_rate.PUBLISHED_UNIT * rate)
        else:
            tau = drift_rate.mse_window(rate, variance, self.weight)
        return np.clip(np.where(np.isnan(tau), DEFAULT_TAU, tau), SHORTEST, LONGEST)

    def read_kernel(self, state: State, tail: Blocks | None, rate: Array) -> KernelReading:
        late = 0 if tail is None else tail.size
        block, kept = state["block"], min(state["written"], state["capacity"])
        grown = state["length"] + late if self.growth == "by_event" else np.full_like(state["tau"], LONGEST)
        counts = np.floor((np.minimum(grown, state["tau"]) - late) / block).astype(int)
        counts = np.clip(counts, late == 0, kept)  # finished blocks inside the window of each column
        moments, events = np.empty((len(counts), ALL_ROWS)), counts * block + float(late)
        for count in np.unique(counts).tolist():
            columns = np.flatnonzero(counts == count)
            moments[columns] = ring.newest_total(state, count, columns)
        if tail is not None:
            moments = merge(moments, tail.moments[0])
        details = {"window_events": events, "lipschitz_per_event": rate}
        return moments, drift_rate.window_bias(rate, events), details

    def select_kernel(self, state: State, count: int, policies: Sequence[int], estimators: Sequence[int]) -> State:
        return ring.select(state, count, policies, estimators)


@dataclass(frozen=True, config=strict)
class AdaptiveDecay(Adaptive):
    """A decay whose alpha follows the drift: horizons between 500 and 500,000 events, 10,000 until the drift is known.

    A block of n events, or the events after the last block, have one averaging weight each:
    `S <- alpha^n S + (1 - alpha^n) / n sum(q)`, with the alpha chosen at the end of the block before. Together they
    weigh as much as in the published code, which does `S <- alpha S + (1 - alpha) q` after each event. The share keeps
    newer events in front of older ones within one new horizon after alpha has fallen.

    Args:
        bias: the bound on the bias, `published`, which explodes after few events, or `exact` (better early)
    """

    bias: Bias = "published"
    smoothing: ClassVar[Smoothing] = "decay"
    preference: ClassVar[int] = 2
    kind: Literal["adaptive_decay"] = field(default="adaptive_decay", kw_only=True, repr=False)

    def start_kernel(self, columns: int, block: int) -> State:
        sums = {"moments": nothing(columns), "recent": np.zeros((columns, TERM_SUMS.stop))}
        return {"events": 0, **sums, "alpha": np.full(columns, DEFAULT_ALPHA)}

    def fold_kernel(self, state: State, blocks: Blocks, rate: Array) -> tuple[State, Array | float]:
        events = state["events"] + blocks.size * np.arange(1, len(blocks) + 1)
        noise, recent = self.variance(state["recent"], blocks)
        chosen = self.choose(rate, noise, events)
        alpha = np.concatenate([state["alpha"][None], chosen[:-1]])
        factor = alpha**blocks.size
        moments = fold(state["moments"], blocks.moments, factor, (1 - factor) / blocks.size)
        after = {"events": int(events[-1]), "moments": moments, "recent": recent, "alpha": chosen[-1]}
        return after, 1 / (1 - alpha)

    def choose(self, rate: Array, variance: Array, events: Array) -> Array:
        """The alpha for this drift rate and variance of the term, after this number of events [blocks].

        It stays within its limits.
        """
        if self.objective == "published":
            alpha = drift_rate.published_decay(self.weight * drift_rate.PUBLISHED_UNIT * rate)
        else:
            alpha = drift_rate.mse_decay(rate, variance, self.weight, events.astype(float), self.bias)
        return np.clip(np.where(np.isnan(alpha), DEFAULT_ALPHA, alpha), 1 - 1 / SHORTEST, 1 - 1 / LONGEST)

    def read_kernel(self, state: State, tail: Blocks | None, rate: Array) -> KernelReading:
        moments, alpha, events = state["moments"], state["alpha"], state["events"]
        if tail is not None:
            events += tail.size
            factor = alpha**tail.size
            moments = merge(fade(moments, factor), fade(tail.moments[0], (1 - factor) / tail.size))
        details = {"alpha": alpha, "horizon_events": 1 / (1 - alpha), "lipschitz_per_event": rate}
        return moments, drift_rate.decay_bias(rate, alpha, events), details
