"""Test mixtures with a season: what must not change them, when they stay off, and what they forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streameval import Evaluator
from streameval.events import EventBatch
from streameval.ope.core import Mixture
from streameval.ope.estimators import IPS, SNIPS, StratifiedIPS
from streameval.ope.report import Estimate, Report
from support.seasonal_worlds import HOUR, MONDAY, World, look

BLOCK, PER_DAY = 20, 1_200
ESTIMATORS = [IPS(), SNIPS(), StratifiedIPS(threshold=1.5)]
AVERAGES = [Mixture(name="plain"), Mixture(name="day", seasonal="24h"), Mixture(name="week", seasonal="7d")]
NUMBERS = [name for name in Estimate.__struct_fields__ if name not in ("average", "details", "forecast")]


def stream(days: float, seed: int = 1, noise: float = 0.1) -> EventBatch:
    """Draw events with a daily cycle. The second candidate lacks some of them."""
    rng, count = np.random.default_rng(seed), int(days * PER_DAY)
    times = np.arange(count) * 24 * HOUR / PER_DAY
    weights = rng.choice([0.5, 1.0, 2.0], (2, count), p=[0.5, 0.25, 0.25])
    reward = 0.5 + 0.3 * np.sin(2 * np.pi * times / (24 * HOUR)) + noise * rng.uniform(-1, 1, count)
    some = np.where(rng.random(count) < 0.1, np.nan, weights[1] / 4)
    policies = {"one": weights[0] / 4, "two": some}
    propensity = np.full(count, 0.25)
    return EventBatch.from_arrays(reward=reward, propensity=propensity, policies=policies, timestamp=MONDAY + times)


def evaluator(candidates: Sequence[str] = ("one", "two"), averages: Sequence[Mixture] = tuple(AVERAGES)) -> Evaluator:
    return Evaluator(list(candidates), ESTIMATORS, list(averages), block=BLOCK, drift=None, promotion="paired")


def after(events: EventBatch, **options: Any) -> Report:
    whole = evaluator(**options)
    whole.update(events)
    return whole.report()


def numbers(report: Report, average: str) -> list[list[Any]]:
    return [[getattr(row, name) for name in NUMBERS] for row in report.estimates if row.average == average]


def with_times(events: EventBatch, times: np.ndarray[Any, Any]) -> EventBatch:
    return replace(events, timestamp=times)


def irregular(events: EventBatch, seed: int = 2) -> EventBatch:
    """Disorder some times, lose others, and let a few clocks run ahead."""
    rng = np.random.default_rng(seed)
    times = events.timestamp + np.where(rng.random(len(events)) < 0.2, rng.uniform(-3 * HOUR, 0, len(events)), 0.0)
    times[rng.random(len(events)) < 0.01] += 1e7
    times[len(events) // 2 : len(events) // 2 + 3 * BLOCK] = np.nan
    return with_times(events, times)


@pytest.mark.parametrize("seed", range(3))
def test_cuts_and_restarts_change_no_number(seed: int) -> None:
    events, rng = irregular(stream(8.3, seed)), np.random.default_rng(seed)
    cut, start = evaluator(), 0
    while start < len(events):
        end = start + int(rng.choice([1, 7, 45, 400]))
        cut.update(events[start:end])
        start = end
        if rng.random() < 0.1:
            cut.report()
            cut = Evaluator.from_state(cut.state())
    assert cut.report() == after(events)


def test_blocks_before_the_first_lift_count_alike_one_by_one_and_together() -> None:
    """A self-normalised lift is unknown after one block, and this block is no part of its season."""
    events, options = stream(2.5), {"block": BLOCK, "drift": None, "promotion": None}
    whole, cut = (Evaluator(["one"], ["snips"], [Mixture(seasonal="24h")], **options) for _ in range(2))
    whole.update(events)
    for first in range(0, len(events), BLOCK):
        cut.update(events[first : first + BLOCK])
        cut.fold_pending()
    rows = [[row.details["lift_se"] for row in one.report().estimates if row.policy == "one"] for one in (whole, cut)]
    assert rows[0] == pytest.approx(rows[1], rel=1e-12)


@pytest.mark.parametrize("times", [np.nan, None])
def test_without_times_the_season_stays_off(times: float | None) -> None:
    events = stream(4)
    timestamp = np.full(len(events), np.nan)
    report = after(with_times(events, timestamp) if times is not None else timeless(events))
    for average in ("day", "week"):
        assert numbers(report, average) == numbers(report, "plain")
    assert not any(row.forecast for row in report.estimates)


def timeless(events: EventBatch) -> EventBatch:
    policies = dict(zip(events.policies, events.probabilities.T, strict=True))
    return EventBatch.from_arrays(reward=events.reward, propensity=events.propensity, policies=policies)


def test_the_plain_mixture_answers_while_events_have_lost_their_times() -> None:
    events = stream(4)
    times = events.timestamp.copy()
    times[-BLOCK:] = np.nan
    with_a_season, without = after(events), after(with_times(events, times))
    assert numbers(with_a_season, "day") != numbers(with_a_season, "plain")
    assert numbers(without, "day") == numbers(without, "plain")
    assert not any(row.forecast for row in without.estimates)


def test_a_season_needs_a_whole_period() -> None:
    events = stream(8.2)
    first_day, first_week, whole = (after(events[: int(days * PER_DAY)]) for days in (0.99, 6.9, 8.2))
    assert numbers(first_day, "day") == numbers(first_day, "plain")
    assert numbers(first_week, "week") == numbers(first_week, "plain")
    assert numbers(first_week, "day") != numbers(first_week, "plain")
    assert numbers(whole, "week") != numbers(whole, "plain")
    assert any(row.forecast for row in whole.estimates if row.average == "week")


def test_rewards_that_never_vary_have_no_season() -> None:
    report = after(replace(stream(4), reward=np.full(4 * PER_DAY, 0.5)))
    values = [[row.value for row in report.estimates if row.average == name] for name in ("plain", "day")]
    assert values[1] == pytest.approx(values[0], abs=1e-9)


@pytest.mark.parametrize("hour", [6, 15])
def test_the_value_and_its_forecasts_follow_the_cycle(hour: int) -> None:
    report = after(stream(6 + hour / 24))
    cycle = 0.5 + 0.3 * np.sin(2 * np.pi * (hour + np.arange(25)) / 24)
    plain, seasonal = (report.get("logging", "ips", name) for name in ("plain", "day"))
    assert plain is not None
    assert seasonal is not None
    assert abs(seasonal.value - cycle[0]) < min(0.03, abs(plain.value - cycle[0]))
    assert [forecast.ahead for forecast in seasonal.forecast] == [f"{ahead}h" for ahead in range(1, 25)]
    for forecast, truth in zip(seasonal.forecast, cycle[1:], strict=True):
        assert forecast.value == pytest.approx(truth, abs=0.04)
        assert forecast.lower <= truth <= forecast.upper


def test_hours_without_events_change_nothing() -> None:
    events = stream(6)
    hour = (events.timestamp - MONDAY) // HOUR
    report = after(EventBatch.concat([events[: int(np.sum(hour < 48))], events[int(np.sum(hour < 72)) :]]))
    row = report.get("logging", "ips", "day")
    assert row is not None
    assert row.value == pytest.approx(0.5, abs=0.05)
    assert len(row.forecast) == 24


def test_candidates_that_come_and_go_keep_their_numbers() -> None:
    events = stream(5)
    half, changing = len(events) // 2, evaluator(["one"])
    changing.update(events[:half])
    late = changing.change_candidates(evaluator(["one", "two"]).config)
    assert late is not None
    late.update(events[:half])
    changing.activate(late)
    changing.update(events[half:])
    both = changing.report()
    expected = {(row.policy, row.estimator): row for row in after(events).estimates if row.average == "day"}
    for row in both.estimates:
        if row.average == "day" and row.estimator != "snips":
            assert row.value == pytest.approx(expected[row.policy, row.estimator].value, rel=1e-9)
            assert len(row.forecast) == 24
    changing.change_candidates(evaluator(["two"]).config)
    left = changing.report()
    kept, alone = (
        {(row.estimator, row.average): row for row in report.estimates if row.policy == "two"}
        for report in (both, left)
    )
    for pair, row in kept.items():
        values = [[forecast.value for forecast in one.forecast] for one in (row, alone[pair])]
        assert [row.value, *values[0]] == pytest.approx([alone[pair].value, *values[1]], rel=1e-12)


def test_a_season_halves_the_error_in_a_daily_cycle() -> None:
    looks = look(World("sine", 0.05), days=7, per_day=20_000, seed=1)
    assert looks.relative_error() <= 0.6
    assert looks.coverage().min() > 0.9
