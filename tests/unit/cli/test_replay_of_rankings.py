"""Test rankings with clicks in commands, and in the daemon from messages to metrics."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from streameval.config.model import Config
from streameval.ingest.base import Records
from streameval.service.startup import start_fresh
from support.commands import Run

RANKING = "ranking: {metric: {kind: dcg, at: 4}, examination: {kind: power, eta: 1}}\n"


def pages(count: int) -> list[bytes]:
    rng = np.random.default_rng(5)
    pages = []
    for number in range(count):
        clicked = [item for rank, item in enumerate("abcd", start=1) if rng.random() < 0.2 * rank / rank]
        ranking = {"shown": list("abcd"), "clicked": clicked}
        event = {"event_id": number, "timestamp": 1.7e9 + number, "ranking": ranking}
        pages.append(json.dumps(event | {"policies": {"new": {"ranking": list("dcba")}}}).encode())
    return pages


def test_a_log_of_rankings_is_replayed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("policies: {candidates: [new]}\n" + RANKING)
    (tmp_path / "log.ndjson").write_bytes(b"\n".join([*pages(400), b'{"event_id": 1, "timestamp": 0, "reward": 1}']))
    outcome = run("replay", str(tmp_path / "c.yaml"), str(tmp_path / "log.ndjson"), "--json")
    assert outcome.code == 0
    report = json.loads(outcome.out)
    assert report["events"]["accepted"] == 400
    assert report["events"]["rejected"] == {"missing_field": 1}
    values = {(row["policy"], row["estimator"]): row["value"] for row in report["estimates"]}
    assert values["new", "click_ips"] > values["logging", "click_ips"] > 0
    checks = {(check["policy"], check["check"]): check for check in report["trust"]}
    assert checks["new", "unsupported"]["ok"]
    assert checks["new", "unsupported"]["reason"].startswith("0.0% of the gain")


def test_messages_of_a_topic_become_estimates_and_a_restart_continues(tmp_path: Path) -> None:
    settings = {"source": {"topic": "pages"}, "policies": {"candidates": ["new"]}, "ranking": {"metric": "dcg"}}
    start = start_fresh(Config.model_validate(settings))
    records = [Records("pages", 0, range(300), pages(300))]
    start.evaluator.update(start.pipeline.take(records, {("pages", 0): None}, 2e9))
    report = start.evaluator.report()
    assert report.events.accepted == 300
    assert type(start.evaluator).from_state(start.evaluator.state()).report() == report


def test_plan_does_not_forecast_rankings(run: Run, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("policies: {candidates: [new]}\n" + RANKING)
    (tmp_path / "log.ndjson").write_bytes(b"\n".join(pages(10)))
    outcome = run("plan", str(tmp_path / "c.yaml"), str(tmp_path / "log.ndjson"))
    assert outcome.code == 2
    assert "not of rankings" in outcome.err
