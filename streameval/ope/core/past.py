"""Variances: the sums that they are made of, kept over a long past that fades at block ends.

A variance comes from a horizon ten times longer than the estimate's: with few large importance weights, an estimate and
a variance from the same events fail together (88 % coverage of nominal 95 % intervals in a stationary world).

Dependent events inflate it; drift does not, so blocks are compared with their neighbours. The difference of two
successive blocks, over `sqrt(2)`, has the variance of one block, with what all events of the same minutes share, and
hardly any drift. Dependence at a distance of hundreds of events, as in parallel sessions, is in the second differences
of sums over ten blocks, in which a steady trend cancels out. Their variance is noisy: it counts after division by one
plus its relative standard error, where that is the larger one.

Units (a user, a session) detect parallel sessions by name. With the residual `e` of each event, its averaging weight
`q` and the 64 random signs `s_k` of its unit, `(sum q s_k e)^2` has the expectation `sum over units of (sum of q e in
the unit)^2`; the mean over k is this within `sqrt(2 / 64)`. The sums are linear: they are kept for the terms of
residuals and combined once the estimate is known. It is the wild cluster bootstrap with Rademacher weights, in one
pass. Together both give the variance for clusters in two directions, where blocks are again compared with their
neighbours:

    blocks + units - (units inside of blocks)

In simulations of sessions of 20 events with an intra-class correlation of .2, consecutive or 50 in parallel, with or
without shocks to whole blocks, normal intervals covered 93 to 96 %. With the larger of both variances, they covered 88
% for parallel sessions with shocks.

Source: Cameron, Gelbach & Miller, Bootstrap-based improvements for inference with clustered errors, 2008; Robust
inference with multiway clustering, 2011; for signs in one pass, Alon, Matias & Szegedy, The space complexity of
approximating the frequency moments, 1999.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from streameval.common.arrays import ROUNDING, Array, Integers, Mask, ratio
from streameval.events.origin import NO_IDENTITY, Identity, mix64
from streameval.ope.core import kernel
from streameval.ope.core.layout import Layout
from streameval.ope.core.moments import (
    NONZERO,
    OWN_VARIANCE,
    PAIR_VARIANCE,
    PAIRS,
    SQUARE_WEIGHTS,
    TAIL_ROWS,
    TERM_SUMS,
    TERMS,
    MomentRow,
    PairRow,
    effective_denominators,
    linear_form,
    linearised_variance,
    squares_of_denominators,
    sum_of_squares,
)
from streameval.ope.core.summary import BlockSeries, BlockSums
from streameval.ope.estimators.base import Terms
from streameval.ope.evidence.evidence import Evidence

__all__ = ["History", "Past", "Steps", "start_history", "start_signs", "steps_of", "unit_signs"]

LONGER = 10
"""The horizon of the variance as a multiple of the estimate's."""
MIN_VISIBLE = 0.1
"""Rounding must be smaller than this, in squares of a weight of 1, for a sum of squares to show another reward."""
MIN_BLOCKS = 10
"""Fewer blocks give no variance of block sums."""
SIGNS = 64
"""The noise of a variance from 64 signs is `sqrt(2 / 64)` of it, 9 % of a standard error: 95 % become 94.6."""
FAR = np.repeat([1.0, -2.0, 1.0], 10)
"""The second difference of sums over ten blocks."""
EARLIER = len(FAR) - 1
"""The number of earlier blocks that a far contrast needs."""
FAR_NOISE = 2 * np.square(np.correlate(FAR, FAR, mode="full") / (FAR @ FAR)).sum()
"""The squared relative error of the mean of n squares of far contrasts, which overlap, is this over n."""
STEP = np.uint64(0x9E3779B97F4A7C15)
OWN = 2
"""The number of terms of a column alone, u and v. A pair with production has TERMS."""
OWN_SQUARES, PAIR_SQUARES = slice(0, 4), slice(4, 15)
"""Rows of the squares of a contrast: `sum q^2`, and mean products of its terms; then the same of the pair."""
CONTRASTS = ("near", "far", "inside")
"""The parts of a past that sum squares of contrasts."""
PARTS = {"sums": 1.0, "near": 1.0, "far": 1.0, "inside": 1.0, "covered": 1.0, "signed": 0.5}
"""The power of the fading factor for each part of a past, so that the squares of signed sums fade as squares do."""


class UnitState(msgspec.Struct, frozen=True):
    """Hold the number of events so far, and whether one has had a unit."""

    events: int = 0
    seen: bool = False


