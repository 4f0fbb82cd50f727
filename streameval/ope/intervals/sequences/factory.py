"""Which confidence sequences a grid of estimators needs, from what is configured and what is known of their terms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streameval.ope.averages import AdaptiveWindow, AnyAverage, Cumulative, Window
from streameval.ope.estimators import Estimator
from streameval.ope.evidence.requirements import Requirement
from streameval.ope.intervals.confidence_sequence import ConfidenceSequence
from streameval.ope.intervals.sequences.bounded import BernsteinWealth
from streameval.ope.intervals.sequences.heavy_tailed import HeavyTailed
from streameval.ope.intervals.sequences.observations import ObservationScale
from streameval.ope.intervals.sequences.restarts import Restarted, RestartSchedule, SinceStart
from streameval.ope.intervals.sequences.tracker import BlockSequenceTracker, TrackedGroup
from streameval.ope.intervals.sequences.wealth import WealthProcess


def watch(
    bound: ConfidenceSequence,
    average: AnyAverage,
    estimators: Sequence[Estimator],
    reward_range: tuple[float, float],
    block: int,
    logging: bool,
) -> BlockSequenceTracker:
    """The watch of these estimators on `cumulative` or a `window`; `logging`: production took the logged actions.

    >>> from streameval.ope.estimators import IPS, SNIPS, ClippedIPS
    >>> some = watch(ConfidenceSequence(), Cumulative(), [IPS(), SNIPS(), ClippedIPS(cap=10)], (0.0, 1.0), 100, True)
    >>> [(type(group.engine).__name__, group.estimators) for group in some.groups]
    [('HeavyTailed', (0, 1)), ('BernsteinWealth', (2,))]
    """
    groups = []
    places = range(len(estimators))
    unbiased = tuple(place for place in places if _estimates_the_value(estimators[place]))
    if unbiased:
        groups.append(TrackedGroup(*_of_the_value(bound, reward_range, logging), unbiased))
    for place in places:
        limits = _limits(estimators[place], reward_range, bound.max_weight)
        if place not in unbiased and limits is not None:
            groups.append(TrackedGroup(BernsteinWealth(), ObservationScale(*limits, lift=2.0), (place,), of=place))
    return BlockSequenceTracker(tuple(groups), span(average, block), len(estimators))


def span(average: AnyAverage, block: int) -> RestartSchedule:
    """The stretch of the stream that a sequence on this average is about; ValueError where there is none."""
    if isinstance(average, Window) and average.timed is not None:
        raise ValueError(f"{average.label!r} is measured by the clock: confidence_sequence takes a window in events")
    if isinstance(average, Window):
        return Restarted(average.tau, block)
    if isinstance(average, Cumulative):
        return SinceStart()
    how = "chooses its length by the data" if isinstance(average, AdaptiveWindow) else "forgets gradually"
    raise ValueError(f"{average.label!r} {how}: confidence_sequence fits cumulative and window only")


def _estimates_the_value(estimator: Estimator) -> bool:
    """Whether it is about the value of the policy, and importance weights are never negative."""
    return not estimator.covers_estimand and Requirement.SLOTS not in estimator.needs


def _of_the_value(
    bound: ConfidenceSequence, reward_range: tuple[float, float], logging: bool
) -> tuple[WealthProcess, ObservationScale]:
    if bound.method == "robust" or bound.max_weight is None:
        return HeavyTailed(), ObservationScale(*reward_range)
    heaviest = max(bound.max_weight, 1.0) if logging else bound.max_weight  # a lift lies between both its weights
    return BernsteinWealth(), ObservationScale(*reward_range, value=bound.max_weight, lift=heaviest)


def _limits(
    estimator: Estimator, reward_range: tuple[float, float], max_weight: float | None
) -> tuple[float, float] | None:
    """The lowest and the highest possible term of a biased estimator; None where it has none, or is a ratio."""
    if estimator.ratio or not estimator.covers_estimand or Requirement.SLOTS in estimator.needs:
        return None
    heaviest = np.array([np.inf if max_weight is None else max_weight])
    extremes = estimator.extremes(reward_range, heaviest)
    heaviest = np.minimum(extremes.heaviest, heaviest)
    with np.errstate(invalid="ignore"):  # 0 times infinity: a limit that does not depend on the weight
        low = np.fmin(extremes.low.offset, extremes.low.offset + extremes.low.slope * heaviest)
        high = np.fmax(extremes.high.offset, extremes.high.offset + extremes.high.slope * heaviest)
    return (float(low[0]), float(high[0])) if np.isfinite(low[0]) and np.isfinite(high[0]) else None
