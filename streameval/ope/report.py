"""The Report: one immutable value, which metrics, HTTP, tables and files read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from html import escape
from importlib import import_module
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np

from streameval.common.text import counted, decimal, decimals_for
from streameval.errors import InputError
from streameval.events.schema import described_schema
from streameval.ope.intervals import Interval
from streameval.ope.reward_models.online import RewardModelAccuracy

__all__ = [
    "Calibration",
    "Decision",
    "Estimate",
    "EventCounts",
    "Examined",
    "Failure",
    "GuardrailCheck",
    "Learner",
    "NewVersion",
    "PolicyCounts",
    "PropensityModel",
    "Report",
    "SegmentEstimate",
    "Transition",
    "TrustCheck",
]

THIN, RICHER = 100.0, 10.0
"""Effective sample size below which a row is thin, and the factor by which another row must exceed it."""


class EventCounts(msgspec.Struct, frozen=True):
    """Events since the start of the state: accepted, rejected by reason, newest and oldest event time (seconds)."""

    accepted: int
    rejected: Mapping[str, int]
    last_timestamp: float | None
    first_timestamp: float | None = None


class Failure(msgspec.Struct, frozen=True):
    """Events for which a policy in code returned no valid distribution: a reason, the count and the first example."""

    reason: str
    count: int
    example: str


class PolicyCounts(msgspec.Struct, frozen=True):
    """Events since the start that carried the policy's probability (`events`) and that did not (`missing`).

    `failures`: why events are missing for a policy in code. `drift_detections`: how often the drift detector found a
    change in the policy's value; None without a detector.
    """

    policy: str
    production: bool
    events: int
    missing: int
    failures: tuple[Failure, ...] = ()
    drift_detections: int | None = None


class Estimate(msgspec.Struct, frozen=True):
    """The value of `policy` for one `reward`, by `estimator` on `average`, with its interval and diagnostics.

    Unknown numbers are None. `lift_ratio`: the lift over the size of production's value, known where the interval of
    that value is away from 0. `details`: diagnostics of the average and the interval (tau, alpha, k, horizon, ...).
    `propensity`: `logged`, or `estimated`, whose error is not in the interval.
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

    @property
    def interval(self) -> Interval:
        """The interval around `value`; its bounds are None while it is withheld."""
        return Interval(self.lower, self.upper, self.kind, self.anytime, self.covers)


class GuardrailCheck(msgspec.Struct, frozen=True):
    """Whether a candidate keeps a guardrail: whether the decision bound of its lift is above `-max_loss`, and why.

    `reward`: the guardrail. `lift`: the estimated lift of this reward; `lower`: its decision bound by the rule.
    """

    reward: str
    max_loss: float
    ok: bool
    reason: str
    lift: float | None = None
    lower: float | None = None

    @property
    def verdict(self) -> Literal["kept", "not kept yet", "not kept"]:
        """`not kept` where the lift itself is too large a loss; `not kept yet` where more events may help."""
        if self.ok:
            return "kept"
        return "not kept" if self.lift is not None and self.lift <= -self.max_loss else "not kept yet"


class Decision(msgspec.Struct, frozen=True):
    """Whether a candidate may replace production by a promotion rule, and why (not).

    `lift`: the estimated lift; `lower`: the bound that the rule compares with the margin. `events` of the candidate.
    `held`: the number of block ends in a row at which it passed. `since_...`: when it became promotable, by the rule
    and the weights alone, in events since the start and in epoch seconds; `first_...`: the same for the first time,
    with the lift then; `lift_since`: the mean of the estimated lift at all block ends since then. `times`: how often it
    became promotable; `promotable_events`: for how many events in total. `estimator`, `average`: those whose lift
    decides, once it is known. `reward`: the goal. `more`: how many more events are needed, at the present rate; None
    if it is not known. `propensity`: as of an `Estimate`. `guardrails`: the rewards that it must not lose.
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


class TrustCheck(msgspec.Struct, frozen=True):
    """Whether a policy passes one trust check, and why; while one fails, nothing is promotable."""

    policy: str
    check: str
    ok: bool
    reason: str


class Transition(msgspec.Struct, frozen=True):
    """The moment, in events since the start and epoch seconds, when a candidate became promotable or ceased to be.

    `lift`, `lift_lower`, `lift_upper`: the estimated lift and its interval then, which reaches from the decision bound
    of the rule to as far above the lift; None where the rule has no bound. `place`: topic, partition and offset of the
    event after which the rule decided; None where the log has no offsets.
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


