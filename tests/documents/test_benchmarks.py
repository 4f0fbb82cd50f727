"""The benchmarks start when `make bench` calls them; no other test runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from support.paths import ROOT

TARGET = re.search(r"^bench: export PYTHONPATH = (\S+)$(.*?)^$", (ROOT / "Makefile").read_text(), re.M | re.S)
assert TARGET, "make bench gives the path of its modules"
SCRIPTS = sorted(set(re.findall(r"\$\(WHEEL_PYTHON\) (\S+\.py)", TARGET[2])))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_prints_its_measurements(script: str) -> None:
    assert TARGET
    environment = os.environ | {"PYTHONSAFEPATH": "1", "PYTHONPATH": TARGET[1]}
    command = [sys.executable, script, "--help"]
    message = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert script.rpartition("/")[2] in message
