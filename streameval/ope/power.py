"""Forecast from a log how many events it takes to detect a lift of each candidate (statistical power)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec import structs

from streameval.common.arrays import Array
from streameval.errors import ConfigError
from streameval.events import EventBatch
from streameval.ope.candidates import EvaluatedPolicy
from streameval.ope.estimators import AnyEstimator
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.exploration import ExplorationPlan, ExplorationSums
from streameval.ope.policies.base import learns
from streameval.ope.policies.coded import fill, prepared
from streameval.ope.policies.logged import LOGGING
from streameval.ope.report import Estimate, PolicyCounts, Report

NEVER_LOGGED = 0.005
"""Probability of actions that are never logged above which a lift may be wrong by more than noise."""
FAR_OFF = 4.0
"""Allowed difference of a mean weight from 1, in standard errors."""
WEIGHT_EDGES = 2.0 ** np.arange(0, 24)
"""Bins of weights: up to 1, to 2, to 4, ..."""
MIN_NOISE_SHARE = 0.8
"""Smallest share of the noise that large weights must have. With less, they can hardly halve it."""
MAX_RARE_SHARE = 0.2
"""Largest share of events to spend on rare actions. More would change the rest of the log."""
TIMES = np.geomspace(1.05, 50, 400)
MIN_LARGE_EVENTS = 10
"""Smallest number of events with large weights. The noise of fewer events may be one wrong propensity."""


def events_needed(deviation: float, design_effect: float, lift: float, confidence: float, power: float) -> float:
    """Return the number of events that show a lift of this size: `D s^2 (z_c + z_p)^2 / lift^2`.

    A lift is shown once the lower bound of its normal interval is above 0. Other intervals are wider and need more
    events. `z_c` is the quantile of the two-sided interval of this confidence, and `z_p` the quantile of the power. If
    every weight is 1, this is the sample size of a paired experiment.

    Args:
        deviation: s, the standard deviation of one event's paired difference to production
        design_effect: D, the number of dependent events worth one independent event, 1 or more
        lift: the size of the lift
        confidence: of the two-sided interval
        power: the probability that the lift is shown

    >>> round(events_needed(0.5, 1.0, lift=0.01, confidence=0.95, power=0.8))
    19622

    Source: Casella & Berger, Statistical inference, 2002, ch. 8.3.
    """
    return max(1.0, design_effect) * (deviation * _quantiles(confidence, power) / lift) ** 2


def smallest_lift(deviation: float, design_effect: float, events: float, confidence: float, power: float) -> float:
    """Return the lift that this many events show with this power, the inverse of `events_needed`."""
    return deviation * _quantiles(confidence, power) * math.sqrt(max(1.0, design_effect) / events)


def _quantiles(confidence: float, power: float) -> float:
    normal = NormalDist()
    return max(0.0, normal.inv_cdf(0.5 + confidence / 2) + normal.inv_cdf(power))


class TargetLift(NamedTuple):
    """Hold a lift to detect.

    Attributes:
        size: in units of the reward, or as a factor of production's value
        relative: whether it is such a factor
    """

    size: float
    relative: bool = False

    @classmethod
    def read(cls, text: str) -> TargetLift:
        """Parse `0.01` or `5%`.

        Raises:
            ValueError: The text is not a lift.

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

    def absolute(self, production: float | None, reward_range: tuple[float, float]) -> float:
        """Return the lift in units of the reward.

        If production's value is not above 0, a relative lift is a share of the range.
        """
        if not self.relative:
            return self.size
        low, high = reward_range
        return self.size * (production if production is not None and production > 0 else high - low)


USUAL = tuple(TargetLift(size, relative=True) for size in (0.02, 0.05, 0.1, 0.2))
"""Default targets."""


class ExplorationAdvice(msgspec.Struct, frozen=True):
    """Advise that half as many events suffice if actions with large weights are taken more often.

    Attributes:
        over: the weight above which actions are meant
        events_share: the share of events with such weights
        noise_share: their share of the noise
        times: how many times as often they should be taken
    """

    over: float
    events_share: float
    noise_share: float
    times: float


