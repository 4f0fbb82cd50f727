"""The mixture: a bank of decays that a stream of losses weighs, for each component of a term on its own.

Exponentially weighted aggregation: how long it pays to remember is learned from how well each memory foretold the
next block.
"""

from __future__ import annotations

from dataclasses import field
from itertools import pairwise
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, Mask, State, exchange, ratio
from streameval.common.component import strict
from streameval.ope.averages import variance
from streameval.ope.averages.base import AverageMemory, Reading
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.mixture_bank import (
    HORIZONS,
    MEMORY,
    BankReading,
    ColumnLayout,
    ComponentBlocks,
    DecayBank,
    mix,
    overlaps_of,
    path,
)
from streameval.ope.averages.moments import ROWS, MomentRow, Moments
from streameval.ope.averages.variance import VarianceMoments, VarianceRow

DRIFT_SPAN = 50_000
FEWEST_POOLED = 3
DIAGNOSTICS = {
    MomentRow.IMPORTANCE: "importance",
    MomentRow.IMPORTANCE_SQUARE: "square",
    MomentRow.UNSUPPORTED: "unsupported",
}
"""What is known of a policy's weights, and under which name each decay keeps its sum."""
TERM_ROWS = [MomentRow.U, MomentRow.UU, MomentRow.TERM_IMPORTANCE]
"""What each decay keeps of an estimator's whole term."""
POOLED_RATE, SOLO_RATE = 0.3, 1.0


class MixturePath(NamedTuple):
    """How a mixture fared over some blocks.

    Before each block, [blocks, component columns]: `before`, the estimate; `usual`, the mean denominator of late.
    After each block, [blocks, columns], summed over components: `value`, and what its error is made of, as variances
    (`drift` is NaN while it is not known).
    """

    before: Array
    usual: Array
    value: Array
    sampling: Array
    apart: Array
    drift: Array


