"""Test sequentially that importance weights have mean 1, by a bet against it that a sound log does not let win."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from streameval.common.arrays import Array, decayed_path, ratio, running_max, split_blocks
from streameval.ope.core.past import SIGNS
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.evidence.largest_weights import rarity
from streameval.ope.promotion import kernel
from streameval.ope.promotion.block_sums import BlockSums

WEIGHT_MEMORY = 100_000.0
"""Horizon in events of the sums that the stakes are computed from."""
MAX_STAKE = 0.5


class Bets(Struct, frozen=True, eq=False):
    """Hold what bets against a mean weight of 1 read of some blocks (half 1), with `y = q (w - 1)`.

    Attributes:
        surprise: y of single events, because stakes follow the blocks before [blocks, policies, events]
        square: sums of `y^2` [blocks, policies]
        rarest: the largest `1 / p` [blocks]
        signed: sums of y with the signs of units, None before the first unit [blocks, policies, 64]
        signed_square: sums of `y^2` of events that have signs, None before the first unit [blocks, policies]
    """

    surprise: Array
    square: Array
    rarest: Array
    signed: Array | None
    signed_square: Array | None

    @classmethod
    def from_evidence(cls, evidence: Evidence, propensity: Array) -> Bets:
        """Read whole blocks, with the propensity of each event [events]."""
        blocks, signed, square = evidence.blocks, None, None
        surprise = split_blocks(evidence.sample_weight * (evidence.importance_weight - 1.0), blocks)
        if evidence.signs is not None:
            signs = evidence.signs.reshape(blocks, -1, SIGNS)
            signed, square = surprise @ signs, np.square(surprise * np.abs(signs[:, None, :, 0])).sum(axis=-1)
        rarest = rarity(propensity).reshape(blocks, -1).max(axis=1)
        return cls(surprise, np.einsum("bpn,bpn->bp", surprise, surprise), rarest, signed, square)


class UnitBets(Struct, frozen=True, eq=False):
    """Hold decayed sums of y with the signs of units [P, 64], and of `y^2` of events that have signs [P]."""

    signed: Array
    square: Array


class BetState(Struct, frozen=True, eq=False):
    """Hold what stakes are computed from, with policies on axis 0.

    Attributes:
        bets: the decayed sums of `y` and `y^2` [P, 2]
        largest: the largest weight and `1 / p` seen [P]
        lowest: the smallest weight [P]
        sampling: the largest sampling weight [P]
        units: see `design_effects`
    """

    bets: Array
    largest: Array
    lowest: Array
    sampling: Array
    units: UnitBets


def start(policies: int) -> BetState:
    """Start before the first bet."""
    none, ones = np.zeros(policies), np.ones(policies)
    return BetState(
        np.zeros((policies, 2)), ones, none, ones.copy(), UnitBets(np.zeros((policies, SIGNS)), none.copy())
    )


def fold(state: BetState, bets: Bets, sums: BlockSums, block: int) -> tuple[Array, Array, BetState]:
    """Bet against a mean weight of 1 (half 2).

    With correct propensities and full support, `E[w | the past] = 1`. Then the wealth `prod (1 + stake q (w - 1))`,
    with stakes set before each block, is a non-negative martingale. It ever exceeds `1/error` with probability at most
    `error` (Ville), whatever the tails of `w`. The test uses no variance estimate, because before the first large
    weight both the mean and its standard error look small.

    The stake is close to the one that would have won most so far, `sum y / sum y^2` of `y = q (w - 1)` over the last
    100,000 events. It is limited so that no weight ruins the wealth. Let `Q` be the largest sampling weight seen, and
    `W` the largest of the weights seen and of `1 / p` of *all* events seen. From above the limit is `1 / (2 Q)`, as
    importance weights are not negative (for slates the smallest weight seen counts too). From below it is `1 / (2 Q
    W)`. Only a weight above `2 W` could ruin the wealth, from an action twice as rare as any logged before. In that
    respect the process is only approximately a martingale. Every test of a mean from below needs such a bound, because
    the missing weight can always be in an event too rare to have been seen (Bahadur & Savage, 1956).

    A mean that is wrong by `d` is detected after about `2 v (ln(1/error) + ln(n)/2) / d^2` events, with the variance
    `v` of the weights: propensities wrong by 10 % after some 3,000 events if v = 1, and some 150,000 if v = 50.

    Returns:
        The log wealth gained in each block and the design effect of the weights so far, [blocks, policies] each, and
        the next state. Divide the log wealth by the design effect: weights of one user or session are correlated, so
        their mean varies more.

    Source: Waudby-Smith & Ramdas, JRSS B 2024, on betting; Ville 1939.
    """
    fading = float(np.exp(-block / WEIGHT_MEMORY))
    effects, units = design_effects(state.units, bets, fading)
    paths = {
        "bets": decayed_path(state.bets.T, np.stack([sums.weight - sums.q, bets.square], axis=1), fading),
        "largest": running_max(state.largest, np.maximum(sums.importance_largest, bets.rarest[:, None])),
        "lowest": -running_max(-state.lowest, -sums.importance_smallest),
        "sampling": running_max(state.sampling, sums.q_largest),
    }
    after = BetState(**{name: path[-1].T.copy() for name, path in paths.items()}, units=units)
    before = {name: np.concatenate([getattr(state, name).T[None], path[:-1]]) for name, path in paths.items()}
    with np.errstate(divide="ignore", invalid="ignore"):
        best = np.where(before["bets"][:, 1] > 0, before["bets"][:, 0] / before["bets"][:, 1], 0.0)
    least = -MAX_STAKE / (before["sampling"] * before["largest"])
    stake = np.clip(best, least, MAX_STAKE / (before["sampling"] * (1.0 - before["lowest"])))
    gained = np.empty(stake.shape)
    kernel.log_wealth(bets.surprise, np.ascontiguousarray(stake), gained)
    return gained, effects, after


def design_effect(units: UnitBets) -> Array:
    """Return the design effect of the weights, 1 or more [policies].

    It is the variance of their mean over the variance for independent weights. With `y = q (w - 1)` and the 64 random
    signs s_k of each unit, it is the mean over k of `(sum s_k y)^2` over `sum y^2` (see `ope.core.past`). It is 1 if no
    event names a unit.

    >>> one_unit = UnitBets(np.full((1, SIGNS), 20 * 0.5), np.array([20 * 0.25]))
    >>> design_effect(one_unit), design_effect(start(1).units)  # twenty events of one unit, whose weights are 1.5
    (array([20.]), array([1.]))
    """
    return np.fmax(1.0, ratio(np.square(units.signed).mean(axis=-1), units.square))


def design_effects(units: UnitBets, bets: Bets, fading: float) -> tuple[Array, UnitBets]:
    """Return the design effect after each of these blocks [blocks, policies], and the next state of the units."""
    if bets.signed is None or bets.signed_square is None:
        return np.repeat(design_effect(units)[None], len(bets.rarest), axis=0), units
    path = UnitBets(
        decayed_path(units.signed, bets.signed, fading**0.5), decayed_path(units.square, bets.signed_square, fading)
    )
    return design_effect(path), UnitBets(path.signed[-1], path.square[-1])
