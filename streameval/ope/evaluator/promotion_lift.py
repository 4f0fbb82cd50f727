"""Deciding: which lift the rules of promotion look at, and how an evaluator hands it to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from streameval.common.arrays import Array, State, per_block
from streameval.events import EventBatch
from streameval.ope.averages import Mixture
from streameval.ope.averages.mixture import MixturePath
from streameval.ope.estimators import AnyEstimator
from streameval.ope.evaluator.grid import Grid
from streameval.ope.evaluator.plan import Plan
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.evidence.requirements import Requirements
from streameval.ope.policies import LOGGING
from streameval.ope.promotion import LiftSeries, PromotionMonitor

PREFERRED = ("stratified_dr", "stratified_ips", "dr", "control_variate", "weighted_pseudo_inverse", "snips")
"""Kinds of estimators whose lift is best to decide by; then any other that is not biased by intent."""


@dataclass(frozen=True)
class ChosenLift:
    """The lift to decide by: that of one estimator on one mixture, in one of the grids.

    `cell`: both by their labels. `estimator`: its place among the `estimators` of the grid.
    """

    grid: int
    cell: tuple[str, str]
    estimator: int
    estimators: int
    needs: Requirements

    @classmethod
    def of(cls, grids: Sequence[Grid]) -> ChosenLift | None:
        """The best one that there is; None without a mixture, or when all estimators are biased by intent."""
        known = [
            (_rank(estimator), cls(place, (estimator.label, average.label), column, len(grid.estimators), grid.needs))
            for place, grid in enumerate(grids)
            for average in grid.averages
            if isinstance(average, Mixture)
            for column, estimator in enumerate(grid.estimators)
            if not estimator.covers_estimand
        ]
        return min(known, key=lambda each: each[0])[1] if known else None

    def path(self, evidence: Evidence, courses: Sequence[Mapping[str, MixturePath]]) -> LiftSeries:
        """The lift after each of some blocks, from how all mixtures fared."""
        course = courses[self.grid][self.cell[1]]
        value, se2, spread2 = map(self._column, (course.value, course.sampling, course.apart))
        both = evidence.of_events_with(self.needs).beside_production().averaging_weight
        counts = np.count_nonzero(per_block(both, evidence.blocks), axis=-1).astype(float)
        return LiftSeries(value, se2, spread2, counts)

    def _column(self, values: Array) -> Array:
        return values[:, self.estimator :: self.estimators]


def _rank(estimator: AnyEstimator) -> int:
    return PREFERRED.index(estimator.kind) if estimator.kind in PREFERRED else len(PREFERRED)


@dataclass(frozen=True)
class PromotionLift:
    """A contest, and the lift that it looks at, which is known with the first event."""

    contest: PromotionMonitor
    chosen: ChosenLift | None = None

    @classmethod
    def of(cls, plan: Plan, grids: Sequence[Grid] = ()) -> PromotionLift | None:
        """What decides for a plan; None when nothing is to be decided."""
        if plan.promotion is None or len(plan.policies) < 2:
            return None
        contest = PromotionMonitor(
            plan.promotion,
            plan.policies,
            tuple(plan.ranks[name] for name in plan.policies[1:]),
            plan.policies[0] == LOGGING,
            plan.reward_range,
            plan.confidence,
            plan.block,
        )
        return cls(contest, ChosenLift.of(grids))

    def fold(
        self, state: State, events: EventBatch, evidence: Evidence, courses: Sequence[Mapping[str, MixturePath]]
    ) -> State:
        """The state of the contest after these whole blocks."""
        path = None if self.chosen is None else self.chosen.path(evidence, courses)
        return self.contest.fold(state, evidence, path, events.timestamp, events.propensity)
