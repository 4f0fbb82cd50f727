"""Run notebooks as documents: one code cell after the other, each with the value of its last expression."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Cell = dict[str, Any]


def code_cells(notebook: Path) -> list[Cell]:
    """Return the code cells, in order."""
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]


def executed(notebook: Path) -> Iterator[tuple[Cell, Any]]:
    """Run all cells in the notebook's directory, as Jupyter does. Yield each with the value of its last expression."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with directory(notebook.parent):
        for cell in code_cells(notebook):
            tree = ast.parse("".join(cell["source"]))
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, str(notebook), "exec"), names)
            shown = None
            if isinstance(last, ast.Expr):
                shown = eval(compile(ast.Expression(last.value), str(notebook), "eval"), names)
            yield cell, shown


def displayed(value: Any) -> dict[str, list[str]]:
    """Return a value in the forms that a notebook stores."""
    forms = {"text/html": value._repr_html_()} if hasattr(value, "_repr_html_") else {"text/plain": repr(value)}
    return {form: text.splitlines(keepends=True) for form, text in forms.items()}


@contextmanager
def directory(path: Path) -> Iterator[None]:
    """Work in a directory."""
    before = Path.cwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)
