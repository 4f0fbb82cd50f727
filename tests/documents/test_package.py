"""The package as it is installed: its exports, files and dependencies."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import streameval
from support.paths import ROOT
from support.pyproject import PYPROJECT, pinned

PACKAGE = Path(*streameval.__path__)
LONGEST_MODULE, LONGEST_FUNCTION = 600, 60  # lines; docstrings of functions are not counted
PARTS = {"google": "protobuf", "markupsafe": "jinja2", "py4j": "pyspark", "pydantic-core": "pydantic"}
"""Distributions that come with another one, in the version that it wants."""


def shipped(root: Path) -> set[Path]:
    """The files of the package without those that are compiled."""
    compiled = {".pyc", ".so"}
    return {path.relative_to(root) for path in root.rglob("*") if path.is_file() and path.suffix not in compiled}


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def wanted(*groups: str, apart: Collection[str] = ("spark",)) -> Iterator[Requirement]:
    """The dependencies, those of these groups, and those of all extras but `apart`."""
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


def lines_of_code(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def test_all_is_sorted_and_names_everything_public() -> None:
    assert list(streameval.__all__) == sorted(streameval.__all__)
    assert [name for name in dir(streameval) if not name.startswith("__")] == streameval.__all__


def test_the_installed_package_has_every_file_of_the_checkout_and_no_other() -> None:
    assert shipped(PACKAGE) == shipped(ROOT / "streameval")
    assert Path("py.typed") in shipped(PACKAGE)


def test_the_version_is_that_of_the_distribution() -> None:
    assert streameval.__version__ == version("streameval")
    assert "__version__" in dir(streameval)


def test_the_citation_is_of_this_version_and_license() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == version("streameval")
    assert citation["license"] == PYPROJECT["project"]["license"]
    assert [each["name"] for each in citation["authors"]] == [each["name"] for each in PYPROJECT["project"]["authors"]]


def test_the_changelog_has_a_section_for_this_version() -> None:
    assert f"## [{version('streameval')}]" in (ROOT / "CHANGELOG.md").read_text()


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


def test_the_tools_of_the_site_are_pinned_and_as_in_the_other_locks() -> None:
    site, everything = pinned("docs.lock"), pinned("dev.lock")
    for requirement in map(Requirement, PYPROJECT["dependency-groups"]["docs"]):
        assert all(map(requirement.specifier.contains, site[canonicalize_name(requirement.name)])), "run `make lock`"
    shared = site.keys() & everything.keys()
    assert {name: site[name] for name in shared} == {name: everything[name] for name in shared}


def test_every_import_is_a_declared_dependency_and_every_dependency_is_imported() -> None:
    distributions = packages_distributions()
    imported = {
        PARTS.get(canonicalize_name(name), canonicalize_name(name))
        for path in sources()
        for root in imported_roots(path)
        if root not in sys.stdlib_module_names and root != "streameval"
        for name in distributions.get(root, [root])  # pyspark is only installed for `make test-all`
    }
    declared = {canonicalize_name(requirement.name) for requirement in wanted(apart=())} - {"streameval"}
    assert imported == declared


def definitions(path: Path) -> Iterator[tuple[str, str]]:
    """Classes, type aliases and constants of a module, each with its value; a class is the value of its own name."""
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.ClassDef(name=name):
                yield name, f"class in {path.relative_to(PACKAGE)}"
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, ast.unparse(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, ast.unparse(value)
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                yield from zip(map(ast.unparse, names), map(ast.unparse, values), strict=True)


def test_names_of_classes_type_aliases_and_constants_have_one_meaning() -> None:
    values: dict[str, set[str]] = {}
    for path in sources():
        for name, value in definitions(path):
            if name[0].isupper():
                values.setdefault(name, set()).add(value)
    assert {name: several for name, several in values.items() if len(several) > 1} == {}


def test_the_package_has_at_most_12_entries_in_its_root_and_206_files() -> None:
    assert len([path for path in (ROOT / "streameval").iterdir() if path.name != "__pycache__"]) <= 12
    written = [path for path in shipped(ROOT / "streameval") if "schemas" not in path.parts]  # these are generated
    assert len(written) <= 206


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_can_be_read_in_one_sitting_and_a_function_on_one_screen(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LONGEST_MODULE
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert not [function.name for function in functions if lines_of_code(function) > LONGEST_FUNCTION]
