"""Test messages about missing fields that an estimator needs: by `check`, by `replay`, and when the daemon starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from streameval.config.model import Config
from streameval.service.daemon import Daemon
from support.commands import Outcome, command
from support.factories import ListSource, records

CONFIG = """
policies: {candidates: [challenger]}
source: {kind: file, path: log.ndjson}
estimators: [ips, {kind: cab, cap: 5}]
averages: [cumulative]
"""
WHOLE = {
    "actions": ["a", "b"],
    "features": [[0.0], [1.0]],
    "propensities": [0.5, 0.5],
    "policies": {"challenger": [0.2, 0.8]},
}
HINT = "hint: log it, or leave these estimators out; `streameval schema` prints what an event looks like\n"


def event(number: int, **other: Any) -> dict[str, Any]:
    """Return an event with all fields. None removes a field."""
    fields = {"event_id": number, "timestamp": number, "action": "a", "propensity": 0.5, "reward": number % 2, **WHOLE}
    return {name: value for name, value in (fields | other).items() if value is not None}


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("streameval.yaml").write_text(CONFIG)
    return Path("log.ndjson")


def write(log: Path, events: list[dict[str, Any]]) -> None:
    log.write_text("".join(json.dumps(event) + "\n" for event in events))


def check(capfd: pytest.CaptureFixture[str]) -> Outcome:
    return command(capfd, "check", "streameval.yaml")


def test_check_fails_with_the_field_that_no_event_has(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(log, [event(number, propensities=None) for number in range(10)])
    outcome = check(capfd)
    assert outcome.code == 1
    assert outcome.err == f"error: none of the first 10 events has `propensities`: no value for cab\n{HINT}"


def test_check_warns_of_a_field_that_some_events_lack(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(log, [event(n, policies={"challenger": 0.2} if n < 3 else WHOLE["policies"]) for n in range(10)])
    outcome = check(capfd)
    assert outcome.code == 0
    field = "`policies.challenger` as a list over `actions`"
    assert outcome.err == f"warning: 3 of the first 10 events have no {field}: missing for cab\n{HINT}"


def test_check_names_the_reward_model_that_needs_a_field(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(log, [event(number, features=None) for number in range(10)])
    outcome = check(capfd)
    assert outcome.code == 1
    assert outcome.err == (
        "error: none of the first 10 events has `features`: no value for cab\n"
        "hint: the reward model ridge needs it: log it, or choose another reward_model\n"
    )
    Path("streameval.yaml").write_text(CONFIG + "reward_model: tabular\n")
    assert (check(capfd).code, check(capfd).err) == (0, "")


def test_check_prints_no_warning_for_complete_events(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(log, [event(number) for number in range(10)])
    assert (check(capfd).code, check(capfd).err) == (0, "")


def test_replay_warns_and_continues(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(log, [event(n, propensities=None, features=None) for n in range(10)])
    outcome = command(capfd, "replay", "streameval.yaml", "log.ndjson", "--json")
    assert outcome.code == 0
    assert "warning: none of the first 10 events has `propensities`: no value for cab\n" in outcome.err
    values = {(e["policy"], e["estimator"]): e["value"] for e in json.loads(outcome.out)["estimates"]}
    assert values["challenger", "cab"] is None
    assert values["challenger", "ips"] == pytest.approx(0.2)


@pytest.mark.parametrize(("events", "found"), [(190, "80 of the last 100 events"), (999, "none of the last 100")])
def test_replay_names_the_field_that_later_events_lack(
    events: int, found: str, log: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(log, [event(n, propensities=WHOLE["propensities"] if n < 110 else None) for n in range(events)])
    outcome = command(capfd, "replay", "streameval.yaml", "log.ndjson")
    (line,) = (line for line in outcome.err.splitlines() if line.endswith("`propensities`: missing for cab"))
    assert line.startswith(f"warning: {found} ")


def test_the_daemon_logs_it_once_when_the_first_events_arrive() -> None:
    config = Config.model_validate(
        {"policies": {"candidates": ["challenger"]}, "estimators": ["dm"], "averages": ["cumulative"]}
    )
    evaluator = config.evaluator()
    messages = [json.dumps(event(number, features=None)).encode() for number in range(6)]
    polls = [[records(*messages[:3])], [records(*messages[3:])]]
    daemon = Daemon(
        ListSource(polls),
        config.event_format(),
        evaluator,
        stop_when_exhausted=True,
    )
    with capture_logs() as logs:
        daemon.run()
    text = [line["detail"] for line in logs if line["event"] == "estimators_without_events"]
    assert [entry.partition(";")[0] for entry in text] == ["none of the first 3 events has `features`: no value for dm"]
    assert daemon.published.accepted == 6
