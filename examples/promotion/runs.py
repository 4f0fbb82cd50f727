"""Runs on several processes, each stored on completion; stored runs are not repeated."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from aa_streams import KINDS, LongOutcome, Outcome, follow, follow_long
from errors import FIRST_SEED, ErrorScores, error_scores
from experiment import RULES, watch
from scoring import Run, Score, score
from worlds import scene

from streameval.simulation import DriftKind

Line = TypeVar("Line", bound=msgspec.Struct)
Job = TypeVar("Job")


class Store(Generic[Line]):
    """Lines of JSON in a file."""

    def __init__(self, path: Path, kind: type[Line]) -> None:
        self.path, self.kind = path, kind

    def read(self) -> list[Line]:
        """All lines, without a last one that was truncated by an interruption."""
        return [msgspec.json.decode(line, type=self.kind) for line in self._whole().splitlines()]

    def add(self, some: Iterable[Line]) -> None:
        """Append lines, replacing a truncated last one."""
        with self.path.open("ab") as file:
            file.truncate(len(self._whole()))
            file.write(b"".join(msgspec.json.encode(each) + b"\n" for each in some))

    def _whole(self) -> bytes:
        return b"".join(self.path.read_bytes().rpartition(b"\n")[:2]) if self.path.exists() else b""


def missing_runs(
    store: Store[Score], world: str, settings: Iterable[DriftKind], seeds: Iterable[int], events: int
) -> list[tuple[str, Run]]:
    """Runs that are not stored yet, setting by setting; a run is stored as a whole or not at all."""
    rules = Counter((each.world, each.setting, each.seed, each.events) for each in store.read())
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
    """A/A streams that are not stored yet."""
    done = {(each.weights, each.seed, each.events) for each in store.read()}
    jobs = [(kind, seed, events) for seed in range(streams) for kind in KINDS]
    return [job for job in jobs if job not in done]


def perform_stream(job: tuple[str, int, int]) -> list[Outcome]:
    """Run one A/A stream with all its candidates."""
    kind, seed, events = job
    return [follow(kind, seed, events=events)]


def missing_long(store: Store[LongOutcome], streams: int) -> list[tuple[str, str, int]]:
    """Long A/A streams that are not stored yet."""
    done = {(each.weights, each.rewards, each.seed) for each in store.read()}
    jobs = [(kind, rewards, seed) for seed in range(streams) for kind in KINDS for rewards in ("still", "waving")]
    return [job for job in jobs if job not in done]


def perform_long(job: tuple[str, str, int]) -> list[LongOutcome]:
    """Run one long A/A stream."""
    return [follow_long(*job)]


def missing_errors(
    store: Store[ErrorScores], world: str, settings: Iterable[DriftKind], seeds: int, events: int
) -> list[tuple[str, DriftKind, int, int]]:
    """Runs without stored errors, on separate seeds."""
    done = {(each.world, each.setting, each.seed, each.events) for each in store.read()}
    jobs = [(world, setting, FIRST_SEED + seed, events) for setting in settings for seed in range(seeds)]
    return [job for job in jobs if (scene(world).name, *job[1:]) not in done]


def perform_errors(job: tuple[str, DriftKind, int, int]) -> list[ErrorScores]:
    """Measure the errors of one run."""
    return [error_scores(*job)]


def perform_all(
    work: Callable[[Job], list[Line]], jobs: Sequence[Job], store: Store[Line], processes: int, done: Callable[[], None]
) -> None:
    """Run all jobs, storing each on completion; `done` is called with every one."""
    for threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(threads, "1")  # one core per run: new processes read this when they load numpy
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for finished in as_completed([pool.submit(work, job) for job in jobs]):
            known = store.read()  # runs are deterministic: lines stored before an interruption are skipped
            store.add([line for line in finished.result() if line not in known])
            done()
