"""The architecture stays as small as CONTRIBUTING.md shows it: layers, the import graph, and the road of one event."""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from typing import Any, get_args

import pytest

from streameval.ope.averages import AnyAverage
from streameval.ope.estimators import AnyEstimator
from streameval.ope.intervals import AnyInterval
from support.paths import ROOT
from support.pyproject import PYPROJECT

MOST_PARTS, MOST_FLOORS, MOST_STEPS = 15, 9, 12


@cache
def modules() -> dict[str, ast.Module]:
    """The modules and packages of the program by their dotted names."""
    paths = (ROOT / "streameval").rglob("*.py")
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    return {name: ast.parse(path.read_text()) for name, path in names.items()}


@cache
def imported_by(module: str) -> frozenset[str]:
    """The modules of the program that a module imports: at its top, inside of functions, and for types only."""
    found = set()
    for node in ast.walk(modules()[module]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in modules() else node.module for name in inner}
    return frozenset(found & modules().keys())


def parts_of(package: str) -> set[str]:
    """The packages and modules directly in a package."""
    return {name for name in modules() if name.rpartition(".")[0] == package}


def graph_of(package: str) -> dict[str, set[str]]:
    """The parts of a package, each with the other parts that it imports."""
    graph: dict[str, set[str]] = {part: set() for part in parts_of(package)}
    depth = package.count(".") + 2
    for module in modules():
        part = ".".join(module.split(".")[:depth])
        if part in graph:
            used = {".".join(other.split(".")[:depth]) for other in imported_by(module)}
            graph[part] |= used & graph.keys() - {part}
    return graph


def floors_of(graph: dict[str, set[str]]) -> int:
    """The length of the longest chain of imports.

    Raises:
        graphlib.CycleError: The imports form a circle.
    """
    floor: dict[str, int] = {}
    for part in TopologicalSorter(graph).static_order():
        floor[part] = 1 + max((floor[below] for below in graph[part]), default=0)
    return max(floor.values())


@pytest.mark.parametrize("package", ["streameval", "streameval.ope"])
def test_the_import_graph_of_a_package_has_few_parts_on_few_floors_and_no_circle(package: str) -> None:
    graph = graph_of(package)
    assert len(graph) <= MOST_PARTS
    assert floors_of(graph) <= MOST_FLOORS


def test_imports_inside_of_functions_are_part_of_the_graph() -> None:
    assert "streameval.simulation.world" in imported_by("streameval.ingest.simulated")
    assert "streameval.ope" in graph_of("streameval")["streameval.config"]
    assert floors_of({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == 3


@pytest.mark.parametrize(("package", "most"), [("streameval", 8), ("streameval.ope", 8)])
def test_the_import_contract_of_a_package_has_few_layers_and_names_every_part(package: str, most: int) -> None:
    contracts = PYPROJECT["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract.get("containers") == [package])
    assert len(layers) <= most
    assert {f"{package}.{part}" for layer in layers for part in re.split(" [|:] ", layer)} == parts_of(package)


def test_the_road_of_one_event_has_at_most_12_steps() -> None:
    road = (ROOT / "CONTRIBUTING.md").read_text().split("### The road of one event")[1].split("\n## ")[0]
    steps = [int(number) for number in re.findall(r"^\| (\d+) ", road, re.M)]
    assert steps == list(range(1, len(steps) + 1))
    assert 8 <= len(steps) <= MOST_STEPS


def kinds_of(union: Any) -> set[str]:
    """The names of the classes in a discriminated union."""
    return {kind.__name__ for kind in get_args(get_args(union)[0])}


@pytest.mark.parametrize(
    ("union", "package"),
    [
        (AnyAverage, "streameval.ope.averages"),
        (AnyEstimator, "streameval.ope.estimators"),
        (AnyInterval, "streameval.ope.intervals"),
    ],
)
def test_no_other_part_asks_for_the_kind_of_an_average_an_estimator_or_an_interval(union: Any, package: str) -> None:
    """Differences are properties of the class, so that another kind is one file and a line in a union."""
    kinds = kinds_of(union)
    assert len(kinds) >= 4
    asked = [
        f"{module}:{node.lineno}"
        for module, tree in modules().items()
        if not module.startswith(package)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass")
        if kinds & {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
    ]
    assert asked == []