class NewVersion(msgspec.Struct, frozen=True):
    """A frozen copy of a policy that learns, which is a candidate from now on.

    `of`: the policy that was copied, after `event` events since the start. `timestamp`: the newest event time then, in
    epoch seconds. `retired`: the copies that stopped being candidates. `place`: as in `Transition`. `file`: the
    name of its policy file; None where it has none.
    """

    policy: str
    of: str
    event: int
    timestamp: float | None
    retired: tuple[str, ...] = ()
    place: tuple[str, int, int] | None = None
    file: str | None = None


class Learner(msgspec.Struct, frozen=True):
    """A candidate that learns from the stream, or a frozen copy of one.

    `learns`: whether it keeps learning, which a copy does not. `steps`: how often it has learned. `version`: the
    number of its newest frozen copy; of a copy, its own number; None without any. `regret`: the cumulative value of
    production less that of this policy, by the first estimator of the lift between them; below 0 the policy is
    better. `step_norm`: the Euclidean length of its last step, and `learning_rate`: the factor of its steps; None
    where it has no such step. `failures`: the number of events that code could not learn from.
    """

    policy: str
    steps: int
    version: int | None = None
    regret: float | None = None
    step_norm: float | None = None
    learning_rate: float | None = None
    failures: int = 0
    learns: bool = True


class Calibration(msgspec.Struct, frozen=True):
    """Whether an estimate has come true: the value of a policy on its own events, and as estimated from others.

    `value`, `lower`, `upper`: the mean reward of the events that the policy chose itself, over the average, with its
    interval. `estimated`: the estimate from the events that other policies chose. `error`: estimated less seen.
    `lift_...`: the same over production's own events, or over those of all others where production is `logging`; None
    for production. Unknown numbers are None. `propensity`: `logged`, or `estimated`, whose error is in no interval.
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
    """How well a model predicts the logged actions, each before it learned from it; its predictions are propensities.

    `events`: those that it learned from; `unknown`: those among them without an estimate, which are missing for all
    candidates. `log_loss`: the mean of `-ln p` over the last 100,000 events with an estimate; `baseline_log_loss`: that
    of the shares of the actions, whatever the context. A model that a context helps is below it. `failures`: events
    that a classifier did not learn from, because it raised.
    """

    model: str
    events: int
    unknown: int
    log_loss: float | None
    baseline_log_loss: float | None
    failures: int = 0


class SegmentEstimate(msgspec.Struct, frozen=True):
    """The value of `policy` for the events of one value of a segment, by one of the estimators on one of the averages.

    `segment`, `segment_value`: e.g. `country` and `de`. `share`: the share of the averaged events. `events`: the number
    of equally weighted events that would carry as much evidence. The shares times the lifts of all values of a segment
    add up to the lift of the estimate with this `estimator` and `average`, where every event has a value. Intervals of
    one policy hold together with the confidence of the Report. Unknown numbers are None; lifts of production are.
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
        """Whether the policy is worse than production on these events: the interval of its lift is below 0."""
        return self.lift_upper is not None and self.lift_upper < 0

    @property
    def lift_over_error(self) -> float | None:
        """The lift over half the width of its interval."""
        if self.lift is None or self.lift_lower is None or self.lift_upper is None:
            return None
        half = (self.lift_upper - self.lift_lower) / 2
        return self.lift / half if half else None


class Examined(msgspec.Struct, frozen=True):
    """How often users look at a rank, relative to rank 1, as learned from the stream, with its interval."""

    rank: int
    value: float
    lower: float
    upper: float


Entry = TypeVar("Entry")


