"""Check the stored results of the studies of objectives in `examples/safe_exploration`, and run a small one of each."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest

from support.paths import ROOT
from support.scripts import importable

EXAMPLE = ROOT / "examples" / "safe_exploration"
SEEDS = 20


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    with importable(EXAMPLE):
        yield import_module("objectives")


@pytest.mark.parametrize("objective", ["ips", "snips", "dr", "cab"])
def test_estimates_are_true_while_each_objective_learns_to_the_accuracy_that_is_wanted(
    study: ModuleType, objective: str
) -> None:
    runs = [run for run in study.stored("objectives") if run.candidate == objective]
    assert [(run.seed, run.events) for run in runs] == [(seed, 200_000) for seed in range(SEEDS)]
    assert sum(run.errors <= 3 for run in runs) >= 19
    assert sum(run.covered for run in runs) >= 19
    assert sum(run.accuracy >= 0.92 for run in runs) >= (19 if objective == "cab" else 20)
    assert np.mean([run.value for run in runs]) >= 0.92


def test_longer_steps_end_lower_in_some_runs(study: ModuleType) -> None:
    runs = study.stored("longer_steps")
    assert [(run.seed, run.candidate) for run in runs] == [(s, name) for s in range(SEEDS) for name in study.CANDIDATES]
    assert min(run.accuracy for run in runs) < 0.92


def test_the_digit_that_the_lowest_run_gave_up_comes_back(study: ModuleType) -> None:
    lowest = min(study.stored("objectives"), key=lambda run: run.accuracy)
    assert (lowest.candidate, lowest.seed) == ("cab", study.GAVE_UP)
    later = study.stored("more_events")
    assert [(run.seed, run.candidate, run.events) for run in later] == [
        (study.GAVE_UP, name, study.MORE_EVENTS) for name in study.CANDIDATES
    ]
    assert min(run.accuracy for run in later) >= 0.92


def test_the_penalty_of_poem_is_better_on_logs_with_large_weights(study: ModuleType) -> None:
    runs = study.stored("large_weights")
    assert len(runs) == SEEDS
    assert min(run.largest for run in runs) > 500
    assert sum(run.poem > run.ips for run in runs) >= 15


def test_a_challenger_that_forgets_follows_a_world_that_moves(study: ModuleType) -> None:
    ends, runs = import_module("objectives_summary").ends, study.stored("moving")
    for objective in ("ips", "dr"):
        forgetting, sure = (ends(runs, name) for name in (f"{objective}, forgets", objective))
        assert len(forgetting) == SEEDS
        assert (forgetting > sure).sum() >= 15
        assert forgetting.mean() > 0.6
    assert (ends(runs, "dr, forgets") > ends(runs, "frozen")).all()


def test_frozen_copies_are_what_the_candidate_was_and_are_retired_when_two_newer_ones_are_there(
    study: ModuleType,
) -> None:
    copies, moving = study.stored("copies"), study.stored("moving")
    (course,) = (course for course in moving if (course.candidate, course.seed) == (study.COPIED, 0))
    looks = study.EVERY // study.LOOK
    assert [copy.number for copy in copies] == list(range(1, 1 + len(course.values) // looks))
    for copy in copies:
        assert copy.values[0] == course.values[looks * copy.number - 1]
        assert len(copy.values) == 1 + min(study.KEEP * looks, len(course.values) - looks * copy.number)


@pytest.mark.slow
def test_each_objective_learns_a_part_and_is_estimated_well_in_a_short_run(study: ModuleType) -> None:
    for run in study.run_on_digits(100, events=30_000):
        assert run.errors <= 3
        assert run.covered
        assert run.weight == pytest.approx(1, abs=0.05)
        assert run.accuracy > run.production + 0.1


@pytest.mark.slow
def test_five_logs_with_large_weights_mislead_ips_more_than_poem(study: ModuleType) -> None:
    runs = [study.run_on_large_weights(seed) for seed in range(100, 105)]
    assert sum(run.poem > run.ips for run in runs) >= 4


@pytest.mark.slow
def test_one_moving_world_is_followed_by_a_challenger_that_forgets(study: ModuleType) -> None:
    ends, runs = import_module("objectives_summary").ends, study.run_on_moving_digits(100)
    assert ends(runs, "dr, forgets")[0] > ends(runs, "dr")[0] + 0.05
