"""`make figures` leaves the documents of the studies as they are, and the pictures show the stored results."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from types import ModuleType
from zlib import crc32

import pytest

from support.paths import ROOT
from support.programs import script
from support.scripts import importable

EXAMPLES = ROOT / "examples"
NONSTATIONARY, RANKINGS, SAFE = EXAMPLES / "nonstationary", EXAMPLES / "rankings", EXAMPLES / "safe_exploration"
COVERAGE, PROMOTION = EXAMPLES / "coverage", EXAMPLES / "promotion"
TABLES = {
    "nonstationary": ("study.py", "table"),
    "coverage": ("study.py", "table"),
    "promotion": ("study.py", "table"),
    "safe_exploration": ("study.py", "table"),
    "safe_exploration/objectives": ("objectives.py", "table"),
    "slates": ("summary.py",),
    "estimators": ("summary.py",),
    "rankings": ("summary.py",),
}
"""The commands of `make figures`, by study."""


@pytest.mark.parametrize("study", TABLES)
def test_tables_and_figures_are_written_from_the_stored_results(study: str, tmp_path: Path) -> None:
    folder = EXAMPLES / study.partition("/")[0]
    copy = Path(shutil.copytree(folder, tmp_path / "examples" / folder.name))
    shutil.copy(ROOT / "README.md", tmp_path)
    documents = [tmp_path / "README.md"] if folder == NONSTATIONARY else []
    documents += [copy / ("objectives.md" if study.endswith("objectives") else "README.md")]
    for document in documents:
        text = document.read_text()
        document.write_text(re.sub(r"\d(?=<!-- =)", "?", text))
        assert document.read_text() != text
    program, *arguments = TABLES[study]
    written = script(copy / program, *arguments)
    assert written.returncode == 0, written.stderr
    assert (tmp_path / "README.md").read_text() == (ROOT / "README.md").read_text(), "run `make figures`"
    for path in (each for each in folder.rglob("*") if each.is_file() and each.suffix != ".pyc"):
        assert (copy / path.relative_to(folder)).read_bytes() == path.read_bytes(), f"{path.name}: run `make figures`"


@pytest.fixture
def modules() -> Iterator[Callable[..., list[ModuleType]]]:
    """Imports modules of a study."""
    with ExitStack() as studies:

        def found(study: Path, *names: str) -> list[ModuleType]:
            studies.enter_context(importable(study))
            return [import_module(name) for name in names]

        yield found


def test_pictures_are_drawn_from_the_present_results(modules: Callable[..., list[ModuleType]]) -> None:
    drawn: dict[Path, object] = {}
    (summary,) = modules(NONSTATIONARY, "summary")
    for picture in ("forgetting", "jumps"):
        drawn[NONSTATIONARY / f"results/lastfm_{picture}.png"] = summary.stored(NONSTATIONARY / "results/lastfm.json")
    summary, csv = modules(COVERAGE, "summary", "csv_rows")
    drawn[COVERAGE / "results/misses.png"] = csv.read_rows(summary.Row, COVERAGE / "results/coverage.csv")
    (runs,) = modules(PROMOTION, "runs")
    scores = runs.Store(PROMOTION / "results/lastfm.jsonl", runs.Score).read()
    drawn[PROMOTION / "results/lastfm_delays.png"] = scores
    for picture in ("rmse", "layout"):
        drawn[RANKINGS / f"{picture}.png"] = json.loads((RANKINGS / "results.json").read_text())
    study, objectives = modules(SAFE, "study", "objectives")
    moving = objectives.stored("moving"), objectives.stored("copies")
    drawn |= {SAFE / "results/rules.png": study.stored(), SAFE / "results/moving.png": moving}
    for picture, results in drawn.items():
        noted = f"Results\0{crc32(repr(results).encode()):08x}"  # a text of a PNG file, after its keyword
        assert noted.encode() in picture.read_bytes(), f"redraw {picture}"