class LogSummary:
    """Sum up a log: event times, sampling, and products of weights and rewards by size of weight.

    The noise of a lift is the variance of one event's paired difference. An event with importance weight w adds about
    `w^2` to it. If actions with large weights were taken c times as often, their weights and their share of the noise
    would be c times smaller, for equal rewards.

    Args:
        policies: production first
        coded: the policies in code, which are evaluated on every event
        reward_range: the lowest and the highest reward
        explores: whether to plan exploration, from full distributions over actions

    Raises:
        ConfigError: A policy learns from the stream.
    """

    def __init__(
        self,
        policies: Sequence[str],
        coded: Mapping[str, EvaluatedPolicy],
        reward_range: tuple[float, float],
        explores: bool = False,
    ):
        self.policies, self.reward_range = tuple(policies), reward_range
        learning = [name for name, policy in coded.items() if learns(policy)]
        if learning:
            raise ConfigError(
                f"{learning[0]} learns from the stream: its lift changes while it learns, so no log can predict it",
                hint="leave this candidate out, or plan for a policy that does not change",
            )
        self._coded = prepared(coded)
        self._exploration = ExplorationSums(len(self.policies)) if explores else None
        self._first, self._last, self._timed = math.inf, -math.inf, 0
        self._sampling = np.zeros((len(self.policies), 3))
        # Products of 1, w, w r, v, v r, with the weight v of production. `advice` shares no sums with `exploration`,
        # which needs full distributions, nor with the Report, which does not split its noise by size of weight.
        self._products = np.zeros((len(self.policies), len(WEIGHT_EDGES) + 1, 5, 5))

    def update(self, batch: EventBatch) -> None:
        """Add events. If a reward is out of range, only the event's time counts."""
        timestamps = batch.timestamp[~np.isnan(batch.timestamp)]
        if len(timestamps):
            self._first, self._last = (
                min(self._first, float(timestamps.min())),
                max(self._last, float(timestamps.max())),
            )
            self._timed += len(timestamps)
        low, high = self.reward_range
        batch, _ = batch.clipped((low, high))
        batch = batch.take((batch.reward >= low) & (batch.reward <= high))
        if not len(batch):
            return
        named = batch.with_policies(policy for policy in self.policies if policy != LOGGING)
        evidence = Evidence.from_batch(fill(named, self._coded)[0], self.policies, len(batch))
        if self._exploration is not None:
            self._exploration.add(evidence)
        other, reward = evidence.importance_weight[:, 0], evidence.reward
        for index in range(1, len(self.policies)):
            q = np.where(evidence.sample_weight[:, 0] > 0, evidence.sample_weight[:, index], 0.0)
            self._sampling[index] += np.count_nonzero(q), q.sum(), q @ q
            weight = evidence.importance_weight[:, index]
            columns = np.column_stack([np.ones_like(weight), weight, weight * reward, other, other * reward])
            products = q[:, None, None] * columns[:, :, None] * columns[:, None, :]
            np.add.at(self._products[index], np.searchsorted(WEIGHT_EDGES, weight), products)

    @property
    def events_per_second(self) -> float | None:
        """Return the rate of the log, or None if times are unknown or equal."""
        return (self._timed - 1) / (self._last - self._first) if self._last > self._first else None

    def unevenness(self, policy: str) -> float:
        """Return `n sum(q^2) / (sum q)^2`, the increase of the events needed by uneven sampling."""
        events, total, squares = self._sampling[self.policies.index(policy)]
        return float(events * squares / total**2) if total > 0 else 1.0

    def exploration(self, policy: str) -> ExplorationPlan | None:
        """Return the planned exploration, None if it is not asked for or no event has full distributions."""
        return None if self._exploration is None else self._exploration.plan(self.policies.index(policy))

    def advice(self, policy: str) -> ExplorationAdvice | None:
        """Return the exploration that would halve the events needed, or None without such advice.

        A few events must have most of the noise, and halving it must leave the rest of the log nearly unchanged. If
        those events are c times as frequent, the others are rarer by as much, and their weights larger.
        """
        products = self._products[self.policies.index(policy)]
        events, noise = (column[::-1].cumsum()[::-1] for column in (products[:, 0, 0], _noise(products)))
        if not (events[0] > 0 and noise[0] > 0):
            return None
        large = int(np.flatnonzero(noise >= MIN_NOISE_SHARE * noise[0])[-1])
        if large == 0 or events[large] < MIN_LARGE_EVENTS:
            return None
        share, noise_share = float(events[large] / events[0]), float(noise[large] / noise[0])
        rest = noise_share / TIMES + (1 - noise_share) * (1 - share) / np.maximum(1 - TIMES * share, 1e-9)
        enough = TIMES[(TIMES * share <= MAX_RARE_SHARE) & (rest <= 0.5)]
        return (
            ExplorationAdvice(float(WEIGHT_EDGES[large - 1]), share, noise_share, float(enough[0]))
            if len(enough)
            else None
        )


def _noise(products: Array) -> Array:
    """Sum `(w (r - E) / sum(w) - v (r - P) / sum(v))^2` by size of weight, with the `snips` values E and P."""
    _, weight, rewarded, other, other_rewarded = products[:, 0].sum(axis=0)
    if not (weight > 0 and other > 0):
        return np.zeros(len(products))
    difference = np.array([0, -rewarded / weight**2, 1 / weight, other_rewarded / other**2, -1 / other])
    return np.asarray(np.maximum(products @ difference @ difference, 0.0))


class EventsNeeded(msgspec.Struct, frozen=True):
    """Hold the number of events that show a lift of this size, and the seconds they take at the rate of the log."""

    lift: float
    events: float
    seconds: float | None


class Limit(msgspec.Struct, frozen=True):
    """Hold the smallest lift that an average with the weight of this many events can ever show."""

    average: str
    events: float
    lift: float


