"""How far the importance weights of one unit (a user, a session) are alike, by the random signs of its events."""

from __future__ import annotations

import numpy as np

from streameval.common.arrays import Array, State, decayed_path, ratio
from streameval.ope.averages.cluster_variance import SIGNS


def start(policies: int) -> State:
    """The memory of no events."""
    return {"signed": np.zeros((policies, SIGNS)), "square": np.zeros(policies)}


def effect(memory: State) -> Array:
    """The design effect of the weights, [policies], 1 or more: how many times as much their mean varies as that of
    independent ones.

    With `y = q (w - 1)` and the 64 random signs s_k of each unit: mean over k of `(sum s_k y)^2` over `sum y^2` (see
    `averages.clusters`). 1 where no event names a unit.

    >>> one_unit = {"signed": np.full((1, SIGNS), 20 * 0.5), "square": np.array([20 * 0.25])}
    >>> effect(one_unit), effect(start(1))  # twenty events of one unit, whose weights are 1.5
    (array([20.]), array([1.]))
    """
    return np.fmax(1.0, ratio(np.square(memory["signed"]).mean(axis=-1), memory["square"]))


def fold(memory: State, surprise: Array, signs: Array | None, fading: float) -> tuple[Array, State]:
    """The design effect after each of these blocks, [blocks, policies], and the memory after them.

    `surprise` [blocks, policies, events]: the y; `signs` [n, 64], 0 before the first unit; `fading`: from block to
    block.
    """
    if signs is None:
        return np.repeat(effect(memory)[None], len(surprise), axis=0), memory
    by_block = signs.reshape(len(surprise), -1, SIGNS)
    there = np.abs(by_block[:, None, :, 0])
    path = {
        "signed": decayed_path(memory["signed"], surprise @ by_block, fading**0.5),
        "square": decayed_path(memory["square"], np.square(surprise * there).sum(axis=-1), fading),
    }
    return effect(path), {name: steps[-1] for name, steps in path.items()}
