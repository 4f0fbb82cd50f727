"""Check that kubeconform accepts deploy/argo-rollouts and deploy/flagger, and that their metrics are exported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.deployed import DEPLOY, unexplained
from support.programs import output, program
from support.published import Kubeconform

ANALYSIS_FILE = DEPLOY / "argo-rollouts" / "analysistemplate.yaml"
METRIC_FILE = DEPLOY / "flagger" / "metrictemplate.yaml"
ANALYSES: list[dict[str, Any]] = list(yaml.safe_load_all(ANALYSIS_FILE.read_text()))
METRICS: list[dict[str, Any]] = list(yaml.safe_load_all(METRIC_FILE.read_text()))


def shown(file: Path) -> Any:
    """Return the part of another resource that the comment at the start of a template shows between backticks."""
    first, _, _ = file.read_text().partition("apiVersion")
    lines = (line.removeprefix("# ") for line in first.splitlines())
    (analysis,) = re.findall(r"`(analysis: .*?)`", " ".join(lines))
    return yaml.safe_load(analysis)["analysis"]


STEP = shown(ANALYSIS_FILE)
ROLLOUT: dict[str, Any] = {
    "apiVersion": "argoproj.io/v1alpha1",
    "kind": "Rollout",
    "metadata": {"name": "recommender"},
    "spec": {
        "strategy": {
            "canary": {
                "steps": [{"setWeight": 10}, {"analysis": STEP}],
                "analysis": {"templates": [{"templateName": "streameval-worse"}], "args": STEP["args"]},
            }
        }
    },
}
"""A Rollout with the step that the first lines show, and the analysis in the background."""
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
    assert Kubeconform(tmp_path).complaints(*ANALYSES, ROLLOUT, *METRICS, CANARY) == ""


def test_the_templates_show_a_metric_that_gives_each_of_their_variables() -> None:
    (metric,) = CANARY["spec"]["analysis"]["metrics"]
    assert metric["templateRef"]["name"] == METRICS[0]["metadata"]["name"]
    for template in METRICS:
        variables = re.findall(r"\{\{ variables\.(\w+) \}\}", template["spec"]["query"])
        assert set(metric["templateVariables"]) == set(variables)


def test_every_argument_of_a_query_is_declared_and_those_without_a_value_are_given_by_the_shown_step() -> None:
    assert [template["templateName"] for template in STEP["templates"]] == [ANALYSES[0]["metadata"]["name"]]
    for analysis in ANALYSES:
        declared = {argument["name"]: argument.get("value") for argument in analysis["spec"]["args"]}
        assert {argument["name"] for argument in STEP["args"]} == {
            name for name, value in declared.items() if value is None
        }
        assert set(re.findall(r"\{\{args\.(\w+)\}\}", yaml.safe_dump(analysis["spec"]["metrics"]))) == set(declared)


def queries() -> list[tuple[str, str]]:
    """Return the name and the query of each template, for the daemon `home` and its candidate `challenger`."""
    chosen = {"daemon": "home", "policy": "challenger", "rule": "periodic"}
    found = [(each, each["spec"]["metrics"][0]["provider"]["prometheus"]["query"]) for each in ANALYSES]
    found += [(each, each["spec"]["query"]) for each in METRICS]
    return [
        (template["metadata"]["name"], re.sub(r"\{\{\W*\w+\.(\w+)\W*\}\}", lambda name: chosen[name[1]], query))
        for template, query in found
    ]


def test_the_queries_are_about_metrics_that_are_exported() -> None:
    assert unexplained(query for _, query in queries()) == set()


def test_the_queries_ask_only_the_daemon_of_the_name(tmp_path: Path) -> None:
    """Let Prometheus answer for two daemons with a candidate of the same name: `home` has two instances."""
    states = {"home-0:9108": ("home", 1, 0), "home-1:9108": ("home", 0, 1), "search-0:9108": ("search", 0, 0)}
    series = []
    for instance, (name, promotable, worse) in states.items():
        labels = f'job="streameval", instance="{instance}"'
        decision = f'{labels}, policy="challenger", rule="periodic"'
        series += [
            {"series": f'streameval_build_info{{{labels}, name="{name}"}}', "values": "1x5"},
            {"series": f"streameval_policy_promotable{{{decision}}}", "values": f"{promotable}x5"},
            {"series": f"streameval_policy_worse{{{decision}}}", "values": f"{worse}x5"},
        ]
    expected = {"streameval-promotable": 0, "streameval-worse": 1}
    asked = [
        {"expr": query.replace("home", daemon), "eval_time": "2m", "exp_samples": samples}
        for template, query in queries()
        for daemon, samples in (
            ("home", [{"labels": "{}", "value": expected[template]}]),
            ("search", [{"labels": "{}", "value": 0}]),
            ("unknown", []),
        )
    ]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": asked}]}))
    assert "SUCCESS" in output(program("promtool", "prometheus"), "test", "rules", str(file))
