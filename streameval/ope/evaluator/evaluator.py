"""The evaluator: policies x estimators x averages, folded over a stream of events in blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streameval.common.arrays import Array, Mask, State
from streameval.errors import StateError
from streameval.events import EventBatch
from streameval.ope.averages import AnyAverage
from streameval.ope.averages.variance import unit_signs
from streameval.ope.estimators import AnyEstimator
from streameval.ope.evaluator.drift_detection import DriftDetector, block_means
from streameval.ope.evaluator.grid import Grid
from streameval.ope.evaluator.missing_fields import MissingField, missing_fields
from streameval.ope.evaluator.plan import Candidates, Pair, Plan
from streameval.ope.evaluator.promotion_lift import PromotionLift
from streameval.ope.evaluator.report_rows import report_rows
from streameval.ope.evaluator.state import EvaluatorState, count, newest
from streameval.ope.evidence.actions import Requirement
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.intervals import AnyInterval
from streameval.ope.policies import LOGGING, CodedPolicies, Faults, has_support_information
from streameval.ope.promotion import Promotion, TrustFigures, decide
from streameval.ope.report import Decision, Estimate, EventCounts, Failure, PolicyCounts, Report, Transition, TrustCheck
from streameval.ope.reward_models import AnyRewardModel, online

STATE_SCHEMA = 5
BLOCKS_AT_ONCE, FEWEST_AT_ONCE = 60, 10
"""Whole blocks folded together, at most and at least: enough to keep numpy busy."""
PARTS_AT_ONCE = 660
"""Blocks times policies folded together, within these limits: few enough to fit the cache of the processor."""


class Evaluator:
    """Streaming off-policy estimates of every policy by every estimator on every average, with intervals.

    Args:
        candidates: names under which events carry the probabilities of the policies to evaluate; or policies by name,
            e.g. `{"challenger": Logged(), "even": Uniform()}`
        estimators, averages: every estimator is evaluated on every average; two of one kind need names. Without both:
            `ips` and `snips` on the five published averages; `stratified_ips`, and `stratified_dr` for events with
            full distributions and features, on `mixture`
        reward_range: smallest and largest possible reward; events outside are rejected and counted
        production: `logging` (the policy that took the logged actions), or the name of a policy in the events
        intervals: kind of interval by label of an average, e.g. `{"window": "normal"}`; default `drift_aware` for
            `mixture` and `empirical_likelihood`, which holds for heavy-tailed weights, for all others
        confidence: of the two-sided intervals, in (0, 1)
        block: number of events in a block; everything adaptive changes at the end of a block
        reward_model: predicts rewards for the estimators that need them; default `Ridge()`
        drift: the drift detector, a name or `{"detector": name, ...}`; None for none. No estimate depends on it
        promotion: when a candidate may replace production: a rule, several, or `Promotion(...)`; None for no decisions

    Raises:
        ValueError: an argument is wrong, or does not fit another one

    The numbers do not depend on how the stream is cut into batches. Two events, the candidate twice as likely as the
    logging policy to take the rewarded action:

    >>> evaluator = Evaluator(candidates=["challenger"])
    >>> policies = {"challenger": [0.5, 0.5]}
    >>> evaluator.update(EventBatch.from_arrays(reward=[1, 0], propensity=[0.25, 0.5], policies=policies))
    >>> report = evaluator.report()
    >>> report.get("challenger", "ips", "cumulative").value, report.get("logging", "ips", "cumulative").value
    (1.0, 0.5)
    """

    def __init__(
        self,
        candidates: Candidates,
        estimators: Sequence[AnyEstimator] | None = None,
        averages: Sequence[AnyAverage] | None = None,
        reward_range: tuple[float, float] = (0.0, 1.0),
        production: str = LOGGING,
        intervals: Mapping[str, AnyInterval | str] | None = None,
        confidence: float = 0.95,
        block: int = 100,
        reward_model: AnyRewardModel | None = None,
        drift: DriftDetector | Mapping[str, Any] | str | None = "ADWIN",
        promotion: Promotion | Mapping[str, Any] | Sequence[str] | str | None = "paired",
    ) -> None:
        self.plan = Plan.of(
            candidates,
            estimators,
            averages,
            reward_range,
            production,
            intervals,
            confidence,
            block,
            reward_model,
            drift,
            promotion,
        )
        self.plan.reward_model.check()
        self._start()

    @classmethod
    def from_plan(cls, plan: Plan) -> Evaluator:
        """An evaluator of a plan, before the first event."""
        evaluator = cls.__new__(cls)
        evaluator.plan = plan
        evaluator._start()
        return evaluator

    def _start(self) -> None:
        self._computed = CodedPolicies(self.plan.computed_policies)
        self._grids = self.plan.grids()
        self._lift = PromotionLift.of(self.plan, self._grids)
        self._state = EvaluatorState.start(self.plan, self._grids, self._lift)
        self._pending_events = 0

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies with rows in the Report: production first, then the candidates."""
        return self.plan.policies

    @property
    def accepted(self) -> int:
        """The number of accepted events."""
        return self._state.accepted

    @property
    def promotion_lifts(self) -> tuple[Pair, ...]:
        """The estimators and averages, by label, whose lifts promotion may use, the preferred one first."""
        return () if self._lift is None else self._lift.pairs

    def continued(self, plan: Plan) -> Evaluator:
        """An evaluator of `plan` that keeps what this one knows. This one must get no more events.

        A confidence sequence, drift detector or promotion rule of another kind starts from zero. So does a promotion
        rule that looks at a lift, where that lift is gone.

        Args:
            plan: of the same production, reward range and block. Its policies, and its pairs of an estimator and an
                average, are among those of this evaluator.
        """
        if plan == self.plan:
            return self
        self._process_pending()
        before = replace(
            self.plan.with_products(plan.products),
            policies=plan.policies,
            computed_policies=plan.computed_policies,
            candidate_order=plan.candidate_order,
            reward_model=plan.reward_model,
        )
        state = self._state.select(self.plan, before).to_state(before, before.grids())
        return Evaluator._resumed(plan, state, plan.reward_model)

    def replaced(self, plan: Plan) -> Evaluator:
        """An evaluator of any plan, before the first accepted event; the numbers of rejected events are kept."""
        evaluator = Evaluator.from_plan(plan)
        state = evaluator._state
        state.rejected, state.arrivals = self._state.rejected, self._state.arrivals
        return evaluator

    @classmethod
    def _resumed(cls, plan: Plan, state: State, trusted: AnyRewardModel | None) -> Evaluator:
        evaluator = cls.from_plan(plan)
        evaluator._state = EvaluatorState.from_state(state, plan, evaluator._grids, evaluator._lift, trusted)
        evaluator._pending_events = sum(map(len, evaluator._state.pending))
        return evaluator

    def update(self, batch: EventBatch) -> None:
        """Take the next events of the stream; rejected events are counted by reason."""
        batch = batch.with_rewards_in(*self.plan.reward_range)
        state, reasons = self._state, Counter(rejected.reason for rejected in batch.rejected)
        for reason, number in reasons.items():
            state.rejected[reason] = state.rejected.get(reason, 0) + number
        state.arrivals = state.arrivals.after(len(batch), reasons)
        if not len(batch):
            return
        state.accepted += len(batch)
        state.newest = newest(state.newest, batch.timestamp)
        batch, faults = self._computed.fill(batch.with_policies(self._named))
        self._count_failures(faults)
        raw_fields = batch.raw_fields if self._predicts and self.plan.reward_model.needs_raw_fields else None
        state.pending.append(replace(batch, raw_fields=raw_fields, rejected=()))
        self._pending_events += len(batch)
        if self._pending_events >= self._batch_events:
            self._process_pending(self._batch_events)

    @property
    def _named(self) -> list[str]:
        return [policy for policy in self.policies if policy != LOGGING]

    @property
    def _batch_events(self) -> int:
        """The number of events that are folded together between Reports."""
        blocks = max(FEWEST_AT_ONCE, min(BLOCKS_AT_ONCE, PARTS_AT_ONCE // len(self.policies)))
        return blocks * self.plan.block

    def _process_pending(self, unit: int | None = None) -> None:
        """Fold the pending events in multiples of `unit` events (one block); the rest stays pending.

        The state after a block depends on the events alone, but for rounding, which the cut into runs changes.
        """
        if not self._state.pending:
            return
        unit = unit or self.plan.block
        events = EventBatch.concat(self._state.pending)
        whole = len(events) // unit * unit
        for first in range(0, whole, self._batch_events):
            self._fold(events[first : min(first + self._batch_events, whole)])
        self._state.pending = [events[whole:]] if whole < len(events) else []
        self._pending_events = len(events) - whole

    def missing_fields(self, batch: EventBatch) -> list[MissingField]:
        """The fields that estimators need and events of `batch` lack."""
        return list(missing_fields(self.plan, self._computed.fill(batch.with_policies(self._named))[0]))

    def _count_failures(self, faults: Faults) -> None:
        for policy, by_event in faults.items():
            failures = self._state.failures.setdefault(policy, {})
            for _, (reason, detail) in sorted(by_event.items()):
                number, example = failures.get(reason, (0, detail))
                failures[reason] = (number + 1, example)

    def _fold(self, events: EventBatch) -> None:
        state = self._state
        evidence, state.learned = self._evidence(events)
        state.counts = count(state.counts, evidence, has_support_information(events))
        if state.drift is not None:
            state.drift.update(block_means(evidence, self.plan.reward_range))
        folded = [grid.fold(before, evidence) for grid, before in zip(self._grids, state.grids, strict=True)]
        state.grids = [each.state for each in folded]
        if self._lift is not None and state.promotion is not None:
            state.promotion = self._lift.fold(state.promotion, events, evidence, folded)

    def _evidence(self, events: EventBatch) -> tuple[Evidence, State]:
        """The evidence of these events, with the learned state before them; and the learned state after them."""
        plan, learned = self.plan, self._state.learned
        signs, units = unit_signs(learned["units"], events.unit, len(events), plan.block)
        evidence = replace(Evidence.from_batch(events, self.policies, plan.block), signs=signs)
        after = {**learned, "units": units}
        if any(grid.mixes_components for grid in self._grids):
            evidence, after["recent"] = evidence.with_recent_means(learned["recent"])
        if self._predicts:
            blocks = self._predicted_blocks(evidence)
            evidence, after["predictions"] = online.fold(
                plan.reward_model, learned["predictions"], evidence, events.raw_fields, plan.reward_range, blocks
            )
        if any(Requirement.SLOTS in grid.needs for grid in self._grids):
            evidence, after["slates"] = evidence.with_slot_weights(events, self.policies, learned["slates"])
        return evidence, after

    @property
    def _predicts(self) -> bool:
        return any(Requirement.PREDICTION in grid.needs for grid in self._grids)

    def _predicted_blocks(self, evidence: Evidence) -> Mask:
        """The blocks that the reward model sees: all, or those that an estimator of the default can use, [blocks]."""
        grids = [grid for grid in self._grids if Requirement.PREDICTION in grid.needs]
        if evidence.actions is None or not all(grid.optional for grid in grids):
            return np.ones(evidence.blocks, dtype=bool)
        return np.asarray(np.logical_or.reduce([evidence.restricted_to(grid.needs).used_blocks for grid in grids]))

    def report(self, now: float | None = None) -> Report:
        """Everything known now, the unfinished block included.

        Whole blocks that are pending are folded first, which later numbers do not depend on but for rounding. The
        unfinished block is added for reading only.

        Args:
            now: epoch seconds, by which promotion judges whether the newest event is stale
        """
        self._process_pending()
        plan, state = self.plan, self._state
        tail, counts, learned = None, state.counts, state.learned
        if state.pending:
            tail, learned = self._evidence(state.pending[0])
            counts = count(counts, tail, has_support_information(state.pending[0]))
        shown = list(self._shown(tail))
        supported = (counts["supported"] == counts["present"]) & (counts["present"] > 0)
        estimates: list[Estimate] = []
        for grid, grid_state, seen in shown:
            by_slot = Requirement.SLOTS in grid.needs
            largest = counts["largest_slate_weight" if by_slot else "largest_weight"]
            ratios = learned["slates"]["ratios"] if by_slot else None
            for reading in grid.read(grid_state, tail, plan.errors):
                estimates += report_rows(plan, grid, reading, largest, supported, seen, ratios)
        predicts = any(Requirement.PREDICTION in grid.needs for grid, _, _ in shown)
        decisions, checks, transitions = self._decide(estimates, now)
        return Report(
            confidence=plan.confidence,
            production=self.policies[0],
            events=EventCounts(state.accepted, dict(state.rejected), state.newest),
            policies=tuple(self._policy_counts(counts["present"])),
            estimates=tuple(estimates),
            promotion=decisions,
            trust=checks,
            transitions=transitions,
            reward_model=online.read(plan.reward_model, state.learned["predictions"]) if predicts else None,
        )

    def _shown(self, tail: Evidence | None) -> Iterator[tuple[Grid, State, Mask]]:
        """The grids that have rows, their states, and the policies with rows, [policies]."""
        for grid, state in zip(self._grids, self._state.grids, strict=True):
            seen = grid.seen(state, tail) if grid.optional else np.ones(len(self.policies), dtype=bool)
            if seen.any():
                yield grid, state, seen

    def _decide(
        self, estimates: Sequence[Estimate], now: float | None
    ) -> tuple[tuple[Decision, ...], tuple[TrustCheck, ...], tuple[Transition, ...]]:
        state = self._state
        if self._lift is None or state.promotion is None:
            return (), (), ()
        figures = TrustFigures(state.arrivals, state.newest, estimates, now, has_lift=bool(self._lift.pairs))
        return decide(self._lift.monitor, state.promotion, figures)

    def _policy_counts(self, present: Array) -> Iterator[PolicyCounts]:
        state = self._state
        for place, policy in enumerate(self.policies):
            failures = state.failures.get(policy, {}).items()
            yield PolicyCounts(
                policy,
                policy == self.policies[0],
                int(present[place]),
                state.accepted - int(present[place]),
                tuple(Failure(reason, *counted) for reason, counted in failures),
                None if state.drift is None else state.drift.detections[place],
            )

    def state(self) -> State:
        """Everything needed to continue, as a plain value that msgpack can hold."""
        settings = self.plan.settings()
        return {"schema": STATE_SCHEMA, "settings": settings, **self._state.to_state(self.plan, self._grids)}

    @classmethod
    def from_state(
        cls, state: State, reward_model: AnyRewardModel | None = None, candidates: Candidates = ()
    ) -> Evaluator:
        """Continue from a state, to the last bit as without an interruption.

        Args:
            state: what `state()` returned
            reward_model, candidates: must name the foreign code in the state, if there is any

        Raises:
            StateError: the state is of another version, or holds code that the caller does not name
        """
        if state.get("schema") != STATE_SCHEMA:
            raise StateError(
                f"the state has schema {state.get('schema')}, this version reads {STATE_SCHEMA}",
                hint="use the version that wrote it, or start from zero",
            )
        return cls._resumed(Plan.from_settings(state["settings"], candidates), state, reward_model)
