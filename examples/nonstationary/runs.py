"""Run the experiment in several processes, and store one line for each score. Stored runs are not repeated."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import msgspec
from baselines import Entrant
from experiment import Score, follow, scores
from worlds import scene

from streameval.simulation import DriftKind


class Task(NamedTuple):
    """Describe one run: the contestants and their stream."""

    world: str
    setting: DriftKind
    seed: int
    events: int
    contestants: tuple[Entrant, ...]


class Store:
    """Store scores in a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Score]:
        """Return all scores, without a last line that an interruption truncated."""
        lines = self._whole().splitlines()
        return msgspec.json.decode(b"[" + b",".join(lines) + b"]", type=list[Score])

    def add(self, scores: Iterable[Score]) -> None:
        """Append scores, and replace a truncated last line."""
        with self.path.open("ab") as file:
            file.truncate(len(self._whole()))
            file.write(b"".join(msgspec.json.encode(score) + b"\n" for score in scores))

    def _whole(self) -> bytes:
        """Return the complete lines."""
        return b"".join(self.path.read_bytes().rpartition(b"\n")[:2]) if self.path.exists() else b""

    def missing(
        self, world: str, settings: Iterable[DriftKind], seeds: Iterable[int], events: int, chosen: Sequence[Entrant]
    ) -> list[Task]:
        """Return the runs that are not stored yet, seed by seed."""
        name = scene(world).name
        done = {(score.world, score.setting, score.seed, score.events, score.contestant) for score in self.read()}
        tasks = []
        for seed in seeds:
            for setting in settings:
                missing = tuple(score for score in chosen if (name, setting, seed, events, score.name) not in done)
                tasks.append(Task(world, setting, seed, events, missing))
        return [task for task in tasks if task.contestants]


def perform(task: Task) -> list[Score]:
    """Run once, and return the scores."""
    stage = scene(task.world)
    world = stage.make()
    drift = stage.drift(task.setting, world)
    track = follow(task.contestants, world, drift, task.events, task.seed)
    return list(scores(track, stage.name, drift, task.events, task.seed))


def perform_all(tasks: Sequence[Task], store: Store, processes: int, done: Callable[[], None]) -> None:
    """Perform all tasks, and store each run when it is complete.

    Args:
        tasks: What to run.
        store: Receives the scores.
        processes: Number of processes.
        done: Called after each run.
    """
    for threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(threads, "1")  # one core per run: new processes read this when they load numpy
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for finished in as_completed([pool.submit(perform, task) for task in tasks]):
            stored = {(score.setting, score.seed, score.contestant) for score in store.read()}
            store.add(s for s in finished.result() if (s.setting, s.seed, s.contestant) not in stored)
            done()
