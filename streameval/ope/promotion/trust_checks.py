"""Trust: what recent importance weights say about whether a policy's numbers can be believed at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from streameval.common.arrays import Array, Mask, State
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.promotion import cluster_weights, mean_weight_test
from streameval.ope.promotion.block_sums import BlockSums, running_max, running_sum
from streameval.ope.promotion.settings import Trust

SPAN = 200_000
"""Events after which a new run begins. What is said is about the run before it: about the last 200,000 to 400,000."""


class Total(IntEnum):
    """Places among the sums of a run."""

    PRESENT = 0
    Q = 1
    WEIGHT = 2  # sum q w
    WEIGHT_SQUARE = 3  # sum (q w)^2
    TERM_SIZE = 4  # sum q |w r|
    GAIN = 5  # logarithm of the wealth of bets against a mean weight of 1


class Peak(IntEnum):
    """Places among the maxima of a run."""

    WEIGHT = 0  # max q w
    TERM = 1  # max q |w r|


@dataclass(frozen=True)
class RecentTotals:
    """What the longer run holds at some moments, [..., policies].

    `wealth` is the logarithm of both runs' together; `alike`: the design effect of the weights.
    """

    totals: Array
    peaks: Array
    wealth: Array
    alike: Array

    @property
    def events(self) -> Array:
        """Events of the run that the policy has."""
        return np.asarray(self.totals[..., Total.PRESENT, :])

    @property
    def mean_weight(self) -> Array:
        """Mean importance weight; NaN without events."""
        return _ratio(self.totals[..., Total.WEIGHT, :], self.totals[..., Total.Q, :])

    @property
    def effective_sample_size(self) -> Array:
        """`(sum q w)^2 / sum (q w)^2` (Kish)."""
        return np.nan_to_num(_ratio(self.totals[..., Total.WEIGHT, :] ** 2, self.totals[..., Total.WEIGHT_SQUARE, :]))

    @property
    def weight_share(self) -> Array:
        """The share of all weights that one event carries; NaN without any."""
        return _ratio(self.peaks[..., Peak.WEIGHT, :], self.totals[..., Total.WEIGHT, :])

    @property
    def term_share(self) -> Array:
        """The share of the value (of all `|w r|`) that one event carries; NaN while there is none."""
        return _ratio(self.peaks[..., Peak.TERM, :], self.totals[..., Total.TERM_SIZE, :])

    def sound(self, limits: Trust) -> Mask:
        """Whether the numbers of each policy can be believed, [..., policies]."""
        return np.asarray(self.mean_sound(limits) & self.size_sound(limits) & self.shares_sound(limits))

    def mean_sound(self, limits: Trust) -> Mask:
        """Whether the mean weight may be 1."""
        return np.asarray(self.wealth / self.alike < math.log(1.0 / limits.error))

    def size_sound(self, limits: Trust) -> Mask:
        """Whether there are enough effective events."""
        return np.asarray(self.effective_sample_size >= limits.effective_sample_size)

    def shares_sound(self, limits: Trust) -> Mask:
        """Whether no single event carries too much."""
        return np.fmax(self.weight_share, self.term_share) <= limits.largest_share


def start(policies: int) -> State:
    """The memory of no events. Two runs are kept, the second of which will take the place of the first."""
    return {
        "blocks": 0,
        "weights": mean_weight_test.start(policies),
        "totals": np.zeros((2, len(Total), policies)),
        "peaks": np.zeros((2, len(Peak), policies)),
    }


def fold(state: State, evidence: Evidence, sums: BlockSums, propensity: Array, limits: Trust) -> tuple[Mask, State]:
    """Whether the numbers of each policy can be believed after each of these blocks, [blocks, policies]."""
    gain, effects, memory = mean_weight_test.fold(state["weights"], evidence, sums, propensity)
    present, q, weight, square, size = sums.present, sums.q, sums.weight, sums.weight_square, sums.term_size
    steps = np.stack([present, q, weight, square, size, gain], axis=1)
    tops = np.stack([sums.weight_largest, sums.term_largest], axis=1)
    blocks, totals, peaks = state["blocks"], state["totals"], state["peaks"]
    span, sound, first = max(1, SPAN // evidence.block), [], 0
    while first < len(steps):
        part = slice(first, first + span - blocks % span)
        total_path = running_sum(totals, np.repeat(steps[part, None], 2, axis=1))
        peak_path = running_max(peaks, np.repeat(tops[part, None], 2, axis=1))
        sound.append(_recent(total_path, peak_path, effects[part], blocks // span).sound(limits))
        blocks += len(total_path)
        first += len(total_path)
        totals, peaks = _turned(total_path[-1], peak_path[-1], blocks, span)
    return np.concatenate(sound), {"blocks": blocks, "weights": memory, "totals": totals, "peaks": peaks}


def _turned(totals: Array, peaks: Array, blocks: int, span: int) -> tuple[Array, Array]:
    """The runs after these blocks: where a span is full, the second takes the place of the first and begins anew."""
    if blocks % span:
        return totals, peaks
    kept = 0 if blocks == span else 1
    return (
        np.stack([totals[kept], np.zeros_like(totals[kept])]),
        np.stack([peaks[kept], np.zeros_like(peaks[kept])]),
    )


def recent(state: State, block: int) -> RecentTotals:
    """What is known after the last block."""
    effects = cluster_weights.effect(state["weights"]["alike"])
    return _recent(state["totals"], state["peaks"], effects, state["blocks"] // max(1, SPAN // block))


def _recent(totals: Array, peaks: Array, effects: Array, begun: int) -> RecentTotals:
    """The j-th run counts `1/(j (j + 1))` of the wealth, so that all runs that will ever be are one bet."""
    older, newer = totals[..., 0, Total.GAIN, :], totals[..., 1, Total.GAIN, :]
    wealth = older + _share_of_run(max(1, begun))
    if begun:
        wealth = np.logaddexp(wealth, newer + _share_of_run(begun + 1))
    return RecentTotals(totals[..., 0, :, :], peaks[..., 0, :, :], wealth, effects)


def _share_of_run(number: int) -> float:
    return -math.log(number * (number + 1))


def _ratio(numerator: Array, denominator: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(denominator > 0, numerator / denominator, np.nan))
