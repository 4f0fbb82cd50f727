"""Mix decays: learn how long to remember from how well decays with many horizons predicted the next block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import structs
from pydantic import Field, PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.common.arrays import (
    ROUNDING,
    Array,
    Integers,
    Mask,
    State,
    clear_rounding,
    ratio,
)
from streameval.common.component import strict
from streameval.ope.core import kernel, past, seasonal
from streameval.ope.core.bank import Bank
from streameval.ope.core.base import Average, Path
from streameval.ope.core.layout import ONE, Component, Layout
from streameval.ope.core.moments import ROWS, MomentRow
from streameval.ope.core.past import History, Past, Tables
from streameval.ope.core.reading import BlockLift, Comparison, Lift, Reading, missing_share
from streameval.ope.core.seasonal import SEASONS, Blend, Course, Means, Season, SeasonState, SeasonText
from streameval.ope.core.selection import Selection
from streameval.ope.core.state import select_policies
from streameval.ope.core.summary import BlockSums

HORIZONS = np.array([1e3, 2e3, 3e3, 5e3, 7e3, 1e4, 1.5e4, 2e4, 3e4, 5e4, 1e5, 2e5, np.inf])
MEMORY = 100_000.0
"""Horizon of noise variances, drift rates and diagnostics, in events."""
LOSS_MEMORY = np.clip(2 * np.append(HORIZONS[1:], np.inf), 1e5, 1e6)
"""Horizon of the differences of losses between each decay and the next one, in events."""
PSEUDO_EVENTS = 500.0
NOISE_EVENTS = 2_000.0
MIN_VARIANCE = 1e-6
"""Smallest variance of a term, relative to the second moment assumed for it, so that it has no unit of the reward."""
MIN_POOLED = 3
PRIOR_HORIZONS = 1e4, 4e5
"""Before any loss, the weight of a decay grows with its horizon between these two, in events."""
DIAGNOSTIC_ROWS = [MomentRow.IMPORTANCE, MomentRow.IMPORTANCE_SQUARE, MomentRow.UNSUPPORTED]
"""The sums of a policy's weights that each decay keeps."""
POOLED_RATE, SOLO_RATE = 0.4, 1.0


class Decays(msgspec.Struct):
    """Hold the decays of a mixture of values, or of lifts, with policies on axis 0.

    Attributes:
        decays: weight, sum of block means, age and excess loss of each decay [P, C, 4, J]
        columns: recent sums of moments, initial value and second moment, and sums of the trend [P, C, 10]
        overlap: sums of the products of two decays' weights [P, J, J]
        faded: sums of importance weights, their squares and unsupported probabilities, and of the term and its square
            of each estimator [P, 3 + 2 E, J]
        largest: the largest importance weight [P]
        past: the sums behind variances of whole terms
        events: the number of events since each policy was added [P]
    """

    decays: Array
    columns: Array
    overlap: Array
    faded: Array
    largest: Array
    past: Past
    events: Integers


class MixtureState(msgspec.Struct):
    """Hold the mixtures of values and of lifts over production.

    Attributes:
        values: of values
        lifts: of lifts
        history: the last blocks of lifts
    """

    values: Decays
    lifts: Decays
    history: History


class SeasonalState(MixtureState):
    """Hold the mixtures with the seasons of values and of lifts."""

    season: SeasonState
    lift_season: SeasonState

    def season_of(self, decays: Decays) -> SeasonState:
        """Return the season of the values or of the lifts."""
        return self.lift_season if decays is self.lifts else self.season


class _Mixed(NamedTuple):
    """Hold the mixture of a bank of decays.

    Attributes:
        path: see `kernel.mix` [B, P, C, 5]
        estimates: of each decay, NaN before the first event [P, C, J]
        share: the weight of each decay in the mixture [P, C, J]
        value: the estimate of the mixture [P, C]
        noise: the variance of one event's term [P, C]
    """

    path: Array
    estimates: Array
    share: Array
    value: Array
    noise: Array


@plain_dataclass(frozen=True)
class _Blocks:
    """Hold what a bank of decays takes in [B, P, ...].

    Args:
        size: events in a block
        terms: sums of `q, q u, q v, q u^2, q u v, q v^2` [B, P, C, 6]
        squares: sums of `q^2` [B, P]
        priors: see `BlockSums.priors` [B, P, C + 1]
        faded: what `Decays.faded` sums up [B, P, 3 + 2 E]
        largest: the largest importance weight [B, P]
        reached: the time that a tenth of each block has reached, minus infinity if unknown [B]
    """

    size: int
    terms: Array
    squares: Array
    priors: Array
    faded: Array
    largest: Array
    reached: Array

    def part(self, blocks: slice) -> _Blocks:
        """Return what the decays take in of some blocks."""
        return replace(self, terms=self.terms[blocks], squares=self.squares[blocks], priors=self.priors[blocks])


