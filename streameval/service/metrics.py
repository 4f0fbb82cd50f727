"""Prometheus metrics: one table of families, each read off the `DaemonStatus` of the moment when it is scraped.

A value that is not known (None, NaN, infinite) has no series; it is never exported as 0. Label values come from the
configuration, never from events, so that no event can add a series.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter
from typing import Any, TypeAlias

import structlog
from prometheus_client import CollectorRegistry, Metric, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.gc_collector import GCCollector

from streameval.ingest.base import GAPS
from streameval.ope.report import Report
from streameval.service.status import DaemonStatus, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Series: TypeAlias = tuple[Sequence[str], float | None]
"""The values of the labels, and the value; None where it is not known."""
Read: TypeAlias = Callable[[DaemonStatus], Iterable[Series]]

log = structlog.get_logger("streameval.prometheus")


@dataclass(frozen=True)
class Family:
    """A gauge, counter or info metric with the function that reads its series; a new metric is one entry below."""

    name: str
    help: str
    read: Read
    labels: Sequence[str] = ()

    def metric(self, status: DaemonStatus) -> Metric:
        """The family with all series that are known."""
        kind: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily
        if self.name.endswith("_total"):
            kind = CounterMetricFamily
        elif self.name.endswith("_info"):
            return self._info(status)
        metric = kind(self.name, self.help, labels=self.labels)
        for labels, value in self.read(status):
            if value is not None and math.isfinite(value):
                metric.add_metric(labels, value)
        return metric

    def _info(self, status: DaemonStatus) -> Metric:
        metric = InfoMetricFamily(self.name.removesuffix("_info"), self.help, labels=self.labels)
        for labels, _ in self.read(status):
            metric.add_metric(labels, {})
        return metric


@dataclass(frozen=True)
class HistogramFamily:
    """A histogram without labels; None has no series."""

    name: str
    help: str
    read: Callable[[DaemonStatus], Histogram | None]

    def metric(self, status: DaemonStatus) -> Metric:
        """The family with its buckets."""
        histogram = self.read(status)
        if histogram is None:
            return Metric(self.name, self.help, "histogram")
        bounds = [*(repr(float(bound)) for bound in histogram.bounds), "+Inf"]
        buckets = list(zip(bounds, histogram.cumulative(), strict=True))
        return HistogramMetricFamily(self.name, self.help, buckets, histogram.total)


def _value(path: str) -> Read:
    """Reads one attribute of the status, such as `source.lost`; no series where a part of the path is None."""
    *parts, last = path.split(".")

    def read(status: DaemonStatus) -> Iterator[Series]:
        owner: Any = status
        for part in parts:
            owner = getattr(owner, part)
            if owner is None:
                return
        yield (), getattr(owner, last)

    return read


def _each_report(read: Callable[[Report], Iterable[Series]]) -> Read:
    return lambda status: () if status.report is None else read(status.report)


def _detail(key: str) -> Callable[[Any], Any]:
    """Reads one of the numbers that an average or interval may have put into `Estimate.details`."""
    return lambda estimate: estimate.details.get(key)


def _by_product(name: str, help: str, read: Callable[[Any], Any]) -> Family:
    """A gauge for each policy, estimator and average."""
    return Family(
        name,
        help,
        _each_report(
            lambda report: (((each.policy, each.estimator, each.average), read(each)) for each in report.estimates)
        ),
        ("policy", "estimator", "average"),
    )


def _by_average(name: str, help: str, read: Callable[[Any], Any]) -> Family:
    """A gauge for each policy and average, read off the first estimator."""

    def first(report: Report) -> Iterable[Series]:
        estimates = {(each.policy, each.average): each for each in reversed(report.estimates)}
        return ((labels, read(each)) for labels, each in estimates.items())

    return Family(name, help, _each_report(first), ("policy", "average"))


def _by_policy(name: str, help: str, read: Callable[[Any], Any]) -> Family:
    return Family(
        name,
        help,
        _each_report(lambda report: (((each.policy,), read(each)) for each in report.policies)),
        ("policy",),
    )


def _by_model(name: str, help: str, read: Callable[[Any], Any]) -> Family:
    return Family(
        name,
        help,
        _each_report(lambda report: [((each.model,), read(each)) for each in (report.reward_model,) if each]),
        ("model",),
    )


def _by_partition(name: str, help: str, read: Callable[[Any], Any]) -> Family:
    return Family(
        name,
        help,
        lambda status: (((each.topic, str(each.partition)), read(each)) for each in status.source.partitions),
        ("topic", "partition"),
    )


def _by_backfilled(name: str, help: str, read: Callable[[Any], Any]) -> Family:
    return Family(
        name,
        help,
        lambda status: (((policy,), read(each)) for each in status.backfills for policy in each.policies),
        ("policy",),
    )


def _intervals(report: Report) -> Iterator[Series]:
    for each in report.estimates:
        if each.value is not None:
            anytime = str(each.anytime).lower()
            yield (each.policy, each.estimator, each.average, each.kind, anytime, each.covers), 1


def _model_failures(report: Report) -> Iterator[Series]:
    if report.reward_model is not None:
        for reason, count in report.reward_model.failures.items():
            yield (report.reward_model.model, reason), count


def _policy_failures(report: Report) -> Iterator[Series]:
    for policy in report.policies:
        for failure in policy.failures:
            yield (policy.policy, failure.reason), failure.count


def _rewards(status: DaemonStatus) -> Iterator[Series]:
    if status.holding is not None and status.holding.rewards is not None:
        for outcome in ("joined", "late", "unmatched"):
            yield (outcome,), getattr(status.holding.rewards, outcome)


def _reward_window(status: DaemonStatus) -> Iterator[Series]:
    if status.holding is not None and status.holding.rewards is not None:
        yield (), status.holding.window


@cache
def _build_labels() -> tuple[str, str]:
    try:
        return version("streameval"), platform.python_version()
    except PackageNotFoundError:  # a source tree on the path, not installed
        return "unknown", platform.python_version()


FAMILIES: tuple[Family | HistogramFamily, ...] = (
    _by_product(
        "streameval_policy_value",
        "Estimated mean reward per event if this policy had chosen the actions, by this estimator over this average.",
        attrgetter("value"),
    ),
    _by_product(
        "streameval_policy_value_lower",
        "Lower bound of the interval of streameval_policy_value; absent while the evidence is too small. The value of "
        "ips may lie outside: the interval is cut to the reward range, and may use that the true mean weight is 1.",
        attrgetter("lower"),
    ),
    _by_product(
        "streameval_policy_value_upper",
        "Upper bound of the interval of streameval_policy_value; absent while the evidence is too small. The value of "
        "ips may lie outside: the interval is cut to the reward range, and may use that the true mean weight is 1.",
        attrgetter("upper"),
    ),
    _by_product(
        "streameval_policy_lift",
        "Mean reward per event that this policy gains over the production policy, both estimated on the same events.",
        attrgetter("lift"),
    ),
    _by_product(
        "streameval_policy_lift_lower",
        "Lower bound of the interval of streameval_policy_lift; above 0 the policy is better than production.",
        attrgetter("lift_lower"),
    ),
    _by_product(
        "streameval_policy_lift_upper",
        "Upper bound of the interval of streameval_policy_lift; below 0 the policy is worse than production.",
        attrgetter("lift_upper"),
    ),
    _by_product(
        "streameval_policy_effective_sample_size",
        "Number of equally weighted events that would carry as much evidence; small means few events decide the value.",
        attrgetter("effective_sample_size"),
    ),
    _by_product(
        "streameval_policy_design_effect",
        "Variance relative to that of independent events, by blocks and by units; above 1 it widens the intervals.",
        _detail("design_effect"),
    ),
    _by_product(
        "streameval_policy_window_events",
        "Number of latest events in the window at present; adaptive windows shrink when values drift.",
        _detail("window_events"),
    ),
    _by_product(
        "streameval_policy_decay_alpha",
        "Factor by which the weight of an event falls with each event after it.",
        _detail("alpha"),
    ),
    _by_product(
        "streameval_policy_horizon_events",
        "Effective number of events in a decaying average at present, 1 / (1 - alpha); for a mixture, its mean.",
        _detail("horizon_events"),
    ),
    _by_product(
        "streameval_policy_lipschitz_per_event",
        "Drift rate: the measured bound on the change of the value per event, which the adaptive averages follow.",
        _detail("lipschitz_per_event"),
    ),
    Family(
        "streameval_policy_interval_info",
        "Properties of the interval: its kind, whether it is valid under continuous monitoring (anytime), and which "
        "value it covers.",
        _each_report(_intervals),
        ("policy", "estimator", "average", "kind", "anytime", "covers"),
    ),
    _by_average(
        "streameval_policy_importance_weight_mean",
        "Mean of policy probability over logged propensity; away from 1 the propensities or the support are wrong.",
        attrgetter("importance_weight_mean"),
    ),
    _by_average(
        "streameval_policy_importance_weight_max",
        "Largest ratio of policy probability to logged propensity; a few large ones make every estimate unsteady.",
        attrgetter("importance_weight_max"),
    ),
    _by_average(
        "streameval_policy_unsupported_probability",
        "Mean probability that the policy gives to actions that were never logged; no estimate covers them.",
        _detail("unsupported_probability"),
    ),
    _by_model(
        "streameval_reward_model_squared_error",
        "Mean squared error of the reward model on logged actions, each predicted before the model learned from it.",
        attrgetter("squared_error"),
    ),
    _by_model(
        "streameval_reward_model_baseline_squared_error",
        "The same error of the mean reward; a reward model that is not below it does not help.",
        attrgetter("baseline_squared_error"),
    ),
    Family(
        "streameval_reward_model_failures_total",
        "Predictions that were replaced by the mean reward, and events that were not learned from, by reason.",
        _each_report(_model_failures),
        ("model", "reason"),
    ),
    Family(
        "streameval_policy_promotable",
        "1 when the evidence suffices to replace the production policy by this one under this rule, otherwise 0.",
        _each_report(lambda report: (((each.policy, each.rule), each.promotable) for each in report.promotion)),
        ("policy", "rule"),
    ),
    Family(
        "streameval_policy_trust_check_ok",
        "1 when the numbers of this policy pass this check, 0 when they fail it, which blocks every promotion.",
        _each_report(lambda report: (((each.policy, each.check), each.ok) for each in report.trust)),
        ("policy", "check"),
    ),
    Family(
        "streameval_events_since_start",
        "Events accepted since the state started, across restarts.",
        _value("report.events.accepted"),
    ),
    _by_policy(
        "streameval_policy_events_since_start",
        "Events since the state started that carried a probability of this policy.",
        attrgetter("events"),
    ),
    _by_policy(
        "streameval_policy_events_missing_total",
        "Events since the state started without usable probabilities of this policy; its estimates leave them out.",
        attrgetter("missing"),
    ),
    Family(
        "streameval_policy_failures_total",
        "Events since the state started that are missing because the code of this policy returned no distribution.",
        _each_report(_policy_failures),
        ("policy", "reason"),
    ),
    _by_policy(
        "streameval_policy_drift_detections_total",
        "Changes in the value of this policy that the drift detector found since the state started; informational.",
        attrgetter("drift_detections"),
    ),
    Family(
        "streameval_last_event_timestamp_seconds",
        "Largest timestamp of any event, in epoch seconds.",
        _value("report.events.last_timestamp"),
    ),
    Family(
        "streameval_events_accepted_total",
        "Events accepted since the process started.",
        _value("accepted"),
    ),
    Family(
        "streameval_events_rejected_total",
        "Events rejected since the process started, by reason.",
        lambda status: (((reason,), count) for reason, count in status.rejected.items()),
        ("reason",),
    ),
    HistogramFamily(
        "streameval_event_delay_seconds",
        "Seconds from the timestamp of an event until it was counted; negative delays count in the lowest bucket.",
        attrgetter("event_delay"),
    ),
    HistogramFamily(
        "streameval_batch_duration_seconds",
        "Seconds to decode the events of one poll and to update every estimate.",
        attrgetter("batch_duration"),
    ),
    Family("streameval_ready", "1 when the source answers and there is a Report, otherwise 0.", _value("ready")),
    _by_partition(
        "streameval_consumer_position_offset",
        "Offset of the next event to read from the partition.",
        attrgetter("position"),
    ),
    _by_partition(
        "streameval_consumer_lag_events",
        "Events of the partition that have not been read yet.",
        attrgetter("lag"),
    ),
    Family(
        "streameval_consumer_lost_events_total",
        "Events that the source deleted before they were read, since the process started.",
        _value("source.lost"),
    ),
    Family(
        "streameval_consumer_gaps_total",
        "Gaps in the source: events deleted before they were read, a truncated log, or a log replaced by another one.",
        lambda status: (((kind,), status.source.gaps.get(kind, 0)) for kind in GAPS),
        ("kind",),
    ),
    Family(
        "streameval_consumer_rebuilds_total",
        "Times that the connection to the source was dropped and rebuilt, since the process started.",
        _value("source.rebuilds"),
    ),
    _by_backfilled(
        "streameval_backfill_read_events",
        "Earlier events that the backfill of this candidate has read so far.",
        attrgetter("read"),
    ),
    _by_backfilled(
        "streameval_backfill_waiting_events",
        "Approximate number of events that the backfill of this candidate still has to read.",
        attrgetter("waiting"),
    ),
    Family(
        "streameval_snapshot_timestamp_seconds",
        "Time of the newest snapshot, in epoch seconds; after a crash, later events are read again.",
        _value("snapshots.written_at"),
    ),
    HistogramFamily(
        "streameval_snapshot_duration_seconds",
        "Seconds to write a snapshot to disk, beside the loop.",
        lambda status: None if status.snapshots is None else status.snapshots.durations,
    ),
    Family(
        "streameval_snapshot_failures_total",
        "Snapshots that could not be written since the process started; the next interval tries again.",
        _value("snapshots.failures"),
    ),
    Family(
        "streameval_events_held",
        "Events buffered until their turn in event-time order, or until their rewards arrive.",
        _value("holding.events"),
    ),
    Family(
        "streameval_watermark_timestamp_seconds",
        "Watermark in epoch seconds: events with an earlier timestamp are rejected as too_late.",
        _value("holding.watermark"),
    ),
    Family(
        "streameval_events_hurried_total",
        "Events since the state started that were counted before their turn, because the buffer was full.",
        _value("holding.released_early"),
    ),
    Family(
        "streameval_rewards_total",
        "Rewards since the state started: joined to a decision, late (after its window), or without a decision.",
        _rewards,
        ("outcome",),
    ),
    Family(
        "streameval_rewards_late_share",
        "Share of the rewards of known decisions that arrived too late to count; estimates lack them.",
        _value("holding.rewards.late_share"),
    ),
    Family(
        "streameval_rewards_window_seconds",
        "Seconds that an event waits for its rewards before it counts; the newest counted event is at least this old.",
        _reward_window,
    ),
    Family(
        "streameval_dead_letters.done_total",
        "Rejected messages written to the dead letters since the process started.",
        _value("dead_letters.done"),
    ),
    Family(
        "streameval_dead_letters_dropped_total",
        "Rejected messages that could not be written to the dead letters since the process started.",
        _value("dead_letters.dropped"),
    ),
    Family(
        "streameval_dead_letters_waiting",
        "Rejected messages queued for the dead letters; above 0 for long, their file or topic cannot be written.",
        _value("dead_letters.waiting"),
    ),
    Family(
        "streameval_build_info",
        "Version of streameval and of Python.",
        lambda _: [(_build_labels(), 1)],
        ("version", "python"),
    ),
)


class StreamevalCollector:
    """Turns what `status()` returns into metric families. May be called from any thread; never raises."""

    def __init__(self, status: Callable[[], DaemonStatus]) -> None:
        self._status = status

    def describe(self) -> list[Metric]:
        """Nothing: which families exist depends on the evidence."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families that have a sample; one that fails is logged and left out, and the others are served."""
        status = self._status()
        for family in FAMILIES:
            try:
                metric = family.metric(status)
            except Exception:
                log.exception("metrics_failed", family=family.name)
            else:
                if metric.samples:
                    yield metric


class MetricsPage:
    """The text of `GET /metrics`: streameval's own metrics and those of its process, in a registry of their own."""

    def __init__(self, status: Callable[[], DaemonStatus]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(StreamevalCollector(status))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def render(self) -> bytes:
        """The text at this moment, of content type `CONTENT_TYPE`."""
        return generate_latest(self._registry)
