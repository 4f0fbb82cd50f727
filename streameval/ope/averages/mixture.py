"""The mixture: it learns how long to remember from how well decays with many horizons predicted the next block."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import field
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.common.arrays import (
    ROUNDING,
    Array,
    Integers,
    Mask,
    State,
    beyond_rounding,
    decayed_path,
    fading_path,
    fading_paths,
    last_axis_first,
    ratio,
    recursion,
    take_columns,
    with_start,
)
from streameval.common.component import strict
from streameval.ope.averages import variance
from streameval.ope.averages.base import Average, FoldedState, Lift, Reading
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.moments import ROWS, TERM_SUMS, MomentRow
from streameval.ope.averages.moments import variance as variance_of

HORIZONS = np.array([1e3, 2e3, 3e3, 5e3, 7e3, 1e4, 1.5e4, 2e4, 3e4, 5e4, 1e5, 2e5, np.inf])
MEMORY = 100_000.0
"""Horizon of noise variances, drift rates and diagnostics, in events."""
LOSS_MEMORY = np.clip(2 * np.append(HORIZONS[1:], np.inf), 1e5, 1e6)
"""Horizon of the differences of losses between each decay and the next one, in events."""
PSEUDO_EVENTS = 500.0
NOISE_EVENTS = 2_000.0
SMALLEST_VARIANCE = 1e-6
FEWEST_POOLED = 3
PRIOR_HORIZONS = 1e4, 4e5
"""Before any loss, the weight of a decay grows with its horizon between these two, in events."""
DIAGNOSTIC_ROWS = [MomentRow.IMPORTANCE, MomentRow.IMPORTANCE_SQUARE, MomentRow.UNSUPPORTED]
"""The sums of a policy's weights that each decay keeps."""
TERM_ROWS = [MomentRow.U, MomentRow.UU]
"""The sums of an estimator's whole term that each decay keeps: rows of moments, and the same of a variance."""
POOLED_RATE, SOLO_RATE = 0.4, 1.0
OF_DECAYS = ("weight", "total", "age", "excess_loss", "diagnostics", "terms")
"""The parts of a state that every decay has, on the last axis."""


class ColumnLayout(NamedTuple):
    """The columns of a mixture: see `Average.start`. Components are side by side, as estimators are."""

    components: Sequence[int]
    candidates: Sequence[bool]
    rewards: int = 1

    @property
    def policies(self) -> int:
        return len(self.candidates)

    @property
    def columns(self) -> int:
        """Columns of terms: policies times estimators."""
        return self.policies * len(self.components)

    @property
    def parts(self) -> int:
        """Component columns of one policy."""
        return sum(self.components)

    @property
    def groups(self) -> int:
        """Groups of component columns that have the same events: those of a policy and a reward."""
        return self.policies * self.rewards