@dataclass(frozen=True, config=strict)
class Mixture(Average):
    """Mix decays with horizons from 1,000 events to all there are, weighted by discounted one-step losses.

    At each block end, before the block is added, every decay j is charged `(E_j - x)^2 / (2 v)`: its estimate against
    the block's mean, in units of the noise of such a mean. Weights are `om_j ~ p_j exp(-rate (Loss_j - min Loss))`. The
    estimate is `sum om_j E_j`, summed over the components of the estimator.

    The longer two horizons are, the less their losses differ per event, so they are compared over more events. The
    difference of the losses of neighbours fades with twice the longer horizon, from 100,000 to a million events, and
    `Loss_j` is the sum of the differences from j to the longest. Besides, longer horizons have more weight before any
    loss: `p_j` is the square root of the horizon, or of the number of events so far if that is less, from 10,000 to
    400,000. Each decay starts with 500 pseudo-events at a start-up value that fades with it. It sees a block when the
    block ends.

    Lifts are a mixture of their own, of the differences to production, with its own state.

    Args:
        rate: the learning rate. By default it is 0.4 with three candidates or more, with losses pooled over them, and
            otherwise 1 for each policy alone.
        seasonal: `24h` or `7d` adds a profile over the hours of a day or a week, learned from the times of events
            (`seasonal`). It counts as far as it predicts better, not before one whole period, and not while events have
            no timestamps. The Report then has a forecast of the value for the next 24 hours.

    Source: Vovk, COLT 1990, for the weights; Cesa-Bianchi & Lugosi, Prediction, learning, and games, 2006, ch. 2.
    """

    default_interval: ClassVar[str] = "drift_aware"
    mixes_components: ClassVar[bool] = True

    rate: PositiveFloat | None = None
    seasonal: SeasonText | None = Field(
        default=None, description="learn a profile over the hours of a day (24h) or a week (7d); null: none"
    )
    preference: ClassVar[int] = 0
    kind: Literal["mixture"] = field(default="mixture", kw_only=True, repr=False)

    @property
    def season(self) -> Season | None:
        """Return the period of the season, if there is one."""
        return None if self.seasonal is None else SEASONS[self.seasonal]

    def start(self, bank: Bank) -> MixtureState:
        lifts = max(bank.policies - 1, 0)
        values = _start(bank.policies, bank.layout, bank.shared)
        of_lifts = _start(lifts, bank.layout, _lift_tables(bank.layout))
        history = past.start_history(lifts, 1 + bank.columns)
        if self.season is None:
            return MixtureState(values, of_lifts, history)
        components, horizons = len(bank.layout.every_component), len(HORIZONS)
        seasons = (seasonal.start(count, components, horizons, self.season) for count in (bank.policies, lifts))
        return SeasonalState(values, of_lifts, history, *seasons)

    def fold(self, state: MixtureState, path: Path, bank: Bank) -> Lift | None:
        """Fold whole blocks into the state, and return the lifts of every estimator."""
        sums, layout, reads = path.sums, bank.layout, path.reads and self.season is None
        values, values_after = self._fold(state, state.values, _values(sums, layout), bank, False, reads)
        fading, pasts = np.exp(-sums.size / MEMORY), []
        if reads:
            followed = past.follow(state.values.past, path.steps, bank.shared, float(fading))
            pasts.append(_expanded_path(followed, bank.shared))
        else:
            past.fold(state.values.past, path.steps, bank.shared, np.full((len(sums), 1, 1), fading))
        if bank.policies < 2:
            return None
        blocks, rows, squares, signed, own = _lifts(sums, layout, values)
        weight = sums.rows[:, 1:, layout.row((layout.apart, ONE, ONE)), None]
        totals = np.ascontiguousarray(np.concatenate([weight, rows[..., 1]], axis=-1))
        flat = np.ascontiguousarray(rows.reshape(*rows.shape[:2], -1))
        steps = past.compare(state.history, flat, totals, squares, _compared(bank.layout), signed, sums.covered)
        tables = _lift_tables(bank.layout)
        after = past.follow(state.lifts.past, steps, tables, float(fading))
        past_rows = _expanded_path(after, tables)
        form, term_variance = past.form_and_variance(past_rows)
        effects = np.fmax(1.0, past.design_effect(past_rows, known=(form, term_variance)))
        lift_path, lifts_after = self._fold(state, state.lifts, blocks, bank, True, reads)
        value, sampling, spread = (_over_components(lift_path[..., index], layout, np.add) for index in (2, 3, 4))
        shape = (len(sums), -1)
        events = np.repeat(sums.rows[:, 1:, layout.events_row(True), None], bank.columns, axis=-1)
        variance = sampling.reshape(shape) * effects.reshape(shape)
        noise = term_variance * effects
        parts = rows[..., 0], rows[..., 6], rows[..., 1], noise, np.zeros_like(noise), own
        alone = BlockLift(*(part.reshape(shape) for part in parts))
        lift = Lift(value.reshape(shape), variance, spread.reshape(shape), events.reshape(shape), alone)
        if values_after is not None and lifts_after is not None:
            return lift._replace(reading=_readings(values_after, lifts_after, [*pasts, past_rows]))
        return lift._replace(reading=self.read(state, None, None, bank)) if path.reads else lift

    def _fold(
        self, whole: MixtureState, state: Decays, blocks: _Blocks, bank: Bank, is_lift: bool, reads: bool
    ) -> tuple[Array, DecayReading | None]:
        """Fold blocks into decays of the whole state, and return the path of `kernel.mix`, with a reading if asked."""
        recent = state.columns[..., :6].copy() if isinstance(whole, SeasonalState) else kernel.NOTHING
        if reads:
            path, after = self._mix_each(state, blocks, bank, is_lift)
        else:
            path, after = self._mix(state, blocks, bank, is_lift).path, None
        if isinstance(whole, SeasonalState):
            self._fold_season(whole.season_of(state), state, blocks, path, recent, bank, is_lift)
        kernel.fade(state.faded, np.ascontiguousarray(blocks.faded), np.exp(-blocks.size / HORIZONS))
        state.largest = np.maximum(state.largest, blocks.largest.max(axis=0, initial=0.0))
        state.events = state.events + len(blocks.terms) * blocks.size
        return path, after

    def _mix_each(self, state: Decays, blocks: _Blocks, bank: Bank, is_lift: bool) -> tuple[Array, DecayReading]:
        """Fold blocks into decays one by one, and return the path with a reading after each block."""
        paths, steps, count = [], [], len(blocks.terms)
        for number in range(count):
            events = state.events + number * blocks.size
            part = blocks.part(slice(number, number + 1))
            path, *mixed = self._mix(structs.replace(state, events=events), part, bank, is_lift)
            arrays = [array.copy() for array in (state.decays, state.columns, state.overlap)]
            paths.append(path)
            steps.append((*arrays, events + blocks.size, *mixed))
        decays, columns, overlap, events, *mixed = (
            np.stack(rows, axis=1).reshape(-1, *rows[0].shape[1:]) for rows in zip(*steps, strict=True)
        )
        path, candidates = np.concatenate(paths), slice(None) if is_lift else np.array(bank.candidates)
        after = structs.replace(state, decays=decays, columns=columns, overlap=overlap, events=events)
        return path, DecayReading(after, bank.layout, _Mixed(path, *mixed), candidates, blocks=count)

    def _mix(self, state: Decays, blocks: _Blocks, bank: Bank, is_lift: bool) -> _Mixed:
        """Fold blocks into decays, and mix the decays after them."""
        pools, rates = self._pools(_pooled(bank, is_lift))
        count, policies, components = blocks.terms.shape[:3]
        decays = len(HORIZONS)
        constants = PSEUDO_EVENTS, NOISE_EVENTS, MIN_VARIANCE, MEMORY, np.exp(-blocks.size / MEMORY)
        path, estimates = np.empty((count, policies, components, 5)), np.empty((policies, components, decays))
        shares, values = np.empty((len(rates), components, decays)), np.empty((2, policies, components))
        kernel.mix(
            state.decays,
            state.columns,
            state.overlap,
            state.events.astype(float),
            float(blocks.size),
            np.ascontiguousarray(blocks.terms),
            np.ascontiguousarray(blocks.squares),
            np.ascontiguousarray(blocks.priors),
            _denominators(bank.layout, is_lift).astype(np.int64),
            pools,
            rates,
            np.stack([HORIZONS, np.exp(-blocks.size / HORIZONS), np.exp(-blocks.size / LOSS_MEMORY)]),
            np.array([*constants, *PRIOR_HORIZONS]),
            np.empty((6, decays)),
            estimates,
            shares,
            values,
            is_lift,
            path,
        )
        return _Mixed(path, estimates, shares[pools], *values)

    def _fold_season(
        self,
        season: SeasonState,
        state: Decays,
        blocks: _Blocks,
        path: Array,
        recent: Array,
        bank: Bank,
        is_lift: bool,
    ) -> None:
        """Fold blocks into a season, and add it to the path of lifts.

        Args:
            season: the state of the season
            state: the decays without it, before the number of events has changed
            blocks: the blocks
            path: see `kernel.mix` [B, P, C, 5]
            recent: the recent sums of moments before the blocks [P, C, 6]
            bank: the bank
            is_lift: whether it is the season of lifts
        """
        assert self.season is not None
        if not len(blocks.terms):
            return
        pools, rates = self._pools(_pooled(bank, is_lift))
        fading = float(np.exp(-blocks.size / MEMORY))
        means = Means.from_terms(blocks.terms, path, _denominators(bank.layout, is_lift), recent, fading)
        was_started = season.is_started
        course, firsts = seasonal.follow(season, self.season, means, blocks.squares, blocks.reached, blocks.size)
        if not season.is_started:
            return
        is_timed = np.isfinite(blocks.reached)
        has_started = was_started | np.logical_or.accumulate(is_timed & (means.weight > 0).any(axis=(1, 2)))
        squares = np.where((is_timed & has_started)[:, None], blocks.squares, 0.0)
        left = replace(blocks, terms=course.without(blocks.terms, is_timed), squares=squares)
        parts = []
        for first, last in pairwise([0, *firsts, len(left.terms)]):
            if first in firsts:
                seasonal.forget_drift(season, firsts[first])
            decays = structs.replace(_rest(state, season), events=state.events + first * blocks.size)
            parts.append(self._mix(decays, left.part(slice(first, last)), bank, is_lift).path)
        rest = np.concatenate(parts)
        gate = seasonal.weigh(season, means, (path[..., 0], rest[..., 0]), course, blocks.size)
        if is_lift:
            weight = seasonal.weights(gate, course.is_known, pools, rates)
            plain, other = (
                Blend(one[..., 2], one[..., 3], one[..., 4], np.zeros(weight.shape)) for one in (path, rest)
            )
            path[..., 2:5] = np.stack(plain.with_season(weight, other, course)[:3], axis=-1)

    def _pools(self, pooled: Mask) -> tuple[Integers, Array]:
        """Return the pool of each policy, and the learning rate of each pool."""
        if pooled.sum() < MIN_POOLED:
            return np.arange(len(pooled)), np.full(len(pooled), self.rate or SOLO_RATE)
        rates = [self.rate or POOLED_RATE] + [self.rate or SOLO_RATE] * int((~pooled).sum())
        return np.where(pooled, 0, np.cumsum(~pooled)), np.array(rates)

    def read(self, state: MixtureState, tail: BlockSums | None, rate: Array | None, bank: Bank) -> Reading:
        """Read the estimate after the last finished block."""
        values, lifts = (self._now(state, decays, bank) for decays in (state.values, state.lifts))
        spread = past.expanded(state.lifts.past, _lift_tables(bank.layout))
        lift = _reading(lifts, spread, compared=_compared_with(values, lifts))
        return _reading(values, past.expanded(state.values.past, bank.shared), lift)

    def _now(self, whole: MixtureState, state: Decays, bank: Bank) -> DecayReading:
        """Return a bank of decays with its mixture."""
        is_lift = state is whole.lifts
        candidates = slice(None) if is_lift else np.array(bank.candidates)

        def reading(decays: Decays) -> DecayReading:
            return DecayReading(decays, bank.layout, self._mix(decays, blocks, bank, is_lift), candidates)

        blocks = _no_blocks(state, bank)
        plain = reading(state)
        if self.season is None or not isinstance(whole, SeasonalState):
            return plain
        season = whole.season_of(state)
        course = season.course_now(self.season)
        weight = seasonal.weights(season.gate[None], course.is_known[:1], *self._pools(_pooled(bank, is_lift)))
        events = season.events_ahead(self.season)
        rest = reading(_rest(state, season))
        return SeasonalReading(state, bank.layout, plain.mixed, candidates, plain, rest, weight[0], course, events)

    def select_policies(self, state: MixtureState, index: Sequence[int]) -> Any:
        lifts = [policy - 1 for policy in index[1:]]
        places = {"values": index, "season": index}
        names = state.__struct_fields__
        return type(state)(**{name: select_policies(getattr(state, name), places.get(name, lifts)) for name in names})

    def select(self, state: MixtureState, selection: Selection) -> MixtureState:
        if isinstance(state, SeasonalState):
            for season in (state.season, state.lift_season):
                seasonal.select(season, selection.components)
        for decays in (state.values, state.lifts):
            decays.decays, decays.columns = (
                np.ascontiguousarray(array[:, selection.components]) for array in (decays.decays, decays.columns)
            )
            faded = [0, 1, 2, *(3 + 2 * column + row for column in selection.columns for row in range(2))]
            decays.faded = np.ascontiguousarray(decays.faded[:, faded])
        state.values.past = selection.past(state.values.past, alike=True)
        state.lifts.past = selection.past_of_lifts(state.lifts.past)
        state.history = selection.history(state.history, [0, *(1 + column for column in selection.columns)])
        return state


