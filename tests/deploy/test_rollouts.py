"""Check that kubeconform accepts deploy/argo-rollouts and deploy/flagger, and that their metric is exported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.deployed import DEPLOY, unexplained
from support.published import Kubeconform

ANALYSIS_FILE = DEPLOY / "argo-rollouts" / "analysistemplate.yaml"
METRIC_FILE = DEPLOY / "flagger" / "metrictemplate.yaml"
ANALYSIS: dict[str, Any] = yaml.safe_load(ANALYSIS_FILE.read_text())
METRIC: dict[str, Any] = yaml.safe_load(METRIC_FILE.read_text())


def shown(file: Path) -> Any:
    """Return the part of another resource that the comment at the start of a template shows between backticks."""
    lines = (line.removeprefix("# ") for line in file.read_text().splitlines() if line.startswith("#"))
    (analysis,) = re.findall(r"`(analysis: .*?)`", " ".join(lines))
    return yaml.safe_load(analysis)["analysis"]


ROLLOUT: dict[str, Any] = {
    "apiVersion": "argoproj.io/v1alpha1",
    "kind": "Rollout",
    "metadata": {"name": "recommender"},
    "spec": {"strategy": {"canary": {"steps": [{"setWeight": 10}, {"analysis": shown(ANALYSIS_FILE)}]}}},
}
"""A Rollout with the step that the analysis's first lines show."""
CANARY: dict[str, Any] = {
    "apiVersion": "flagger.app/v1beta1",
    "kind": "Canary",
    "metadata": {"name": "recommender"},
    "spec": {
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "recommender"},
        "service": {"port": 80},
        "analysis": {"interval": "1m", "threshold": 60, "stepWeight": 10, **shown(METRIC_FILE)},
    },
}
"""A Canary with the metrics that the template's first lines show."""


@pytest.mark.slow
def test_kubeconform_accepts_the_templates_and_the_resources_that_use_them(tmp_path: Path) -> None:
    assert Kubeconform(tmp_path).complaints(ANALYSIS, ROLLOUT, METRIC, CANARY) == ""


def test_the_template_shows_a_metric_that_gives_each_of_its_variables() -> None:
    (metric,) = CANARY["spec"]["analysis"]["metrics"]
    assert metric["templateRef"]["name"] == METRIC["metadata"]["name"]
    assert set(metric["templateVariables"]) == set(re.findall(r"\{\{ variables\.(\w+) \}\}", METRIC["spec"]["query"]))


def test_the_queries_are_about_metrics_that_are_exported() -> None:
    queries = [ANALYSIS["spec"]["metrics"][0]["provider"]["prometheus"]["query"], METRIC["spec"]["query"]]
    filled = [re.sub(r"\{\{.*?\}\}", "value", query) for query in queries]
    assert filled == ['min(streameval_policy_promotable{policy="value", rule="value"})'] * 2
    assert unexplained(iter(filled)) == set()


def test_every_argument_of_a_query_is_declared_and_those_without_a_value_are_given_by_the_shown_step() -> None:
    declared = {argument["name"]: argument.get("value") for argument in ANALYSIS["spec"]["args"]}
    step = shown(ANALYSIS_FILE)
    assert [template["templateName"] for template in step["templates"]] == [ANALYSIS["metadata"]["name"]]
    assert {argument["name"] for argument in step["args"]} == {
        name for name, value in declared.items() if value is None
    }
    assert set(re.findall(r"\{\{args\.(\w+)\}\}", yaml.safe_dump(ANALYSIS["spec"]["metrics"]))) == set(declared)