@dataclass(frozen=True, config=strict)
class Mixture(Average):
    """A mixture of decays with horizons from 1,000 events to all there are, weighted by discounted one-step losses.

    At each block end, before the block is added, every decay j is charged `(E_j - x)^2 / (2 v)`: its estimate against
    the block's mean, in units of the noise of such a mean. Weights are `om_j ~ p_j exp(-rate (Loss_j - min Loss))`; the
    estimate is `sum om_j E_j`, summed over the components of the estimator. With three candidates or more, losses are
    pooled over them and the rate is 0.4, else 1 for each policy alone (`rate` overrides both).

    The longer two horizons are, the less their losses differ per event, so they are compared over more events: the
    difference of the losses of neighbours fades with twice the longer horizon, from 100,000 to a million events, and
    `Loss_j` is the sum of the differences from j to the longest. Besides, longer horizons have more weight before any
    loss: `p_j` is the square root of the horizon, or of the number of events so far if that is less, from 10,000 to
    400,000. Each decay starts with 500 pseudo-events at a start-up value that fades with it. It sees a block when the
    block ends.

    Lifts are a mixture of their own over the differences of terms to those of production, with its own state.

    Source: Vovk, COLT 1990, for the weights; Cesa-Bianchi & Lugosi, Prediction, learning, and games, 2006, ch. 2.
    """

    default_interval: ClassVar[str] = "drift_aware"
    mixes_components: ClassVar[bool] = True

    rate: PositiveFloat | None = None
    preference: ClassVar[int] = 0
    kind: Literal["mixture"] = field(default="mixture", kw_only=True, repr=False)

    def start(self, components: Sequence[int], candidates: Sequence[bool], block: int, rewards: int = 1) -> State:
        layout = ColumnLayout(list(components), list(candidates), rewards)
        return {
            "layout": layout._asdict(),
            "values": self._start_columns(layout),
            "lifts": self._start_columns(lift_layout(layout)),
        }

    def fold(self, state: State, blocks: Blocks, rate: Array) -> FoldedState:
        """The state after whole blocks, and the lifts of every estimator."""
        layout, lifts = ColumnLayout(**state["layout"]), state["lifts"]
        values, bank = self._fold_columns(state["values"], blocks.unpaired, layout)
        if layout.policies < 2:
            return {**state, "values": values}, None
        differences = lift_blocks(blocks, bank)
        effects = variance.design_effect(variance.path(lifts["spread"], differences, MEMORY))
        lifts, bank = self._fold_columns(lifts, differences, lift_layout(layout))
        value, sampling_variance, memory_spread = bank.path
        lift = Lift(value, sampling_variance * np.fmax(1.0, effects), memory_spread, blocks.events_of_both)
        return {**state, "values": values, "lifts": lifts}, lift

    def read(self, state: State, tail: Blocks | None, rate: Array) -> Reading:
        """The estimate after the last finished block."""
        layout = ColumnLayout(**state["layout"])
        lift = self._read_columns(state["lifts"], lift_layout(layout), lift=None)
        return self._read_columns(state["values"], layout, lift)

    def select(self, state: State, count: int, policies: Sequence[int], estimators: Sequence[int]) -> State:
        components, candidates = state["layout"]["components"], state["layout"]["candidates"]
        first = np.cumsum([0, *components])
        places = [place for each in estimators for place in range(first[each], first[each + 1])]
        of_reward = len(components) // state["layout"]["rewards"]
        rewards = sorted({each // of_reward for each in estimators})
        columns = {"overlap": rewards, "diagnostics": rewards, "terms": estimators, "spread": estimators}
        parts = (("values", count, policies), ("lifts", count - 1, [place - 1 for place in policies[1:]]))
        kept = ColumnLayout(
            [components[each] for each in estimators], [candidates[each] for each in policies], len(rewards)
        )
        selected = {
            name: {key: take_columns(value, of, index, columns.get(key, places)) for key, value in state[name].items()}
            for name, of, index in parts
        }
        return {"layout": kept._asdict(), **selected}

    def _start_columns(self, layout: ColumnLayout) -> State:
        """The state of a mixture of terms."""
        decays, components = len(HORIZONS), layout.policies * layout.parts
        return {
            "events": 0,
            **{name: np.zeros((components, decays)) for name in ("weight", "total", "age", "excess_loss")},
            "diagnostics": np.zeros((layout.groups, len(DIAGNOSTIC_ROWS), decays)),
            "overlap": np.zeros((layout.groups, decays, decays)),
            "recent": np.zeros((components, TERM_SUMS.stop)),
            **{name: np.full(components, np.nan) for name in ("prior", "prior_square")},
            "trend": np.zeros((components, 2)),
            "largest": np.zeros(components),
            "terms": np.zeros((layout.columns, len(TERM_ROWS), decays)),
            "spread": variance.start(layout.columns, paired=False),
        }

    def _fold_columns(self, state: State, blocks: Blocks, layout: ColumnLayout) -> tuple[State, DecayBank]:
        """The state after whole blocks of terms, and the bank before them and after each."""
        bank = DecayBank.after(state, blocks, layout, self.rate)
        return {**state, **bank.state, "spread": variance.fold(state["spread"], blocks, MEMORY)}, bank

    def _read_columns(self, state: State, layout: ColumnLayout, lift: Reading | None) -> Reading:
        bank = DecayBank.now(state, layout, self.rate)
        (known,), (_, *variances) = bank.known, bank.of_terms
        # no horizon is longer than the stream
        horizon = (bank.share[:, 0] * np.minimum(HORIZONS, max(state["events"], 1))[:, None]).sum(axis=0)
        horizon = _over_components(horizon, layout, np.add) / np.tile(layout.components, layout.policies)
        return Reading(
            bank.moments[0],
            state["spread"],
            tail=None,
            details={"horizon_events": np.where(known, horizon, np.nan)},
            parts={
                name: np.sqrt(np.where(known, values[0], np.nan))
                for name, values in zip(("se", "spread", "drift"), variances, strict=True)
            },
            lift=lift,
        )


@dataclasses.dataclass(frozen=True)
class DecayBank:
    """The decays, and their mixture, at some moments.

    `sums`: by the key in a state, [moments, columns, ...], those of every decay [decays, moments, columns, ...]; a
    column is a component. Decays come first, so that what sums over them adds long rows. Weights and ages that are the
    same for all columns have one.
    """

    sums: State
    layout: ColumnLayout
    rate: float | None

    @classmethod
    def now(cls, state: State, layout: ColumnLayout, rate: float | None) -> DecayBank:
        """The bank at present."""
        sums = {name: np.asarray(state[name])[None] for name in state.keys() - {"spread", *OF_DECAYS}}
        return cls(sums | {name: last_axis_first(state[name])[:, None] for name in OF_DECAYS}, layout, rate)

    @classmethod
    def after(cls, state: State, blocks: Blocks, layout: ColumnLayout, rate: float | None) -> DecayBank:
        """The bank before some blocks of terms and their components (place 0), and after each of them."""
        parts, size = blocks.components, blocks.events[:, None]
        block = parts.moments
        fading, forgetting = np.exp(-size / HORIZONS), np.exp(-blocks.events / MEMORY)
        largest = np.maximum(block[..., MomentRow.LARGEST_IMPORTANCE], state["largest"])
        squares = block[..., MomentRow.WEIGHT_SQUARE].reshape(len(block), layout.groups, layout.parts // layout.rewards)
        sums: State = {
            "events": np.cumsum([state["events"], *blocks.events]),
            "overlap": overlaps_of(state["overlap"], squares, fading),
            "recent": with_start(state["recent"], decayed_path(state["recent"], block[..., TERM_SUMS], forgetting)),
            "largest": with_start(state["largest"], np.maximum.accumulate(largest)),
            "prior": with_start(state["prior"], parts.prior),
            "prior_square": with_start(state["prior_square"], parts.prior_square),
        }
        mean = _block_means(state, block, size, cls(sums, layout, rate))
        weight, mean = _known(block[..., MomentRow.WEIGHT], mean)
        alike = all(_alike(state[name]) for name in ("weight", "age")) and _alike(weight.T)
        counted = weight[:, :1] if alike else weight
        before = state | {name: state[name][: counted.shape[1]] for name in ("weight", "age")}
        steps = {"weight": counted, "total": weight * mean}
        first = block[:, :: layout.parts // layout.rewards]  # of each group
        steps |= {"diagnostics": first[..., DIAGNOSTIC_ROWS], "terms": blocks.spread[..., TERM_ROWS]}
        sums |= fading_paths(before, steps, fading)
        aged = (size * fading).T[..., None] * sums["weight"][:, :-1] + counted * (size - 1) / 2
        sums["age"] = fading_path(before["age"], aged, fading)
        bank = cls(sums, layout, rate)
        losses = _excess_losses(bank.estimates[:, :-1], bank.noise[:-1], weight, mean)
        sums["excess_loss"] = fading_path(state["excess_loss"], losses, np.exp(-size / LOSS_MEMORY))
        sums["trend"] = with_start(state["trend"], decayed_path(state["trend"], bank.trend_evidence[1:], forgetting))
        return bank

    @property
    def state(self) -> State:
        """The last moment as a state keeps it. Its memory order, that of a restored state, decides the last bit."""
        kept = {name: values[-1].copy() for name, values in self.sums.items() if name not in OF_DECAYS}
        last = {name: np.moveaxis(self.sums[name][:, -1], 0, -1).copy() for name in OF_DECAYS}
        columns = {"overlap": self.layout.groups, **dict.fromkeys(("weight", "age"), len(kept["prior"]))}
        every: State = kept | last
        for name, count in columns.items():
            every[name] = np.broadcast_to(every[name], (count, *every[name].shape[1:])).copy()
        return every

    @cached_property
    def pseudo_events(self) -> Array:
        """The pseudo-events left of each decay's start; none without a start-up value."""
        left = PSEUDO_EVENTS * np.exp(-self.sums["events"] / HORIZONS[:, None])[..., None]
        unknown = np.isnan(self.sums["prior"])
        return np.where(unknown, 0.0, left) if unknown.any() else left

    @cached_property
    def estimates(self) -> Array:
        """The estimate of each decay; NaN before the first event."""
        pseudo, prior = self.pseudo_events, np.nan_to_num(self.sums["prior"])
        return ratio(self.sums["total"] + pseudo * prior, self.sums["weight"] + pseudo)

    @cached_property
    def noise(self) -> Array:
        """Variance of one event's term, with a prior second moment.

        It is at least a quarter of the variance around the mean of prior and events together: the mean of the first few
        events may be so large that its square is more than the second moment.
        """
        recent, prior = self.sums["recent"], NOISE_EVENTS * np.exp(-self.sums["events"][:, None] / MEMORY)
        weight, expected = recent[..., MomentRow.WEIGHT], prior * self.sums["prior_square"]
        mean = ratio(recent[..., MomentRow.U], weight)
        shrunken = (recent[..., MomentRow.U] + prior * np.nan_to_num(self.sums["prior"])) / (weight + prior)
        square = (recent[..., MomentRow.UU] + expected) / (weight + prior)
        plain = np.maximum(square - mean**2, (square - shrunken**2) / 4)
        linear = (weight * variance_of(recent) + expected) / (weight + prior)
        is_mean = np.abs(recent[..., MomentRow.V] - weight) <= ROUNDING * weight
        return np.asarray(np.maximum(np.where(is_mean, plain, linear), SMALLEST_VARIANCE))

    @cached_property
    def _pools(self) -> list[list[int]]:
        """The policies whose losses are added up; each policy is in one pool."""
        candidates = [place for place, pooled in enumerate(self.layout.candidates) if pooled]
        pooled = candidates if len(candidates) >= FEWEST_POOLED else []
        alone = [[place] for place in range(self.layout.policies) if place not in pooled]
        return [pooled, *alone] if pooled else alone

    @cached_property
    def _share_of_pools(self) -> Array:
        """The weight of each decay in the mixture, [decays, moments, pools, parts]."""
        excess = self.sums["excess_loss"]
        together = np.equal.outer(np.arange(len(self._pools)), self._pool_of_policy).astype(float)
        of_pools = together @ excess.reshape(*excess.shape[:2], self.layout.policies, self.layout.parts)
        charged = of_pools[::-1].cumsum(axis=0)[::-1]
        charged -= charged.min(axis=0)
        rate = [self.rate or (SOLO_RATE if len(pool) == 1 else POOLED_RATE) for pool in self._pools]
        reached = np.minimum(HORIZONS[:, None], self.sums["events"])
        prior = np.sqrt(np.clip(reached, *PRIOR_HORIZONS))[..., None, None]
        weight = prior * np.exp(np.multiply(charged, -np.array(rate)[:, None]))
        return np.asarray(weight / weight.sum(axis=0))

    @cached_property
    def _pool_of_policy(self) -> Integers:
        of_policy = np.empty(self.layout.policies, dtype=int)
        for place, pool in enumerate(self._pools):
            of_policy[pool] = place
        return of_policy

    def _by_column(self, values: Array) -> Array:
        """Numbers of pools [..., pools * parts] for every column; those of columns as they are."""
        parts = self.layout.parts
        if values.shape[-1] == self.layout.policies * parts:
            return values
        return values.take((self._pool_of_policy[:, None] * parts + np.arange(parts)).ravel(), axis=-1)

    def _per_event(self, share: Array, weight: Array) -> Array:
        """Shares of pools over a weight: of each pool where all columns have the same events, else of each column."""
        share = share.reshape(*share.shape[:2], -1)
        return ratio(share if weight.shape[-1] == 1 else self._by_column(share), weight)

    def _mixed(self, kernel: Array, values: Array) -> Array:
        """The sum over all decays of their values by a kernel, [moments, columns]."""
        return np.asarray((self._by_column(kernel) * values).sum(axis=0))

    @cached_property
    def share(self) -> Array:
        """The weight of each decay in the mixture."""
        return self._by_column(self._share_of_pools.reshape(*self._share_of_pools.shape[:2], -1))

    @cached_property
    def kernel(self) -> Array:
        """The weight in the mixture of an event of each decay."""
        return self._by_column(self._per_event(self._share_of_pools, self.sums["weight"] + self.pseudo_events))

    @cached_property
    def value(self) -> Array:
        """The estimate of the mixture, [moments, columns]."""
        return np.asarray((self.share * self.estimates).sum(axis=0))

    @cached_property
    def squares(self) -> Array:
        """Sum of the squares of the mixed kernel."""
        return self._squares_of(self.kernel)

    def _squares_of(self, kernel: Array) -> Array:
        overlap = self.sums["overlap"]
        if overlap.shape[1] > 1:
            kernel = self._by_column(kernel)
        decays, moments, columns = kernel.shape
        groups = overlap.shape[1]
        by_group = kernel.reshape(decays, moments, groups, columns // max(1, groups)).transpose(1, 2, 0, 3)
        squares = np.matmul(overlap, by_group) * by_group
        return self._by_column(squares.sum(axis=2).reshape(moments, columns))

    @cached_property
    def sampling_variance(self) -> Array:
        """That of the events alone, and the square of the distance by which the pseudo-events move the estimate.

        The start-up value comes from the same events: it makes the estimate steady, and no more certain.
        """
        alone = self._per_event(self._share_of_pools, self.sums["weight"])
        moved = self.value - self._mixed(alone, self.sums["total"])
        return np.asarray(self.noise * self._squares_of(alone) + moved**2)

    @cached_property
    def memory_spread(self) -> Array:
        """Variance of the estimates of the decays in the mixture."""
        return np.asarray((self.share * (self.estimates - self.value) ** 2).sum(axis=0))

    @cached_property
    def trend(self) -> tuple[Array, Array]:
        """The present drift per event and its sampling variance, [moments, columns]; NaN before a second block.

        The estimate of a mixture in which the next shorter decay replaces each decay, less that of one in which the
        next longer decay does, over the difference of the mean ages of their events. Pseudo-events do not count.
        """
        share = self._share_of_pools
        shorter, longer = _moved(share[::-1])[::-1], _moved(share)
        kernel = self._per_event(shorter - longer, self.sums["weight"])
        ages = kernel * self.sums["age"]
        span = self._by_column(beyond_rounding(-ages.sum(axis=0), np.abs(ages).sum(axis=0)))
        slope = ratio(self._mixed(kernel, self.sums["total"]), span)
        return slope, ratio(self.noise * self._squares_of(kernel), span**2)

    @property
    def trend_evidence(self) -> Array:
        """The terms `b^2 / n - 1` and `1 / n` of the sums that give the usual drift, [moments, columns, 2]."""
        slope, noise = self.trend
        evidence = np.stack([ratio(slope**2, noise) - 1, ratio(np.ones_like(noise), noise)], axis=-1)
        return np.where(np.isfinite(evidence).all(axis=-1, keepdims=True), evidence, 0.0)

    @property
    def drift_square(self) -> Array:
        """The square of the drift per event, `max(b^2 - f n, d^2)`; NaN before a second block.

        `b`: the trend; `n`: its sampling variance. `d`, the usual drift, is learned: `d^2` is the mean of `b^2 - n`
        over the last 100,000 events, weighted by `1 / n`, and over candidates. `f` is the share of these events that
        the stream has had: while `d` is hardly known, the whole trend counts as drift.
        """
        candidates = np.array(self.layout.candidates, dtype=bool)
        slope, noise = self.trend
        learned = self.sums["trend"].reshape(len(slope), len(candidates), self.layout.parts, 2).copy()
        learned[:, candidates] = learned[:, candidates].sum(axis=1, keepdims=True)
        usual = ratio(learned[..., 0], learned[..., 1]).reshape(slope.shape)
        seen = 1 - np.exp(-self.sums["events"][:, None] / MEMORY)
        return np.asarray(np.maximum(np.fmax(slope**2 - seen * noise, usual), 0.0))

    @property
    def of_terms(self) -> tuple[Array, ...]:
        """The value of each whole term, and its variances: by sampling, between the decays, by drift.

        Components drift together: the distances that they have moved since the mean age of their events add up.
        """
        moved = np.sqrt(self.drift_square) * (self.kernel * self.sums["age"]).sum(axis=0)
        each = (self.value, self.sampling_variance, self.memory_spread, moved)
        *others, distance = (_over_components(values, self.layout, np.add) for values in each)
        return *others, distance**2

    @property
    def known(self) -> Mask:
        """Whether there has been an event with the policy, for each estimator."""
        weight = np.broadcast_to(self.sums["weight"][-1], self.value.shape)
        return np.asarray(_over_components(weight, self.layout, np.minimum) > 0)

    @property
    def denominator(self) -> Array:
        """The recent mean denominator, [moments, columns]."""
        recent = self.sums["recent"]
        return ratio(recent[..., MomentRow.V], recent[..., MomentRow.WEIGHT])

    @property
    def path(self) -> list[Array]:
        """The value of each whole term after each block, and its variances by sampling and between the decays."""
        after = (self.value[1:], self.sampling_variance[1:], self.memory_spread[1:])
        return [_over_components(values, self.layout, np.add) for values in after]

    @property
    def moments(self) -> Array:
        """The moments under the mixed kernel; of an estimator's components, under the one with the largest squares.

        The largest term is unknown. Squares of terms are those under the kernel, moved to the estimate. Terms and
        weights are reported as uncorrelated, so that no interval corrects the estimate by the mean weight:
        pseudo-events have no weights, and a ratio is corrected already.
        """
        layout, sums, known = self.layout, self.sums, self.known
        moments = np.full((*known.shape, ROWS), np.nan)
        moments[..., MomentRow.WEIGHT] = moments[..., MomentRow.V] = np.where(known, 1.0, 0.0)
        moments[..., MomentRow.U] = np.where(known, _over_components(self.value, layout, np.add), 0.0)
        largest_squares = _over_components(self.squares, layout, np.maximum)
        moments[..., MomentRow.WEIGHT_SQUARE] = np.where(known, largest_squares, 0.0)
        seen = (self.kernel * sums["weight"]).sum(axis=0)
        diagnostics = np.repeat(sums["diagnostics"], layout.parts // layout.rewards, axis=2)
        means = ratio((self.kernel[..., None] * diagnostics).sum(axis=0), seen[..., None])
        means = _over_components(np.moveaxis(means, -1, 0), layout, np.minimum)
        moments[..., DIAGNOSTIC_ROWS] = np.moveaxis(means, 0, -1)
        moments[..., MomentRow.LARGEST_IMPORTANCE] = _over_components(sums["largest"], layout, np.maximum)
        squares = np.nan_to_num(self.squares).reshape(len(known), layout.policies, layout.parts)
        ends = pairwise(np.cumsum([0, *layout.components]))
        shortest = np.stack([start + squares[..., start:stop].argmax(axis=-1) for start, stop in ends], axis=-1)
        shortest = (shortest + np.arange(layout.policies)[:, None] * layout.parts).reshape(known.shape)
        kernel = np.take_along_axis(self.kernel, shortest[None], axis=2)
        weight = np.take_along_axis(seen, shortest, axis=1)[..., None]
        term, square = np.moveaxis(ratio((kernel[..., None] * sums["terms"]).sum(axis=0), weight), -1, 0)
        value, weight = moments[..., MomentRow.U], moments[..., MomentRow.IMPORTANCE]
        moments[..., MomentRow.UU] = square - term**2 + value**2
        moments[..., MomentRow.TERM_IMPORTANCE] = value * weight
        return moments


def _block_means(state: State, block: Array, size: Integers, known: DecayBank) -> Array:
    """The mean of the term in each block, [blocks, columns]; ratios are linearised around the estimates before it.

    `size` [blocks, 1]: events. `known`: what does not depend on these means, before the blocks and after each of them.
    """
    u, v, weight = (block[..., row] for row in (MomentRow.U, MomentRow.V, MomentRow.WEIGHT))
    means, has_ratios = ratio(u, v), (v != weight).any(axis=1)
    if not has_ratios.any():
        return means
    recent = known.sums["recent"][:-1]
    denominators = weight * ratio(recent[..., MomentRow.V], recent[..., MomentRow.WEIGHT])
    fading, forgetting = (np.exp(-size / memory)[..., None, None] for memory in (HORIZONS, LOSS_MEMORY))
    sums = {name: last_axis_first(state[name])[:, None] for name in ("weight", "total", "excess_loss")}
    for place in range(len(block)):
        at = {name: known.sums[name][place : place + 1] for name in ("events", "prior")}
        bank = DecayBank({**at, **sums}, known.layout, known.rate)
        if has_ratios[place]:
            with np.errstate(divide="ignore", invalid="ignore"):
                linear = bank.value[0] + (u[place] - bank.value[0] * v[place]) / denominators[place]
            means[place] = np.where(np.isfinite(linear), linear, means[place])
        here = _known(weight[place], means[place])
        losses = _excess_losses(bank.estimates, known.noise[place], *here)
        sums = {
            "weight": fading[place] * sums["weight"] + here[0],
            "total": fading[place] * sums["total"] + here[0] * here[1],
            "excess_loss": forgetting[place] * sums["excess_loss"] + losses,
        }
    return means


def _alike(columns: Array) -> bool:
    """Whether all entries of the first axis are the same."""
    return bool((columns == columns[:1]).all())


def _known(weight: Array, mean: Array) -> tuple[Array, Array]:
    """The weights and means of a block, 0 where there is no mean: weights that are all 0 make no ratio."""
    known = (weight > 0) & np.isfinite(mean)
    return np.where(known, weight, 0.0), np.where(known, mean, 0.0)


def _excess_losses(estimates: Array, noise: Array, weight: Array, mean: Array) -> Array:
    """The loss of each decay in some blocks over that of the next longer decay, [decays, blocks, columns].

    `estimates`, `noise`: before each block. `weight`, `mean`: of the block.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        losses = np.square(estimates - mean)
        losses *= np.where(weight > 0, weight / (2 * noise), np.nan)
    np.copyto(losses, 0.0, where=~np.isfinite(losses))
    losses[:-1] -= losses[1:]
    losses[-1] = 0.0
    return losses


def _moved(share: Array) -> Array:
    """The share of each decay given to the next one; the last keeps its own."""
    moved = np.concatenate([np.zeros_like(share[:1]), share[:-1]])
    moved[-1] += share[-1]
    return moved


def _over_components(values: Array, layout: ColumnLayout, combine: np.ufunc) -> Array:
    """Component columns [..., policies * parts] combined for each estimator, [..., policies * estimators]."""
    by_policy = values.reshape(*values.shape[:-1], layout.policies, layout.parts)
    first = np.cumsum([0, *layout.components[:-1]])
    return np.asarray(combine.reduceat(by_policy, first, axis=-1)).reshape(*values.shape[:-1], layout.columns)


def overlaps_of(state: Array, squares: Array, fading: Array) -> Array:
    """Sums of `K_j K_k` over the events, before the blocks and after each, [blocks + 1, groups, decays, decays].

    One for all groups where they have had the same events. `fading` [blocks, decays].
    """
    if _alike(state) and _alike(squares[:, :, :1].swapaxes(0, 1)):
        state, squares = state[:1], squares[:, :1]
    return recursion(state, squares[:, :, :1, None], fading[:, :, None] * fading[:, None])


def lift_layout(layout: ColumnLayout) -> ColumnLayout:
    """The layout of lifts: all policies but production, each compared with the others."""
    return ColumnLayout(layout.components, [True] * (layout.policies - 1), layout.rewards)


def lift_blocks(blocks: Blocks, bank: DecayBank) -> Blocks:
    """The differences of all terms to those of production, and of their components, on the events that both have.

    A ratio is linearised around the estimates before the block, as in the mixture of values.
    """
    return blocks.lifts(bank.value[:-1], bank.denominator[:-1], bank.layout.components, bank.layout.rewards)
