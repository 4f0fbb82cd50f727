"""Check what `streameval` imports before it answers: most of the time of a start goes into imports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from streameval.ingest.kafka.mock_broker import EmbeddedBroker
from support.asking import asking
from support.factories import wait_until
from support.integration.running import served_at

MAIN = "import sys; sys.argv[0] = 'streameval'; from streameval.cli.app import main; main()"
HEAVY = {
    "asyncio",
    "confluent_kafka",
    "jinja2",
    "kafka",
    "matplotlib",
    "numpy",
    "prometheus_client",
    "pyarrow",
    "pydantic",
    "rich",
    "river",
    "scipy",
    "starlette",
    "structlog",
    "uvicorn",
    "yaml",
    "zstandard",
}
NEEDED_BY_AN_EVALUATOR = {"numpy", "pydantic"}
COMMAND = """
from streameval.cli.app import main
sys.argv = ["streameval", *{arguments}]
try:
    main()
except SystemExit as left:
    assert not left.code, left.code
"""
LATER = {"confluent_kafka", "matplotlib", "pyarrow", "river", "scipy", "sklearn"}
"""Libraries that a daemon without events does not use."""
TIMED = (sys.executable, "-X", "importtime", "-c")


def imported(log: str) -> set[str]:
    """Return the packages in what Python writes with `-X importtime`."""
    return set(re.findall(r"^import time:.*\| +(\w+)$", log, re.M))


def loaded(program: str) -> set[str]:
    """Return the packages that a Python process has imported at the end of a program."""
    program = f"import json, sys\n{program}\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_the_package_imports_no_heavy_library() -> None:
    assert not loaded("import streameval") & HEAVY


def test_an_evaluator_imports_only_what_it_computes_with() -> None:
    program = "import streameval\nstreameval.Evaluator(candidates=['challenger']).report()"
    assert loaded(program) & HEAVY == NEEDED_BY_AN_EVALUATOR


def test_the_usual_drift_detector_does_not_load_river() -> None:
    program = """
import numpy as np
from streameval.ope.evaluator.drift_detection import DriftDetector
detector = DriftDetector.from_option({"delta": 0.01})
detector.update(detector.start(1), np.zeros((99, 1)))
"""
    assert "river" not in loaded(program)


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_the_command_line_imports_no_heavy_library(option: str) -> None:
    assert not loaded(COMMAND.format(arguments=[option])) & HEAVY


@pytest.mark.parametrize("name", ["run", "replay"])
def test_the_help_of_a_command_imports_no_heavy_library(name: str) -> None:
    needed_by_typer = {"pydantic"}
    assert loaded(COMMAND.format(arguments=[name, "--help"])) & HEAVY <= needed_by_typer


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
