"""From events to the webhook: daemons, Prometheus, Alertmanager as deployed, and a candidate that becomes better."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
import yaml

from support.asking import report_of
from support.deployed import rules
from support.factories import wait_until
from support.integration.monitoring import Call, Webhook, alertmanager, prometheus, query
from support.integration.recommenders import Chances, Recommender
from support.integration.running import daemon
from support.integration.shipping import Shipping

CHANGE = 15_000
"""The event with which the challenger becomes better, where it does."""
SOON = 5_000
"""Events after the change within which the challenger is promotable."""
PAGES = {"StreamevalProductionWorse", "StreamevalPromotedPolicyWorse"}
"""Alerts that wait for five seconds here, not for two minutes as deployed, before they page an operator."""
NOTIFIED_WITHIN = 60.0
NEVER = 10**9


POLICIES = {"challenger": (0.1, 0.9)}


def chances(change: int) -> Chances:
    """Both actions earn 0.3, until with event `change` the second starts to earn 0.5.

    Then the challenger, which prefers it, earns 0.48 and production 0.4.
    """
    return lambda events: np.stack([np.full(len(events), 0.3), np.where(events < change, 0.3, 0.5)], axis=1)


@contextmanager
def observed(folder: Path, change: int, seed: int) -> Iterator[tuple[httpx.Client, Recommender]]:
    """Start a daemon that follows a log, with the recommender that will write it."""
    folder.mkdir()
    recommender = Recommender(folder / "log.ndjson", POLICIES, chances(change), seed)
    config = {
        "name": folder.name,
        "source": {"kind": "file", "path": str(folder / "log.ndjson"), "follow": True},
        "policies": {"candidates": ["challenger"]},
        "promotion": "paired",  # the story lasts some minutes
        "http": {"port": 0},
        "state": {"dir": str(folder / "state"), "interval": "2s"},
    }
    (folder / "streameval.yaml").write_text(yaml.safe_dump(config))
    with daemon(folder / "streameval.yaml", folder / "log") as client:
        try:
            yield client, recommender
        finally:
            recommender.stop()


def address(client: httpx.Client) -> str:
    return f"{client.base_url.host}:{client.base_url.port}"


def decision(client: httpx.Client) -> dict[str, Any]:
    """Return the daemon's decision on the challenger, or nothing before the first Report."""
    report = report_of(client)
    return dict(report["promotion"][0]) if report else {"promotable": False}


def promoted(client: httpx.Client) -> dict[str, Any]:
    """Return the first decision with a promotable challenger."""
    seen: list[dict[str, Any]] = []

    def is_promotable() -> bool:
        seen.append(decision(client))
        return bool(seen[-1]["promotable"])

    wait_until(is_promotable, seconds=120.0)
    return seen[-1]


