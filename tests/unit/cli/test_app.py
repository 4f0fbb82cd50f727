"""Test what commands print to stdout and stderr, and how they end."""

from __future__ import annotations

import errno
import gzip
import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from streameval.cli import check, replay, terminal
from streameval.config.model import Config
from streameval.events import json_schema
from streameval.ingest.base import PartitionStatus, SourceStatus
from streameval.ope.cycle import TOO_SHORT
from support.commands import Outcome, Run

CONFIG = "policies: {candidates: [challenger]}\nestimators: [ips]\naverages: [cumulative]\n"
TRIED = CONFIG + "http: {port: 0}\n"
UNCHECKED = CONFIG + "promotion: off\n"  # a few events pass no trust check
EVENT = (
    '{"event_id": "e", "timestamp": 1574553634.5, "action": "a", "propensity": 0.25, "reward": 1, '
    '"policies": {"challenger": 0.5}}\n'
)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Write a configuration and three events in two files."""
    (tmp_path / "c.yaml").write_text(CONFIG)
    (tmp_path / "one.ndjson").write_text(EVENT)
    with gzip.open(tmp_path / "two.ndjson.gz", "wt") as stream:
        stream.write(EVENT.replace('"e"', '"f"') + EVENT.replace('"e"', '"g"').replace('"reward": 1', '"reward": 0'))
    return tmp_path


def test_the_version_is_printed(run: Run) -> None:
    assert run("--version") == Outcome(0, "streameval 0.1.0\n", "")


def test_every_command_is_in_the_help(run: Run) -> None:
    outcome = run("--help")
    assert outcome.code == 0
    for name in ["run", "demo", "replay", "check", "plan", "simulate", "produce", "init", "show", "schema", "learn"]:
        assert f"  {name} " in outcome.out


def test_a_wrong_configuration_exits_with_2_and_its_problems(run: Run, files: Path) -> None:
    (files / "c.yaml").write_text(CONFIG.replace("[ips]", "[{kind: clipped_ips, cap: -1}]"))
    outcome = run("replay", "c.yaml", "one.ndjson")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(
        "error: c.yaml: 1 problem\n\nestimators.0.cap (line 2): expected a number greater than 0 or auto, found -1\n"
        "hint: clipped_ips: "
    )


def test_replay_prints_the_report_as_json_on_stdout_alone(run: Run, files: Path) -> None:
    (files / "c.yaml").write_text(UNCHECKED)
    outcome = run("replay", "c.yaml", "one.ndjson", "two.ndjson.gz", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    report = json.loads(outcome.out)
    assert report["schema"] == 1
    times = {"first_timestamp": 1574553634.5, "last_timestamp": 1574553634.5}
    assert report["events"] == {"accepted": 3, "rejected": {}, **times}
    rows = {(row["policy"], row["estimator"], row["average"]): row["value"] for row in report["estimates"]}
    assert rows == {("logging", "ips", "cumulative"): 2 / 3, ("challenger", "ips", "cumulative"): 4 / 3}


def test_replay_prints_a_table(run: Run, files: Path) -> None:
    (files / "c.yaml").write_text(UNCHECKED)
    outcome = run("replay", "c.yaml", "one.ndjson", "two.ndjson.gz")
    assert (outcome.code, outcome.err) == (0, "")
    lines = [" ".join(line.split()) for line in outcome.out.splitlines() if line.strip()]
    assert lines[0] == "Keep production over challenger: no rule decides, +0.667 per event"
    assert lines[1] == "3 events until 2019-11-24 00:00:34 UTC, 0 rejected"
    assert lines[2] == "ips on cumulative, 95% intervals below values"
    assert lines[5] == "policy value lift lift weight"
    assert lines[7:-1] == [
        "logging 0.667 – – 3",
        "(production) 1.000",
        "challenger 1.333 +0.667 – 3",
        "2.000",
    ]


def test_replay_reads_standard_input(run: Run, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (files / "one.ndjson").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        outcome = run("replay", "c.yaml", "-", "--json")
    assert json.loads(outcome.out)["events"]["accepted"] == 1


def test_rejected_events_are_summarised_by_reason_with_an_example(run: Run, files: Path) -> None:
    bad = EVENT.replace("0.25", "1.5")
    (files / "bad.ndjson").write_text(EVENT + bad + bad + "{oops\n")
    outcome = run("replay", "c.yaml", "bad.ndjson", "--json")
    assert outcome.code == 0
    assert json.loads(outcome.out)["events"]["rejected"] == {"propensity_range": 2, "malformed": 1}
    lines = outcome.err.splitlines()
    assert lines[0] == "warning: 3 of 4 events were rejected"
    assert lines[1].startswith("          2  propensity_range  e.g. propensity")
    assert lines[2].startswith("          1  malformed  e.g. ")


def test_no_accepted_event_is_bad_input(run: Run, files: Path) -> None:
    (files / "bad.ndjson").write_text("{oops\n")
    outcome = run("replay", "c.yaml", "bad.ndjson")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.endswith(
        "`streameval schema` prints what an event looks like\n"
        "error: no event was accepted: all were rejected\nhint: correct the fields above\n"
    )


def test_rules_without_a_lift_are_pointed_out(run: Run, files: Path) -> None:
    (files / "c.yaml").write_text(CONFIG + "promotion: {rule: paired}\n")
    outcome = run("replay", "c.yaml", "one.ndjson")
    assert outcome.code == 0
    assert outcome.err.startswith("warning: promotion: the rule paired cannot promote: no unbiased estimator is on a")
    assert "\nhint: add mixture to averages" in outcome.err


def test_check_shows_what_would_run(run: Run, files: Path) -> None:
    (files / "c.yaml").write_text(
        """
