"""Read events with twenty actions from Kafka in the daemon, with every estimator on every average."""

from __future__ import annotations

import json
import math
import uuid
from pathlib import Path

import numpy as np
import orjson
import pytest

from streameval.config.model import Config
from streameval.events import JsonDecoder
from streameval.ingest.kafka.connection import KafkaConnection
from streameval.ingest.kafka.producer import produce
from support.integration.running import daemon, wait_for

pytestmark = pytest.mark.kafka

ACTIONS, EVENTS = 20, 6_000
ESTIMATORS = [
    "ips", "snips", {"kind": "clipped_ips", "cap": 5}, "control_variate", "stratified_ips", "stratified_dr", "dm", "dr",
    {"kind": "static_blend", "tau": 0.5}, {"kind": "switch", "cap": 5}, {"kind": "cab", "cap": 5},
    {"kind": "cab_dr", "cap": 5}, "pseudo_inverse", "weighted_pseudo_inverse",
]  # fmt: skip
AVERAGES = ["cumulative", "window", "decay", "adaptive_window", "adaptive_decay", "mixture"]
ORDERLESS = {"ips", "snips", "clipped_ips", "pseudo_inverse", "weighted_pseudo_inverse"}
"""Whose cumulative value does not depend on the order in which four partitions are read."""


def messages() -> list[bytes]:
    """Make events of a softmax log over twenty actions with features, and two candidates."""
    rng = np.random.default_rng(20260211)
    features = rng.normal(size=(EVENTS, ACTIONS, 3))
    scores = features @ rng.normal(size=(3, 3))
    logging, sharp, flat = (
        (lambda odds: odds / odds.sum(axis=1, keepdims=True))(np.exp(scores[..., policy] * heat))
        for policy, heat in enumerate((0.5, 1.0, 0.1))
    )
    actions = (logging.cumsum(axis=1) > rng.random((EVENTS, 1))).argmax(axis=1)
    liked = features[np.arange(EVENTS), actions, 0] + rng.normal(size=EVENTS) > 1
    names = [f"item-{number}" for number in range(ACTIONS)]
    return [
        orjson.dumps(
            {
                "event_id": number,
                "timestamp": 1574553634 + number,
                "actions": names,
                "features": features[number].tolist(),
                "propensities": logging[number].tolist(),
                "action": names[actions[number]],
                "reward": int(liked[number]),
                "policies": {"sharp": sharp[number].tolist(), "flat": flat[number].tolist()},
            }
        )
        for number in range(EVENTS)
    ]


@pytest.mark.slow
def test_the_whole_family_runs_on_every_average_in_the_daemon(kafka: str, tmp_path: Path) -> None:
    values, topic = messages(), f"family-{uuid.uuid4().hex}"
    produce(values, topic, KafkaConnection(bootstrap_servers=kafka), partitions=4)
    settings = {
        "source": {"kind": "kafka", "bootstrap_servers": kafka, "topic": topic},
        "policies": {"candidates": ["sharp", "flat"]},
        "estimators": ESTIMATORS,
        "averages": AVERAGES,
        "http": {"port": 0},
    }
    path = tmp_path / "streameval.yaml"
    path.write_text(json.dumps(settings))  # JSON is YAML

    with daemon(path, tmp_path / "log") as client:
        report = wait_for(client, EVENTS)

    config = Config.load(path)
    evaluator = config.evaluator()
    evaluator.update(JsonDecoder(["sharp", "flat"]).decode_batch(values))
    direct = {(e.policy, e.estimator, e.average): e.value for e in evaluator.report().estimates}
    read = {(row["policy"], row["estimator"], row["average"]): row["value"] for row in report["estimates"]}
    assert read.keys() == direct.keys()
    assert len(read) == 3 * len(ESTIMATORS) * len(AVERAGES)
    assert all(value is not None and math.isfinite(value) for value in read.values())
    for (policy, estimator, average), value in read.items():
        if average == "cumulative":
            same = estimator in ORDERLESS
            expected = direct[policy, estimator, average]
            assert value == pytest.approx(expected, **({"rel": 1e-9} if same else {"abs": 0.02})), (policy, estimator)
