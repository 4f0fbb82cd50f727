"""Each benchmark runs and finds ratios, which `make bench` measures with more events."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

BENCHMARKS = ROOT / "tests" / "benchmarks"
NAMES = re.findall(r'"(\w+)"', (BENCHMARKS / "run.py").read_text().split("NAMES = (")[1].split(")")[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_finds_ratios(name: str, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(BENCHMARKS)}
    events = "70000" if name == "on_spark" else "2000"
    options = ["--events", events, "--rounds", "1", "--store", str(tmp_path / "results.json")]
    subprocess.run([sys.executable, "tests/benchmarks/run.py", name, *options], cwd=ROOT, env=environment, check=True)
    ratios = json.loads((tmp_path / "results.json").read_text())[name]["ratios"]
    assert ratios
    assert all(each["lowest"] > 0 for each in ratios.values())


def test_stored_results_have_a_spread_of_five_rounds_or_more() -> None:
    stored = json.loads((BENCHMARKS / "results.json").read_text())
    assert set(stored) == set(NAMES)
    for result in stored.values():
        for each in result["ratios"].values():
            assert each["lowest"] <= each["median"] <= each["highest"]
