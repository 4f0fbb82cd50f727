"""Run benchmarks, and compare them with stored results.

    make bench                                                      all benchmarks
    make bench ARGS="growth loop"                                   some of them
    make bench ARGS="--store tests/benchmarks/results.json"         store the results
    make bench ARGS="--picture tests/benchmarks/results.png"        draw the stored results
    make bench-check                                                fail if a ratio is a fifth worse than the stored one

All figures are processor time. Only ratios are checked: both of their works are measured in turns within one run.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import msgspec
import structlog
import typer
from measuring import Benchmark, Result, Spread, measure
from published import RESULTS
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from streameval.service.process import set_up_process

HERE = Path(__file__).parent
STORED = HERE / "results.json"
NAMES = (
    "loop",
    "road",
    "growth",
    "decoding",
    "features",
    "intervals",
    "rankings",
    "segments",
    "stages",
    "snapshots",
    "watching",
    "live",
    "learners",
    "rankers",
    "peers",
    "from_kafka",
    "on_spark",
)
WORSE = 1.2
"""A ratio fails if it is more than this times the stored one."""
REPEATED_ROUNDS = 3
"""Factor of rounds that are measured before a ratio fails, because other programs may have disturbed the first ones."""

Results = dict[str, Result]


def measured(name: str, events: int | None, rounds: int) -> Result:
    """Measure one benchmark and print its table."""
    made: Benchmark = import_module(name).benchmark(*[] if events is None else [events])
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(name, total=len(made.works) * (rounds + 1))
        result = measure(made, rounds, lambda: progress.advance(bar))
    show(made.title, result)
    return result


def show(title: str, result: Result) -> None:
    console = Console(width=None if sys.stdout.isatty() else 130)
    console.print(f"[bold]{title}")
    works = Table("work")
    works.add_column("us an event", justify="right")
    for name, value in result.microseconds.items():
        works.add_row(name, f"{value:,g}")
    ratios = Table("ratio")
    for column in ("median", "lowest", "highest", "wanted: at most"):
        ratios.add_column(column, justify="right")
    sizes = {f"{name}, MB": spread for name, spread in result.megabytes.items()}
    for name, spread in (result.ratios | sizes).items():
        wanted = "" if spread.wanted is None else f"{spread.wanted:,g}"
        ratios.add_row(name, f"{spread.median:,g}", f"{spread.lowest:,g}", f"{spread.highest:,g}", wanted)
    console.print(works, ratios)


def show_published() -> None:
    """Print what the makers of other software have published. It was measured on other machines."""
    table = Table("published, other machines and events", "us an event", "where")
    for result in RESULTS:
        table.add_row(result.name, f"{result.microseconds:.3g}", result.place)
    Console(width=None if sys.stdout.isatty() else 250).print(table)


def worse(result: Result, stored: Result) -> list[str]:
    """Return the ratios and sizes that are a fifth worse than the stored ones, in words."""

    def compare(now: dict[str, Spread], before: dict[str, Spread]) -> list[str]:
        return [
            f"{name}: {spread.median:g}, stored {before[name].median:g}"
            for name, spread in now.items()
            if name in before and spread.median > WORSE * before[name].median
        ]

    return compare(result.ratios, stored.ratios) + compare(result.megabytes, stored.megabytes)


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"benchmarks, by default all of {', '.join(NAMES)}")] = None,
    events: Annotated[
        int | None, typer.Option(min=1_000, help="events of each benchmark (each has its own default)")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="after one to warm up")] = 5,
    store: Annotated[Path | None, typer.Option(help="file to which the results of this run are added")] = None,
    check: Annotated[bool, typer.Option(help="fail if a ratio is a fifth worse than the stored one")] = False,
    picture: Annotated[Path | None, typer.Option(help="draw the stored results")] = None,
) -> None:
    """Run benchmarks, and compare them with stored results."""
    set_up_process()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if picture is not None:
        from picture import draw

        draw(stored(STORED), picture)
        return
    unknown = sorted(set(names or ()) - set(NAMES))
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(NAMES)}")
    failed, before = [], stored(STORED)
    for name in names or NAMES:
        result = measured(name, events, rounds)
        if check and name in before and worse(result, before[name]):
            result = measured(name, events, REPEATED_ROUNDS * rounds)
            failed += worse(result, before[name])
        if store is not None:
            store.write_bytes(msgspec.json.format(msgspec.json.encode({**stored(store), name: result})) + b"\n")
    if "peers" in (names or NAMES):
        show_published()
    if failed:
        print("\n".join(["a fifth worse than stored:", *failed]), file=sys.stderr)
        raise typer.Exit(1)


def stored(path: Path) -> Results:
    """Return the results in a file, none if there is no file."""
    return msgspec.json.decode(path.read_bytes(), type=Results) if path.exists() else {}


if __name__ == "__main__":
    typer.run(main)
