"""Measure safe exploration on digits: which rule deploys when, and what that earns.

python study.py run          20 seeds of each rule, resumable
python study.py run --warm   the same, with a challenger that starts from the baseline
python study.py overfitting  the overfitting of propensities, by `streameval learn`
python study.py table        results/ -> the tables of README.md
python study.py figures      the figure
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import loop
import msgspec
import typer
from loop import RULES, Run
from rich.progress import track
from summary import fill_in

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SEEDS = range(20)
"""Fixed before the first run. No run was discarded."""

app = typer.Typer(help=__doc__, add_completion=False, rich_markup_mode=None)
Results = Annotated[Path, typer.Option(help="directory of the results")]


def stored(results: Path = RESULTS, warm: bool = False) -> list[Run]:
    """Return the stored runs. `warm`: with a challenger that starts from the baseline."""
    path = path_of(results, warm)
    return [msgspec.json.decode(line, type=Run) for line in path.read_bytes().splitlines()] if path.exists() else []


def path_of(results: Path, warm: bool) -> Path:
    return results / ("warm.jsonl" if warm else "runs.jsonl")


@app.command()
def run(
    seeds: Annotated[int, typer.Option(min=1, help="0, 1, 2 and so on")] = len(SEEDS),
    events: Annotated[int, typer.Option(min=loop.LOOK, help="of one run")] = loop.EVENTS,
    dataset: Annotated[Path | None, typer.Option(help="a file in the format of LIBSVM in place of the digits")] = None,
    warm: Annotated[bool, typer.Option("--warm", help="start the challenger from the baseline's weights")] = False,
    results: Results = RESULTS,
) -> None:
    """Run and store the missing runs."""
    done = {(stored_run.rule, stored_run.seed, stored_run.events) for stored_run in stored(results, warm)}
    jobs = [(rule, seed, events) for seed in range(seeds) for rule in RULES]
    results.mkdir(parents=True, exist_ok=True)
    with path_of(results, warm).open("ab") as file:
        for job in track([job for job in jobs if job not in done], "runs"):
            file.write(msgspec.json.encode(loop.run(*job, dataset, warm)) + b"\n")
            file.flush()


@app.command()
def overfitting(results: Results = RESULTS) -> None:
    """Measure and store the overfitting of propensities."""
    from overfitting import measured

    (results / "overfitting.json").write_text(json.dumps(measured(), indent=1) + "\n")


@app.command()
def table(
    results: Results = RESULTS,
    readme: Annotated[Path, typer.Option(help="document whose tables are filled in")] = HERE / "README.md",
) -> None:
    """Fill in the tables of the README from the stored results."""
    overfitting = json.loads((results / "overfitting.json").read_text())
    readme.write_text(fill_in(readme.read_text(), stored(results), stored(results, warm=True), overfitting))


@app.command()
def figures(results: Results = RESULTS) -> None:
    """Draw the figure from the stored runs."""
    from figures import draw

    draw(stored(results), results / "rules.png")


if __name__ == "__main__":
    app()
