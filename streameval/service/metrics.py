"""Prometheus metrics: one table of families, each read off the `DaemonStatus` of the moment when it is scraped.

A value that is not known (None, NaN, infinite) has no series; it is never exported as 0. Label values come from the
configuration, never from events, so that no event can add a series.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, reduce
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import structlog
from prometheus_client import CollectorRegistry, Metric, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.gc_collector import GCCollector

from streameval.ingest.base import GAPS
from streameval.service.status import DaemonStatus, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Series: TypeAlias = tuple[Sequence[str], Any]
"""The values of the labels, and the object that holds the value."""

log = structlog.get_logger("streameval.prometheus")


class Rows(NamedTuple):
    """The labels of a family, and for each of its series their values and the object that holds its value."""

    labels: tuple[str, ...]
    of: Callable[[DaemonStatus], Iterable[Series]]


def _reported(attribute: str, *names: str) -> Callable[[DaemonStatus], Iterable[Series]]:
    """One series for each entry of a list of the Report, labelled by some of its attributes."""

    def rows(status: DaemonStatus) -> Iterator[Series]:
        for entry in getattr(status.report, attribute, ()):
            yield tuple(getattr(entry, name) for name in names), entry

    return rows


def _first_estimates(status: DaemonStatus) -> Iterable[Series]:
    estimates = reversed(status.report.estimates if status.report else ())
    return {(each.policy, each.average): each for each in estimates}.items()


def _intervals(status: DaemonStatus) -> Iterator[Series]:
    for labels, each in ESTIMATES.of(status):
        if each.value is not None:
            yield (*labels, each.kind, str(each.anytime).lower(), each.covers), 1


def _models(status: DaemonStatus) -> Iterable[Series]:
    return [((each.model,), each) for each in (status.report and status.report.reward_model,) if each]


def _model_failures(status: DaemonStatus) -> Iterator[Series]:
    for labels, model in _models(status):
        yield from (((*labels, reason), count) for reason, count in model.failures.items())


def _policy_failures(status: DaemonStatus) -> Iterator[Series]:
    for labels, policy in POLICIES.of(status):
        yield from (((*labels, failure.reason), failure.count) for failure in policy.failures)


def _partitions(status: DaemonStatus) -> Iterable[Series]:
    return (((each.topic, str(each.partition)), each) for each in status.source.partitions)


def _backfills(status: DaemonStatus) -> Iterable[Series]:
    return (((policy,), each) for each in status.backfills for policy in each.policies)


def _rewards(status: DaemonStatus) -> Iterable[Series]:
    rewards = status.buffered.rewards if status.buffered else None
    return (((name,), getattr(rewards, name)) for name in ("joined", "late", "unmatched") if rewards)


def _build(_: DaemonStatus) -> Iterable[Series]:
    return [((_version(), platform.python_version()), 1)]


@cache
def _version() -> str:
    try:
        return version("streameval")
    except PackageNotFoundError:  # a source tree on the path, not installed
        return "unknown"


def _itself(value: Any) -> Any:
    return value


def _detail(key: str) -> Callable[[Any], Any]:
    """Reads one of the numbers that an average or interval may have put into `Estimate.details`."""
    return lambda estimate: estimate.details.get(key)


def _path(path: str) -> Callable[[Any], Any]:
    """Reads an attribute such as `snapshots.failures`; None where a part of the path is None."""
    return lambda status: reduce(lambda owner, name: getattr(owner, name, None), path.split("."), status)


STATUS = Rows((), lambda status: [((), status)])
ESTIMATES = Rows(("policy", "estimator", "average"), _reported("estimates", "policy", "estimator", "average"))
AVERAGES = Rows(("policy", "average"), _first_estimates)
POLICIES = Rows(("policy",), _reported("policies", "policy"))
MODELS = Rows(("model",), _models)
PARTITIONS = Rows(("topic", "partition"), _partitions)
BACKFILLS = Rows(("policy",), _backfills)


class Family(NamedTuple):
    """A metric: a counter if its name ends in `_total`, an info for `_info`, a histogram if it reads a Histogram."""

    name: str
    help: str
    read: Callable[[Any], Any] = _itself
    rows: Rows = STATUS

    def metric(self, status: DaemonStatus) -> Metric:
        """The family with all series that are known."""
        name, labels = self.name, self.rows.labels
        values = [(row, self.read(entry)) for row, entry in self.rows.of(status)]
        if values and isinstance(histogram := values[0][1], Histogram):
            bounds = [*(repr(float(bound)) for bound in histogram.bounds), "+Inf"]
            buckets = list(zip(bounds, histogram.cumulative(), strict=True))
            return HistogramMetricFamily(name, self.help, buckets, histogram.total)
        if name.endswith("_info"):
            info = InfoMetricFamily(name.removesuffix("_info"), self.help, labels=labels)
            for row, _ in values:
                info.add_metric(row, {})
            return info
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        metric: GaugeMetricFamily | CounterMetricFamily = kind(name, self.help, labels=labels)
        for row, value in values:
            if value is not None and math.isfinite(value):
                metric.add_metric(row, value)
        return metric


FAMILIES = (
    Family(
        "streameval_policy_value",
        "Estimated mean reward per event if this policy had chosen the actions, by this estimator over this average.",
        attrgetter("value"),
        ESTIMATES,
    ),
    Family(
        "streameval_policy_value_lower",
        "Lower bound of the interval of streameval_policy_value; absent while the evidence is too small. The value of "
        "ips may lie outside: the interval is cut to the reward range, and may use that the true mean weight is 1.",
        attrgetter("lower"),
        ESTIMATES,
    ),
    Family(
        "streameval_policy_value_upper",
        "Upper bound of the interval of streameval_policy_value; absent while the evidence is too small. The value of "
        "ips may lie outside: the interval is cut to the reward range, and may use that the true mean weight is 1.",
        attrgetter("upper"),
        ESTIMATES,
    ),
    Family(
        "streameval_policy_lift",
        "Mean reward per event that this policy gains over the production policy, both estimated on the same events.",
        attrgetter("lift"),
        ESTIMATES,
    ),
    Family(
        "streameval_policy_lift_lower",
        "Lower bound of the interval of streameval_policy_lift; above 0 the policy is better than production.",
        attrgetter("lift_lower"),
        ESTIMATES,
    ),
    Family(
        "streameval_policy_lift_upper",
        "Upper bound of the interval of streameval_policy_lift; below 0 the policy is worse than production.",
        attrgetter("lift_upper"),
        ESTIMATES,
    ),
    Family(
        "streameval_policy_effective_sample_size",
        "Number of equally weighted events that would carry as much evidence; small means few events decide the value.",
        attrgetter("effective_sample_size"),
        ESTIMATES,
    ),
    Family(
        "streameval_policy_design_effect",
        "Variance relative to that of independent events, by blocks and by units; above 1 it widens the intervals.",
        _detail("design_effect"),
        ESTIMATES,
    ),
    Family(
        "streameval_policy_window_events",
        "Number of latest events in the window at present; adaptive windows shrink when values drift.",
        _detail("window_events"),
        ESTIMATES,
    ),
    Family(
        "streameval_policy_decay_alpha",
        "Factor by which the weight of an event falls with each event after it.",
        _detail("alpha"),
        ESTIMATES,
    ),
    Family(
        "streameval_policy_horizon_events",
        "Effective number of events in a decaying average at present, 1 / (1 - alpha); for a mixture, its mean.",
        _detail("horizon_events"),
        ESTIMATES,
    ),
    Family(
        "streameval_policy_lipschitz_per_event",
        "Drift rate: the measured bound on the change of the value per event, which the adaptive averages follow.",
        _detail("lipschitz_per_event"),
        ESTIMATES,
    ),
    Family(
        "streameval_policy_interval_info",
        "Properties of the interval: its kind, whether it is valid under continuous monitoring (anytime), and which "
        "value it covers.",
        rows=Rows((*ESTIMATES.labels, "kind", "anytime", "covers"), _intervals),
    ),
    Family(
        "streameval_policy_importance_weight_mean",
        "Mean of policy probability over logged propensity; away from 1 the propensities or the support are wrong.",
        attrgetter("importance_weight_mean"),
        AVERAGES,
    ),
    Family(
        "streameval_policy_importance_weight_max",
        "Largest ratio of policy probability to logged propensity; a few large ones make every estimate unsteady.",
        attrgetter("importance_weight_max"),
        AVERAGES,
    ),
    Family(
        "streameval_policy_unsupported_probability",
        "Mean probability that the policy gives to actions that were never logged; no estimate covers them.",
        _detail("unsupported_probability"),
        AVERAGES,
    ),
    Family(
        "streameval_reward_model_squared_error",
        "Mean squared error of the reward model on logged actions, each predicted before the model learned from it.",
        attrgetter("squared_error"),
        MODELS,
    ),
    Family(
        "streameval_reward_model_baseline_squared_error",
        "The same error of the mean reward; a reward model that is not below it does not help.",
        attrgetter("baseline_squared_error"),
        MODELS,
    ),
    Family(
        "streameval_reward_model_failures_total",
        "Predictions that were replaced by the mean reward, and events that were not learned from, by reason.",
        rows=Rows(("model", "reason"), _model_failures),
    ),
    Family(
        "streameval_policy_promotable",
        "1 when the evidence suffices to replace the production policy by this one under this rule, otherwise 0.",
        attrgetter("promotable"),
        Rows(("policy", "rule"), _reported("promotion", "policy", "rule")),
    ),
    Family(
        "streameval_policy_trust_check_ok",
        "1 when the numbers of this policy pass this check, 0 when they fail it, which blocks every promotion.",
        attrgetter("ok"),
        Rows(("policy", "check"), _reported("trust", "policy", "check")),
    ),
    Family(
        "streameval_events_since_start",
        "Events accepted since the state started, across restarts.",
        _path("report.events.accepted"),
    ),
    Family(
        "streameval_policy_events_since_start",
        "Events since the state started that carried a probability of this policy.",
        attrgetter("events"),
        POLICIES,
    ),
    Family(
        "streameval_policy_events_missing_total",
        "Events since the state started without usable probabilities of this policy; its estimates leave them out.",
        attrgetter("missing"),
        POLICIES,
    ),
    Family(
        "streameval_policy_failures_total",
        "Events since the state started that are missing because the code of this policy returned no distribution.",
        rows=Rows(("policy", "reason"), _policy_failures),
    ),
    Family(
        "streameval_policy_drift_detections_total",
        "Changes in the value of this policy that the drift detector found since the state started; informational.",
        attrgetter("drift_detections"),
        POLICIES,
    ),
    Family(
        "streameval_last_event_timestamp_seconds",
        "Largest timestamp of any event, in epoch seconds.",
        _path("report.events.last_timestamp"),
    ),
    Family(
        "streameval_events_accepted_total",
        "Events accepted since the process started.",
        _path("accepted"),
    ),
    Family(
        "streameval_events_rejected_total",
        "Events rejected since the process started, by reason.",
        rows=Rows(("reason",), lambda status: (((reason,), count) for reason, count in status.rejected.items())),
    ),
    Family(
        "streameval_event_delay_seconds",
        "Seconds from the timestamp of an event until it was counted; negative delays count in the lowest bucket.",
        attrgetter("event_delay"),
    ),
    Family(
        "streameval_batch_duration_seconds",
        "Seconds to decode the events of one poll and to update every estimate.",
        attrgetter("batch_duration"),
    ),
    Family("streameval_ready", "1 when the source answers and there is a Report, otherwise 0.", _path("ready")),
    Family(
        "streameval_consumer_position_offset",
        "Offset of the next event to read from the partition.",
        attrgetter("position"),
        PARTITIONS,
    ),
    Family(
        "streameval_consumer_lag_events",
        "Events of the partition that have not been read yet.",
        attrgetter("lag"),
        PARTITIONS,
    ),
    Family(
        "streameval_consumer_lost_events_total",
        "Events that the source deleted before they were read, since the process started.",
        _path("source.lost"),
    ),
    Family(
        "streameval_consumer_gaps_total",
        "Gaps in the source: events deleted before they were read, a truncated log, or a log replaced by another one.",
        rows=Rows(("kind",), lambda status: (((kind,), status.source.gaps.get(kind, 0)) for kind in GAPS)),
    ),
    Family(
        "streameval_consumer_rebuilds_total",
        "Times that the connection to the source was dropped and rebuilt, since the process started.",
        _path("source.rebuilds"),
    ),
    Family(
        "streameval_backfill_read_events",
        "Earlier events that the backfill of this candidate has read so far.",
        attrgetter("read"),
        BACKFILLS,
    ),
    Family(
        "streameval_backfill_waiting_events",
        "Approximate number of events that the backfill of this candidate still has to read.",
        attrgetter("waiting"),
        BACKFILLS,
    ),
    Family(
        "streameval_snapshot_timestamp_seconds",
        "Time of the newest snapshot, in epoch seconds; after a crash, later events are read again.",
        _path("snapshots.written_at"),
    ),
    Family(
        "streameval_snapshot_duration_seconds",
        "Seconds to write a snapshot to disk, beside the loop.",
        _path("snapshots.durations"),
    ),
    Family(
        "streameval_snapshot_failures_total",
        "Snapshots that could not be written since the process started; the next interval tries again.",
        _path("snapshots.failures"),
    ),
    Family(
        "streameval_events_held",
        "Events buffered until their turn in event-time order, or until their rewards arrive.",
        _path("buffered.events"),
    ),
    Family(
        "streameval_watermark_timestamp_seconds",
        "Watermark in epoch seconds: events with an earlier timestamp are rejected as too_late.",
        _path("buffered.watermark"),
    ),
    Family(
        "streameval_events_hurried_total",
        "Events since the state started that were counted before their turn, because the buffer was full.",
        _path("buffered.released_early"),
    ),
    Family(
        "streameval_rewards_total",
        "Rewards since the state started: joined to a decision, late (after its window), or without a decision.",
        rows=Rows(("outcome",), _rewards),
    ),
    Family(
        "streameval_rewards_late_share",
        "Share of the rewards of known decisions that arrived too late to count; estimates lack them.",
        _path("buffered.rewards.late_share"),
    ),
    Family(
        "streameval_rewards_window_seconds",
        "Seconds that an event waits for its rewards before it counts; the newest counted event is at least this old.",
        lambda status: status.buffered.window if status.buffered and status.buffered.rewards else None,
    ),
    Family(
        "streameval_dead_letters_written_total",
        "Rejected messages written to the dead letters since the process started.",
        _path("dead_letters.done"),
    ),
    Family(
        "streameval_dead_letters_dropped_total",
        "Rejected messages that could not be written to the dead letters since the process started.",
        _path("dead_letters.dropped"),
    ),
    Family(
        "streameval_dead_letters_waiting",
        "Rejected messages queued for the dead letters; above 0 for long, their file or topic cannot be written.",
        _path("dead_letters.waiting"),
    ),
    Family(
        "streameval_build_info",
        "Version of streameval and of Python.",
        rows=Rows(("version", "python"), _build),
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
    """The text of `GET /metrics`: streameval's own metrics and those of its process, in their own registry."""

    def __init__(self, status: Callable[[], DaemonStatus]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(StreamevalCollector(status))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def render(self) -> bytes:
        """The text at this moment, of content type `CONTENT_TYPE`."""
        return generate_latest(self._registry)
