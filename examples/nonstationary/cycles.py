"""Follow averages in worlds with days and weeks, in which the true value has a cycle by the clock."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from baselines import Batch, Phase, forecast, opfv
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from streameval import AdaptiveDecay, AdaptiveWindow, Decay, Evaluator, EventBatch, Mixture, Window
from streameval.ope.core import AnyAverage

Floats = NDArray[np.float64]

RUNS, DAYS, PER_DAY, DAY = 10, 14, 50_000, 24
LOOKED_AT = 4
"""The first day on which estimates are compared with the truth, at the end of each of its hours."""
MONDAY = 1_795_392_000.0
"""The Monday on which streams start, at midnight UTC."""
BASE, ACTIONS = np.array([0.16, 0.14, 0.12, 0.1]), 4
STRENGTH = np.array([1.6, 1.2, 0.8, 0.4])
"""How strongly each action follows the cycle."""
CANDIDATE = np.array([0.55, 0.15, 0.15, 0.15])

HOUR = np.arange(DAYS * DAY)
SINE = np.sin(2 * np.pi * HOUR / DAY)
PEAK = np.exp(-(((HOUR % DAY - 20) / 1.5) ** 2) / 2)
WEEKEND = np.where(HOUR // DAY % 7 >= 5, 0.7 + np.exp(-(((HOUR % DAY - 12) / 1.5) ** 2) / 2), PEAK)
CYCLES: Mapping[str, Floats] = {
    "sine": 0.026 * SINE,
    "evening peak": 0.05 * PEAK,
    "weekends": 0.03 * WEEKEND,
    "random days": 0.05 * PEAK,
    "gaps": 0.05 * PEAK,
    "tenfold traffic": 0.05 * PEAK,
    "no cycle": 0.0 * SINE,
}
"""What an average action adds to its mean reward in each hour."""

AVERAGES: list[AnyAverage] = [
    Window(tau=10_000),
    Decay(alpha=0.9999),
    AdaptiveWindow(objective="published", name="adaptive_window, published"),
    AdaptiveWindow(),
    AdaptiveDecay(),
    Mixture(),
    Mixture(seasonal="24h", name="mixture, seasonal 24h"),
]


BASELINES = ("opfv, phase of the day", "prognosticator, ols", "prognosticator, wls")


class Hour(NamedTuple):
    """Hold the events of an hour, and the mean rewards of the actions at its end.

    Args:
        place: Time of the events in the hour, from 0 to 1.
        action: Actions of the events.
        reward: Rewards of the events.
        after: Mean reward of each action at the end of the hour.
    """

    place: Floats
    action: NDArray[np.int64]
    reward: Floats
    after: Floats


class CycleScore(msgspec.Struct, frozen=True):
    """Hold the scores of an average in one run, for the value of one candidate.

    Args:
        world: Name of the world.
        seed: Seed of the run.
        average: Name of the average.
        mse: Mean squared error over all looks.
        coverage: Share of the looks at which the interval holds the present value, None without an interval.
    """

    world: str
    seed: int
    average: str
    mse: float
    coverage: float | None


def traffic(world: str) -> NDArray[np.int64]:
    """Return the number of events of each hour: more in the evening, none in some hours, or ten times as many."""
    share = 1.0 + 0.6 * np.sin(2 * np.pi * (HOUR - 14) / DAY)
    if world == "gaps":
        share[(HOUR // DAY % 2 == 1) & (HOUR % DAY >= 8) & (HOUR % DAY < 14)] = 0.0
    if world == "tenfold traffic":
        share[DAYS * DAY // 2 :] *= 10.0
    return np.asarray(np.round(PER_DAY / DAY * share), dtype=np.int64)


def stream(world: str, seed: int) -> Iterator[Hour]:
    """Yield the hours of a stream."""
    random = np.random.default_rng([36, list(CYCLES).index(world), seed])
    level = random.normal(0.0, 0.01, (DAYS, ACTIONS)) if world == "random days" else np.zeros((DAYS, ACTIONS))
    means = np.clip(BASE + CYCLES[world][:, None] * STRENGTH + level.repeat(DAY, axis=0), 0.0, 1.0)
    for hour, count in enumerate(traffic(world).tolist()):
        place = np.sort(random.random(count))
        action = random.integers(ACTIONS, size=count)
        before, after = means[hour], means[min(hour + 1, len(means) - 1)]
        mean = before[action] + place * (after - before)[action]
        yield Hour(place, action, (random.random(count) < mean).astype(float), after)


def follow(world: str, seed: int) -> list[CycleScore]:
    """Run all averages on one stream."""
    evaluator = Evaluator(["candidate"], ["ips"], AVERAGES, drift=None, promotion=None)
    errors: list[list[float]] = []
    covered: list[list[bool]] = []
    for hour, (place, action, reward, after) in enumerate(stream(world, seed)):
        evaluator.update(
            EventBatch.from_arrays(
                reward=reward,
                propensity=np.full(len(place), 1 / ACTIONS),
                policies={"candidate": CANDIDATE[action]},
                timestamp=MONDAY + 3600.0 * (hour + place),
            )
        )
        if len(place) and hour >= DAY * LOOKED_AT:
            rows = [row for row in evaluator.report().estimates if row.policy == "candidate"]
            truth = float(CANDIDATE @ after)
            errors.append([float(row.value or np.nan) - truth for row in rows])
            covered.append([(row.lower or 0.0) <= truth <= (row.upper or 1.0) for row in rows])
    coverage = np.array(covered).mean(axis=0).tolist()
    return _scored(world, seed, [average.label for average in AVERAGES], errors, coverage)


def follow_baselines(world: str, seed: int) -> list[CycleScore]:
    """Run the baselines on the stream that the averages see.

    The feature of a time in OPFV is the nearest full hour of the day, and its model is the mean reward of each action.
    The forecasts regress on hours, and predict the next one.
    """
    everything, phases = Phase(ACTIONS, 1), [Phase(ACTIONS, 1) for _ in range(DAY)]
    mass, total, errors = list[Floats](), list[Floats](), list[list[float]]()
    offered = np.append(1.0, CANDIDATE)[None]
    for hour, (place, action, reward, after) in enumerate(stream(world, seed)):
        logged, weight = np.insert(np.eye(ACTIONS)[action], 0, 1.0, axis=1), ACTIONS * CANDIDATE[action][:, None]
        for late in (False, True):
            half = (place >= 0.5) == late
            batch = Batch(reward[half], weight[half], logged[half], offered)
            for phase in (everything, phases[(hour + late) % DAY]):
                phase.add(batch)
        mass.append(weight.sum(axis=0))
        total.append(reward @ weight)
        if len(place) and hour >= DAY * LOOKED_AT:
            counts = traffic(world)[: hour + 1, None].astype(float)
            values = (
                opfv(phases[(hour + 1) % DAY], everything, robust=False),
                forecast(counts, np.array(total)),
                forecast(np.array(mass), np.array(total)),
            )
            errors.append([float(value[0] - CANDIDATE @ after) for value in values])
    return _scored(world, seed, BASELINES, errors, [None] * len(BASELINES))


def _scored(
    world: str, seed: int, names: Sequence[str], errors: Sequence[Sequence[float]], coverage: Sequence[float | None]
) -> list[CycleScore]:
    mse = (np.array(errors) ** 2).mean(axis=0)
    return [
        CycleScore(world, seed, name, float(f"{error:.4g}"), None if share is None else float(f"{share:.4g}"))
        for name, error, share in zip(names, mse, coverage, strict=True)
    ]


def stored(path: Path) -> list[CycleScore]:
    """Read the scores of all complete lines."""
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return [msgspec.json.decode(line, type=CycleScore) for line in whole.splitlines()]


def rows_of(scores: Sequence[CycleScore]) -> dict[tuple[str, str], tuple[float, float | None]]:
    """Return the mean squared error and the coverage by world and average, over all runs."""
    rows = {}
    for key in dict.fromkeys((score.world, score.average) for score in scores):
        group = [score for score in scores if (score.world, score.average) == key]
        shares = [score.coverage for score in group if score.coverage is not None]
        rows[key] = float(np.mean([score.mse for score in group])), float(np.mean(shares)) if shares else None
    return rows


def table_of(scores: Sequence[CycleScore]) -> str:
    """Return the table: errors relative to the mixture, and coverage."""
    rows, worlds = rows_of(scores), list(dict.fromkeys(score.world for score in scores))
    lines = [["average", *worlds], ["---"] * (1 + len(worlds))]
    for name in dict.fromkeys(score.average for score in scores):
        cells = [(rows[world, name], rows[world, "mixture"][0]) for world in worlds]
        texts = [
            f"{mse / mixture:.2f}" + ("" if coverage is None else f", {coverage:.3f}")
            for (mse, coverage), mixture in cells
        ]
        lines.append([name, *texts])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def run_all(runs: int, processes: int, path: Path) -> None:
    """Run and store the missing runs, with a progress bar."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    done = {(score.world, score.seed, score.average) for score in stored(path)}
    jobs = [
        (job, world, seed)
        for job, name in ((follow, AVERAGES[0].label), (follow_baselines, BASELINES[0]))
        for seed in range(runs)
        for world in CYCLES
        if (world, seed, name) not in done
    ]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool, path.open("ab") as file:
        finished = as_completed([pool.submit(job, world, seed) for job, world, seed in jobs])
        for each in track(finished, "runs", len(jobs), console=Console(stderr=True)):
            file.write(b"".join(msgspec.json.encode(score) + b"\n" for score in each.result()))
            file.flush()
