"""The docstring of a public function lists the errors that it raises; `help` explains every public name."""

from __future__ import annotations

import ast
import pydoc
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest

import streameval
from support.paths import ROOT

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
PACKAGES = ("cli", "common", "config", "events", "ingest", "ope", "service", "simulation")


class Documented(NamedTuple):
    """A public function or method, and its docstring; that of `__init__` is in its class."""

    path: Path
    node: Function
    docstring: str


@cache
def every_function() -> list[Documented]:
    return [each for path in (ROOT / "streameval").rglob("*.py") for each in functions(path)]


def functions(path: Path) -> Iterator[Documented]:
    """The public functions of a module, and the public methods of its public classes."""
    module = ast.parse(path.read_text())
    classes = [node for node in ast.walk(module) if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    for owner in (module, *classes):
        for node in owner.body:
            if isinstance(node, Function) and (not node.name.startswith("_") or node.name == "__init__"):
                described = owner if node.name == "__init__" else node
                yield Documented(path, node, ast.get_docstring(described) or "")


def raises(function: Function) -> bool:
    """Whether the body of a function, without functions inside it, raises an error that a subclass need not avoid."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Raise) and node.exc is not None:
            error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if ast.unparse(error) != "NotImplementedError":
                return True
        if not isinstance(node, Function | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
    return False


def is_verb(function: Function) -> bool:
    """Whether the docstring is the text of `--help`."""
    return any("command(" in ast.unparse(decorator) for decorator in function.decorator_list)


def is_inherited(name: str, path: Path) -> bool:
    """Whether a method of this name, in the package of this module or one around it, lists its errors."""
    return any(
        each.node.name == name and "Raises:" in each.docstring and each.path.parent in path.parents
        for each in every_function()
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_public_functions_list_the_errors_that_they_raise(package: str) -> None:
    silent = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for path, node, docstring in every_function()
        if ROOT / "streameval" / package in path.parents
        if raises(node) and not is_verb(node) and "Raises:" not in docstring
        if docstring or not is_inherited(node.name, path)
    ]
    assert not silent, "list the errors under `Raises:` in the docstring:\n" + "\n".join(silent)


def test_the_help_of_the_package_explains_every_public_name() -> None:
    text = pydoc.plain(pydoc.render_doc(streameval))
    assert [name for name in streameval.__all__ if not re.search(rf"^    (class )?{name}\(", text, re.MULTILINE)] == []
    assert "pydantic" not in text


def test_dir_lists_the_options_of_a_configurable_class_and_all_names_of_its_instances() -> None:
    assert dir(streameval.Window) == ["resolution", "span", "tau"]
    assert {"label", "tau"} <= set(dir(streameval.Window()))
