"""Averages that adapt their memory to the drift rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from pydantic import Field, PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, Integers
from streameval.common.component import strict
from streameval.ope.core import drift_rate, kernel, past, ring
from streameval.ope.core.bank import Bank
from streameval.ope.core.base import Average, Fading, Path, Step, Sums, reading
from streameval.ope.core.drift_rate import LONGEST, SHORTEST, Bias, DriftRateEstimator, Smoothing
from streameval.ope.core.fixed import DEFAULT_ALPHA, DEFAULT_TAU
from streameval.ope.core.moments import TERM_SUMS, MomentRow, variance
from streameval.ope.core.past import LONGER, Past
from streameval.ope.core.reading import Lift, Reading, missing_share
from streameval.ope.core.ring import Ladder
from streameval.ope.core.selection import Selection
from streameval.ope.core.state import Company, joined
from streameval.ope.core.summary import BlockSums

VARIANCE_DECAY = 1 - 1 / 100_000


class WindowState(msgspec.Struct):
    """Hold the state of an adaptive window.

    Attributes:
        buckets: the blocks of the longest window
        recent: decayed sums behind the variance [P, E, 6]
        length: the length that a window has grown to, in events [P, E]
        tau: the chosen length [P, E]
        past: the sums behind variances
        events: the number of events of each policy [P]
    """

    buckets: Ladder
    recent: Array
    length: Array
    tau: Array
    past: Past
    events: Integers


@dataclass(frozen=True, kw_only=True, config=strict)
class Adaptive(Average):
    """Define the objective that adaptive window and adaptive decay share.

    Args:
        bias_weight: the weight of the squared bias, by default 1 for `mse` and 5e-5 for `published`
        drift_span: the distance in events between two values that are compared for drift. `mse` compares over an
            eighth, a quarter and half of it too.
        objective: `mse` minimises `bias_weight bias^2 + variance`. `published` is the rule of the published code, which
            ignores the variance.
    """

    smoothing: ClassVar[Smoothing]
    alike: ClassVar[bool] = False
    bias_weight: PositiveFloat | None = None
    drift_span: Annotated[int, Field(ge=1)] = drift_rate.DRIFT_SPAN
    objective: Literal["mse", "published"] = "mse"

    @property
    def drift(self) -> DriftRateEstimator:
        return DriftRateEstimator(self.smoothing, self.drift_span, short=self.objective == "mse")

    def variance(self, recent: Array, path: Path, bank: Bank) -> Array:
        """Return the variance of the term over the last 100,000 events at each block end, [B, P, E].

        Args:
            recent: the decayed sums behind it, changed in place [P, E, 6]
            path: the blocks
            bank: what all averages share
        """
        trace = np.empty((len(path.sums), *recent.shape))
        table = np.ascontiguousarray(bank.layout.moment_table[:, TERM_SUMS])
        kernel.trace(recent, path.sums.rows, table, VARIANCE_DECAY**path.sums.size, trace)
        return variance(trace)

    @property
    def weight(self) -> float:
        """Return the papers' lambda."""
        return self.bias_weight or (5e-5 if self.objective == "published" else 1.0)


