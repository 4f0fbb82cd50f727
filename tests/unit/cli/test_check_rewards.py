"""Test what `check` says about the first events and rewards: repeated ones, and rewards with other names of fields."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml

from streameval.cli import check
from streameval.config.model import Config
from streameval.ingest.base import PartitionStatus, SourceStatus
from support.messages import message


def configured(**source: Any) -> Config:
    return Config.model_validate({"source": {"topic": "t"} | source, "policies": {"candidates": ["challenger"]}})


def sampled(monkeypatch: pytest.MonkeyPatch, values: list[bytes | None]) -> None:
    sample = check.Probe(
        SourceStatus(True, partitions=(PartitionStatus("t", 0, 0, 0),)), 9, values, [1.0] * len(values)
    )
    monkeypatch.setattr(check, "probe", lambda source: sample)


@pytest.mark.parametrize(("duplicates", "shown"), [("off", True), (1000, False)])
def test_repeated_ids_of_events_are_shown_unless_they_are_dropped(
    duplicates: Any, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled(monkeypatch, [message(number % 3, timestamp=1.0, policies={"challenger": 0.5}) for number in range(5)])
    findings = list(check.check_events(configured(duplicates=duplicates)))
    repeats = [finding for finding in findings if finding.part == "source.duplicates"]
    assert [finding.message for finding in repeats] == [
        "2 of the first 5 events repeat the event_id of another one"
    ] * shown


@pytest.mark.parametrize(("combine", "reward_id", "shown"), [("sum", None, 1), ("first", None, 0), ("sum", "a", 0)])
def test_equal_rewards_without_ids_are_shown_if_they_are_summed(
    combine: str, reward_id: str | None, shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward = {"event_id": "e", "timestamp": 1, "reward": 1, "reward_id": reward_id}
    sampled(monkeypatch, [msgspec.json.encode(reward), msgspec.json.encode(reward | {"reward": 2})] * 2)
    findings = list(check.check_rewards(configured(rewards={"topic": "r", "combine": combine})))
    assert sum("have the event_id, time and value of another one" in finding.message for finding in findings) == shown


def test_names_of_rewards_are_proposed_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rewards = [{"of": {"requestId": f"e-{number}"}, "createdAt": 1.7e9 + number, "clicked": 1} for number in range(9)]
    sampled(monkeypatch, list(map(msgspec.json.encode, rewards)))
    columns = {"timestamp": "createdAt", "event_id": "of.requestId", "reward": "clicked"}
    *_, finding = check.check_rewards(configured(rewards={"topic": "r"}))
    assert "'of.requestId' looks like event_id" in finding.hint
    section = yaml.safe_load(finding.hint[finding.hint.index("source:") :])
    assert section == {"source": {"rewards": {"columns": columns}}}
    findings = list(check.check_rewards(configured(rewards={"topic": "r", "columns": columns})))
    assert [finding.message for finding in findings][1:] == ["of the first 9 rewards 9 can be used"]
