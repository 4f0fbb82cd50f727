"""Lower confidence sequences as wealth processes: sums that add up over blocks, and the evidence they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streameval.common.arrays import Array
from streameval.ope.intervals.sequences.observations import Observations

COUNT, TOTAL = 0, 1
"""The first two sums of every row: how many observations were present, and their total."""
FRESH = 100
"""Until a row has seen this number of observations, each has its own centre: one for a whole block would be a guess."""

Places = NDArray[np.int64]


class WealthProcess(Protocol):
    """A lower confidence sequence for the running mean of observations `X >= 0` whose means lie in [0, 1], or near it.

    It keeps `width` sums a row: the count, the total, and the costs of its bets. Sums of consecutive stretches add up
    to those of both, wherever the centres came from, as long as each centre was known before its observation.
    """

    @property
    def width(self) -> int:
        """The number of sums of each row."""
        ...

    def costs(self, seen: Observations, deviation: Array, part: Places, shared: bool) -> Array:
        """The costs of observations, [parts, policies, sides, width - 2].

        Args:
            seen: the observations, [blocks, policies, sides, events]
            deviation: their distances from centres in [0, 1]; 0 for those that do not count. May be overwritten.
            part: [blocks] the part that each block belongs to, counted from 0
            shared: whether all observations of a block have the same centre
        """
        ...

    def log_wealth(self, sums: Array, mean: Array) -> Array:
        """Logarithm of the evidence that the running mean is above `mean`: decreasing in it.

        Against the true running mean it ever reaches `ln(1 / error)` with probability at most `error`.
        """
        ...

    def lower(self, sums: Array, error: Array) -> Array:
        """The mean against which the evidence is `1 / error`, NaN without observations."""
        ...


def measure(process: WealthProcess, seen: Observations, before: Array, parts: Sequence[int]) -> tuple[Array, Array]:
    """The sums of consecutive parts of so many blocks, and the counts and totals after all of them.

    The centre of a block is `min(1, (S + 1/2) / (count + 1))` of the count and total S before it. Observations of a row
    that had fewer than `FRESH` of them before the block have their own centres, from the observations before each.

    Args:
        process: what the sums are for
        seen: the observations, [blocks, policies, sides, events]
        before: [policies, sides, 2] counts and totals before the first block
        parts: numbers of blocks

    Returns:
        The sums, [parts, policies, sides, width], and the counts and totals, [policies, sides, 2].
    """
    counts, totals = seen.counts, seen.values @ np.ones(seen.values.shape[-1])
    count, total = (
        np.cumsum(np.concatenate([before[None, ..., place], steps]), axis=0)
        for place, steps in ((COUNT, counts), (TOTAL, totals))
    )
    fresh = (count[:-1] < FRESH) & (counts > 0)
    part = np.repeat(np.arange(len(parts)), parts)
    sums = np.empty((len(parts), *before.shape[:-1], process.width))
    firsts = np.searchsorted(part, np.arange(len(parts)))
    sums[..., COUNT], sums[..., TOTAL] = np.add.reduceat(counts, firsts), np.add.reduceat(totals, firsts)
    deviation = seen.values - centre_after(count[:-1], total[:-1])[..., None]
    if seen.present is not None:
        deviation *= seen.present
    deviation[fresh] = 0.0
    sums[..., 2:] = process.costs(seen, deviation, part, shared=True)
    early = np.flatnonzero(fresh.any(axis=(1, 2)))
    if len(early):
        some = seen.of_blocks(early)
        deviation = some.values - _own_centres(some, count[early], total[early])
        deviation[~fresh[early]] = 0.0
        if some.present is not None:
            deviation *= some.present
        costs = process.costs(some, deviation, np.arange(len(early)), shared=False)
        np.add.at(sums[..., 2:], part[early], np.where(fresh[early][..., None], costs, 0.0))
    return sums, np.stack([count[-1], total[-1]], axis=-1)


def centre_after(count: Array, total: Array) -> Array:
    """The centre of the next observation after `count` of them that add up to `total`."""
    return np.minimum((total + 0.5) / (count + 1.0), 1.0)


def _own_centres(seen: Observations, count: Array, total: Array) -> Array:
    """The centre of each observation from those before it; `count`, `total`: before each block."""
    ones = np.ones_like(seen.values) if seen.present is None else seen.present
    counts, totals = (
        np.cumsum(np.concatenate([start[..., None], steps[..., :-1]], axis=-1), axis=-1)
        for start, steps in ((count, ones), (total, seen.values))
    )
    return centre_after(counts, totals)
