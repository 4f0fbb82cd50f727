"""How many events it takes to detect a lift of each candidate, forecast from a log."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import msgspec
from msgspec import structs

from streameval.ope.estimators import AnyEstimator
from streameval.ope.power.exploration import Exploration, ExplorationAdvice
from streameval.ope.report import Estimate, PolicyCounts, Report


def events_needed(deviation: float, design_effect: float, lift: float, confidence: float, power: float) -> float:
    """`D s^2 (z_c + z_p)^2 / lift^2` events show a lift of this size with this power.

    A lift is shown once the lower bound of its normal interval is above 0; other intervals are wider and need more
    events. `z_c` is the quantile of the two-sided interval of this confidence, `z_p` that of the power. Where every
    weight is 1 this is the sample size of a paired experiment.

    Args:
        deviation: s, the standard deviation of one event's paired difference to production.
        design_effect: D, the number of dependent events worth one independent event, 1 or more.

    >>> round(events_needed(0.5, 1.0, lift=0.01, confidence=0.95, power=0.8))
    19622

    Source: Casella & Berger, Statistical inference, 2002, ch. 8.3.
    """
    return max(1.0, design_effect) * (deviation * _quantiles(confidence, power) / lift) ** 2


def smallest_lift(deviation: float, design_effect: float, events: float, confidence: float, power: float) -> float:
    """The lift that so many events show with this power, the inverse of `events_needed`.

    >>> round(smallest_lift(0.5, 1.0, events=19_622, confidence=0.95, power=0.8), 6)
    0.01
    """
    return deviation * _quantiles(confidence, power) * math.sqrt(max(1.0, design_effect) / events)


def _quantiles(confidence: float, power: float) -> float:
    normal = NormalDist()
    return max(0.0, normal.inv_cdf(0.5 + confidence / 2) + normal.inv_cdf(power))


class TargetLift(NamedTuple):
    """A lift: `size` in units of the reward, or, where it is `relative`, times production's value."""

    size: float
    relative: bool = False

    @classmethod
    def read(cls, text: str) -> TargetLift:
        """Parse `0.01` or `5%`. Raises ValueError for other text.

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
        """The lift in units of the reward; None if it is relative and production's value is not above 0."""
        if not self.relative:
            return self.size
        return self.size * production if production is not None and production > 0 else None

    def of_range(self, width: float) -> TargetLift:
        """The same share of the width of the reward range, for when production's value is unknown."""
        return TargetLift(self.size * width) if self.relative else self


USUAL = tuple(TargetLift(size, relative=True) for size in (0.02, 0.05, 0.1, 0.2))
"""The default targets."""


NEVER_LOGGED = 0.005
"""Probability of actions that are never logged, above which a lift may be wrong by more than noise."""
FAR_OFF = 4.0
"""Standard errors that a mean weight may differ from 1."""


class LogSpan(NamedTuple):
    """The event times of a log: the first, the last, and how many events have one."""

    first: float = math.inf
    last: float = -math.inf
    events: int = 0

    @property
    def events_per_second(self) -> float | None:
        """The rate of the log; None where times are unknown or equal."""
        return (self.events - 1) / (self.last - self.first) if self.last > self.first else None


class EventsNeeded(msgspec.Struct, frozen=True):
    """The number of events that show a lift of this size, and the seconds they take at the rate of the log."""

    lift: float
    events: float
    seconds: float | None


class Limit(msgspec.Struct, frozen=True):
    """The smallest lift that an average with the weight of so many events can ever show."""

    average: str
    events: float
    lift: float


class CandidatePower(msgspec.Struct, frozen=True):
    """The events needed to show a lift of one candidate, by the first estimator with evidence.

    `reason`: why no number can be given. `effective_share`: effective sample size per event, 1 where the candidate acts
    like the log. `deviation`: of one event's paired difference to production. `detectable`: the smallest lift that the
    events so far show with the requested power.
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
    """The forecast for a log; `streameval plan --json` prints it."""

    production: str
    value: float | None
    confidence: float
    power: float
    events: int
    events_per_second: float | None
    lifts: tuple[float, ...]
    candidates: tuple[CandidatePower, ...]

    def to_json(self) -> bytes:
        """The report as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


