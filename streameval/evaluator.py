"""The evaluator: policies x estimators x averages, folded over a stream of events in blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from streameval.arrays import Array, State, from_plain, to_plain
from streameval.averages import AdaptiveDecay, AdaptiveWindow, AnyAverage, Average, Cumulative, Decay, Window
from streameval.averages.blocks import Blocks
from streameval.averages.lipschitz import Lipschitz, Pace
from streameval.bounds import AnyBound, Normal
from streameval.errors import StateError
from streameval.estimators import IPS, SNIPS, AnyEstimator, Estimator
from streameval.events import EventBatch
from streameval.evidence import LARGEST_WEIGHT, Evidence
from streameval.policies import LOGGING, knows_support
from streameval.report import EventCounts, PolicyCounts, Report
from streameval.rows import Rows

STATE_SCHEMA = 1
BLOCKS_AT_ONCE = 20
"""Whole blocks folded together: enough to keep numpy busy, few enough to stay in the processor's cache."""

UNKNOWN_PACE = Pace(np.array(np.nan), np.array(np.nan))
DEFAULT_ESTIMATORS: tuple[AnyEstimator, ...] = (IPS(), SNIPS())
DEFAULT_AVERAGES: tuple[AnyAverage, ...] = (Cumulative(), Window(), Decay(), AdaptiveWindow(), AdaptiveDecay())