def grouped(entries: Iterable[Entry], attribute: str) -> dict[Any, list[Entry]]:
    """Entries of a Report by one of their attributes, in order of first appearance."""
    groups: dict[Any, list[Entry]] = {}
    for each in entries:
        groups.setdefault(getattr(each, attribute), []).append(each)
    return groups


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
    examination: tuple[Examined, ...] = ()
    calibration: tuple[Calibration, ...] = ()
    segments: tuple[SegmentEstimate, ...] = ()
    learners: tuple[Learner, ...] = ()
    propensity_model: PropensityModel | None = None
    schema: int = 1

    def get(self, policy: str, estimator: str, average: str, reward: str | None = None) -> Estimate:
        """The estimate with these labels; by default that of the goal.

        Raises:
            KeyError: There is no such estimate; the message lists those that exist.
        """
        for estimate in self.estimates:
            labels_of = (estimate.policy, estimate.estimator, estimate.average)
            if labels_of == (policy, estimator, average) and reward in (None, estimate.reward):
                return estimate
        labels = sorted({f"{e.policy}/{e.estimator}/{e.average}" for e in self.estimates})
        raise KeyError(f"no estimate {policy}/{estimator}/{average}; there are {', '.join(labels)}")

    @property
    def goal(self) -> str:
        """The name of the first reward, which decides."""
        return self.estimates[0].reward if self.estimates else "reward"

    @property
    def rewards(self) -> list[str]:
        """The names of all rewards, the goal first."""
        return list(dict.fromkeys(each.reward for each in self.estimates))

    @property
    def caution(self) -> str:
        """The error that no number includes; empty where propensities are logged."""
        if self.propensity_model is None:
            return ""
        return f"propensities are estimated ({self.propensity_model.model}): intervals leave out their error"

    @property
    def caution_about_learners(self) -> str:
        """The meaning of the bounds of candidates that keep learning; empty where there is none."""
        names = [each.policy for each in self.learners if each.learns]
        if not names:
            return ""
        return (
            f"bounds of candidates that still learn ({', '.join(names)}) are about their past versions, on average, "
            "and promise nothing about the present ones: versions_of makes copies that do not change"
        )

    def of_goal(self) -> Report:
        """The Report with the estimates of the goal alone."""
        return self if len(self.rewards) < 2 else self.of_reward(self.goal)

    def of_reward(self, reward: str) -> Report:
        """The Report with the estimates of one reward alone."""
        return msgspec.structs.replace(self, estimates=tuple(each for each in self.estimates if each.reward == reward))

    def segments_by_lift(self) -> list[SegmentEstimate]:
        """The rows of candidates by segment: the lowest lift over its error first, and last those that have none."""
        rows = [each for each in self.segments if each.policy != self.production]
        return sorted(rows, key=lambda each: math.inf if each.lift_over_error is None else each.lift_over_error)

    def thin(self) -> frozenset[tuple[str, str]]:
        """Pairs of an estimator and an average that most events had no evidence for, so that displays skip them.

        For production, such a pair has an effective sample size under 100, and another estimator on the same average
        has ten times as much.
        """
        sizes = {
            (each.estimator, each.average): each.effective_sample_size or 0.0
            for each in self.estimates
            if each.policy == self.production and each.reward == self.goal
        }
        most = {average: max(size for (_, on), size in sizes.items() if on == average) for _, average in sizes}
        return frozenset(
            pair for pair, size in sizes.items() if size < min(THIN, most[pair[1]]) and size * RICHER <= most[pair[1]]
        )

    def to_json(self, indent: int = 0) -> bytes:
        """The Report as JSON."""
        encoded = msgspec.json.encode(self)
        return msgspec.json.format(encoded, indent=indent) if indent else encoded

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12) of a Report."""
        return described_schema(cls)

    def to_frame(
        self, library: Literal["pandas", "polars"] = "pandas", rows: Literal["estimates", "segments"] = "estimates"
    ) -> Any:
        """The estimates, or those by segment, as a data frame; unknown numbers are missing values.

        Estimates are without their `details`.

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
        columns = {field: [getattr(each, field) for each in getattr(self, rows)] for field in kinds}
        columns.pop("details", None)
        numbers = {  # NaN where it is None
            field: np.array(columns[field], dtype=float) for field in columns if kinds[field] == "float | None"
        }
        return module.DataFrame(columns | numbers, **options)

    def _repr_html_(self) -> str:
        """The estimates as a table, as notebooks show it."""
        decimals = decimals_for(each.value for each in self.estimates)
        interval = f"{self.confidence * 100:g}% interval"
        several = len(self.rewards) > 1
        named = ("policy", "reward") if several else ("policy",)
        headings = (*named, "estimator", "average", "value", interval, "lift", interval, "effective events")
        lines = [_row("th", headings)]
        for each in self.estimates:
            name = f"{each.policy} (production)" if each.policy == self.production else each.policy
            bounds = f"{decimal(each.lower, decimals)} … {decimal(each.upper, decimals)}"
            lift, low, high = (
                decimal(one, decimals, signed=True) for one in (each.lift, each.lift_lower, each.lift_upper)
            )
            cells = (
                name,
                *((each.reward,) if several else ()),
                each.estimator,
                each.average,
                decimal(each.value, decimals),
                bounds,
                lift,
                f"{low} … {high}",
            )
            lines.append(_row("td", (*cells, decimal(each.effective_sample_size, 0))))
        caption = f"{counted(self.events.accepted, 'event')}, {sum(self.events.rejected.values()):,} rejected"
        caption = "; ".join(filter(None, (caption, self.caution, self.caution_about_learners)))
        return f"<table><caption>{caption}</caption>{''.join(lines)}</table>"


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
