"""Variances: the sums that they are made of, kept over a long past that fades at block ends.

A variance comes from a horizon ten times longer than the estimate's: with few large importance weights, an estimate and
a variance from the same events fail together (88 % coverage of nominal 95 % intervals in a stationary world).

Dependent events inflate it. Blocks detect what all events of the same minutes share; units (a user, a session) detect
parallel sessions over many blocks. With the residual `e` of each event, its averaging weight `q` and the 64 random
signs `s_k` of its unit, `(sum q s_k e)^2` has the expectation `sum over units of (sum of q e in the unit)^2`; the mean
over k is this within `sqrt(2 / 64)`. The sums are linear: they are kept for the terms of residuals and combined once
the estimate is known. It is the wild cluster bootstrap with Rademacher weights, in one pass. Together both give the
variance for clusters in two directions:

    blocks + units - (units inside of blocks)

In simulations of sessions of 20 events with an intra-class correlation of .2, consecutive or 50 in parallel, with or
without shocks to whole blocks, normal intervals covered 93 to 96 %. With the larger of both variances, they covered
88 % for parallel sessions with shocks.

Source: Cameron, Gelbach & Miller, Bootstrap-based improvements for inference with clustered errors, 2008; Robust
inference with multiway clustering, 2011; for signs in one pass, Alon, Matias & Szegedy, The space complexity of
approximating the frequency moments, 1999.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from streameval.common.arrays import ROUNDING, Array, Mask, State, decayed_path, ratio
from streameval.events.origin import NO_IDENTITY, Identity, mix64
from streameval.ope.averages.blocks import OWN_SQUARES, PAIR_SQUARES, Blocks
from streameval.ope.averages.moments import (
    NONZERO,
    OWN_VARIANCE,
    PAIR_VARIANCE,
    TAIL_ROWS,
    TERMS,
    effective_denominators,
    fold_sums,
    linear_form,
    linearised_variance,
    squares_of_denominators,
    sum_of_squares,
)

LONGER = 10
"""The horizon of the variance as a multiple of the estimate's."""
LEAST_VISIBLE = 0.1
"""Rounding must be smaller than this, in squares of a weight of 1, for a sum of squares to show another reward."""
FEWEST_BLOCKS = 10
"""Fewer blocks give no variance of block sums."""
SIGNS = 64
"""The noise of a variance from 64 signs is `sqrt(2 / 64)` of it, 9 % of a standard error: 95 % become 94.6."""
STEP = np.uint64(0x9E3779B97F4A7C15)
OWN = 2
"""A column's own terms, u and v; those of the pair with production are TERMS."""
FADING = {"sums": 1.0, "squares": 1.0, "signed": 0.5}
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
    """The state of no events, to which units will add `Blocks.clusters`; `paired`: with the sums of lifts."""
    return {"sums": np.zeros((columns, PAIR_VARIANCE.stop if paired else NONZERO + 1))}


def fold(state: State, blocks: Blocks, horizon: Array | float) -> State:
    """Add whole blocks to a past that fades with this horizon in events: a number, [blocks] or [blocks, columns]."""
    factors = np.exp(-blocks.size / np.asarray(horizon, dtype=float))
    factors = np.broadcast_to(factors, factors.shape or (len(blocks),))
    added = {"sums": blocks.spread, **blocks.clusters}
    return {name: fold_sums(*_aligned(state.get(name), added[name]), factors ** FADING[name]) for name in added}


def path(state: State, blocks: Blocks, horizon: float) -> State:
    """The state after each of these whole blocks, [blocks, columns, rows]."""
    factor = float(np.exp(-blocks.size / horizon))
    added = {"sums": blocks.spread, **blocks.clusters}
    return {name: decayed_path(*_aligned(state.get(name), added[name]), factor ** FADING[name]) for name in added}


def merge(earlier: State, later: State, events: float, horizon: float) -> State:
    """The state of two parts of a stream, the later one `events` long."""
    factor, merged = float(np.exp(-events / horizon)), {}
    for name in later if len(later) > len(earlier) else earlier:
        before, after = _aligned(earlier.get(name), later.get(name))
        merged[name] = before * factor ** FADING[name] + after
    return merged


def _aligned(one: Array | None, other: Array | None) -> tuple[Array, Array]:
    """The same with the larger number of rows: 0 for none yet, and u and v as in the pair, whose events they share."""
    columns, width = max(part.shape[-2:] for part in (one, other) if part is not None)

    def widened(part: Array | None) -> Array:
        if part is None:
            return np.zeros((columns, width))
        return part if part.shape[-1] == width else np.concatenate([part, part[..., : OWN * SIGNS]], axis=-1)

    return widened(one), widened(other)


