"""Variances: the sums that they are made of, kept over a long past that fades at block ends.

A variance comes from a horizon ten times longer than the estimate's: with few large importance weights, an estimate and
a variance from the same events fail together (88 % coverage of nominal 95 % intervals in a stationary world).

Dependent events inflate it; drift does not, so blocks are compared with their neighbours. The difference of two
successive blocks, over `sqrt(2)`, has the variance of one block, with what all events of the same minutes share, and
hardly any drift. Dependence at a distance of hundreds of events, such as that of parallel sessions, is in the second
differences of sums over ten blocks, in which a steady trend cancels out. Their variance is noisy: it counts after
division by one plus its relative standard error, where that is the larger one.

Units (a user, a session) detect parallel sessions by name. With the residual `e` of each event, its averaging weight
`q` and the 64 random signs `s_k` of its unit, `(sum q s_k e)^2` has the expectation `sum over units of (sum of q e in
the unit)^2`; the mean over k is this within `sqrt(2 / 64)`. The sums are linear: they are kept for the terms of
residuals and combined once the estimate is known. It is the wild cluster bootstrap with Rademacher weights, in one
pass. Together both give the variance for clusters in two directions, where blocks are again compared with their
neighbours:

    blocks + units - (units inside of blocks)

In simulations of sessions of 20 events with an intra-class correlation of .2, consecutive or 50 in parallel, with or
without shocks to whole blocks, normal intervals covered 93 to 96 %. With the larger of both variances, they covered
88 % for parallel sessions with shocks.

Source: Cameron, Gelbach & Miller, Bootstrap-based improvements for inference with clustered errors, 2008; Robust
inference with multiway clustering, 2011; for signs in one pass, Alon, Matias & Szegedy, The space complexity of
approximating the frequency moments, 1999.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from streameval.common.arrays import ROUNDING, Array, Mask, State, decayed_path, ratio
from streameval.events.origin import NO_IDENTITY, Identity, mix64
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.moments import (
    BOTH_TOTALS,
    NONZERO,
    OWN_TOTALS,
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
    fold_sums,
    linear_form,
    linearised_variance,
    squares_of_denominators,
    sum_of_squares,
    upper_triangle,
)

__all__ = ["FADING", "LONGER", "design_effect", "fold", "merge", "path", "read", "signs_of", "start"]
__all__ += ["start_signs", "unit_signs"]

LONGER = 10
"""The horizon of the variance as a multiple of the estimate's."""
LEAST_VISIBLE = 0.1
"""Rounding must be smaller than this, in squares of a weight of 1, for a sum of squares to show another reward."""
FEWEST_BLOCKS = 10
"""Fewer blocks give no variance of block sums."""
SIGNS = 64
"""The noise of a variance from 64 signs is `sqrt(2 / 64)` of it, 9 % of a standard error: 95 % become 94.6."""
NEAR = np.array([-1.0, 1.0])
"""The contrast of two successive blocks. Whole numbers, so that equal blocks cancel out without rounding."""
FAR = np.repeat([1.0, -2.0, 1.0], 10)
"""The second difference of sums over ten blocks."""
CONTRASTED_AT_ONCE = 100
"""Blocks whose contrasts are one product: its matrix grows with their square, and a merge has thousands of blocks."""
CONTRASTS = {"near": ("totals", NEAR), "far": ("totals", FAR), "inside": ("signed", NEAR)}
"""The contrasts of `Blocks.compared` whose squares are kept."""
DEPTH = {"totals": len(FAR) - 1, "signed": len(NEAR) - 1}
"""The number of earlier blocks that the contrasts of the next one need."""
FAR_NOISE = 2 * np.square(np.correlate(FAR, FAR, mode="full") / (FAR @ FAR)).sum()
"""The squared relative error of the mean of n squares of far contrasts, which overlap, is this over n."""
STEP = np.uint64(0x9E3779B97F4A7C15)
OWN = 2
"""A column's own terms, u and v; those of the pair with production are TERMS."""
OWN_SQUARES, PAIR_SQUARES = slice(0, 4), slice(4, 15)
"""Rows of the squares of a contrast: `sum q^2`, and mean products of its terms; then the same of the pair."""
FADING = {"sums": 1.0, "near": 1.0, "far": 1.0, "inside": 1.0, "covered": 1.0, "signed": 0.5}
"""The power of the fading factor for each part of a state, so that the squares of signed sums fade as squares do."""


def start_signs() -> State:
    """The state before the first event."""
    return {"events": 0, "seen": False}