def _rest(state: Decays, season: SeasonState) -> Decays:
    """Return the decays of what a season leaves, with the other numbers of the decays without it."""
    return structs.replace(state, decays=season.decays, columns=season.columns, overlap=season.overlap)


def _pooled(bank: Bank, is_lift: bool) -> Mask:
    """Return which policies of values, or of lifts, are compared with others."""
    return np.ones(bank.policies - 1, dtype=bool) if is_lift else np.array(bank.candidates)


def _denominators(layout: Layout, is_lift: bool) -> Mask:
    """Return which components have a denominator. Lifts are linearised already."""
    return np.array([component.denominator != ONE and not is_lift for component in layout.every_component])


def _start(policies: int, layout: Layout, tables: Tables) -> Decays:
    components, decays = len(layout.every_component), len(HORIZONS)
    columns = np.zeros((policies, components, 10))
    columns[..., 6:8] = np.nan
    return Decays(
        np.zeros((policies, components, 4, decays)),
        columns,
        np.zeros((policies, decays, decays)),
        np.zeros((policies, 3 + 2 * len(layout.columns), decays)),
        np.zeros(policies),
        past.start(policies, tables),
        np.zeros(policies, dtype=np.int64),
    )


def _no_blocks(state: Decays, bank: Bank) -> _Blocks:
    """Return no blocks, for the mixture as it is."""
    policies, components = state.columns.shape[:2]
    none = np.zeros((0, policies))
    return _Blocks(
        bank.block,
        np.zeros((0, policies, components, 6)),
        none,
        np.zeros((0, policies, components + 1)),
        np.zeros((0, policies, state.faded.shape[1])),
        none,
        none[:, 0] if policies else np.zeros(0),
    )


