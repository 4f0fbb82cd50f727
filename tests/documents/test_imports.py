"""Examples import only the public names of the package, which CONTRIBUTING.md lists by module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from support.paths import ROOT

EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
PUBLIC = [
    "streameval" if name == "streameval" else f"streameval.{name}"
    for name in re.findall(
        r"`([a-z][a-z_.]+)`", (ROOT / "CONTRIBUTING.md").read_text().split("Public are")[1].split("\n\n")[0]
    )
]


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of every import from the package."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "streameval":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.startswith("streameval."))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT / "examples")))
def test_an_example_imports_public_names_only(path: Path) -> None:
    hidden = [
        f"{module} {name}"
        for module, name in imported(path)
        if module not in PUBLIC or name not in import_module(module).__all__
    ]
    assert hidden == []
