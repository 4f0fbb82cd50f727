"""The lifts that promotion may decide by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streameval.common.arrays import State, per_block
from streameval.events import EventBatch
from streameval.ope.evaluator.grid import Folded, Grid
from streameval.ope.evaluator.plan import Pair, Plan
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.policies import LOGGING
from streameval.ope.promotion import LiftSeries, PromotionMonitor


@dataclass(frozen=True)
class PromotionLift:
    """The lifts that promotion may decide by, the preferred one first, and the monitor that follows them.

    A lift is that of an estimator that is not biased by design, on an average that mixes components. It is left out
    where a preferred estimator needs no more of the events, so that it never lacks evidence that this one has.

    For each candidate, promotion decides by the preferred lift among those that could use at least 90 % of the recent
    events (an average with a horizon of 10,000 events) that any of the lifts could use. It changes to another lift when
    this one could use less than half of them. All lifts are followed all the time. After a change a candidate must hold
    from zero.

    `pairs`: the estimator and the average of each lift, by their labels. `places`: where their grids are in `grids`.
    """

    monitor: PromotionMonitor
    grids: tuple[Grid, ...]
    pairs: tuple[Pair, ...]
    places: tuple[int, ...]

    @classmethod
    def of(cls, plan: Plan, grids: Sequence[Grid] | None = None) -> PromotionLift | None:
        """The lifts of a plan, whose grids are `grids`; None when there is nothing to decide."""
        if plan.promotion is None or len(plan.policies) < 2:
            return None
        grids = plan.grids() if grids is None else tuple(grids)
        possible = [
            (estimator.preference, place, (estimator.label, average.label))
            for place, grid in enumerate(grids)
            for average in grid.averages
            if average.mixes_components
            for estimator in grid.estimators
            if not estimator.is_biased_by_design
        ]
        pairs: list[Pair] = []
        places: list[int] = []
        for _, place, pair in sorted(possible, key=lambda lift: lift[0]):
            if not any(grids[better].needs <= grids[place].needs for better in places):
                pairs.append(pair)
                places.append(place)
        monitor = PromotionMonitor(
            plan.promotion,
            plan.policies,
            tuple(plan.candidate_order[name] for name in plan.policies[1:]),
            plan.policies[0] == LOGGING,
            plan.reward_range,
            plan.confidence,
            plan.block,
            tuple(f"{estimator} on {average}" for estimator, average in pairs),
        )
        return cls(monitor, tuple(grids), tuple(pairs), tuple(places))

    def fold(self, state: State, events: EventBatch, evidence: Evidence, folded: Sequence[Folded]) -> State:
        """The state of the monitor after whole blocks; `folded` [grids]: the grids after the same blocks."""
        lifts = [
            self._series(self.grids[place], folded[place], pair, evidence)
            for pair, place in zip(self.pairs, self.places, strict=True)
        ]
        return self.monitor.fold(state, evidence, lifts, events.timestamp, events.propensity)

    def _series(self, grid: Grid, folded: Folded, pair: Pair, evidence: Evidence) -> LiftSeries:
        """One lift after each of the blocks that its grid kept."""
        if not folded.kept.any():
            nothing = np.empty((0, len(grid.candidates) - 1))
            return LiftSeries(nothing, nothing, nothing, nothing, folded.kept)
        path = folded.lift_paths[pair[1]]
        labels = [estimator.label for estimator in grid.estimators]
        columns = slice(labels.index(pair[0]), None, len(labels))
        both = evidence.restricted_to(grid.needs).paired_with_production().sample_weight
        counts = np.count_nonzero(per_block(both, evidence.blocks), axis=-1).astype(float)
        return LiftSeries(
            path.value[:, columns],
            path.sampling_variance[:, columns],
            path.memory_spread[:, columns],
            counts[folded.kept],
            folded.kept,
        )
