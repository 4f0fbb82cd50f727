"""Runs on several processes, stored one line each; stored runs are not repeated."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import msgspec
from contest import Contestant
from experiment import Score, follow, scores
from worlds import scene

from streameval.simulation import DriftKind


class Task(NamedTuple):
    """One run: the contestants and their stream."""

    world: str
    setting: DriftKind
    seed: int
    events: int
    contestants: tuple[Contestant, ...]


class Store:
    """Scores in a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Score]:
        """All scores, without a last line that was truncated by an interruption."""
        lines = self._whole().splitlines()
        return msgspec.json.decode(b"[" + b",".join(lines) + b"]", type=list[Score])

    def add(self, some: Iterable[Score]) -> None:
        """Append scores, replacing a truncated last line."""
        with self.path.open("ab") as file:
            file.truncate(len(self._whole()))
            file.write(b"".join(msgspec.json.encode(score) + b"\n" for score in some))

    def _whole(self) -> bytes:
        """The complete lines."""
        return b"".join(self.path.read_bytes().rpartition(b"\n")[:2]) if self.path.exists() else b""

    def missing(
        self, world: str, settings: Iterable[DriftKind], seeds: Iterable[int], events: int, chosen: Sequence[Contestant]
    ) -> list[Task]:
        """Runs that are not stored yet, seed by seed."""
        name = scene(world).name
        done = {(each.world, each.setting, each.seed, each.events, each.contestant) for each in self.read()}
        tasks = []
        for seed in seeds:
            for setting in settings:
                absent = tuple(each for each in chosen if (name, setting, seed, events, each.name) not in done)
                tasks.append(Task(world, setting, seed, events, absent))
        return [task for task in tasks if task.contestants]


def perform(task: Task) -> list[Score]:
    """Run once, and score."""
    stage = scene(task.world)
    world = stage.make()
    drift = stage.drift(task.setting, world)
    track = follow(task.contestants, world, drift, task.events, task.seed)
    return list(scores(track, stage.name, drift, task.events, task.seed))


def perform_all(tasks: Sequence[Task], store: Store, processes: int, done: Callable[[], None]) -> None:
    """Run everything, storing each run on completion; `done` is called with every one."""
    for threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(threads, "1")  # one core per run: new processes read this when they load numpy
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for finished in as_completed([pool.submit(perform, task) for task in tasks]):
            known = {(each.setting, each.seed, each.contestant) for each in store.read()}
            store.add(s for s in finished.result() if (s.setting, s.seed, s.contestant) not in known)
            done()
