"""Hold all results in one immutable value, the Report, which metrics, HTTP, tables and files read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
import numpy as np

from streameval.common.text import format_duration
from streameval.errors import InputError
from streameval.events.schema import described_schema
from streameval.ope.intervals import Interval
from streameval.ope.reward_models.online import RewardModelAccuracy

__all__ = [
    "Calibration",
    "ClippedReward",
    "Decision",
    "Estimate",
    "EventCounts",
    "Examined",
    "Failure",
    "Forecast",
    "GuardrailCheck",
    "Learner",
    "NewVersion",
    "PolicyCounts",
    "Profile",
    "PropensityModel",
    "Report",
    "SegmentEstimate",
    "Transition",
    "TrustCheck",
]

State: TypeAlias = Literal["promotable", "undecided", "worse", "untrusted"]
EVIDENCE_CHECK = "effective_sample_size"
"""The trust check that fails for lack of evidence, although the numbers may be right."""
THIN, RICHER = 100.0, 10.0
"""Effective sample size below which a row is thin, and the ratio of a richer row to it."""


class EventCounts(msgspec.Struct, frozen=True):
    """Count events since the start of the state.

    Attributes:
        accepted: the number of accepted events
        rejected: the number of rejected events by reason
        last_timestamp: the newest event time in epoch seconds
        first_timestamp: the oldest event time in epoch seconds
    """

    accepted: int
    rejected: Mapping[str, int]
    last_timestamp: float | None
    first_timestamp: float | None = None


OTHER_FAILURES = ("not_learned", "not_copied", "not_saved", "not_loaded", "not_written")
"""Reasons for failures of a policy in code that cost no event: it did not learn a block, and it had no frozen copy, was
not in a snapshot, started to learn again after a restart, or gave no content for its file."""


class Failure(msgspec.Struct, frozen=True):
    """Count failures of a policy in code for one reason, with the first example.

    They are events without a valid distribution, unless the reason is one of `OTHER_FAILURES`.
    """

    reason: str
    count: int
    example: str


class PolicyCounts(msgspec.Struct, frozen=True):
    """Count the events of a policy since the start.

    Attributes:
        policy: the name of the policy
        production: whether it is production
        events: events that carried the policy's probability
        missing: events that did not
        failures: why events are missing for a policy in code
        drift_detections: how often the drift detector found a change in the policy's value, None without a detector
    """

    policy: str
    production: bool
    events: int
    missing: int
    failures: tuple[Failure, ...] = ()
    drift_detections: int | None = None


class Forecast(msgspec.Struct, frozen=True):
    """Hold the value of a policy in some hours if the season goes on and nothing else changes.

    Attributes:
        ahead: the time until then, `1h` to `24h`
        value: the forecast
        lower: the lower bound of its interval, None if it is unknown
        upper: the upper bound of its interval, None if it is unknown
    """

    ahead: str
    value: float
    lower: float | None = None
    upper: float | None = None


class Estimate(msgspec.Struct, frozen=True):
    """Hold the value of `policy` for one `reward`, by `estimator` on `average`, with its interval and diagnostics.

    Unknown numbers are None.

    Attributes:
        policy: the name of the policy
        estimator: the label of the estimator
        average: the label of the average
        value: the estimated value
        lower: the lower bound of the interval of the value
        upper: the upper bound of the interval of the value
        kind: the kind of the interval
        anytime: whether the interval is valid under continuous monitoring
        covers: `average`, `current` or `estimand`, see `Interval`
        effective_sample_size: the number of equally weighted events with as much evidence
        importance_weight_mean: 1 is expected
        importance_weight_max: the largest importance weight. With the weights `G` of slates it is the largest `|G|`,
            which is their rho once every slate has been shown.
        lift: the estimated difference to production, with its bounds in the next fields
        lift_ratio: the lift over the size of production's value on the events of both and with the weights of the lift,
            known if the interval of that value excludes 0
        details: diagnostics of the average and the interval (tau, alpha, k, horizon, ...)
        reward: the name of the reward
        propensity: `logged`, or `estimated` with an error that the interval leaves out
        forecast: the value in the next 24 hours, empty unless the average is seasonal and has seen a whole period
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
    lift_ratio: float | None = None
    lift_ratio_lower: float | None = None
    lift_ratio_upper: float | None = None
    details: Mapping[str, Any] = {}
    reward: str = "reward"
    propensity: str = "logged"
    forecast: tuple[Forecast, ...] = ()

    @property
    def interval(self) -> Interval:
        """Return the interval around `value`, with bounds of None while it is withheld."""
        return Interval(self.lower, self.upper, self.kind, self.anytime, self.covers)

    @property
    def is_impossible(self) -> bool:
        """Tell whether the value is outside its interval, because no rewards have such a mean."""
        if self.value is None or self.lower is None or self.upper is None:
            return False
        return not self.lower <= self.value <= self.upper