def unit_signs(state: State, units: Identity | None, events: int, block: int) -> tuple[Array | None, State]:
    """The signs of the next events [events, 64], and the state after them.

    `units` [events]: fingerprints, `NO_IDENTITY` for an event without a unit, which is then its own unit. All is 0
    before the first block in which an event has a unit; None until there is such a block.
    """
    after = {"events": state["events"] + events, "seen": state["seen"] or bool(units is not None and units.any())}
    if not after["seen"]:
        return None, after
    named = np.full(events, NO_IDENTITY) if units is None else units
    places = np.arange(state["events"], state["events"] + events, dtype=np.uint64)
    signs = signs_of(np.where(named == NO_IDENTITY, mix64(places * STEP + STEP), named))
    if not state["seen"]:
        signs[: int(np.argmax(named != NO_IDENTITY)) // block * block] = 0.0
    return signs, after


def signs_of(units: Identity) -> Array:
    """The signs of these fingerprints, [units, 64].

    >>> signs_of(np.array([0, 3], dtype=np.uint64))[:, :8]
    array([[-1., -1., -1., -1., -1., -1., -1., -1.],
           [-1., -1., -1., -1., -1., -1.,  1.,  1.]])
    """
    bits = np.unpackbits(units.astype("<u8").view(np.uint8).reshape(len(units), -1), axis=1)
    return np.asarray(bits * 2.0 - 1.0)


def start(columns: int, paired: bool = True) -> State:
    """The state of no events, to which units will add parts; `paired`: with the sums of lifts.

    `last`, `first`: `Blocks.compared` of the last blocks, and of the first ones for a merge, [columns, blocks, rows].
    """
    sums, squares = (PAIR_VARIANCE.stop, PAIR_SQUARES.stop) if paired else (NONZERO + 1, OWN_SQUARES.stop)
    none = np.zeros((columns, 0, len(BOTH_TOTALS if paired else OWN_TOTALS)))
    parts = {"sums": np.zeros((columns, sums)), **{name: np.zeros((columns, squares)) for name in ("near", "far")}}
    return {"blocks": 0, "first": {"totals": none}, "last": {"totals": none.copy()}, **parts}


def of_moments(moments: Array) -> State:
    """A state with the variances of moments [columns, rows], where no past is known: without a design effect.

    The number of terms that are not 0 is not known either. Kish's number of equal terms, `(sum u)^2 / sum u^2`, stands
    in for it, which is not larger.
    """
    state, own = start(len(moments)), moments[:, TERM_SUMS]
    squares = moments[:, SQUARE_WEIGHTS]
    alike = ratio(moments[:, MomentRow.U] ** 2 * moments[:, MomentRow.WEIGHT], moments[:, MomentRow.UU] * squares[:, 0])
    known = np.column_stack([own, squares[:, 0], squares[:, 0] > 0, np.nan_to_num(alike)])
    pair = np.column_stack([moments[:, PAIRS][:, : PairRow.WEIGHT_SQUARE], squares[:, 1], squares[:, 1] > 0])
    return {**state, "sums": np.column_stack([known, pair])}


def fold(state: State, blocks: Blocks, horizon: Array | float) -> State:
    """Add whole blocks to a past that fades with this horizon in events: a number, [blocks] or [blocks, columns]."""
    horizons = np.asarray(horizon, dtype=float)
    factors = np.exp(-blocks.events.reshape(-1, *[1] * (horizons.ndim - 1)) / horizons)
    added, ends = _step(state, blocks)
    return {
        "blocks": state["blocks"] + len(blocks),
        **ends,
        **{name: fold_sums(*_aligned(state.get(name), rows), factors ** FADING[name]) for name, rows in added.items()},
    }


def path(state: State, blocks: Blocks, horizon: float) -> State:
    """The fading parts of the state after each of these whole blocks, [blocks, columns, rows]."""
    factor = np.exp(-blocks.events / horizon)
    return {
        name: decayed_path(*_aligned(state.get(name), rows), factor ** FADING[name])
        for name, rows in _step(state, blocks)[0].items()
    }


def merge(earlier: State, later: State, events: float, horizon: float) -> State:
    """The state of two parts of a stream, the later one `events` long."""
    if not later["blocks"]:
        return earlier
    factor, merged = float(np.exp(-events / horizon)), {"blocks": earlier["blocks"] + later["blocks"]}
    for name in FADING:
        if name in earlier or name in later:
            before, after = _aligned(earlier.get(name), later.get(name))
            merged[name] = before * factor ** FADING[name] + after
    alone = _squares({}, later["first"])
    for name, rows in _squares(earlier["last"], later["first"]).items():  # contrasts of both parts
        share = np.arange(later["blocks"] - 1, -1, -1)[: len(rows)] / later["blocks"]
        merged[name] += np.tensordot(factor**share, rows - alone[name], axes=1)
    for end, kept in (("first", earlier), ("last", later)):
        both = {name: _joined(earlier[end].get(name), rows) for name, rows in later[end].items()}
        depth = {name: slice(0, DEPTH[name]) if end == "first" else slice(-DEPTH[name], None) for name in both}
        merged[end] = {**kept[end], **{name: rows[:, depth[name]] for name, rows in both.items()}}
    return merged


def _step(state: State, blocks: Blocks) -> tuple[dict[str, Array], State]:
    """The addition of each block to the fading parts of a state, [blocks, columns, rows], and its next ends.

    Averages of the same terms have seen the same blocks, whatever they remember: this is computed once for all of them.
    """
    ends = {end: state[end] for end in ("first", "last")}
    for before, found in blocks.variance_steps:
        if all(_equal(before[end], ends[end]) for end in ends):
            return found
    compared = blocks.compared
    new = {name: rows.swapaxes(0, 1) for name, rows in compared.items()}
    added = {"sums": blocks.spread}
    if "signed" in compared:
        weights = _sides(compared["signed"], SIGNS)
        added |= {"covered": compared["signed"][..., :weights], "signed": compared["signed"][..., weights:]}
    after = {
        "first": {name: _joined(ends["first"].get(name), rows)[:, : DEPTH[name]] for name, rows in new.items()},
        "last": {name: _joined(ends["last"].get(name), rows)[:, -DEPTH[name] :] for name, rows in new.items()},
    }
    found = added | _squares(ends["last"], new), after
    blocks.variance_steps.append((ends, found))
    return found


def _equal(one: State, other: State) -> bool:
    """Whether both hold the same rows."""
    if one.keys() != other.keys():
        return False
    return all(rows is other[name] or np.array_equal(rows, other[name]) for name, rows in one.items())


def _squares(last: State, compared: State) -> dict[str, Array]:
    """The rows of the squares of all contrasts that end in these blocks, which follow the `last` ones.

    Blocks are axis 1 of both, and axis 0 of the result.
    """
    found = {}
    for name, (series, contrast) in CONTRASTS.items():
        if series in compared:
            blocks = compared[series].shape[1]
            rows = _joined(last.get(series), compared[series]).swapaxes(0, 1)[-(blocks + len(contrast) - 1) :]
            missing = blocks + len(contrast) - 1 - len(rows)
            if missing:
                rows = np.concatenate([np.zeros((missing, *rows.shape[1:])), rows])
            signs, at_once = SIGNS if series == "signed" else 1, CONTRASTED_AT_ONCE + len(contrast) - 1
            starts = range(0, max(1, blocks), CONTRASTED_AT_ONCE)
            parts = [_products(rows[first : first + at_once], contrast, signs) for first in starts]
            found[name] = np.concatenate(parts)
    return found


def _products(rows: Array, contrast: Array, signs: int) -> Array:
    """`sum q^2` of the last block of each contrast, and mean products, where its first and its last block have events.

    `rows` [blocks, columns, rows]: with the earlier blocks that the first contrast needs. The squares of the weights of
    a contrast count as 1 together.
    """
    sides, earlier = _sides(rows, signs), len(contrast) - 1
    weights = np.where(rows[: len(rows) - earlier, :, :sides] > 0, rows[earlier:, :, :sides], 0.0)
    terms = np.tensordot(_moving(len(weights), contrast.tobytes()), rows[..., sides:], axes=1)
    terms = terms.reshape(*weights.shape[:2], -1, signs)
    own = terms[..., len(TERMS) :, :] if terms.shape[-2] > len(TERMS) else terms[..., :OWN, :]
    found, scale = [], signs * float(contrast @ contrast)
    for place, side in enumerate((own, terms[..., : len(TERMS), :])[:sides]):
        first, second = upper_triangle(side.shape[-2])
        weight = weights[..., place, None]
        if signs == 1:
            products = side[..., first, 0] * side[..., second, 0]
        else:
            products = (side @ side.swapaxes(-1, -2))[..., first, second]
        found += [weight, np.where(weight > 0, products / scale, 0.0)]
    return np.concatenate(found, axis=-1)


@lru_cache(maxsize=64)
def _moving(count: int, contrast: bytes) -> Array:
    """The matrix of a contrast that moves along the blocks, [count, count + length - 1]."""
    weights = np.frombuffer(contrast)
    matrix = np.zeros((count, count + len(weights) - 1))
    for place in range(count):
        matrix[place, place : place + len(weights)] = weights
    return matrix


def _sides(rows: Array, signs: int) -> int:
    """The number of `sum q^2` in rows of `Blocks.compared`: two with a pair."""
    return 1 if rows.shape[-1] == 1 + OWN * signs else 2


def _joined(earlier: Array | None, later: Array) -> Array:
    """Rows of blocks [columns, blocks, rows], one after the other."""
    return later if earlier is None else np.concatenate(_aligned(earlier, later), axis=1)


def _aligned(one: Array | None, other: Array | None) -> tuple[Array, Array]:
    """The same with the larger number of rows: 0 for none yet, and u and v as in the pair, whose events they share."""
    given = [part for part in (one, other) if part is not None]
    columns, width = given[0].shape[-2], max(part.shape[-1] for part in given)

    def widened(part: Array | None) -> Array:
        if part is None:
            return np.zeros((columns, width))
        shared = part[..., part.shape[-1] % SIGNS :][..., : OWN * SIGNS]
        return part if part.shape[-1] == width else np.concatenate([part, shared], axis=-1)

    return widened(one), widened(other)


def read(state: State, tail: Array | None, of_lift: bool = False) -> State:
    """The numbers of a state by name, [columns] each; NaN where unknown.

    `variance`: of the term `u`, of a ratio that of the linearised term `(u - E v) / mean(v)`. `count`: the number of
    equally weighted events whose mean has the same variance. `effective_denominators`: see `Reading`. `never_varied`:
    see the function. `nonzero`: the number of events with `u != 0`. `design_effect`: see the function; of finished
    blocks only.

    Args:
        tail: the rows that the unfinished block adds, [columns, rows]: see `Blocks.spread`
        of_lift: the numbers are those of the linearised difference to production, on the events of both
    """
    sums = state["sums"]
    if tail is not None:
        sums = sums.copy()
        sums[..., TAIL_ROWS] += tail[:, TAIL_ROWS]
    rows, terms = _side(sums, of_lift)
    return {
        "variance": linearised_variance(rows, terms),
        "count": ratio(rows[..., 0] ** 2, rows[..., -2]),
        "effective_denominators": effective_denominators(rows, terms),
        "never_varied": never_varied(rows, terms),
        "nonzero": sums[..., NONZERO],
        "design_effect": design_effect(state, of_lift),
    }


def _side(sums: Array, of_lift: bool) -> tuple[Array, int]:
    """The rows of a variance, or of that of a lift, and the number of their terms."""
    return (sums[..., PAIR_VARIANCE], len(TERMS)) if of_lift else (sums[..., OWN_VARIANCE], OWN)


def never_varied(rows: Array, terms: int) -> Mask:
    """Whether the term, of a ratio the linearised one, has always been the same; of a lift, both terms.

    False where weights are so large that another reward at a weight of 1 would be lost in the rounding of the sums.
    """
    form, products = linear_form(rows, terms), rows[..., 1 + terms : -2]
    sides = np.eye(terms // 2).repeat(2, axis=1)
    squares = [sum_of_squares(np.where(side, form, 0.0), products) for side in sides]
    hidden = ROUNDING * squares_of_denominators(rows, terms).max(axis=-1)
    return np.asarray(np.equal(squares, 0).all(axis=0) & (hidden < LEAST_VISIBLE))


def design_effect(parts: State, of_lift: bool = False) -> Array:
    """Variance of contrasts of blocks over that of independent events; NaN before ten blocks.

    Events of one session are correlated, which inflates the variance of their mean by this factor. Where events have
    units, the factor includes units that spread over many blocks. `parts`: those of a state that fade, [..., rows].
    """
    rows, terms = _side(parts["sums"], of_lift)
    form, blocks, independent = linear_form(rows, terms), rows[..., -1], linearised_variance(rows, terms)
    squares = {name: parts[name][..., PAIR_SQUARES if of_lift else OWN_SQUARES] for name in CONTRASTS if name in parts}
    with np.errstate(all="ignore"):
        effects = {
            name: ratio(sum_of_squares(form, each[..., 1:]), independent * each[..., 0])
            for name, each in squares.items()
        }
        effect = np.where(blocks >= FEWEST_BLOCKS, effects["near"], np.nan)
        if "signed" in parts:
            covered = independent * parts["covered"][..., -1 if of_lift else 0]
            units = ratio(_squares_of_units(parts["signed"], form), covered) - effects["inside"]
            effect = effect + np.nan_to_num(units, posinf=0.0, neginf=0.0)
        windows = ratio(squares["far"][..., 0] * blocks, rows[..., -2])
        least = effects["far"] / (1 + np.sqrt(FAR_NOISE / windows))
    return np.asarray(np.fmax(effect, least))


def _squares_of_units(signed: Array, form: Array) -> Array:
    """The sum over units of the squared sums of their events' deviations."""
    terms = signed.reshape(*form.shape[:-1], -1, SIGNS)
    if form.shape[-1] == len(TERMS):
        terms = terms[..., : len(TERMS), :]
    else:  # those of u and v, if other than the pair's, are the last
        terms = terms[..., len(TERMS) :, :] if terms.shape[-2] > len(TERMS) else terms[..., :OWN, :]
    return np.asarray(np.square((form[..., None] * terms).sum(axis=-2)).mean(axis=-1))