@dataclass(frozen=True, config=strict)
class AdaptiveWindow(Adaptive):
    """Follow the drift with a window of 500 to 500,000 events, 10,000 until the drift is known.

    The window is kept as sums over blocks, which grow coarser with age, so it is right to 1 % of its length.

    Args:
        growth: `by_event` lets a window that shrank grow back by one event per event, because events before a change
            stay stale. `immediate` lets it reach back at once.
    """

    growth: Literal["by_event", "immediate"] = "by_event"
    smoothing: ClassVar[Smoothing] = "window"
    weighting: ClassVar[str] = "chooses its length by the data"
    preference: ClassVar[int] = 1
    kind: Literal["adaptive_window"] = field(default="adaptive_window", kw_only=True, repr=False)

    def start(self, bank: Bank) -> WindowState:
        shape = (bank.policies, bank.columns)
        return WindowState(
            ring.start_ladder(bank.policies, len(bank.kept), -(-LONGEST // bank.block)),
            np.zeros((*shape, TERM_SUMS.stop)),
            np.zeros(shape),
            np.full(shape, float(DEFAULT_TAU)),
            past.start(bank.policies, bank.apart),
            np.zeros(bank.policies, dtype=np.int64),
        )

    def fold(self, state: WindowState, path: Path, bank: Bank) -> Lift | None:
        assert path.rate is not None
        size = path.sums.size
        tau = self.choose(path.rate, self.variance(state.recent, path, bank))
        lengths = tau
        if self.growth == "by_event":
            grown = size * np.arange(1, len(tau) + 1)[:, None, None]
            lengths = np.minimum.accumulate(np.concatenate([state.length[None], tau - grown]))[1:] + grown
        ring.climb(state.buckets, path.sums.rows[..., bank.kept], ring.is_maximum(bank.power))
        state.length, state.tau = lengths[-1].copy(), tau[-1].copy()
        state.events = state.events + len(tau) * size
        past.fold(state.past, path.steps, bank.apart, np.exp(-size / (LONGER * np.maximum(lengths, SHORTEST))))
        return None

    def choose(self, rate: Array, variance: Array) -> Array:
        """Return the window for this drift rate and variance of the term, within its limits."""
        if self.objective == "published":
            tau = drift_rate.published_window(self.weight * drift_rate.PUBLISHED_UNIT * rate)
        else:
            tau = drift_rate.mse_window(rate, variance, self.weight)
        return np.clip(np.where(np.isnan(tau), DEFAULT_TAU, tau), SHORTEST, LONGEST)

    def read(self, state: WindowState, tail: BlockSums | None, rate: Array | None, bank: Bank) -> Reading:
        assert rate is not None
        late = 0 if tail is None else tail.size
        buckets, lengths = ring.unrolled(state.buckets)
        grown = (state.length if self.growth == "by_event" else state.events[:, None]) + late
        counts = np.floor((np.minimum(grown, state.tau) - late) / bank.block).astype(int)
        counts = np.maximum(counts, late == 0).ravel()  # finished blocks inside the window of each column
        indices = np.searchsorted(lengths, counts, side="right")
        moments = np.zeros((len(counts), bank.moment_table.shape[1]))
        maxima = ring.is_maximum(bank.power)
        production = np.resize(np.arange(bank.columns), len(counts))
        every = np.zeros(len(counts))  # the weight of production's events in the window of each column
        for index in np.unique(indices).tolist():
            columns = np.flatnonzero(indices == index)
            totals = bank.moments(ring.total(buckets[:, :index][:, ::-1], maxima))
            moments[columns], every[columns] = totals[columns], totals[production[columns], MomentRow.WEIGHT]
        events = np.append(0, lengths)[indices] * bank.block + float(late)
        if tail is not None:
            own = bank.layout.power[bank.layout.moment_table[0]]
            rows = tail.rows[0][:, bank.layout.moment_table].reshape(moments.shape)
            moments = ring.merge(moments, rows, ring.is_maximum(own))
            every += rows[production, MomentRow.WEIGHT]
        details = {"window_events": events, "lipschitz_per_event": rate.ravel()}
        bias = drift_rate.window_bias(rate.ravel(), events)
        found = reading(state.past, bank.apart, moments, tail, bias, details, bank)
        found.lacking = missing_share(moments[:, MomentRow.WEIGHT], every)
        return found

    def join(self, state: WindowState, late: WindowState, company: Company, bank: Bank) -> WindowState:
        fewer, more = sorted((state, late), key=lambda one: ring.blocks(one.buckets))
        if (fewer.buckets.numbers, fewer.buckets.first) != (more.buckets.numbers, more.buckets.first):
            fewer.buckets = ring.laid_out(fewer.buckets, more.buckets, ring.is_maximum(bank.power))
        merged: WindowState = joined(state, late, company)
        return merged

    def select(self, state: WindowState, selection: Selection) -> WindowState:
        buckets = state.buckets
        buckets.levels = [np.ascontiguousarray(rows[..., selection.kept]) for rows in buckets.levels]
        recent, length, tau = (
            np.ascontiguousarray(array[:, selection.columns]) for array in (state.recent, state.length, state.tau)
        )
        return WindowState(buckets, recent, length, tau, selection.past(state.past, alike=False), state.events)


class DecayState(Sums):
    """Hold the state of an adaptive decay: decayed sums behind the variance [P, E, 6], and alpha [P, E]."""

    recent: Array = msgspec.field(default_factory=lambda: np.zeros((0, 0, 6)))
    alpha: Array = msgspec.field(default_factory=lambda: np.zeros((0, 0)))


@dataclass(frozen=True, config=strict)
class AdaptiveDecay(Adaptive, Fading):
    """Follow the drift with a decay with horizons of 500 to 500,000 events, 10,000 until the drift is known.

    Averaging weights follow `S <- alpha_t S + (1 - alpha_t) q`, as in the published code. That code starts at an alpha
    of .99995, and this average at .9999. After alpha has fallen, newer events outweigh older ones within one new
    horizon.

    Args:
        bias: the published bound on the bias, which explodes for small t, or the exact one (better early)
    """

    bias: Bias = "published"
    smoothing: ClassVar[Smoothing] = "decay"
    preference: ClassVar[int] = 2
    kind: Literal["adaptive_decay"] = field(default="adaptive_decay", kw_only=True, repr=False)

    def start(self, bank: Bank) -> DecayState:
        fresh, shape = super().start(bank), (bank.policies, bank.columns)
        recent = np.zeros((*shape, TERM_SUMS.stop))
        return DecayState(fresh.moments, fresh.past, fresh.events, recent, np.full(shape, DEFAULT_ALPHA))

    def step(self, path: Path, state: DecayState, bank: Bank) -> Step:
        assert path.rate is not None
        size = path.sums.size
        added = size * np.arange(1.0, len(path.rate) + 1)
        noise, chosen = self.variance(state.recent, path, bank), np.empty_like(path.rate)
        for events in np.unique(state.events):  # policies that were added together
            is_equal = state.events == events
            rate, spread = (array[:, is_equal].reshape(len(added), -1) for array in (path.rate, noise))
            chosen[:, is_equal] = self.choose(rate, spread, events + added).reshape(len(added), -1, bank.columns)
        alpha = np.concatenate([state.alpha[None], chosen[:-1]])
        state.alpha = chosen[-1].copy()
        return _step(alpha, size)

    def tail_step(self, state: Any, tail: BlockSums, bank: Bank) -> Step:
        return _step(state.alpha[None], tail.size)

    def choose(self, rate: Array, variance: Array, events: Array) -> Array:
        """Return the alpha for this drift rate and variance of the term, after this number of events [blocks].

        It stays within its limits.
        """
        if self.objective == "published":
            alpha = drift_rate.published_decay(self.weight * drift_rate.PUBLISHED_UNIT * rate)
        else:
            alpha = drift_rate.mse_decay(rate, variance, self.weight, events.astype(float), self.bias)
        return np.clip(np.where(np.isnan(alpha), DEFAULT_ALPHA, alpha), 1 - 1 / SHORTEST, 1 - 1 / LONGEST)

    def read(self, state: Any, tail: BlockSums | None, rate: Array | None, bank: Bank) -> Reading:
        found, weight = super().read(state, tail, rate, bank), state.recent[..., MomentRow.WEIGHT]
        found.lacking = missing_share(weight, weight[:1]).ravel()  # of the last 100,000 events, for equal weights
        return found

    def select(self, state: Any, selection: Selection) -> Any:
        state.recent, state.alpha = (
            np.ascontiguousarray(array[:, selection.columns]) for array in (state.recent, state.alpha)
        )
        return super().select(state, selection)

    def diagnose(self, state: Any, rate: Array | None, events: Array) -> tuple[Array | None, Mapping[str, Array]]:
        assert rate is not None
        alpha = state.alpha.ravel()
        details = {"alpha": alpha, "horizon_events": 1 / (1 - alpha), "lipschitz_per_event": rate}
        return drift_rate.decay_bias(rate, alpha, events), details


def _step(alpha: Array, size: int) -> Step:
    """Give the events of a block one weight, so that they count as much together as if each aged on its own."""
    factor = alpha**size
    return Step(factor, (1 - factor) / size, 1 / (1 - alpha))
