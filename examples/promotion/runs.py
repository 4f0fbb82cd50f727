"""Run the study in several processes, and store each run when it is complete. Stored runs are not repeated."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from aa_streams import CORRELATIONS, FAMILIES, FEW, KINDS, LongOutcome, Outcome, follow, follow_long
from days import DayRun, day_jobs, day_run
from errors import FIRST_SEED, ErrorScores, error_scores
from experiment import RULES, watch
from scoring import Run, Score, score
from worlds import scene

from streameval.simulation import DriftKind

Line = TypeVar("Line", bound=msgspec.Struct)
Job = TypeVar("Job")


class Store(Generic[Line]):
    """Store lines of JSON in a file."""

    def __init__(self, path: Path, kind: type[Line]) -> None:
        self.path, self.kind = path, kind

    def read(self) -> list[Line]:
        """Return all lines, without a last line that an interruption truncated."""
        return [msgspec.json.decode(line, type=self.kind) for line in self._whole().splitlines()]

    def add(self, lines: Iterable[Line]) -> None:
        """Append lines, and replace a truncated last line."""
        with self.path.open("ab") as file:
            file.truncate(len(self._whole()))
            file.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))

    def _whole(self) -> bytes:
        return b"".join(self.path.read_bytes().rpartition(b"\n")[:2]) if self.path.exists() else b""


def missing_runs(
    store: Store[Score], world: str, settings: Iterable[DriftKind], seeds: Iterable[int], events: int
) -> list[tuple[str, Run]]:
    """Return the runs that are not stored yet, setting by setting. A run without scores of all rules is repeated."""
    rules = Counter((score.world, score.setting, score.seed, score.events) for score in store.read())
    done = {run for run, count in rules.items() if count == len(RULES)}
    runs = [Run(scene(world).name, setting, seed, events) for setting in settings for seed in seeds]
    return [(world, run) for run in runs if (run.world, run.setting, run.seed, run.events) not in done]


def perform(job: tuple[str, Run]) -> list[Score]:
    """Run all rules once."""
    world_name, run = job
    stage = scene(world_name)
    world = stage.make()
    drift = stage.drift(run.setting, world)
    stretches = watch(world, drift, run.events, run.seed)
    return [score(run, rule, stretches, world, drift) for rule in RULES]


def missing_streams(store: Store[Outcome], streams: int, events: int) -> list[tuple[str, int, int]]:
    """Return the A/A streams that are not stored yet."""
    done = {(outcome.weights, outcome.seed, outcome.events) for outcome in store.read()}
    jobs = [(kind, seed, events) for seed in range(streams) for kind in KINDS]
    return [job for job in jobs if job not in done]


def perform_stream(job: tuple[str, int, int]) -> list[Outcome]:
    """Run one A/A stream with all its candidates."""
    kind, seed, events = job
    return [follow(kind, seed, events=events)]


def missing_long(store: Store[LongOutcome], streams: int, tilted: int) -> list[tuple[str, str, int, int]]:
    """Return the long A/A streams that are not stored yet.

    Args:
        store: The store.
        streams: Number of streams of each kind with independent weights.
        tilted: Number of streams of each correlation and number of candidates.
    """
    done = {(outcome.weights, outcome.rewards, outcome.candidates, outcome.seed) for outcome in store.read()}
    kinds = [(kind, rewards, FEW) for kind in KINDS for rewards in ("still", "waving")]
    jobs = [(*kind, seed) for seed in range(streams) for kind in kinds]
    real = [(kind, "still", candidates) for candidates in FAMILIES for kind in CORRELATIONS]
    jobs += [(*kind, seed) for seed in range(tilted) for kind in real]
    return [job for job in jobs if job not in done]


def perform_long(job: tuple[str, str, int, int]) -> list[LongOutcome]:
    """Run one long A/A stream."""
    return [follow_long(*job)]


def missing_errors(
    store: Store[ErrorScores], world: str, settings: Iterable[DriftKind], seeds: int, events: int
) -> list[tuple[str, DriftKind, int, int]]:
    """Return the runs without stored errors, on separate seeds."""
    done = {(score.world, score.setting, score.seed, score.events) for score in store.read()}
    jobs = [(world, setting, FIRST_SEED + seed, events) for setting in settings for seed in range(seeds)]
    return [job for job in jobs if (scene(world).name, *job[1:]) not in done]


def perform_errors(job: tuple[str, DriftKind, int, int]) -> list[ErrorScores]:
    """Measure the errors of one run."""
    return [error_scores(*job)]


def missing_days(store: Store[DayRun], runs: int) -> list[tuple[str, int]]:
    """Return the runs with days that are not stored yet, all worlds of a seed before the next seed."""
    done = {(run.world, run.seed) for run in store.read()}
    return [job for job in day_jobs(runs) if job not in done]


def perform_days(job: tuple[str, int]) -> list[DayRun]:
    """Run one world with days once."""
    return [day_run(*job)]


def perform_all(
    work: Callable[[Job], list[Line]], jobs: Sequence[Job], store: Store[Line], processes: int, done: Callable[[], None]
) -> None:
    """Perform all jobs, and store each when it is complete.

    Args:
        work: Performs a job.
        jobs: What to perform.
        store: Receives the results.
        processes: Number of processes.
        done: Called after each job.
    """
    for threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(threads, "1")  # one core per run: new processes read this when they load numpy
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for finished in as_completed([pool.submit(work, job) for job in jobs]):
            stored = store.read()  # runs are deterministic: lines stored before an interruption are skipped
            store.add([line for line in finished.result() if line not in stored])
            done()
