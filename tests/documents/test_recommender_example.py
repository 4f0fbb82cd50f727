"""Run the example recommender: its log agrees with what it prints, and has the values of its policies."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import streameval as se
from support.paths import ROOT
from support.scripts import importable

EXAMPLE = ROOT / "examples" / "recommender"
EVENTS = 20_000


@pytest.fixture(scope="module")
def recommender() -> Iterator[ModuleType]:
    with importable(EXAMPLE):
        yield import_module("recommender")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return its standard output."""
    path = tmp_path_factory.mktemp("log") / "log.ndjson"
    with path.open("wb") as file:
        command = [sys.executable, str(EXAMPLE / "recommender.py"), "--events", str(EVENTS)]
        subprocess.run(command, stdout=file, check=True, timeout=120)
    return path


@pytest.fixture(scope="module")
def events(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.slow
def test_items_are_drawn_as_often_as_in_the_log(events: list[dict[str, Any]], recommender: ModuleType) -> None:
    for number, item in enumerate(recommender.NAMES):
        shown = sum(event["action"] == item for event in events) / EVENTS
        logged = sum(event["propensities"][number] for event in events) / EVENTS
        assert abs(shown - logged) < 4 * (logged / EVENTS) ** 0.5


@pytest.mark.slow
def test_no_item_is_shown_with_less_than_the_floor(events: list[dict[str, Any]], recommender: ModuleType) -> None:
    floor = recommender.EXPLORATION / len(recommender.NAMES)
    assert min(min(event["propensities"]) for event in events) > floor


@pytest.mark.slow
def test_every_candidate_is_asked_about_every_decision(events: list[dict[str, Any]], recommender: ModuleType) -> None:
    for event in events:
        assert list(event["policies"]) == list(recommender.CANDIDATES)
        assert all(abs(sum(chances) - 1) < 1e-9 for chances in event["policies"].values())
    assert len({event["event_id"] for event in events}) == EVENTS


@pytest.mark.slow
def test_its_true_values_lie_in_the_intervals(log: Path, recommender: ModuleType) -> None:
    evaluator = se.Evaluator(
        candidates=list(recommender.CANDIDATES), averages=[se.Cumulative()], estimators=[se.SNIPS()]
    )
    moments = []
    for batch in se.read_events(log):
        evaluator.update(batch)
        moments += list(batch.timestamp)
    for name, policy in recommender.CANDIDATES.items():
        truth = sum(recommender.value(policy, moment) for moment in moments[::500]) / len(moments[::500])
        estimate = evaluator.report().get(name, "snips", "cumulative")
        assert estimate.interval.lower < truth < estimate.interval.upper
        assert estimate.interval.upper - estimate.interval.lower < 0.02


@pytest.mark.slow
def test_the_truth_is_what_happens_to_a_policy_that_is_shown(recommender: ModuleType) -> None:
    rng = random.Random(5)
    clicks = sum(recommender.visit(0.0, rng)["reward"] for _ in range(20_000)) / 20_000
    assert clicks == pytest.approx(recommender.value(recommender.production, 0.0), abs=0.006)


def test_most_people_want_something_else_after_a_while(recommender: ModuleType) -> None:
    best = {
        max(recommender.GENRES, key=dict(zip(recommender.GENRES, recommender.tastes(moment), strict=True)).__getitem__)
        for moment in (0.0, recommender.PERIOD / 3, recommender.PERIOD * 2 / 3)
    }
    assert best == set(recommender.GENRES)
