"""Deciding: which lift the rules of promotion look at, and how an evaluator hands it to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streameval.common.arrays import Array, State, per_block
from streameval.events import EventBatch
from streameval.ope.evaluator.grid import Folded, Grid
from streameval.ope.evaluator.plan import Plan
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.evidence.requirements import Requirements
from streameval.ope.policies import LOGGING
from streameval.ope.promotion import LiftSeries, PromotionMonitor


@dataclass(frozen=True)
class ChosenLift:
    """A lift that may be decided by: that of one estimator on one mixture, in one of the grids.

    `pair`: their labels. `estimator`: its place among the `estimators` of the grid.
    """

    grid: int
    pair: tuple[str, str]
    estimator: int
    estimators: int
    needs: Requirements

    @classmethod
    def of(cls, grids: Sequence[Grid]) -> tuple[ChosenLift, ...]:
        """The lifts that may be decided by, the preferred one first, each with needs of its own.

        Of the estimators on a mixture that are not biased by intent, the preferred one decides among those that have
        the evidence. One whose needs include those of a preferred one is left out: it never has evidence that the other
        has not.
        """
        every = [
            (
                estimator.preference,
                cls(place, (estimator.label, average.label), column, len(grid.estimators), grid.needs),
            )
            for place, grid in enumerate(grids)
            for average in grid.averages
            if average.mixes_components
            for column, estimator in enumerate(grid.estimators)
            if not estimator.is_biased_by_design
        ]
        chosen: list[ChosenLift] = []
        for _, lift in sorted(every, key=lambda each: each[0]):
            if not any(better.needs <= lift.needs for better in chosen):
                chosen.append(lift)
        return tuple(chosen)

    @property
    def name(self) -> str:
        """The name of the lift: the estimator and the average."""
        return f"{self.pair[0]} on {self.pair[1]}"

    def path(self, evidence: Evidence, folded: Sequence[Folded]) -> LiftSeries:
        """The lift after each of some blocks, from how all mixtures fared."""
        _, lift_paths, kept = folded[self.grid]
        if not kept.any():
            nothing = np.empty((0, evidence.importance_weight.shape[1] - 1))
            return LiftSeries(nothing, nothing, nothing, nothing, kept)
        path = lift_paths[self.pair[1]]
        value, se2, spread2 = map(self._column, (path.value, path.sampling_variance, path.memory_spread))
        both = evidence.restricted_to(self.needs).paired_with_production().sample_weight
        counts = np.count_nonzero(per_block(both, evidence.blocks), axis=-1).astype(float)
        return LiftSeries(value, se2, spread2, counts[kept], kept)

    def _column(self, values: Array) -> Array:
        return values[:, self.estimator :: self.estimators]


@dataclass(frozen=True)
class PromotionLift:
    """A promotion monitor, and the lifts that it follows: see `ChosenLift.of`.

    For each candidate the preferred lift decides that could use at least 90 % of the latest events that any of the
    lifts could use (an average with a horizon of 10,000 events); it yields when it could use less than half of them.
    All lifts are followed all along. A candidate must hold from zero again when another lift takes over.
    """

    monitor: PromotionMonitor
    chosen: tuple[ChosenLift, ...]

    @classmethod
    def of(cls, plan: Plan, grids: Sequence[Grid] | None = None) -> PromotionLift | None:
        """What decides for a plan; None when nothing is to be decided. `grids`: those of the plan, if known."""
        if plan.promotion is None or len(plan.policies) < 2:
            return None
        chosen = ChosenLift.of(plan.grids() if grids is None else grids)
        monitor = PromotionMonitor(
            plan.promotion,
            plan.policies,
            tuple(plan.candidate_order[name] for name in plan.policies[1:]),
            plan.policies[0] == LOGGING,
            plan.reward_range,
            plan.confidence,
            plan.block,
            tuple(lift.name for lift in chosen),
        )
        return cls(monitor, chosen)

    def fold(self, state: State, events: EventBatch, evidence: Evidence, folded: Sequence[Folded]) -> State:
        """The state of the monitor after these whole blocks."""
        paths = [lift.path(evidence, folded) for lift in self.chosen]
        return self.monitor.fold(state, evidence, paths, events.timestamp, events.propensity)