class CandidatePower(msgspec.Struct, frozen=True):
    """Hold the events needed to show a lift of one candidate, by the first estimator with evidence.

    Attributes:
        policy: the candidate
        events: the number of its events
        reason: why no number can be given, None if one can
        estimator: the estimator in use
        value: the estimate of the value
        lift: the estimate of the lift, with its bounds in the next fields
        effective_share: effective sample size per event, 1 if the candidate acts like the log
        deviation: the standard deviation of one event's paired difference to production
        design_effect: the number of dependent events worth one independent event
        detectable: the smallest lift that the events so far show with the requested power
        needed: the events needed for each target
        limits: the smallest lift for each average that forgets
        relief: advice on exploration
        exploration: the exploration that halves the events needed, None unless `plan --explore` asks for it
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
    exploration: ExplorationPlan | None = None


class PowerReport(msgspec.Struct, frozen=True):
    """Hold the forecast for a log, which `streameval plan --json` prints."""

    production: str
    value: float | None
    confidence: float
    power: float
    events: int
    events_per_second: float | None
    lifts: tuple[float, ...]
    candidates: tuple[CandidatePower, ...]

    def to_json(self) -> bytes:
        """Return the report as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


def forecast_power(
    report: Report,
    log: LogSummary,
    estimators: Mapping[str, AnyEstimator],
    targets: Sequence[TargetLift],
    power: float,
    horizons: Mapping[str, float],
) -> PowerReport:
    """Forecast after a log.

    Args:
        report: the Report of one average that weighs all events equally
        log: the sums over the log
        estimators: by label, the preferred one first
        targets: the lifts to detect
        power: the probability that a lift is shown
        horizons: the number of events that each average that forgets is worth, by label
    """
    report = report.of_goal()
    production = _best(report, report.production, estimators)
    value = None if production is None else production.value
    lifts = {target.absolute(value, log.reward_range) for target in targets}
    forecast = PowerReport(
        production=report.production,
        value=value,
        confidence=report.confidence,
        power=power,
        events=report.events.accepted,
        events_per_second=log.events_per_second,
        lifts=tuple(sorted(lifts)),
        candidates=(),
    )
    candidates = []
    for counts in report.policies[1:]:
        estimate = _best(report, counts.policy, estimators)
        reason = _obstacle(counts, estimate)
        if reason or estimate is None:
            candidates.append(CandidatePower(counts.policy, counts.events, reason))
            continue
        candidate = _candidate(counts, estimate, forecast, log.unevenness(counts.policy), horizons)
        relief = log.advice(counts.policy) if _weights_only(estimators[estimate.estimator]) else None
        exploration = log.exploration(counts.policy)
        candidates.append(structs.replace(candidate, relief=relief, exploration=exploration))
    return structs.replace(forecast, candidates=tuple(candidates))


def _weights_only(estimator: AnyEstimator) -> bool:
    """Tell whether the noise of an unbiased estimator grows with the weights, because no model reduces it."""
    return not (estimator.is_biased_by_design or estimator.needs)


def _best(report: Report, policy: str, estimators: Mapping[str, AnyEstimator]) -> Estimate | None:
    """Return the estimate by the first estimator that has the evidence.

    An estimator with less than half of the effective sample size of the importance weights of all events is skipped,
    because most events lack the fields that it needs.
    """
    by_estimator = {
        estimate.estimator: estimate
        for estimate in report.estimates
        if estimate.policy == policy and estimate.value is not None
    }
    sizes = {label: estimate.effective_sample_size or 0.0 for label, estimate in by_estimator.items()}
    largest = max(
        (sizes[name] for name in by_estimator if name in estimators and _weights_only(estimators[name])), default=0.0
    )
    return next(
        (by_estimator[label] for label in estimators if label in by_estimator and sizes[label] >= largest / 2), None
    )


def _obstacle(counts: PolicyCounts, estimate: Estimate | None) -> str | None:
    """Return why no number of events can be given for a candidate, or None."""
    if not counts.events:
        return "no event carries its probability"
    if estimate is None or not estimate.importance_weight_max:
        return "the log has no action that the candidate would take"
    never = estimate.details.get("unsupported_probability") or 0.0
    if never > NEVER_LOGGED:
        return f"{never:.1%} of its actions are never logged: no number of events shows their reward"
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
    """Return the standard error of the mean weight, from the effective sample size `n mean(w)^2 / mean(w^2)`."""
    size = estimate.effective_sample_size or 0.0
    if not size:
        return math.inf
    effect = max(1.0, estimate.details.get("design_effect") or 1.0)
    return (estimate.importance_weight_mean or 0.0) * math.sqrt(max(events / size - 1, 0.0) / events * effect)


def _candidate(
    counts: PolicyCounts, estimate: Estimate, forecast: PowerReport, unevenness: float, horizons: Mapping[str, float]
) -> CandidatePower:
    effect = estimate.details.get("lift_design_effect") or 1.0
    noise = (estimate.details["lift_deviation"], max(1.0, effect) * unevenness)
    certainty = (forecast.confidence, forecast.power)
    share, rate = counts.events / max(forecast.events, 1), forecast.events_per_second
    needed = []
    for lift in forecast.lifts:
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
    )
