"""Run the study in several processes, and store one line for each chunk of runs. Stored chunks are not repeated."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from intervals import EVENTS, PARTS, Answer, Cell, answers
from worlds import WORLDS, Floats, draw

CHUNK = 20
"""Runs per line."""
COLUMNS = ("shown", "above", "below", "ever_above", "ever_below", "ever", "half_width")
"""Numbers of one run, as means over both candidates.

The share of looks with an interval, with an interval above the true value, and with one below it. Then whether an
interval was above, below, or either, at any look. Last, the half-width.
"""


class Task(NamedTuple):
    """Identify the runs of one line.

    Args:
        world: Name of the world.
        part: One of PARTS.
        chunk: Number of the chunk. Chunk 0 has the runs 0 to 19.
    """

    world: str
    part: str
    chunk: int


class Line(msgspec.Struct, frozen=True):
    """Hold sums over the runs of a chunk, and sums of squares, for each cell. Numbers are in the order of COLUMNS."""

    world: str
    part: str
    chunk: int
    runs: int
    cells: list[tuple[Cell, list[float], list[float]]]


class Store:
    """Store lines of JSON in one file per world."""

    def __init__(self, results: Path) -> None:
        self.results = results

    def read(self, world: str) -> list[Line]:
        """Return all lines in the order of their chunks, without a last line that an interruption truncated."""
        lines = self._whole(world).splitlines()
        stored: list[Line] = msgspec.json.decode(b"[" + b",".join(lines) + b"]", type=list[Line])
        return sorted(stored, key=lambda line: line.chunk)

    def add(self, line: Line) -> None:
        """Append a line, and replace a truncated one."""
        whole = self._whole(line.world)
        with self._path(line.world).open("ab") as file:
            file.truncate(len(whole))
            file.write(msgspec.json.encode(line) + b"\n")

    def missing(self, worlds: Iterable[str], runs: int, parts: Iterable[str] = tuple(PARTS)) -> list[Task]:
        """Return the chunks that are not stored yet, part by part in all worlds."""
        worlds = list(worlds)
        done = {(world, line.part, line.chunk) for world in worlds for line in self.read(world)}
        tasks = [Task(world, part, chunk) for part in parts for chunk in range(runs // CHUNK) for world in worlds]
        return [task for task in tasks if task not in done]

    def _path(self, world: str) -> Path:
        return self.results / f"{world}.jsonl"

    def _whole(self, world: str) -> bytes:
        """Return the complete lines."""
        path = self._path(world)
        return b"".join(path.read_bytes().rpartition(b"\n")[:2]) if path.exists() else b""


def perform(task: Task) -> Line:
    """Perform the runs of a chunk, in order."""
    world, runs = WORLDS[task.world], range(task.chunk * CHUNK, (task.chunk + 1) * CHUNK)
    scores: dict[Cell, list[Floats]] = {}
    for run in runs:
        for cell, answer in answers(world, draw(world, run, EVENTS), parts=[task.part]):
            scores.setdefault(cell, []).append(score(answer))
    cells = []
    for cell, run_scores in scores.items():
        run_array = np.array(run_scores)
        cells.append((cell, _short(run_array.sum(axis=0)), _short((run_array**2).sum(axis=0))))
    return Line(task.world, task.part, task.chunk, len(runs), cells)


def score(answer: Answer) -> Floats:
    """Return the numbers of COLUMNS for one run."""
    rounding = 1e-9
    shown = ~np.isnan(answer.lower)
    above, below = answer.lower > answer.truth + rounding, answer.upper < answer.truth - rounding
    half_width = (answer.upper - answer.lower)[shown] / 2
    ever = [missed.any(axis=1).mean() for missed in (above, below, above | below)]
    return np.array([shown.mean(), above.mean(), below.mean(), *ever, half_width.mean() if shown.any() else 0.0])


def _short(numbers: Floats) -> list[float]:
    return [float(f"{number:.6g}") for number in numbers]


def perform_all(tasks: Sequence[Task], store: Store, processes: int, done: Callable[[], None]) -> None:
    """Perform all tasks, and store each chunk when it is complete.

    Args:
        tasks: What to run.
        store: Receives the results.
        processes: Number of processes.
        done: Called after each chunk.
    """
    for threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(threads, "1")  # one core per run: new processes read this when they load numpy
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for finished in as_completed([pool.submit(perform, task) for task in tasks]):
            store.add(finished.result())
            done()
