"""The mixture: a bank of decays that a stream of losses weighs, for each component of a term on its own.

Exponentially weighted aggregation: how long it pays to remember is learned from how well each memory foretold the
next block.
"""

from __future__ import annotations

import dataclasses
from dataclasses import field
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

import numpy as np
from pydantic import PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.arrays import Array, Mask, State, decayed_path, exchange
from streameval.averages import spread
from streameval.averages.base import Memory
from streameval.averages.blocks import Blocks
from streameval.averages.moments import ROWS, Moments, Row, ratio, variance
from streameval.averages.reading import Reading
from streameval.averages.spread import Spread, SpreadRow
from streameval.labels import strict

HORIZONS = np.array([1e3, 2e3, 3e3, 5e3, 7e3, 1e4, 1.5e4, 2e4, 3e4, 5e4, 1e5, 2e5, np.inf])
MEMORY = 100_000.0
"""Horizon of losses, noise variances and diagnostics, in events."""
PSEUDO_EVENTS = 500.0
NOISE_EVENTS = 2_000.0
SMALLEST_VARIANCE = 1e-6
DRIFT_SPAN = 50_000
FEWEST_POOLED = 3
DIAGNOSTICS = {Row.IMPORTANCE: "importance", Row.IMPORTANCE_SQUARE: "square", Row.UNSUPPORTED: "unsupported"}
"""What is known of a policy's weights, and under which name each decay keeps its sum."""
POOLED_RATE, SOLO_RATE = 0.3, 1.0


class Layout(NamedTuple):
    """How columns belong together. Component columns are policy by policy, and within a policy estimator by estimator.

    `components` [estimators]: how many components each estimator has. `candidates` [policies]: whose losses are pooled.
    """

    components: tuple[int, ...]
    candidates: tuple[bool, ...]

    @property
    def parts(self) -> int:
        """Component columns of one policy."""
        return sum(self.components)


class Parts(NamedTuple):
    """The components of some whole blocks.

    `blocks`: their terms, one column a component. `prior` [blocks, columns]: the value to begin with (NaN: nothing),
    and `prior_square` the second moment that a term is presumed to have, both as known after each block.
    """

    blocks: Blocks
    prior: Array
    prior_square: Array


