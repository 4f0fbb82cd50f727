"""Measure the cost of an event after decoding, as rewards, candidates, estimators and windows grow."""

from __future__ import annotations

import numpy as np
from loop import FOUR
from measuring import Benchmark, Ratio, updating
from memory_source import POLL

from streameval import IPS, Cumulative, Evaluator, EventBatch, Window


def batches(events: int, candidates: int = 10, rewards: int = 1, seed: int = 20190211) -> list[EventBatch]:
    """Make events with each candidate's probability of the action, and all rewards. Every second reward is 0 or 1."""
    rng = np.random.default_rng(seed)
    propensity, names = rng.uniform(0.02, 0.9, events), names_of(candidates)
    target = np.minimum(rng.random((candidates, events)) * 2 * propensity, 1.0)
    earned = (rng.random((rewards, events)) < 0.1) * np.where(np.arange(rewards) % 2, 0.5, 1.0)[:, None]
    earned[1::2] *= rng.random((rewards // 2, events)) + 1.0
    timestamp = 1574553634 + np.arange(events) / 1000
    return [
        EventBatch.from_arrays(
            reward=earned[0, rows],
            propensity=propensity[rows],
            policies=dict(zip(names, target[:, rows], strict=True)),
            timestamp=timestamp[rows],
            rewards={
                name: column[rows] for name, column in zip(limits(rewards), earned, strict=True) if name != "goal"
            },
        )
        for rows in (slice(first, first + POLL) for first in range(0, events, POLL))
    ]


def names_of(candidates: int) -> list[str]:
    return [f"cand-{number}" for number in range(candidates)]


def limits(rewards: int) -> dict[str, dict[str, float]]:
    return {name: {"max": 1.0} for name in ("goal", *(f"reward-{number}" for number in range(1, rewards)))}


def benchmark(events: int = 24_000) -> Benchmark:
    ten, five, hundred = batches(events), batches(events, rewards=5), batches(events // 4, candidates=100)
    names, many = Evaluator(names_of(10)), Evaluator(names_of(100))

    def windowed(tau: int) -> Evaluator:
        return Evaluator(names_of(10), averages=[Cumulative(), Window(tau=tau)])

    works = {
        "10 candidates": updating(names, ten),
        "5 rewards": updating(Evaluator(names_of(10), rewards=limits(5)), five),
        "100 candidates": updating(many, hundred),
        "ips on cumulative": updating(Evaluator(names_of(10), [IPS()], [Cumulative()]), ten),
        "four estimators on cumulative": updating(Evaluator(names_of(10), FOUR, [Cumulative()]), ten),
        **{f"window of {tau:.0e} events": updating(windowed(tau), ten) for tau in (1_000, 10_000, 10_000_000)},
    }
    ratios = [
        Ratio("5 rewards", "10 candidates", 1.8),
        Ratio("100 candidates", "10 candidates", 6.0),
        Ratio("four estimators on cumulative", "ips on cumulative"),
        Ratio("window of 1e+03 events", "window of 1e+04 events"),
        Ratio("window of 1e+07 events", "window of 1e+04 events", 1.1),
    ]
    sizes = {
        "state of 10 candidates": (lambda: names.full_bytes / 1e6, None),
        "state of 100 candidates": (lambda: many.full_bytes / 1e6, 60.0),
    }
    return Benchmark("After decoding, as the configuration grows", works, ratios, sizes)
