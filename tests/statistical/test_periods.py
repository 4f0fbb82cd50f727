"""Simulate decisions over whole periods by the hour: who starts, when, and for how long, in worlds with a known lift.

The unit of a lift is the standard error of its mean over one day. The loser has a large cycle of its own, which wins in
the evening, so that it is better than production for some hours of each day.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

import streameval as se
from streameval.ope.promotion.rules.phases import Period
from support.periods import (
    DAY,
    EVENING,
    SINE,
    TRAFFIC,
    WEEK,
    Run,
    Stream,
    balanced,
    first,
    follow,
    later,
)

Array = NDArray[np.float64]
LOSER, WINNER = 0, 1
AUTO = (DAY, WEEK)
MONDAY = 96
"""Hours from the start of a week of 1970, a Thursday, to Monday."""
MIDNIGHT = 1_795_737_600.0


def days(count: int) -> Array:
    """Return the usual traffic of some days."""
    return np.tile(TRAFFIC, count)


def cyclic(
    loser: float,
    winner: float,
    profile: Array,
    traffic: Array,
    start: int = 0,
    deviation: float = 0.0,
    runs: int = 40,
    periods: tuple[Period, ...] = (DAY,),
) -> Run:
    """Follow a loser with a cycle and a winner without one, with the deviation of days that differ."""
    rng = np.random.default_rng(0)
    hours = np.arange(len(traffic)) + start
    lift = np.tile([loser, winner], (len(traffic), runs, 1))
    lift[..., LOSER] += profile[hours % len(profile), None]
    lift += deviation * rng.standard_normal((hours[-1] // 24 + 1, runs, 2))[hours // 24]
    return follow(Stream(lift, traffic, start), rng, periods)


def gaps() -> Array:
    """Return traffic with a gap of six hours on every second day."""
    traffic = days(30).reshape(30, 24)
    traffic[1::2, 8:14] = 0.0
    return traffic.ravel()


PEAK, WAVE = balanced(EVENING), balanced(SINE)
WORLDS = {
    "evening peak, 60,000 events a day": (-2.7, 3.2, 27 * PEAK, days(30), 0),
    "evening peak, 150,000": (-4.0, 5.0, 35 * PEAK, days(30), 0),
    "high evening peak": (-2.7, 3.2, 40 * PEAK, days(30), 0),
    "sine, 50,000": (-2.5, 3.2, 16 * WAVE, days(14), 0),
    "sine, 200,000": (-5.0, 6.4, 33 * WAVE, days(30), 0),
    "sine, 1,000,000": (-11.0, 14.0, 73 * WAVE, days(30), 0),
    "gaps of 6 hours": (-2.7, 3.2, 27 * PEAK, gaps(), 0),
    "start at 15:00": (-2.7, 3.2, 27 * PEAK, np.roll(days(30), -15), 15),
    "tenfold traffic": (-2.7, 3.2, 27 * PEAK, days(30) * np.repeat([1.0, 10.0], [240, 480]), 0),
    "no cycle": (-6.4, 6.4, 0 * PEAK, days(30), 0),
}


@pytest.mark.parametrize(
    ("world", "periods"),
    [
        *(pytest.param(world, (DAY,), id=world) for world in WORLDS),
        pytest.param("gaps of 6 hours", AUTO, id="auto, gaps of 6 hours"),
        *(
            pytest.param(world, AUTO, id=f"auto, {world}", marks=pytest.mark.slow)
            for world in WORLDS
            if world != "gaps of 6 hours"
        ),
    ],
)
def test_no_loser_with_good_hours_starts_and_winners_start_soon(world: str, periods: tuple[Period, ...]) -> None:
    run = cyclic(*WORLDS[world], periods=periods)
    start = first(run.promotable[..., WINNER])
    assert not run.promotable[..., LOSER].any()
    assert run.worse[-1, :, LOSER].all()
    assert np.median(start) <= 2.5
    assert np.quantile(start, 0.9, method="higher") <= 4.0
    assert later(run.promotable[..., WINNER]).mean() >= 0.97
    if periods == AUTO:
        assert later(run.promotable[..., WINNER]).min() >= 0.95


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_day_of_23_or_25_hours_changes_nothing(shift: int) -> None:
    rng, runs, hours = np.random.default_rng(1), 40, np.arange(30 * 24)
    local = np.where(hours >= 240, hours - shift, hours) % 24
    lift = np.tile([-2.7, 3.2], (len(hours), runs, 1))
    lift[..., LOSER] += 27 * PEAK[local, None]
    run = follow(Stream(lift, TRAFFIC[local]), rng)
    assert not run.promotable[..., LOSER].any()
    assert later(run.promotable[..., WINNER]).mean() >= 0.97


def test_days_that_differ_delay_winners_and_start_few_losers() -> None:
    little = cyclic(-0.7, 2.0, 27 * PEAK, days(30), deviation=1.0)
    assert little.promotable[..., LOSER].any(axis=0).mean() <= 0.05
    assert np.median(first(little.promotable[..., WINNER])) <= 4.0
    assert later(little.promotable[..., WINNER]).mean() >= 0.97
    much = cyclic(-0.7, 2.0, 27 * PEAK, days(30), deviation=3.0, runs=100)
    assert much.promotable[..., LOSER].any(axis=0).mean() <= 0.08
    assert np.median(first(much.promotable[..., WINNER])) <= 16.0


@pytest.mark.parametrize("runs", [30, pytest.param(100, marks=pytest.mark.slow)])
def test_weeks_of_days_that_differ_start_few_losers_and_keep_winners(runs: int) -> None:
    little = cyclic(-0.7, 2.0, 27 * PEAK, days(30), deviation=1.0, runs=runs, periods=AUTO)
    assert little.promotable[..., LOSER].any(axis=0).mean() <= 0.05
    assert later(little.promotable[..., WINNER]).mean() >= 0.97
    much = cyclic(-0.7, 2.0, 27 * PEAK, days(30), deviation=3.0, runs=runs, periods=AUTO)
    assert much.promotable[..., LOSER].any(axis=0).mean() <= 0.08
    assert np.nanmean(later(much.promotable[..., WINNER])) >= 0.75


@pytest.mark.parametrize(
    ("candidates", "correlation"),
    [(1, 0.0), pytest.param(20, 0.0, marks=pytest.mark.slow), pytest.param(20, 0.5, marks=pytest.mark.slow)],
)
def test_few_streams_without_differences_have_a_verdict(candidates: int, correlation: float) -> None:
    lift = np.zeros((30 * 24, 100, candidates))
    run = follow(Stream(lift, days(30), correlation=correlation), np.random.default_rng(2))
    assert run.promotable.any(axis=(0, 2)).sum() <= 8
    assert run.worse.any(axis=(0, 2)).sum() <= 10


@pytest.mark.parametrize(("ratio", "length", "delay", "share"), [(2.0, 30, 3.5, 0.97), (1.0, 40, 11.0, 0.95)])
def test_weak_winners_start_as_soon_as_a_test_at_the_same_bound_allows(
    ratio: float, length: int, delay: float, share: float
) -> None:
    lift = np.tile([-ratio, ratio], (length * 24, 60, 1))
    lift += np.stack([20 * np.tile(WAVE, length), 10 * np.tile(WAVE, length)], axis=-1)[:, None]
    run = follow(Stream(lift, days(length)), np.random.default_rng(3))
    start = first(run.promotable[..., WINNER])
    assert not run.promotable[..., LOSER].any()
    assert np.isfinite(start).all()
    assert np.median(start) <= delay
    assert later(run.promotable[..., WINNER]).mean() >= share


@pytest.mark.parametrize(
    ("ratio", "off", "late", "worse"),
    [pytest.param(6.4, 0.15, 0.3, 1.5, id="200,000 events"), pytest.param(3.2, 0.5, 1.0, 2.5, id="50,000 events")],
)
def test_a_candidate_that_turns_bad_stops_soon(ratio: float, off: float, late: float, worse: float) -> None:
    rng, length, runs = np.random.default_rng(4), 24, 100
    hours, turns = np.arange(length * 24), rng.integers(10 * 24, 15 * 24, runs)
    sign = np.where(hours[:, None] < turns, 1.0, -1.0)
    lift = ratio * np.stack([sign, -sign], axis=-1) + ratio / 4 * np.tile(WAVE, length)[:, None, None]
    run = follow(Stream(lift, days(length)), rng)
    before = [run.promotable[turn - 24 : turn, index, 0].mean() for index, turn in enumerate(turns)]
    stops = [int(np.argmin(run.promotable[turn:, index, 0])) / 24 for index, turn in enumerate(turns)]
    sinks = first(np.where(hours[:, None] < turns, False, run.worse[..., 0])) - turns / 24
    assert np.mean(before) >= 0.97
    assert np.median(stops) <= off
    assert np.quantile(stops, 0.9) <= late
    assert np.median(sinks) <= worse
    sunk = np.maximum.accumulate(run.worse[..., 0] & (hours[:, None] >= turns), axis=0)
    assert not (run.promotable[..., 0] & sunk).any()


def weekend(start: int) -> tuple[Array, Array]:
    """Return the lifts and the traffic of six weeks: a loser that wins at weekends, and a winner that loses there."""
    hours = np.arange(42 * 24) + start
    base = np.where(hours // 24 % 7 >= 5, 10.0, -4.0) + 16 * WAVE[hours % 24]
    traffic = TRAFFIC[hours % 24]
    base -= (base * traffic)[:168].sum() / traffic[:168].sum()
    return np.stack([base - 3.0, 3.0 - base / 2], axis=-1), traffic


@pytest.mark.parametrize("start", [pytest.param(0, id="Monday"), pytest.param(120, id="Saturday")])
@pytest.mark.parametrize("periods", [pytest.param((WEEK,), id="7d"), pytest.param((DAY, WEEK), id="auto")])
def test_whole_weeks_see_through_weekends(start: int, periods: tuple[Period, ...]) -> None:
    lift, traffic = weekend(start)
    stream = Stream(np.repeat(lift[:, None], 20, axis=1), traffic, MONDAY + start)
    run = follow(stream, np.random.default_rng(5), periods)
    assert not run.promotable[168:, :, LOSER].any()
    assert run.promotable[8 * 24 :, :, WINNER].mean() >= 0.97
    if periods == (WEEK,):
        assert not run.promotable[:, :, LOSER].any()


def evening_log(seed: int, length: int) -> Iterator[se.EventBatch]:
    """Yield the hours of a log with three actions, 60,000 events a day.

    The loser favours an action that pays well in the evening and badly else: -6 % over the day. The winner earns 2 %
    more than production at all hours.
    """
    rng = np.random.default_rng(seed)
    share = TRAFFIC / TRAFFIC.sum()
    evening = float((share * EVENING).sum())
    for hour in range(24 * length):
        n = int(60_000 * share[hour % 24])
        high, mean = 0.239, 0.0921
        changing = high if EVENING[hour % 24] else (mean - evening * high) / (1.0 - evening)
        action = rng.integers(0, 3, n)
        reward = rng.random(n) < np.array([0.1, changing, 0.11])[action]
        yield se.EventBatch.from_arrays(
            reward=reward.astype(float),
            propensity=np.full(n, 1 / 3),
            policies={"loser": np.array([0.1, 0.8, 0.1])[action], "winner": np.array([0.1, 1 / 3, 17 / 30])[action]},
            timestamp=MIDNIGHT + 3600.0 * (hour + np.sort(rng.random(n))),
        )


def starts(seed: int, length: int) -> dict[tuple[str, str], float]:
    """Return the day on which each rule first promotes each candidate."""
    promotion = se.Promotion(rule=("periodic", "paired"))
    found = se.Evaluator(["loser", "winner"], ["stratified_ips"], ["mixture"], drift=None, promotion=promotion)
    for batch in evening_log(seed, length):
        found.update(batch)
    return {
        (decision.policy, decision.rule): (decision.first_timestamp - MIDNIGHT) / 86_400
        for decision in found.report().promotion
        if decision.first_timestamp is not None
    }


def test_in_the_evening_paired_promotes_a_loser_and_periodic_does_not() -> None:
    days_of_starts = starts(seed=0, length=4)
    assert ("loser", "paired") in days_of_starts
    assert ("loser", "periodic") not in days_of_starts
    assert 2.0 <= days_of_starts["winner", "periodic"] <= 3.2


@pytest.mark.slow
def test_thirty_logs_with_a_good_evening_promote_no_loser() -> None:
    draws = [starts(seed, length=5) for seed in range(1, 31)]
    assert not any(("loser", "periodic") in draw for draw in draws)
    assert sum(draw.get(("winner", "periodic"), np.inf) <= 3.2 for draw in draws) >= 25