def _values(sums: BlockSums, layout: Layout) -> _Blocks:
    """Return what the mixture of values takes in."""
    table = np.array([layout.rows(layout.component_products(component)) for component in layout.every_component])
    weights = layout.moment_table[0, [MomentRow.IMPORTANCE, MomentRow.IMPORTANCE_SQUARE, MomentRow.UNSUPPORTED]]
    terms = layout.moment_table[:, [MomentRow.U, MomentRow.UU]].ravel()
    return _Blocks(
        sums.size,
        sums.rows[..., table],
        sums.rows[..., layout.squares_row(False)],
        sums.priors,
        sums.rows[..., np.concatenate([weights, terms])],
        sums.rows[..., layout.heaviest_row],
        sums.reached,
    )


def _lifts(sums: BlockSums, layout: Layout, values: Array) -> tuple[_Blocks, Array, Array, Array | None, Array]:
    """Return what the mixture of lifts takes in, and the rows and signed sums of whole differences.

    The linearised difference of a ratio is unknown until both mean weights are. Only ratios leave such a block out. The
    third part is the sums of squared weights of the blocks that means have, and of those that ratios have [B, P, 2].
    The last part is the sums of candidates' own terms, as means of their events times the weight [B, P, E].

    Args:
        sums: the sums of the blocks
        layout: their rows
        values: the path of the mixture of values [B, P, C, 5]
    """
    rows, components = sums.rows[:, 1:], layout.every_component
    weight = rows[..., layout.row((layout.apart, ONE, ONE))]
    squares = rows[..., layout.squares_row(True)]
    parts = np.empty((*weight.shape, len(components), 2))
    is_known = np.ones(parts.shape[:-1], dtype=bool)
    forms: dict[int, Array] = {}
    for index, component in enumerate(components):
        if component.difference is not None:
            parts[..., index, :] = rows[..., layout.rows(layout.difference_products(component.difference))]
        else:
            forms[index] = form = _form(values[:, :, index])
            products = rows[..., layout.rows(layout.ratio_products(component))]
            parts[..., index, :], is_known[..., index] = _linear(form, products)
    parts = np.where(is_known[..., None], parts, 0.0)
    known_weight = np.where(is_known, weight[..., None], 0.0)
    terms = np.stack([known_weight, parts[..., 0], known_weight, parts[..., 1], parts[..., 0], known_weight], axis=-1)
    whole = np.empty((*weight.shape, len(layout.columns), 9))
    table = layout.moment_table
    alone = ratio(rows[..., table[:, MomentRow.U]], rows[..., table[:, MomentRow.WEIGHT]]) * weight[..., None]
    first = 0
    for index, (column, own) in enumerate(zip(layout.columns, layout.components, strict=True)):
        difference = layout.difference(column)
        if difference is None:
            both, sums_of = parts[..., first, :], rows[..., layout.rows(layout.ratio_products(own[0])[:3])]
            own_form = np.concatenate([values[:, 1:, first, :1], forms[first][..., 1:3]], axis=-1)
            alone[..., index] = np.where(is_known[..., first], (own_form * sums_of).sum(axis=-1), 0.0)
            nonzero = np.where(both[..., 0] != 0, rows[..., layout.events_row(True)], 0.0)
        else:
            both = rows[..., layout.rows(layout.difference_products(difference))]
            nonzero = rows[..., layout.nonzero_row(difference, True)]
        known, d, dd = known_weight[..., first], both[..., 0], both[..., 1]
        square = np.where(is_known[..., first], squares, 0.0)
        whole[..., index, :] = np.stack([known, d, known, dd, d, known, square, known > 0, nonzero], axis=-1)
        first += len(own)
    importance = rows[..., layout.rows(layout.weight_products(True))]
    importance = np.where(is_known.any(axis=-1, keepdims=True), importance, 0.0)
    unsupported = np.zeros((*weight.shape, 1))
    faded = np.concatenate([importance, unsupported, whole[..., [1, 3]].reshape(*weight.shape, -1)], axis=-1)
    priors = np.zeros((*weight.shape, len(components) + 1))
    priors[..., -1] = sums.distances[:, 1:]
    blocks = _Blocks(sums.size, terms, squares, priors, faded, rows[..., layout.heaviest_row], sums.reached)
    signed = None if sums.signed_differences is None else _signed(sums, layout, forms, is_known)
    ratios_known = is_known[..., list(forms)].all(axis=-1)
    both_squares = np.stack([squares, np.where(ratios_known, squares, 0.0)], axis=-1)
    return blocks, whole, both_squares, signed, np.nan_to_num(alone)