@dataclass(frozen=True, slots=True)
class VarianceMoments:
    """The parts of a state, [..., rows], read by name; NaN where unknown.

    `of_lift`: read for the linearised difference to production, on the events that production has too.
    """

    parts: Mapping[str, Array]
    of_lift: bool = False

    @property
    def _terms(self) -> int:
        return len(TERMS) if self.of_lift else OWN

    @property
    def _sums(self) -> Array:
        return self.parts["sums"][..., PAIR_VARIANCE if self.of_lift else OWN_VARIANCE]

    @property
    def _products(self) -> tuple[Array, Array]:
        """Sums of the products of terms, over events and over blocks."""
        first, second = np.split(self._sums[..., 1 + self._terms : -2], 2, axis=-1)
        return first, second

    def with_tail(self, tail: Blocks | None) -> VarianceMoments:
        """The events of the block that is not finished added to the sums over events."""
        if tail is None:
            return self
        sums = self.parts["sums"].copy()
        sums[..., TAIL_ROWS] += tail.spread[0][:, TAIL_ROWS]
        return VarianceMoments({**self.parts, "sums": sums})

    def lift(self, columns: slice) -> VarianceMoments:
        """Those of the paired differences of these columns to production."""
        return VarianceMoments({name: rows[columns] for name, rows in self.parts.items()}, of_lift=True)

    @property
    def nonzero(self) -> Array:
        """The number of events with `u != 0`."""
        return self.parts["sums"][..., NONZERO]

    @property
    def count(self) -> Array:
        """Effective number of events: equally weighted ones whose mean has the same variance."""
        return ratio(self._sums[..., 0] ** 2, self._sums[..., -2])

    @property
    def variance(self) -> Array:
        """Variance of the term `u`, of a ratio that of the linearised term `(u - E v) / mean(v)`."""
        return linearised_variance(self._sums, self._terms)

    @property
    def effective_denominators(self) -> Array:
        """As of `Moments`."""
        return effective_denominators(self._sums, self._terms)

    @property
    def never_varied(self) -> Mask:
        """Whether the term, of a ratio the linearised one, has always been the same; of a lift, both terms.

        False where weights are so large that another reward at a weight of 1 would be lost in the rounding of the sums.
        """
        form = linear_form(self._sums, self._terms)
        sides = np.eye(self._terms // 2).repeat(2, axis=1)
        squares = [sum_of_squares(np.where(side, form, 0.0), self._products[0]) for side in sides]
        hidden = ROUNDING * squares_of_denominators(self._sums, self._terms).max(axis=-1)
        return np.asarray(np.equal(squares, 0).all(axis=0) & (hidden < LEAST_VISIBLE))

    @property
    def design_effect(self) -> Array:
        """Variance of block sums over that of independent events; NaN before ten blocks.

        Events of one session are correlated, which inflates the variance of their mean by this factor. Both variances
        are taken around the same value, over the same events. Where events have units, the factor includes units that
        spread over many blocks.
        """
        weight_square, blocks = self._sums[..., -2], self._sums[..., -1]
        if (blocks < FEWEST_BLOCKS).all():
            return np.full(blocks.shape, np.nan)
        form, single = linear_form(self._sums, self._terms), self.variance
        by_blocks = ratio(sum_of_squares(form, self._products[1]), single * weight_square) * ratio(blocks, blocks - 1)
        effect = np.where(blocks >= FEWEST_BLOCKS, by_blocks, np.nan)
        if not self.knows_units:
            return effect
        added, weight_square = self._excess(form)
        return effect + np.nan_to_num(ratio(added, single * weight_square), posinf=0.0, neginf=0.0)

    @property
    def knows_units(self) -> bool:
        """Whether an event has had a unit."""
        return "signed" in self.parts

    def _excess(self, form: Array) -> tuple[Array, Array]:
        """The part of units in the sum of squares of residuals beyond blocks, and the `sum q^2` of its events."""
        squares = self.parts["squares"][..., PAIR_SQUARES if self.of_lift else OWN_SQUARES]
        signed = self.parts["signed"].reshape(*form.shape[:-1], -1, SIGNS)
        if self.of_lift:
            signed = signed[..., : len(TERMS), :]
        else:  # those of u and v, if other than the pair's, are the last
            signed = signed[..., len(TERMS) :, :] if signed.shape[-2] > len(TERMS) else signed[..., :OWN, :]
        with np.errstate(over="ignore", invalid="ignore"):
            units = np.square((form[..., None] * signed).sum(axis=-2)).mean(axis=-1)
            return units - sum_of_squares(form, squares[..., 1:]), squares[..., 0]
