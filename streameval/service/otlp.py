"""Push the metrics over OTLP from a thread, by the SDK of OpenTelemetry."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self, cast

import prometheus_client
import structlog
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from streameval.config.otlp import OtlpSettings
from streameval.service.metrics import PROCESS, families
from streameval.service.status import PushStatus, own_version

if TYPE_CHECKING:
    from streameval.service.daemon import DaemonLoop

__all__ = ["OtlpPush"]

STOP_SECONDS = 2.0
"""Limit the last push when the daemon stops."""
SHORTEST_LIMIT, LONGEST_LIMIT = 1.0, 10.0
"""Bounds in seconds of the time limit of a push with its retries, which is otherwise the interval."""
UNKNOWN = cast("Any", None)  # optional in the protocol, a number in the type

log = structlog.get_logger("streameval.otlp")


class OtlpPush:
    """Push the metrics of a daemon while the context is open, and a last time at its end.

    Args:
        view: The daemon. Its `pushes` count.
        settings: Where and how often to push.
        name: Name of the daemon, the `service.name` of its metrics.
    """

    def __init__(self, view: DaemonLoop[Any], settings: OtlpSettings, name: str) -> None:
        self._view, self._settings = view, settings
        headers = {key: value.get_secret_value() for key, value in settings.headers.items()}
        self._exporter = OTLPMetricExporter(
            endpoint=settings.url, headers=headers, timeout=min(max(settings.interval, SHORTEST_LIMIT), LONGEST_LIMIT)
        )
        self._resource = Resource.create({"service.name": name, "service.version": own_version()})
        self._started = time.time_ns()
        self._stopping, self._failing = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="streameval-otlp", daemon=True)
        view.pushes = PushStatus()

    def __enter__(self) -> Self:
        self._thread.start()
        log.info("otlp_started", url=self._settings.url, seconds=self._settings.interval)
        return self

    def __exit__(self, *_: object) -> None:
        """Push a last time, for `STOP_SECONDS` at most."""
        self._stopping.set()
        self._thread.join(STOP_SECONDS)
        self._exporter.shutdown()  # ends retries
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while not self._stopping.wait(self._settings.interval):
            self._push()
        self._push()

    def _push(self) -> None:
        try:
            succeeded = self._exporter.export(self._data()) is MetricExportResult.SUCCESS
        except Exception:
            log.exception("otlp_failed", url=self._settings.url)
            succeeded = False
        counts = cast("PushStatus", self._view.pushes)
        if succeeded:
            self._view.pushes = replace(counts, done=counts.done + 1)
        else:
            self._view.pushes = replace(counts, failures=counts.failures + 1)
        if succeeded == self._failing:
            self._failing = not succeeded
            if succeeded:
                log.info("otlp_resumed", url=self._settings.url)
            else:
                log.warning("otlp_push_failed", url=self._settings.url, hint="the next interval tries again")

    def _data(self) -> MetricsData:
        now = time.time_ns()
        exported = (*families(self._view.published), *PROCESS.collect())
        metrics = [_converted(family, self._started, now) for family in exported if family.samples]
        scope = ScopeMetrics(InstrumentationScope("streameval", own_version()), metrics, "")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")])


def _converted(family: prometheus_client.Metric, started: int, now: int) -> Metric:
    """Return a family in the model of OpenTelemetry, under the name of its samples.

    Args:
        family: The family.
        started: When its counts started, in nanoseconds since 1970.
        now: Time of its values.
    """
    data: Gauge | Sum | Histogram
    if family.type == "histogram":
        data = Histogram([_histogram(family, started, now)], AggregationTemporality.CUMULATIVE)
        return Metric(family.name, family.documentation, "", data)
    points = [NumberDataPoint(sample.labels, started, now, float(sample.value)) for sample in family.samples]
    is_counter = family.type == "counter"
    data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True) if is_counter else Gauge(points)
    return Metric(family.samples[0].name, family.documentation, "", data)


def _histogram(family: prometheus_client.Metric, started: int, now: int) -> HistogramDataPoint:
    """Return the one series of a histogram."""
    buckets = [sample for sample in family.samples if sample.name.endswith("_bucket")]
    total = next(sample.value for sample in family.samples if sample.name.endswith("_sum"))
    cumulative = [int(sample.value) for sample in buckets]
    return HistogramDataPoint(
        attributes={},
        start_time_unix_nano=started,
        time_unix_nano=now,
        count=cumulative[-1],
        sum=total,
        bucket_counts=[after - before for before, after in pairwise([0, *cumulative])],
        explicit_bounds=[float(sample.labels["le"]) for sample in buckets[:-1]],
        min=UNKNOWN,
        max=UNKNOWN,
    )