def start_signs() -> UnitState:
    """Start before the first event."""
    return UnitState()


def unit_signs(state: UnitState, units: Identity | None, events: int, block: int) -> tuple[Array | None, UnitState]:
    """Return the signs of the next events [events, 64], and the state after them.

    `units` [events]: fingerprints, `NO_IDENTITY` for an event without a unit, which is then its own unit. All is 0
    before the first block in which an event has a unit; None until there is such a block.
    """
    after = UnitState(state.events + events, state.seen or bool(units is not None and units.any()))
    if not after.seen:
        return None, after
    named = np.full(events, NO_IDENTITY) if units is None else units
    numbers = np.arange(state.events, state.events + events, dtype=np.uint64)
    signs = signs_of(np.where(named == NO_IDENTITY, mix64(numbers * STEP + STEP), named))
    if not state.seen:
        signs[: int(np.argmax(named != NO_IDENTITY)) // block * block] = 0.0
    return signs, after


def signs_of(units: Identity) -> Array:
    """Return the signs of these fingerprints, [units, 64].

    >>> signs_of(np.array([0, 3], dtype=np.uint64))[:, :8]
    array([[-1., -1., -1., -1., -1., -1., -1., -1.],
           [-1., -1., -1., -1., -1., -1.,  1.,  1.]])
    """
    bits = np.unpackbits(units.astype("<u8").view(np.uint8).reshape(len(units), -1), axis=1)
    return np.asarray(bits * 2.0 - 1.0)


class History(msgspec.Struct):
    """Hold the last blocks, which the next ones are compared with.

    Attributes:
        totals: sums of terms [P, 29, T]
        squares: sums of squared weights, own and of both [P, 29, 2]
        signed: signed sums of the last block [P, 1, T * signs], None without units
        covered: the squares of the last block if it has signs [P, 1, 2]
    """

    totals: Array
    squares: Array
    signed: Array | None
    covered: Array


def start_history(policies: int, totals: int) -> History:
    """Start before the first block."""
    shape = (policies, EARLIER)
    return History(np.zeros((*shape, totals)), np.zeros((*shape, 2)), None, np.zeros((policies, 1, 2)))


class Steps(msgspec.Struct, frozen=True):
    """Hold what each block adds to a past: rows of sums, and of squares of contrasts [B, P, rows].

    `inside`, `covered` and `signed` are None without units.
    """

    sums: Array
    near: Array
    far: Array
    inside: Array | None = None
    covered: Array | None = None
    signed: Array | None = None


def compare(
    history: History,
    sums: Array,
    totals: Array,
    squares: Array,
    products: tuple[Integers, Integers, Integers],
    signed: Array | None,
    covered: Array,
) -> Steps:
    """Compare blocks with earlier ones, and move the history on.

    Args:
        sums: rows of the blocks [B, P, rows]
        totals: sums of terms [B, P, T]
        squares: sums of squared weights, own and of both [B, P, 2]
        products: both totals of each product of contrasts, and whether it is of both policies [K]
        signed: signed sums [B, P, T, signs]
        covered: whether blocks have signs [B]
    """
    first, second, apart = products
    every = _continued(history.totals, totals)
    weights = _continued(history.squares, squares)
    shape = (*totals.shape[:2], 2 + len(first))
    near, far = np.empty(shape), np.empty(shape)
    room = np.empty(totals.shape[2])
    kernel.contrasts(every, weights, True, first, second, apart, 1, EARLIER, room, near)
    kernel.contrasts(every, weights, False, first, second, apart, 1, EARLIER, room, far)
    history.totals, history.squares = _kept(every, EARLIER), _kept(weights, EARLIER)
    if signed is None:
        return Steps(sums, near, far)
    flat = signed.reshape(*totals.shape[:2], -1)
    own = squares * covered[:, None, None]
    before = np.zeros((len(history.totals), 1, flat.shape[-1])) if history.signed is None else history.signed
    every, weights = _continued(before, flat), _continued(history.covered, own)
    inside = np.empty(shape)
    room = np.empty(flat.shape[2])
    kernel.contrasts(every, weights, True, first, second, apart, SIGNS, 1, room, inside)
    history.signed, history.covered = _kept(every, 1), _kept(weights, 1)
    return Steps(sums, near, far, inside, own, flat)


def _continued(before: Array, new: Array) -> Array:
    return np.ascontiguousarray(np.concatenate([before.swapaxes(0, 1), new]))


def _kept(every: Array, count: int) -> Array:
    """Return a copy of the last blocks, block after block in memory, as the next call of `_continued` takes them."""
    return every[len(every) - count :].copy().swapaxes(0, 1)


class Past(msgspec.Struct):
    """Hold the sums behind variances, over a long past that fades at block ends, each [P, E or 1, rows].

    The parts about units are None before the first one.
    """

    sums: Array
    near: Array
    far: Array
    inside: Array | None = None
    covered: Array | None = None
    signed: Array | None = None


class Tables(msgspec.Struct, frozen=True):
    """Tell which rows of the steps each part of a past sums up [E or 1, rows], and which of these a column reads.

    With one row of the first axis, the columns of a policy fade alike and share their sums.
    """

    sums: Integers
    squares: Integers
    signed: Integers
    read: tuple[Integers, Integers, Integers] | None


def tables(layout: Layout, alike: bool) -> Tables:
    """Build the tables of a layout, with one row if the columns of a policy fade alike."""
    *_, squares = layout.compared
    signs = np.arange(SIGNS)
    if not alike:
        signed = (layout.signed_table[..., None] * SIGNS + signs).reshape(len(squares), -1)
        return Tables(layout.past_table, squares, signed, None)
    rows, indices = np.unique(layout.past_table, return_inverse=True)
    shared = np.arange(2 + len(layout.compared[0]))[None]
    every = np.arange(len(layout.totals) * SIGNS)[None]
    return Tables(rows[None], shared, every, (indices.reshape(layout.past_table.shape), squares, layout.signed_table))


def start(policies: int, tables: Tables) -> Past:
    """Start before the first block."""
    shape = (policies, len(tables.sums))
    squares = np.zeros((*shape, tables.squares.shape[1]))
    return Past(np.zeros((*shape, tables.sums.shape[1])), squares, squares.copy())


def fold(past: Past, steps: Steps, tables: Tables, factors: Array) -> None:
    """Fold blocks into a past; `factors` [B, P or 1, E or 1]."""
    one = np.ones_like(factors)
    for name, state, rows, take in _parts(past, steps, tables):
        fading = factors if PARTS[name] == 1.0 else np.sqrt(factors)
        kernel.accumulate(state, rows, take, np.ones(take.shape[1], dtype=np.int64), fading, one, kernel.NOTHING)


def follow(past: Past, steps: Steps, tables: Tables, factor: float) -> Past:
    """Fold blocks that fade by one factor, and return the past after each of them, [B, P, E or 1, rows]."""
    path = {}
    for name, state, rows, take in _parts(past, steps, tables):
        path[name] = np.empty((len(rows), *state.shape))
        kernel.trace(state, rows, take, factor ** PARTS[name], path[name])
    return Past(**path)


def _parts(past: Past, steps: Steps, tables: Tables) -> Iterator[tuple[str, Array, Array, Integers]]:
    """Yield each part of a past by name, the rows that blocks add to it, and which of these it sums up.

    The parts about units begin with the first block that has them.
    """
    takes = {"sums": tables.sums, "near": tables.squares, "far": tables.squares, "inside": tables.squares}
    takes |= {"covered": np.tile(np.arange(2), (len(tables.sums), 1)), "signed": tables.signed}
    for name, take in takes.items():
        rows, state = getattr(steps, name), getattr(past, name)
        if rows is None and state is None:
            continue
        if rows is None:
            rows = np.zeros((len(steps.sums), len(state), int(take.max()) + 1))
        if state is None:
            state = np.zeros((rows.shape[1], *take.shape))
            setattr(past, name, state)
        yield name, state, rows, take


def expanded(past: Past, tables: Tables) -> dict[str, Array]:
    """Return the parts of a past with one row a column, [P * E, rows], by name."""
    columns = {}
    for name in PARTS:
        state = getattr(past, name)
        if state is None:
            continue
        if tables.read is not None:
            sums, squares, signed = tables.read
            if name == "sums":
                state = state[:, 0, sums]
            elif name == "signed":
                state = state[:, 0].reshape(len(state), state.shape[2] // SIGNS, SIGNS)[:, signed]
            elif name == "covered":
                own = squares[:, OWN_SQUARES.start]
                state = state[:, 0, np.stack([own, np.ones_like(own)], axis=1)]
            else:
                state = state[:, 0, squares]
        columns[name] = state.reshape(state.shape[0] * state.shape[1], math.prod(state.shape[2:]))
    return columns


def variance_parts(moments: Array) -> dict[str, Array]:
    """Return the parts of a past with the variances of moments [columns, rows], without a design effect.

    The number of terms that are not 0 is not known. Kish's number of equal terms, `(sum u)^2 / sum u^2`, stands in for
    it, which is not larger.
    """
    squares = moments[:, SQUARE_WEIGHTS]
    alike = ratio(moments[:, MomentRow.U] ** 2 * moments[:, MomentRow.WEIGHT], moments[:, MomentRow.UU] * squares[:, 0])
    own = [moments[:, TERM_SUMS], squares[:, 0], squares[:, 0] > 0, np.nan_to_num(alike)]
    pair = [moments[:, PAIRS][:, : PairRow.WEIGHT_SQUARE], squares[:, 1], squares[:, 1] > 0]
    none = np.zeros((len(moments), PAIR_SQUARES.stop))
    return {"sums": np.column_stack([*own, *pair]), "near": none, "far": none}


class RatioPast(msgspec.Struct):
    """Hold the sums behind the variance of one ratio per policy, over all events, see `start_ratio`."""

    past: Past
    history: History


class _Column(NamedTuple):
    """Stand for the column of a ratio or a mean, as `Layout` reads it."""

    ratio: bool
    label: str = "term"
    parts: int = 1
    averages_weighted_reward: bool = False
    divides_by_weight: bool = False


@cache
def _ratio_layout(has_denominator: bool) -> tuple[Layout, Tables]:
    layout = Layout((_Column(has_denominator),), paired=False, mixed=False, apart=True, unit_production=False)  # type: ignore[arg-type]
    return layout, tables(layout, alike=True)


def start_ratio(policies: int, has_denominator: bool) -> RatioPast:
    """Start before the first block."""
    layout, ratio_tables = _ratio_layout(has_denominator)
    return RatioPast(start(policies, ratio_tables), start_history(policies, len(layout.totals)))


def sum_ratio(evidence: Evidence, term: Terms) -> BlockSums:
    """Sum up whole blocks of one ratio, or one mean, a policy."""
    return BlockSeries(_ratio_layout(term.denominator is not None)[0], evidence, [term]).sums({})


def fold_ratio(state: RatioPast, sums: BlockSums, has_denominator: bool) -> None:
    """Fold the sums of whole blocks into the state."""
    layout, ratio_tables = _ratio_layout(has_denominator)
    steps = steps_of(state.history, sums, layout)
    fold(state.past, steps, ratio_tables, np.ones((len(sums), 1, 1)))


def read_ratio(state: RatioPast, has_denominator: bool) -> tuple[dict[str, Any], Array]:
    """Read the numbers of `read`, and the sums of a past, [P, rows]."""
    parts = expanded(state.past, _ratio_layout(has_denominator)[1])
    return read(parts, None), parts["sums"]


def steps_of(history: History, sums: BlockSums, layout: Layout) -> Steps:
    """Return what blocks add to the pasts of a layout's columns, and move the history on."""
    squares = [layout.squares_row(both) for both in (False, True)]
    return compare(
        history,
        sums.rows,
        np.ascontiguousarray(sums.rows[..., layout.total_rows]),
        np.ascontiguousarray(sums.rows[..., squares]),
        layout.compared[:3],
        sums.signed,
        sums.covered,
    )


def tail_rows(sums: BlockSums, layout: Layout) -> Array:
    """Return the rows that an unfinished block adds to the sums of a past, one row a column."""
    rows = sums.rows[0][:, layout.past_table]
    return np.asarray(rows.reshape(-1, rows.shape[-1]))


def read(state: Mapping[str, Array], tail: Array | None, is_lift: bool = False) -> dict[str, Any]:
    """Read the numbers of a past by name, [columns] each, NaN if unknown.

    `variance`: of the term `u`, or of the linearised term `(u - E v) / mean(v)` of a ratio. `production_variance`: of
    production's term on the events of a lift. `count`: the number of
    equally weighted events with the same variance of their mean. `effective_denominators`: see `Reading`.
    `never_varied`: see the function. `nonzero`: the number of events with `u != 0`. `design_effect`: see the function;
    of finished blocks only.

    Args:
        state: the parts of a past, see `expanded`
        tail: the rows that the unfinished block adds [columns, rows]
        is_lift: read the linearised difference to production, on the events of both
    """
    sums = state["sums"]
    if tail is not None:
        sums = sums.copy()
        added = [row for row in TAIL_ROWS if row < sums.shape[-1]]
        sums[..., added] += tail[:, added]
    rows, terms = _side(sums, is_lift)
    production = {"production_variance": _production_variance(sums)} if is_lift else {}
    form = linear_form(rows, terms)
    variance = linearised_variance(rows, terms, form)
    return {
        **production,
        "variance": variance,
        "count": ratio(rows[..., 0] ** 2, rows[..., -2]),
        "effective_denominators": effective_denominators(rows, terms),
        "never_varied": never_varied(rows, terms, form),
        "nonzero": sums[..., NONZERO],
        "design_effect": design_effect(state, is_lift, (form, variance) if tail is None else None),
    }


def _production_variance(sums: Array) -> Array:
    """Return the variance of production's term on the events that a policy has too."""
    rows, sides = sums[..., PAIR_VARIANCE], np.repeat([0.0, 1.0], OWN)
    form, products = sides * linear_form(rows, len(TERMS)), rows[..., 1 + len(TERMS) : -2]
    return ratio(sum_of_squares(form, products), rows[..., 0])


def _side(sums: Array, is_lift: bool) -> tuple[Array, int]:
    return (sums[..., PAIR_VARIANCE], len(TERMS)) if is_lift else (sums[..., OWN_VARIANCE], OWN)


def never_varied(rows: Array, terms: int, form: Array) -> Mask:
    """Return whether the term has always been the same: of a ratio the linearised term, of a lift both terms.

    False where weights are so large that another reward at a weight of 1 would be lost in the rounding of the sums.
    """
    products = rows[..., 1 + terms : -2]
    sides = np.eye(terms // 2).repeat(2, axis=1)
    squares = [sum_of_squares(np.where(side, form, 0.0), products) for side in sides]
    hidden = ROUNDING * squares_of_denominators(rows, terms).max(axis=-1)
    return np.asarray(np.equal(squares, 0).all(axis=0) & (hidden < MIN_VISIBLE))


def design_effect(parts: Mapping[str, Array], is_lift: bool = False, known: tuple[Array, Array] | None = None) -> Array:
    """Return the variance of contrasts of blocks over the variance for independent events, NaN before ten blocks.

    Events of one session are correlated, which inflates the variance of their mean by this factor. If events have
    units, the factor includes units that spread over many blocks.

    Args:
        parts: the fading sums of a state [..., rows]
        is_lift: see `read`
        known: the linear form of these sums, and the variance by it, if they are known
    """
    rows, terms = _side(parts["sums"], is_lift)
    form = linear_form(rows, terms) if known is None else known[0]
    blocks, independent = rows[..., -1], linearised_variance(rows, terms, form) if known is None else known[1]
    squares = {name: parts[name][..., PAIR_SQUARES if is_lift else OWN_SQUARES] for name in CONTRASTS if name in parts}
    with np.errstate(all="ignore"):
        effects = {
            name: ratio(sum_of_squares(form, sums[..., 1:]), independent * sums[..., 0])
            for name, sums in squares.items()
        }
        effect = np.where(blocks >= MIN_BLOCKS, effects["near"], np.nan)
        if "signed" in parts:
            covered = independent * parts["covered"][..., -1 if is_lift else 0]
            units = ratio(_squares_of_units(parts["signed"], form), covered) - effects["inside"]
            effect = effect + np.nan_to_num(units, posinf=0.0, neginf=0.0)
        windows = ratio(squares["far"][..., 0] * blocks, rows[..., -2])
        least = effects["far"] / (1 + np.sqrt(FAR_NOISE / windows))
    return np.asarray(np.fmax(effect, least))


def form_and_variance(parts: Mapping[str, Array]) -> tuple[Array, Array]:
    """Return the linear form of a term, and the variance of one event's term without a design effect.

    Args:
        parts: as in `design_effect`
    """
    rows, terms = _side(parts["sums"], False)
    form = linear_form(rows, terms)
    return form, linearised_variance(rows, terms, form)


def _squares_of_units(signed: Array, form: Array) -> Array:
    """Return the sum over units of the squared sums of their events' deviations."""
    terms = signed.reshape(*form.shape[:-1], signed.shape[-1] // SIGNS, SIGNS)
    if form.shape[-1] == len(TERMS):
        terms = terms[..., : len(TERMS), :]
    else:  # the totals of u and v are the last, if the pair has others
        terms = terms[..., len(TERMS) :, :] if terms.shape[-2] > len(TERMS) else terms[..., :OWN, :]
    return np.asarray(np.square((form[..., None] * terms).sum(axis=-2)).mean(axis=-1))
