"""The recipes of CONTRIBUTING.md: applied to a copy of the package, each new part works and touches one other file."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import streameval
from support.paths import ROOT

RECIPES = re.findall(r"^```diff\n(.*?)^```$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE | re.DOTALL)
CONFIG = """
policies: {candidates: [challenger]}
source: {kind: literal, messages: ['{"event_id": 1}']}
estimators: [ips, {kind: trimmed_ips, cap: 1.5}, stratified_ips]
averages: [cumulative, latest, mixture]
intervals: {cumulative: chebyshev}
promotion: {rule: [{kind: present, name: now}], min_events: 100, hold: 1}
"""
USE = """
import json, sys
import numpy as np
import streameval as se
from streameval.config.model import Config

config = Config.load(sys.argv[1])
source = config.required_source()
random = np.random.default_rng(1)
propensity = random.uniform(0.2, 0.8, 3_000)
reward = (random.random(3_000) < 0.2 + 0.5 * propensity).astype(float)
evaluator = config.evaluator()
evaluator.update(
    se.EventBatch.from_arrays(reward=reward, propensity=propensity, policies={"challenger": np.sqrt(propensity)})
)
report = evaluator.report()
assert se.Evaluator.from_state(evaluator.state()).report() == report
print(json.dumps({
    "estimates": [[each.policy, each.estimator, each.average, each.value, each.kind] for each in report.estimates],
    "rules": [each.rule for each in report.promotion],
    "source": [source.description, len(source.open().poll(0.0)[0])],
    "trimmed": float(np.mean(np.where(propensity**-0.5 <= 1.5, reward * propensity**-0.5, 0.0))),
    "latest": float(np.mean(reward[-100:])),
}))
"""


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The output of a program that uses a copy of the package with every recipe applied."""
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(Path(*streameval.__path__), folder / "streameval")
    for recipe in RECIPES:
        subprocess.run(["git", "apply", "-"], cwd=folder, input=recipe, text=True, check=True)
    (folder / "extended.yaml").write_text(CONFIG)
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": ""}
    command = [sys.executable, "-c", USE, str(folder / "extended.yaml")]
    printed = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout
    found: dict[str, object] = json.loads(printed)
    return found


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: re.findall(r"^\+\+\+ b/(\S+)", recipe, re.MULTILINE)[0])
def test_a_new_part_is_one_file_and_a_line_in_a_union(recipe: str) -> None:
    assert len(RECIPES) == 5
    new, changed = [], []
    for before, after in re.findall(r"^--- (\S+)\n\+\+\+ b/(\S+)$", recipe, re.MULTILINE):
        (new if before == "/dev/null" else changed).append(after)
    assert len(new) == len(changed) == 1
    added = recipe[recipe.index(f"+++ b/{changed[0]}") :].split("--- /dev/null")[0].splitlines()[1:]
    counts = {sign: sum(line.startswith(sign) for line in added) for sign in "+-"}
    assert counts["+"] - counts["-"] <= 2, "an import, and a line of the union"


def test_a_new_estimator_and_a_new_average_are_estimated_with_every_other(used: dict[str, object]) -> None:
    estimates = used["estimates"]
    assert isinstance(estimates, list)
    values = {(policy, estimator, average): value for policy, estimator, average, value, _ in estimates}
    assert len(values) == 2 * 3 * 3
    assert values["challenger", "trimmed_ips", "cumulative"] == pytest.approx(used["trimmed"])
    assert values["logging", "ips", "latest"] == pytest.approx(used["latest"])


def test_a_new_interval_and_a_new_rule_are_chosen_by_their_names(used: dict[str, object]) -> None:
    estimates = used["estimates"]
    assert isinstance(estimates, list)
    assert {kind for _, _, average, _, kind in estimates if average == "cumulative"} == {"chebyshev"}
    assert used["rules"] == ["now"]


def test_a_new_source_is_opened_and_described_by_its_settings(used: dict[str, object]) -> None:
    assert used["source"] == ["1 messages of the configuration", 1]
