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
from streameval.ope.averages.cluster_variance import start_signs, unit_signs
from streameval.ope.estimators import AnyEstimator
from streameval.ope.evaluator import counters
from streameval.ope.evaluator.counters import counted, newest
from streameval.ope.evaluator.drift_detection import DriftDetector, DriftWatch, block_means
from streameval.ope.evaluator.grid import Grid
from streameval.ope.evaluator.missing_fields import MissingField, shortfalls
from streameval.ope.evaluator.plan import Candidates, Plan
from streameval.ope.evaluator.promotion_lift import PromotionLift
from streameval.ope.evaluator.report_rows import ReportRows
from streameval.ope.evaluator.state import EvaluatorState
from streameval.ope.evidence import recent_moments
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.evidence.requirements import Requirement
from streameval.ope.evidence.slate_weights import start_ratios
from streameval.ope.intervals import AnyInterval
from streameval.ope.policies import LOGGING, CodedPolicies, Faults, has_support_information
from streameval.ope.promotion import Arrivals, Promotion, TrustFigures, decide
from streameval.ope.report import Decision, Estimate, EventCounts, Failure, PolicyCounts, Report, Transition, TrustCheck
from streameval.ope.reward_models import AnyRewardModel, online

STATE_SCHEMA = 3
BLOCKS_AT_ONCE, FEWEST_AT_ONCE = 60, 10
"""Whole blocks folded together, at most and at least: enough to keep numpy busy."""
PARTS_AT_ONCE = 660
"""Blocks times policies folded together, but for these limits: few enough to stay near the processor."""


