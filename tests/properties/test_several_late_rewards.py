"""Test that several late rewards have the numbers of one daemon per reward, in JSON and in ds-json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from streameval.config.model import Config
from streameval.ingest.base import Records
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.report import Report
from streameval.service.startup import pipeline_of
from support.rewards import assert_equal

START, EVENTS = 1_700_000_000.0, 600
REWARDS = {"click": {}, "revenue": {"max": 200}, "hide": {"min": -1, "max": 0, "guardrail": {"max_loss": 0.05}}}
PLAIN = {"click": {}, "revenue": {"max": 200}, "hide": {"min": -1, "max": 0}}


def json_decision(number: int, time: float, chosen: int, propensity: float) -> dict[str, Any]:
    return {
        "event_id": f"e-{number}",
        "timestamp": time,
        "actions": [1, 2],
        "action": chosen,
        "propensities": [propensity, 1 - propensity] if chosen == 1 else [1 - propensity, propensity],
        "policies": {"baseline": [1.0, 0.0]},
    }


def dsjson_decision(number: int, time: float, chosen: int, propensity: float) -> dict[str, Any]:
    return {
        "EventId": f"e-{number}",
        "Timestamp": datetime.fromtimestamp(time, UTC).isoformat(),
        "_label_cost": -17.0,  # the rewards of a line do not count
        "_label_probability": propensity,
        "_label_Action": chosen,
        "a": [chosen, 3 - chosen],
        "p": [propensity, 1 - propensity],
        "_ba": [1],
    }


def slate_decision(number: int, time: float, chosen: int, propensity: float) -> dict[str, Any]:
    slots = [
        {"action": action, "propensity": share, "policies": {"baseline": 0.5}, "reward": "unknown"}
        for action, share in ((chosen, propensity), (7, 0.5))
    ]
    return {"event_id": f"e-{number}", "timestamp": time, "slots": slots}


def records(decision: Any) -> list[Records]:
    """Return decisions in two partitions, and messages with one or two of the rewards of some of them."""
    rng, written = np.random.default_rng(3), dict[tuple[str, int], list[dict[str, Any]]]()
    for number in range(EVENTS):
        time, chosen, propensity = START + number, int(rng.integers(1, 3)), float(rng.choice([0.25, 0.5, 0.75]))
        written.setdefault(("decisions", number % 2), []).append(decision(number, time, chosen, propensity))
        message = {"event_id": f"e-{number}", "timestamp": time + 5}
        if rng.random() < 0.3:
            earned = {"click": 1} | ({"revenue": float(rng.integers(1, 200))} if chosen == 1 else {})
            written.setdefault(("outcomes", 0), []).append(message | earned)
        if rng.random() < 0.1:
            written["outcomes", 0].append({**message, "timestamp": time + 9, "hide": -1})
    return [
        Records(*partition, range(len(messages)), [json.dumps(fields).encode() for fields in messages])
        for partition, messages in written.items()
    ]


def report(
    form: str,
    rewards: dict[str, Any],
    read: list[Records],
    estimators: Sequence[str] = ("ips", "snips", "stratified_ips"),
) -> Report:
    source = {"topic": "decisions", "format": form, "rewards": {"topic": "outcomes", "window": "20s"}}
    settings = {"candidates": ["baseline"]}, list(estimators), ["cumulative", "mixture"]
    parts = dict(zip(("policies", "estimators", "averages"), settings, strict=True))
    config = Config.model_validate({"source": source, "rewards": rewards, "drift": "off", **parts})
    pipeline, evaluator = pipeline_of(config), Evaluator.from_config(config.evaluator_config())
    ends: dict[tuple[str, int], float | None] = {(chunk.topic, chunk.partition): None for chunk in read}
    for first in range(0, EVENTS, 100):
        polled = [
            replace(chunk, offsets=chunk.offsets[first:][:100], values=chunk.values[first:][:100]) for chunk in read
        ]
        evaluator.update(pipeline.take([chunk for chunk in polled if chunk.values], ends))
    evaluator.update(pipeline.flush())
    return evaluator.report()


DECISIONS = {"json": json_decision, "dsjson": dsjson_decision}


@pytest.mark.parametrize(("form", "decision"), DECISIONS.items())
def test_each_late_reward_equals_the_only_reward_of_a_daemon(form: str, decision: Any) -> None:
    read = records(decision)
    together = report(form, REWARDS, read)
    assert together.events.accepted == EVENTS
    for name, limits in PLAIN.items():
        alone = report(form, {name: limits}, read)
        assert alone.events.accepted == EVENTS
        for row in alone.estimates:
            assert row.value
            assert_equal(together.get(row.policy, row.estimator, row.average, name), row)


def test_each_late_reward_of_slates_equals_the_only_reward_of_a_daemon() -> None:
    read, estimators = records(slate_decision), ("pseudo_inverse", "ips")
    together = report("json", REWARDS, read, estimators)
    for name, limits in PLAIN.items():
        for row in report("json", {name: limits}, read, estimators).estimates:
            assert row.value
            assert_equal(together.get(row.policy, row.estimator, row.average, name), row)


def test_late_rewards_of_ds_json_equal_late_rewards_of_json() -> None:
    reports = [report(form, REWARDS, records(decision)) for form, decision in DECISIONS.items()]
    for one, other in zip(*(report.estimates for report in reports), strict=True):
        assert_equal(one, other)
