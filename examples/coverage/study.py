"""Measure miss rates of intervals, at a single look and at any look of a run: all kinds, on streams of many kinds.

python study.py run        400 runs of 60 looks in each world, resumable
python study.py limits     4,000 runs of each log that compares limits of the weights -> results/limits.csv
python study.py effects    design effects of 20 runs of 50,000 events -> results/design_effects.csv
python study.py table      results/*.jsonl -> results/coverage.csv, and from all CSV files the tables of README.md
python study.py figures    the figures
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from csv_rows import read_rows, write_rows
from effects import Effect, effects_of
from intervals import PARTS
from limits import LOGS, Rate, rates
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from runs import CHUNK, Store, perform_all
from summary import Row, fill_in, fill_in_effects, fill_in_limits, rows_of, updated
from worlds import WORLDS

from streameval import InputError

RUNS = 400
HERE = Path(__file__).parent
RESULTS = HERE / "results"

app = typer.Typer(help=__doc__, add_completion=False, rich_markup_mode=None)
Results = Annotated[Path, typer.Option(help="directory of the results")]


@app.command()
def run(
    worlds: Annotated[list[str] | None, typer.Argument(help="names of worlds (default all)")] = None,
    runs: Annotated[int, typer.Option(min=CHUNK, help=f"runs of each, a multiple of {CHUNK}")] = RUNS,
    parts: Annotated[list[str] | None, typer.Option(help=f"{', '.join(PARTS)} (default all)")] = None,
    processes: Annotated[int, typer.Option(min=1, help="runs at a time")] = 1,
    results: Results = RESULTS,
) -> None:
    """Run and store the missing runs."""
    for what, names, valid in (("world", worlds, WORLDS), ("part", parts, PARTS)):
        if unknown := sorted(set(names or ()) - set(valid)):
            raise InputError(f"there is no {what} {', '.join(unknown)}", hint=f"there are {', '.join(valid)}")
    results.mkdir(parents=True, exist_ok=True)
    store = Store(results)
    tasks = store.missing(worlds or WORLDS, runs, parts or PARTS)
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=len(tasks))
        perform_all(tasks, store, processes, lambda: progress.advance(bar))


@app.command()
def table(
    results: Results = RESULTS,
    readme: Annotated[Path, typer.Option(help="document whose tables are filled in")] = HERE / "README.md",
) -> None:
    """Write the rates of stored runs into the file of rates, and fill in the tables of the README from all results."""
    store, path = Store(results), results / "coverage.csv"
    lines = {world: store.read(world) for world in WORLDS}
    if any(lines.values()):
        before = read_rows(Row, path) if path.exists() else []
        write_rows(Row, updated(before, [row for world in WORLDS for row in rows_of(lines[world])]), path)
    readme.write_text(fill_in(readme.read_text(), read_rows(Row, path)))
    if (path := results / "limits.csv").exists():
        readme.write_text(fill_in_limits(readme.read_text(), read_rows(Rate, path)))
    if (path := results / "design_effects.csv").exists():
        readme.write_text(fill_in_effects(readme.read_text(), read_rows(Effect, path)))


@app.command()
def limits(
    names: Annotated[list[str] | None, typer.Argument(help="names of logs (default all)")] = None,
    runs: Annotated[int, typer.Option(min=0, help="runs of each (0 only fills in the table)")] = 4_000,
    results: Results = RESULTS,
    readme: Annotated[Path, typer.Option(help="document whose table is filled in")] = HERE / "README.md",
) -> None:
    """Compare limits of the weights, and fill in their table."""
    path = results / "limits.csv"
    stored: dict[str, list[Rate]] = {}
    for row in read_rows(Rate, path) if path.exists() else []:
        stored.setdefault(row.log, []).append(row)
    with Progress(console=Console(stderr=True)) as progress:
        for name in progress.track((names or list(LOGS)) if runs else []):
            stored[name] = list(rates(LOGS[name], runs))
            write_rows(Rate, [row for title in LOGS for row in stored.get(title, [])], path)
    readme.write_text(fill_in_limits(readme.read_text(), read_rows(Rate, path)))


@app.command()
def effects(
    runs: Annotated[int, typer.Option(min=0, help="runs of each world (0 only fills in the table)")] = 20,
    results: Results = RESULTS,
    readme: Annotated[Path, typer.Option(help="document whose table is filled in")] = HERE / "README.md",
) -> None:
    """Measure design effects, and fill in their table."""
    path = results / "design_effects.csv"
    if runs:
        write_rows(Effect, effects_of(runs), path)
    readme.write_text(fill_in_effects(readme.read_text(), read_rows(Effect, path)))


@app.command()
def figures(
    runs: Annotated[int, typer.Option(min=1, help="runs that are watched for the second picture")] = 40,
    results: Results = RESULTS,
) -> None:
    """Draw the figures: one from the rates, the other from some repeated runs."""
    from figures import misses, watched

    misses(read_rows(Row, results / "coverage.csv"), results / "misses.png")
    watched(runs, results / "watched.png")


if __name__ == "__main__":
    try:
        app()
    except InputError as error:
        sys.exit(error.report())
