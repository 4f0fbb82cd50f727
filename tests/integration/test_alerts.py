"""From events to the webhook: daemons, Prometheus, Alertmanager as deployed, and a candidate that becomes better."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
import yaml
from deployed import rules
from factories import wait_until
from integration.monitoring import Call, Webhook, alertmanager, prometheus, query
from integration.running import daemon

CHANGE = 15_000
"""The event with which the challenger becomes better, where it does."""
SOON = 5_000
"""Events after the change within which the challenger is promotable."""
AT_ONCE, PAUSE = 250, 0.1  # events, seconds
TOLD_WITHIN = 60.0
NEVER = 10**9


class Recommender(threading.Thread):
    """Appends events to a log until it is stopped: two actions, of which the challenger prefers the second.

    Both earn 0.3, until with event `change` the second begins to earn 0.5: then the challenger earns 0.48 and
    production 0.4.
    """

    def __init__(self, log: Path, change: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._log, self._change, self._random = log, change, np.random.default_rng(seed)
        self._stopped = threading.Event()
        log.touch()

    def run(self) -> None:
        """Write some events, wait, write the next."""
        written = 0
        with self._log.open("ab", buffering=0) as file:
            while not self._stopped.wait(PAUSE):
                file.write(b"".join(self._events(written)))
                written += AT_ONCE

    def stop(self) -> None:
        """Write no more."""
        self._stopped.set()
        self.join()

    def _events(self, first: int) -> Iterator[bytes]:
        preferred = self._random.random(AT_ONCE) < 0.5
        chance = np.where(preferred & (np.arange(first, first + AT_ONCE) >= self._change), 0.5, 0.3)
        rewarded = self._random.random(AT_ONCE) < chance
        for place in range(AT_ONCE):
            event = {
                "event_id": str(first + place),
                "timestamp": time.time(),
                "action": "second" if preferred[place] else "first",
                "propensity": 0.5,
                "reward": int(rewarded[place]),
                "policies": {"challenger": 0.9 if preferred[place] else 0.1},
            }
            yield json.dumps(event).encode() + b"\n"


@contextmanager
def observed(folder: Path, change: int, seed: int) -> Iterator[tuple[httpx.Client, Recommender]]:
    """A daemon that follows a log, and the recommender that will write it."""
    folder.mkdir()
    recommender = Recommender(folder / "log.ndjson", change, seed)
    config = {
        "source": {"kind": "file", "path": str(folder / "log.ndjson"), "follow": True},
        "policies": {"candidates": ["challenger"]},
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
    """What the daemon says about the challenger; nothing before the first Report."""
    answer = client.get("/api/v1/report")
    return dict(answer.json()["promotion"][0]) if answer.status_code == 200 else {"promotable": False}


class Story(NamedTuple):
    """What happened: the decision when the challenger became promotable, when that was, and what came of it."""

    decision: dict[str, Any]
    promotable_at: float
    calls: list[Call]
    better: str
    same: str
    monitor: httpx.Client
    decision_of_same: dict[str, Any]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Two daemons: the challenger of one becomes better, that of the other one only chooses otherwise."""
    folder = tmp_path_factory.mktemp("alerts")
    with ExitStack() as stack:
        webhook = stack.enter_context(Webhook())
        manager = stack.enter_context(alertmanager(folder / "alertmanager", webhook.url))
        better, of_better = stack.enter_context(observed(folder / "better", CHANGE, seed=1))
        same, of_same = stack.enter_context(observed(folder / "same", NEVER, seed=2))
        targets = [address(better), address(same)]
        monitor = stack.enter_context(prometheus(targets, folder / "prometheus", alertmanager=address(manager)))
        wait_until(lambda: len(query(monitor, "up == 1")) == 2, seconds=30.0)
        of_better.start()
        of_same.start()
        wait_until(lambda: bool(decision(better)["promotable"]), seconds=60.0)
        promotable_at, decided = time.monotonic(), decision(better)
        deadline = promotable_at + TOLD_WITHIN + 5.0
        while time.monotonic() < deadline and not of(webhook.calls, "StreamevalCandidateBeatsProduction"):
            time.sleep(0.1)
        yield Story(decided, promotable_at, webhook.calls, *targets, monitor, decision(same))


def of(calls: list[Call], alert: str) -> list[Call]:
    return [call for call in calls if call.alert["labels"]["alertname"] == alert]


pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_the_candidate_is_promotable_soon_after_it_has_become_better_and_not_before(story: Story) -> None:
    assert CHANGE < story.decision["first_event"] <= CHANGE + SOON
    assert story.decision["times"] == 1


def test_the_webhook_is_called_within_a_minute_of_that(story: Story) -> None:
    (call,) = of(story.calls, "StreamevalCandidateBeatsProduction")
    assert call.at - story.promotable_at < TOLD_WITHIN
    assert call.path == "/ticket"
    assert call.alert["status"] == "firing"
    assert call.alert["labels"]["instance"] == story.better
    assert call.alert["labels"]["policy"] == "challenger"


def test_the_message_says_how_much_and_where_to_look(story: Story) -> None:
    (call,) = of(story.calls, "StreamevalCandidateBeatsProduction")
    annotations = call.alert["annotations"]
    assert annotations["summary"] == "challenger beats production"
    assert "challenger now earns at least 0.0" in annotations["description"]
    assert "var-policy=challenger" in annotations["dashboard_url"]
    assert annotations["runbook_url"].endswith("StreamevalCandidateBeatsProduction.md")


def test_nobody_is_paged(story: Story) -> None:
    assert [call for call in story.calls if call.path == "/page"] == []


def test_nothing_fires_about_a_candidate_that_only_chooses_otherwise(story: Story) -> None:
    assert story.decision_of_same["times"] == 0
    assert story.decision_of_same["events"] > 2 * CHANGE
    assert [call for call in story.calls if call.alert["labels"]["instance"] == story.same] == []
    assert query(story.monitor, f'ALERTS{{instance="{story.same}"}}') == []


@pytest.mark.parametrize("alert", rules("alert"))
def test_nor_would_anything_if_alerts_did_not_wait(story: Story, alert: str) -> None:
    found = query(story.monitor, rules("alert")[alert]["expr"])
    assert [labels for labels, _ in found if labels.get("instance") == story.same] == []


def test_the_rules_see_both_daemons(story: Story) -> None:
    seen = query(story.monitor, "instance_policy:streameval_policy_lift_lower:deciding")
    assert {labels["instance"] for labels, _ in seen} == {story.better, story.same}
