"""Run each benchmark on few events: it finds ratios. `make bench` measures them, and runs the one on Spark."""

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
@pytest.mark.timeout(900)
def test_every_benchmark_finds_ratios(tmp_path: Path) -> None:
    names = [name for name in NAMES if name != "on_spark"]
    environment = os.environ | {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(BENCHMARKS)}
    options = ["--events", "2000", "--rounds", "1", "--store", str(tmp_path / "results.json")]
    subprocess.run([sys.executable, "tests/benchmarks/run.py", *names, *options], cwd=ROOT, env=environment, check=True)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results.keys() == set(names)
    for name, result in results.items():
        assert result["ratios"], name
        assert all(ratio["lowest"] > 0 for ratio in result["ratios"].values()), name
