"""Prometheus metrics: a collector that reads the immutable `DaemonStatus` value whenever it is scraped.

No evidence, no series: what is not known (None, NaN, infinite) is left out, never exported as 0. Label values come from
the configuration, never from events, so that no event can add a series.

Which gauges are read off an Estimate: their names and what they mean. A new one is one entry.

Prometheus' text format, written four times faster than by the client library.

Thousands of series share a few hundred sets of labels; the library checks, sorts and escapes them for every sample.
While events flow, scrape and loop share one interpreter, and each millisecond of rendering costs the scrape two.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter
from typing import Any, NamedTuple

import structlog
from prometheus_client import CollectorRegistry, Metric, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.gc_collector import GCCollector
from prometheus_client.samples import Sample

from streameval.ingest.base import GAPS
from streameval.ope.report import Estimate, Report
from streameval.service.status import DaemonStatus, Histogram

Read = Callable[[Estimate], Any]


def in_details(key: str) -> Read:
    """Reads one of the numbers that an average or interval may have put into `Estimate.details`."""
    return lambda estimate: estimate.details.get(key)


class Family(NamedTuple):
    """A gauge read off every Estimate that knows it."""

    name: str
    help: str
    read: Read


PER_ESTIMATE = (
    Family(
        "streameval_policy_value",
        "Estimated mean reward per event if this policy had chosen the actions, by this estimator over this average.",
        attrgetter("value"),
    ),
    Family(
        "streameval_policy_value_lower",
        "Lower end of the interval of streameval_policy_value; absent while there is too little evidence for one. The "
        "value of ips may lie outside: the interval is cut to the rewards, and may know that the mean weight is 1.",
        attrgetter("lower"),
    ),
    Family(
        "streameval_policy_value_upper",
        "Upper end of the interval of streameval_policy_value; absent while there is too little evidence for one. The "
        "value of ips may lie outside: the interval is cut to the rewards, and may know that the mean weight is 1.",
        attrgetter("upper"),
    ),
    Family(
        "streameval_policy_lift",
        "Mean reward per event that this policy gains over the production policy, from both on the same events.",
        attrgetter("lift"),
    ),
    Family(
        "streameval_policy_lift_lower",
        "Lower end of the interval around streameval_policy_lift; above 0 the policy is better than production.",
        attrgetter("lift_lower"),
    ),
    Family(
        "streameval_policy_lift_upper",
        "Upper end of the interval around streameval_policy_lift; below 0 the policy is worse than production.",
        attrgetter("lift_upper"),
    ),
    Family(
        "streameval_policy_effective_sample_size",
        "Number of equally weighted events that would carry as much evidence; small means few events decide the value.",
        attrgetter("effective_sample_size"),
    ),
    Family(
        "streameval_policy_design_effect",
        "Variance over that of independent events, by blocks and by named units; above 1, intervals are widened by it.",
        in_details("design_effect"),
    ),
    Family(
        "streameval_policy_window_events",
        "Number of latest events that the window looks back over now; adaptive windows shrink when values drift.",
        in_details("window_events"),
    ),
    Family(
        "streameval_policy_decay_alpha",
        "Factor by which the weight of an event falls with each event after it.",
        in_details("alpha"),
    ),
    Family(
        "streameval_policy_horizon_events",
        "Number of events that a decaying average looks back over now, 1 / (1 - alpha); of a mixture, the mean of it.",
        in_details("horizon_events"),
    ),
    Family(
        "streameval_policy_lipschitz_per_event",
        "How fast the value drifts: the measured bound on its change per event, which the adaptive averages follow.",
        in_details("lipschitz_per_event"),
    ),
)

PER_AVERAGE = (
    Family(
        "streameval_policy_importance_weight_mean",
        "Mean of policy probability over logged propensity; away from 1 the propensities or the support are wrong.",
        attrgetter("importance_weight_mean"),
    ),
    Family(
        "streameval_policy_importance_weight_max",
        "Largest ratio of policy probability to logged propensity; a few large ones make every estimate unsteady.",
        attrgetter("importance_weight_max"),
    ),
    Family(
        "streameval_policy_unsupported_probability",
        "Mean probability that the policy gives to actions that were never tried; nothing is known of them.",
        in_details("unsupported_probability"),
    ),
)


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SUFFIXES = {"counter": "_total", "info": "_info"}  # of the family's name, where the format wants the sample's
TYPES = {"info": "gauge", "unknown": "untyped"}


def exposition(families: Iterable[Metric]) -> bytes:
    r"""The families as text that says what `prometheus_client.generate_latest` would say of them.

    >>> from prometheus_client.core import GaugeMetricFamily
    >>> print(exposition([GaugeMetricFamily("lag_events", "Waiting.", 7)]).decode(), end="")
    # HELP lag_events Waiting.
    # TYPE lag_events gauge
    lag_events 7.0
    """
    return "".join(line for family in families for line in _lines(family)).encode()


def number(value: float) -> str:
    """A number as the format writes it, with all its digits."""
    return repr(float(value)) if math.isfinite(value) else "NaN" if math.isnan(value) else f"{value:+}".title()


def _lines(family: Metric) -> Iterable[str]:
    name = family.name + SUFFIXES.get(family.type, "")
    text = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {name} {text}\n# TYPE {name} {TYPES.get(family.type, family.type)}\n"
    yield from map(_line, family.samples)


def _line(sample: Sample) -> str:
    return f"{sample.name}{_labels(tuple(sample.labels.items()))} {number(sample.value)}\n"


@lru_cache(maxsize=65536)
def _labels(items: tuple[tuple[str, str], ...]) -> str:
    if not items:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(items)) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


log = structlog.get_logger("streameval.prometheus")


class StreamevalCollector:
    """Turns what `published()` returns into metric families. May be called from any thread; never raises."""

    def __init__(self, published: Callable[[], DaemonStatus]) -> None:
        self._published = published

    def describe(self) -> list[Metric]:
        """Nothing: which families exist depends on the evidence."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families that have a sample; one that fails is logged and left out, for the sake of the others."""
        now = self._published()
        for part in (
            _estimates,
            _reward_model,
            _promotion,
            _counts_of_state,
            _counts_of_process,
            _consumer,
            _backfills,
            _snapshots,
            _holding,
            _dead_letters,
            _build,
        ):
            try:
                families = [family for family in part(now) if family.samples]
            except Exception:
                log.exception("metrics_failed", part=part.__name__.strip("_"))
            else:
                yield from families


