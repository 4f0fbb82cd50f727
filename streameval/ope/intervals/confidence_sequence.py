"""Provide the confidence sequence, an interval that is valid under continuous monitoring."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array
from streameval.common.component import strict
from streameval.ope.core import AnyAverage, Reading
from streameval.ope.estimators import Estimator, TermRange
from streameval.ope.estimators.base import Range
from streameval.ope.evidence.actions import FORMS
from streameval.ope.intervals.base import IntervalMethod
from streameval.ope.intervals.sequences.observations import ObservationScale
from streameval.ope.intervals.sequences.tracker import (
    Restarted,
    RestartSchedule,
    SequenceTracker,
    SinceStart,
    TrackedGroup,
)
from streameval.ope.intervals.sequences.wealth import BernsteinWealth, HeavyTailed, WealthProcess


@dataclass(frozen=True, config=strict)
class ConfidenceSequence(IntervalMethod):
    """Hold at every time at once: the probability that the interval ever misses is at most 1 - confidence.

    Anyone may look at it after every event and act on it. On `cumulative` it is about the mean of the value since the
    start. On `window` it is about the mean over at most the last `2 tau` events (the detail `interval_events` gives
    their number). Values, rewards and logging policies may change, but the propensities must be correct. It is about
    twice as wide as `normal` at a moment chosen beforehand, and wider on windows.

    The terms of an estimator that is biased by design are bounded, and `empirical_bernstein` bounds their expectation.
    The interval is withheld in these cases: terms have no bound (`static_blend` or `click_ips` without `max_weight`),
    slates have weights that may be negative, or events were sampled with different probabilities (detail
    `uneven_sampling`).

    The lower bound is about weighted rewards, and the upper one about weighted losses. If the mean weight is far from
    1, both may be right and the value outside. A Report then extends the interval to the value. A lower bound above the
    upper one means that the log contradicts its propensities. The Report shows both as they are.

    Events are assumed to be independent of one another given the past. If clusters show a design effect above 1, each
    bound moves away from its estimate by the square root of that effect. This helps, but proves nothing.

    Args:
        method: for estimators of the value itself. `robust` needs no limit to the importance weights, and gives all of
            these estimators one interval about the value. `empirical_bernstein` is for weights that never exceed
            `max_weight`, and is withheld once one does. It is somewhat narrower with small weights and many events, and
            far wider while events are few for the weights.
        max_weight: the largest possible importance weight, or weight of a click

    Source: see `streameval.ope.intervals.sequences`.
    """

    method: Literal["robust", "empirical_bernstein"] = Field(
        default="robust", description="empirical_bernstein is for small weights, and needs max_weight"
    )
    max_weight: PositiveFloat | None = Field(
        default=None, description="the upper limit of the importance weights; null: the largest seen"
    )
    anytime: ClassVar[bool] = True
    description: ClassVar[str] = "They hold at all times at once."
    kind: Literal["confidence_sequence"] = field(default="confidence_sequence", kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if self.drift == "include":
            raise ValueError("a confidence sequence covers the mean over its events: drift cannot be included")
        if self.method == "empirical_bernstein" and self.max_weight is None:
            raise ValueError("the method empirical_bernstein needs a max_weight that no importance weight exceeds")

    def check(self, average: AnyAverage, block: int) -> None:
        _span(average, block)

    def tracker(
        self,
        average: AnyAverage,
        estimators: Sequence[Estimator | None],
        reward_range: Range,
        block: int,
        logging: bool,
    ) -> SequenceTracker:
        """Track one sequence for all estimators of the value, and one for each biased estimator with bounded terms."""
        followed = [(index, estimator) for index, estimator in enumerate(estimators) if estimator is not None]
        unbiased = tuple(  # the weights of slates may be negative
            index
            for index, estimator in followed
            if not (estimator.is_biased_by_design or estimator.uses_clicks) and estimator.needs.isdisjoint(FORMS)
        )
        process: WealthProcess = HeavyTailed()
        scale = ObservationScale(*reward_range)
        if self.method == "empirical_bernstein" and self.max_weight is not None:
            heaviest = max(self.max_weight, 1.0) if logging else self.max_weight  # a lift lies between both its weights
            process, scale = BernsteinWealth(), scale._replace(value=self.max_weight, lift=heaviest)
        groups = [TrackedGroup("value", process, scale, unbiased)] if unbiased else []
        for index, estimator in followed:
            limits = self._limits(estimator, reward_range)
            if limits is not None:
                scale = ObservationScale(*limits, lift=2.0)
                label = f"term of {estimator.label}"
                groups.append(TrackedGroup(label, BernsteinWealth(), scale, (index,), term=index))
        return SequenceTracker(tuple(groups), _span(average, block), len(estimators))

    def _limits(self, estimator: Estimator, reward_range: Range) -> Range | None:
        """Return the limits of the terms of a biased or click estimator, or None for a ratio or unbounded terms."""
        bounded = estimator.is_biased_by_design or estimator.uses_clicks
        if estimator.ratio or not bounded or not estimator.needs.isdisjoint(FORMS):
            return None
        heaviest = np.array([np.inf if self.max_weight is None else self.max_weight])
        with np.errstate(invalid="ignore"):  # 0 times infinity: a limit that does not depend on the weight
            limits = estimator.term_range(reward_range, heaviest)
            heaviest = np.minimum(limits.heaviest, heaviest)
            low = np.fmin(limits.low_offset, limits.low_offset + limits.low_slope * heaviest)
            high = np.fmax(limits.high_offset, limits.high_offset + limits.high_slope * heaviest)
        return (float(low[0]), float(high[0])) if np.isfinite(low[0]) and np.isfinite(high[0]) else None

    def bounds(
        self, reading: Reading, terms: TermRange, confidence: float, tracked: Array | None = None
    ) -> tuple[Array, Array]:
        if tracked is None:
            nothing = np.full_like(terms.width, np.nan)
            return nothing, nothing
        lower, upper, lower_estimate, upper_estimate = tracked
        farther = np.sqrt(np.fmax(1.0, reading.design_effect)) - 1.0
        return lower - farther * (lower_estimate - lower), upper + farther * (upper - upper_estimate)


def _span(average: AnyAverage, block: int) -> RestartSchedule:
    events = average.last_events
    if events is None:
        raise ValueError(f"{average.label!r} {average.weighting}: confidence_sequence fits cumulative and window only")
    return SinceStart() if math.isinf(events) else Restarted(int(events), block)
