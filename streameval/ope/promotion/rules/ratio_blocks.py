"""Turn blocks of a ratio of two rewards into lifts with a mean over a period that is the lift of the whole period.

The mean of the ratios of hours is not the ratio of a day: hours with a larger denominator count more in it. So each
block counts the linearised ratio `R + (a - R b) / B` of both policies. `a` and `b` are the means of the block, A and B
those of some past periods, and `R = A / B`. The mean over a period with the ratio R' and the denominator B' is `R' +
(R' - R) (B' / B - 1)`, and errors of this kind that both policies share cancel in the lift.
"""

from __future__ import annotations

import numpy as np

from streameval.common.arrays import Array, decayed_path, ratio
from streameval.ope.core import BlockLift

SUMS = 5
"""Number of sums: the weight, the numerators of a candidate and of production, and their denominators."""


def linearised(above: BlockLift, below: BlockLift, before: Array, fading: Array) -> tuple[BlockLift, Array]:
    """Return the lift of each block, and the sums after the last one.

    A block counts if the ratio has noise and both policies have denominators above 0.

    Args:
        above: the numerator, with the noise of the ratio times the squared denominator, see `Lift`
        below: the denominator
        before: the fading sums of each candidate [candidates, 5]
        fading: the factor of the sums for each block [blocks]
    """
    weight = np.where(np.isnan(above.noise) | (below.weight == 0), 0.0, above.weight)
    parts = [
        np.nan_to_num(np.stack([part.own, part.own - part.total], axis=-1) * ratio(weight, part.weight)[..., None])
        for part in (above, below)
    ]
    sums = decayed_path(before, np.concatenate([weight[..., None], *parts], axis=-1), fading)
    usual, means = ratio(sums[..., 1:3], sums[..., 3:]), ratio(sums[..., 3:], sums[..., :1])
    values = usual * weight[..., None] + ratio(parts[0] - usual * parts[1], means)
    total = values[..., 0] - values[..., 1]
    counts = np.isfinite(total) & (means > 0).all(axis=-1) & (weight > 0)
    block = above._replace(
        weight=np.where(counts, weight, 0.0),
        square=np.where(counts, above.square, 0.0),
        total=np.where(counts, total, 0.0),
        noise=ratio(above.noise, means[..., 0] ** 2),
    )
    return block, sums[-1]
