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
    runs = [each for each in study.stored("objectives") if each.candidate == objective]
    assert [(each.seed, each.events) for each in runs] == [(seed, 200_000) for seed in range(SEEDS)]
    assert sum(each.errors <= 3 for each in runs) >= 19
    assert sum(each.covered for each in runs) >= 19
    assert sum(each.accuracy >= 0.92 for each in runs) >= (19 if objective == "cab" else 20)
    assert np.mean([each.value for each in runs]) >= 0.92


def test_longer_steps_end_lower_in_some_runs(study: ModuleType) -> None:
    runs = study.stored("longer_steps")
    assert [(each.seed, each.candidate) for each in runs] == [
        (s, name) for s in range(SEEDS) for name in study.CANDIDATES
    ]
    assert min(each.accuracy for each in runs) < 0.92


def test_the_digit_that_the_lowest_run_gave_up_comes_back(study: ModuleType) -> None:
    lowest = min(study.stored("objectives"), key=lambda each: each.accuracy)
    assert (lowest.candidate, lowest.seed) == ("cab", study.GAVE_UP)
    later = study.stored("more_events")
    assert [(each.seed, each.candidate, each.events) for each in later] == [
        (study.GAVE_UP, name, study.MORE_EVENTS) for name in study.CANDIDATES
    ]
    assert min(each.accuracy for each in later) >= 0.92


def test_the_penalty_of_poem_is_better_on_logs_with_large_weights(study: ModuleType) -> None:
    runs = study.stored("large_weights")
    assert len(runs) == SEEDS
    assert min(each.largest for each in runs) > 500
    assert sum(each.poem > each.ips for each in runs) >= 15


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
    (course,) = (each for each in moving if (each.candidate, each.seed) == (study.COPIED, 0))
    looks = study.EVERY // study.LOOK
    assert [each.number for each in copies] == list(range(1, 1 + len(course.values) // looks))
    for each in copies:
        assert each.values[0] == course.values[looks * each.number - 1]
        assert len(each.values) == 1 + min(study.KEEP * looks, len(course.values) - looks * each.number)


@pytest.mark.slow
def test_each_objective_learns_a_part_and_is_estimated_well_in_a_short_run(study: ModuleType) -> None:
    for each in study.run_on_digits(100, events=30_000):
        assert each.errors <= 3
        assert each.covered
        assert each.weight == pytest.approx(1, abs=0.05)
        assert each.accuracy > each.production + 0.1


@pytest.mark.slow
def test_five_logs_with_large_weights_mislead_ips_more_than_poem(study: ModuleType) -> None:
    runs = [study.run_on_large_weights(seed) for seed in range(100, 105)]
    assert sum(each.poem > each.ips for each in runs) >= 4


@pytest.mark.slow
def test_one_moving_world_is_followed_by_a_challenger_that_forgets(study: ModuleType) -> None:
    ends, runs = import_module("objectives_summary").ends, study.run_on_moving_digits(100)
    assert ends(runs, "dr, forgets")[0] > ends(runs, "dr")[0] + 0.05
