"""Run the program as its users do: commands, the daemon, and its HTTP server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.asking import asking, report_of

STREAMEVAL = str(Path(sys.executable).parent / "streameval")
PATIENCE = 120.0


def streameval(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [STREAMEVAL, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )


@contextmanager
def daemon(config: Path, log: Path, **environment: str) -> Iterator[httpx.Client]:
    """Run `streameval run` with this configuration, logging to a file, and yield a client of its server."""
    command = [STREAMEVAL, "run", str(config), "--log-format", "json"]
    options: dict[str, Any] = {"cwd": log.parent, "env": os.environ | environment}  # its state is there too
    with log.open("w") as stderr, subprocess.Popen(command, stderr=stderr, **options) as process:
        try:
            with asking(served_at(log, process)) as client:
                yield client
        finally:
            process.terminate()
            assert process.wait(PATIENCE) == 0, log.read_text()


def served_at(log: Path, process: subprocess.Popen[bytes]) -> str:
    """Wait until the daemon logs its address, and return it."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        if match := re.search(r"http://127\.0\.0\.1:\d+(?=\D)", log.read_text()):
            return match[0]
        time.sleep(0.05)
    pytest.fail(f"the daemon serves nothing:\n{log.read_text()}")


def lag(client: httpx.Client) -> list[float]:
    """Return the lag of each partition, as /metrics shows it."""
    metrics = client.get("/metrics").text
    return [float(value) for value in re.findall(r"^streameval_consumer_lag_events\{[^}]*\} (\S+)$", metrics, re.M)]


def wait_for(client: httpx.Client, events: int) -> dict[str, Any]:
    """Wait until this many events are accepted and no partition has more, and return the Report."""
    deadline = time.monotonic() + PATIENCE
    report = None
    while time.monotonic() < deadline:
        behind, report = lag(client), report_of(client)
        if behind == [0.0] * 4 and report and report["events"]["accepted"] >= events:
            return report
        time.sleep(0.1)
    pytest.fail(f"lag {lag(client)}, report {report}")
