"""What lies in deploy/ for Prometheus, Alertmanager and Grafana, as values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from factories import make_published, make_report
from prometheus_client.parser import text_string_to_metric_families

from streameval.sinks.prometheus import MetricsPage

DEPLOY = Path(__file__).parents[1] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
ALERTMANAGER = DEPLOY / "alertmanager" / "alertmanager.yml"
RUNBOOKS = DEPLOY / "runbooks"
RULES = sorted((PROMETHEUS / "rules").glob("*.yml"))

ALWAYS_THERE = {"up", "ALERTS"}
"""Metrics that Prometheus itself makes."""


def rules(kind: str) -> dict[str, dict[str, Any]]:
    """All rules of the kind `alert` or `record`, by name."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    found = [rule for group in groups for rule in group["rules"] if kind in rule]
    assert len({rule[kind] for rule in found}) == len(found)
    return {rule[kind]: rule for rule in found}


def metrics_in(expression: str) -> set[str]:
    """The names of metrics and of recorded series in an expression of PromQL.

    >>> sorted(metrics_in('sum by (job) (rate(streameval_a_total{x="up"}[5m])) / on (job) job:streameval_a:sum > 0'))
    ['job:streameval_a:sum', 'streameval_a_total']
    """
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^]]*\]', "", expression)
    names = r"\b(?:\w+:)*(?:streameval|process|python)_\w+(?::\w+)*|\b(?:up|ALERTS)\b"
    return set(re.findall(names, bare))


def exported() -> set[str]:
    """Every series that a daemon can export, which is one with a full Report."""
    text = MetricsPage(lambda: make_published(make_report())).render().decode()
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


def unexplained(expressions: Iterator[str]) -> set[str]:
    """Names in the expressions that neither the daemon exports nor a rule records."""
    return (
        {name for each in expressions for name in metrics_in(each)} - exported() - ALWAYS_THERE - set(rules("record"))
    )