@dataclass(frozen=True, config=strict)
class Mixture(AverageMemory):
    """A mixture of decays with horizons from 1,000 events to all there are, weighed by discounted one-step losses.

    At each block end, before the block is added, every decay j is charged `(E_j - x)^2 / (2 v)`: its estimate against
    the block's mean, in units of the noise of such a mean. Weights `om_j ~ exp(-rate (Loss_j - min Loss))`; the
    estimate is `sum om_j E_j`, summed over the components of the estimator. With three candidates or more, losses are
    pooled over them and the rate is 0.3, else 1 for each policy alone (`rate` overrides both). Each decay begins with
    500 pseudo-events at a start-up value that fades with it. It sees a block when it ends.

    Source: Vovk, COLT 1990, for the weights; Cesa-Bianchi & Lugosi, Prediction, learning, and games, 2006, ch. 2.
    """

    rate: PositiveFloat | None = None
    preference: ClassVar[int] = 0
    kind: Literal["mixture"] = field(default="mixture", kw_only=True, repr=False)

    def start(self, layout: ColumnLayout, block: int) -> State:
        """The state before the first event."""
        policies = len(layout.candidates)
        columns, decays = policies * layout.parts, len(HORIZONS)
        bank = {name: np.zeros((columns, decays)) for name in ("weight", "total", "age", "loss", *DIAGNOSTICS.values())}
        return {
            "events": 0,
            "block": block,
            **bank,
            "overlap": np.zeros((policies, decays, decays)),
            "recent": variance.nothing(columns, paired=False),
            "prior": np.full(columns, np.nan),
            "prior_square": np.full(columns, np.nan),
            "largest": np.zeros(columns),
            "drift": np.full(columns, np.nan),
            "past": np.full((2, max(1, -(-DRIFT_SPAN // block)), columns), np.nan),
            "terms": np.zeros((policies * len(layout.components), len(TERM_ROWS), decays)),
            "spread": variance.nothing(policies * len(layout.components), layout.paired),
        }

    def fold(
        self, state: State, blocks: Blocks, parts: ComponentBlocks, layout: ColumnLayout
    ) -> tuple[State, MixturePath]:
        """The state after these whole blocks of terms and of their components, and how it came to be.

        All blocks are taken at once, unless a term is a ratio: that is linearised around the estimate before its block.
        """
        moments = parts.blocks.moments
        at_once = len(blocks) if np.array_equal(moments[..., MomentRow.V], moments[..., MomentRow.WEIGHT]) else 1
        state = dict(state)
        runs = [
            self._advance(state, blocks, parts, slice(first, first + at_once), layout)
            for first in range(0, len(blocks), at_once)
        ]
        state["spread"] = variance.fold(state["spread"], blocks, MEMORY)
        return state, MixturePath(*map(np.concatenate, zip(*runs, strict=True)))

    def design_effects(self, state: State, blocks: Blocks) -> Array:
        """The design effect after each of these blocks, [blocks, columns], from the state before them."""
        return VarianceMoments(variance.path(state["spread"], blocks, MEMORY)).design_effect

    def _advance(
        self, state: State, blocks: Blocks, parts: ComponentBlocks, part: slice, layout: ColumnLayout
    ) -> MixturePath:
        """Take in some blocks. Of what follows them, place 0 is before the first, place b after b blocks."""
        block, size = parts.blocks.moments[part], state["block"]
        mean = self._block_means(state, block, layout)
        told = (block[..., MomentRow.WEIGHT] > 0) & np.isfinite(mean)  # no ratio comes of weights that are all 0
        weight, mean = np.where(told, block[..., MomentRow.WEIGHT], 0.0), np.where(told, mean, 0.0)
        bank = DecayBank.after(state, parts, part, weight, mean)
        with np.errstate(divide="ignore", invalid="ignore"):
            losses = (bank.estimates[:-1] - mean[..., None]) ** 2 / (2 * bank.noise[:-1] / weight)[..., None]
        charged = np.where((weight > 0)[..., None] & np.isfinite(losses), losses, 0.0)
        loss = path(state["loss"], charged, np.full(len(HORIZONS), np.exp(-size / MEMORY)))
        overlaps = overlaps_of(
            state["overlap"], block[..., MomentRow.WEIGHT_SQUARE].reshape(len(block), len(layout.candidates), -1), size
        )
        mixed = mix(bank, self.shares(loss, layout), overlaps, layout)
        aged = size * np.exp(-size / HORIZONS) * bank.weight[:-1] + weight[..., None] * (size - 1) / 2
        age = path(state["age"], aged, np.exp(-size / HORIZONS))
        moved = (self._remember_values(state, mixed, layout) * (mixed.kernel * age).sum(axis=-1)[1:]) ** 2
        self._remember_events(state, block, blocks.moments[part])
        state |= {
            "age": age[-1],
            "weight": bank.weight[-1],
            "total": bank.total[-1],
            "loss": loss[-1],
            "overlap": overlaps[-1],
            "recent": bank.recent[-1],
            "prior": bank.prior[-1],
            "prior_square": bank.prior_square[-1],
            "events": bank.events[-1],
        }
        usual = ratio(bank.recent[:-1, :, VarianceRow.V], bank.recent[:-1, :, VarianceRow.WEIGHT])
        after = (mixed.value[1:], mixed.sampling[1:], mixed.apart[1:], moved)
        return MixturePath(mixed.value[:-1], usual, *(_over_components(values, layout, np.add) for values in after))

    def _remember_events(self, state: State, block: Array, terms: Array) -> None:
        """Add what blocks of components, and of the whole terms, say besides their means."""
        fading = np.exp(-state["block"] / HORIZONS)
        for row, name in DIAGNOSTICS.items():
            state[name] = path(state[name], block[..., row, None], fading)[-1]
        added = [
            path(state["terms"][:, place], terms[..., row, None], fading)[-1] for place, row in enumerate(TERM_ROWS)
        ]
        state["terms"] = np.stack(added, axis=1)
        state["largest"] = np.maximum(state["largest"], block[..., MomentRow.LARGEST_IMPORTANCE].max(axis=0))

    def _block_means(self, state: State, block: Array, layout: ColumnLayout) -> Array:
        """The mean of the term in each block; a ratio, one block at a time, is linearised around the estimate."""
        u, v, weight = block[..., MomentRow.U], block[..., MomentRow.V], block[..., MomentRow.WEIGHT]
        own = ratio(u, v)
        if np.array_equal(v, weight):
            return own
        estimate = self._now(state, layout).value
        with np.errstate(divide="ignore", invalid="ignore"):
            usual = state["recent"][:, VarianceRow.V] / state["recent"][:, VarianceRow.WEIGHT]
            linear = estimate + (u - estimate * v) / (weight * usual)
        return np.where(np.isfinite(linear), linear, own)

    def _remember_values(self, state: State, mixed: BankReading, layout: ColumnLayout) -> Array:
        """Keep the estimates of a drift span; each compared with the one a span before is the drift then."""
        past = state["past"]
        span = past.shape[1] * state["block"]
        before = exchange(
            past.swapaxes(0, 1), state["events"] // state["block"], np.stack([mixed.value, mixed.sampling], axis=1)[1:]
        )
        drift = _drift(before, mixed.value[1:], mixed.sampling[1:], span, layout)
        state["drift"] = drift[-1]
        return drift

    def _now(self, state: State, layout: ColumnLayout) -> BankReading:
        """The mixture at present, per component column."""
        mixed = mix(DecayBank.of(state), self.shares(state["loss"][None], layout), state["overlap"][None], layout)
        return BankReading(*(values[0] for values in mixed))

    def shares(self, loss: Array, layout: ColumnLayout) -> Array:
        """The weight of each decay in the mixture, [blocks, columns, decays]."""
        candidates = np.array(layout.candidates)
        charged = loss.reshape(len(loss), len(candidates), layout.parts, loss.shape[-1]).copy()
        rate = np.full(len(candidates), self.rate or SOLO_RATE)
        if candidates.sum() >= FEWEST_POOLED:
            charged[:, candidates] = charged[:, candidates].sum(axis=1, keepdims=True)
            rate[candidates] = self.rate or POOLED_RATE
        charged -= charged.min(axis=-1, keepdims=True)
        weight = np.exp(-rate[:, None, None] * charged)
        return np.asarray((weight / weight.sum(axis=-1, keepdims=True)).reshape(loss.shape))

    def read(self, state: State, layout: ColumnLayout) -> Reading:
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
            Moments(moments_of(state, mixed, layout)),
            VarianceMoments(state["spread"]),
            tail=None,
            bias=np.full_like(summed["drift"], np.nan),
            details={"horizon_events": np.where(known, horizon, np.nan)},
            parts=summed,
        )


def _horizon(state: State, mixed: BankReading) -> Array:
    """The mean horizon of the mixture, no longer than what there is to remember."""
    return np.asarray((mixed.share * np.minimum(HORIZONS, max(state["events"], 1))).sum(axis=-1))


def _drift(past: Array, value: Array, sampling: Array, span: int, layout: ColumnLayout) -> Array:
    """Drift per event of each component at some moments, [moments, columns].

    Root mean square over candidates of how far it came, less mere noise.
    """
    moved = ((value - past[:, 0]) ** 2 - sampling - past[:, 1]) / span**2
    by_policy = moved.reshape(len(moved), -1, layout.parts)
    candidates = np.array(layout.candidates)[:, None]
    known = ~np.isnan(by_policy) & candidates
    pooled = ratio(np.where(known, by_policy, 0.0).sum(axis=1), known.sum(axis=1))
    shared = np.where(candidates, pooled[:, None], by_policy)
    return np.asarray(np.sqrt(np.maximum(shared, 0.0)).reshape(moved.shape))


def _over_components(values: Array, layout: ColumnLayout, combine: np.ufunc) -> Array:
    """Component columns [..., policies * parts] combined for each estimator, [..., policies * estimators]."""
    by_policy = values.reshape(*values.shape[:-1], len(layout.candidates), layout.parts)
    first = np.cumsum([0, *layout.components[:-1]])
    return np.asarray(combine.reduceat(by_policy, first, axis=-1)).reshape(*values.shape[:-1], -1)


def _component_counts(layout: ColumnLayout) -> Array:
    return np.tile(np.array(layout.components, dtype=float), len(layout.candidates))


def _known(state: State, layout: ColumnLayout) -> Mask:
    """Whether there has been an event with the policy, for each estimator."""
    return np.asarray(_over_components(state["weight"][:, -1], layout, np.minimum) > 0)


def moments_of(state: State, mixed: BankReading, layout: ColumnLayout) -> Array:
    """The mixed kernel's moments, for each estimator that of the component remembered shortest.

    Of single terms it does not know the largest. Their squares are those that the kernel saw, moved to the estimate.
    Terms and weights are said to be unrelated, so that nobody corrects the estimate by the mean weight: part of it are
    pseudo-events, which weigh nothing, and that of a ratio has been corrected already.
    """
    count = len(layout.candidates) * len(layout.components)
    moments = np.full((count, ROWS), np.nan)
    known = _known(state, layout)
    moments[:, MomentRow.WEIGHT] = moments[:, MomentRow.V] = np.where(known, 1.0, 0.0)
    moments[:, MomentRow.U] = np.where(known, _over_components(mixed.value, layout, np.add), 0.0)
    moments[:, MomentRow.WEIGHT_SQUARE] = np.where(known, _over_components(mixed.squares, layout, np.maximum), 0.0)
    for row, name in DIAGNOSTICS.items():
        means = ratio((mixed.kernel * state[name]).sum(axis=-1), (mixed.kernel * state["weight"]).sum(axis=-1))
        moments[:, row] = _over_components(means, layout, np.minimum)
    moments[:, MomentRow.LARGEST_IMPORTANCE] = _over_components(state["largest"], layout, np.maximum)
    shortest = _shortest(mixed, layout)
    kernel = mixed.kernel[shortest]
    seen = (kernel * state["weight"][shortest]).sum(axis=-1)
    term, square, _ = ratio((kernel[:, None] * state["terms"]).sum(axis=-1), seen[:, None]).T
    value, weight = moments[:, MomentRow.U], moments[:, MomentRow.IMPORTANCE]
    moments[:, MomentRow.UU] = square - term**2 + value**2
    moments[:, MomentRow.TERM_IMPORTANCE] = value * weight
    return moments


def _shortest(mixed: BankReading, layout: ColumnLayout) -> NDArray[np.intp]:
    """For each column the place of its component that is remembered shortest, by the squares of its kernel."""
    squares = np.nan_to_num(mixed.squares).reshape(len(layout.candidates), layout.parts)
    first = np.cumsum([0, *layout.components])
    chosen = [start + squares[:, start:stop].argmax(axis=1) for start, stop in pairwise(first)]
    return np.asarray(np.arange(len(squares))[:, None] * layout.parts + np.stack(chosen, axis=1)).ravel()
