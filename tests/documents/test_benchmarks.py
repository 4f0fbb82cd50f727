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


def printed_by(script: str, *options: str) -> str:
    """The output of a benchmark, run with the path that `make bench` gives it."""
    assert TARGET
    environment = os.environ | {"PYTHONSAFEPATH": "1", "PYTHONPATH": TARGET[1]}
    command = [sys.executable, script, *options]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_prints_its_measurements(script: str) -> None:
    assert script.rpartition("/")[2] in printed_by(script, "--help")


@pytest.mark.slow
def test_thirty_values_of_segments_cost_less_than_two_and_a_half_times_no_segments_after_decoding() -> None:
    message = printed_by("tests/benchmarks/segments.py", "--events", "6000", "--rounds", "5")
    (ratio,) = re.findall(r"after decoding ([\d.]+)", message)
    assert float(ratio) < 2.5, message


@pytest.mark.slow
def test_a_page_with_two_clicks_takes_less_than_two_and_a_half_times_the_processor_time_of_a_compact_event() -> None:
    message = printed_by("tests/benchmarks/rankings.py", "--events", "6000", "--rounds", "9")
    (ratio,) = re.findall(r"ratio: ([\d.]+)", message)
    assert float(ratio) < 2.5, message
