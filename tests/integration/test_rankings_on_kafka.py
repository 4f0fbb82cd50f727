"""Rankings with clicks from a list recommender: from a topic of a real broker to /metrics and the page."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streameval.ingest.kafka.connection import KafkaConnection
from streameval.ingest.kafka.producer import produce
from streameval.ingest.simulated import SimulatedRecommender, SimulatedSettings
from support.integration.running import daemon, wait_for

pytestmark = pytest.mark.kafka

PAGES = 20_000


@pytest.mark.slow
def test_pages_of_a_topic_become_values_lifts_and_the_curve_on_metrics(kafka: str, tmp_path: Path) -> None:
    settings = {"world": "rankings", "events": PAGES, "rate": 0, "exploration": 0.5, "drift": "stationary"}
    recommender = SimulatedRecommender(SimulatedSettings.model_validate(settings | {"candidates": 2}))
    topic, truth = f"pages-{uuid.uuid4().hex}", recommender.truth(PAGES)
    produce(recommender.lines(), topic, KafkaConnection(bootstrap_servers=kafka))
    path = tmp_path / "streameval.yaml"
    configured = {
        "source": {"kind": "kafka", "bootstrap_servers": kafka, "topic": topic},
        "policies": {"candidates": ["candidate-1", "candidate-2"]},
        "ranking": {"metric": {"kind": "dcg", "at": 6}, "examination": {"kind": "swaps", "ranks": 6}},
        "averages": ["cumulative"],
        "http": {"port": 0},
    }
    path.write_text(json.dumps(configured))  # JSON is YAML
    with daemon(path, tmp_path / "log") as client:
        wait_for(client, PAGES)
        text, page = client.get("/metrics").text, client.get("/").text
    exported = {
        (sample.name, sample.labels.get("policy", sample.labels.get("rank"))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("estimator", "click_ips") == "click_ips"
    }
    for policy, value in truth.items():
        assert (
            exported["streameval_policy_value_lower", policy]
            < value
            < exported["streameval_policy_value_upper", policy]
        )
    for policy in ("candidate-1", "candidate-2"):
        lift = truth[policy] - truth["logging"]
        assert (
            exported["streameval_policy_lift_lower", policy] < lift < exported["streameval_policy_lift_upper", policy]
        )
    for rank in range(1, 7):
        assert exported["streameval_examination", str(rank)] == pytest.approx(1 / rank, abs=0.06)
    assert "How often users look at each rank" in page