def forecast_power(
    report: Report,
    estimators: Mapping[str, AnyEstimator],
    targets: Sequence[TargetLift],
    power: float,
    span: LogSpan,
    exploration: Exploration,
    horizons: Mapping[str, float],
) -> PowerReport:
    """The forecast after a log.

    Args:
        report: of one average, on which every event counts the same.
        estimators: by label, the preferred one first.
        horizons: the number of events that each average that forgets is worth, by label.
    """
    value = _best(report, report.production, estimators)
    earned = None if value is None else value.value
    low, high = exploration.reward_range
    lifts = {target.absolute(earned) or target.of_range(high - low).size for target in targets}
    found = PowerReport(
        report.production,
        earned,
        report.confidence,
        power,
        report.events.accepted,
        span.events_per_second,
        tuple(sorted(lifts)),
        (),
    )
    candidates = []
    for counts in report.policies[1:]:
        estimate = _best(report, counts.policy, estimators)
        reason = _obstacle(counts, estimate)
        if reason or estimate is None:
            candidates.append(CandidatePower(counts.policy, counts.events, reason or "it has no estimate"))
            continue
        relief = exploration.advice(counts.policy) if _weights_only(estimators[estimate.estimator]) else None
        uneven = exploration.unevenness(counts.policy)
        candidates.append(_candidate(counts, estimate, found, uneven, horizons, relief))
    return structs.replace(found, candidates=tuple(candidates))


def _weights_only(estimator: AnyEstimator) -> bool:
    """Whether the noise of an unbiased estimator grows with the weights, because no model reduces it."""
    return not (estimator.is_biased_by_design or estimator.needs)


def _best(report: Report, policy: str, estimators: Mapping[str, AnyEstimator]) -> Estimate | None:
    """The estimate by the first estimator that has the evidence.

    An estimator with less than half of the effective sample size of the importance weights of all events is skipped:
    most events lack what it needs.
    """
    known = {each.estimator: each for each in report.estimates if each.policy == policy and each.value is not None}
    sizes = {label: each.effective_sample_size or 0.0 for label, each in known.items()}
    most = max((sizes[name] for name in known if name in estimators and _weights_only(estimators[name])), default=0.0)
    return next((known[label] for label in estimators if label in known and sizes[label] >= most / 2), None)


def _obstacle(counts: PolicyCounts, estimate: Estimate | None) -> str | None:
    """Why no number of events can be given for a candidate."""
    if not counts.events:
        return "no event carries its probability"
    if estimate is None or not estimate.importance_weight_max:
        return "the log never takes an action that it would take"
    never = estimate.details.get("unsupported_probability") or 0.0
    if never > NEVER_LOGGED:
        return f"{never:.1%} of what it does is never logged: no number of events shows what that earns"
    if estimate.lift_lower is None or estimate.details.get("lift_deviation") is None:
        return "fewer than ten of its events have a reward: too few to estimate the noise"
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


def _candidate(
    counts: PolicyCounts,
    estimate: Estimate,
    found: PowerReport,
    uneven: float,
    horizons: Mapping[str, float],
    relief: ExplorationAdvice | None,
) -> CandidatePower:
    effect = estimate.details.get("lift_design_effect") or 1.0
    noise = (estimate.details["lift_deviation"], max(1.0, effect) * uneven)
    certainty = (found.confidence, found.power)
    share, rate = counts.events / max(found.events, 1), found.events_per_second
    needed = []
    for lift in found.lifts:
        events = events_needed(*noise, lift, *certainty)
        needed.append(EventsNeeded(lift, math.ceil(events), events / rate / share if rate else None))
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
        design_effect=effect,
        detectable=smallest_lift(*noise, counts.events, *certainty),
        needed=tuple(needed),
        limits=tuple(Limit(name, size, smallest_lift(*noise, size, *certainty)) for name, size in horizons.items()),
        relief=relief,
    )
