"""Return probabilities of rankings that are drawn by weight, without replacement (Plackett-Luce).

With few actions and slots they are sums over the sets of actions that may fill the slots before another. For more they
are integrals over the times of exponential clocks. Let every action a ring after an exponential time with the rate
`w_a`. The order in which actions ring is the ranking. Given that i rings at s and k at `t > s`, the other actions ring
independently before s, between s and t, or after t. So

    P(slot j shows i, slot l > j shows k) = integral over s < t of  w_i e^(-w_i s)  w_k e^(-w_k t)
        [x^(l-2) z^(j-1)]  product over others a of  e^(-w_a t) + x (e^(-w_a s) - e^(-w_a t)) + x z (1 - e^(-w_a s))

The coefficient of the polynomial comes from its values on circles, where the product over others is the product over
all, divided by the factors of i and k. At each x and z the sum over times is then one matrix product for all pairs.

Times are Gauss-Legendre nodes in `log(1 + rate t)`, with the total rate. Probabilities of single slots have a relative
error of about 1e-14, and the ones of pairs an absolute error of at most about 1e-12.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np

from streameval.common.arrays import Array, Mask
from streameval.events.action_sets import Index

MAX_PREFIXES = 10_000  # sets of actions that may fill the slots before another: above, probabilities are integrals
ALIASING = 1e-13  # a coefficient has this share of the one that is a whole circle higher
NEGLIGIBLE = 1e-14  # probability that slots are still empty after the last node


class Prefixes(NamedTuple):
    """Hold the sets of k of m actions, and for each set the k sets with one action less.

    Attributes:
        members: [sets, m] whether a set has an action
        before: [sets, k] index of the smaller set
        added: [sets, k] the action that the smaller set lacks
    """

    members: Mask
    before: Index
    added: Index


def has_few_prefixes(actions: int, slots: int) -> bool:
    """Tell whether probabilities of rankings are sums over the sets of actions that may fill the slots before one."""
    return sum(comb(actions, shown) for shown in range(slots)) <= MAX_PREFIXES


@lru_cache(maxsize=64)
def prefixes(actions: int, slots: int) -> tuple[Prefixes, ...]:
    """Return the sets of 0 to `slots - 1` actions."""
    by_size: list[Prefixes] = []
    number: dict[tuple[int, ...], int] = {}
    for size in range(slots):
        sets = list(combinations(range(actions), size))
        members = np.zeros((len(sets), actions), dtype=bool)
        for row, chosen in enumerate(sets):
            members[row, list(chosen)] = True
        less = [[number[chosen[:i] + chosen[i + 1 :]] for i in range(size)] for chosen in sets] if size else [[]]
        shape = (len(sets), size)
        by_size.append(Prefixes(members, np.array(less, int).reshape(shape), np.array(sets, int).reshape(shape)))
        number = {chosen: row for row, chosen in enumerate(sets)}
    return tuple(by_size)


def draws(weights: Array, slots: int, pairs: bool = False) -> tuple[Array, Array | None]:
    """Return probabilities of actions in the slots of rankings that are drawn by weight, without replacement.

    They are exact, from the probability of each set of actions that may fill the slots before another, if there are at
    most 10,000 such sets, and else integrals.

    Args:
        weights: [n, m] weights of the actions
        slots: number of slots
        pairs: whether to return probabilities of pairs

    Returns:
        [n, slots, m] the probability that slot j shows action a. With `pairs`, also [n, slots, m, slots, m] the
        probability that slot j shows a and a later slot k shows b.

    >>> single, joint = draws(np.array([[3.0, 1.0]]), slots=2, pairs=True)
    >>> single[0], joint[0, 0, 0, 1]
    (array([[0.75, 0.25],
           [0.25, 0.75]]), array([0.  , 0.75]))
    """
    n, actions = weights.shape
    if not has_few_prefixes(actions, slots):
        return integrated_draws(weights, slots, pairs)
    single, joint = np.zeros((n, slots, actions)), np.zeros((n, slots, actions, slots, actions)) if pairs else None
    reached, step = np.ones((n, 1)), np.empty((n, 1, actions))
    after = np.empty((n, 0, 1))  # of each set, and of an action in a slot before: [n, slot x action, sets]
    for slot, sets in enumerate(prefixes(actions, slots)):
        if slot:
            came = step[:, sets.before, sets.added]
            if pairs:
                started = np.zeros((n, actions, len(sets.members)))
                for index in range(slot):
                    started[:, sets.added[:, index], np.arange(len(sets.members))] = (
                        reached[:, sets.before[:, index]] * came[:, :, index]
                    )
                later = (after[:, :, sets.before] * came[:, None]).sum(axis=-1)
                after = np.concatenate([later, started], axis=1)
            reached = (reached[:, sets.before] * came).sum(axis=-1)
        left = weights @ ~sets.members.T
        step = np.where(sets.members, 0.0, weights[:, None]) / left[..., None]
        single[:, slot] = np.einsum("ns,nsa->na", reached, step)
        if joint is not None and slot:
            both = np.matmul(after, step).reshape(n, slot, actions, actions)
            joint[:, :slot, :, slot] = both
    return single, joint


def max_spread(actions: int, slots: int) -> float:
    """Return how far the scores of the best and of the l-th best action may differ, for l slots.

    More needs more nodes. Within this limit the pairs of a ranking take a second at most on one core.

    >>> max_spread(20, 10), max_spread(100, 10)
    (20.0, 5.0)
    """
    return min(20.0, 10_000 / (slots * actions) - 5.0)


def integrated_draws(weights: Array, slots: int, pairs: bool = False) -> tuple[Array, Array | None]:
    """Return what `draws` returns, from integrals.

    >>> single, _ = integrated_draws(np.array([[3.0, 1.0]]), slots=2)
    >>> single[0].round(12)
    array([[0.75, 0.25],
           [0.25, 0.75]])
    """
    n, actions = weights.shape
    single = np.empty((n, slots, actions))
    joint = np.zeros((n, slots, actions, slots, actions)) if pairs else None
    for row, rates in enumerate(weights):
        length = _length(rates, slots)
        single[row] = _singles(rates, slots, length)
        if joint is not None and slots > 1:
            later = _pairs(rates, slots, length)
            for first in range(slots - 1):
                joint[row, first, :, first + 1 :] = later[first, first:].swapaxes(0, 1)
    return single, joint


def _length(rates: Array, slots: int) -> float:
    """Return `log(1 + rate t)` for a time t when all slots are filled, by the bound of Chernoff."""
    powers = np.geomspace(1e-16, 0.6, 25)[:, None]
    low, high = 0.0, 600.0
    for _ in range(30):
        middle = (low + high) / 2
        rung = -np.expm1(-rates * (np.expm1(middle) / rates.sum()))
        log_chance = (np.log1p(-rung * (1 - powers)).sum(axis=1) - (slots - 1) * np.log(powers[:, 0])).min()
        low, high = (middle, high) if log_chance > np.log(NEGLIGIBLE) else (low, middle)
    return high


@lru_cache(maxsize=256)
def _legendre(nodes: int) -> tuple[Array, Array]:
    """Return nodes and weights of integrals from 0 to 1."""
    places, weights = np.polynomial.legendre.leggauss(nodes)
    return (places + 1) / 2, weights / 2


def _nodes(rate: float, length: float, least: int, per_unit: float) -> tuple[Array, Array, Array]:
    """Return times up to `log(1 + rate t) = length`, their weights in an integral, and these logarithms."""
    places, weights = _legendre(least + int(per_unit * length))
    logs = places * length
    return np.expm1(logs) / rate, weights * length * np.exp(logs) / rate, logs


def _singles(rates: Array, slots: int, length: float) -> Array:
    """Return the probability that each slot shows each action [slots, m]. All terms are positive."""
    times, share, _ = _nodes(rates.sum(), length, 24, 6)
    silent = np.exp(-rates[:, None] * times)
    rung = -np.expm1(-rates[:, None] * times)

    def counts(order: slice) -> Array:
        """Return the distribution of the number of actions before each one in this order that rang [m, slots, t]."""
        count = np.zeros((len(rates), slots, len(times)))
        current = np.zeros((slots, len(times)))
        current[0] = 1.0
        for row, yes, no in zip(count[order], rung[order], silent[order], strict=True):
            row[:] = current
            current = current * no
            current[1:] += row[:-1] * yes
        return count

    before, after = counts(slice(None)), counts(slice(None, None, -1))
    density = rates[:, None] * silent * share
    return np.array(
        [
            (np.einsum("mct,mct->mt", before[:, : slot + 1], after[:, slot::-1]) * density).sum(1)
            for slot in range(slots)
        ]
    )


def _pairs(rates: Array, slots: int, length: float) -> Array:
    """Return the probability that slot j shows i and slot l shows k [j - 1, l - 2, i, k], 0 for j >= l."""
    late, late_share, ends = _nodes(rates.sum(), length, 12 + slots // 4, 6)
    parts = [_nodes(rates.sum(), end, 8 + slots // 4, 5)[:2] for end in ends.tolist()]
    s, t = np.concatenate([times for times, _ in parts]), np.repeat(late, [len(times) for times, _ in parts])
    share = np.concatenate([weights * one for (_, weights), one in zip(parts, late_share, strict=True)])
    rate = rates[:, None]
    silent = np.exp(-rate * t)
    between, before = -np.exp(-rate * s) * np.expm1(-rate * (t - s)), -np.expm1(-rate * s)
    early, last = rate * np.exp(-rate * s) * share, rate * silent

    actions, degrees = len(rates), np.arange(slots - 1)
    whole = actions + actions % 2  # a circle of so many points has no aliasing
    most = max(slots + 14, 5 * slots // 2)  # more against rounding, as coefficients are divided by powers of the radius
    points = min(whole, most + most % 2)
    radius = 1.0 if points == whole else ALIASING ** (1 / points)
    x = radius * np.exp(2j * np.pi * (np.arange(points // 2) + 0.5) / points)  # no factor is 0 at such points
    z = np.exp(2j * np.pi * degrees / len(degrees))
    values = np.empty((len(x), len(z), actions, actions), dtype=complex)
    for value, one in zip(values, x, strict=True):
        factor = silent + one * between + (one * z)[:, None, None] * before
        product = np.multiply.reduce(factor, axis=1, keepdims=True)
        inverse = np.reciprocal(factor, out=factor)
        np.matmul(inverse * early * product, (inverse * last).swapaxes(1, 2), out=value)
    by_x = x ** -degrees[:, None] * (2 / points)  # the other half of the circle has conjugate values
    by_z = z ** -degrees[:, None] / len(z)
    later = np.einsum("dx,jz,xzik->jdik", by_x, by_z, values, optimize=True).real
    later[:, :, np.arange(actions), np.arange(actions)] = 0.0
    return np.asarray(np.maximum(later, 0.0))
