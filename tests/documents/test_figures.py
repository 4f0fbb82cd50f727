"""Check that `make figures` writes tables and pictures that equal the stored ones."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

import pytest

from support.paths import ROOT
from support.programs import script

EXAMPLES = ROOT / "examples"
NONSTATIONARY, RANKINGS, SAFE = EXAMPLES / "nonstationary", EXAMPLES / "rankings", EXAMPLES / "safe_exploration"
PROMOTION = EXAMPLES / "promotion"
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
    for path in (file for file in folder.rglob("*") if file.is_file() and file.suffix != ".pyc"):
        assert (copy / path.relative_to(folder)).read_bytes() == path.read_bytes(), f"{path.name}: run `make figures`"


def test_every_stored_result_has_its_checksum() -> None:
    files = {*EXAMPLES.glob("*/*.json"), *EXAMPLES.glob("*/results/*")} - {*EXAMPLES.glob("*/results/*.png")}
    files -= {file for study in ("coverage", "nonstationary") for file in EXAMPLES.glob(f"{study}/results/*.jsonl")}
    sums = {str(file.relative_to(EXAMPLES)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    lines = (EXAMPLES / "SHA256SUMS").read_text().splitlines()
    assert {name: digest for digest, name in (line.split("  ") for line in lines)} == sums, "run `make figures`"
