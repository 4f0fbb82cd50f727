"""Run the example recommender: its log agrees with what it prints, and has the values of its policies."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import streameval as se
from streameval.common.text import parse_duration
from streameval.config.model import Config
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


def test_a_candidate_that_is_better_at_the_start_of_the_day_loses_over_the_day(recommender: ModuleType) -> None:
    moments = [recommender.PERIOD * part / 60 for part in range(60)]
    day = {
        policy.__name__: sum(recommender.value(policy, moment) for moment in moments) / len(moments)
        for policy in (recommender.production, recommender.personal, recommender.bold)
    }
    assert recommender.value(recommender.bold, 0.0) > recommender.value(recommender.production, 0.0)
    assert day == pytest.approx({"production": 0.057, "personal": 0.093, "bold": 0.050}, abs=0.0006)


@pytest.mark.slow
def test_after_one_day_the_rule_of_the_full_stack_promotes_the_winner_alone(recommender: ModuleType) -> None:
    config = Config.load(ROOT / "deploy" / "compose" / "streameval.yaml", {})
    assert isinstance(config.promotion, se.Promotion)
    assert parse_duration(config.promotion.period) == recommender.PERIOD
    rate, decoder, evaluator = 30.0, config.event_format(), config.evaluator()
    visits = recommender.visits(1_767_225_700.0, rate, 1)
    events = int(1.05 * rate * recommender.PERIOD)
    for _ in range(0, events, 1000):
        evaluator.update(decoder.decode_batch([json.dumps(visit).encode() for visit in islice(visits, 1000)]))
    decisions = {decision.policy: decision.promotable for decision in evaluator.report().promotion if decision.decides}
    assert decisions == {"personal": True, "bold": False}


def test_most_people_want_something_else_after_a_while(recommender: ModuleType) -> None:
    best = {
        max(recommender.GENRES, key=dict(zip(recommender.GENRES, recommender.tastes(moment), strict=True)).__getitem__)
        for moment in (0.0, recommender.PERIOD / 3, recommender.PERIOD * 2 / 3)
    }
    assert best == set(recommender.GENRES)
