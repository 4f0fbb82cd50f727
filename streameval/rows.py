"""Rows of the Report: what an average has read, as one estimate for each policy under each estimator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from streameval.arrays import Array
from streameval.averages import AnyAverage, Reading
from streameval.averages.moments import Row
from streameval.bounds import Bound, Claim
from streameval.estimators import Estimator
from streameval.report import Estimate
from streameval.slates import mean_ratios


@dataclass(frozen=True, slots=True)
class Rows:
    """What all rows share. Columns of a reading are the first policy under all estimators, then the second, ...

    `largest_weight` [policies]: the largest importance weight since the start. `supported` [policies]: whether every
    event told the whole logging distribution, so that the unsupported probability is known. `slot_ratios`: of policies
    seen slot by slot, sums of the importance ratios in each slot.
    """

    policies: Sequence[str]
    estimators: Sequence[Estimator]
    reward_range: tuple[float, float]
    confidence: float
    largest_weight: Array
    supported: Array
    slot_ratios: Array | None = None

    def of(self, average: AnyAverage, bound: Bound, reading: Reading) -> Iterator[Estimate]:
        """The estimates of one average, with intervals by `bound`; estimators vary fastest."""
        limit = bound.largest_weight(self.largest_weight)
        claim = Claim(
            confidence=self.confidence,
            term_range=np.stack(
                [each.term_range(self.reward_range, limit) for each in self.estimators], axis=1
            ).ravel(),
            ratio=np.tile([each.ratio for each in self.estimators], len(self.policies)),
        )
        value = reading.moments.value
        lower, upper = _clipped(*bound.ends(reading, claim), self.reward_range)
        numbers = list(zip(*map(_known, (value, lower, upper, *self._diagnostics(reading))), strict=True))
        details = {name: _known(column) for name, column in self._details(bound, reading).items()}
        places = [(estimator, policy) for policy in self.policies for estimator in self.estimators]
        for place, (estimator, policy) in enumerate(places):
            known = numbers[place]
            yield Estimate(
                policy,
                estimator.label,
                average.label,
                known[0],
                known[1],
                known[2],
                bound.kind,
                bound.anytime,
                "estimand" if estimator.covers_estimand else bound.covers,
                known[3],
                known[4],
                known[5],
                details={
                    **{name: column[place] for name, column in details.items()},
                    **bound.says(),
                    **self._by_slot(place // len(self.estimators)),
                },
            )

    def _by_slot(self, policy: int) -> dict[str, list[float | None]]:
        if self.slot_ratios is None:
            return {}
        return {"slot_ratio_means": _known(np.array(mean_ratios(self.slot_ratios[policy])))}

    def _diagnostics(self, reading: Reading) -> tuple[Array, Array, Array]:
        moments = reading.moments
        present = moments.count > 0
        largest = np.where(present, moments[Row.LARGEST_IMPORTANCE], np.nan)
        return moments.effective_sample_size, moments.importance_weight_mean, largest

    def _details(self, bound: Bound, reading: Reading) -> dict[str, Array]:
        unsupported = np.where(
            np.repeat(self.supported, len(self.estimators)), reading.moments.unsupported_probability, np.nan
        )
        return {
            **reading.details,
            **reading.parts,
            "bias_bound": reading.bias,
            "design_effect": reading.design_effect,
            "largest_term_share": reading.moments.largest_term_share,
            "unsupported_probability": unsupported,
        }


def _known(column: Array) -> list[float | None]:
    """Numbers that are known, None for the others."""
    return [number if known else None for number, known in zip(column.tolist(), np.isfinite(column), strict=True)]


def _clipped(lower: Array, upper: Array, reward_range: tuple[float, float]) -> tuple[Array, Array]:
    """The interval inside the reward range; where nothing would be left of it, as it is."""
    low, high = reward_range
    rounding = 1e-9 * (high - low)
    overlaps = (lower <= high + rounding) & (upper >= low - rounding)
    return np.where(overlaps, np.clip(lower, low, high), lower), np.where(overlaps, np.clip(upper, low, high), upper)
