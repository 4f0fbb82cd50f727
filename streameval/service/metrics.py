"""Export the metrics of metrics.toml for Prometheus, each read from the newest `DaemonStatus`.

A value that is not known (None, NaN, infinite) has no series and is never exported as 0. Label values come from the
configuration, never from events, so that no event can add a series.
"""

from __future__ import annotations

import math
import platform
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from importlib.resources import files
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias, cast

import structlog
from prometheus_client import CollectorRegistry, Metric, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.gc_collector import GCCollector
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample

from streameval.common.text import format_duration
from streameval.errors import without_secrets
from streameval.ingest.base import GAPS
from streameval.ope.answer import of_policies
from streameval.service.shown import MAX_REPORTED, shown_candidates
from streameval.service.status import DaemonStatus, Histogram, own_version

__all__ = ["FORMATS", "OPENMETRICS", "TEXT", "TEXT_1", "Format", "families", "metrics_text"]


class Format(NamedTuple):
    """Hold a text format of metrics.

    Args:
        content_type: Its media type.
        generate: Writes the metrics of a registry.
        end: What ends the text.
    """

    content_type: str
    generate: Callable[[Collector], bytes]
    end: bytes = b""


TEXT = Format("text/plain; version=0.0.4; charset=utf-8", generate_latest)
TEXT_1 = Format("text/plain; version=1.0.0; charset=utf-8; escaping=underscores", generate_latest)
OPENMETRICS = Format(
    "application/openmetrics-text; version=1.0.0; charset=utf-8", cast("Any", openmetrics).generate_latest, b"# EOF\n"
)
FORMATS = (TEXT, TEXT_1, OPENMETRICS)
"""All formats. Only OpenMetrics has exemplars."""
WITH_EXEMPLARS = "streameval_policy_events_missing_total"
"""A counter that every policy has. Its exemplar is the event with the largest weight since the process started."""
LONGEST_EXEMPLAR = 128
"""Characters of names and values of the labels, by the standard."""
PROCESS = CollectorRegistry()
"""Metrics of the process itself, which need no status."""
for _collector in (ProcessCollector, PlatformCollector, GCCollector):
    _collector(registry=PROCESS)

METRICS: dict[str, dict[str, tuple[str, str]]] = tomllib.loads(
    files("streameval.service").joinpath("metrics.toml").read_text(encoding="utf-8")
)
"""Path of the value and help text, by section and metric."""

Series: TypeAlias = tuple[Sequence[str], Any]
"""Values of the labels, and the object that holds the value."""
Row: TypeAlias = tuple[dict[str, str], Any]
"""The same with the names of the labels."""

log = structlog.get_logger("streameval.prometheus")


def metrics_text(status: DaemonStatus, form: Format = TEXT, policies: Collection[str] = (), top: str = "") -> bytes:
    """Return the metrics of the daemon and of its process.

    Args:
        status: What the daemon has published.
        form: The text format.
        policies: As for `families`.
        top: As for `families`.
    """
    return _daemon_text(status, form, frozenset(policies), top).removesuffix(form.end) + form.generate(PROCESS)


@lru_cache(maxsize=len(FORMATS))
def _daemon_text(status: DaemonStatus, form: Format, policies: frozenset[str], top: str) -> bytes:
    """Return the metrics of the daemon. All scrapes of one status share them."""
    shown = _families(status, policies, top)
    return form.generate(cast("Collector", SimpleNamespace(collect=lambda: shown)))


def families(status: DaemonStatus, policies: Collection[str] = (), top: str = "") -> tuple[Metric, ...]:
    """Return all families of the daemon that have a sample. What belongs to no policy is always there.

    Args:
        status: What the daemon has published.
        policies: The only policies to show, if any are named.
        top: How many of the best candidates to show, or `all`. By default production and the first `MAX_REPORTED`
            candidates of the configuration, so that no series comes and goes with its rank.
    """
    return _families(status, frozenset(policies), top)


@lru_cache(maxsize=1)
def _families(status: DaemonStatus, policies: frozenset[str], top: str) -> tuple[Metric, ...]:
    shown = tuple(_metrics(_shown(status, policies, top)))
    return tuple(_of_policies(metric, policies) for metric in shown) if policies else shown


