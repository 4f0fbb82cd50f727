"""A package without the module of a room, and without its two lines in `rooms`, gives the same numbers elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import streameval
from streameval.ope.evaluator.rooms import ROOMS
from support.paths import ROOT

REPORTS = """
import json, sys
import streameval as se
from streameval.ope.evaluator.rooms import ROOMS
from support import recorded_logs as logs

columns = logs.with_units(logs.with_segments(logs.described(7, 430), 8), 9, first=100, size=5)
ramp = {**columns, "logging_policy": ["good" if event % 3 == 0 else "partial" for event in range(430)]}
arms, country = {"arms": {"partial": 0.6, "good": 0.4}}, {"country": {"values": ["de"]}}
estimated = {"kind": "estimated", "warm_up": 100}
cases = {
    "default": (columns, dict(candidates=["good"])),
    "ramp": (ramp, dict(candidates=["good"], production="partial", block=20, logging=arms)),
    "segments": (ramp, dict(candidates=["good"], averages=["cumulative"], estimators=["ips"], segments=country)),
    "propensities": (columns, dict(candidates=["good"], block=20, propensity=estimated)),
    "learning": (columns, dict(candidates={"good": "logged", "more": "learned", "most": "of_reward_model"}, block=20)),
}
reports, refused = {}, ""
for name, (events, options) in cases.items():
    if name != sys.argv[1]:
        evaluator, batch = se.Evaluator(**options), se.EventBatch.from_arrays(**events)
        evaluator.update(batch[:250])
        again = se.Evaluator.from_state(evaluator.state())
        again.update(batch[250:])
        reports[name] = json.loads(again.report().to_json())
    elif all(room.name != name for room in ROOMS):
        try:
            se.Evaluator(**options)
        except Exception as error:
            refused = f"{type(error).__name__}: {error}"
print(json.dumps([[room.name for room in ROOMS], reports, refused]))
"""
ASKED = {
    "segments": "ConfigError: segments: this installation is without the room segments",
    "ramp": "ConfigError: logging: this installation is without the room ramp",
    "propensities": "ConfigError: propensity: this installation is without the room propensities",
    "learning": "ConfigError: policies.candidates.more: this installation is without the room learning",
}
"""What a package without a room says about the case of the same name, for which the configuration asks."""
CHECKS = {"calibration": {"calibration"}, "frequencies": {"propensities"}}
"""The trust checks of a room, in the cases that are left."""


def found(path: Path, absent: str) -> Any:
    """The names of the rooms of a package in a directory, its Reports but for one case, and the error of this one."""
    environment = {**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{ROOT / 'tests'}", "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", REPORTS, absent]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.mark.lengthy
@pytest.mark.parametrize("name", [room.name for room in ROOMS])
def test_a_package_without_a_room_gives_the_same_numbers(name: str, tmp_path: Path) -> None:
    package = Path(*streameval.__path__)
    shutil.copytree(package, tmp_path / "streameval", ignore=shutil.ignore_patterns("__pycache__"))
    evaluator = tmp_path / "streameval" / "ope" / "evaluator"
    (evaluator / f"{name}.py").unlink()
    lines = (evaluator / "rooms.py").read_text().splitlines()
    entries = (f"from streameval.ope.evaluator.{name} import ROOM as {name.upper()}", f"    {name.upper()},")
    (evaluator / "rooms.py").write_text("\n".join(line for line in lines if line not in entries))
    (before, whole, _), (after, without, refused) = found(package.parent, name), found(tmp_path, name)
    assert refused == ASKED.get(name, "")
    assert after == [room for room in before if room != name]
    for report in (*whole.values(), *without.values()):
        report["trust"] = [check for check in report["trust"] if check["check"] not in CHECKS.get(name, ())]
        if name in report:
            report[name] = []
    assert without == whole
