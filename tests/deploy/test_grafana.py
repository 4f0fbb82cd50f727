"""Check that dashboards agree with their code, that promtool reads them, and that their metrics exist.

Their types are those of the builders of Grafana's SDK, which mypy checks.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from support.deployed import (
    DEPLOY,
    PROMETHEUS,
    Panel,
    annotations,
    dashboards,
    filled_in,
    panels,
    rules,
    unexplained,
    variables,
)
from support.programs import output, program

GRAFANA = DEPLOY / "grafana"
DASHBOARDS = dashboards()
PANELS = panels()
OF_GRAFANA = {"__all", "__interval", "__interval_ms", "__range", "__rate_interval"}
MAIN, PIPELINE = DASHBOARDS["streameval"], DASHBOARDS["streameval-pipeline"]


def named(panel: Panel) -> str:
    return f"{panel.dashboard}: {panel.title}"


def everything_shown(board: dict[str, Any]) -> list[str]:
    """Return the expressions of panels and annotations."""
    panel_queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return [*panel_queries, *annotations(board)]


def everything_asked(board: dict[str, Any]) -> list[str]:
    """Return the expressions of panels, annotations and variables."""
    asked = [variable["query"]["query"] for variable in variables(board).values() if variable["type"] == "query"]
    return [
        *everything_shown(board),
        *(re.sub(r"label_values\((.*), \w+\)", r"\1", query) for query in asked),
    ]


def asked_by(title: str) -> str:
    """Return the first expression of the panel, filled in."""
    return filled_in(next(panel for panel in PANELS if panel.title == title).queries[0], {})


def assert_counts(
    folder: Path, expression: str, label: str, series: dict[str, str], expected: dict[int, dict[str, int]]
) -> None:
    """Compare the number of results by a label at some minutes, of series with one value a minute."""
    tests = [
        {
            "expr": f"count by ({label}) (({expression}) >= 0)",
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": f'{{{label}="{value}"}}', "value": number} for value, number in counts.items()],
        }
        for minute, counts in expected.items()
    ]
    input_series = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": "1m", "input_series": input_series, "promql_expr_test": tests}
    (folder / "test.yml").write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [test]}))
    output(program("promtool", "prometheus"), "test", "rules", str(folder / "test.yml"))


def test_the_dashboards_are_what_their_code_writes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "streameval_dashboards", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(GRAFANA), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run(command, env=environment, check=True, timeout=120)
    written = {path.stem: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert written == DASHBOARDS, "run `make dashboards`"


@pytest.mark.parametrize("board", DASHBOARDS.values(), ids=DASHBOARDS)
def test_no_two_panels_have_one_title_one_number_or_one_place(board: dict[str, Any]) -> None:
    content = [panel for panel in board["panels"] if panel["type"] != "row"]
    positions = [panel["gridPos"] for panel in board["panels"]]
    cells = Counter(
        (x, y) for p in positions for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])
    )
    assert len({panel["title"] for panel in content}) == len({panel["id"] for panel in content}) == len(content)
    assert set(cells.values()) == {1}
    assert max(x for x, _ in cells) < 24


def test_links_choose_the_shown_estimates() -> None:
    assert list(variables(MAIN)) == [
        "datasource",
        "job",
        "name",
        "instance",
        "policy",
        "reward",
        "estimator",
        "average",
        "period",
    ]
    assert list(variables(PIPELINE)) == ["datasource", "job", "name", "instance"]


@pytest.mark.parametrize("board", DASHBOARDS.values(), ids=DASHBOARDS)
def test_a_dashboard_shows_one_name_only(board: dict[str, Any]) -> None:
    name, instance = (variables(board)[variable] for variable in ("name", "instance"))
    assert (name["multi"], name["includeAll"]) == (False, False)
    assert 'name="$name"' in instance["query"]["query"]
    for expression in everything_shown(board):
        series = re.findall(r"\b(?:streameval_\w+|process_\w+|ALERTS)\b(?:\{(.*?)\})?", expression)
        assert all(re.search(r'\b(instance=~"\$instance"|name=")', selector) for selector in series), expression


def test_promotions_drift_and_restarts_are_marked() -> None:
    for board in DASHBOARDS.values():
        marks = " ".join(annotations(board))
        assert all(word in marks for word in ("promotable", "drift_detections", "process_start_time"))


@pytest.mark.parametrize(
    ("name", "metric", "values", "marked"),
    [
        ("Promotable", "streameval_policy_promotable", "0 1 1 0 0", [1]),
        ("Not promotable", "streameval_policy_promotable", "0 1 1 0 0", [3]),
        ("Drift", "streameval_policy_drift_detections_total", "0 0 1 1 3", [2, 4]),
        ("Restarts", "process_start_time_seconds", "1 1 1 150 150", [0, 3]),
    ],
)
def test_a_moment_is_marked_once_and_only_then(
    name: str, metric: str, values: str, marked: list[int], tmp_path: Path
) -> None:
    (mark,) = (mark for mark in MAIN["annotations"]["list"] if mark["name"] == name)
    positive = f"({filled_in(mark['target']['expr'], {})}) > 0"  # Grafana marks nothing where it is 0
    series = {f'{metric}{{job="j", instance="i", policy="a", rule="paired"}}': values}
    expected = {minute: {"j": 1} if minute in marked else {} for minute in range(5)}
    assert_counts(tmp_path, f'label_replace({positive}, "job", "j", "", "")', "job", series, expected)


def test_a_check_that_has_failed_stays_named_and_others_are_not(tmp_path: Path) -> None:
    checks = {"stale": "1 1 1 1 1 1", "reward_range": "1 0 1 1 1 1"}
    series = {
        f'streameval_policy_trust_check_ok{{job="j", instance="i", policy="a", check="{check}"}}': values
        for check, values in checks.items()
    }
    expected = {0: {"all checks": 1}, 3: {"all checks": 1, "reward_range": 1}}
    assert_counts(tmp_path, asked_by("Trust checks"), "check", series, expected)


def test_alerts_about_another_name_are_not_shown(tmp_path: Path) -> None:
    firing = {"StreamevalDown": "home", "StreamevalNotReady": "search", "StreamevalAbsent": ""}
    series = {
        f'ALERTS{{alertname="{alert}", alertstate="firing", name="{name}"}}': "1" for alert, name in firing.items()
    }
    (asked,) = (filled_in(panel.queries[0], {"name": "home"}) for panel in PANELS if panel.title == "Alerts")
    assert_counts(tmp_path, asked, "alertname", series, {0: {"StreamevalDown": 1, "StreamevalAbsent": 1}})


def test_none_is_shown_only_where_there_is_nothing(tmp_path: Path) -> None:
    series = {'ALERTS{alertname="StreamevalDown", alertstate="firing"}': "_ _ 1 1"}
    expected = {0: {"none": 1}, 3: {"StreamevalDown": 1}}
    assert_counts(tmp_path, asked_by("Alerts"), "alertname", series, expected)


@pytest.mark.parametrize("panel", [panel for panel in PANELS if panel.content["type"] == "stat"], ids=named)
def test_a_number_that_is_no_longer_reported_is_not_shown_as_current(panel: Panel, tmp_path: Path) -> None:
    asked = filled_in(panel.queries[0], {})
    unknown = (
        f'label_replace(vector(1), "is", "not known", "", "") and on () (({asked}) != ({asked}))'  # NaN is not NaN
    )
    expected = {"not known": 1} if panel.title != "Ready instances" else {}  # of which there are 0
    assert_counts(tmp_path, unknown, "is", {"another_metric": "1"}, {0: expected})


def test_the_mean_weight_is_that_of_the_average_with_most_evidence(tmp_path: Path) -> None:
    labels = 'job="j", instance="i", policy="a", average='
    series = {
        f'streameval_policy_importance_weight_mean{{{labels}"decay"}}': "3",
        f'streameval_policy_importance_weight_mean{{{labels}"cumulative"}}': "1",
        f'streameval_policy_effective_sample_size{{{labels}"decay", estimator="ips"}}': "30",
        f'streameval_policy_effective_sample_size{{{labels}"cumulative", estimator="ips"}}': "300",
    }
    asked = asked_by("Mean importance weight, against 1")
    assert_counts(tmp_path, f"({asked}) == 1", "policy", series, {0: {"a": 1}})


@pytest.mark.parametrize("board", DASHBOARDS.values(), ids=DASHBOARDS)
def test_only_variables_that_exist_are_used(board: dict[str, Any]) -> None:
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(board)))
    assert used <= set(variables(board)) | OF_GRAFANA


@pytest.mark.parametrize("board", DASHBOARDS.values(), ids=DASHBOARDS)
def test_prometheus_understands_every_expression(board: dict[str, Any], tmp_path: Path) -> None:
    expressions = [filled_in(expression, {}) for expression in everything_asked(board)]
    recorded = [{"record": f"e{index}", "expr": expression} for index, expression in enumerate(expressions)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "expressions", "rules": recorded}]}))
    assert f"{len(recorded)} rules found" in output(
        program("promtool", "prometheus"), "check", "rules", str(tmp_path / "rules.yml")
    )


def test_every_metric_on_a_dashboard_is_exported() -> None:
    assert unexplained(expression for board in DASHBOARDS.values() for expression in everything_asked(board)) == set()


@pytest.mark.parametrize("alert", rules("alert").values(), ids=rules("alert"))
def test_alerts_link_to_dashboards_and_variables_that_exist(alert: dict[str, Any]) -> None:
    link = urlsplit(re.sub(r"\{\{.*?\}\}", "value", alert["annotations"]["dashboard_url"]))
    chosen = {name.removeprefix("var-") for name in parse_qs(link.query)}
    assert chosen <= set(variables(DASHBOARDS[Path(link.path).name]))
    assert ("name" in chosen) == ("$labels.name" in alert["annotations"]["summary"])


def test_provisioned_parts_fit_together() -> None:
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/streameval.yaml").read_text())["providers"]
    scraped = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert (source["type"], source["isDefault"], source["jsonData"]["timeInterval"]) == ("prometheus", True, scraped)
    assert (provider["type"], provider["options"]["path"]) == ("file", "/etc/grafana/dashboards")


def test_compose_hides_no_directory_of_provisioning_that_grafana_looks_for() -> None:
    volumes = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["grafana"]["volumes"]
    mounted = {target for source, target in (volume.split(":")[:2] for volume in volumes) if source.startswith(".")}
    provisioned = {f"/etc/grafana/provisioning/{directory.name}" for directory in (GRAFANA / "provisioning").iterdir()}
    assert mounted >= provisioned | {"/etc/grafana/dashboards"}
    assert "/etc/grafana/provisioning" not in mounted
