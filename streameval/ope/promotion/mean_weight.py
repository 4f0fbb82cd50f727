"""A sequential test that importance weights have mean 1: a bet against it, which a sound log does not let win."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from streameval.common.arrays import Array, decayed_path, per_block, ratio, running_max
from streameval.ope.core.past import SIGNS
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.evidence.largest_weights import rarity
from streameval.ope.promotion import kernel
from streameval.ope.promotion.block_sums import BlockSums

WEIGHT_MEMORY = 100_000.0
"""Horizon in events of the sums that the stakes are computed from."""
LARGEST_STAKE = 0.5


class Bets(Struct, frozen=True, eq=False):
    """Half 1: what bets against a mean weight of 1 read of some blocks, [blocks, policies, ...].

    With `y = q (w - 1)`: `surprise` [.., events] is y, as stakes follow the blocks before. `square`: sums of `y^2`.
    `rarest` [blocks]: the largest `1 / p`. `signed` [.., 64], `signed_square`: sums of y with the signs of units, and
    of `y^2` of events that have signs; None before the first unit.
    """

    surprise: Array
    square: Array
    rarest: Array
    signed: Array | None
    signed_square: Array | None

    @classmethod
    def of(cls, evidence: Evidence, propensity: Array) -> Bets:
        """From whole blocks; `propensity` [events]."""
        blocks, signed, square = evidence.blocks, None, None
        surprise = per_block(evidence.sample_weight * (evidence.importance_weight - 1.0), blocks)
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
    """Hold what stakes are computed from; axis 0 counts policies.

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
    """Half 2: bet against a mean weight of 1.

    With correct propensities and full support, `E[w | the past] = 1`. Then the wealth `prod (1 + stake q (w - 1))`,
    with stakes set before each block, is a non-negative martingale: it ever exceeds `1/error` with probability at most
    `error` (Ville), whatever the tails of `w`. The test uses no variance estimate, because before the first large
    weight both the mean and its standard error look small.

    The stake is close to the one that would have won most so far, `sum y / sum y^2` of `y = q (w - 1)` over the last
    100,000 events. It is limited so that no weight ruins the wealth: with `Q` the largest sampling weight seen, from
    above by `1 / (2 Q)`, as importance weights are not negative (for slates the smallest weight seen counts too); from
    below by `1 / (2 Q W)`, where `W` is the largest weight seen and the largest `1 / p` of *all* events seen. Only a
    weight above `2 W` could ruin the wealth, from an action twice as rare as any logged before. In that respect the
    process is only approximately a martingale. Every test of a mean from below needs such a bound, because the missing
    weight can always be in an event too rare to have been seen (Bahadur & Savage, 1956).

    A mean that is wrong by `d` is detected after about `2 v (ln(1/error) + ln(n)/2) / d^2` events, `v` the variance of
    the weights: propensities wrong by 10 % after some 3,000 events if v = 1, some 150,000 if v = 50.

    Returns the log wealth gained in each block and the design effect of the weights until then, [blocks, policies]
    each, and the next state. Divide the log wealth by the design effect: weights of one user or
    session are correlated, so their mean varies more.

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
    least = -LARGEST_STAKE / (before["sampling"] * before["largest"])
    stake = np.clip(best, least, LARGEST_STAKE / (before["sampling"] * (1.0 - before["lowest"])))
    gained = np.empty(stake.shape)
    kernel.log_wealth(bets.surprise, np.ascontiguousarray(stake), gained)
    return gained, effects, after


def design_effect(units: UnitBets) -> Array:
    """The design effect of the weights, [policies], 1 or more: the variance of their mean over that of independent
    weights.

    With `y = q (w - 1)` and the 64 random signs s_k of each unit: mean over k of `(sum s_k y)^2` over `sum y^2` (see
    `averages.variance`). 1 where no event names a unit.

    >>> one_unit = UnitBets(np.full((1, SIGNS), 20 * 0.5), np.array([20 * 0.25]))
    >>> design_effect(one_unit), design_effect(start(1).units)  # twenty events of one unit, whose weights are 1.5
    (array([20.]), array([1.]))
    """
    return np.fmax(1.0, ratio(np.square(units.signed).mean(axis=-1), units.square))


def design_effects(units: UnitBets, bets: Bets, fading: float) -> tuple[Array, UnitBets]:
    """The design effect after each of these blocks, [blocks, policies], and the next state of the units.

    `fading`: from block to block.
    """
    if bets.signed is None or bets.signed_square is None:
        return np.repeat(design_effect(units)[None], len(bets.rarest), axis=0), units
    path = UnitBets(
        decayed_path(units.signed, bets.signed, fading**0.5), decayed_path(units.square, bets.signed_square, fading)
    )
    return design_effect(path), UnitBets(path.signed[-1], path.square[-1])
