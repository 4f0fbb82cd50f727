"""Ask a real Prometheus, which scrapes a real daemon, for every panel of the dashboards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from support.deployed import Panel, annotations, dashboards, filled_in, panels, variables
from support.factories import wait_until
from support.integration.monitored import CHOSEN, is_answered, monitored_daemons, needed
from support.integration.monitoring import query


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Run Prometheus until it has scraped daemons for a while, with the token that they ask for."""
    with monitored_daemons(tmp_path_factory.mktemp("dashboards")) as client:
        yield client


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: f"{panel.dashboard}: {panel.title}")
def test_every_query_of_every_panel_returns_data(monitored: httpx.Client, panel: Panel) -> None:
    unanswered = needed(panel)

    def all_there() -> bool:
        unanswered[:] = [expression for expression in needed(panel) if not is_answered(monitored, expression)]
        return not unanswered

    with suppress(AssertionError):  # a scrape that took longer than its second leaves a gap until the next
        wait_until(all_there)
    assert unanswered == []


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: f"{panel.dashboard}: {panel.title}")
def test_every_series_has_a_name_that_tells_it_from_the_others(monitored: httpx.Client, panel: Panel) -> None:
    series_labels = [
        [labels for labels, _ in query(monitored, filled_in(expression, CHOSEN))] for expression in panel.queries
    ]
    if panel.is_joined:  # a row for each value of a label, and a column for each query
        names = [list(labels.values()) for labels in series_labels[0]]
        assert all(len(name) == 1 and name[0] for name in names)
    else:
        names = panel.legends(series_labels)
        assert not [name for name in names if "{{" in name or not name.strip(" ,")]
    assert len(names) == len({str(name) for name in names})


def test_the_table_of_rewards_has_a_row_for_each_reward_of_a_candidate(monitored: httpx.Client) -> None:
    (panel,) = (candidate_panel for candidate_panel in panels() if candidate_panel.title == "Lift of every reward")
    chosen = CHOSEN | {"job": "streameval-apart", "estimator": "stratified_ips"}  # the daemon with several rewards
    every = {"candidate-1, click", "candidate-1, revenue", "candidate-1, hide"}
    for expression in panel.queries:
        expected = {"candidate-1, hide"} if "_guardrail_" in expression else every
        wait_until(lambda: len(query(monitored, filled_in(expression, chosen))) == len(expected))  # noqa: B023
        assert {labels["policy"] for labels, _ in query(monitored, filled_in(expression, chosen))} == expected


def has_choice(client: httpx.Client, expression: str, label: str, chosen: str | None) -> bool:
    """Return whether the label has this value in some series, or any value if none is chosen."""
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
    series = query(monitored, "max_over_time(streameval_policy_lift[1m])")
    assert {labels["policy"] for labels, _ in series} == {"candidate-1", "candidate-2"}


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
    def rule_states() -> list[dict[str, str]]:
        groups = monitored.get("/api/v1/rules").raise_for_status().json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    wait_until(lambda: {rule["health"] for rule in rule_states()} == {"ok"})
    missing = {rule["name"] for rule in rule_states() if rule["type"] == "recording"}

    def all_recorded() -> bool:
        missing.difference_update({name for name in missing if query(monitored, name)})
        return not missing

    with suppress(AssertionError):
        wait_until(all_recorded)
    assert missing == set()