def _shown(status: DaemonStatus, policies: frozenset[str], top: str) -> DaemonStatus:
    """Return the status with the Report of the candidates to show, and of production."""
    report = status.report
    if report is None:
        return status
    if policies or top:
        names = shown_candidates(status, tuple(policies), top, MAX_REPORTED)
    else:
        every = [counts.policy for counts in report.policies if not counts.production]
        names = every[:MAX_REPORTED] if len(every) > MAX_REPORTED else None
    if names is None:
        return status
    shown = of_policies(report, names)
    return replace(status, report=shown, left_out=len(report.policies) - len(shown.policies))


def _of_policies(metric: Metric, policies: frozenset[str]) -> Metric:
    """Return a family with the samples of these policies, without production if it is not among them."""
    chosen, names = Metric(metric.name, metric.documentation, metric.type, metric.unit), {None, *policies}
    chosen.samples = [sample for sample in metric.samples if sample.labels.get("policy") in names]
    return chosen


def _metrics(status: DaemonStatus) -> Iterator[Metric]:
    """Yield all families that have a sample. One that fails is logged and left out."""
    for section in SECTIONS:
        rows = cache(partial(_rows, section, status))
        for name, (path, help_text) in METRICS[section].items():
            try:
                metric = _metric(name, help_text, rows(), path)
                if name == WITH_EXEMPLARS:
                    metric.samples = [_with_exemplar(sample, status) for sample in metric.samples]
            except Exception:
                log.exception("metrics_failed", family=name)
            else:
                if metric.samples:
                    yield metric


def _rows(section: str, status: DaemonStatus) -> list[Row]:
    """Return the labels of a section with its objects. All metrics of the section share them."""
    names, series = SECTIONS[section]
    mark = _mark(status) if section in OF_WEIGHTS else {}
    return [(dict(zip(names, labels, strict=True)) | mark, entry) for labels, entry in series(status)]


def _with_exemplar(sample: Sample, status: DaemonStatus) -> Sample:
    """Return a sample of a policy with its heaviest event, if it has one. A long topic loses its start."""
    event = status.heaviest.get(sample.labels["policy"])
    if event is None:
        return sample
    topic, partition, offset = event.position
    labels = {"partition": str(partition), "offset": str(offset)}
    room = LONGEST_EXEMPLAR - len("topic") - sum(map(len, (*labels, *labels.values())))
    labels["topic"] = without_secrets(topic)[-room:]
    timestamp = event.timestamp if math.isfinite(event.timestamp) else None
    return sample._replace(exemplar=Exemplar(labels, event.weight, timestamp))


def _mark(status: DaemonStatus) -> dict[str, str]:
    """Return the label of numbers with errors that no interval includes, empty if propensities are logged."""
    return {"propensity": "estimated"} if status.reported.propensity_model else {}


def _read(entry: Any, path: Sequence[str]) -> Any:
    """Return the value at a path of attributes and keys, such as `details.alpha`, or None if a step is None."""
    for name in path:
        if entry is None:
            return None
        entry = entry.get(name) if isinstance(entry, dict) else getattr(entry, name)
    return entry


def _metric(name: str, help_text: str, rows: Sequence[Row], path: str) -> Metric:
    """Return a histogram for a Histogram, else a counter (`_total`), an info (`_info`) or a gauge, by the name."""
    steps = path.split(".") if path else ()
    values = [(labels, _read(entry, steps)) for labels, entry in rows]
    if values and isinstance(histogram := values[0][1], Histogram):
        bounds = [*(repr(float(bound)) for bound in histogram.bounds), "+Inf"]
        buckets = list(zip(bounds, histogram.cumulative(), strict=True))
        return HistogramMetricFamily(name, help_text, buckets, histogram.total)
    kind = {"total": "counter", "info": "info"}.get(name.rpartition("_")[2], "gauge")
    metric = Metric(name.removesuffix("_total").removesuffix("_info"), help_text, kind)
    for labels, value in values:
        if value is not None and math.isfinite(value):
            metric.add_sample(name, labels, value)
    return metric