class GuardrailCheck(msgspec.Struct, frozen=True):
    """Tell whether a candidate keeps a guardrail: the decision bound of its lift must be above `-max_loss`.

    Attributes:
        reward: the guardrail
        max_loss: the largest loss that is allowed
        ok: whether the candidate keeps it
        reason: why (not)
        lift: the estimated lift of this reward
        lower: its decision bound by the rule
        worse: whether the rule has proven a loss larger than `max_loss`, None for rules that cannot tell
    """

    reward: str
    max_loss: float
    ok: bool
    reason: str
    lift: float | None = None
    lower: float | None = None
    worse: bool | None = None

    @property
    def verdict(self) -> Literal["kept", "not kept yet", "not kept"]:
        """Return `not kept` if the lift itself is too large a loss, and `not kept yet` if more events may help."""
        if self.ok:
            return "kept"
        return "not kept" if self.lift is not None and self.lift <= -self.max_loss else "not kept yet"


DAY, WEEK = 86_400.0, 604_800.0
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


class Profile(msgspec.Struct, frozen=True):
    """Hold the lift of a candidate by the phases of a period: the hours of a day in UTC, or the days of a week.

    The days of a week start on Monday, and other periods in 1970. Unknown numbers are None.

    Attributes:
        period: the length of the period in seconds
        periods: the number of periods so far, with the unfinished hour
        phase: the index of the present phase
        lift: the lift that each phase used to have
        error: its standard error, from sampling and from periods that differ
        share: the share of traffic of each phase
        latest: the lift of each phase at its newest occurrence, without the unfinished hour
    """

    period: float
    periods: float
    phase: int
    lift: tuple[float | None, ...]
    error: tuple[float | None, ...]
    share: tuple[float | None, ...]
    latest: tuple[float | None, ...]

    @property
    def names(self) -> list[str]:
        """Return the names of the phases, in other periods the time since their start.

        >>> Profile(240.0, 2.0, 0, (0.1, 0.2), (), (), ()).names
        ['0s', '2m']
        """
        count = len(self.lift)
        if self.period == WEEK and count == len(WEEKDAYS):
            return list(WEEKDAYS)
        if self.period == DAY:
            return [f"{hour:02}" for hour in range(count)]
        return [format_duration(self.period * phase / count) for phase in range(count)]

    @property
    def title(self) -> str:
        """Say what the phases are."""
        return {DAY: "hour of the day (UTC)", WEEK: "day of the week (UTC)"}.get(
            self.period, f"phase of the period of {format_duration(self.period)}"
        )


class Basis(msgspec.Struct, frozen=True):
    """Tell what a decision rests on, None if unknown.

    Attributes:
        effective_events: the number of equally weighted events with as much evidence about the candidate
        largest_share: the share of the total weight, or of the value, that one event carries
        standard_errors: the lift in standard errors
        missing_share: the share of events that the candidate lacks
        clipped_share: the share of the latest rewards that were clipped, None if rewards are rejected instead
        failed: the trust checks that fail for the candidate or for production
        propensity_factor: the lower bound of the lift stays above the margin while no importance weight, and for
            rankings no examination probability, is wrong by more than this factor. None if it is not above, and for
            slates, clipped weights and models
    """

    effective_events: float | None = None
    largest_share: float | None = None
    standard_errors: float | None = None
    missing_share: float | None = None
    clipped_share: float | None = None
    failed: tuple[str, ...] = ()
    propensity_factor: float | None = None


