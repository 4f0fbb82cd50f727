"""Test messages with probabilities of candidates that come separately, and what becomes of them in the pipeline."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from streameval.events import EventBatch, JsonDecoder, Origin
from streameval.events.fields import reward_decoder
from streameval.ingest.base import Records
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.pipeline import EventPipeline, describe_state

SETTINGS = KafkaSettings.model_validate(
    {"topic": "clicks", "candidates": {"topic": "scores", "window": "10s", "columns": {"timestamp": "at"}}}
)


def decoded(*messages: Any) -> Any:
    origin = Origin.from_parts("scores", [(0, range(len(messages)))])
    return reward_decoder(policies=["a", "b.c"]).decode_batch([json.dumps(part).encode() for part in messages], origin)


def test_policies_that_are_absent_or_null_are_missing() -> None:
    named = [{"a": 0.25, "b.c": 1}, {"a": None, "b.c": 0}, {"stranger": 0.5}, {"a": 1.0000004}]
    batch = decoded(*({"event_id": 1, "timestamp": 1.5, "policies": policies} for policies in named))
    assert batch.further.names == ("a", "b.c")
    nan = np.nan
    np.testing.assert_array_equal(batch.further.values, [[0.25, 1], [nan, 0], [nan, nan], [1.0000004, nan]])


@pytest.mark.parametrize(
    ("policies", "reason", "detail"),
    [
        ({"a": 0.5, "b.c": 1.5}, "probability_range", "policies.b.c: 1.5 is not in [0, 1]"),
        ({"a": -0.5}, "probability_range", "policies.a: -0.5 is not in [0, 1]"),
        (3, "malformed", ""),
        (None, "missing_field", "policies"),
    ],
)
def test_other_values_are_rejected(policies: Any, reason: str, detail: str) -> None:
    (rejected,) = decoded({"event_id": 1, "timestamp": 1.5, "policies": policies}).rejected
    assert rejected.reason == reason
    assert detail in rejected.detail


def decision(number: int) -> bytes:
    event = {"event_id": number, "timestamp": float(number), "action": "x", "propensity": 0.5, "reward": 1}
    return json.dumps(event).encode()


def score(number: int, **policies: float) -> bytes:
    return json.dumps({"event_id": number, "at": number + 1.0, "policies": policies}).encode()


def pipeline(*policies: str) -> EventPipeline:
    return EventPipeline(JsonDecoder(policies, identified=True), SETTINGS)


def taken(intake: EventPipeline, topic: str, first: int, *values: bytes) -> EventBatch:
    records = Records(topic, 0, range(first, first + len(values)), list(values))
    return intake.take([records], {("clicks", 0): None, ("scores", 0): None})


def test_a_candidate_that_a_reload_adds_gets_the_scores_from_then_on() -> None:
    intake = pipeline("new")
    taken(intake, "scores", 0, score(0, new=0.5, late=0.1))
    intake.events = JsonDecoder(["late", "new"], identified=True)
    taken(intake, "scores", 1, score(1, new=0.6, late=0.2))
    taken(intake, "clicks", 0, decision(0), decision(1))
    batch = intake.flush()
    assert batch.policies == ("late", "new")
    np.testing.assert_array_equal(batch.probabilities, [[np.nan, 0.5], [0.2, 0.6]])


def test_scores_of_a_policy_that_starts_again_are_dropped() -> None:
    intake = pipeline("old", "retrained")
    taken(intake, "scores", 0, score(0, old=0.5, retrained=0.1))
    intake.drop_policies(["retrained"])
    taken(intake, "clicks", 0, decision(0))
    np.testing.assert_array_equal(intake.flush().probabilities, [[0.5, np.nan]])


def test_what_the_decision_logs_counts_before_scores() -> None:
    intake = pipeline("new")
    taken(intake, "scores", 0, score(0, new=0.5), score(1, new=0.5))
    logged = json.loads(decision(0)) | {"policies": {"new": 0.25}}
    taken(intake, "clicks", 0, json.dumps(logged).encode(), decision(1))
    np.testing.assert_array_equal(intake.flush().probabilities, [[0.25], [0.5]])


def test_people_see_the_scores_that_wait_and_their_outcomes() -> None:
    intake = pipeline("new")
    taken(intake, "scores", 0, score(0, new=0.5), score(99, new=0.5))
    assert [(row["what"], row["count"]) for row in describe_state(intake.state())["waiting"]] == [
        ("scores whose event has not arrived", 2)
    ]
    taken(intake, "clicks", 0, decision(0))
    intake.flush()
    described = describe_state(intake.state())
    assert described["scores"] == {"joined": 1, "late": 0, "unmatched": 1}
    assert described["rewards"] is None
