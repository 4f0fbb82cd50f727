"""Follow two surfaces of one company, as an engineer with topics of her own fields does, from `check` to one alert."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from streameval.ingest.kafka.producer import produce
from support.factories import wait_until
from support.integration.broker import Broker
from support.integration.monitoring import prometheus, query
from support.integration.running import daemon, streameval

EVENTS = 24_000
SECONDS = 1.0
"""Between two decisions."""
LATE = 1_800.0
"""Seconds from a decision to its reward."""
START = 1_750_000_000.0
COLUMNS = {
    "event_id": "id",
    "timestamp": "at",
    "action": "shown",
    "propensity": "decision.prob",
    "policies": {"challenger": "decision.models.challenger"},
}
REWARD_COLUMNS = {"event_id": "of.id", "timestamp": "at", "reward": "click"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def messages(chances: tuple[float, float], seed: int) -> tuple[list[bytes], list[bytes]]:
    """Return decisions under names of their own, and rewards half an hour later.

    Args:
        chances: Probability of a click on each of two banners.
        seed: Seed of the random numbers.
    """
    random = np.random.default_rng(seed)
    is_first = random.random(EVENTS) < 0.7
    clicked = random.random(EVENTS) < np.where(is_first, *chances)
    decisions, rewards = [], []
    for number in range(EVENTS):
        at, first = START + SECONDS * number, bool(is_first[number])
        models = {"challenger": 0.3 if first else 0.7}
        choice = {
            "shown": "first" if first else "second",
            "decision": {"prob": 0.7 if first else 0.3, "models": models},
        }
        decisions.append(json.dumps({"id": f"e{number}", "at": at, **choice}).encode())
        if clicked[number]:
            rewards.append(json.dumps({"of": {"id": f"e{number}"}, "at": at + LATE, "click": 1}).encode())
    return decisions, rewards


def configuration(broker: Broker, surface: str, folder: Path) -> Path:
    source = {"kind": "kafka", **broker.connection.model_dump(exclude_defaults=True), "topic": f"{surface}-decisions"}
    content: dict[str, Any] = {
        "name": surface,
        "source": {**source, "rewards": {"topic": f"{surface}-clicks", "window": "1h", "columns": REWARD_COLUMNS}},
        "columns": COLUMNS,
        "policies": {"candidates": ["challenger"]},
        "promotion": {"rule": "paired", "trust": {"stale_after": None}},
        "http": {"port": 0},
        "state": {"dir": str(folder / f"{surface}-state")},
    }
    path = folder / f"{surface}.yaml"
    path.write_text(yaml.safe_dump(json.loads(json.dumps(content, default=str))))
    return path


@pytest.fixture
def surfaces(broker: Broker, tmp_path: Path) -> dict[str, Path]:
    """Write two topics for each surface: on `home` the challenger is better, on `search` both banners are equal."""
    paths = {}
    for surface, chances, seed in (("home", (0.1, 0.3), 1), ("search", (0.2, 0.2), 2)):
        for topic, values in zip((f"{surface}-decisions", f"{surface}-clicks"), messages(chances, seed), strict=True):
            broker.create_topic(topic, 1)
            produce(values, topic, broker.connection)
        paths[surface] = configuration(broker, surface, tmp_path)
    return paths


def test_the_alert_is_about_one_of_two_surfaces(surfaces: dict[str, Path], tmp_path: Path) -> None:
    checked = streameval("check", str(surfaces["home"])).stdout
    assert "of the first 100 events 100 can be used" in checked
    assert "of the first 100 rewards 100 can be used" in checked
    with ExitStack() as stack:
        clients = {name: stack.enter_context(daemon(path, tmp_path / f"{name}.log")) for name, path in surfaces.items()}
        targets = [f"{client.base_url.host}:{client.base_url.port}" for client in clients.values()]
        monitor = stack.enter_context(prometheus(targets, tmp_path / "prometheus"))
        firing = 'ALERTS{alertname="StreamevalCandidateBeatsProduction", alertstate="firing"}'
        wait_until(lambda: len(query(monitor, firing)) > 0, seconds=200.0)
        accepted = "streameval_events_accepted_total"
        wait_until(lambda: min((value for _, value in query(monitor, accepted)), default=0) > EVENTS / 2, seconds=120.0)
        ((labels, _),) = query(monitor, firing)
        assert (labels["name"], labels["policy"]) == ("home", "challenger")
        for name, client in clients.items():
            assert f"<title>{name}" in client.get("/").text
            assert "challenger" in client.get("/").text
