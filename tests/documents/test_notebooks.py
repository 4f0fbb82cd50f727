"""Run every cell of a notebook, and compare its output with the stored one."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.notebooks import displayed, executed
from support.paths import ROOT

NOTEBOOKS = sorted((ROOT / "examples").rglob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_every_cell_shows_its_stored_output(path: Path) -> None:
    for cell, value in executed(path):
        stored = [output["data"] for output in cell["outputs"]]
        assert stored == ([] if value is None else [displayed(value)])
