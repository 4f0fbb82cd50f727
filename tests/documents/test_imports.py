"""Examples use public names of the program; only the tests of a package, and helpers of tests, read its inside.

A name is public if it is in `__all__` of a module of `PUBLIC`, which CONTRIBUTING.md lists, too. Between packages, the
interface of a module is its `__all__`, and the names that other packages of the program import from it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from support.paths import ROOT

PUBLIC = {
    "streameval",
    "streameval.errors",
    "streameval.events",
    "streameval.ope.averages",
    "streameval.ope.averages.moments",
    "streameval.ope.averages.variance",
    "streameval.ope.estimators",
    "streameval.ope.evidence",
    "streameval.ope.evidence.largest_weights",
    "streameval.ope.intervals",
    "streameval.ope.intervals.empirical_likelihood",
    "streameval.ope.intervals.sequences",
    "streameval.ope.promotion",
    "streameval.ope.report",
    "streameval.ope.reward_models",
    "streameval.simulation",
}
"""The modules whose `__all__` is public."""

INSIDE = {
    "tests/deploy/test_compose.py": ("streameval.service.http",),
    "tests/deploy/test_systemd.py": ("streameval.service.http",),
    "tests/faults": ("streameval",),
    "tests/integration": ("streameval.ingest.kafka", "streameval.service"),
    "tests/statistical/test_sequence_coverage.py": ("streameval.ope.intervals.sequences",),
    "tests/support": ("streameval",),
    "tests/unit/ingest/test_background.py": ("streameval.service",),
    "tests/unit/ope/evaluator/test_dropping.py": ("streameval.ope.averages",),
    "tests/unit/ope/evaluator/test_mixed_streams.py": ("streameval.cli", "streameval.service.status_page"),
    "tests/unit/service/test_dead_letters.py": ("streameval.ingest",),
}
"""Helpers of tests, and tests of several packages or outside of `tests/unit/<package>`, with these packages."""

DOCUMENTED = {"_asdict", "_fields", "_make", "_replace", "_current_frames", "_repr_html_"}
"""Names of the standard library and of IPython that start with an underscore and are public."""


class Import(NamedTuple):
    """`from module import name`; `name` is empty for `import module`."""

    module: str
    name: str


def users() -> list[Path]:
    return sorted(path for place in ("tests", "examples") for path in (ROOT / place).rglob("*.py"))


@cache
def names_used(path: Path) -> list[ast.Import | ast.ImportFrom | ast.Attribute]:
    """The imports and the attributes in a file."""
    kinds = ast.Import | ast.ImportFrom | ast.Attribute
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]


@cache
def imports(path: Path) -> list[Import]:
    """The names that a file imports from the program, or reads from a module of it that it imports."""
    found = []
    nodes = names_used(path)
    modules: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "streameval":
            found += [Import(node.module, alias.name) for alias in node.names]
            names = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            modules |= {name: module for name, module in names.items() if is_module(module)}
        elif isinstance(node, ast.Import):
            found += [Import(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "streameval"]
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            found.append(Import(modules[node.value.id], node.attr))
    return found


@cache
def is_module(name: str) -> bool:
    path = Path(ROOT, *name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def is_package(module: str) -> bool:
    return Path(ROOT, *module.split("."), "__init__.py").exists()


def is_within(package: str, other: str) -> bool:
    return f"{package}.".startswith(f"{other}.")


def packages_around(module: str) -> list[str]:
    """The packages that the module lies in, outermost first; a package lies in itself."""
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + is_package(module))]


@cache
def exports(package: str) -> frozenset[str]:
    return frozenset(getattr(import_module(package), "__all__", ()))


@cache
def used_across_packages() -> frozenset[Import]:
    """The names that a module of the program imports from a package in which it does not lie."""
    return frozenset(
        each
        for path in (ROOT / "streameval").rglob("*.py")
        for each in imports(path)
        if not is_within(".".join(path.parent.relative_to(ROOT).parts), packages_around(each.module)[-1])
    )


def is_public(used: Import) -> bool:
    """Whether examples may import the name, or read it from a module that they import."""
    module = f"{used.module}.{used.name}"
    return used.module in PUBLIC and used.name in exports(used.module) and (not is_module(module) or module in PUBLIC)


def is_interface(used: Import) -> bool:
    """Whether tests of other packages may import the name."""
    if used.module == "streameval":
        return used.name in {"", *exports("streameval")}
    return used.name in exports(used.module) or (not is_package(used.module) and used in used_across_packages())


def inside_of(path: Path) -> list[str]:
    """The packages that this file may read the inside of."""
    name = path.relative_to(ROOT).as_posix()
    mirrored = [".".join(("streameval", *path.relative_to(ROOT).parts[2:-1]))] if name.startswith("tests/unit/") else []
    granted = (packages for place, packages in INSIDE.items() if name == place or name.startswith(f"{place}/"))
    return mirrored + [package for packages in granted for package in packages]


def reads_inside(path: Path, used: Import) -> bool:
    """Whether the file imports a name that is not an interface, without being a test of its package."""
    own = packages_around(used.module)[-1]
    return not is_interface(used) and not any(is_within(own, package) for package in inside_of(path))


def imported_at(place: str) -> Iterator[tuple[Path, Import]]:
    """The names that the Python files at a place import from the program."""
    paths = sorted((ROOT / place).rglob("*.py")) if (ROOT / place).is_dir() else [ROOT / place]
    yield from ((path, used) for path in paths for used in imports(path))


def test_examples_import_public_names_only() -> None:
    imported = [(path, used) for path, used in imported_at("examples") if not is_public(used)]
    deep = [f"{path.relative_to(ROOT)}: {used.module} {used.name}" for path, used in imported]
    assert not deep, "import a public name, or write it in the example:\n" + "\n".join(deep)


def test_contributing_lists_the_public_modules() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().split("Public are")[1].split("\n\n")[0]
    assert {re.sub("^(?!streameval)", "streameval.", name) for name in re.findall(r"`([a-z][a-z_.]+)`", text)} == PUBLIC


def test_deep_imports_are_only_in_the_tests_of_the_package() -> None:
    imported = [(path, used) for path, used in imported_at("tests") if reads_inside(path, used)]
    deep = [f"{path.relative_to(ROOT)}: {used.module} {used.name}" for path, used in imported]
    assert not deep, "import a public name, or test it in tests/unit/<package>:\n" + "\n".join(deep)


def test_only_the_methods_of_an_object_use_its_private_names() -> None:
    private = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in users()
        for node in names_used(path)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if node.attr not in DOCUMENTED and ast.unparse(node.value) not in ("self", "cls")
    ]
    assert not private, "\n".join(private)


@pytest.mark.parametrize("place", INSIDE)
def test_every_exception_is_needed(place: str) -> None:
    deep = [packages_around(used.module)[-1] for _, used in imported_at(place) if not is_interface(used)]
    assert all(any(is_within(own, package) for own in deep) for package in INSIDE[place])


@pytest.mark.parametrize(
    ("module", "name", "public", "interface"),
    [
        ("streameval", "Evaluator", True, True),
        ("streameval.ope.evaluator.evaluator", "Evaluator", False, True),
        ("streameval.ope.averages", "Cumulative", True, True),
        ("streameval.ope.averages.fixed", "Cumulative", False, False),
        ("streameval.ope.averages", "moments", True, True),
        ("streameval.ope", "power", False, False),
        ("streameval.ope.averages.moments", "fold", True, True),
        ("streameval.ope.averages.moments", "SUMS", False, False),
        ("streameval.ope.report", "Report", True, True),
        ("streameval.service", "snapshots", False, False),
        ("streameval.service.daemon", "Daemon", False, True),
        ("streameval.service.snapshots", "STEPS", False, False),
        ("streameval.ope.evaluator.cohorts", "CohortEvaluator", False, True),
        ("streameval.ingest.kafka", "source", False, False),
        ("streameval.ingest.kafka.source", "PROBE_INTERVAL", False, False),
    ],
)
def test_a_name_is_public_or_an_interface_if_it_is_published(
    module: str, name: str, public: bool, interface: bool
) -> None:
    used = Import(module, name)
    assert is_public(used) == public
    assert is_interface(used) == interface