def _reported(attribute: str, *names: str) -> Callable[[DaemonStatus], Iterable[Series]]:
    """Return a function that yields a series for each entry of a list of the Report, labelled by its attributes."""

    def series(status: DaemonStatus) -> Iterator[Series]:
        for entry in getattr(status.reported, attribute):
            yield tuple(str(getattr(entry, name)) for name in names), entry

    return series


def _first_estimates(status: DaemonStatus) -> Iterable[Series]:
    estimates = reversed(status.reported.of_goal().estimates)
    return {(estimate.policy, estimate.average): estimate for estimate in estimates}.items()


def _goal_estimates(status: DaemonStatus) -> Iterator[Series]:
    """Yield a series for each estimate of the reward that decides."""
    for estimate in status.reported.of_goal().estimates:
        yield (estimate.policy, estimate.estimator, estimate.average), estimate


def _forecasts(status: DaemonStatus) -> Iterator[Series]:
    for labels, estimate in _estimates(status):
        yield from (((*labels, forecast.ahead), forecast) for forecast in estimate.forecast)


def _intervals(status: DaemonStatus) -> Iterator[Series]:
    for labels, estimate in _goal_estimates(status):
        if estimate.value is not None:
            yield (*labels, estimate.kind, str(estimate.anytime).lower(), estimate.covers), 1


def _slot_lifts(status: DaemonStatus) -> Iterable[Series]:
    lifts = {
        (policy, str(slot)): lift
        for (policy, *_), estimate in _goal_estimates(status)
        for slot, lift in enumerate(estimate.details.get("slot_lifts", ()), start=1)
    }
    return lifts.items()


def _model(attribute: str) -> Callable[[DaemonStatus], Iterable[Series]]:
    """Return a function that returns a series for a model of the Report if there is one."""

    def series(status: DaemonStatus) -> Iterable[Series]:
        model = getattr(status.reported, attribute)
        return [((model.model,), model)] if model else []

    return series


def _model_failures(status: DaemonStatus) -> Iterator[Series]:
    for labels, model in _model("reward_model")(status):
        yield from (((*labels, reason), count) for reason, count in model.failures.items())


def _policy_failures(status: DaemonStatus) -> Iterator[Series]:
    for labels, policy in _policies(status):
        yield from (((*labels, failure.reason), failure.count) for failure in policy.failures)


def _outcomes(part: str) -> Callable[[DaemonStatus], Iterable[Series]]:
    """Return the counts of `rewards` or `scores` that come separately."""

    def series(status: DaemonStatus) -> Iterable[Series]:
        counts = getattr(status.buffered, part, None)
        return [((name,), getattr(counts, name)) for name in ("joined", "late", "unmatched")] if counts else []

    return series


def _clipped(status: DaemonStatus) -> Iterator[Series]:
    for labels, clipped in _reported("clipped", "reward")(status):
        yield from (((*labels, side), getattr(clipped, side)) for side in ("below", "above"))


def _joining(status: DaemonStatus) -> Iterable[Series]:
    buffered = status.buffered
    return [((), buffered)] if buffered and (buffered.rewards or buffered.scores) else []


def _lateness(status: DaemonStatus) -> Iterable[Series]:
    lateness = {} if status.buffered is None else status.buffered.lateness
    return (((topic, str(partition)), seconds) for (topic, partition), seconds in lateness.items())


def _guardrails(status: DaemonStatus) -> Iterator[Series]:
    for (policy, rule), decision in _reported("promotion", "policy", "rule")(status):
        if decision.decides:
            yield from (((policy, rule, check.reward), check) for check in decision.guardrails)


def _phases(status: DaemonStatus) -> Iterator[Series]:
    """Yield the numbers of each phase: 31 series for a candidate with hours of the day and days of the week."""
    for labels, decision in _reported("promotion", "policy", "rule")(status):
        for profile in decision.profiles:
            columns = {name: getattr(profile, name) for name in ("lift", "error", "latest", "share")}
            for phase in range(len(profile.lift)):
                numbers = {name: column[phase] for name, column in columns.items()}
                yield (*labels, format_duration(profile.period), str(phase)), numbers