class Decision(msgspec.Struct, frozen=True):
    """Tell whether a candidate may replace production by a promotion rule, and why (not).

    Attributes:
        policy: the candidate
        rule: the label of the rule
        promotable: whether it may replace production
        reason: why (not)
        lift: the estimated lift
        lower: the bound that the rule compares with the margin
        events: the number of events of the candidate
        held: the number of block ends in a row at which it passed
        since_event: when it became promotable by the rule and the weights alone, in events since the start
        since_timestamp: likewise in epoch seconds
        first_event: when it became promotable for the first time
        first_timestamp: likewise in epoch seconds
        first_lift: the estimated lift at that time
        lift_since: the mean of the estimated lift at all block ends since that time
        times: how often it became promotable
        promotable_events: for how many events in total it was promotable
        estimator: the estimator of the deciding lift, None until it is known
        average: the average of the deciding lift, None until it is known
        more: how many more events are needed at the current rate, None if unknown
        reward: the primary reward
        propensity: as in `Estimate`
        guardrails: the rewards that it must not lose
        decides: whether the rule decides. `paired` beside `periodic` only tells whether the candidate is better at this
            minute, unless too many events lack the timestamps that `periodic` needs. It is then never promotable.
        worse: whether the rule has proven that it is worse than production: that its lift is below the margin (0 if the
            margin is above), or the lift of a guardrail below `-max_loss`. None for rules that cannot tell
        profiles: the lift by the phases of each period that has been seen once, the shorter one first. Only `periodic`
            has them
        covers: what its lift is about: a whole `period`, the `present`, or the `average` of all events. None if unknown
        state: what to do about the candidate by this rule. `untrusted` if a trust check fails, except for one that
            fails for lack of evidence, which leaves it `undecided`
        basis: what it rests on
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
    estimator: str | None = None
    average: str | None = None
    more: float | None = None
    reward: str = "reward"
    propensity: str = "logged"
    guardrails: tuple[GuardrailCheck, ...] = ()
    decides: bool = True
    worse: bool | None = None
    profiles: tuple[Profile, ...] = ()
    covers: Literal["period", "present", "average"] | None = None
    state: State = "undecided"
    basis: Basis = Basis()

    @property
    def is_of_periods(self) -> bool:
        """Tell whether the rule judges whole periods."""
        return self.worse is not None and self.covers in (None, "period")


class TrustCheck(msgspec.Struct, frozen=True):
    """Tell whether a policy passes one trust check, and why. While one fails, nothing is promotable."""

    policy: str
    check: str
    ok: bool
    reason: str


class Contender(msgspec.Struct, frozen=True):
    """Compare a candidate with the leader: the candidate that looks best of those that can be trusted.

    Attributes:
        policy: the candidate
        leader: the leader, which may be the candidate itself
        beaten: whether the upper bound is below 0. With the confidence of the Report, no candidate is ever beaten by
            one that is not better on average, however often anyone looks
        lift: the lift over the leader per event, None for the leader
        upper: its upper bound, which holds at all times at once for all pairs of candidates, None for the leader
    """

    policy: str
    leader: str
    beaten: bool
    lift: float | None = None
    upper: float | None = None


class Transition(msgspec.Struct, frozen=True):
    """Hold the moment when a candidate became promotable or `worse`, or ceased to be.

    Attributes:
        policy: the candidate
        rule: the label of the rule
        event: the number of events since the start
        timestamp: in epoch seconds
        promotable: whether it became promotable. False is the end of it only if `worse` is None
        lift: the estimated lift at that moment
        lift_lower: the decision bound of the rule, None without one
        lift_upper: as far above the lift as the decision bound is below, None without one
        reason: why
        place: topic, partition and offset of the event after which the rule decided, None in a log without offsets
        worse: whether it became worse than production, None if it became promotable or ceased to be
        state: the state of the candidate from then on, None if unknown
        basis: the evidence at that moment, without shares and trust checks, None if unknown
    """

    policy: str
    rule: str
    event: int
    timestamp: float | None
    promotable: bool
    lift: float | None
    lift_lower: float | None = None
    lift_upper: float | None = None
    reason: str = ""
    place: tuple[str, int, int] | None = None
    worse: bool | None = None
    state: State | None = None
    basis: Basis | None = None


class NewVersion(msgspec.Struct, frozen=True):
    """Announce a frozen copy of a policy that learns, which is a candidate from now on.

    Attributes:
        policy: the name of the copy
        of: the policy that was copied
        event: the number of events since the start at that moment
        timestamp: the newest event time at that moment, in epoch seconds
        retired: the copies that stopped being candidates
        place: as in `Transition`
        file: the name of its policy file, None without one
    """

    policy: str
    of: str
    event: int
    timestamp: float | None
    retired: tuple[str, ...] = ()
    place: tuple[str, int, int] | None = None
    file: str | None = None


class Learner(msgspec.Struct, frozen=True):
    """Describe a candidate that learns from the stream, or a frozen copy of one.

    Attributes:
        policy: the name of the candidate
        steps: how often it has learned
        version: the number of its newest frozen copy, its own number for a copy, or None
        regret: the cumulative value of production minus this policy's, by the first estimator of the lift between them,
            below 0 if the policy is better
        step_norm: the Euclidean length of its last step, None if there is no such step
        learning_rate: the factor of its steps, None if there is none
        failures: the number of events that code could not learn from
        learns: whether it keeps learning, which a copy does not
        accepted_share: the share of the events that a policy learned from, of the events that it could decide, if it
            learns from its own choices. None in other cases, also in the next fields
        accepted_effective: the number of its own choices that these events are worth
        accepted_value: the mean reward of these events, which is the value of the policy while it learned
    """

    policy: str
    steps: int
    version: int | None = None
    regret: float | None = None
    step_norm: float | None = None
    learning_rate: float | None = None
    failures: int = 0
    learns: bool = True
    accepted_share: float | None = None
    accepted_effective: float | None = None
    accepted_value: float | None = None


class Calibration(msgspec.Struct, frozen=True):
    """Compare the value of a policy on its own events with the value estimated from others' events.

    Unknown numbers are None.

    Attributes:
        policy: the name of the policy
        average: the label of the average
        value: the mean reward of the events that the policy chose itself, with its interval in `lower` and `upper`
        estimated: the estimate from the events that other policies chose
        error: the estimated minus the seen value, with its interval in the next fields
        lift_estimated: the estimated lift, None for production
        lift: the lift over production's own events, or over all others' events if production is `logging`, None for
            production, with its interval in the next fields
        propensity: `logged`, or `estimated` with an error that no interval includes
    """

    policy: str
    average: str
    value: float | None
    lower: float | None
    upper: float | None
    estimated: float | None
    error: float | None
    error_lower: float | None
    error_upper: float | None
    lift_estimated: float | None
    lift: float | None
    lift_lower: float | None
    lift_upper: float | None
    propensity: str = "logged"


class PropensityModel(msgspec.Struct, frozen=True):
    """Measure how well a model predicts the logged actions, each before it learned from it.

    Its predictions serve as propensities.

    Attributes:
        model: the name of the model
        events: the number of events that it learned from
        unknown: events without an estimate, which are missing for all candidates
        log_loss: the mean of `-ln p` over the last 100,000 events with an estimate
        baseline_log_loss: the mean for the shares of the actions, whatever the context. A useful model is below it.
        failures: events that a classifier did not learn from, because it raised
    """

    model: str
    events: int
    unknown: int
    log_loss: float | None
    baseline_log_loss: float | None
    failures: int = 0


class SegmentEstimate(msgspec.Struct, frozen=True):
    """Hold the value of `policy` for the events of one value of a segment.

    The shares times the lifts of all values of a segment add up to the lift of the estimate with this `estimator` and
    `average`, if every event has a value. Intervals of one policy hold together with the confidence of the Report.
    Unknown numbers are None, and lifts of production are None.

    Attributes:
        policy: the name of the policy
        segment: the name of the segment, e.g. `country`
        segment_value: e.g. `de`
        estimator: the label of the estimator
        average: the label of the average
        share: the share of the averaged events
        events: the number of equally weighted events that would carry as much evidence
        value: the estimated value, with its interval in `lower` and `upper`
        lift: the estimated difference to production, with its interval in the next fields
        kind: the kind of the interval
        propensity: as in `Estimate`
    """

    policy: str
    segment: str
    segment_value: str
    estimator: str
    average: str
    share: float | None
    events: float | None
    value: float | None
    lower: float | None
    upper: float | None
    lift: float | None
    lift_lower: float | None
    lift_upper: float | None
    kind: str
    propensity: str = "logged"

    @property
    def is_worse(self) -> bool:
        """Tell whether the policy is worse than production on these events: the interval of its lift is below 0."""
        return self.lift_upper is not None and self.lift_upper < 0

    @property
    def lift_over_error(self) -> float | None:
        """Return the lift over half the width of its interval."""
        if self.lift is None or self.lift_lower is None or self.lift_upper is None:
            return None
        half = (self.lift_upper - self.lift_lower) / 2
        return self.lift / half if half else None


class ClippedReward(msgspec.Struct, frozen=True):
    """Tell how much clipping takes from a reward. All estimates of it are about the clipped reward.

    Attributes:
        reward: the name of the reward
        below: the number of events below the range, which count with its lower end
        above: the number of events above the range, which count with its upper end
        share: the share of clipped events since the start, None without events
        recent_share: the share among the last 100,000 events, which the trust check `clipped_share` judges
        worth: how much clipping takes from the mean reward of the log, below 0 if it adds. None without events. Scored
            outcomes count as 0, as their rewards are not known.
    """

    reward: str
    below: int
    above: int
    share: float | None
    recent_share: float | None
    worth: float | None


class RewardLimit(msgspec.Struct, frozen=True):
    """Tell which quantile of earlier rewards the next rewards are clipped at.

    Attributes:
        reward: the name of the reward
        quantile: the configured quantile
        limit: the quantile of the rewards until now. None before the first whole block, and if it is the smallest
            reward. Rewards are then not clipped.
    """

    reward: str
    quantile: float
    limit: float | None


class QuantileEstimate(msgspec.Struct, frozen=True):
    """Hold a quantile of a reward under a policy since the start.

    Attributes:
        policy: the name of the policy
        reward: the name of the reward
        quantile: the share of events with at most this reward
        value: the quantile, None without events
        lower: the lower bound of its interval, None with too few events below
        upper: the upper bound, None with too few events above
    """

    policy: str
    reward: str
    quantile: float
    value: float | None
    lower: float | None
    upper: float | None


class UnitEstimate(msgspec.Struct, frozen=True):
    """Hold the reward per unit of a policy in the last whole window, at the visits that production brought.

    Attributes:
        policy: the name of the policy
        reward: the name of the reward
        start: the first time of the window, in seconds since 1970
        end: the end of the window
        units: number of distinct units
        events: number of their events
        value: the reward per unit, None if more than one event in 1,000 of the window is left out
        lower: the lower bound of its interval, None too with fewer than ten units that earned something
        upper: the upper bound
        lift: the value less the value of production, None for production
        lift_lower: the lower bound of its interval
        lift_upper: the upper bound
        lift_ratio: the lift over the value of production
        lift_ratio_lower: the lower bound of its interval
        lift_ratio_upper: the upper bound
    """

    policy: str
    reward: str
    start: float
    end: float
    units: int
    events: int
    value: float | None = None
    lower: float | None = None
    upper: float | None = None
    lift: float | None = None
    lift_lower: float | None = None
    lift_upper: float | None = None
    lift_ratio: float | None = None
    lift_ratio_lower: float | None = None
    lift_ratio_upper: float | None = None


class Examined(msgspec.Struct, frozen=True):
    """Hold how often users look at a rank, relative to rank 1, as learned from the stream, with its interval."""

    rank: int
    value: float
    lower: float
    upper: float


Entry = TypeVar("Entry")


def grouped(entries: Iterable[Entry], attribute: str) -> dict[Any, list[Entry]]:
    """Group entries of a Report by one of their attributes, in order of first appearance."""
    groups: dict[Any, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(getattr(entry, attribute), []).append(entry)
    return groups


class Report(msgspec.Struct, frozen=True):
    """Hold everything known at one moment. `to_json` is the contract of `replay --json` and `/api/v1/report`."""

    confidence: float
    production: str
    events: EventCounts
    policies: tuple[PolicyCounts, ...]
    estimates: tuple[Estimate, ...]
    promotion: tuple[Decision, ...] = ()
    trust: tuple[TrustCheck, ...] = ()
    transitions: tuple[Transition, ...] = ()
    reward_model: RewardModelAccuracy | None = None
    examination: tuple[Examined, ...] = ()
    calibration: tuple[Calibration, ...] = ()
    segments: tuple[SegmentEstimate, ...] = ()
    learners: tuple[Learner, ...] = ()
    propensity_model: PropensityModel | None = None
    clipped: tuple[ClippedReward, ...] = ()
    contenders: tuple[Contender, ...] = ()
    limits: tuple[RewardLimit, ...] = ()
    quantiles: tuple[QuantileEstimate, ...] = ()
    per_unit: tuple[UnitEstimate, ...] = ()
    schema: int = 1

    def get(self, policy: str, estimator: str, average: str, reward: str | None = None) -> Estimate:
        """Return the estimate with these labels, by default for the primary reward.

        Raises:
            KeyError: There is no such estimate. The message lists the existing ones.
        """
        for estimate in self.estimates:
            labels_of = (estimate.policy, estimate.estimator, estimate.average)
            if labels_of == (policy, estimator, average) and reward in (None, estimate.reward):
                return estimate
        labels = sorted({f"{e.policy}/{e.estimator}/{e.average}" for e in self.estimates})
        raise KeyError(f"no estimate {policy}/{estimator}/{average}; there are {', '.join(labels)}")

    @property
    def goal(self) -> str:
        """Return the name of the first reward, which decides."""
        return self.estimates[0].reward if self.estimates else "reward"

    @property
    def rewards(self) -> list[str]:
        """Return the names of all rewards, the primary reward first."""
        return list(dict.fromkeys(estimate.reward for estimate in self.estimates))

    @property
    def caution(self) -> str:
        """Describe the error that no number includes, or return an empty text if propensities are logged."""
        if self.propensity_model is None:
            return ""
        return f"propensities are estimated ({self.propensity_model.model}): intervals leave out their error"

    @property
    def caution_about_learners(self) -> str:
        """Explain the bounds of candidates that keep learning, or return an empty text without any."""
        names = [learner.policy for learner in self.learners if learner.learns]
        if not names:
            return ""
        return (
            f"bounds of candidates that still learn ({', '.join(names)}) are about their past versions, on average, "
            "and promise nothing about the present ones: versions_of makes copies that do not change"
        )

    def of_goal(self) -> Report:
        """Return the Report with the estimates of the primary reward alone."""
        return self if len(self.rewards) < 2 else self.of_reward(self.goal)

    def of_reward(self, reward: str) -> Report:
        """Return the Report with the estimates of one reward alone."""
        return msgspec.structs.replace(
            self, estimates=tuple(estimate for estimate in self.estimates if estimate.reward == reward)
        )

    def segments_by_lift(self) -> list[SegmentEstimate]:
        """Return the rows of candidates by segment, ordered by lift over error. Rows without one come last."""
        rows = [row for row in self.segments if row.policy != self.production]
        return sorted(rows, key=lambda row: math.inf if row.lift_over_error is None else row.lift_over_error)

    def thin(self) -> frozenset[tuple[str, str]]:
        """Return pairs of an estimator and an average without evidence from most events, so that displays skip them.

        For production, such a pair has an effective sample size under 100, and another estimator on this average has
        ten times as much.
        """
        sizes = {
            (estimate.estimator, estimate.average): estimate.effective_sample_size or 0.0
            for estimate in self.estimates
            if estimate.policy == self.production and estimate.reward == self.goal
        }
        largest = {average: max(size for (_, label), size in sizes.items() if label == average) for _, average in sizes}
        return frozenset(
            pair
            for pair, size in sizes.items()
            if size < min(THIN, largest[pair[1]]) and size * RICHER <= largest[pair[1]]
        )

    def to_json(self, indent: int = 0) -> bytes:
        """Return the Report as JSON."""
        encoded = msgspec.json.encode(self)
        return msgspec.json.format(encoded, indent=indent) if indent else encoded

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12) of a Report."""
        return described_schema(cls)

    def to_frame(
        self, library: Literal["pandas", "polars"] = "pandas", rows: Literal["estimates", "segments"] = "estimates"
    ) -> Any:
        """Return the estimates (without `details` and `forecast`), or the segments, as a data frame.

        Unknown numbers are missing values.

        Raises:
            InputError: The library is not installed.
        """
        options = {"pandas": {}, "polars": {"nan_to_null": True}}[library]
        try:
            module = import_module(library)
        except ImportError as error:
            hint = f"pip install {library}"
            raise InputError(f"to_frame needs {library}, which is not installed", hint=hint) from error
        kinds = (SegmentEstimate if rows == "segments" else Estimate).__annotations__
        columns = {field: [getattr(row, field) for row in getattr(self, rows)] for field in kinds}
        for nested in ("details", "forecast"):
            columns.pop(nested, None)
        numbers = {  # NaN where it is None
            field: np.array(columns[field], dtype=float) for field in columns if kinds[field] == "float | None"
        }
        return module.DataFrame(columns | numbers, **options)

    def __str__(self) -> str:
        """Return the answer about each candidate, as `print` shows it."""
        text: str = import_module("streameval.ope.answer").answer_text(self)  # which is made of Reports
        return text

    def _repr_html_(self) -> str:
        """Return the answer, the estimates that decide, and all others folded, as notebooks show it."""
        html: str = import_module("streameval.ope.answer_html").answer_html(self)
        return html
