"""The exact value of a greedy policy, by counting action sets instead of drawing them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streameval.arrays import Array

Integers = NDArray[np.int64]


def chance_of_best(scores: Array, liked_start: Integers, liked_items: Integers, actions: int) -> Array:
    """[likes]: the chance that each liked item has the best score among `actions - 1` items its user does not like.

    The others are drawn without replacement. With `l` unliked items below the liked one, `e` level with it (ties are
    broken by place, hence evenly), `N` unliked items in all, and sets of `A`:
    `sum_t C(e, t) C(l, A-1-t) / (t+1) / C(N, A-1) = (C(l+e+1, A) - C(l, A)) / (e+1) / C(N, A-1)`.

    One user who likes item 2 of 4, sets of 2: it beats the items 0 and 1, not item 3.

    >>> chance_of_best(np.array([0.1, 0.2, 0.3, 0.4]), np.array([0, 1]), np.array([2]), 2).round(9)
    array([0.66666667])
    """
    liked = np.diff(liked_start)
    user = np.repeat(np.arange(len(liked)), liked)
    distinct, rank = np.unique(scores, return_inverse=True)
    own = rank[liked_items]
    below, level = _below_and_level(np.sort(rank), own)
    key = user * len(distinct) + own
    liked_below, liked_level = _below_and_level(np.sort(key), key)
    lower = below - (liked_below - liked_start[user])
    equal = level - liked_level
    all_sets = _log_choose(len(scores) - liked[user], actions - 1)
    upto, under = (_log_choose(count, actions) for count in (lower + equal + 1, lower))
    return np.asarray((np.exp(upto - all_sets) - np.exp(under - all_sets)) / (equal + 1))


def softmax(scores: Array) -> Array:
    """Each row's probabilities, in proportion to exp(score).

    >>> softmax(np.log([[1.0, 3.0]]))
    array([[0.25, 0.75]])
    """
    unnormalised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(unnormalised / unnormalised.sum(axis=1, keepdims=True))


def _below_and_level(ordered: Integers, values: Integers) -> tuple[Integers, Integers]:
    below = np.searchsorted(ordered, values)
    return below, np.searchsorted(ordered, values, side="right") - below


def _log_choose(n: Integers, k: int) -> Array:
    """log of "n choose k", -inf where k > n."""
    log_factorial = np.array([math.lgamma(number + 1.0) for number in range(int(n.max()) + 1)])
    chosen = log_factorial[n] - log_factorial[np.maximum(n - k, 0)] - math.lgamma(k + 1.0)
    return np.where(n >= k, chosen, -np.inf)
