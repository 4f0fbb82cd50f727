"""Read the files in deploy/ for Prometheus, Alertmanager and Grafana."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from streameval.ingest.background import WorkerStatus
from streameval.ingest.stages import BufferStatus, RewardCounts
from streameval.ope.report import Examined, PropensityModel
from streameval.ope.reward_models.online import RewardModelAccuracy
from streameval.service.metrics import metrics_text
from streameval.service.status import BackfillStatus, EngineStatus
from support.factories import make_published, make_report, with_a_guardrail, with_profiles, with_segments
from support.paths import ROOT

DEPLOY = ROOT / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
ALERTMANAGER = DEPLOY / "alertmanager" / "alertmanager.yml"
RUNBOOKS = DEPLOY / "runbooks"
RULES = sorted((PROMETHEUS / "rules").glob("*.yml"))

ALWAYS_THERE = {"up", "ALERTS"}
"""Metrics that Prometheus itself makes."""


@cache
def every_rule() -> list[dict[str, Any]]:
    return [rule for path in RULES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def rules(kind: str) -> dict[str, dict[str, Any]]:
    """Return all rules of the kind `alert` or `record`, by name."""
    matching = [rule for rule in every_rule() if kind in rule]
    assert len({rule[kind] for rule in matching}) == len(matching)
    return {rule[kind]: rule for rule in matching}


def metrics_in(expression: str) -> set[str]:
    """Return the names of metrics and of recorded series in an expression of PromQL.

    >>> sorted(metrics_in('sum by (job) (rate(streameval_a_total{x="up"}[5m])) / on (job) job:streameval_a:sum > 0'))
    ['job:streameval_a:sum', 'streameval_a_total']
    """
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^]]*\]', "", expression)
    names = r"\b(?:\w+:)*(?:streameval|process|python)_\w+(?::\w+)*|\b(?:up|ALERTS)\b"
    return set(re.findall(names, bare))


def exported() -> set[str]:
    """Return the names of all series that a daemon with every optional feature exports."""
    looks = (Examined(2, 0.5, 0.4, 0.6),)
    guarded = with_a_guardrail(with_segments(with_profiles(make_report())), True, True, False)
    report = replace(
        guarded,
        promotion=tuple(replace(row, lift=0.002, lower=0.001, worse=False) for row in guarded.promotion),
        reward_model=RewardModelAccuracy("ridge", 0.1, 0.2),
        examination=looks,
        propensity_model=PropensityModel("tabular", 100, 3, 0.5, 0.7),
    )
    buffered = BufferStatus(
        events=5,
        watermark=1.7e9,
        rewards=RewardCounts(joined=90, late=10, unmatched=1),
        window=600.0,
        unmatched_share=0.01,
        scores=RewardCounts(joined=90, late=10, unmatched=1),
        unmatched_scores=0.01,
    )
    late = BackfillStatus(("challenger-a",), read=10, waiting=20)
    written = WorkerStatus(done=3)
    sections = {"backfills": (late,), "buffered": buffered, "engine": EngineStatus(batch_events=1000, age=4.0)}
    published = make_published(report, dead_letters=written, decisions=written, **sections)
    text = metrics_text(published).decode()
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


def unexplained(expressions: Iterator[str]) -> set[str]:
    """Return names in the expressions that neither the daemon exports nor a rule records."""
    return (
        {name for expression in expressions for name in metrics_in(expression)}
        - exported()
        - ALWAYS_THERE
        - set(rules("record"))
    )


@dataclass(frozen=True)
class Panel:
    """Represent one panel of a dashboard.

    Attributes:
        dashboard: Its uid.
        content: The panel, as in the file of the dashboard.
    """

    dashboard: str
    content: dict[str, Any]

    @property
    def title(self) -> str:
        """Return the title of the panel."""
        return str(self.content["title"])

    @property
    def is_joined(self) -> bool:
        """Return whether each query gives a column, with a row for each value of its only label."""
        return self.content["type"] in ("table", "trend")

    @property
    def queries(self) -> list[str]:
        """Return the expressions of the panel, with the variables of Grafana."""
        return [target["expr"] for target in self.content["targets"]]

    def legends(self, series: list[list[Mapping[str, str]]]) -> list[str]:
        """Return the names of all series of the panel.

        Args:
            series: Labels of the series that each query gives. `{{label}}` stays if a series lacks the label.
        """
        return [
            re.sub(r"\{\{(\w+)\}\}", lambda label: labels.get(label[1]) or label[0], target["legendFormat"])  # noqa: B023
            for target, query_series in zip(self.content["targets"], series, strict=True)
            for labels in query_series
        ]


def without_fallback(expression: str) -> str:
    """Return the query without its fallback, a 0 or NaN for a feature that is not in use."""
    return expression.partition(" or on () ")[0]


def dashboards() -> dict[str, dict[str, Any]]:
    """Return every generated dashboard, by its uid."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*"))}


def panels() -> list[Panel]:
    """Return all panels of all dashboards, without rows."""
    return [
        Panel(uid, content)
        for uid, board in dashboards().items()
        for content in board["panels"]
        if content["type"] != "row"
    ]


def variables(board: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the variables of a dashboard, by name, in their order."""
    return {variable["name"]: variable for variable in board["templating"]["list"]}


def annotations(board: dict[str, Any]) -> list[str]:
    """Return the expressions that mark moments on a dashboard."""
    return [annotation["target"]["expr"] for annotation in board["annotations"]["list"]]


def filled_in(expression: str, chosen: dict[str, str]) -> str:
    """Return the expression as Grafana sends it. Variables outside `chosen` match everything."""
    values = {"__rate_interval": "20s", "__interval": "1m", "__interval_ms": "60000", "__range": "5m"} | chosen
    return re.sub(r"\$(\w+)", lambda name: values.get(name[1], ".+"), expression)
