"""From observations to the sums of an engine, around centres that are known when a block begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from streameval.common.arrays import Array, Mask
from streameval.ope.intervals.sequences.powers import PowerSums
from streameval.ope.intervals.sequences.wealth import COUNT, TOTAL, Places, WealthProcess, running_centre

FRESH = 100
"""Until a row has seen so many observations, each has a centre of its own: one for a whole block would be a guess."""

OneByOne = Callable[[int], Iterable[tuple[Array, Mask | None]]]


def measure(
    engine: WealthProcess, powers: PowerSums, before: Array, parts: Sequence[int], one_by_one: OneByOne
) -> tuple[Array, Array]:
    """The sums of consecutive parts of so many blocks, [parts, sides, policies, width], and counts and totals after.

    `before` [sides, policies, 2]: counts and totals of what came before. The centre of a block is
    `min(1, (S + 1/2) / (count + 1))` of these; it is any number in [0, 1] that is known beforehand, and so are those of
    the events of a block that is measured `one_by_one`, which it names the observations of, side by side.
    """
    count, total = (
        np.cumsum(np.concatenate([before[None, ..., place], steps]), axis=0)
        for place, steps in ((COUNT, powers.counts), (TOTAL, powers.totals))
    )
    after = np.stack([count[-1], total[-1]], axis=-1)
    squares = _deviations(powers.small, _centre(count[:-1], total[:-1]))
    fresh = (count[:-1] < FRESH) & (powers.counts > 0)
    squares[fresh] = 0.0
    firsts = np.cumsum([0, *parts[:-1]])
    sums = np.empty((len(parts), *before.shape[:-1], engine.width))
    sums[..., COUNT] = np.add.reduceat(powers.counts, firsts)
    sums[..., TOTAL] = np.add.reduceat(powers.totals, firsts)
    later = ~fresh.ravel()[powers.rows]
    at, rows = powers.rows[later], before[..., COUNT].size
    centre = _centre(count.ravel()[at], total.ravel()[at])
    row = _part(firsts, at // rows) * rows + at % rows
    sums[..., 2:] = engine.costs(np.add.reduceat(squares, firsts), powers.singles[later], centre, row)
    for block in np.flatnonzero(fresh.any(axis=(1, 2))).tolist():
        past = np.stack([count[block], total[block]], axis=-1)
        _add_one_by_one(engine, sums[int(_part(firsts, block))], fresh[block], past, one_by_one(block))
    return sums, after


def _part(firsts: Places, block: Places | int) -> Places:
    """In which of the parts that begin with these blocks a block lies."""
    return np.asarray(np.searchsorted(firsts, block, side="right") - 1)


def _centre(count: Array, total: Array) -> Array:
    return np.minimum((total + 0.5) / (count + 1.0), 1.0)


def _deviations(small: Array, centre: Array) -> Array:
    """Sums of the second and higher powers of deviations from a centre, from those of powers."""
    count, total, square = (small[..., power] for power in range(3))
    squares = square - centre * (2 * total - centre * count)
    if small.shape[-1] == 3:
        return np.asarray(squares[..., None])
    cubes = small[..., 3] - centre * (3 * square - centre * (3 * total - centre * count))
    return np.stack([squares, cubes], axis=-1)


def _add_one_by_one(
    engine: WealthProcess, sums: Array, fresh: Mask, before: Array, observations: Iterable[tuple[Array, Mask | None]]
) -> None:
    """Add what the observations of fresh rows of a block cost, each around its own centre."""
    for side, (observed, present) in enumerate(observations):
        centre, _ = running_centre(observed, present, before[side])
        costs = engine.sums(observed, centre, present)[..., 2:]
        sums[side, :, 2:] += np.where(fresh[side][:, None], costs, 0.0)
