"""The outlook: from what a log says of each candidate, what it takes to see a lift.

Wishes: the lifts that people ask for, in units of the reward or as a part of what production earns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from streameval.ope.power.exploration import Exploration, ExplorationAdvice
from streameval.ope.power.sample_size import events_needed, smallest_lift
from streameval.ope.report import Estimate, PolicyCounts, Report


class TargetLift(NamedTuple):
    """A lift: `size` in units of the reward, or, where it is `relative`, times production's value."""

    size: float
    relative: bool = False

    @classmethod
    def read(cls, text: str) -> TargetLift:
        """A wish as it is written; ValueError if it is none.

        >>> TargetLift.read("0.01"), TargetLift.read("5%")
        (TargetLift(size=0.01, relative=False), TargetLift(size=0.05, relative=True))
        """
        relative = text.strip().endswith("%")
        try:
            size = float(text.strip().removesuffix("%")) / (100 if relative else 1)
        except ValueError:
            size = math.nan
        if not 0 < size < math.inf:
            raise ValueError(f"expected a number above 0, or a percentage; found {text!r}")
        return cls(size, relative)

    def absolute(self, production: float | None) -> float | None:
        """The lift in units of the reward; None where production's value must be known and is not above 0."""
        if not self.relative:
            return self.size
        return self.size * production if production is not None and production > 0 else None

    def of_range(self, width: float) -> TargetLift:
        """The same part of the width of the reward range, where production's value cannot be the measure."""
        return TargetLift(self.size * width) if self.relative else self


USUAL = tuple(TargetLift(size, relative=True) for size in (0.02, 0.05, 0.1, 0.2))
"""What is asked for when nothing is said."""


NEVER_LOGGED = 0.005
"""Probability on actions that are never logged beyond which a lift may be off by more than noise."""
FAR_OFF = 4.0
"""Standard errors that a mean weight may be away from 1."""
BLAMELESS = ("ips", "snips", "control_variate", "stratified_ips")
"""Kinds of estimators whose noise grows with the weights, and is not lessened by a model."""


class LogSpan(NamedTuple):
    """The event times of a log: the first, the last, and how many events have one."""

    first: float = math.inf
    last: float = -math.inf
    events: int = 0

    @property
    def events_per_second(self) -> float | None:
        """The rate of the log; None where times are not known, or all the same."""
        return (self.events - 1) / (self.last - self.first) if self.last > self.first else None


class EventsNeeded(msgspec.Struct, frozen=True):
    """To see a lift of this size takes so many events, and at the rate of the log so many seconds."""

    lift: float
    events: float
    seconds: float | None


class Limit(msgspec.Struct, frozen=True):
    """The smallest lift that an average can ever show, which weighs as if it held so many events."""

    average: str
    events: float
    lift: float


class CandidatePower(msgspec.Struct, frozen=True):
    """What it takes to see a lift of one candidate, by its best-known estimator; `reason`: why that cannot be said.

    `effective_share`: effective sample size per event, 1 where the log does as the candidate would. `deviation`: of
    one event's paired difference to production. `detectable`: the lift that the events seen show with the power asked
    for.
    """

    policy: str
    events: int
    reason: str | None = None
    estimator: str | None = None
    value: float | None = None
    lift: float | None = None
    lift_lower: float | None = None
    lift_upper: float | None = None
    effective_share: float | None = None
    deviation: float | None = None
    design_effect: float | None = None
    detectable: float | None = None
    needed: tuple[EventsNeeded, ...] = ()
    limits: tuple[Limit, ...] = ()
    relief: ExplorationAdvice | None = None