class Evaluator:
    """Streaming off-policy estimates of every policy by every estimator on every average, with intervals.

    Parameters
    ----------
    candidates: names under which the events carry the probabilities of the policies in question.
    estimators, averages: what to average, and how; two of one kind need names.
    reward_range: smallest and largest possible reward; events outside are rejected and counted.
    production: `logging` (the policy that took the logged actions) or the name of a policy in the events.
    intervals: kind of interval for the label of an average, e.g. `{"window": "empirical_bernstein"}`; else `normal`.
    confidence: of the two-sided intervals, in (0, 1).
    block: events between two moments at which anything adaptive may change.

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
        candidates: Sequence[str],
        estimators: Sequence[AnyEstimator] = DEFAULT_ESTIMATORS,
        averages: Sequence[AnyAverage] = DEFAULT_AVERAGES,
        reward_range: tuple[float, float] = (0.0, 1.0),
        production: str = LOGGING,
        intervals: Mapping[str, AnyBound | str] | None = None,
        confidence: float = 0.95,
        block: int = 100,
    ) -> None:
        self.policies = _policies(production, candidates)
        self.estimators = tuple(estimators)
        self.averages = tuple(averages)
        self.bounds = _bounds(self.averages, intervals or {})
        self.reward_range = _ordered(reward_range)
        self.confidence = _inside("confidence", confidence, 0, 1)
        self.block = int(_inside("block", block, 1, np.inf))
        _distinct("estimator", self.estimators)
        _distinct("average", self.averages)
        self._start()

    def _start(self) -> None:
        count = len(self.policies)
        columns = count * len(self.estimators)
        self._accepted = 0
        self._rejected: dict[str, int] = {}
        self._last_timestamp: float | None = None
        self._pending: list[EventBatch] = []
        self._counts = {"present": np.zeros(count), "supported": np.zeros(count), "largest_weight": np.zeros(count)}
        self._remembered = [estimator.start(count) for estimator in self.estimators]
        self._measured = {measure: measure.start(columns, self.block) for measure in _measures(self.averages)}
        self._averaged = [average.start(columns, self.block) for average in self.averages]

    def update(self, batch: EventBatch) -> None:
        """Take the next events of the stream; the events rejected with them are counted by reason."""
        for rejected in batch.rejected:
            self._reject(rejected.reason, 1)
        low, high = self.reward_range
        inside = (batch.reward >= low) & (batch.reward <= high)
        if not inside.all():
            self._reject("reward_range", int(np.count_nonzero(~inside)))
            batch = batch.take(inside)
        if len(batch):
            self._accept(batch)

    def _reject(self, reason: str, count: int) -> None:
        self._rejected[reason] = self._rejected.get(reason, 0) + count

    def _accept(self, batch: EventBatch) -> None:
        self._accepted += len(batch)
        self._last_timestamp = _newest(self._last_timestamp, batch.timestamp)
        named = batch.with_policies(policy for policy in self.policies if policy != LOGGING)
        self._pending.append(replace(named, rejected=()))
        waiting = sum(map(len, self._pending))
        if waiting >= self.block:
            events = EventBatch.concat(self._pending)
            whole = waiting // self.block * self.block
            for first in range(0, whole, BLOCKS_AT_ONCE * self.block):
                self._fold(events[first : min(first + BLOCKS_AT_ONCE * self.block, whole)])
            self._pending = [events[whole:]] if whole < waiting else []

    def _fold(self, events: EventBatch) -> None:
        blocks, self._remembered, self._counts = self._weigh(events)
        paces: dict[Lipschitz | None, Pace] = {None: UNKNOWN_PACE}
        for measure, state in self._measured.items():
            paces[measure], self._measured[measure] = measure.fold(state, blocks)
        self._averaged = [
            average.fold(state, blocks, paces[average.drift])
            for average, state in zip(self.averages, self._averaged, strict=True)
        ]

    def _weigh(self, events: EventBatch) -> tuple[Blocks, list[State], dict[str, Array]]:
        """The terms of these events for all estimators side by side, and what is remembered and counted after them."""
        evidence = Evidence.from_batch(events, self.policies, self.block)
        pairs = zip(self.estimators, self._remembered, strict=True)
        terms, remembered = zip(*[estimator.terms(evidence, state) for estimator, state in pairs], strict=True)
        blocks = Blocks.of(
            evidence.blocks, evidence.averaging_weight, evidence.importance_weight, evidence.unsupported, terms
        )
        return blocks, list(remembered), _counted(self._counts, evidence, knows_support(events))

    def report(self) -> Report:
        """Everything known now, the block that is not finished included."""
        tail, counts = None, self._counts
        if self._pending:
            self._pending = [EventBatch.concat(self._pending)]
            tail, _, counts = self._weigh(self._pending[0])
        rows = self._rows(counts)
        rates = {None: UNKNOWN_PACE.rate} | {measure: measure.rate(state) for measure, state in self._measured.items()}
        return Report(
            confidence=self.confidence,
            production=self.policies[0],
            events=EventCounts(self._accepted, dict(self._rejected), self._last_timestamp),
            policies=tuple(self._policy_counts(counts["present"])),
            estimates=tuple(
                estimate
                for average, bound, state in zip(self.averages, self.bounds, self._averaged, strict=True)
                for estimate in rows.of(average, bound, average.read(state, tail, rates[average.drift]))
            ),
        )

    def _rows(self, counts: dict[str, Array]) -> Rows:
        return Rows(
            policies=self.policies,
            estimators=self.estimators,
            reward_range=self.reward_range,
            confidence=self.confidence,
            largest_weight=counts["largest_weight"],
            supported=(counts["supported"] == counts["present"]) & (counts["present"] > 0),
        )

    def _policy_counts(self, present: Array) -> list[PolicyCounts]:
        return [
            PolicyCounts(policy, policy == self.policies[0], int(count), self._accepted - int(count))
            for policy, count in zip(self.policies, present, strict=True)
        ]

    def state(self) -> State:
        """Everything needed to go on, as a plain value that msgpack can hold."""
        return {
            "schema": STATE_SCHEMA,
            "settings": self._settings(),
            "events": {"accepted": self._accepted, "rejected": dict(self._rejected), "newest": self._last_timestamp},
            "pending": EventBatch.concat(self._pending).to_state() if self._pending else None,
            "counts": to_plain(self._counts),
            "estimators": to_plain(self._remembered),
            "drift": to_plain(list(self._measured.values())),
            "averages": [
                to_plain(average.to_state(state)) for average, state in zip(self.averages, self._averaged, strict=True)
            ],
        }

    def _settings(self) -> State:
        return {
            "candidates": list(self.policies[1:]),
            "production": self.policies[0],
            "estimators": _ESTIMATORS.dump_python(self.estimators),
            "averages": _AVERAGES.dump_python(self.averages),
            "intervals": {
                average.label: _BOUND.dump_python(bound)
                for average, bound in zip(self.averages, self.bounds, strict=True)
            },
            "reward_range": list(self.reward_range),
            "confidence": self.confidence,
            "block": self.block,
        }

    @classmethod
    def from_state(cls, state: State) -> Evaluator:
        """Go on from a state, to the last bit as if there had been no interruption; StateError if it cannot be read."""
        if state.get("schema") != STATE_SCHEMA:
            raise StateError(
                f"the state has schema {state.get('schema')}, this version reads {STATE_SCHEMA}",
                hint="use the version that wrote it, or start anew",
            )
        settings = dict(state["settings"])
        evaluator = cls(
            **{
                **settings,
                "estimators": _ESTIMATORS.validate_python(settings["estimators"]),
                "averages": _AVERAGES.validate_python(settings["averages"]),
                "reward_range": tuple(settings["reward_range"]),
            }
        )
        evaluator._restore(state)
        return evaluator

    def _restore(self, state: State) -> None:
        events = state["events"]
        self._accepted, self._last_timestamp = events["accepted"], events["newest"]
        self._rejected = dict(events["rejected"])
        self._pending = [] if state["pending"] is None else [EventBatch.from_state(state["pending"])]
        self._counts = from_plain(state["counts"])
        self._remembered = from_plain(state["estimators"])
        self._measured = dict(zip(self._measured, from_plain(state["drift"]), strict=True))
        self._averaged = [
            average.from_state(from_plain(saved))
            for average, saved in zip(self.averages, state["averages"], strict=True)
        ]


_ESTIMATORS: TypeAdapter[tuple[AnyEstimator, ...]] = TypeAdapter(tuple[AnyEstimator, ...])
_AVERAGES: TypeAdapter[tuple[AnyAverage, ...]] = TypeAdapter(tuple[AnyAverage, ...])
_BOUND: TypeAdapter[AnyBound] = TypeAdapter(AnyBound)


def _counted(counts: dict[str, Array], evidence: Evidence, supported: Array) -> dict[str, Array]:
    present = evidence.averaging_weight > 0
    return {
        "present": counts["present"] + np.count_nonzero(present, axis=0),
        "supported": counts["supported"] + np.count_nonzero(present & (supported[:, None] > 0), axis=0),
        "largest_weight": np.maximum(counts["largest_weight"], evidence.importance_weight.max(axis=0, initial=0.0)),
    }


def _measures(averages: Sequence[Average]) -> list[Lipschitz]:
    """The measures of drift that the averages ask for, each once."""
    return list(dict.fromkeys(average.drift for average in averages if average.drift is not None))


def _newest(before: float | None, timestamps: Array) -> float | None:
    known = timestamps[~np.isnan(timestamps)]
    if not len(known):
        return before
    newest = float(known.max())
    return newest if before is None else max(before, newest)


def _policies(production: str, candidates: Sequence[str]) -> tuple[str, ...]:
    if isinstance(candidates, str):
        raise ValueError(f"candidates must be a list of names, found the string {candidates!r}")
    policies = (production, *candidates)
    repeated = sorted({policy for policy in policies if policies.count(policy) > 1})
    if repeated or LOGGING in candidates:
        raise ValueError(f"policies must differ and none may be called {LOGGING!r}: {', '.join(repeated or [LOGGING])}")
    return policies


def _bounds(averages: Sequence[Average], intervals: Mapping[str, Any]) -> tuple[AnyBound, ...]:
    labels = [average.label for average in averages]
    unknown = sorted(set(intervals) - set(labels))
    if unknown:
        raise ValueError(
            f"intervals name averages that are not there: {', '.join(unknown)}; there are {', '.join(labels)}"
        )
    chosen = {label: {"kind": bound} if isinstance(bound, str) else bound for label, bound in intervals.items()}
    bounds = tuple(_BOUND.validate_python(chosen.get(label, Normal())) for label in labels)
    for average, bound in zip(averages, bounds, strict=True):
        if bound.drift == "include" and not average.measures_drift:
            raise ValueError(f"the average {average.label!r} does not measure drift: its interval cannot include it")
    return bounds


def _ordered(reward_range: tuple[float, float]) -> tuple[float, float]:
    low, high = map(float, reward_range)
    if not -LARGEST_WEIGHT <= low < high <= LARGEST_WEIGHT:
        raise ValueError(f"reward_range must be two numbers, the smaller first, within 1e50; found {reward_range}")
    return low, high


def _inside(name: str, value: float, low: float, high: float) -> float:
    if not (low < value < high or (name == "block" and value == low)):
        raise ValueError(f"{name} must lie between {low} and {high}, found {value}")
    return value


def _distinct(what: str, choices: Sequence[Estimator] | Sequence[Average]) -> None:
    labels = [choice.label for choice in choices]
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated or not labels:
        problem = f"{', '.join(repeated)} is there twice; give one a name" if repeated else "there is none"
        raise ValueError(f"{what}s: {problem}")
