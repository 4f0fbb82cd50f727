"""Alerts that a real Alertmanager holds back, with the deployed configuration."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count

import httpx
import pytest

from support.deployed import rules
from support.factories import crowding, wait_until
from support.integration.monitoring import Webhook, alertmanager

ALERTS = rules("alert")
INSTANCES = count(1)


@pytest.fixture(scope="module")
def webhook() -> Iterator[Webhook]:
    with Webhook() as hook:
        yield hook


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory, webhook: Webhook) -> Iterator[httpx.Client]:
    with alertmanager(tmp_path_factory.mktemp("monitoring") / "alertmanager", webhook.url) as client:
        yield client


def fire(manager: httpx.Client, *alerts: str, **labels: str) -> None:
    """Send Alertmanager the firing alerts, all with these `labels`."""
    ends = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
    bodies = [
        {"labels": {"alertname": alert, "severity": ALERTS[alert]["labels"]["severity"], **labels}, "endsAt": ends}
        for alert in alerts
    ]
    manager.post("/api/v2/alerts", json=bodies).raise_for_status()


def held_back(manager: httpx.Client, *alerts: str, **labels: str) -> set[str]:
    """Return the alerts that the others inhibit when all of them fire."""
    where = {"job": "streameval", "instance": f"host:{next(INSTANCES)}"}
    fire(manager, *alerts, **where, **labels)
    settle(manager)
    states = states_of(manager, where["instance"])
    assert states.keys() == set(alerts)
    return {alert for alert, state in states.items() if state == "suppressed"}


def settle(manager: httpx.Client) -> None:
    """Wait until Alertmanager has received all alerts fired so far, in their order, and inhibits by them.

    Two alerts fired after them show it, because Alertmanager receives these last.
    """
    instance = f"settling:{next(INSTANCES)}"
    fire(manager, "StreamevalDown", "StreamevalNotReady", job="streameval", instance=instance)
    wait_until(lambda: states_of(manager, instance).get("StreamevalNotReady") == "suppressed")


def states_of(manager: httpx.Client, instance: str) -> dict[str, str]:
    """Return Alertmanager's handling of each alert of an instance."""
    answer = manager.get("/api/v2/alerts", params={"filter": f'instance="{instance}"'}).raise_for_status()
    return {alert["labels"]["alertname"]: alert["status"]["state"] for alert in answer.json()}


def test_a_daemon_that_does_not_answer_is_not_reported_as_stale_or_unready(manager: httpx.Client) -> None:
    silenced = held_back(
        manager, "StreamevalDown", "StreamevalDataStale", "StreamevalNotReady", "StreamevalSnapshotOld"
    )
    assert silenced == {"StreamevalDataStale", "StreamevalNotReady", "StreamevalSnapshotOld"}


def test_a_daemon_that_is_not_ready_is_not_reported_as_stale(manager: httpx.Client) -> None:
    silenced = held_back(manager, "StreamevalNotReady", "StreamevalDataStale", "StreamevalLagGrowing")
    assert silenced == {"StreamevalDataStale", "StreamevalLagGrowing"}


def test_no_candidate_is_recommended_while_trust_checks_fail(manager: httpx.Client) -> None:
    silenced = held_back(manager, "StreamevalWeightsOffOne", "StreamevalCandidateBeatsProduction", policy="a")
    assert silenced == {"StreamevalCandidateBeatsProduction"}


def test_doubts_about_one_candidate_do_not_silence_another(manager: httpx.Client) -> None:
    where = {"job": "streameval", "instance": "shared:1"}
    fire(manager, "StreamevalWeightsOffOne", policy="a", **where)
    fire(manager, "StreamevalCandidateBeatsProduction", policy="b", **where)
    settle(manager)
    assert set(states_of(manager, "shared:1").values()) == {"active"}


def test_a_check_with_its_own_alert_is_reported_once(manager: httpx.Client) -> None:
    both = ("StreamevalWeightsOffOne", "StreamevalTrustCheckFailed")
    assert held_back(manager, *both, policy="a", check="mean_weight") == {"StreamevalTrustCheckFailed"}
    assert held_back(manager, *both, policy="a", check="largest_share") == set()


@pytest.mark.parametrize("page", sorted(alert for alert in ALERTS if ALERTS[alert]["labels"]["severity"] == "page"))
def test_nothing_holds_back_a_page(manager: httpx.Client, page: str) -> None:
    assert page not in held_back(manager, *ALERTS, policy="a", kind="deleted")


def test_lost_events_are_logged_once_with_their_number(manager: httpx.Client) -> None:
    both = ("StreamevalEventsLost", "StreamevalLogGap")
    assert held_back(manager, *both, kind="deleted") == {"StreamevalLogGap"}
    assert held_back(manager, *both, kind="replaced") == set()


def test_the_page_and_the_tickets_go_different_ways(manager: httpx.Client, webhook: Webhook) -> None:
    started = time.monotonic()
    fire(manager, "StreamevalPromotedPolicyWorse", "StreamevalDriftDetected", job="ways", instance="ways:1", policy="z")
    fire(manager, "StreamevalEventsLost", job="ways", instance="ways:1")
    reported = {"/page": "StreamevalPromotedPolicyWorse", "/ticket": "StreamevalEventsLost"}

    def heard() -> dict[str, str]:
        mine = [call for call in webhook.calls if call.alert["labels"]["instance"] == "ways:1"]
        return {call.path: call.alert["labels"]["alertname"] for call in mine}

    wait_until(lambda: heard() == reported)
    assert time.monotonic() - started < 20.0 * crowding()