class MetricsPage:
    """The text of `GET /metrics`: streameval's own metrics and those of its process, in a registry of their own."""

    def __init__(self, published: Callable[[], DaemonStatus]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(StreamevalCollector(published))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def render(self) -> bytes:
        """The text as it is at this moment, of content type `exposition.CONTENT_TYPE`."""
        return exposition(self._registry.collect())


def _estimates(now: DaemonStatus) -> Iterator[Metric]:
    if now.report is None:
        return
    labelled = [((each.policy, each.estimator, each.average), each) for each in now.report.estimates]
    for family in PER_ESTIMATE:
        yield _gauge(family, ("policy", "estimator", "average"), labelled)
    yield _intervals(now.report)
    first = {(each.policy, each.average): each for each in reversed(now.report.estimates)}
    for family in PER_AVERAGE:
        yield _gauge(family, ("policy", "average"), first.items())


def _gauge(family: Family, labels: Sequence[str], labelled: Iterable[tuple[Sequence[str], Estimate]]) -> Metric:
    metric = GaugeMetricFamily(family.name, family.help, labels=labels)
    for values, estimate in labelled:
        _add(metric, values, family.read(estimate))
    return metric


def _add(metric: GaugeMetricFamily | CounterMetricFamily, labels: Sequence[str], value: float | None) -> None:
    """Add a sample unless the value is unknown."""
    if value is not None and math.isfinite(value):
        metric.add_metric(labels, value)


def _intervals(report: Report) -> Metric:
    metric = InfoMetricFamily(
        "streameval_policy_interval",
        "What the interval is: its kind, whether it may be watched continuously (anytime), and which value it covers.",
        labels=("policy", "estimator", "average", "kind", "anytime", "covers"),
    )
    for each in report.estimates:
        if each.value is not None:
            anytime = str(each.anytime).lower()
            metric.add_metric((each.policy, each.estimator, each.average, each.kind, anytime, each.covers), {})
    return metric


def _reward_model(now: DaemonStatus) -> Iterator[Metric]:
    model = now.report and now.report.reward_model
    if not model:
        return
    error = GaugeMetricFamily(
        "streameval_reward_model_squared_error",
        "Mean squared error of the reward model on logged actions that it had not learned from yet.",
        labels=("model",),
    )
    baseline = GaugeMetricFamily(
        "streameval_reward_model_baseline_squared_error",
        "The same error of the mean reward; a model that is not below it is of no use.",
        labels=("model",),
    )
    failures = CounterMetricFamily(
        "streameval_reward_model_failures_total",
        "Predictions that the mean reward stood in for, and events that were not learned from, by the reason.",
        labels=("model", "reason"),
    )
    _add(error, (model.model,), model.squared_error)
    _add(baseline, (model.model,), model.baseline_squared_error)
    for reason, count in model.failures.items():
        failures.add_metric((model.model, reason), count)
    yield from (error, baseline, failures)


def _promotion(now: DaemonStatus) -> Iterator[Metric]:
    metric = GaugeMetricFamily(
        "streameval_policy_promotable",
        "1 when the evidence is enough to replace the production policy by this one under this rule, otherwise 0.",
        labels=("policy", "rule"),
    )
    checks = GaugeMetricFamily(
        "streameval_policy_trust_check_ok",
        "1 when the numbers of this policy pass this check, 0 when they do not, which blocks every promotion by them.",
        labels=("policy", "check"),
    )
    for decision in now.report.promotion if now.report else ():
        metric.add_metric((decision.policy, decision.rule), float(decision.promotable))
    for each in now.report.trust if now.report else ():
        checks.add_metric((each.policy, each.check), float(each.ok))
    yield from (metric, checks)


def _counts_of_state(now: DaemonStatus) -> Iterator[Metric]:
    if now.report is None:
        return
    yield GaugeMetricFamily(
        "streameval_events_since_start",
        "Events accepted since the state began, over restarts.",
        now.report.events.accepted,
    )
    events = GaugeMetricFamily(
        "streameval_policy_events_since_start",
        "Events since the state began that carried this policy's probability.",
        labels=("policy",),
    )
    missing = CounterMetricFamily(
        "streameval_policy_events_missing_total",
        "Events since the state began that said nothing usable about this policy; its estimates leave them out.",
        labels=("policy",),
    )
    failures = CounterMetricFamily(
        "streameval_policy_failures_total",
        "Events since the state began that are missing because this policy, which is code, gave no distribution.",
        labels=("policy", "reason"),
    )
    detections = CounterMetricFamily(
        "streameval_policy_drift_detections_total",
        "Changes in what this policy earns that the drift detector found since the state began; nothing acts on them.",
        labels=("policy",),
    )
    for policy in now.report.policies:
        events.add_metric((policy.policy,), policy.events)
        missing.add_metric((policy.policy,), policy.missing)
        for failure in policy.failures:
            failures.add_metric((policy.policy, failure.reason), failure.count)
        _add(detections, (policy.policy,), policy.drift_detections)
    last = GaugeMetricFamily(
        "streameval_last_event_timestamp_seconds", "Time of the newest event, as the events say it, in epoch seconds."
    )
    _add(last, (), now.report.events.last_timestamp)
    yield from (events, missing, failures, detections, last)


def _counts_of_process(now: DaemonStatus) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "streameval_events_accepted_total", "Events used, in the life of this process.", now.accepted
    )
    rejected = CounterMetricFamily(
        "streameval_events_rejected_total",
        "Events that could not be used, by the reason, in the life of this process.",
        labels=("reason",),
    )
    for reason, count in now.rejected.items():
        rejected.add_metric((reason,), count)
    yield rejected
    yield _histogram(
        "streameval_event_delay_seconds",
        "From the time that an event carries to the moment it was counted; negative delays count in the lowest bucket.",
        now.event_delay,
    )
    yield _histogram(
        "streameval_batch_duration_seconds",
        "Time taken to decode the events of one poll and to update every estimate.",
        now.batch_duration,
    )
    yield GaugeMetricFamily(
        "streameval_ready", "1 when the source answers and there is a Report, otherwise 0.", float(now.ready)
    )


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    bounds = [number(bound) for bound in (*histogram.bounds, math.inf)]
    return HistogramMetricFamily(name, text, list(zip(bounds, histogram.cumulative(), strict=True)), histogram.total)