def _form(values: Array) -> Array:
    """Return the difference of linearised ratios as a form in `1, u, v, pu, pv`, [B, P - 1, 5].

    With the estimate E and the mean denominator D before each block it is `E + (u - E v) / D` less the one of
    production.

    Args:
        values: estimate and mean denominator of each policy [B, P, ...]
    """
    centre = values[..., 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(values[..., 1] != 0, 1.0 / values[..., 1], np.nan)
        form = np.stack([centre, scale, -centre * scale], axis=-1)
        own, production = form[:, 1:], np.broadcast_to(form[:, :1], form[:, 1:].shape)
        constant = own[..., :1] - production[..., :1]
    return np.concatenate([constant, own[..., 1:], -production[..., 1:]], axis=-1)


def _linear(form: Array, sums: Array) -> tuple[Array, Mask]:
    """Return the sum of a form over events and of its square, [B, P, 2], and whether it is known.

    Rounding counts as 0: a constant reward would otherwise give a lift of 1e-17, always on one side of 0.

    Args:
        form: of `1, u, v, pu, pv` [B, P, 5]
        sums: of the weight, of the four terms, and of their products [B, P, 15]
    """
    is_known: Mask = np.asarray(np.isfinite(form).all(axis=-1))
    form = np.where(is_known[..., None], form, 0.0)
    first, second = np.triu_indices(4)
    products = np.zeros((*sums.shape[:-1], 5, 5))
    products[..., 0, :] = products[..., :, 0] = sums[..., :5]
    products[..., 1 + first, 1 + second] = products[..., 1 + second, 1 + first] = sums[..., 5:15]
    parts = form[..., :, None] * form[..., None, :] * products
    square = clear_rounding(parts.sum(axis=(-2, -1)), np.abs(parts).sum(axis=(-2, -1)))
    terms = form * sums[..., :5]
    total, size = terms.sum(axis=-1), np.abs(terms).sum(axis=-1)
    total = np.where(np.abs(total) > ROUNDING * size, total, 0.0)
    return np.stack([np.where(square > 0, total, 0.0), square], axis=-1), is_known


def _signed(sums: BlockSums, layout: Layout, forms: dict[int, Array], is_known: Mask) -> Array:
    """Return the signed sums of the weight and of the difference of each whole term, [B, P - 1, 1 + E, signs]."""
    assert sums.signed_differences is not None
    assert sums.signed is not None
    differences = sums.signed_differences[:, 1:]
    signed = np.concatenate([differences[:, :, -1:], differences[:, :, :-1]], axis=2)
    first = 0
    for index, own in enumerate(layout.components):
        if first in forms:
            names = _ratio_totals(layout, own[0])
            terms = np.concatenate([differences[:, :, -1:], sums.signed[:, 1:][:, :, names]], axis=2)
            form = np.where(is_known[..., first, None], forms[first], 0.0)
            signed[:, :, 1 + index] = (form[..., None] * terms).sum(axis=2)
        first += len(own)
    return signed


def _ratio_totals(layout: Layout, component: Component) -> list[int]:
    """Return the indices of the totals of a ratio and of production's."""
    u, v = component.numerator, component.denominator
    series = (u, v, layout.production(u), layout.production(v))
    return [layout.totals[(layout.apart, name)] for name in series]


def _ratios(layout: Layout) -> Integers:
    """Return 1 for each column with the lift of a ratio, which may leave blocks out, else 0."""
    return np.array([layout.difference(column) is None for column in layout.columns], dtype=np.int64)


def _lift_tables(layout: Layout) -> Tables:
    """Return the tables of the variances of lifts, in which all columns fade alike."""
    columns = len(layout.columns)
    sums = np.arange(9 * columns, dtype=np.int64)[None]
    squares = np.arange(2 + 3 * columns, dtype=np.int64)[None]
    signed = np.arange((1 + columns) * past.SIGNS, dtype=np.int64)[None]
    indices = np.arange(columns)
    read = (
        np.arange(9 * columns).reshape(columns, 9),
        np.stack([_ratios(layout), 2 + 3 * indices, 3 + 3 * indices, 4 + 3 * indices], axis=1),
        np.stack([1 + indices, np.zeros(columns, dtype=np.int64)], axis=1),
    )
    return Tables(sums, squares, signed, read)


def _compared(layout: Layout) -> tuple[Integers, Integers, Integers]:
    """Return the products of contrasts of lifts: `d d`, `d q` and `q q` of each column, and whether it is a ratio."""
    pairs = [pair for index in range(1, len(layout.columns) + 1) for pair in ((index, index), (index, 0), (0, 0))]
    first, second = np.array(pairs, dtype=np.int64).T
    return np.ascontiguousarray(first), np.ascontiguousarray(second), np.repeat(_ratios(layout), 3)


def _expanded_path(path: Past, tables: Tables) -> State:
    """Return the parts of a path [B, P, 1, rows] with a row for each column, [B, P, E, rows]."""
    blocks, policies = path.sums.shape[:2]
    flat = {
        name: getattr(path, name).reshape(blocks * policies, 1, -1)
        for name in past.PARTS
        if getattr(path, name) is not None
    }
    expanded = past.expanded(Past(**flat), tables)
    return {name: rows.reshape(blocks, policies, -1, rows.shape[-1]) for name, rows in expanded.items()}


@plain_dataclass(frozen=True)
class DecayReading:
    """Read a bank of decays now, [P, C] each. `Mixture` has the formulas.

    Args:
        state: the decays
        layout: the rows of block sums
        mixed: the mixture of the decays
        candidates: the policies that share what is learned about drift
        blocks: the number of states of each policy, one after each block, which stand like policies [P * blocks]
    """

    state: Decays
    layout: Layout
    mixed: _Mixed
    candidates: Mask | slice
    blocks: int = field(default=1, kw_only=True)

    @cached_property
    def weight(self) -> Array:
        """Return the sums of weights, [P, C, J]."""
        return self.state.decays[:, :, 0]

    @cached_property
    def kernel(self) -> Array:
        """Return the weight in the mixture of an event of each decay, in which pseudo-events count too."""
        return ratio(self.mixed.share, self.weight + self.pseudo_events)

    @cached_property
    def pseudo_events(self) -> Array:
        """Return the weight that is left to the start-up value of each decay, [P, C, J]."""
        left = PSEUDO_EVENTS * np.exp(-self.state.events[:, None, None] / HORIZONS)
        return np.where(np.isnan(self.state.columns[..., 6, None]), 0.0, left)

    @cached_property
    def squares(self) -> Array:
        """Sum of the squares of the mixed kernel."""
        return self._squares_of(self.kernel)

    def _squares_of(self, kernel: Array) -> Array:
        return np.asarray((np.einsum("pij,pcj->pci", self.state.overlap, kernel) * kernel).sum(axis=-1))

    @cached_property
    def sampling_variance(self) -> Array:
        """Return the variance from the events alone, and the squared distance by which pseudo-events move the estimate.

        The start-up value comes from the same events: it makes the estimate steady, and no more certain.
        """
        alone = ratio(self.mixed.share, self.weight)
        moved = self.mixed.value - (alone * self.state.decays[:, :, 1]).sum(axis=-1)
        return np.asarray(self.mixed.noise * self._squares_of(alone) + moved**2)

    @cached_property
    def memory_spread(self) -> Array:
        """Variance of the estimates of the decays in the mixture."""
        return np.asarray((self.mixed.share * (self.mixed.estimates - self.mixed.value[..., None]) ** 2).sum(axis=-1))

    @cached_property
    def trend(self) -> tuple[Array, Array]:
        """Return the present drift per event and its sampling variance, or NaN before a second block.

        The estimate of a mixture in which the next shorter decay replaces each decay, less the one in which the next
        longer decay does, over the difference of the mean ages of their events. Pseudo-events do not count.
        """
        shorter, longer = _moved(self.mixed.share[..., ::-1])[..., ::-1], _moved(self.mixed.share)
        kernel = ratio(shorter - longer, self.weight)
        ages = kernel * self.state.decays[:, :, 2]
        span = clear_rounding(-ages.sum(axis=-1), np.abs(ages).sum(axis=-1))
        slope = ratio((kernel * self.state.decays[:, :, 1]).sum(axis=-1), span)
        return slope, ratio(self.mixed.noise * self._squares_of(kernel), span**2)

    @property
    def drift_square(self) -> Array:
        """Return the square of the drift per event, `max(b^2 - f n, d^2)`, or NaN before a second block.

        `b`: the trend; `n`: its sampling variance. `d`, the usual drift, is learned: `d^2` is the mean of `b^2 - n`
        over the last 100,000 events, weighted by `1 / n`, and over candidates. `f` is the share of these events that
        the stream has had: while `d` is hardly known, the whole trend counts as drift.
        """
        slope, noise = self.trend
        every = self.state.columns[..., 8:]
        learned = every.reshape(-1, self.blocks, *every.shape[1:]).copy()
        learned[self.candidates] = learned[self.candidates].sum(axis=0, keepdims=True)
        usual = ratio(*np.moveaxis(learned.reshape(every.shape), -1, 0))
        seen = 1 - np.exp(-self.state.events[:, None] / MEMORY)
        return np.asarray(np.maximum(np.fmax(slope**2 - seen * noise, usual), 0.0))

    @cached_property
    def blend(self) -> Blend:
        """Return the estimate of each component with the parts of its error, [P, C] each."""
        moved = np.sqrt(self.drift_square) * (self.kernel * self.state.decays[:, :, 2]).sum(axis=-1)
        return Blend(self.mixed.value, self.sampling_variance, self.memory_spread, moved)

    def parts_of(self, blend: Blend) -> dict[str, Array]:
        """Return the standard deviations of whole terms, NaN without events, [..., P, E] each.

        Components drift together: the distances that they have moved since the mean age of their events add up.
        """
        *variances, distance = (_over_components(values, self.layout, np.add) for values in blend[1:])
        every = zip(("se", "spread", "drift"), (*variances, distance**2), strict=True)
        return {name: np.sqrt(np.where(self.is_known, values, np.nan)) for name, values in every}

    @property
    def parts(self) -> dict[str, Array]:
        """Return the standard deviations of whole terms now, one entry a column."""
        return {name: values.ravel() for name, values in self.parts_of(self.blend).items()}

    @property
    def horizon(self) -> Array:
        """Return the mean horizon of each component in events, which is no longer than the stream, [P, C]."""
        limits = np.minimum(HORIZONS, np.maximum(self.state.events, 1)[:, None])
        return np.asarray((self.mixed.share * limits[:, None]).sum(axis=-1))

    @property
    def ahead(self) -> dict[str, Array] | None:
        """Return the value of each column in the next hours and its standard deviations, if it has a season."""
        return None

    @property
    def is_known(self) -> Mask:
        """Return whether there has been an event with the policy, [P, E]."""
        return np.asarray(_over_components(self.weight[..., -1], self.layout, np.minimum) > 0)

    @property
    def moments_of_value(self) -> Array:
        """Return the moments that make the estimate and the number of events behind it, [P, E, rows]."""
        layout, is_known = self.layout, self.is_known
        moments = np.full((*is_known.shape, ROWS), np.nan)
        moments[..., MomentRow.WEIGHT] = moments[..., MomentRow.V] = np.where(is_known, 1.0, 0.0)
        moments[..., MomentRow.U] = np.where(is_known, _over_components(self.blend.value, layout, np.add), 0.0)
        squares = _over_components(self.squares, layout, np.maximum)
        moments[..., MomentRow.WEIGHT_SQUARE] = np.where(is_known, squares, 0.0)
        return moments

    @property
    def moments(self) -> Array:
        """Return the moments under the mixed kernel, or under the one with the largest squares if there are components.

        The largest term is unknown. Squares of terms are those under the kernel, moved to the estimate. Terms and
        weights are reported as uncorrelated, so that no interval corrects the estimate by the mean weight:
        pseudo-events have no weights, and a ratio is corrected already. [P, E, rows].
        """
        layout, state, moments = self.layout, self.state, self.moments_of_value
        seen = (self.kernel * self.weight).sum(axis=-1)
        every = self.weight.max(axis=1, keepdims=True)  # a ratio may have left out blocks that have weights
        for index, row in enumerate(DIAGNOSTIC_ROWS):
            mean = ratio((self.kernel * state.faded[:, None, index]).sum(axis=-1), (self.kernel * every).sum(axis=-1))
            moments[..., row] = _over_components(mean, layout, np.minimum)
        moments[..., MomentRow.LARGEST_IMPORTANCE] = state.largest[:, None]
        squares = np.nan_to_num(self.squares)
        ends = pairwise(np.cumsum([0, *map(len, layout.components)]).tolist())
        for index, (start, stop) in enumerate(ends):
            shortest = start + squares[:, start:stop].argmax(axis=-1)
            policies = np.arange(len(squares))
            kernel, weight = self.kernel[policies, shortest], seen[policies, shortest]
            first = 3 + 2 * index
            term, square = (ratio((kernel * state.faded[:, first + row]).sum(axis=-1), weight) for row in range(2))
            value = moments[:, index, MomentRow.U]
            moments[:, index, MomentRow.UU] = square - term**2 + value**2
            moments[:, index, MomentRow.TERM_IMPORTANCE] = value * moments[:, index, MomentRow.IMPORTANCE]
        return moments


@plain_dataclass(frozen=True)
class SeasonalReading(DecayReading):
    """Read a bank of decays with a season.

    Args:
        plain: the same decays without the season
        rest: the decays of what the season leaves
        gate: the weight of the season [P, C]
        course: the profile now and in the next hours [1 + hours, P, C]
        events: the number of events until then [hours, P]
    """

    plain: DecayReading
    rest: DecayReading
    gate: Array
    course: Course
    events: Array

    @cached_property
    def blend(self) -> Blend:
        return self.plain.blend.with_season(self.gate, self.rest.blend, self.course.at(0))

    @cached_property
    def squares(self) -> Array:
        """Sum of the squares of the mixed kernel, at most."""
        return self._mean(self.plain.squares, self.rest.squares)

    @property
    def horizon(self) -> Array:
        return self._mean(self.plain.horizon, self.rest.horizon)

    def _mean(self, plain: Array, rest: Array) -> Array:
        return np.where(self.gate > 0, (1.0 - self.gate) * plain + self.gate * rest, plain)

    @property
    def ahead(self) -> dict[str, Array] | None:
        plain, rest = (
            now.blend._replace(moved=now.blend.moved + np.sqrt(now.drift_square) * self.events[..., None])
            for now in (self.plain, self.rest)
        )
        blend = plain.with_season(self.gate, rest, self.course.at(slice(1, None)))
        values = {"value": _over_components(blend.value, self.layout, np.add)} | self.parts_of(blend)
        is_known = (_over_components(self.gate, self.layout, np.maximum) > 0) & self.is_known
        return {
            name: np.where(is_known, numbers, np.nan).reshape(len(numbers), -1).T for name, numbers in values.items()
        }


def _reading(
    now: DecayReading, spread: State, lift: Reading | None = None, compared: Comparison | None = None
) -> Reading:
    """Return the reading of a bank of decays."""
    is_known, layout = now.is_known, now.layout
    horizon = _over_components(now.horizon, layout, np.add)
    horizon = horizon / [len(component) for component in layout.components]
    return Reading(
        now.moments.reshape(-1, ROWS),
        spread,
        tail=None,
        details={"horizon_events": np.where(is_known, horizon, np.nan).ravel()},
        parts=now.parts,
        lift=lift,
        compared=compared,
        ahead=None if lift is None else now.ahead,
    )


def _readings(values: DecayReading, lifts: DecayReading, pasts: Sequence[State]) -> Reading:
    """Return the reading after each block, [P, blocks, E] columns, without diagnostics.

    Args:
        values: the decays after each block
        lifts: the decays of the lifts
        pasts: the pasts of both, see `_expanded_path`
    """
    spread, of_lifts = (
        {name: part.swapaxes(0, 1).reshape(-1, part.shape[-1]) for name, part in rows.items()} for rows in pasts
    )
    one, other = (now.moments_of_value.reshape(-1, ROWS) for now in (values, lifts))
    lift = Reading(other, of_lifts, tail=None, parts=lifts.parts, compared=_compared_with(values, lifts))
    return Reading(one, spread, tail=None, parts=values.parts, lift=lift)


def _compared_with(values: DecayReading, lifts: DecayReading) -> Comparison:
    """Return what the decays of lifts say about production, under their own weights.

    A decay of a policy less the same decay of its lift is production on the events of both. It starts where the policy
    starts, and moves to production's start here.
    """
    share, pseudo = lifts.mixed.share, lifts.pseudo_events
    first, others = slice(values.blocks), slice(values.blocks, None)
    own, starts = values.weight[others], values.state.columns[..., 6]
    every, start = (np.resize(part[first], part[others].shape) for part in (values.weight, starts))
    moved = np.nan_to_num(ratio(pseudo, own + pseudo)) * np.nan_to_num(start - starts[others])[..., None]
    production = (share * (values.mixed.estimates[others] + moved)).sum(axis=-1) - lifts.mixed.value
    lacking = missing_share((lifts.kernel * own).sum(axis=-1), (lifts.kernel * every).sum(axis=-1))
    return Comparison(
        np.where(lifts.is_known, _over_components(production, values.layout, np.add), np.nan).ravel(),
        _over_components(lacking, values.layout, np.maximum).ravel(),
    )


def _moved(share: Array) -> Array:
    """Give the share of each decay to the next one. The last keeps its own."""
    moved = np.concatenate([np.zeros_like(share[..., :1]), share[..., :-1]], axis=-1)
    moved[..., -1] += share[..., -1]
    return moved


def _over_components(values: Array, layout: Layout, combine: np.ufunc) -> Array:
    """Combine numbers of components [..., C] for each estimator, [..., E]."""
    first = np.cumsum([0, *map(len, layout.components)])[:-1]
    return np.asarray(combine.reduceat(values, first, axis=-1))