@dataclass(frozen=True, config=strict)
class Mixture(Memory):
    """A mixture of decays with horizons from 1,000 events to all there are, weighed by discounted one-step losses.

    At each block end, before the block is added, every decay j is charged `(E_j - x)^2 / (2 v)`: its estimate against
    the block's mean, in units of the noise of such a mean. Weights `om_j ~ exp(-rate (Loss_j - min Loss))`; the
    estimate is `sum om_j E_j`, summed over the components of the estimator. With three candidates or more, losses are
    pooled over them and the rate is 0.3, else 1 for each policy alone (`rate` overrides both). Each decay begins with
    500 pseudo-events at a start-up value that fades with it. It sees a block when it ends.

    Source: Vovk, COLT 1990, for the weights; Cesa-Bianchi & Lugosi, Prediction, learning, and games, 2006, ch. 2.
    """

    rate: PositiveFloat | None = None
    kind: Literal["mixture"] = field(default="mixture", kw_only=True, repr=False)

    def start(self, layout: Layout, block: int) -> State:
        """The state before the first event."""
        policies = len(layout.candidates)
        columns, decays = policies * layout.parts, len(HORIZONS)
        bank = {name: np.zeros((columns, decays)) for name in ("weight", "total", "age", "loss", *DIAGNOSTICS.values())}
        return {
            "events": 0,
            "block": block,
            **bank,
            "overlap": np.zeros((policies, decays, decays)),
            "recent": spread.nothing(columns),
            "prior": np.full(columns, np.nan),
            "prior_square": np.full(columns, np.nan),
            "largest": np.zeros(columns),
            "drift": np.full(columns, np.nan),
            "past": np.full((2, max(1, -(-DRIFT_SPAN // block)), columns), np.nan),
            "spread": spread.nothing(policies * len(layout.components)),
        }

    def fold(self, state: State, blocks: Blocks, parts: Parts, layout: Layout) -> State:
        """The state after these whole blocks of terms and of their components.

        All blocks are taken at once, unless a term is a ratio: that is linearised around the estimate before its block.
        """
        moments = parts.blocks.moments
        at_once = len(blocks) if np.array_equal(moments[..., Row.V], moments[..., Row.WEIGHT]) else 1
        state = dict(state)
        for first in range(0, len(blocks), at_once):
            self._advance(state, parts, slice(first, first + at_once), layout)
        return {**state, "spread": spread.fold(state["spread"], blocks, MEMORY)}

    def _advance(self, state: State, parts: Parts, part: slice, layout: Layout) -> None:
        """Take in some blocks. Of what follows them, place 0 is before the first, place b after b blocks."""
        block, size = parts.blocks.moments[part], state["block"]
        weight = block[..., Row.WEIGHT]
        mean = np.where(weight > 0, self._block_means(state, block, layout), 0.0)
        bank = Bank.after(state, parts, part, weight, mean)
        with np.errstate(divide="ignore", invalid="ignore"):
            losses = (bank.estimates[:-1] - mean[..., None]) ** 2 / (2 * bank.noise[:-1] / weight)[..., None]
        charged = np.where((weight > 0)[..., None] & np.isfinite(losses), losses, 0.0)
        loss = _path(state["loss"], charged, np.full(len(HORIZONS), np.exp(-size / MEMORY)))
        overlaps = _overlaps(
            state["overlap"], block[..., Row.WEIGHT_SQUARE].reshape(len(block), len(layout.candidates), -1), size
        )
        mixed = _mix(bank, self._shares(loss, layout), overlaps, layout)
        self._remember_values(state, mixed, layout)
        fading = np.exp(-size / HORIZONS)
        for row, name in DIAGNOSTICS.items():
            state[name] = _path(state[name], block[..., row, None], fading)[-1]
        aged = size * fading * bank.weight[:-1] + weight[..., None] * (size - 1) / 2
        state |= {
            "age": _path(state["age"], aged, fading)[-1],
            "weight": bank.weight[-1],
            "total": bank.total[-1],
            "loss": loss[-1],
            "overlap": overlaps[-1],
            "recent": bank.recent[-1],
            "prior": bank.prior[-1],
            "prior_square": bank.prior_square[-1],
            "largest": np.maximum(state["largest"], block[..., Row.LARGEST_IMPORTANCE].max(axis=0)),
            "events": bank.events[-1],
        }

    def _block_means(self, state: State, block: Array, layout: Layout) -> Array:
        """The mean of the term in each block; a ratio, one block at a time, is linearised around the estimate."""
        u, v, weight = block[..., Row.U], block[..., Row.V], block[..., Row.WEIGHT]
        own = ratio(u, v)
        if np.array_equal(v, weight):
            return own
        estimate = self._now(state, layout).value
        with np.errstate(divide="ignore", invalid="ignore"):
            usual = state["recent"][:, SpreadRow.V] / state["recent"][:, SpreadRow.WEIGHT]
            linear = estimate + (u - estimate * v) / (weight * usual)
        return np.where(np.isfinite(linear), linear, own)

    def _remember_values(self, state: State, mixed: Mixed, layout: Layout) -> None:
        """Keep the estimates of a drift span, and compare the newest with the one a span before."""
        past = state["past"]
        span = past.shape[1] * state["block"]
        before = exchange(
            past.swapaxes(0, 1), state["events"] // state["block"], np.stack([mixed.value, mixed.sampling], axis=1)[1:]
        )
        state["drift"] = _drift(before[-1], mixed.value[-1], mixed.sampling[-1], span, layout)

    def _now(self, state: State, layout: Layout) -> Mixed:
        """The mixture at present, per component column."""
        mixed = _mix(Bank.of(state), self._shares(state["loss"][None], layout), state["overlap"][None], layout)
        return Mixed(*(values[0] for values in mixed))

    def _shares(self, loss: Array, layout: Layout) -> Array:
        """The weight of each decay in the mixture, [blocks, columns, decays]."""
        candidates = np.array(layout.candidates)
        charged = loss.reshape(len(loss), len(candidates), layout.parts, -1).copy()
        rate = np.full(len(candidates), self.rate or SOLO_RATE)
        if candidates.sum() >= FEWEST_POOLED:
            charged[:, candidates] = charged[:, candidates].sum(axis=1, keepdims=True)
            rate[candidates] = self.rate or POOLED_RATE
        charged -= charged.min(axis=-1, keepdims=True)
        weight = np.exp(-rate[:, None, None] * charged)
        return np.asarray((weight / weight.sum(axis=-1, keepdims=True)).reshape(loss.shape))

    def read(self, state: State, layout: Layout) -> Reading:
        """The estimate after the last finished block."""
        mixed = self._now(state, layout)
        drift = state["drift"] * (mixed.kernel * state["age"]).sum(axis=-1)
        known = _known(state, layout)
        parts = {"se": mixed.sampling, "spread": mixed.apart, "drift": drift**2}
        summed = {
            name: np.sqrt(np.where(known, _over_components(values, layout, np.add), np.nan))
            for name, values in parts.items()
        }
        horizon = _over_components(_horizon(state, mixed), layout, np.add) / _component_counts(layout)
        return Reading(
            Moments(_moments(state, mixed, layout)),
            Spread(state["spread"]),
            tail=None,
            bias=np.full_like(summed["drift"], np.nan),
            details={"horizon_events": np.where(known, horizon, np.nan)},
            parts=summed,
        )


class Mixed(NamedTuple):
    """A mixture per component column: estimate, variance by sampling and between decays, the weights that made it."""

    value: Array
    sampling: Array
    apart: Array
    squares: Array
    share: Array
    kernel: Array


@dataclasses.dataclass(frozen=True)
class Bank:
    """What the decays hold at some moments, on the first axis; [moments, columns] or [moments, columns, decays]."""

    events: list[int]
    weight: Array
    total: Array
    recent: Array
    prior: Array
    prior_square: Array

    @classmethod
    def of(cls, state: State) -> Bank:
        """The bank at present."""
        names = ("weight", "total", "recent", "prior", "prior_square")
        return cls([state["events"]], *(state[name][None] for name in names))

    @classmethod
    def after(cls, state: State, parts: Parts, part: slice, weight: Array, mean: Array) -> Bank:
        """The bank before some blocks and after each of them."""
        fading = np.exp(-state["block"] / HORIZONS)
        return cls(
            [state["events"] + state["block"] * index for index in range(len(weight) + 1)],
            _path(state["weight"], weight[..., None], fading),
            _path(state["total"], (weight * mean)[..., None], fading),
            np.concatenate(
                [
                    state["recent"][None],
                    decayed_path(state["recent"], parts.blocks.spread[part], np.exp(-state["block"] / MEMORY)),
                ]
            ),
            np.concatenate([state["prior"][None], parts.prior[part]]),
            np.concatenate([state["prior_square"][None], parts.prior_square[part]]),
        )

    @cached_property
    def pseudo_events(self) -> Array:
        """How many pseudo-events are left of each decay's start; none without a start-up value."""
        left = PSEUDO_EVENTS * np.exp(-np.array(self.events)[:, None, None] / HORIZONS)
        return np.where(np.isnan(self.prior)[..., None], 0.0, left)

    @cached_property
    def estimates(self) -> Array:
        """What each decay estimates; NaN before there is anything."""
        pseudo = self.pseudo_events
        return ratio(self.total + pseudo * np.nan_to_num(self.prior)[..., None], self.weight + pseudo)

    @cached_property
    def noise(self) -> Array:
        """Variance of one event's term, with a prior second moment that the first events are held against."""
        recent, prior = self.recent, NOISE_EVENTS * np.exp(-np.array(self.events)[:, None] / MEMORY)
        weight, mean = recent[..., SpreadRow.WEIGHT], ratio(recent[..., SpreadRow.U], recent[..., SpreadRow.WEIGHT])
        plain = (recent[..., SpreadRow.UU] + prior * self.prior_square) / (weight + prior) - mean**2
        linear = (weight * variance(recent) + prior * self.prior_square) / (weight + prior)
        return np.asarray(np.maximum(np.where(recent[..., SpreadRow.V] == weight, plain, linear), SMALLEST_VARIANCE))


def _mix(bank: Bank, share: Array, overlaps: Array, layout: Layout) -> Mixed:
    """The mixture at each of the bank's moments."""
    estimates, pseudo = bank.estimates, bank.pseudo_events
    kernel = ratio(share, bank.weight + pseudo)
    value = (share * estimates).sum(axis=-1)
    by_policy = kernel.reshape(len(kernel), len(layout.candidates), layout.parts, -1)
    squares = (np.matmul(by_policy, overlaps) * by_policy).sum(axis=-1).reshape(value.shape)
    apart = (share * (estimates - value[..., None]) ** 2).sum(axis=-1)
    start = (kernel * pseudo).sum(axis=-1) ** 2 / PSEUDO_EVENTS
    return Mixed(value, bank.noise * (squares + start), apart, squares, share, kernel)


def _path(state: Array, steps: Array, fading: Array) -> Array:
    """`state = fading state + step` before the first step and after each, [steps + 1, columns, decays]."""
    every = np.concatenate([state[None], np.broadcast_to(steps, (len(steps), *state.shape))])
    return np.asarray(np.matmul(_lags(len(every), tuple(fading)), every.transpose(2, 0, 1)).transpose(1, 2, 0))


@lru_cache(maxsize=64)
def _lags(count: int, fading: tuple[float, ...]) -> Array:
    """How much is left at moment b of what came at moment a, for each decay, [decays, b, a]."""
    lag = np.subtract.outer(np.arange(count), np.arange(count))
    return np.where(lag >= 0, np.array(fading)[:, None, None] ** np.maximum(lag, 0), 0.0)


def _overlaps(state: Array, squares: Array, size: int) -> Array:
    """Sums of `K_j K_k` over the events, before the blocks and after each, [blocks + 1, policies, decays, decays]."""
    fading = np.exp(-size / HORIZONS)
    both = np.outer(fading, fading)
    overlaps = np.empty((len(squares) + 1, *state.shape))
    overlaps[0] = state
    for index, square in enumerate(squares):
        np.multiply(overlaps[index], both, out=overlaps[index + 1])
        overlaps[index + 1] += square[:, :1, None]
    return overlaps


def _horizon(state: State, mixed: Mixed) -> Array:
    """The mean horizon of the mixture, no longer than what there is to remember."""
    return np.asarray((mixed.share * np.minimum(HORIZONS, max(state["events"], 1))).sum(axis=-1))


def _drift(past: Array, value: Array, sampling: Array, span: int, layout: Layout) -> Array:
    """Drift per event of each component: root mean square over candidates of how far it came, less mere noise."""
    moved = ((value - past[0]) ** 2 - sampling - past[1]) / span**2
    by_policy = moved.reshape(-1, layout.parts)
    candidates = np.array(layout.candidates)
    known = ~np.isnan(by_policy) & candidates[:, None]
    pooled = ratio(np.where(known, by_policy, 0.0).sum(axis=0), known.sum(axis=0))
    shared = np.where(candidates[:, None], pooled, by_policy)
    return np.asarray(np.sqrt(np.maximum(shared, 0.0)).ravel())


def _over_components(values: Array, layout: Layout, combine: np.ufunc) -> Array:
    """Component columns [policies * parts] combined for each estimator, [policies * estimators]."""
    by_policy = values.reshape(len(layout.candidates), layout.parts)
    first = np.cumsum([0, *layout.components[:-1]])
    return np.asarray(combine.reduceat(by_policy, first, axis=1)).ravel()


def _component_counts(layout: Layout) -> Array:
    return np.tile(np.array(layout.components, dtype=float), len(layout.candidates))


def _known(state: State, layout: Layout) -> Mask:
    """Whether there has been an event with the policy, for each estimator."""
    return np.asarray(_over_components(state["weight"][:, -1], layout, np.minimum) > 0)


def _moments(state: State, mixed: Mixed, layout: Layout) -> Array:
    """The mixed kernel's moments, for each estimator that of the component remembered shortest.

    Of single terms it knows nothing: neither their squares nor the largest of them.
    """
    count = len(layout.candidates) * len(layout.components)
    moments = np.full((count, ROWS), np.nan)
    known = _known(state, layout)
    moments[:, Row.WEIGHT] = moments[:, Row.V] = np.where(known, 1.0, 0.0)
    moments[:, Row.U] = np.where(known, _over_components(mixed.value, layout, np.add), 0.0)
    moments[:, Row.WEIGHT_SQUARE] = _over_components(mixed.squares, layout, np.maximum)
    for row, name in DIAGNOSTICS.items():
        means = ratio((mixed.kernel * state[name]).sum(axis=-1), (mixed.kernel * state["weight"]).sum(axis=-1))
        moments[:, row] = _over_components(means, layout, np.minimum)
    moments[:, Row.LARGEST_IMPORTANCE] = _over_components(state["largest"], layout, np.maximum)
    return moments
