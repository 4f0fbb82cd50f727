"""The state of an evaluator: everything that it remembers between two batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from streameval.common.arrays import Array, State, from_plain, take_columns, to_plain
from streameval.events import EventBatch
from streameval.ope.averages.variance import start_signs
from streameval.ope.evaluator.drift_detection import DriftWatch
from streameval.ope.evaluator.grid import Grid
from streameval.ope.evaluator.plan import Plan
from streameval.ope.evaluator.promotion_lift import PromotionLift
from streameval.ope.evidence.actions import Requirement
from streameval.ope.evidence.evidence import Evidence, start_recent
from streameval.ope.evidence.slate_weights import start_ratios
from streameval.ope.policies import LOGGING
from streameval.ope.promotion import Arrivals
from streameval.ope.reward_models import AnyRewardModel, online

COUNTS = ("present", "supported", "largest_weight", "largest_slate_weight")


@dataclass
class EvaluatorState:
    """The state of an evaluator.

    `rejected`: events by reason. `arrivals`: recent numbers of accepted and rejected events. `newest`: the newest
    timestamp. `pending`: events that are not folded yet. `failures`: by policy in code and reason, the number of
    events and an example. `counts` [policies] each: see `count`. `learned`: recent moments of the log and of slates,
    signs of units, and the reward model. `promotion`: of the `PromotionMonitor`. `grids`: one state for each grid of
    the plan.
    """

    accepted: int
    rejected: dict[str, int]
    arrivals: Arrivals
    newest: float | None
    pending: list[EventBatch]
    failures: dict[str, dict[str, tuple[int, str]]]
    counts: dict[str, Array]
    learned: State
    drift: DriftWatch | None
    promotion: State | None
    grids: list[State]

    @classmethod
    def start(cls, plan: Plan, grids: Sequence[Grid], lift: PromotionLift | None) -> EvaluatorState:
        """The state before the first event; `grids` and `lift` are those of the plan."""
        policies = len(plan.policies)
        return cls(
            accepted=0,
            rejected={},
            arrivals=Arrivals(),
            newest=None,
            pending=[],
            failures={},
            counts={name: np.zeros(policies) for name in COUNTS},
            learned=start_learning(plan),
            drift=None if plan.drift is None else DriftWatch(plan.drift, policies),
            promotion=None if lift is None else lift.monitor.start(),
            grids=[grid.start(plan.block) for grid in grids],
        )

    def select(self, before: Plan, after: Plan) -> EvaluatorState:
        """The state for some of the policies, estimators and averages of a plan, whose whole blocks are folded.

        `after` differs from `before` in nothing else, but for a reward model that no estimator uses.
        """
        index = [before.policies.index(name) for name in after.policies]
        grids, lift = after.grids(), PromotionLift.of(after)
        weights = {name: self.learned[name] for name in ("recent", "slates")}
        learned = {**self.learned, **take_columns(weights, len(before.policies), index)}
        unused = {
            "recent": not any(grid.mixes_components for grid in grids),
            "slates": not any(Requirement.SLOTS in grid.needs for grid in grids),
            "predictions": not any(Requirement.PREDICTION in grid.needs for grid in grids),
        }
        fresh = start_learning(after)
        named = [name for name in after.policies if name != LOGGING]
        return replace(
            self,
            pending=[batch.with_policies(named) for batch in self.pending],
            failures={name: failures for name, failures in self.failures.items() if name in named},
            counts={name: column[index] for name, column in self.counts.items()},
            learned={name: fresh[name] if unused.get(name) else kept for name, kept in learned.items()},
            drift=None if self.drift is None else self.drift.select_policies(index),
            promotion=self._selected_promotion(before, lift, index),
            grids=[self._selected_grid(before, grid, index) for grid in grids],
        )

    def _selected_promotion(self, before: Plan, lift: PromotionLift | None, index: Sequence[int]) -> State | None:
        earlier = PromotionLift.of(before)
        if lift is None or earlier is None or self.promotion is None:
            return None
        kept = earlier.monitor.select_candidates(self.promotion, [place - 1 for place in index[1:]])
        return lift.monitor.with_lifts(kept, earlier.monitor.lifts)

    def _selected_grid(self, before: Plan, part: Grid, index: Sequence[int]) -> State:
        """The state of a grid that lies in one of the grids of `before`."""
        return next(
            grid.select(state, part, index)
            for grid, state in zip(before.grids(), self.grids, strict=True)
            if set(part.estimators) <= set(grid.estimators) and set(part.averages) <= set(grid.averages)
        )

    def to_state(self, plan: Plan, grids: Sequence[Grid]) -> State:
        """The same as a plain value; `grids`: those of the plan."""
        return {
            "events": {
                "accepted": self.accepted,
                "rejected": dict(self.rejected),
                "newest": self.newest,
                "arrivals": list(self.arrivals),
            },
            "pending": EventBatch.concat(self.pending).to_state() if self.pending else None,
            "failures": {policy: dict(failures) for policy, failures in self.failures.items()},
            "counts": to_plain(self.counts),
            "recent": to_plain(self.learned["recent"]),
            "slates": to_plain(self.learned["slates"]),
            "units": dict(self.learned["units"]),
            "predictions": online.to_state(plan.reward_model, self.learned["predictions"]),
            "drift": None if self.drift is None else to_plain(self.drift.state()),
            "promotion": None if self.promotion is None else to_plain(self.promotion),
            "grids": [grid.to_state(state) for grid, state in zip(grids, self.grids, strict=True)],
        }

    @classmethod
    def from_state(
        cls,
        state: State,
        plan: Plan,
        grids: Sequence[Grid],
        lift: PromotionLift | None,
        trusted: AnyRewardModel | None,
    ) -> EvaluatorState:
        """The inverse of `to_state`; a reward model that is foreign code is loaded only if it is `trusted`."""
        start, events = cls.start(plan, grids, lift), state["events"]
        failures = state["failures"].items()
        return replace(
            start,
            accepted=events["accepted"],
            rejected=dict(events["rejected"]),
            arrivals=Arrivals(*events["arrivals"]),
            newest=events["newest"],
            pending=[] if state["pending"] is None else [EventBatch.from_state(state["pending"])],
            failures={name: {why: (n, text) for why, (n, text) in by_reason.items()} for name, by_reason in failures},
            counts=from_plain(state["counts"]),
            learned={
                "recent": from_plain(state["recent"]),
                "slates": from_plain(state["slates"]),
                "units": dict(state["units"]),
                "predictions": online.from_state(plan.reward_model, state["predictions"], trusted),
            },
            drift=None if start.drift is None else start.drift.resumed(from_plain(state["drift"])),
            promotion=start.promotion
            if lift is None or state["promotion"] is None
            else lift.monitor.resume(from_plain(state["promotion"])),
            grids=[grid.from_state(saved, plan.block) for grid, saved in zip(grids, state["grids"], strict=True)],
        )


def start_learning(plan: Plan) -> State:
    """The parts that learn from the log, before the first event."""
    policies = len(plan.policies)
    return {
        "recent": start_recent(policies),
        "predictions": online.start(plan.reward_model),
        "slates": {"recent": start_recent(policies), "ratios": start_ratios(policies)},
        "units": start_signs(),
    }


def count(counts: dict[str, Array], evidence: Evidence, supported: Array) -> dict[str, Array]:
    """The counts after some events, [policies] each.

    Args:
        counts: `present`, events with a usable probability; `supported`, those among them with the whole logging
            distribution; `largest_weight` and `largest_slate_weight`, the largest importance weights
        supported: [n] 1 for events with the whole logging distribution, else 0
    """
    present = evidence.sample_weight > 0
    largest: Array | float = 0.0
    if evidence.slates is not None:
        largest = np.abs(evidence.slates.importance_weight).max(axis=0, initial=0.0)
    return {
        "present": counts["present"] + np.count_nonzero(present, axis=0),
        "supported": counts["supported"] + np.count_nonzero(present & (supported[:, None] > 0), axis=0),
        "largest_weight": np.maximum(counts["largest_weight"], evidence.importance_weight.max(axis=0, initial=0.0)),
        "largest_slate_weight": np.maximum(counts["largest_slate_weight"], largest),
    }


def newest(before: float | None, timestamps: Array) -> float | None:
    """The newest known timestamp."""
    known = timestamps[~np.isnan(timestamps)].tolist()
    return max([*known, *([] if before is None else [before])], default=None)
