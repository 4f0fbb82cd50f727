"""Check what `streameval` imports before it answers: most of the time of a start goes into imports."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import yaml

from streameval.ingest.kafka.mock_broker import EmbeddedBroker
from support.asking import asking
from support.factories import wait_until
from support.integration.running import served_at

MAIN = "import sys; sys.argv[0] = 'streameval'; from streameval.cli.app import main; main()"
LATER = {"confluent_kafka", "matplotlib", "pyarrow", "river", "scipy", "sklearn"}
"""Libraries that a daemon without events does not use."""
TIMED = (sys.executable, "-X", "importtime", "-c")


def imported(log: str) -> set[str]:
    """Return the packages in what Python writes with `-X importtime`."""
    return set(re.findall(r"^import time:.*\| +(\w+)$", log, re.M))


def test_importing_the_package_and_help_import_no_library_that_computes() -> None:
    for code in (["import streameval"], [MAIN, "--help"]):
        run = subprocess.run([*TIMED, *code], capture_output=True, text=True, check=True)
        assert "streameval" in imported(run.stderr)
        assert not imported(run.stderr) & {"numpy", "pydantic", "kafka", *LATER}


def test_a_daemon_is_ready_before_it_imports_what_it_uses_later(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with EmbeddedBroker({"clicks": 4}) as broker:
        source = {"kind": "kafka", "bootstrap_servers": broker.bootstrap, "api_version": "2.3", "topic": "clicks"}
        parts = {"source": source, "policies": {"candidates": ["new"]}, "http": {"port": 0}}
        (tmp_path / "streameval.yaml").write_text(yaml.safe_dump(parts))
        command = [*TIMED, MAIN, "run", "--log-format", "json"]
        with log.open("wb") as stderr, subprocess.Popen(command, stderr=stderr, cwd=tmp_path) as process:
            try:
                with asking(served_at(log, process)) as client:
                    wait_until(lambda: client.get("/readyz").status_code == 200)
            finally:
                process.kill()
    assert "kafka" in imported(log.read_text())
    assert not imported(log.read_text()) & LATER