class Story(NamedTuple):
    """Record the decision when the challenger became promotable, its time, and the outcome.

    `better`, `same` and `shipping` are the instances.
    """

    decision: dict[str, Any]
    promotable_at: float
    calls: list[Call]
    better: str
    same: str
    shipping: str
    monitor: httpx.Client
    decision_of_same: dict[str, Any]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Run three daemons: the challenger of one becomes better, the challenger of another only chooses otherwise.

    Meanwhile, one of the candidates of the third is shipped, and becomes worse.
    """
    folder = tmp_path_factory.mktemp("alerts")
    with ExitStack() as stack:
        webhook = stack.enter_context(Webhook())
        manager = stack.enter_context(alertmanager(folder / "alertmanager", webhook.url))
        better, better_feed = stack.enter_context(observed(folder / "better", CHANGE, seed=1))
        same, same_feed = stack.enter_context(observed(folder / "same", NEVER, seed=2))
        shipping = Shipping(folder / "shipping", seed=3)
        targets, apart = [address(better), address(same)], shipping.instance
        there, holds = address(manager), dict.fromkeys(PAGES, "5s")
        monitor = stack.enter_context(
            prometheus(targets, folder / "prometheus", apart=[apart], alertmanager=there, holds=holds)
        )
        wait_until(lambda: len(query(monitor, "up == 1")) == 2)
        better_feed.start()
        same_feed.start()
        background = stack.enter_context(ThreadPoolExecutor())
        paged = background.submit(shipping.run, monitor, lambda: pages(webhook.calls) >= PAGES)
        decided = promoted(better)
        promotable_at = time.monotonic()
        deadline = promotable_at + NOTIFIED_WITHIN + 5.0
        while time.monotonic() < deadline and not matching_calls(
            webhook.calls, "StreamevalCandidateBeatsProduction", targets[0]
        ):
            time.sleep(0.1)
        paged.result()
        wait_until(lambda: decision(same).get("events", 0) > 2 * CHANGE, seconds=120.0)
        yield Story(decided, promotable_at, webhook.calls, *targets, apart, monitor, decision(same))


def matching_calls(calls: list[Call], alert: str, instance: str) -> list[Call]:
    labels = {"alertname": alert, "instance": instance}
    return [call for call in calls if labels.items() <= call.alert["labels"].items()]


def pages(calls: list[Call]) -> set[str]:
    """Alerts that paged an operator."""
    return {call.alert["labels"]["alertname"] for call in calls if call.path == "/page"}


pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_candidate_is_promotable_soon_after_it_has_become_better_and_not_before(story: Story) -> None:
    assert CHANGE < story.decision["first_event"] <= CHANGE + SOON
    assert story.decision["times"] == 1


def test_the_webhook_is_called_within_a_minute_of_that(story: Story) -> None:
    (call,) = matching_calls(story.calls, "StreamevalCandidateBeatsProduction", story.better)
    assert call.at - story.promotable_at < NOTIFIED_WITHIN
    assert call.path == "/ticket"
    assert call.alert["status"] == "firing"
    assert call.alert["labels"]["instance"] == story.better
    assert call.alert["labels"]["policy"] == "challenger"
    assert call.alert["labels"]["name"] == "better"


def test_the_message_gives_the_size_and_a_link(story: Story) -> None:
    (call,) = matching_calls(story.calls, "StreamevalCandidateBeatsProduction", story.better)
    annotations = call.alert["annotations"]
    assert annotations["summary"].startswith("better: Ship challenger: it earns at least 0.0")
    assert "challenger earns at least 0.0" in annotations["description"]
    assert "var-name=better" in annotations["dashboard_url"]
    assert "var-policy=challenger" in annotations["dashboard_url"]
    assert annotations["runbook_url"].endswith("StreamevalCandidateBeatsProduction.md")


def test_neither_pages_anyone(story: Story) -> None:
    assert {call.alert["labels"]["instance"] for call in story.calls if call.path == "/page"} == {story.shipping}


def test_the_pager_rings_for_a_policy_that_was_shipped_and_became_worse_than_the_one_before(story: Story) -> None:
    (call,) = matching_calls(story.calls, "StreamevalProductionWorse", story.shipping)
    assert (call.path, call.alert["status"], call.alert["labels"]["policy"]) == ("/page", "firing", "former")
    summary = "log: Ship former again: it earns at least 0."
    assert call.alert["annotations"]["summary"].startswith(summary)


def test_the_pager_rings_for_a_policy_that_was_promotable_and_became_worse_than_production(story: Story) -> None:
    (call,) = matching_calls(story.calls, "StreamevalPromotedPolicyWorse", story.shipping)
    assert (call.path, call.alert["status"], call.alert["labels"]["policy"]) == ("/page", "firing", "waiting")
    assert "Roll it back if it is live." in call.alert["annotations"]["description"]


def test_nothing_fires_about_a_candidate_that_only_chooses_otherwise(story: Story) -> None:
    assert story.decision_of_same["times"] == 0
    assert story.decision_of_same["events"] > 2 * CHANGE
    assert [call for call in story.calls if call.alert["labels"]["instance"] == story.same] == []
    assert query(story.monitor, f'ALERTS{{instance="{story.same}"}}') == []


@pytest.mark.parametrize("alert", rules("alert"))
def test_nor_would_anything_if_alerts_did_not_wait(story: Story, alert: str) -> None:
    series = query(story.monitor, rules("alert")[alert]["expr"])
    assert [labels for labels, _ in series if labels.get("instance") == story.same] == []


def test_the_rules_see_the_daemons(story: Story) -> None:
    def seen() -> set[str]:
        return {labels["instance"] for labels, _ in query(story.monitor, lower)}

    lower = "instance_policy:streameval_policy_lift_lower:deciding"
    wait_until(lambda: {story.better, story.same} <= seen())  # a scrape that took too long leaves a gap until the next
