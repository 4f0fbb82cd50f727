"""Repeat the experiment of "When people change their mind" with the published estimators and streameval's.

python study.py prepare RAW lastfm.npz      a world from the raw HetRec 2011 files
python study.py run lastfm.npz              20 seeds x 3 settings, resumable
python study.py run lastfm.npz --contestants baselines --seeds 3       methods published after 2019
python study.py ideas lastfm.npz            further ideas on two streams of each setting -> results/variants.json
python study.py cycles                      averages in worlds with days and weeks -> results/cycles.ndjson
python study.py table                       results/*.jsonl -> results/*.md and *.json -> the tables of README.md
python study.py figures lastfm.npz          the figures
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import cycles as days
import numpy as np
import typer
import yaml
from baselines import BASELINES, Entrant
from contest import FORGETTING, IN_TABLE, Contestant
from experiment import SETTINGS
from ideas import rows_of_ideas
from pydantic import TypeAdapter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from runs import Store, perform_all
from summary import fill_in, read, stored, write
from worlds import scene

from streameval import InputError
from streameval.ope.core import AnyAverage
from streameval.ope.estimators import AnyEstimator
from streameval.simulation import DriftKind

SEEDS = range(20)
"""Fixed before the first run. No run was discarded."""
HERE = Path(__file__).parent
RESULTS, CYCLES = HERE / "results", "cycles.ndjson"
DOCUMENTS = [HERE / "README.md", HERE.parents[1] / "README.md"]
"""Documents with figures of this study."""

LINE_UPS: Mapping[str, tuple[Entrant, ...]] = {"table": IN_TABLE, "forgetting": FORGETTING, "baselines": BASELINES}

app = typer.Typer(help=__doc__, add_completion=False, rich_markup_mode=None)
Results = Annotated[Path, typer.Option(help="directory of the results")]


@app.command()
def prepare(
    raw: Annotated[Path, typer.Argument(help="directory with the files of hetrec2011-lastfm-2k or -delicious-2k")],
    world: Annotated[Path, typer.Argument(help="where to write the world, e.g. lastfm.npz")],
    tagged: Annotated[bool, typer.Option("--tagged", help="users like what they tagged, as on Delicious")] = False,
) -> None:
    """Build a world from the raw files: features of items, clusters of users, eleven trained policies."""
    from prepare import CLUSTERS, prepare, read_raw

    with _progress("policies") as progress:
        bar = progress.add_task("", total=CLUSTERS + 1)
        arrays = prepare(read_raw(raw, tagged), lambda: progress.advance(bar))
    np.savez_compressed(world, **arrays)


@app.command()
def run(
    world: Annotated[str, typer.Argument(help="a prepared .npz file, softmax-slow or softmax-fast")],
    contestants: Annotated[str, typer.Option(help=f"a line-up: {', '.join(LINE_UPS)}")] = "table",
    estimator: Annotated[list[str] | None, typer.Option(help="instead: estimators, e.g. snips")] = None,
    average: Annotated[
        list[str] | None, typer.Option(help="... on averages, e.g. '{kind: decay, alpha: .999}'")
    ] = None,
    settings: Annotated[list[str] | None, typer.Option(help="smooth, abrupt or stationary (default all)")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="0, 1, 2 and so on")] = len(SEEDS),
    events: Annotated[int, typer.Option(min=20_000, help="of one run")] = 1_000_000,
    processes: Annotated[int, typer.Option(min=1, help="runs at a time")] = os.cpu_count() or 1,
    results: Results = RESULTS,
) -> None:
    """Run and store the missing runs."""
    chosen: tuple[Entrant, ...] = _contestants(estimator, average) if estimator or average else LINE_UPS[contestants]
    kinds = TypeAdapter(tuple[DriftKind, ...]).validate_python(settings or SETTINGS)
    results.mkdir(parents=True, exist_ok=True)
    store = Store(results / f"{scene(world).name}.jsonl")
    tasks = store.missing(world, kinds, range(seeds), events, chosen)
    with _progress("runs") as progress:
        bar = progress.add_task("", total=len(tasks))
        perform_all(tasks, store, processes, lambda: progress.advance(bar))


@app.command()
def ideas(
    world: Annotated[str, typer.Argument(help="a prepared .npz file, softmax-slow or softmax-fast")],
    seeds: Annotated[int, typer.Option(min=1, help="0, 1 and so on")] = 2,
    events: Annotated[int, typer.Option(min=20_000, help="of one run")] = 300_000,
    results: Results = RESULTS,
) -> None:
    """Try ideas to make the default more accurate, and store their errors."""
    path = results / "variants.json"
    variants = json.loads(path.read_text())
    others = [row for row in variants["tried"] if row[0] != scene(world).name]
    variants["tried"] = [*others, *rows_of_ideas(world, events, range(seeds))]
    path.write_text(json.dumps(variants, indent=1, ensure_ascii=False) + "\n")


@app.command()
def cycles(
    runs: Annotated[int, typer.Option(min=1, help="of each world")] = days.RUNS,
    processes: Annotated[int, typer.Option(min=1, help="runs at a time")] = os.cpu_count() or 1,
    results: Results = RESULTS,
) -> None:
    """Run and store the missing runs in worlds with days and weeks."""
    results.mkdir(parents=True, exist_ok=True)
    days.run_all(runs, processes, results / CYCLES)


@app.command()
def table(
    results: Results = RESULTS,
    readme: Annotated[list[Path], typer.Option(help="documents whose tables and figures are filled in")] = DOCUMENTS,
) -> None:
    """Write the tables of all stored runs (.md for people, .json for programs), and fill in the documents."""
    for path in sorted(results.glob("*.jsonl")):
        write(Store(path).read(), path)
    if (results / "variants.json").exists():
        variants = json.loads((results / "variants.json").read_text())
        for document in readme:
            cycles = days.table_of(days.stored(results / CYCLES))
            document.write_text(fill_in(document.read_text(), read(results), variants, cycles))


@app.command()
def figures(
    world: Annotated[str, typer.Argument(help="the world that was run, with both line-ups")],
    events: Annotated[int, typer.Option(min=20_000, help="of the run that is drawn")] = 1_000_000,
    results: Results = RESULTS,
) -> None:
    """Draw the figures from the tables and from one more run."""
    from figures import estimates, forgetting, jumps

    stage = scene(world)
    means = stored(results / f"{stage.name}.json")
    forgetting(means, results / f"{stage.name}_forgetting.png")
    jumps(means, results / f"{stage.name}_jumps.png", stage.span)
    estimates(stage, results / f"{stage.name}_estimates.png", events)


def _progress(what: str) -> Progress:
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True))


def _contestants(estimators: list[str] | None, averages: list[str] | None) -> tuple[Contestant, ...]:
    """Combine every estimator with every average, both written as in a configuration."""
    on = [TypeAdapter(AnyAverage).validate_python(_spelled(text)) for text in averages or ["mixture"]]
    return tuple(
        Contestant(TypeAdapter(AnyEstimator).validate_python(_spelled(text)), average)
        for text in estimators or ["ips"]
        for average in on
    )


def _spelled(text: str) -> object:
    value = yaml.safe_load(text)
    return {"kind": value} if isinstance(value, str) else value


if __name__ == "__main__":
    try:
        app()
    except InputError as error:
        sys.exit(error.report())
