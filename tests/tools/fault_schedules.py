"""Run schedules of faults against the real daemon loop, one seed each: `make faults ARGS="--schedules 50000"`."""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Annotated

import typer
from faults.faults import FAULTS
from faults.simulator import Schedule, ViolationError

from support.paths import fast_directory

CHUNK = 50
SHOWN_EVERY = 1_000
"""Schedules between two lines of progress."""


def run_chunk(seeds: range, faults: list[str]) -> list[tuple[int, str]]:
    """Return the seeds that break a promise, each with the violation."""
    violations = []
    for seed in seeds:
        with fast_directory() as directory:
            try:
                Schedule(seed, directory, faults).run()
            except ViolationError as violation:
                violations.append((seed, "\n".join([str(violation), *violation.__notes__])))
    return violations


def main(
    schedules: Annotated[int, typer.Option(min=1, help="how many to run")] = 1_000,
    first: Annotated[int, typer.Option(help="the first seed")] = 0,
    fault: Annotated[list[str] | None, typer.Option(help=f"only these kinds: {', '.join(FAULTS)}")] = None,
    processes: Annotated[int, typer.Option(min=1, help="schedules at a time")] = os.cpu_count() or 1,
) -> None:
    """Run schedules, print every violation with its seed, and exit with 1 if there is any."""
    started, last = time.perf_counter(), first + schedules
    chunks = [range(seed, min(seed + CHUNK, last)) for seed in range(first, last, CHUNK)]
    violations = 0
    with ProcessPoolExecutor(processes) as pool:
        runs = [pool.submit(run_chunk, chunk, fault or list(FAULTS)) for chunk in chunks]
        for chunk, run in zip(chunks, runs, strict=True):
            for seed, violation in run.result():
                print(f"seed {seed}: {violation}", flush=True)
                violations += 1
            if (chunk.stop - first) % SHOWN_EVERY == 0:
                print(f"seeds {first} to {chunk.stop - 1}: {violations} violations", flush=True)
    rate = 60 * schedules / (time.perf_counter() - started)
    print(f"{schedules:,} schedules from seed {first}, {violations} violations, {rate:,.0f} a minute")
    raise typer.Exit(1 if violations else 0)


if __name__ == "__main__":
    typer.run(main)