def _consumer(now: DaemonStatus) -> Iterator[Metric]:
    lag = GaugeMetricFamily(
        "streameval_consumer_lag_events",
        "Events of the partition that are waiting to be read.",
        labels=("topic", "partition"),
    )
    position = GaugeMetricFamily(
        "streameval_consumer_position_offset",
        "Offset of the next event to be read from the partition.",
        labels=("topic", "partition"),
    )
    for each in now.source.partitions:
        labels = (each.topic, str(each.partition))
        position.add_metric(labels, each.position)
        _add(lag, labels, each.lag)
    yield from (lag, position)
    yield CounterMetricFamily(
        "streameval_consumer_lost_events_total",
        "Events that the source had deleted before they could be read, in the life of this process.",
        now.source.lost,
    )
    gaps = CounterMetricFamily(
        "streameval_consumer_gaps_total",
        "Gaps in the source: events deleted before they were read, a log cut behind us, or replaced by another one.",
        labels=("kind",),
    )
    for kind in GAPS:
        gaps.add_metric((kind,), now.source.gaps.get(kind, 0))
    yield gaps
    yield CounterMetricFamily(
        "streameval_consumer_rebuilds_total",
        "Times that the connection to the source was given up and built anew, in the life of this process.",
        now.source.rebuilds,
    )


