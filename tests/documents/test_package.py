"""Check the exports, files and dependencies of the installed package."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import streameval
from streameval.ope.core import AnyAverage
from streameval.ope.estimators import AnyEstimator
from streameval.ope.intervals import AnyInterval
from support.parts import kinds
from support.paths import ROOT
from support.pyproject import PYPROJECT, pinned

PACKAGE = Path(*streameval.__path__)
PARTS = {"google": "protobuf", "markupsafe": "jinja2", "py4j": "pyspark", "pydantic-core": "pydantic"}
"""Distributions that come with another one, in the version that it wants."""


def shipped(root: Path) -> set[Path]:
    """List the files of the package without the compiled ones."""
    compiled = {".pyc", ".so"}
    return {path.relative_to(root) for path in root.rglob("*") if path.is_file() and path.suffix not in compiled}


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def wanted(*groups: str, apart: Collection[str] = ("spark",)) -> Iterator[Requirement]:
    """Return the dependencies of the package, of these groups, and of all extras but `apart`."""
    project = PYPROJECT["project"]
    extras = (lines for name, lines in project["optional-dependencies"].items() if name not in apart)
    for lines in (project["dependencies"], *extras):
        yield from map(Requirement, lines)
    for group in groups:
        yield from (Requirement(line) for line in PYPROJECT["dependency-groups"][group] if isinstance(line, str))


def imported_roots(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def test_the_installed_package_has_every_file_of_the_checkout_and_no_other() -> None:
    assert shipped(PACKAGE) == shipped(ROOT / "streameval")
    assert Path("py.typed") in shipped(PACKAGE)


@pytest.mark.parametrize("union", [AnyEstimator, AnyAverage, AnyInterval], ids=["estimators", "averages", "intervals"])
def test_concepts_name_every_kind(union: Any) -> None:
    text = (ROOT / "deploy/site/pages/concepts.md").read_text(encoding="utf-8")
    names = {kind.__dataclass_fields__["kind"].default for kind in kinds(union)}
    assert {name for name in names if f"`{name}`" not in text} == set()


def test_the_version_is_that_of_the_distribution() -> None:
    assert streameval.__version__ == version("streameval")
    assert "__version__" in dir(streameval)


@pytest.mark.parametrize(
    ("lock", "groups"), [("runtime.lock", []), ("test.lock", ["test"]), ("dev.lock", ["test", "lint", "build", "dev"])]
)
def test_the_lock_satisfies_pyproject(lock: str, groups: list[str]) -> None:
    pins = pinned(lock)
    unmet = [
        str(requirement)
        for requirement in wanted(*groups)
        if requirement.name != "streameval"
        and not all(map(requirement.specifier.contains, pins.get(canonicalize_name(requirement.name), {"none"})))
    ]
    assert not unmet, f"run `make lock`: {unmet}"


def test_the_lock_of_spark_has_its_extra_and_otherwise_what_the_others_have() -> None:
    pins, others = pinned("spark.lock"), pinned("dev.lock")
    for requirement in map(Requirement, PYPROJECT["project"]["optional-dependencies"]["spark"]):
        assert all(map(requirement.specifier.contains, pins[canonicalize_name(requirement.name)])), "run `make lock`"
    assert {name: pins[name] for name in pins.keys() & others.keys()} == {
        name: others[name] for name in pins.keys() & others.keys()
    }


def test_all_locks_pin_the_same_versions() -> None:
    everything = pinned("dev.lock")
    for lock in ("runtime.lock", "test.lock", "image.lock", "build.lock"):
        assert pinned(lock).items() <= everything.items()


@pytest.mark.parametrize("group", ["docs", "release"])
def test_the_tools_of_the_site_and_of_wheels_are_pinned_and_as_in_the_other_locks(group: str) -> None:
    tools, everything = pinned(f"{group}.lock"), pinned("dev.lock")
    for requirement in map(Requirement, PYPROJECT["dependency-groups"][group]):
        assert all(map(requirement.specifier.contains, tools[canonicalize_name(requirement.name)])), "run `make lock`"
    shared = tools.keys() & everything.keys()
    assert {name: tools[name] for name in shared} == {name: everything[name] for name in shared}


def test_every_import_is_a_declared_dependency_and_every_dependency_is_imported() -> None:
    distributions = packages_distributions()
    declared = {canonicalize_name(requirement.name) for requirement in wanted(apart=())} - {"streameval"}
    roots = {root for path in sources() for root in imported_roots(path)} - sys.stdlib_module_names - {"streameval"}
    imported: set[str] = set()
    for root in roots:
        names = map(canonicalize_name, distributions.get(root, [root]))  # pyspark is only there for `make test-all`
        owners = {PARTS.get(name, name) for name in names}
        imported |= owners & declared or owners  # several distributions share a namespace such as google
    assert imported == declared
