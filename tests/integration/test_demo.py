"""Test `streameval demo` as a process: the whole demonstration, and the embedded broker alone."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from support.asking import asking, report_of
from support.factories import wait_until
from support.messages import message

pytest.importorskip("confluent_kafka")

STREAMEVAL = [sys.executable, "-c", "from streameval.cli.app import main; main()"]
DEMO = [*STREAMEVAL, "demo"]
PATIENCE = 120.0
COLUMNS = ("truth", "cumulative", "window", "decay", "adaptive_window", "adaptive_decay", "mixture")


@contextmanager
def demo(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*DEMO, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def outcome(text: str) -> dict[str, dict[str, float]]:
    """Return the numbers of the closing table by row and column."""
    rows = [re.split(r"\s{2,}", line.strip()) for line in text.split("policy", 1)[1].splitlines()]
    return {
        row[0]: dict(zip(COLUMNS[-len(row) + 1 :], map(float, row[1:]), strict=True))
        for row in rows
        if len(row) >= len(COLUMNS) and re.fullmatch(r"[\d.]+", row[1])
    }


def address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if "status page" in line:
            return line.split()[-1]
    raise AssertionError("the demo said nothing of a status page")


def test_twenty_thousand_events_end_in_a_table_of_estimates_close_to_the_truth() -> None:
    with demo("--events", "20000", "--rate", "0", "--port", "0") as process:
        output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert "After 20,000 events" in output
    rows = outcome(output)
    assert set(rows) == {"logging", "for-rock-fans", "for-jazz-fans", "for-metal-fans", "typical error"}
    for policy in ("logging", "for-rock-fans", "for-jazz-fans", "for-metal-fans"):
        estimates = rows[policy]
        assert set(estimates) == set(COLUMNS)
        assert all(abs(value - estimates["truth"]) < 0.15 for value in estimates.values())
    assert abs(rows["logging"]["window"] - rows["logging"]["truth"]) < 0.03
    assert all(error < 0.15 for error in rows["typical error"].values())


def test_a_demo_of_rankings_ends_close_to_the_truth_also_if_its_port_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with demo("--world", "rankings", "--events", "12000", "--rate", "0", "--port", str(port)) as process:
            output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert f"127.0.0.1:{port}: the port is in use; taking a free port" in output
    assert f":{port}/" not in output
    assert "After 12,000 events, by click_ips" in output
    for policy, estimates in outcome(output).items():
        if policy != "typical error":
            assert estimates["mixture"] == pytest.approx(estimates["truth"], abs=0.25)


def is_better_now(client: httpx.Client) -> bool:
    report = report_of(client)
    return report is not None and any(
        decision["reason"].startswith("better at this minute") for decision in report["promotion"]
    )


def test_a_candidate_is_better_within_seconds_and_ctrl_c_ends_the_demo_in_order() -> None:
    with demo("--port", "0", "--rate", "4000") as process:
        url = address(process)
        with asking(url) as client:
            wait_until(lambda: is_better_now(client), seconds=PATIENCE)
            metrics, page = client.get("/metrics").text, client.get("/").text
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert (
        'streameval_policy_value{average="cumulative",estimator="snips",policy="for-jazz-fans",reward="reward"}'
        in metrics
    )
    assert "for-jazz-fans" in page
    assert "for-metal-fans" in output
    assert "Traceback" not in errors


def test_the_configuration_that_the_broker_alone_prints_works_until_ctrl_c(tmp_path: Path) -> None:
    def streameval(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*STREAMEVAL, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )

    with demo("--broker-only") as process:
        assert process.stdout is not None
        first, section = process.stdout.readline(), process.stdout.readline()
        assert re.match(r"the broker listens at 127\.0\.0\.1:\d+ until Ctrl-C", first)
        (tmp_path / "streameval.yaml").write_text(section + "policies: {candidates: [challenger]}\n")
        (tmp_path / "log.ndjson").write_bytes(message(0, policies={"challenger": 0.5}) + b"\n")
        produced = streameval("produce", "log.ndjson", "--config", "streameval.yaml")
        assert produced.returncode == 0, produced.stderr
        assert "1 event sent to interactions" in produced.stderr
        checked = streameval("check")
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert "1 event in 1 partition" in checked.stdout
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
