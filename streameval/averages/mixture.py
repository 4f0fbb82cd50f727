"""The mixture: a bank of decays that a stream of losses weighs, for each component of a term on its own.

Exponentially weighted aggregation: how long it pays to remember is learned from how well each memory foretold the
next block.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal, NamedTuple

import numpy as np
from pydantic import PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.arrays import Array, Mask, State
from streameval.averages import spread
from streameval.averages.blocks import Blocks
from streameval.averages.moments import ROWS, Moments, Row, ratio, variance
from streameval.averages.reading import Reading
from streameval.averages.spread import Spread, SpreadRow
from streameval.labels import Labelled, strict

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
class Mixture(Labelled):
    """A mixture of decays with horizons from 1,000 events to all there are, weighed by their discounted one-step
    losses.

    At each block end, before the block is added, every decay j is charged `(E_j - x)^2 / (2 v)`: its estimate against
    the block's mean, in units of the noise of such a mean. Weights `om_j ~ exp(-rate (Loss_j - min Loss))`; the
    estimate is `sum om_j E_j`, summed over the components of the estimator. With three candidates or more, losses are
    pooled over them and the rate is 0.3, else 1 for each policy alone (`rate` overrides both). Each decay begins with
    500 pseudo-events at a start-up value that fades with it. It sees a block when it ends.

    Source: Vovk, COLT 1990, for the weights; Cesa-Bianchi & Lugosi, Prediction, learning, and games, 2006, ch. 2.
    """

    rate: PositiveFloat | None = None
    kind: Literal["mixture"] = field(default="mixture", kw_only=True, repr=False)

    def check(self, block: int) -> None:
        """Any size of block will do."""

    def start(self, layout: Layout, block: int) -> State:
        """The state before the first event."""
        policies = len(layout.candidates)
        columns, decays = policies * layout.parts, len(HORIZONS)
        bank = {name: np.zeros((columns, decays)) for name in ("weight", "total", "age", "loss", *DIAGNOSTICS.values())}
        return {
            "events": 0,
            "block": block,
            **bank,
            "overlap": np.zeros((columns, decays, decays)),
            "recent": spread.nothing(columns),
            "prior": np.full(columns, np.nan),
            "prior_square": np.full(columns, np.nan),
            "largest": np.zeros(columns),
            "drift": np.full(columns, np.nan),
            "past": np.full((2, max(1, -(-DRIFT_SPAN // block)), columns), np.nan),
            "spread": spread.nothing(policies * len(layout.components)),
        }

    def fold(self, state: State, blocks: Blocks, parts: Parts, layout: Layout) -> State:
        """The state after these whole blocks of terms and of their components."""
        state = dict(state)
        for index in range(len(blocks)):
            self._step(state, parts, index, layout)
        return {**state, "spread": spread.fold(state["spread"], blocks, MEMORY)}

    def _step(self, state: State, parts: Parts, index: int, layout: Layout) -> None:
        block = parts.blocks.moments[index]
        mean = self._block_mean(state, block, layout)
        present = block[:, Row.WEIGHT] > 0
        self._charge(state, mean, block[:, Row.WEIGHT], present)
        _decay(state, block, np.where(present, mean, 0.0))
        state["recent"] = state["recent"] * np.exp(-state["block"] / MEMORY) + parts.blocks.spread[index]
        state["prior"], state["prior_square"] = parts.prior[index], parts.prior_square[index]
        state["largest"] = np.maximum(state["largest"], block[:, Row.LARGEST_IMPORTANCE])
        state["events"] += state["block"]
        now = self._mix(state, layout)
        place = (state["events"] // state["block"] - 1) % state["past"].shape[1]
        span = state["past"].shape[1] * state["block"]
        state["drift"] = _drift(state["past"][:, place].copy(), now, span, layout)
        state["past"][:, place] = now.value, now.sampling

    def _block_mean(self, state: State, block: Array, layout: Layout) -> Array:
        """The mean of the term in a block; for a ratio linearised around the present estimate."""
        u, v, weight = block[:, Row.U], block[:, Row.V], block[:, Row.WEIGHT]
        with np.errstate(divide="ignore", invalid="ignore"):
            own = u / v
            if np.array_equal(v, weight):
                return np.asarray(own)
            estimate = self._mix(state, layout).value
            usual = state["recent"][:, SpreadRow.V] / state["recent"][:, SpreadRow.WEIGHT]
            linear = estimate + (u - estimate * v) / (weight * usual)
        return np.where(np.isfinite(linear), linear, own)

    def _charge(self, state: State, mean: Array, weight: Array, present: Array) -> None:
        """Add to the loss of each decay how badly it foretold the block."""
        estimates = _estimates(state)
        with np.errstate(divide="ignore", invalid="ignore"):
            noise = _noise(state) / weight
            loss = (estimates - mean[:, None]) ** 2 / (2 * noise[:, None])
        state["loss"] = state["loss"] * np.exp(-state["block"] / MEMORY)
        state["loss"] += np.where(present[:, None] & np.isfinite(loss), loss, 0.0)

    def _mix(self, state: State, layout: Layout) -> Mixed:
        """The mixture now, per component column."""
        estimates = _estimates(state)
        share = self._shares(state["loss"], layout)
        pseudo = _pseudo_events(state)
        with np.errstate(divide="ignore", invalid="ignore"):
            kernel = ratio(share, state["weight"] + pseudo)
            value = (share * estimates).sum(axis=-1)
            squares = np.einsum("cj,cjk,ck->c", kernel, state["overlap"], kernel)
            sampling = _noise(state) * squares
            apart = (share * (estimates - value[:, None]) ** 2).sum(axis=-1)
            age = (kernel * state["age"]).sum(axis=-1)
        horizon = (share * np.minimum(HORIZONS, max(state["events"], 1))).sum(axis=-1)
        return Mixed(value, sampling, apart, age, horizon, squares, kernel)

    def _shares(self, loss: Array, layout: Layout) -> Array:
        """The weight of each decay in the mixture, [columns, decays]."""
        candidates = np.array(layout.candidates)
        by_policy = loss.reshape(len(candidates), layout.parts, -1)
        pooled = candidates.sum() >= FEWEST_POOLED
        charged = by_policy.copy()
        rate = np.full(len(candidates), self.rate or SOLO_RATE)
        if pooled:
            charged[candidates] = by_policy[candidates].sum(axis=0)
            rate[candidates] = self.rate or POOLED_RATE
        charged -= charged.min(axis=-1, keepdims=True)
        weight = np.exp(-rate[:, None, None] * charged)
        return np.asarray((weight / weight.sum(axis=-1, keepdims=True)).reshape(loss.shape))

    def read(self, state: State, layout: Layout) -> Reading:
        """The estimate after the last finished block."""
        mixed = self._mix(state, layout)
        drift = state["drift"] * mixed.age
        known = _known(state, layout)
        parts = {"se": mixed.sampling, "spread": mixed.apart, "drift": drift**2}
        summed = {
            name: np.sqrt(np.where(known, _over_components(values, layout, np.add), np.nan))
            for name, values in parts.items()
        }
        horizon = _over_components(mixed.horizon, layout, np.add) / _component_counts(layout)
        return Reading(
            Moments(_moments(state, mixed, layout)),
            Spread(state["spread"]),
            tail=None,
            bias=np.full_like(summed["drift"], np.nan),
            details={"horizon_events": np.where(known, horizon, np.nan)},
            parts=summed,
        )


class Mixed(NamedTuple):
    """A mixture per component column: estimate, its variances, mean age and horizon, and the kernel that was used."""

    value: Array
    sampling: Array
    apart: Array
    age: Array
    horizon: Array
    squares: Array
    kernel: Array


def _pseudo_events(state: State) -> Array:
    """How many pseudo-events are left of each decay's start, [columns, decays]; none without a start-up value."""
    left = PSEUDO_EVENTS * np.exp(-state["events"] / HORIZONS)
    return np.where(np.isnan(state["prior"])[:, None], 0.0, left)