def _deciding(status: DaemonStatus) -> Iterable[Series]:
    """Return a series for each candidate. All rules that read a lift read the same one."""
    rows = (row for row, decision in _reported("promotion", *PER_REWARD)(status) if decision.estimator)
    return ((row, 1) for row in dict.fromkeys(rows))


def _propensities(status: DaemonStatus) -> Iterable[Series]:
    return {(estimate.propensity,): 1 for estimate in status.reported.estimates}.items()


PER_ESTIMATE = ("policy", "estimator", "average")
PER_REWARD = (*PER_ESTIMATE, "reward")
_estimates = _reported("estimates", *PER_REWARD)
_policies = _reported("policies", "policy")

SECTIONS: dict[str, tuple[tuple[str, ...], Callable[[DaemonStatus], Iterable[Series]]]] = {
    "daemon": ((), lambda status: [((), status)]),
    "rejected": (("reason",), lambda status: (((reason,), count) for reason, count in status.rejected.items())),
    "estimates": (PER_REWARD, _estimates),
    "forecasts": ((*PER_REWARD, "ahead"), _forecasts),
    "intervals": ((*PER_ESTIMATE, "kind", "anytime", "covers"), _intervals),
    "averages": (("policy", "average"), _first_estimates),
    "slots": (("policy", "slot"), _slot_lifts),
    "examination": (("rank",), _reported("examination", "rank")),
    "calibration": (("policy", "average"), _reported("calibration", "policy", "average")),
    "segments": (
        ("segment", "value", *PER_ESTIMATE),
        _reported("segments", "segment", "segment_value", *PER_ESTIMATE),
    ),
    "promotion": (("policy", "rule", "reward"), _reported("promotion", "policy", "rule", "reward")),
    "contenders": (("policy",), _reported("contenders", "policy")),
    "phases": (("policy", "rule", "period", "phase"), _phases),
    "guardrails": (("policy", "rule", "reward"), _guardrails),
    "deciding": (PER_REWARD, _deciding),
    "trust": (("policy", "check"), _reported("trust", "policy", "check")),
    "policies": (("policy",), _policies),
    "learners": (("policy",), _reported("learners", "policy")),
    "policy_failures": (("policy", "reason"), _policy_failures),
    "reward_models": (("model",), _model("reward_model")),
    "reward_model_failures": (("model", "reason"), _model_failures),
    "partitions": (
        ("topic", "partition"),
        lambda status: (((log.name, str(log.partition)), log) for log in status.source.partitions),
    ),
    "lag": (
        ("topic", "partition"),
        lambda status: (
            ((log.name, str(log.partition)), log.lag_seconds(status.at)) for log in status.source.partitions
        ),
    ),
    "lateness": (("topic", "partition"), _lateness),
    "gaps": (("kind",), lambda status: (((kind,), status.source.gaps.get(kind, 0)) for kind in GAPS)),
    "backfills": (
        ("policy",),
        lambda status: (((policy,), backfill) for backfill in status.backfills for policy in backfill.policies),
    ),
    "rewards": (("outcome",), _outcomes("rewards")),
    "scores": (("outcome",), _outcomes("scores")),
    "clipped": (("reward", "side"), _clipped),
    "clipping": (("reward",), _reported("clipped", "reward")),
    "limits": (("reward",), _reported("limits", "reward")),
    "quantiles": (("policy", "reward", "level"), _reported("quantiles", "policy", "reward", "quantile")),
    "joining": ((), _joining),
    "per_unit": (("policy", "reward"), _reported("per_unit", "policy", "reward")),
    "propensities": (("kind",), _propensities),
    "propensity_models": (("model",), _model("propensity_model")),
    "engine": ((), lambda status: [((), status.engine)] if status.engine else []),
    "build": (
        ("name", "version", "python"),
        lambda status: [((status.name, own_version(), platform.python_version()), 1)],
    ),
}
"""Labels and series of the metrics, by section."""
OF_WEIGHTS = {
    "estimates",
    "forecasts",
    "averages",
    "slots",
    "calibration",
    "segments",
    "promotion",
    "contenders",
    "phases",
    "guardrails",
}
"""Sections of numbers that follow from importance weights, and so from propensities."""
