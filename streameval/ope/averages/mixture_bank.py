"""The bank of a mixture: decays with horizons from short to endless, side by side, and what mixing them gives."""

from __future__ import annotations

import dataclasses
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from streameval.common.arrays import Array, State, decayed_path, ratio
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.moments import variance
from streameval.ope.averages.variance import VarianceRow

HORIZONS = np.array([1e3, 2e3, 3e3, 5e3, 7e3, 1e4, 1.5e4, 2e4, 3e4, 5e4, 1e5, 2e5, np.inf])
MEMORY = 100_000.0
"""Horizon of losses, noise variances and diagnostics, in events."""
PSEUDO_EVENTS = 500.0
NOISE_EVENTS = 2_000.0
SMALLEST_VARIANCE = 1e-6


class ColumnLayout(NamedTuple):
    """How columns belong together. Component columns are policy by policy, and within a policy estimator by estimator.

    `components` [estimators]: how many components each estimator has. `candidates` [policies]: whose losses are pooled.
    `paired`: whether the first policy is production, and the others are compared with it.
    """

    components: tuple[int, ...]
    candidates: tuple[bool, ...]
    paired: bool = True

    @property
    def parts(self) -> int:
        """Component columns of one policy."""
        return sum(self.components)


class ComponentBlocks(NamedTuple):
    """The components of some whole blocks.

    `blocks`: their terms, one column a component. `prior` [blocks, columns]: the value to begin with (NaN: nothing),
    and `prior_square` the second moment that a term is presumed to have, both as known after each block.
    """

    blocks: Blocks
    prior: Array
    prior_square: Array


class BankReading(NamedTuple):
    """A mixture per component column: estimate, variance by sampling and between decays, the weights that made it."""

    value: Array
    sampling: Array
    apart: Array
    squares: Array
    share: Array
    kernel: Array


@dataclasses.dataclass(frozen=True)
class DecayBank:
    """What the decays hold at some moments, on the first axis; [moments, columns] or [moments, columns, decays]."""

    events: list[int]
    weight: Array
    total: Array
    recent: Array
    prior: Array
    prior_square: Array

    @classmethod
    def of(cls, state: State) -> DecayBank:
        """The bank at present."""
        names = ("weight", "total", "recent", "prior", "prior_square")
        return cls([state["events"]], *(state[name][None] for name in names))

    @classmethod
    def after(cls, state: State, parts: ComponentBlocks, part: slice, weight: Array, mean: Array) -> DecayBank:
        """The bank before some blocks and after each of them."""
        fading = np.exp(-state["block"] / HORIZONS)
        return cls(
            [state["events"] + state["block"] * index for index in range(len(weight) + 1)],
            path(state["weight"], weight[..., None], fading),
            path(state["total"], (weight * mean)[..., None], fading),
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
        weight, mean = (
            recent[..., VarianceRow.WEIGHT],
            ratio(recent[..., VarianceRow.U], recent[..., VarianceRow.WEIGHT]),
        )
        plain = (recent[..., VarianceRow.UU] + prior * self.prior_square) / (weight + prior) - mean**2
        linear = (weight * variance(recent) + prior * self.prior_square) / (weight + prior)
        return np.asarray(np.maximum(np.where(recent[..., VarianceRow.V] == weight, plain, linear), SMALLEST_VARIANCE))


def mix(bank: DecayBank, share: Array, overlaps: Array, layout: ColumnLayout) -> BankReading:
    """The mixture at each of the bank's moments."""
    estimates, pseudo = bank.estimates, bank.pseudo_events
    kernel = ratio(share, bank.weight + pseudo)
    value = (share * estimates).sum(axis=-1)
    by_policy = kernel.reshape(len(kernel), len(layout.candidates), layout.parts, kernel.shape[-1])
    squares = (np.matmul(by_policy, overlaps) * by_policy).sum(axis=-1).reshape(value.shape)
    apart = (share * (estimates - value[..., None]) ** 2).sum(axis=-1)
    start = (kernel * pseudo).sum(axis=-1) ** 2 / PSEUDO_EVENTS
    return BankReading(value, bank.noise * (squares + start), apart, squares, share, kernel)


def path(state: Array, steps: Array, fading: Array) -> Array:
    """`state = fading state + step` before the first step and after each, [steps + 1, columns, decays]."""
    every = np.concatenate([state[None], np.broadcast_to(steps, (len(steps), *state.shape))])
    return np.asarray(np.matmul(_lags(len(every), tuple(fading)), every.transpose(2, 0, 1)).transpose(1, 2, 0))


@lru_cache(maxsize=64)
def _lags(count: int, fading: tuple[float, ...]) -> Array:
    """How much is left at moment b of what came at moment a, for each decay, [decays, b, a]."""
    lag = np.subtract.outer(np.arange(count), np.arange(count))
    return np.where(lag >= 0, np.array(fading)[:, None, None] ** np.maximum(lag, 0), 0.0)


def overlaps_of(state: Array, squares: Array, size: int) -> Array:
    """Sums of `K_j K_k` over the events, before the blocks and after each, [blocks + 1, policies, decays, decays]."""
    fading = np.exp(-size / HORIZONS)
    both = np.outer(fading, fading)
    overlaps = np.empty((len(squares) + 1, *state.shape))
    overlaps[0] = state
    for index, square in enumerate(squares):
        np.multiply(overlaps[index], both, out=overlaps[index + 1])
        overlaps[index + 1] += square[:, :1, None]
    return overlaps