class Evaluator:
    """Streaming off-policy estimates of every policy by every estimator on every average, with intervals.

    Parameters
    ----------
    candidates: names under which the events carry the probabilities of the policies in question; or by name what
        policies they are, e.g. `{"challenger": Logged(), "even": Uniform()}`.
    estimators, averages: what to average, and how, each on each; two of one kind need names. Without both: the
        published forms (`ips` and `snips` on five averages), and the best there is on `mixture`: `stratified_ips`, and
        `stratified_dr` once an event has whole distributions and features.
    reward_range: smallest and largest possible reward; events outside are rejected and counted.
    production: `logging` (the policy that took the logged actions) or the name of a policy in the events.
    intervals: kind of interval for the label of an average, e.g. `{"window": "normal"}`; else `drift_aware` for a
        mixture, and `empirical_likelihood` for all others, which is honest where weights are heavy.
    confidence: of the two-sided intervals, in (0, 1).
    block: events between two moments at which anything adaptive may change.
    reward_model: what stands in for rewards that were not seen, for estimators that need one; default `Ridge()`.
    drift: the detector that counts changes, a name or `{"detector": name, ...}`; None for none. Nothing depends on it.
    promotion: when a candidate may replace production: a rule or several, or `Promotion(...)`; None decides nothing.

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
    def of(cls, plan: Plan) -> Evaluator:
        """A fresh evaluator of a plan."""
        evaluator = cls.__new__(cls)
        evaluator.plan = plan
        evaluator._start()
        return evaluator

    @classmethod
    def going_on(cls, plan: Plan, progress: EvaluatorState) -> Evaluator:
        """An evaluator of a plan that remembers this, which must be of the same policies, estimators and averages."""
        evaluator = cls.of(plan)
        evaluator._accepted, evaluator._rejected = progress.accepted, dict(progress.rejected)
        evaluator._last_timestamp, evaluator._arrivals = progress.newest, progress.arrivals
        evaluator._pending, evaluator._waiting = list(progress.pending), sum(map(len, progress.pending))
        evaluator._failures = {policy: dict(told) for policy, told in progress.failures.items()}
        evaluator._counts, evaluator._learned = progress.counts, progress.learned
        evaluator._watch, evaluator._decided = progress.watch, progress.decided
        evaluator._states = list(progress.grids)
        return evaluator

    def progress(self) -> EvaluatorState:
        """All that it remembers, whole blocks folded; it must not be given more events when another goes on from it."""
        if self._pending:
            self._settle(self.plan.block)
        return self._progress

    @property
    def _progress(self) -> EvaluatorState:
        return EvaluatorState(
            self._accepted,
            self._rejected,
            self._arrivals,
            self._last_timestamp,
            self._pending,
            self._failures,
            self._counts,
            self._learned,
            self._watch,
            self._decided,
            self._states,
        )

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies with rows in the Report: production first, then the candidates."""
        return self.plan.policies

    @property
    def accepted(self) -> int:
        """How many events have been accepted."""
        return self._accepted

    @property
    def decides_by(self) -> tuple[tuple[str, str], ...]:
        """The estimators and averages, by label, whose lift promotion may decide by, the preferred one first."""
        return () if self._deciding is None else tuple(lift.cell for lift in self._deciding.chosen)

    def _start(self) -> None:
        count = len(self.policies)
        self._coded = CodedPolicies(self.plan.coded)
        self._failures: dict[str, dict[str, tuple[int, str]]] = {}
        self._accepted = 0
        self._rejected: dict[str, int] = {}
        self._arrivals = Arrivals()
        self._last_timestamp: float | None = None
        self._pending: list[EventBatch] = []
        self._waiting = 0
        self._counts = counters.start(count)
        self._learned = {
            "recent": recent_moments.start(count),
            "predictions": online.start(self.plan.reward_model),
            "slates": {"recent": recent_moments.start(count), "ratios": start_ratios(count)},
            "units": start_signs(),
        }
        self._watch = None if self.plan.drift is None else DriftWatch(self.plan.drift, count)
        self._grids = self.plan.grids()
        self._states = [grid.start(self.plan.block) for grid in self._grids]
        self._deciding = PromotionLift.of(self.plan, self._grids)
        self._decided = None if self._deciding is None else self._deciding.contest.start()

    def update(self, batch: EventBatch) -> None:
        """Take the next events of the stream; the events rejected with them are counted by reason."""
        batch = batch.with_rewards_in(*self.plan.reward_range)
        reasons = Counter(rejected.reason for rejected in batch.rejected)
        for reason, count in reasons.items():
            self._rejected[reason] = self._rejected.get(reason, 0) + count
        self._arrivals = self._arrivals.after(len(batch), reasons)
        if len(batch):
            self._accept(batch)

    def _accept(self, batch: EventBatch) -> None:
        self._accepted += len(batch)
        self._last_timestamp = newest(self._last_timestamp, batch.timestamp)
        named = batch.with_policies(policy for policy in self.policies if policy != LOGGING)
        filled, faults = self._coded.fill(named)
        self._blame(faults)
        raw_fields = filled.raw_fields if self._predicts and self.plan.reward_model.needs_raw_fields else None
        self._pending.append(replace(filled, raw_fields=raw_fields, rejected=()))
        self._waiting += len(batch)
        if self._waiting >= self._run:
            self._settle(self._run)

    @property
    def _run(self) -> int:
        """Events that are folded together while nobody asks for a report."""
        blocks = max(FEWEST_AT_ONCE, min(BLOCKS_AT_ONCE, PARTS_AT_ONCE // len(self.policies)))
        return blocks * self.plan.block

    def _settle(self, unit: int) -> None:
        """Fold the events that wait, as far as they fill whole units."""
        events = EventBatch.concat(self._pending)
        whole = len(events) // unit * unit
        for first in range(0, whole, self._run):
            self._fold(events[first : min(first + self._run, whole)])
        self._pending = [events[whole:]] if whole < len(events) else []
        self._waiting = len(events) - whole

    def shortfalls(self, batch: EventBatch) -> list[MissingField]:
        """What the events of `batch` lack that the estimators need; such events are missing for these."""
        named = batch.with_policies(policy for policy in self.policies if policy != LOGGING)
        return list(shortfalls(self.plan, self._coded.fill(named)[0]))

    def _blame(self, faults: Faults) -> None:
        for policy, by_event in faults.items():
            failures = self._failures.setdefault(policy, {})
            for _, (reason, detail) in sorted(by_event.items()):
                count, example = failures.get(reason, (0, detail))
                failures[reason] = (count + 1, example)

    def _fold(self, events: EventBatch) -> None:
        evidence, self._learned = self._evidence(events)
        self._counts = counted(self._counts, evidence, has_support_information(events))
        if self._watch is not None:
            self._watch.update(block_means(evidence, self.plan.reward_range))
        folded = [grid.fold(state, evidence) for grid, state in zip(self._grids, self._states, strict=True)]
        self._states = [each.state for each in folded]
        if self._deciding is not None and self._decided is not None:
            self._decided = self._deciding.fold(self._decided, events, evidence, folded)

    def _evidence(self, events: EventBatch) -> tuple[Evidence, State]:
        """What these events say, with what was learned before them, and what has been learned after."""
        marks, units = unit_signs(self._learned["units"], events.unit, len(events), self.plan.block)
        evidence = replace(Evidence.from_batch(events, self.policies, self.plan.block), signs=marks)
        memory = self._learned["recent"]
        if any(grid.mixes for grid in self._grids):
            evidence, memory = evidence.with_recent_means(memory)
        model = self._learned["predictions"]
        if self._predicts:
            evidence, model = online.fold(
                self.plan.reward_model,
                model,
                evidence,
                events.raw_fields,
                self.plan.reward_range,
                self._predicted_blocks(evidence),
            )
        slates = self._learned["slates"]
        if any(Requirement.SLOTS in grid.needs for grid in self._grids):
            evidence, slates = evidence.with_slot_weights(events, self.policies, slates)
        return evidence, {"recent": memory, "predictions": model, "slates": slates, "units": units}

    @property
    def _predicts(self) -> bool:
        return any(Requirement.PREDICTION in grid.needs for grid in self._grids)

    def _predicted_blocks(self, evidence: Evidence) -> Mask:
        """Which blocks the reward model sees: all, or those that an estimator which is there by default can use."""
        grids = [grid for grid in self._grids if Requirement.PREDICTION in grid.needs]
        if evidence.actions is None or not all(grid.optional for grid in grids):
            return np.ones(evidence.blocks, dtype=bool)
        return np.asarray(np.logical_or.reduce([evidence.restricted_to(grid.needs).used_blocks for grid in grids]))

    def report(self, now: float | None = None) -> Report:
        """Everything known now, the block that is not finished included; `now` (epoch seconds) tells what is stale."""
        if self._pending:
            self._settle(self.plan.block)
        tail, counts, learned = None, self._counts, self._learned
        if self._pending:
            tail, learned = self._evidence(self._pending[0])
            counts = counted(counts, tail, has_support_information(self._pending[0]))
        estimates = tuple(
            estimate
            for grid, state, seen in self._shown(tail)
            for known in grid.read(state, tail, self.plan.errors)
            for estimate in self._rows(grid, seen, counts, learned["slates"]).of(known)
        )
        decisions, trust, transitions = self._decide(estimates, now)
        return Report(
            confidence=self.plan.confidence,
            production=self.policies[0],
            events=EventCounts(self._accepted, dict(self._rejected), self._last_timestamp),
            policies=tuple(self._policy_counts(counts["present"])),
            estimates=estimates,
            promotion=decisions,
            trust=trust,
            transitions=transitions,
            reward_model=online.read(self.plan.reward_model, self._learned["predictions"])
            if any(Requirement.PREDICTION in grid.needs for grid, _, _ in self._shown(tail))
            else None,
        )

    def _decide(
        self, estimates: Sequence[Estimate], now: float | None
    ) -> tuple[tuple[Decision, ...], tuple[TrustCheck, ...], tuple[Transition, ...]]:
        if self._deciding is None or self._decided is None:
            return (), (), ()
        lifts = bool(self._deciding.chosen)
        figures = TrustFigures(self._arrivals, self._last_timestamp, estimates, now, has_lift=lifts)
        return decide(self._deciding.contest, self._decided, figures)

    def _shown(self, tail: Evidence | None) -> Iterator[tuple[Grid, State, Mask]]:
        """The grids that have rows, their states, and which policies the rows are about, [policies]."""
        for grid, state in zip(self._grids, self._states, strict=True):
            seen = grid.seen(state, tail) if grid.optional else np.ones(len(self.policies), dtype=bool)
            if seen.any():
                yield grid, state, seen

    def _rows(self, grid: Grid, seen: Mask, counts: dict[str, Array], slates: State) -> ReportRows:
        by_slot = Requirement.SLOTS in grid.needs
        return ReportRows(
            policies=self.policies,
            estimators=grid.estimators,
            reward_range=self.plan.reward_range,
            confidence=self.plan.confidence,
            largest_weight=counts["largest_slate_weight" if by_slot else "largest_weight"],
            supported=(counts["supported"] == counts["present"]) & (counts["present"] > 0),
            seen=seen,
            slot_ratios=slates["ratios"] if by_slot else None,
        )

    @property
    def _detections(self) -> Sequence[int | None]:
        return [None] * len(self.policies) if self._watch is None else self._watch.detections

    def _policy_counts(self, present: Array) -> list[PolicyCounts]:
        return [
            PolicyCounts(
                policy,
                policy == self.policies[0],
                int(count),
                self._accepted - int(count),
                tuple(Failure(reason, *told) for reason, told in self._failures.get(policy, {}).items()),
                detections,
            )
            for policy, count, detections in zip(self.policies, present, self._detections, strict=True)
        ]

    def state(self) -> State:
        """Everything needed to go on, as a plain value that msgpack can hold."""
        plan = self.plan
        return {"schema": STATE_SCHEMA, "settings": plan.settings(), **self._progress.to_state(plan, self._grids)}

    @classmethod
    def from_state(
        cls, state: State, reward_model: AnyRewardModel | None = None, candidates: Candidates = ()
    ) -> Evaluator:
        """Go on from a state, to the last bit as if there had been no interruption; StateError if it cannot be read.

        `reward_model`, `candidates`: a state with code of others in it is read only for who names the same here.
        """
        if state.get("schema") != STATE_SCHEMA:
            raise StateError(
                f"the state has schema {state.get('schema')}, this version reads {STATE_SCHEMA}",
                hint="use the version that wrote it, or start anew",
            )
        plan = Plan.from_settings(state["settings"], candidates)
        return cls.going_on(plan, EvaluatorState.from_state(state, plan, reward_model))
