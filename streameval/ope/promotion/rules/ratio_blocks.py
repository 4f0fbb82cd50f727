"""Turn blocks of a ratio of two rewards into lifts with a mean over a period that is the lift of the whole period.

The mean of the ratios of hours is not the ratio of a day: hours with a larger denominator count more in it. So each
block counts the linearised ratio `R + (a - R b) / B` of both policies. `a` and `b` are the means of the block, A and B
those of the whole periods before the present one, and `R = A / B`. The mean over a period with the ratio R' and the
denominator B' is `R' + (R' - R) (B' / B - 1)`, and errors of this kind that both policies share cancel in the lift.

R and B of a part of a day are far from those of the day if ratios or denominators differ by hour. So they stay the same
during a period, and the first period of a candidate sets them and counts for nothing else. The first period begins
with the first block with events of the candidate. If no block with its events follows within a period after the end of
one, that one is forgotten, and the next block begins another.
"""

from __future__ import annotations

import numpy as np

from streameval.common.arrays import Array, ratio, running_sum
from streameval.ope.core import BlockLift
from streameval.ope.promotion.rules.phases import Period

SUMS = 5
"""Number of sums: the weight, the numerators of a candidate and of production, and their denominators."""
COLUMNS = 2 * SUMS + 1
"""Number of columns of `linearised`: fading sums of whole periods, sums of the present period, and its end."""


def linearised(
    above: BlockLift, below: BlockLift, before: Array, times: Array, period: Period
) -> tuple[BlockLift, Array]:
    """Return the lift of each block, and the sums after the last one.

    A block counts if the ratio has noise and both policies have denominators above 0.

    Args:
        above: the numerator, with the noise of the ratio times the squared denominator, see `Lift`
        below: the denominator
        before: the sums of each candidate [candidates, 11]
        times: the newest time until each block, minus infinity if unknown [blocks]
        period: the period of the sums
    """
    weight = np.where(np.isnan(above.noise) | (below.weight == 0), 0.0, above.weight)
    parts = [
        np.nan_to_num(np.stack([part.own, part.own - part.total], axis=-1) * ratio(weight, part.weight)[..., None])
        for part in (above, below)
    ]
    steps = np.concatenate([weight[..., None], *parts], axis=-1)
    sums, after = _of_whole_periods(steps, before, np.where(weight > 0, times[:, None], -np.inf), period)
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
    return block, after


def _of_whole_periods(steps: Array, before: Array, times: Array, period: Period) -> tuple[Array, Array]:
    """Return the sums of the periods before each block [blocks, candidates, 5], and all columns after the last one.

    Args:
        steps: the sums of each block [blocks, candidates, 5]
        before: the columns before [candidates, 11]
        times: the time of each block, minus infinity without events of a candidate [blocks, candidates]
        period: the length of a period
    """
    whole, present, end = before[:, :SUMS], before[:, SUMS:-1], before[:, -1]
    sums, first = np.empty_like(steps), 0
    while first < len(steps):
        over = times[first] >= end
        is_whole = over & (end > 0) & (times[first] < end + period.seconds)
        whole = np.where(is_whole[:, None], (1 - 1 / period.memory) * whole + present, whole)
        present = np.where(over[:, None], 0.0, present)
        end = np.where(over, np.where(is_whole, end, times[first]) + period.seconds, end)
        over_next = np.flatnonzero((times[first + 1 :] >= end).any(axis=1))
        last = first + 1 + int(over_next[0]) if len(over_next) else len(steps)
        sums[first:last] = whole
        present = running_sum(present, steps[first:last])[-1]
        first = last
    return sums, np.column_stack([whole, present, end])
