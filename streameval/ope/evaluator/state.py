"""How far an evaluator has come: all that it remembers, as one value that another evaluator can go on from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streameval.common.arrays import State, from_plain, to_plain
from streameval.events import EventBatch
from streameval.ope.averages.cluster_variance import start_signs
from streameval.ope.evaluator.drift_detection import DriftWatch
from streameval.ope.evaluator.grid import Grid
from streameval.ope.evaluator.plan import Plan
from streameval.ope.evaluator.promotion_lift import PromotionLift
from streameval.ope.promotion import Arrivals
from streameval.ope.reward_models import AnyRewardModel, online


@dataclass(frozen=True)
class EvaluatorState:
    """What an evaluator remembers, as it lies in memory: whose evaluator folds more events into it owns the arrays.

    `arrivals`: what came lately, and what was rejected of it. `pending`: events that do not fill a block. `failures`:
    by policy and reason, how often its code failed, with an example. `counts`: of each policy. `learned`: of the log,
    of slates and of units, and the reward model. `decided`: the state of the contest. `grids`: the state of each grid
    of the plan.
    """

    accepted: int
    rejected: Mapping[str, int]
    arrivals: Arrivals
    newest: float | None
    pending: Sequence[EventBatch]
    failures: Mapping[str, Mapping[str, tuple[int, str]]]
    counts: State
    learned: State
    watch: DriftWatch | None
    decided: State | None
    grids: Sequence[State]

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
            "failures": {policy: dict(told) for policy, told in self.failures.items()},
            "counts": to_plain(self.counts),
            "recent": to_plain(self.learned["recent"]),
            "slates": to_plain(self.learned["slates"]),
            "units": dict(self.learned["units"]),
            "predictions": online.to_state(plan.reward_model, self.learned["predictions"]),
            "drift": None if self.watch is None else to_plain(self.watch.state()),
            "promotion": None if self.decided is None else to_plain(self.decided),
            "grids": [grid.to_state(state) for grid, state in zip(grids, self.grids, strict=True)],
        }

    @classmethod
    def from_state(cls, state: State, plan: Plan, trusted: AnyRewardModel | None) -> EvaluatorState:
        """The inverse of `to_state`; a reward model that is code of others is loaded only if it is `trusted`."""
        events, grids = state["events"], plan.grids()
        deciding, decided = PromotionLift.of(plan, grids), None
        if deciding is not None:
            kept = state.get("promotion")
            decided = deciding.contest.start() if kept is None else deciding.contest.resume(from_plain(kept))
        return cls(
            events["accepted"],
            events["rejected"],
            Arrivals(*events.get("arrivals", ())),
            events["newest"],
            [] if state["pending"] is None else [EventBatch.from_state(state["pending"])],
            {policy: {why: (n, text) for why, (n, text) in told.items()} for policy, told in state["failures"].items()},
            from_plain(state["counts"]),
            {
                "recent": from_plain(state["recent"]),
                "slates": from_plain(state["slates"]),
                "units": state.get("units") or start_signs(),
                "predictions": online.from_state(plan.reward_model, state["predictions"], trusted),
            },
            None if plan.drift is None else DriftWatch.from_state(plan.drift, from_plain(state["drift"])),
            decided,
            [grid.from_state(saved, plan.block) for grid, saved in zip(grids, state["grids"], strict=True)],
        )
