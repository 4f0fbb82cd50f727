"""Choose the cap of an estimator with `cap: auto` by SLOPE, for each policy and average, when a Report is made.

`window: auto` of `click_interpol` is the same choice: windows from 0 to infinity take the place of falling caps.

The largest cap has the least bias, the smallest the least noise. Each value has an interval for its noise. From the
largest cap on, SLOPE takes the last one before the intersection of these intervals is empty. As long as they overlap,
noise alone explains the differences, and a smaller cap has less of it. The half-width of an interval is

    se / 2 + 2 b / n

with the standard error `se` of the value, the effective number of events `n`, and `b` the cap, or the largest weight
seen if that is smaller, times the width of the reward range. For rankings, `b` is the cap times the width of the
metric's range, or the largest value of a page seen if that is smaller. A window has no limit. The second term, the
form of the empirical Bernstein bound, is for heavy events that have not occurred yet. The published intervals are
wider, and limit the error. These have less error in simulations, with mild and with heavy-tailed weights
(`tests/statistical/test_slope.py`). A reward range that is wider than the rewards favours small caps.

The chosen value lies within that half-width of a value that all larger caps agree on. This much is added to both sides
of its interval, which covers the expectation of the estimator with the chosen cap, not the value of the policy. A lift
compares both policies with the cap of the candidate.

Source: Su, Srinath & Krishnamurthy, Adaptive estimator selection for off-policy evaluation, ICML 2020.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streameval.common.arrays import Array, ratio
from streameval.ope.core import Reading
from streameval.ope.estimators import Estimator
from streameval.ope.intervals.base import standard_error

NOISE_FACTOR, RANGE_FACTOR = 0.5, 2.0
"""The factors of the standard error and of the range in the half-width."""


class Choice(NamedTuple):
    """Hold the chosen columns [rows], policy by policy and estimator by estimator.

    Args:
        caps: [columns]. Without a limit, the largest weight seen. NaN without events, and for rankings without a limit.
        half_width: [columns]. Amount that an interval is widened by, 0 if all values are equal.
    """

    columns: NDArray[np.int64]
    caps: Array
    half_width: Array


def choose(reading: Reading, estimators: Sequence[Estimator], reward_width: float) -> Choice:
    """Choose a column for each policy and estimator.

    Args:
        reading: values of all columns
        estimators: estimators of the grid
        reward_width: largest possible reward less the smallest
    """
    caps_of = [list(estimator.alternatives) for estimator in estimators]
    count = sum(map(len, caps_of))
    caps = np.tile(np.concatenate(caps_of), len(reading.value) // count)
    largest = reading.importance_weight_max
    error = standard_error(
        reading, reading.spread["variance"], reading.spread["count"], np.zeros(len(caps), dtype=bool)
    )
    from_clicks = estimators[0].uses_clicks  # then weights are values of pages
    of_cap, of_weight = (reward_width, 1.0) if from_clicks else (1.0, reward_width)
    limits = np.repeat([estimator.choice == "cap" for estimator in estimators], list(map(len, caps_of)))
    heaviest = of_weight * np.minimum(np.where(np.resize(limits, len(caps)), of_cap * caps, math.inf), largest)
    half_width = NOISE_FACTOR * error + RANGE_FACTOR * ratio(heaviest, reading.count)
    values, half_widths = reading.value.reshape(-1, count), half_width.reshape(-1, count)
    chosen, first = [], 0
    for choices in caps_of:
        part = slice(first, first + len(choices))
        chosen.append(first + last_overlap(values[:, part], half_widths[:, part]))
        differs = (np.abs(values[:, part] - values[:, first, None]) > 0).any(axis=1)
        half_widths[~differs, part] = 0.0
        first = part.stop
    columns = np.stack(chosen, axis=1) + count * np.arange(len(values))[:, None]
    shown = np.where(np.isinf(caps) | np.isnan(largest), np.nan if from_clicks else largest, caps)
    return Choice(columns.ravel(), shown, half_widths.ravel())


def last_overlap(values: Array, half_widths: Array) -> NDArray[np.int64]:
    """Return the index of the last interval up to which all have a point in common. NaN overlaps with all.

    No interval counts as wider than the ones before it.

    Args:
        values: [..., intervals]. Centres.
        half_widths: [..., intervals]. Half-widths.

    >>> int(last_overlap(np.array([0.5, 0.4, 0.2, 0.0]), np.array([0.3, 0.1, 0.1, 0.1])))
    2
    """
    widths = np.fmin.accumulate(half_widths, axis=-1)
    lowest, highest = np.fmax.accumulate(values - widths, axis=-1), np.fmin.accumulate(values + widths, axis=-1)
    overlapping = np.logical_and.accumulate(~(lowest > highest), axis=-1)
    return np.asarray(np.count_nonzero(overlapping, axis=-1) - 1)
