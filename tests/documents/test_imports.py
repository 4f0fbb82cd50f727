"""Tests and examples use public names of the program; only the tests of a package read its inside.

A name is public if a package exports it, or the module that contains it (`__all__`); if its module lies directly in one
of the packages of CONTRIBUTING; or if the program itself imports it from another package.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from support.paths import ROOT

INSIDE = {
    "tests/deploy/test_compose.py": "streameval.service.http",
    "tests/deploy/test_systemd.py": "streameval.service.http",
    "tests/faults": "streameval.ingest.kafka",
    "tests/faults/defects.py": "streameval",
    "tests/integration/test_damaged_logs.py": "streameval.ingest.kafka",
    "tests/integration/test_kafka_producer.py": "streameval.ingest.kafka",
    "tests/integration/test_kafka_source.py": "streameval.ingest.kafka",
    "tests/statistical/test_sequence_coverage.py": "streameval.ope.intervals.sequences",
    "tests/support/fake_kafka.py": "streameval.ingest.kafka",
    "tests/support/integration/broker.py": "streameval.ingest.kafka",
    "tests/support/integration/faulty_cluster.py": "streameval.ingest.kafka",
    "tests/unit/ope/evaluator/test_mixed_streams.py": "streameval.service.status_page",
}
"""Tests, fakes and worlds of one package that are not in `tests/unit/<package>`, with this package."""

DOCUMENTED = {"_asdict", "_fields", "_make", "_replace", "_current_frames"}
"""Names of the standard library that start with an underscore and are public."""


class Import(NamedTuple):
    """`from module import name`; `name` is empty for `import module`."""

    module: str
    name: str


def users() -> list[Path]:
    return sorted(path for place in ("tests", "examples") for path in (ROOT / place).rglob("*.py"))


def imports(path: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "streameval":
            yield from (Import(node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (Import(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "streameval")


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
    """Whether the name is imported as other packages of the program import it."""
    packages = packages_around(used.module)
    own = packages[-1]
    if own == used.module:
        return not used.name or used.name in exports(own) or own.count(".") <= 1
    if len(packages) <= 2 or used.module.rpartition(".")[2] in exports(own):
        return True
    exported = any(used.name in exports(package) for package in packages)
    return not exported and used in used_across_packages()


def inside_of(path: Path) -> list[str]:
    """The packages that this file may read the inside of."""
    name = path.relative_to(ROOT).as_posix()
    mirrored = [".".join(("streameval", *path.relative_to(ROOT).parts[2:-1]))] if name.startswith("tests/unit/") else []
    return mirrored + [package for place, package in INSIDE.items() if name == place or name.startswith(f"{place}/")]


def test_deep_imports_are_only_in_the_tests_of_the_package() -> None:
    deep = [
        f"{path.relative_to(ROOT)}: {used.module} {used.name}"
        for path in users()
        for used in imports(path)
        if not is_public(used) and not any(is_within(packages_around(used.module)[-1], own) for own in inside_of(path))
    ]
    assert not deep, "import a public name, or test it in tests/unit/<package>:\n" + "\n".join(deep)


def test_only_the_methods_of_an_object_use_its_private_names() -> None:
    private = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in users()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if node.attr not in DOCUMENTED and ast.unparse(node.value) not in ("self", "cls")
    ]
    assert not private, "\n".join(private)


@pytest.mark.parametrize("place", INSIDE)
def test_every_exception_is_needed(place: str) -> None:
    paths = sorted((ROOT / place).rglob("*.py")) if (ROOT / place).is_dir() else [ROOT / place]
    assert [used for path in paths for used in imports(path) if not is_public(used)]


@pytest.mark.parametrize(
    ("module", "name", "public"),
    [
        ("streameval", "Evaluator", True),
        ("streameval.ope.evaluator.evaluator", "Evaluator", False),
        ("streameval.ope.averages", "Cumulative", True),
        ("streameval.ope.averages.fixed", "Cumulative", False),
        ("streameval.ope.averages.moments", "fold", True),
        ("streameval.ope.report", "Report", True),
        ("streameval.service", "snapshots", True),
        ("streameval.service.daemon", "Daemon", True),
        ("streameval.ope.evaluator.cohorts", "CohortEvaluator", True),
        ("streameval.ingest.kafka", "source", False),
        ("streameval.ingest.kafka.source", "PROBE_INTERVAL", False),
    ],
)
def test_public_names_are_those_that_packages_use_of_each_other(module: str, name: str, public: bool) -> None:
    assert is_public(Import(module, name)) == public