def _estimates(state: State) -> Array:
    """What each decay estimates, [columns, decays]; NaN before there is anything."""
    pseudo = _pseudo_events(state)
    start = np.nan_to_num(state["prior"])[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((state["total"] + pseudo * start) / (state["weight"] + pseudo))


def _noise(state: State) -> Array:
    """Variance of one event's term, with a prior second moment that the first events are held against, [columns]."""
    recent, prior = state["recent"], NOISE_EVENTS * np.exp(-state["events"] / MEMORY)
    weight, mean = recent[:, SpreadRow.WEIGHT], ratio(recent[:, SpreadRow.U], recent[:, SpreadRow.WEIGHT])
    plain = (recent[:, SpreadRow.UU] + prior * state["prior_square"]) / (weight + prior) - mean**2
    linear = (weight * variance(recent) + prior * state["prior_square"]) / (weight + prior)
    return np.asarray(np.maximum(np.where(recent[:, SpreadRow.V] == weight, plain, linear), SMALLEST_VARIANCE))


def _decay(state: State, block: Array, mean: Array) -> None:
    """Let every decay forget a block's time and take in the block."""
    size = state["block"]
    fading = np.exp(-size / HORIZONS)
    weight = block[:, Row.WEIGHT, None]
    state["age"] = fading * (state["age"] + size * state["weight"]) + weight * (size - 1) / 2
    state["weight"] = fading * state["weight"] + weight
    state["total"] = fading * state["total"] + weight * mean[:, None]
    for row, name in DIAGNOSTICS.items():
        state[name] = fading * state[name] + block[:, row, None]
    state["overlap"] = np.outer(fading, fading) * state["overlap"] + block[:, Row.WEIGHT_SQUARE, None, None]


def _drift(past: Array, now: Mixed, span: int, layout: Layout) -> Array:
    """Drift per event of each component: root mean square over candidates of how far it came, less mere noise."""
    moved = ((now.value - past[0]) ** 2 - now.sampling - past[1]) / span**2
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
