"""Measure error rates and delays of the promotion rules, on drifting worlds and on equally good candidates.

python study.py run lastfm.npz      10 seeds x 3 settings, resumable
python study.py errors lastfm.npz   predictors of the error of a lift, on other seeds
python study.py same                10,000 candidates with the same value as production
python study.py long                long streams of such candidates with independent weights, or with real policies
python study.py days                worlds with days and weeks
python study.py table               results/*.jsonl -> the tables of README.md
python study.py figures lastfm.npz  the figures
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import aa_streams
import typer
from days import RUNS, DayRun
from errors import ErrorScores
from pydantic import TypeAdapter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from runs import (
    Store,
    missing_days,
    missing_errors,
    missing_long,
    missing_runs,
    missing_streams,
    perform,
    perform_all,
    perform_days,
    perform_errors,
    perform_long,
    perform_stream,
)
from scoring import Score
from summary import fill_in
from worlds import SETTINGS, scene

from streameval import InputError
from streameval.simulation import DriftKind

SEEDS = range(10)
"""Fixed before the first run. No run was discarded."""
CHOOSING = 2
"""Seeds from 100 on, for the predictors of errors."""
STREAMS = 50
"""Streams per kind of weights, with a hundred candidates each."""
TILTED = 100
"""Long streams per correlation and number of candidates."""
CORES = os.cpu_count() or 1
HERE = Path(__file__).parent
RESULTS = HERE / "results"

app = typer.Typer(help=__doc__, add_completion=False, rich_markup_mode=None)
Results = Annotated[Path, typer.Option(help="directory of the results")]
Processes = Annotated[int, typer.Option(min=1, help="runs at a time")]


@app.command()
def run(
    world: Annotated[str, typer.Argument(help="a prepared .npz file, or softmax")],
    settings: Annotated[list[str] | None, typer.Option(help="smooth, abrupt or stationary (default all)")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="0, 1, 2 and so on")] = len(SEEDS),
    events: Annotated[int, typer.Option(min=20_000, help="of one run")] = 1_000_000,
    processes: Processes = CORES,
    results: Results = RESULTS,
) -> None:
    """Run and store the missing runs on a drifting world."""
    kinds = TypeAdapter(tuple[DriftKind, ...]).validate_python(settings or SETTINGS)
    results.mkdir(parents=True, exist_ok=True)
    store = Store(results / f"{scene(world).name}.jsonl", Score)
    jobs = missing_runs(store, world, kinds, range(seeds), events)
    _show_progress(len(jobs), lambda done: perform_all(perform, jobs, store, processes, done))


@app.command()
def errors(
    world: Annotated[str, typer.Argument(help="a prepared .npz file, or softmax")],
    settings: Annotated[
        list[str] | None, typer.Option(help="smooth, abrupt or stationary (default the first two)")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="100, 101 and so on")] = CHOOSING,
    events: Annotated[int, typer.Option(min=100_000, help="of one run")] = 1_000_000,
    processes: Processes = CORES,
    results: Results = RESULTS,
) -> None:
    """Measure and store the missing errors of lifts."""
    kinds = TypeAdapter(tuple[DriftKind, ...]).validate_python(settings or SETTINGS[:2])
    results.mkdir(parents=True, exist_ok=True)
    store = Store(results / "errors.jsonl", ErrorScores)
    jobs = missing_errors(store, world, kinds, seeds, events)
    _show_progress(len(jobs), lambda done: perform_all(perform_errors, jobs, store, processes, done))


@app.command()
def same(
    streams: Annotated[int, typer.Option(min=1, help="of each kind of weights, 100 candidates each")] = STREAMS,
    events: Annotated[int, typer.Option(min=100, help="of one stream")] = aa_streams.EVENTS,
    processes: Processes = CORES,
    results: Results = RESULTS,
) -> None:
    """Run and store the missing A/A streams."""
    results.mkdir(parents=True, exist_ok=True)
    store = Store(results / "same.jsonl", aa_streams.Outcome)
    jobs = missing_streams(store, streams, events)
    _show_progress(len(jobs), lambda done: perform_all(perform_stream, jobs, store, processes, done))


@app.command()
def long(
    streams: Annotated[int, typer.Option(min=1, help="of each kind of independent weights and rewards")] = 20,
    tilted: Annotated[int, typer.Option(min=1, help="of each correlation and number of candidates")] = TILTED,
    processes: Processes = CORES,
    results: Results = RESULTS,
) -> None:
    """Run and store the missing long A/A streams."""
    results.mkdir(parents=True, exist_ok=True)
    store = Store(results / "long.jsonl", aa_streams.LongOutcome)
    jobs = missing_long(store, streams, tilted)
    _show_progress(len(jobs), lambda done: perform_all(perform_long, jobs, store, processes, done))


@app.command()
def days(
    runs: Annotated[int, typer.Option(min=1, help="of each world and kind of streams")] = RUNS,
    processes: Processes = CORES,
    results: Results = RESULTS,
) -> None:
    """Run and store the missing runs in worlds with days."""
    results.mkdir(parents=True, exist_ok=True)
    store = Store(results / "days.jsonl", DayRun)
    jobs = missing_days(store, runs)
    _show_progress(len(jobs), lambda done: perform_all(perform_days, jobs, store, processes, done))


@app.command()
def table(
    world: Annotated[str, typer.Option(help="world of the results, by the name of its file")] = "lastfm",
    results: Results = RESULTS,
    readme: Annotated[Path, typer.Option(help="document whose tables are filled in")] = HERE / "README.md",
) -> None:
    """Fill in the tables of the README from the stored results."""
    scores = Store(results / f"{world}.jsonl", Score).read()
    outcomes = Store(results / "same.jsonl", aa_streams.Outcome).read()
    errors = Store(results / "errors.jsonl", ErrorScores).read()
    streams = Store(results / "long.jsonl", aa_streams.LongOutcome).read()
    day_runs = Store(results / "days.jsonl", DayRun).read()
    readme.write_text(fill_in(readme.read_text(), scores, outcomes, errors, streams, day_runs))


@app.command()
def figures(
    world: Annotated[str, typer.Argument(help="the world that was run")],
    events: Annotated[int, typer.Option(min=20_000, help="of the run that is drawn")] = 1_000_000,
    results: Results = RESULTS,
) -> None:
    """Draw the figures: one from the results, the others from one more run each."""
    from figures import delays, one_run, one_week

    stage = scene(world)
    delays(Store(results / f"{stage.name}.jsonl", Score).read(), results / f"{stage.name}_delays.png")
    one_run(stage, results / f"{stage.name}_run.png", events)
    one_week(results / "days.png")


def _show_progress(jobs: int, work: Callable[[Callable[[], None]], None]) -> None:
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=jobs)
        work(lambda: progress.advance(bar))


if __name__ == "__main__":
    try:
        app()
    except InputError as error:
        sys.exit(error.report())