def _backfills(now: DaemonStatus) -> Iterator[Metric]:
    read = GaugeMetricFamily(
        "streameval_backfill_read_events",
        "Events that a candidate that came late has been given so far of what happened before.",
        labels=("policy",),
    )
    waiting = GaugeMetricFamily(
        "streameval_backfill_waiting_events",
        "About how many events a candidate that came late lies behind the others.",
        labels=("policy",),
    )
    for each in now.backfills:
        for policy in each.policies:
            read.add_metric((policy,), each.read)
            _add(waiting, (policy,), each.waiting)
    yield from (read, waiting)


def _dead_letters(now: DaemonStatus) -> Iterator[Metric]:
    if now.dead_letters is None:
        return
    yield CounterMetricFamily(
        "streameval_dead_letters_written_total",
        "Rejected messages that were put aside, in the life of this process.",
        now.dead_letters.written,
    )
    yield CounterMetricFamily(
        "streameval_dead_letters_dropped_total",
        "Rejected messages that could not be put aside, in the life of this process.",
        now.dead_letters.dropped,
    )
    yield GaugeMetricFamily(
        "streameval_dead_letters_waiting",
        "Rejected messages that wait to be put aside; above 0 for long, their file or topic is in trouble.",
        now.dead_letters.waiting,
    )


def _snapshots(now: DaemonStatus) -> Iterator[Metric]:
    if now.snapshots is None:
        return
    written = GaugeMetricFamily(
        "streameval_snapshot_timestamp_seconds",
        "When the newest snapshot was made, in epoch seconds; what came after it is read again after a crash.",
    )
    _add(written, (), now.snapshots.written_at)
    yield written
    yield _histogram(
        "streameval_snapshot_duration_seconds",
        "Time taken to write a snapshot, beside the loop, until it is safe on disk.",
        now.snapshots.durations,
    )
    yield CounterMetricFamily(
        "streameval_snapshot_failures_total",
        "Snapshots that could not be written, in the life of this process; the next interval tries again.",
        now.snapshots.failures,
    )


def _holding(now: DaemonStatus) -> Iterator[Metric]:
    if now.holding is None:
        return
    held = now.holding
    yield GaugeMetricFamily(
        "streameval_events_held", "Events that wait for their turn in the order of time, or for rewards.", held.events
    )
    watermark = GaugeMetricFamily(
        "streameval_watermark_timestamp_seconds",
        "Time of events before which nothing is waited for any more, in epoch seconds; what comes later is too_late.",
    )
    _add(watermark, (), held.watermark)
    yield watermark
    yield CounterMetricFamily(
        "streameval_events_hurried_total",
        "Events since the state began that were counted before their turn, because too many waited for the memory.",
        held.hurried,
    )
    if held.rewards is None:
        return
    rewards = CounterMetricFamily(
        "streameval_rewards_total",
        "Rewards since the state began: joined to a decision, late (after its window), or of an unknown decision.",
        labels=("outcome",),
    )
    for outcome in ("joined", "late", "unmatched"):
        rewards.add_metric((outcome,), getattr(held.rewards, outcome))
    share = GaugeMetricFamily(
        "streameval_rewards_late_share",
        "Of the rewards of known decisions, the share that came too late to count: estimates lack what these earned.",
    )
    _add(share, (), held.rewards.late_share)
    window = GaugeMetricFamily(
        "streameval_rewards_window_seconds",
        "How long an event waits for its rewards before it counts: by so much the newest one that counts is old.",
        held.window,
    )
    yield from (rewards, share, window)


def _build(_: DaemonStatus) -> Iterator[Metric]:
    labels = {"version": _version(), "python": platform.python_version()}
    yield InfoMetricFamily("streameval_build", "Which streameval runs, on which Python.", labels)


@cache
def _version() -> str:
    try:
        return version("streameval")
    except PackageNotFoundError:  # a source tree on the path, not installed
        return "unknown"