class PowerReport(msgspec.Struct, frozen=True):
    """What `streameval plan --json` prints."""

    production: str
    value: float | None
    confidence: float
    power: float
    events: int
    events_per_second: float | None
    lifts: tuple[float, ...]
    candidates: tuple[CandidatePower, ...]

    def to_json(self) -> bytes:
        """The outlook as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


class PowerRequest(NamedTuple):
    """What everything is worked out for: lifts in units of the reward, confidence, power, and the rate of events."""

    lifts: tuple[float, ...]
    confidence: float
    power: float
    rate: float | None


def outlook(
    report: Report,
    estimators: Mapping[str, str],
    wishes: Sequence[TargetLift],
    power: float,
    span: LogSpan,
    exploration: Exploration,
    horizons: Mapping[str, float],
) -> PowerReport:
    """The outlook after a log; `report` has one average, on which every event counts the same.

    `estimators`: kinds by label, the best to look at first. `horizons`: how many events each average that forgets is
    worth, by label.
    """
    value = _best(report, report.production, estimators)
    earned = None if value is None else value.value
    low, high = exploration.reward_range
    lifts = [wish.absolute(earned) or wish.of_range(high - low).size for wish in wishes]
    asked = PowerRequest(tuple(sorted(set(lifts))), report.confidence, power, span.events_per_second)
    prospects = []
    for counts in report.policies[1:]:
        estimate = _best(report, counts.policy, estimators)
        reason = _obstacle(counts, estimate)
        if reason or estimate is None:
            prospects.append(CandidatePower(counts.policy, counts.events, reason or "nothing is known of it"))
            continue
        relief = exploration.relief(counts.policy) if estimators[estimate.estimator] in BLAMELESS else None
        share = counts.events / max(report.events.accepted, 1)
        uneven = exploration.unevenness(counts.policy)
        prospects.append(_prospect(counts, estimate, asked, share, uneven, horizons, relief))
    return PowerReport(
        report.production,
        earned,
        report.confidence,
        power,
        report.events.accepted,
        asked.rate,
        asked.lifts,
        tuple(prospects),
    )


def _best(report: Report, policy: str, estimators: Mapping[str, str]) -> Estimate | None:
    """The estimate by the first estimator that has the evidence.

    One with less than half of the effective sample size that the importance weights of all events have is passed over:
    most events lack what it needs.
    """
    known = {each.estimator: each for each in report.estimates if each.policy == policy and each.value is not None}
    sizes = {label: each.effective_sample_size or 0.0 for label, each in known.items()}
    most = max((sizes[label] for label in known if estimators.get(label) in BLAMELESS), default=0.0)
    return next((known[label] for label in estimators if label in known and sizes[label] >= most / 2), None)


def _obstacle(counts: PolicyCounts, estimate: Estimate | None) -> str | None:
    """Why it cannot be said how many events a candidate takes."""
    if not counts.events:
        return "no event has a probability of it"
    if estimate is None or not estimate.importance_weight_max:
        return "the log never takes an action that it would take"
    never = estimate.details.get("unsupported_probability") or 0.0
    if never > NEVER_LOGGED:
        return f"{never:.1%} of what it does is never logged: no number of events tells what that earns"
    if estimate.lift_lower is None or estimate.details.get("lift_deviation") is None:
        return "fewer than ten of its events have a reward: too few to know their noise"
    if estimate.details["lift_deviation"] == 0:
        return "it has not yet differed from production"
    mean, error = estimate.importance_weight_mean or 0.0, _weight_error(estimate, counts.events)
    if abs(mean - 1) > FAR_OFF * error + NEVER_LOGGED:
        lacking = "the log lacks actions that it takes, or " if mean < 1 else ""
        return f"its mean weight is {mean:.3f} and should be 1: {lacking}propensities are wrong"
    return None


def _weight_error(estimate: Estimate, events: int) -> float:
    """Standard error of the mean weight, from the effective sample size `n mean(w)^2 / mean(w^2)`."""
    size = estimate.effective_sample_size or 0.0
    if not size:
        return math.inf
    effect = max(1.0, estimate.details.get("design_effect") or 1.0)
    return (estimate.importance_weight_mean or 0.0) * math.sqrt(max(events / size - 1, 0.0) / events * effect)


def _prospect(
    counts: PolicyCounts,
    estimate: Estimate,
    asked: PowerRequest,
    share: float,
    uneven: float,
    horizons: Mapping[str, float],
    relief: ExplorationAdvice | None,
) -> CandidatePower:
    alike = estimate.details.get("lift_design_effect") or 1.0
    noise = (estimate.details["lift_deviation"], max(1.0, alike) * uneven)
    sure = (asked.confidence, asked.power)
    needed = []
    for lift in asked.lifts:
        events = events_needed(*noise, lift, *sure)
        needed.append(EventsNeeded(lift, math.ceil(events), events / asked.rate / share if asked.rate else None))
    return CandidatePower(
        policy=counts.policy,
        events=counts.events,
        estimator=estimate.estimator,
        value=estimate.value,
        lift=estimate.lift,
        lift_lower=estimate.lift_lower,
        lift_upper=estimate.lift_upper,
        effective_share=(estimate.effective_sample_size or 0.0) / counts.events,
        deviation=noise[0],
        design_effect=alike,
        detectable=smallest_lift(*noise, counts.events, *sure),
        needed=tuple(needed),
        limits=tuple(Limit(name, size, smallest_lift(*noise, size, *sure)) for name, size in horizons.items()),
        relief=relief,
    )