source: {topic: clicks, bootstrap_servers: "a:1, b:2"}
policies: {candidates: [challenger], production: champion}
estimators: [ips, {kind: clipped_ips, cap: 10}]
averages: [cumulative, {kind: window, name: short, tau: 500}]
intervals: {short: {kind: normal, drift: include}}
"""
    )
    outcome = run("check", "c.yaml", "--no-broker")
    assert outcome.code == 0
    assert [line.rstrip() for line in outcome.out.splitlines()] == [
        "source      kafka, topic clicks at a:1,b:2, from earliest",
        "policies    champion (production), challenger",
        "reward      the field reward, from 0 to 1",
        "estimators  ips, clipped_ips (cap 10)",
        "averages    cumulative: empirical_likelihood interval",
        "            short (window, tau 500): normal (drift include) interval",
        "drift       ADWIN",
        "promotion   periodic: lift over 0, after 10,000 events; periodic cannot promote: no "
        "unbiased estimator is on a mixture",
        "estimates   8 for 2 policies, 95% intervals",
        "serves      http://127.0.0.1:9108, without a token",
        "state       snapshots in streameval-state, one every 30s",
        "rejected    messages are counted but not stored",
    ]


def test_a_learned_limit_is_shown_and_plan_refuses_it(run: Run, files: Path) -> None:
    (files / "c.yaml").write_text(
        "{source: {topic: t}, policies: {candidates: [a]}, reward: {max: auto, quantile: 0.999}, state: off}"
    )
    shown = [line.rstrip() for line in run("check", "c.yaml", "--no-broker").out.splitlines()]
    assert "reward      the field reward, from 0 to the 0.999 quantile of earlier rewards" in shown
    assert "drift       off: a detector needs a fixed range of reward, which has max: auto" in shown
    outcome = run("plan", "c.yaml", "c.yaml")
    assert outcome.code == 2
    assert "max: auto has none\nhint: give max a number" in outcome.err


def test_check_warns_of_secrets_that_every_user_can_read(run: Run, files: Path) -> None:
    tokens = files / "tokens"
    tokens.write_text("7f3a" * 8)
    (files / "c.yaml").write_text(
        "{source: {topic: t}, policies: {candidates: [a]}, http: {token_file: tokens}, promotion: off}"
    )
    for mode, warning in (
        (0o644, "warning: every user of this machine can read tokens\nhint: chmod o-r tokens\n"),
        (0o640, ""),
    ):
        tokens.chmod(mode)
        outcome = run("check", "c.yaml", "--no-broker")
        assert (outcome.code, outcome.err) == (0, warning)


def test_check_tries_a_file(run: Run, files: Path) -> None:
    (files / "c.yaml").write_text(TRIED + "source: {kind: file, path: [one.ndjson, two.ndjson.gz]}\n")
    outcome = run("check", "c.yaml")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.endswith(f"of the first 3 events 3 can be used\n{TOO_SHORT}\n")


def daily(days: int) -> str:
    """Return events with more rewards during the day than at night."""
    lines = []
    for number in range(days * 240):
        reward = int(number * 7 % 10 < (8 if number // 120 % 2 else 2))
        event = {"event_id": f"d-{number}", "timestamp": 1574553600 + 360 * number, "propensity": 0.5, "reward": reward}
        lines.append(json.dumps(event | {"action": "a", "policies": {"challenger": 0.5}}))
    return "\n".join(lines)


@pytest.mark.parametrize(("days", "found"), [(9, True), (3, False)])
def test_check_and_replay_find_a_daily_cycle_in_a_log_of_four_days(
    run: Run, files: Path, days: int, found: bool
) -> None:
    (files / "days.ndjson").write_text(daily(days))
    (files / "c.yaml").write_text(TRIED + "source: {kind: file, path: days.ndjson}\n")
    message = "a daily cycle of production's value of +-0.38: the rule needs whole days" if found else TOO_SHORT
    for arguments in (("check", "c.yaml"), ("replay", "c.yaml", "days.ndjson")):
        lines = run(*arguments).out.splitlines()
        assert [line for line in lines if "cycle" in line] == [message]


@pytest.mark.parametrize(("held", "client"), [(3, "kafka-python"), (2, "kafka-python"), (3, "confluent")])
def test_check_recommends_the_other_client_for_a_topic_of_many_events(
    monkeypatch: pytest.MonkeyPatch, held: int, client: str
) -> None:
    monkeypatch.setattr(check, "MANY_MESSAGES", 3)
    sample = check.Probe(SourceStatus(True, partitions=(PartitionStatus("clicks", 0, 0, 0),)), held, [], [])
    monkeypatch.setattr(check, "probe", lambda source: sample)
    config = Config.model_validate({"source": {"topic": "clicks", "client": client}, "policies": {"candidates": ["a"]}})
    hints = [finding.hint for finding in check.check_events(config) if finding.part == "source.client"]
    assert [hint.startswith("source.client: confluent") for hint in hints] == [True] * (
        held == 3 and client != "confluent"
    )


def test_check_reports_that_no_event_can_be_used(run: Run, files: Path) -> None:
    (files / "c.yaml").write_text(TRIED + "source: {kind: file, path: bad.ndjson}\n")
    (files / "bad.ndjson").write_text("{oops\n")
    outcome = run("check", "c.yaml")
    assert outcome.code == 1
    assert "error: none of the first events can be used, e.g. malformed: " in outcome.err


def test_check_names_the_candidate_that_events_lack(run: Run, files: Path) -> None:
    config = TRIED.replace("[challenger]", "[challenger, other]") + "source: {kind: file, path: one.ndjson}\n"
    (files / "c.yaml").write_text(config)
    outcome = run("check", "c.yaml")
    assert outcome.code == 0
    assert outcome.err == (
        "warning: none of these events has a probability of the policy 'other'\nhint: the events name challenger\n"
    )


def test_check_fails_at_once_when_no_broker_listens(run: Run, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "probe", None)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        (files / "c.yaml").write_text(TRIED + f"source: {{topic: x, bootstrap_servers: '127.0.0.1:{port}'}}\n")
        outcome = run("check", "c.yaml")
    assert outcome.code == 1
    assert outcome.err.startswith(
        f"error: the source cannot be reached: cannot connect to 127.0.0.1:{port}: Connection refused\n"
    )
    assert outcome.err.endswith(f"\nhint: {check.UNREACHED_HINT}\n")


def test_simulated_events_can_be_replayed_and_equal_seeds_make_equal_bytes(run: Run, files: Path) -> None:
    for name in ("a.ndjson.gz", "b.ndjson.gz"):
        assert run("simulate", name, "--events", "500", "--seed", "7", "--truth", "truth.ndjson") == Outcome(0, "", "")
    assert (files / "a.ndjson.gz").read_bytes() == (files / "b.ndjson.gz").read_bytes()
    (files / "c.yaml").write_text(CONFIG.replace("challenger", "candidate-1"))
    assert json.loads(run("replay", "c.yaml", "a.ndjson.gz", "--json").out)["events"]["accepted"] == 500
    truth = [json.loads(line) for line in (files / "truth.ndjson").read_text().splitlines()]
    assert [moment["events"] for moment in truth] == [100, 200, 300, 400, 500]
    assert truth[0]["truth"].keys() == {"logging", "candidate-1", "candidate-2", "candidate-3"}


def test_simulated_events_go_to_stdout(run: Run) -> None:
    outcome = run("simulate", "--events", "3", "--candidates", "1")
    assert (outcome.code, outcome.err) == (0, "")
    events = [json.loads(line) for line in outcome.out.splitlines()]
    assert [event["event_id"] for event in events] == ["e-0", "e-1", "e-2"]
    assert events[0]["timestamp"] == 1767225600.0
    assert events[0]["policies"].keys() == {"candidate-1"}


def test_the_schema_of_events_is_printed(run: Run) -> None:
    outcome = run("schema")
    assert outcome.code == 0
    assert json.loads(outcome.out) == json_schema()


def test_an_unexpected_exception_is_reported_as_a_bug(run: Run, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Iterator[str]:
        raise RuntimeError("unthinkable")

    monkeypatch.setattr(replay.Replay, "warnings", broken)
    outcome = run("replay", "c.yaml", "one.ndjson")
    assert outcome.code == 1
    assert "RuntimeError: unthinkable" in outcome.err
    assert outcome.err.endswith("error: this is a bug in streameval\nhint: please report it, with the lines above\n")


def test_a_full_disk_behind_stdout_is_no_bug(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(terminal, "_close_stdout", lambda: None)  # the stdout of the test runner stays open
    monkeypatch.setattr(sys.stdout, "write", full)
    assert run("schema") == Outcome(
        2,
        "",
        "error: the output cannot be written: No space left on device\n"
        "hint: free some space, or write elsewhere; what was written so far is incomplete\n",
    )


def test_shell_completion_is_offered(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_STREAMEVAL_COMPLETE", "source_bash")
    outcome = run()
    assert outcome.code == 0
    assert "complete -o default -F _streameval_completion streameval" in outcome.out


@pytest.mark.parametrize("option", [(), ("--broker-only",)])
def test_the_demo_names_the_package_that_it_needs(
    run: Run, monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka.cimpl", None)
    outcome = run("demo", *option)
    assert outcome.code == 2
    assert outcome.err.startswith("error: the embedded broker needs confluent-kafka: ")
    assert outcome.err.endswith("hint: pip install 'streameval[demo]'\n")
