"""Check safe exploration on digits: the tables of its results, their safety, and a run that repeats a stored one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import msgspec
import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file, load_digits

from streameval import Learned
from streameval.ope.policies.policy_file import to_bytes
from support.documents import blocks
from support.paths import ROOT
from support.scripts import importable

EXAMPLE = ROOT / "examples" / "safe_exploration"


@pytest.fixture
def study() -> Iterator[ModuleType]:
    with importable(EXAMPLE):
        yield import_module("study")


def test_no_rule_with_a_bound_deployed_what_is_worse_than_the_baseline(study: ModuleType) -> None:
    runs = study.stored()
    assert {(run.rule, run.seed) for run in runs} == {(rule, seed) for rule in study.RULES for seed in study.SEEDS}
    for run in runs:
        assert all(deployment.value >= run.baseline for deployment in run.deployments)
        if run.rule in ("sea", "anytime"):
            assert all(deployment.value >= deployment.replaced for deployment in run.deployments)


def test_rules_deploy_in_this_order_in_most_seeds(study: ModuleType) -> None:
    summary, runs = import_module("summary"), study.stored()
    for one, other in summary.ORDER:
        firsts = [[summary.first(run) for run in summary.select_runs(runs, rule)] for rule in (one, other)]
        earlier = sum(a < b for a, b in zip(*firsts, strict=True))
        assert earlier > sum(a > b for a, b in zip(*firsts, strict=True)), (one, other)


def test_each_rule_ends_above_what_the_log_of_the_baseline_alone_teaches(study: ModuleType) -> None:
    summary, runs = import_module("summary"), study.stored()
    alone = np.mean([run.learned for run in summary.select_runs(runs, "never")])
    for rule in summary.SAFE:
        assert np.mean([run.served for run in summary.select_runs(runs, rule)]) > alone
        assert np.mean([run.learned for run in summary.select_runs(runs, rule)]) > alone + 0.04


def test_a_challenger_that_starts_from_the_baseline_is_deployed_earlier_and_safely(study: ModuleType) -> None:
    summary, runs, warm = import_module("summary"), study.stored(), study.stored(warm=True)
    assert {(run.rule, run.seed) for run in warm} == {(run.rule, run.seed) for run in runs}
    assert all(deployment.value >= run.baseline for run in warm for deployment in run.deployments)
    for rule in summary.SAFE:
        firsts = [[summary.first(run) for run in summary.select_runs(some, rule)] for some in (warm, runs)]
        assert max(firsts[0]) < np.inf
        assert all(early < late for early, late in zip(*firsts, strict=True)), rule
    (stored,) = (run for run in warm if (run.rule, run.seed) == ("bsea", 1))
    (first,) = import_module("loop").run("bsea", 1, stored.deployments[0].event, warm=True).deployments
    assert first == pytest.approx(stored.deployments[0], rel=1e-9)


def test_the_first_weights_choose_as_the_baseline(study: ModuleType) -> None:
    digits = import_module("digits")
    for seed in range(3):
        world = digits.Digits.prepared(seed)
        start = world.chosen_by(world.weights)
        assert np.array_equal(start.argmax(axis=1), world.baseline.argmax(axis=1))
        assert world.value(world.baseline) - 0.05 < world.value(start) <= world.value(world.baseline)


@pytest.mark.slow
def test_a_run_repeats_the_stored_one(study: ModuleType) -> None:
    (stored,) = (run for run in study.stored() if (run.rule, run.seed) == ("paired", 1))
    again = import_module("loop").run("paired", 1, 30_000)
    assert [deployment.event for deployment in again.deployments] == [
        deployment.event for deployment in stored.deployments if deployment[0] <= 30_000
    ]


def test_a_file_of_libsvm_takes_the_place_of_the_digits(study: ModuleType, tmp_path: Path) -> None:
    digits, (pixels, label) = import_module("digits"), load_digits(return_X_y=True)
    kept = label < 3
    dump_svmlight_file(pixels[kept], label[kept] + 1, str(tmp_path / "three.svm"))
    three = digits.Digits.prepared(0, tmp_path / "three.svm")
    assert (three.actions, set(three.label)) == (3, {0, 1, 2})
    assert 0.5 < three.value(three.baseline) <= 1
    run = import_module("loop").run("bsea", 0, 4_000, tmp_path / "three.svm")
    assert run.baseline == three.value(three.baseline)
    assert msgspec.json.decode(msgspec.json.encode(run), type=type(run)) == run


def test_the_loader_of_the_document_gives_the_probabilities_of_the_policy(tmp_path: Path) -> None:
    (loader,) = (block for block in blocks((EXAMPLE / "README.md").read_text()) if block.language == "python")
    namespace: dict[str, type] = {}
    exec(loader.text, namespace)
    weights, features = np.array([[1.0, -1.0], [0.5, 2.0]]), np.array([[0.3, 0.1], [0.2, -0.4]])
    path = tmp_path / "policy.npz"
    path.write_bytes(to_bytes(Learned(per_action=True, start_from="logging"), weights, 100))
    powers = np.exp([0.2, -0.7]) * [0.25, 0.75]
    probabilities = namespace["Policy"](path).probabilities(features, [0.25, 0.75])
    assert probabilities == pytest.approx(powers / powers.sum(), rel=1e-12)


def test_propensities_are_overfitted_as_stored(study: ModuleType) -> None:
    stored = json.loads((EXAMPLE / "results" / "overfitting.json").read_text())
    whole, stopped = stored["whole"], stored["stopped"]
    assert whole["training"] > whole["truth"] + 0.2
    assert whole["weight"] < 0.8 < 1 - abs(stored["passes"][0]["weight"] - 1)
    assert stopped["training"] - stopped["truth"] < whole["training"] - whole["truth"]
