"""deploy/argo-rollouts and deploy/flagger: of the published types and schemas, and about a metric that is exported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from support.deployed import DEPLOY, unexplained
from support.published import compile_as_types, published_types, validate

ANALYSIS: dict[str, Any] = yaml.safe_load((DEPLOY / "argo-rollouts" / "analysistemplate.yaml").read_text())
METRIC: dict[str, Any] = yaml.safe_load((DEPLOY / "flagger" / "metrictemplate.yaml").read_text())
TEXTS = {"type": "string"}
PROVIDERS = [
    "prometheus",
    "influxdb",
    "datadog",
    "externalmetrics",
    "stackdriver",
    "cloudwatch",
    "newrelic",
    "graphite",
    "dynatrace",
    "keptn",
    "splunk",
]
METRIC_TEMPLATE = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "flagger.app/v1beta1"},
        "kind": {"const": "MetricTemplate"},
        "spec": {
            "type": "object",
            "required": ["provider", "query"],
            "additionalProperties": False,
            "properties": {
                "query": TEXTS,
                "provider": {
                    "type": "object",
                    "required": ["type"],
                    "additionalProperties": False,
                    "properties": {
                        "type": {"enum": PROVIDERS},
                        "address": TEXTS,
                        "region": TEXTS,
                        "insecureSkipVerify": {"type": "boolean"},
                        "headers": {"additionalProperties": {"type": "array", "items": TEXTS}},
                        "secretRef": {"required": ["name"], "properties": {"name": TEXTS}},
                    },
                },
            },
        },
    },
}
"""The rules of the custom resource `metrictemplates.flagger.app`, which no registry of packages has."""


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published_types(tmp_path_factory.mktemp("types"))


@pytest.mark.slow
def test_the_analysis_is_of_the_published_types_and_schemas(published: Path) -> None:
    assert compile_as_types(published, [ANALYSIS]) == ""
    assert validate(published, [ANALYSIS]) == ""


@pytest.mark.slow
def test_a_wrong_key_of_an_analysis_would_be_noticed(published: Path) -> None:
    (metric,) = ANALYSIS["spec"]["metrics"]
    misspelt = {**ANALYSIS, "spec": {**ANALYSIS["spec"], "metrics": [{**metric, "failurelimit": 3}]}}
    assert "failurelimit" in compile_as_types(published, [misspelt], code=2)
    nameless = {**ANALYSIS, "spec": {**ANALYSIS["spec"], "metrics": [{**metric, "name": None}]}}
    assert "name" in validate(published, [nameless], code=1)


def test_the_metric_template_keeps_the_rules_of_its_custom_resource() -> None:
    validator = Draft202012Validator(METRIC_TEMPLATE)
    validator.validate(METRIC)
    spec = METRIC["spec"]
    assert not validator.is_valid({**METRIC, "spec": {**spec, "queries": spec["query"]}})
    assert not validator.is_valid({**METRIC, "spec": {**spec, "provider": {"type": "prom"}}})


def test_the_queries_are_about_metrics_that_are_exported() -> None:
    queries = [ANALYSIS["spec"]["metrics"][0]["provider"]["prometheus"]["query"], METRIC["spec"]["query"]]
    filled = [re.sub(r"\{\{.*?\}\}", "value", query) for query in queries]
    assert filled == ['min(streameval_policy_promotable{policy="value", rule="value"})'] * 2
    assert unexplained(iter(filled)) == set()


def test_every_argument_of_a_query_is_declared() -> None:
    declared = {argument["name"] for argument in ANALYSIS["spec"]["args"]}
    assert set(re.findall(r"\{\{args\.(\w+)\}\}", yaml.safe_dump(ANALYSIS["spec"]["metrics"]))) == declared
