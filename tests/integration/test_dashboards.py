"""Every panel of the dashboards, asked of a real Prometheus that scrapes a real daemon."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest
import yaml

from support.deployed import Panel, annotations, dashboards, filled_in, panels, variables
from support.factories import wait_until
from support.integration.monitoring import prometheus, query
from support.integration.running import daemon

CONFIG = {
    # With action sets, so that there are a reward model and estimates by it.
    "source": {"kind": "simulated", "rate": 1000, "candidates": 2, "action_sets": True},
    "policies": {"candidates": ["candidate-1", "candidate-2"]},
    "promotion": {"min_events": 2000, "margin": -0.5},  # a candidate is soon promotable, as the first panel shows
}
RANKINGS = {
    # With swaps, so that there is a learned examination.
    "source": {"kind": "simulated", "world": "rankings", "rate": 2000, "candidates": 1, "exploration": 0.5},
    "policies": {"candidates": ["candidate-1"]},
    "ranking": {"metric": {"kind": "dcg", "at": 6}, "examination": {"kind": "swaps", "ranks": 6}},
}
ADAPTIVE = [{"kind": kind, "drift_span": 2000} for kind in ("adaptive_window", "adaptive_decay")]
AVERAGES = ["cumulative", *ADAPTIVE, "mixture"]
"""Of both daemons. With the default span, the drift rate would be known after 50,000 events."""
CHOSEN = {"policy": "candidate-1", "reward": "reward", "estimator": "stratified_dr", "average": "mixture"}
PATIENCE = 120.0


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Prometheus, which has scraped the daemon for a while, with the token that the daemon asks for."""
    folder = tmp_path_factory.mktemp("dashboards")
    token = folder / "token"
    token.write_text(secrets.token_hex(32) + "\n")
    token.chmod(0o600)
    common = {
        "averages": AVERAGES,
        "http": {"port": 0, "token_file": str(token)},
        "dead_letters": {"kind": "file", "path": str(folder / "rejected.ndjson")},
    }
    configured = CONFIG | common | {"state": {"dir": str(folder / "state"), "interval": "2s"}}
    (folder / "streameval.yaml").write_text(yaml.safe_dump(configured))
    of_rankings = RANKINGS | common | {"state": {"dir": str(folder / "state of rankings")}}
    (folder / "rankings.yaml").write_text(yaml.safe_dump(of_rankings))
    with (
        daemon(folder / "streameval.yaml", folder / "log") as decisions,
        daemon(folder / "rankings.yaml", folder / "log of rankings") as rankings,
    ):
        one, other = (f"{each.base_url.host}:{each.base_url.port}" for each in (decisions, rankings))
        with prometheus([one], folder / "prometheus", apart=[other], token=token) as client:
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline and len(unanswered(client)) > 0:
                time.sleep(1.0)
            yield client


def unanswered(client: httpx.Client) -> list[str]:
    """The queries of panels that give nothing (yet)."""
    expressions = {filled_in(expression, CHOSEN) for panel in panels() for expression in panel.queries}
    return sorted(expression for expression in expressions if not is_answered(client, expression))


def is_answered(client: httpx.Client, expression: str) -> bool:
    """Whether there is a number; panels write `not known` in place of what is none."""
    return any(not math.isnan(value) for _, value in query(client, expression))


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: f"{panel.dashboard}: {panel.title}")
def test_every_query_of_every_panel_returns_data(monitored: httpx.Client, panel: Panel) -> None:
    without_data = [*panel.queries]

    def all_there() -> bool:
        without_data[:] = [each for each in panel.queries if not is_answered(monitored, filled_in(each, CHOSEN))]
        return not without_data

    with suppress(AssertionError):  # a scrape that took longer than its second leaves a gap until the next
        wait_until(all_there)
    assert without_data == []


def has_choice(client: httpx.Client, expression: str, label: str, chosen: str | None) -> bool:
    """Whether the label has this value in some series, or any where none is chosen."""
    offered = {labels[label] for labels, _ in query(client, expression)}
    return chosen in offered if chosen else bool(offered)


@pytest.mark.parametrize("uid", dashboards())
def test_every_variable_offers_something(monitored: httpx.Client, uid: str) -> None:
    board = dashboards()[uid]
    for name, variable in variables(board).items():
        if variable["type"] == "query":
            expression, label = (
                variable["query"]["query"].removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
            )
            wait_until(lambda: has_choice(monitored, filled_in(expression, CHOSEN), label, CHOSEN.get(name)))  # noqa: B023


def test_the_candidate_variable_leaves_production_out(monitored: httpx.Client) -> None:
    wait_until(lambda: bool(query(monitored, "streameval_policy_lift")))
    known = query(monitored, "max_over_time(streameval_policy_lift[1m])")
    assert {labels["policy"] for labels, _ in known} == {"candidate-1", "candidate-2"}


def test_the_daemon_cannot_be_read_without_its_token(monitored: httpx.Client) -> None:
    wait_until(lambda: [up for _, up in query(monitored, 'up{job="streameval"}')] == [1.0])
    ((labels, _),) = query(monitored, 'up{job="streameval"}')
    answer = httpx.get(f"http://{labels['instance']}/metrics", trust_env=False, timeout=60.0)
    assert answer.status_code == 401


def test_annotations_can_be_asked_for(monitored: httpx.Client) -> None:
    for board in dashboards().values():
        for expression in annotations(board):
            query(monitored, filled_in(expression, {}))


def test_every_recording_rule_and_alert_rule_works(monitored: httpx.Client) -> None:
    def found() -> list[dict[str, str]]:
        groups = monitored.get("/api/v1/rules").raise_for_status().json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    wait_until(lambda: {rule["health"] for rule in found()} == {"ok"})
    missing = {rule["name"] for rule in found() if rule["type"] == "recording"}

    def all_recorded() -> bool:
        missing.difference_update({name for name in missing if query(monitored, name)})
        return not missing

    with suppress(AssertionError):
        wait_until(all_recorded)
    assert missing == set()
