"""The Report: one immutable value that everything outward reads (metrics, HTTP, tables, files)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from streameval.ope.intervals import Interval
from streameval.ope.reward_models.online import RewardModelAccuracy

THIN, RICHER = 100.0, 10.0
"""Effective sample size under which a row is thin, and how many times as much another one must have."""


class EventCounts(msgspec.Struct, frozen=True):
    """Events since the start of the state: accepted, rejected by reason, and the newest event time (epoch seconds)."""

    accepted: int
    rejected: Mapping[str, int]
    last_timestamp: float | None


class Failure(msgspec.Struct, frozen=True):
    """Events for which a policy in code had no distribution, for one reason, and what was wrong with the first."""

    reason: str
    count: int
    example: str


class PolicyCounts(msgspec.Struct, frozen=True):
    """Events since the start that carried the policy's probability (`events`) and that did not (`missing`).

    `failures`: why events are missing for a policy that is code. `drift_detections`: how often the drift
    detector found that what the policy earns had changed; None without one.
    """

    policy: str
    production: bool
    events: int
    missing: int
    failures: tuple[Failure, ...] = ()
    drift_detections: int | None = None


class Estimate(msgspec.Struct, frozen=True):
    """One number and its honesty: the value of `policy` by `estimator` on `average`, with its interval and diagnostics.

    What is not known is None. `details` holds what the average and the interval have to say (tau, alpha, k, horizon,
    ...).
    """

    policy: str
    estimator: str
    average: str
    value: float | None
    lower: float | None
    upper: float | None
    kind: str
    anytime: bool
    covers: str
    effective_sample_size: float | None
    importance_weight_mean: float | None
    importance_weight_max: float | None
    lift: float | None = None
    lift_lower: float | None = None
    lift_upper: float | None = None
    details: Mapping[str, Any] = {}

    @property
    def interval(self) -> Interval:
        """The interval around `value`; its ends are None while it is withheld."""
        return Interval(self.lower, self.upper, self.kind, self.anytime, self.covers)


class Decision(msgspec.Struct, frozen=True):
    """Whether a candidate may replace production by a promotion rule, and why (not).

    `lift` and `lower` are what the rule estimates and what it holds against the margin. `events`: those that the
    candidate has. `held`: for how many block ends in a row it has passed. `since_...`: when it became promotable, by
    the rule and the weights alone, in events since the start and in epoch seconds; `first_...`: when it did so for the
    first time, with the lift then; `lift_since`: the mean of the estimated lift at all block ends since then.
    `times`: how often it became promotable, `promotable_events`: for how many events in all it was.
    """

    policy: str
    rule: str
    promotable: bool
    reason: str
    lift: float | None = None
    lower: float | None = None
    events: int = 0
    held: int = 0
    since_event: int | None = None
    since_timestamp: float | None = None
    first_event: int | None = None
    first_timestamp: float | None = None
    first_lift: float | None = None
    lift_since: float | None = None
    times: int = 0
    promotable_events: int = 0


class TrustCheck(msgspec.Struct, frozen=True):
    """Whether the numbers of a policy pass one check, and what was found; while one fails, nothing is promoted."""

    policy: str
    check: str
    ok: bool
    reason: str


class Transition(msgspec.Struct, frozen=True):
    """A moment, in events since the start and in epoch seconds, since which a candidate is (not) promotable."""

    policy: str
    rule: str
    event: int
    timestamp: float | None
    promotable: bool
    lift: float | None


class Report(msgspec.Struct, frozen=True):
    """Everything known at one moment; `to_json` is the contract of `replay --json` and `/api/v1/report`."""

    confidence: float
    production: str
    events: EventCounts
    policies: tuple[PolicyCounts, ...]
    estimates: tuple[Estimate, ...]
    promotion: tuple[Decision, ...] = ()
    trust: tuple[TrustCheck, ...] = ()
    transitions: tuple[Transition, ...] = ()
    reward_model: RewardModelAccuracy | None = None
    schema: int = 1

    def get(self, policy: str, estimator: str, average: str) -> Estimate:
        """The estimate with these three labels; KeyError names what there is."""
        for estimate in self.estimates:
            if (estimate.policy, estimate.estimator, estimate.average) == (policy, estimator, average):
                return estimate
        labels = sorted({f"{e.policy}/{e.estimator}/{e.average}" for e in self.estimates})
        raise KeyError(f"no estimate {policy}/{estimator}/{average}; there are {', '.join(labels)}")

    def thin(self) -> frozenset[tuple[str, str]]:
        """Pairs of an estimator and an average that most events had nothing for, so that another one is shown instead.

        For production, such a pair has an effective sample size under 100, and another estimator on the same average
        has ten times as much.
        """
        sizes = {
            (each.estimator, each.average): each.effective_sample_size or 0.0
            for each in self.estimates
            if each.policy == self.production
        }
        most = {average: max(size for (_, on), size in sizes.items() if on == average) for _, average in sizes}
        return frozenset(
            pair
            for pair, size in sizes.items()
            if size < THIN and size * RICHER <= most[pair[1]] and size < most[pair[1]]
        )

    def to_json(self, indent: int = 0) -> bytes:
        """The Report as JSON."""
        encoded = msgspec.json.encode(self)
        return msgspec.json.format(encoded, indent=indent) if indent else encoded
