"""Check the rules in deploy/prometheus with Prometheus itself."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.deployed import PROMETHEUS, RULES, RUNBOOKS, rules, unexplained
from support.programs import output, program

ALERTS = rules("alert")
RECORDED = rules("record")
UNIT_TESTS = sorted((PROMETHEUS / "tests").glob("*.yml"))
LINTS = ("--lint=all", "--lint-fatal")


@pytest.fixture(scope="module")
def promtool() -> str:
    return program("promtool", "prometheus")


@cache
def expectations() -> list[dict[str, Any]]:
    """Return the expectations of the unit tests of alerts."""
    tests = [test for path in UNIT_TESTS for test in yaml.safe_load(path.read_text())["tests"]]
    return [expected for test in tests for expected in test["alert_rule_test"]]


@pytest.mark.parametrize("name", ["prometheus.yml", "local.yml"])
def test_prometheus_accepts_its_configuration(promtool: str, name: str) -> None:
    message = output(promtool, "check", "config", *LINTS, str(PROMETHEUS / name))
    assert f"{len(RULES)} rule files found" in message


def test_the_rules_pass_every_lint(promtool: str) -> None:
    message = output(promtool, "check", "rules", *LINTS, *map(str, RULES))
    assert sum(map(int, re.findall(r"(\d+) rules found", message))) == len(ALERTS) + len(RECORDED)


@pytest.mark.slow
@pytest.mark.parametrize("path", UNIT_TESTS, ids=lambda path: path.stem)
def test_the_rules_pass_their_unit_tests(promtool: str, path: Path) -> None:
    assert "SUCCESS" in output(promtool, "test", "rules", str(path), seconds=280.0)


@pytest.mark.parametrize("path", UNIT_TESTS, ids=lambda path: path.stem)
def test_unit_tests_evaluate_recording_rules_before_the_alerts_that_use_them(path: Path) -> None:
    order = yaml.safe_load(path.read_text())["group_eval_order"]
    groups = {file.stem: [group["name"] for group in yaml.safe_load(file.read_text())["groups"]] for file in RULES}
    assert order == groups["recording"] + groups["alerts"]


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_a_unit_test_in_which_it_fires_and_one_in_which_it_does_not(alert: str) -> None:
    fired = {bool(expected["exp_alerts"]) for expected in expectations() if expected["alertname"] == alert}
    assert fired == {True, False}


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_gives_the_problem_its_size_and_a_link(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in {"page", "ticket", "info"}
    annotations = rule["annotations"]
    assert set(annotations) == {"summary", "description", "dashboard_url", "runbook_url"}
    if alert != "StreamevalAbsent":  # which has neither a value nor labels
        assert "$value" in annotations["description"]
        assert "$labels.instance" in annotations["description"]
        assert "$labels.instance" in annotations["dashboard_url"]


def test_every_runbook_belongs_to_an_alert() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == set(ALERTS)


def test_every_metric_in_a_rule_is_exported_or_recorded() -> None:
    everything = [*ALERTS.values(), *RECORDED.values()]
    assert unexplained(rule["expr"] for rule in everything) == set()


def test_recorded_series_are_named_after_their_metric() -> None:
    assert [name for name in RECORDED if not re.fullmatch(r"[a-z_]+:streameval_\w+:[a-z0-9_]+", name)] == []
