"""Rows of the Report: what an average has read, as one estimate for each policy under each estimator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from streameval.common.arrays import Array, Mask, ratio
from streameval.ope.averages import Reading
from streameval.ope.averages.moments import MomentRow
from streameval.ope.averages.variance import VarianceRow
from streameval.ope.estimators import Estimator
from streameval.ope.estimators.term_range import TermRange
from streameval.ope.evaluator.grid import GridReading
from streameval.ope.evidence.slate_weights import mean_ratios
from streameval.ope.intervals import Bounds, IntervalMethod, IntervalRequest
from streameval.ope.intervals.sequences import TrackedBounds
from streameval.ope.intervals.sequences.observations import LIFT_LOWER, VALUE_LOWER
from streameval.ope.report import Estimate


@dataclass(frozen=True, slots=True)
class ReportRows:
    """What all rows share. Columns of a reading are the first policy under all estimators, then the second, ...

    `largest_weight` [policies]: the largest importance weight since the start. `supported` [policies]: whether every
    event told the whole logging distribution, so that the unsupported probability is known. `seen` [policies]: which
    have rows. `slot_ratios`: of policies seen slot by slot, sums of the importance ratios in each slot.
    """

    policies: Sequence[str]
    estimators: Sequence[Estimator]
    reward_range: tuple[float, float]
    confidence: float
    largest_weight: Array
    supported: Array
    seen: Mask
    slot_ratios: Array | None = None

    def of(self, read: GridReading) -> Iterator[Estimate]:
        """The estimates of one average, with intervals by its bound; estimators vary fastest."""
        average, bound, reading = read.average, read.bound, read.reading
        request = self._request(bound, read.watched)._replace(rewarded=reading.spread[VarianceRow.NONZERO] > 0)
        ends = _clipped(*bound.bounds(reading, request), self.reward_range)
        numbers = list(zip(*map(_known, (reading.moments.value, *ends, *self._diagnostics(reading))), strict=True))
        lifts = [(None, None, None)] * len(self.estimators) + self._lifts(read, request)
        details = {name: _known(column) for name, column in self._details(read).items()}
        places = [(estimator, policy) for policy in self.policies for estimator in self.estimators]
        for place, (estimator, policy) in enumerate(places):
            if not self.seen[place // len(self.estimators)]:
                continue
            value, lower, upper, effective_sample_size, weight_mean, weight_max = numbers[place]
            gain, gain_lower, gain_upper = lifts[place]
            yield Estimate(
                policy,
                estimator.label,
                average.label,
                value,
                lower,
                upper,
                bound.kind,
                bound.anytime,
                "estimand" if estimator.is_biased_by_design else bound.covers,
                effective_sample_size,
                weight_mean,
                weight_max,
                gain,
                gain_lower,
                gain_upper,
                details={
                    **{name: column[place] for name, column in details.items()},
                    **bound.details(),
                    **({"design_effect_of": "units"} if reading.knows_units else {}),
                    **self._by_slot(place // len(self.estimators)),
                },
            )

    def _request(self, bound: IntervalMethod, watched: TrackedBounds | None) -> IntervalRequest:
        limit = bound.largest_weight(self.largest_weight)
        known = np.repeat(limit > 0, len(self.estimators))  # of a policy that was never logged it is not
        limits = TermRange.by_column([each.term_range(self.reward_range, limit) for each in self.estimators])
        return IntervalRequest(
            confidence=self.confidence,
            term_range=limits._replace(width=np.where(known, limits.width, np.nan)),
            ratio=np.tile([each.ratio for each in self.estimators], len(self.policies)),
            tracked=watched and Bounds(watched.lower, watched.upper),
            estimates=_estimates(watched, VALUE_LOWER),
        )

    def _lifts(
        self, read: GridReading, request: IntervalRequest
    ) -> list[tuple[float | None, float | None, float | None]]:
        """Value and interval of each lift, inside plus and minus the width of the reward range."""
        first, others = slice(None, len(self.estimators)), slice(len(self.estimators), None)
        scaled, rewarded = ratio(request.term_range.width, read.reading.moments.mean_denominator), request.rewarded
        scaled = np.where(scaled < 0, np.nan, scaled)  # a mean weight below 0 limits no term
        difference = request._replace(
            term_range=request.term_range.over_production(len(self.estimators), self.largest_weight[0], scaled),
            ratio=request.ratio[others],
            tracked=read.watched and Bounds(read.watched.lift_lower[others], read.watched.lift_upper[others]),
            estimates=_estimates(read.watched, LIFT_LOWER, others),
            rewarded=None
            if rewarded is None
            else rewarded[others] | np.resize(rewarded[first], rewarded[others].shape),
        )
        width = self.reward_range[1] - self.reward_range[0]
        lower, upper = _clipped(*read.bound.bounds(read.lift, difference), (-width, width))
        return list(zip(*map(_known, (read.lift.moments.value, lower, upper)), strict=True))

    def _by_slot(self, policy: int) -> dict[str, list[float | None]]:
        if self.slot_ratios is None:
            return {}
        return {"slot_ratio_means": _known(np.array(mean_ratios(self.slot_ratios[policy])))}

    def _diagnostics(self, reading: Reading) -> tuple[Array, Array, Array]:
        moments = reading.moments
        present = moments.count > 0
        largest = np.where(present, moments[MomentRow.LARGEST_IMPORTANCE], np.nan)
        return moments.effective_sample_size, moments.importance_weight_mean, largest

    def _details(self, read: GridReading) -> dict[str, Array]:
        reading, lift = read.reading, read.lift
        unsupported = np.where(
            np.repeat(self.supported, len(self.estimators)), reading.moments.unsupported_probability, np.nan
        )
        production = np.full(len(self.estimators), np.nan)
        deviation = np.sqrt(lift.spread.variance)
        return {
            **reading.details,
            **reading.parts,
            **(read.watched.details if read.watched else {}),
            **{f"lift_{name}": np.concatenate([production, part]) for name, part in lift.parts.items()},
            "bias_bound": reading.bias,
            "design_effect": reading.design_effect,
            "largest_term_share": reading.moments.largest_term_share,
            "lift_deviation": np.concatenate([production, deviation]),
            "lift_design_effect": np.concatenate([production, lift.design_effect]),
            "unsupported_probability": unsupported,
        }


def _estimates(watched: TrackedBounds | None, side: int, columns: slice = slice(None)) -> Bounds | None:
    """What the lower bounds of a confidence sequence lie below, and the upper ones above."""
    if watched is None or watched.estimates is None:
        return None
    return Bounds(*watched.estimates[side : side + 2, columns])


def _known(column: Array) -> list[float | None]:
    """Numbers that are known, None for the others."""
    return [number if known else None for number, known in zip(column.tolist(), np.isfinite(column), strict=True)]


def _clipped(lower: Array, upper: Array, reward_range: tuple[float, float]) -> tuple[Array, Array]:
    """The interval inside the reward range; where nothing would be left of it, as it is."""
    low, high = reward_range
    rounding = 1e-9 * (high - low)
    overlaps = (lower <= high + rounding) & (upper >= low - rounding)
    return np.where(overlaps, np.clip(lower, low, high), lower), np.where(overlaps, np.clip(upper, low, high), upper)
