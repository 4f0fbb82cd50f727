"""Test that a package without a room, and without the lines that name it, gives equal numbers elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

import streameval
from streameval.ope.evaluator.rooms import ROOMS
from support.paths import ROOT

REPORTS = """
import json, pkgutil
from importlib import import_module
from pathlib import Path

import streameval as se
from streameval.config.model import Config
from streameval.ope.evaluator.rooms import ROOMS
from support import recorded_logs as logs

columns = logs.with_units(logs.with_segments(logs.described(7, 430), 8), 9, first=100, size=5)
ramp = {**columns, "logging_policy": ["good" if event % 3 == 0 else "partial" for event in range(430)]}
arms, country = {"arms": {"partial": 0.6, "good": 0.4}}, {"country": {"values": ["de"]}}
estimated = {"kind": "estimated", "warm_up": 100}
cases = {
    "default": (columns, dict(candidates=["good"])),
    "ramp": (ramp, dict(candidates=["good"], production="partial", block=20, logging=arms)),
    "quantiles": (columns, dict(candidates=["good"], reward_range={"quantiles": [0.5]})),
    "per_unit": (columns, dict(candidates=["good"], reward_range={"per_unit": "1s"})),
    "limits": (columns, dict(candidates=["good"], reward_range={"max": "auto", "quantile": 0.9}, drift=None)),
    "segments": (ramp, dict(candidates=["good"], averages=["cumulative"], estimators=["ips"], segments=country)),
    "propensities": (columns, dict(candidates=["good"], block=20, propensity=estimated)),
    "learning": (columns, dict(candidates={"good": "logged", "more": "learned", "most": "of_reward_model"}, block=20)),
}
own = {"kind": "python", "target": "own:make", "learns": True}
configured = {
    "limits": {"reward": {"max": "auto", "quantile": 0.9}},
    "quantiles": {"reward": {"quantiles": [0.5]}},
    "per_unit": {"reward": {"per_unit": "24h"}},
    "segments": {"segments": {"country": {"field": "context.country", "values": ["de"]}}},
    "ramp": {"policies": {"candidates": ["good"], "production": "partial"}, "logging": arms},
    "propensities": {"estimators": ["snips"], "propensity": "estimated"},
    "learning": {"policies": {"candidates": {"more": "learned"}}},
}
reports, refused = {}, []
if all(room.name != absent for room in ROOMS):
    for module in pkgutil.walk_packages(se.__path__, "streameval."):
        if not module.name.endswith(("__main__", ".spark")):  # pyspark is optional
            import_module(module.name)
for name, (events, options) in cases.items():
    if name != absent:
        evaluator, batch = se.Evaluator(**options), se.EventBatch.from_arrays(**events)
        evaluator.update(batch[:250])
        again = se.Evaluator.from_state(evaluator.state())
        again.update(batch[250:])
        reports[name] = json.loads(again.report().to_json())
    elif all(room.name != name for room in ROOMS):
        path = Path("streameval.yaml")
        path.write_text(json.dumps({"policies": {"candidates": ["good"]}, **configured[name]}))
        coded = [lambda: se.Evaluator({"more": own})] if name == "learning" else []
        for ask in (lambda: se.Evaluator(**options), lambda: Config.load(path).evaluator_config(), *coded):
            try:
                ask()
            except (se.ConfigError, ValueError) as error:
                refused.append(str(error))
print(json.dumps([[room.name for room in ROOMS], reports, refused]), flush=True)
"""
EACH = """
import gc, os, sys

absent, (script, *names) = "", sys.argv[1:]
exec(script)
gc.freeze()  # memory that is not touched stays shared
for absent in names:
    if not os.fork():  # without the modules of the whole package, but with all libraries
        for module in [name for name in sys.modules if name.startswith(("streameval", "support"))]:
            del sys.modules[module]
        os.chdir(absent)
        sys.path.insert(0, os.getcwd())
        exec(script)
        break
    if os.wait()[1]:
        print("null", flush=True)
"""
"""Run the script with the whole package, and with the package without a room in each of some directories."""
WITHOUT = "this installation is without the room"
ASKED = {
    "limits": [f"reward.max: {WITHOUT} limits"] * 2,
    "quantiles": [f"reward.quantiles: {WITHOUT} quantiles"] * 2,
    "per_unit": [f"reward.per_unit: {WITHOUT} per_unit"] * 2,
    "segments": [f"segments: {WITHOUT} segments"] * 2,
    "ramp": [f"logging: {WITHOUT} ramp"] * 2,
    "propensities": [f"propensity: {WITHOUT} propensities"] * 2,
    "learning": [
        "candidates.more: expected one of logged, uniform, ",
        "policies.candidates.more",
        f"policies.candidates.more: {WITHOUT} learning",
    ],
}
"""Errors of a package without a room, for arguments, in a file, and for code that learns."""
LINES = {
    "learning": {
        "ope/candidates/kinds.py": ("from streameval.ope.learning import KINDS as LEARNING", "    *LEARNING,"),
    }
}
"""Lines that name a room outside of `rooms`."""
FURTHER = {"learning": ("ope/learning", "ope/evaluator/training.py")}
"""Modules of a room besides its module of the evaluator."""
CHECKS = {"calibration": {"calibration"}, "frequencies": {"propensities"}}
"""Trust checks of a room in the remaining cases."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return for the whole package, and without each room, the names of rooms, all other Reports, and errors."""
    package, directory = Path(*streameval.__path__), tmp_path_factory.mktemp("rooms")
    names = [room.name for room in ROOMS]
    for name in names:
        copied = directory / name / "streameval"
        shutil.copytree(package, copied)
        for module_path in (f"ope/evaluator/{name}.py", *FURTHER.get(name, ())):
            path = copied / module_path
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        entries = (f"from streameval.ope.evaluator.{name} import ROOM as {name.upper()}", f"    {name.upper()},")
        for module, removed in {"ope/evaluator/rooms.py": entries, **LINES.get(name, {})}.items():
            lines = (copied / module).read_text().splitlines()
            assert set(removed) <= set(lines)
            (copied / module).write_text("\n".join(line for line in lines if line not in removed))
    environment = {**os.environ, "PYTHONPATH": f"{package.parent}{os.pathsep}{ROOT / 'tests'}", "PYTHONSAFEPATH": "1"}
    settings: Any = {"env": environment, "cwd": directory, "timeout": 120}
    done = subprocess.run(
        [sys.executable, "-c", EACH, REPORTS, *names], capture_output=True, text=True, check=False, **settings
    )
    assert not done.returncode, done.stderr
    found = dict(zip(("", *names), map(json.loads, done.stdout.splitlines()), strict=True))
    assert all(found.values()), done.stderr
    return found


@pytest.mark.parametrize("name", [room.name for room in ROOMS])
def test_a_package_without_a_room_gives_the_same_numbers(name: str, answers: dict[str, Any]) -> None:
    before, reports, _ = answers[""]
    after, partial_reports, refused = answers[name]
    expected = {case: deepcopy(report) for case, report in reports.items() if case != name}
    wanted = ASKED.get(name, [])
    assert len(refused) == len(wanted)
    assert all(text in problem for text, problem in zip(wanted, refused, strict=True))
    assert after == [room for room in before if room != name]
    for report in (*expected.values(), *partial_reports.values()):
        report["trust"] = [check for check in report["trust"] if check["check"] not in CHECKS.get(name, ())]
        if name in report:
            report[name] = []
    assert partial_reports == expected
