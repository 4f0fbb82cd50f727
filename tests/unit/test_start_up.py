"""Test that nothing is imported before it is used."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import streameval

HEAVY = {
    "asyncio",
    "confluent_kafka",
    "jinja2",
    "kafka",
    "matplotlib",
    "numpy",
    "prometheus_client",
    "pyarrow",
    "pydantic",
    "rich",
    "river",
    "scipy",
    "starlette",
    "structlog",
    "uvicorn",
    "yaml",
    "zstandard",
}
NEEDED_BY_AN_EVALUATOR = {"numpy", "pydantic"}
COMMAND = """
from streameval.cli.app import main
sys.argv = ["streameval", *{arguments}]
try:
    main()
except SystemExit as left:
    assert not left.code, left.code
"""


def loaded(program: str) -> set[str]:
    """Run a program in a new process, and return the packages that it has imported at its end."""
    program = f"import json, sys\n{program}\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_the_package_imports_no_heavy_library() -> None:
    assert not loaded("import streameval") & HEAVY


def test_an_evaluator_imports_only_what_it_computes_with() -> None:
    program = "import streameval\nstreameval.Evaluator(candidates=['challenger']).report()"
    assert loaded(program) & HEAVY == NEEDED_BY_AN_EVALUATOR


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_the_command_line_imports_no_heavy_library(option: str) -> None:
    assert not loaded(COMMAND.format(arguments=[option])) & HEAVY


@pytest.mark.parametrize("name", ["run", "replay"])
def test_the_help_of_a_command_imports_no_heavy_library(name: str) -> None:
    by_typer = {"pydantic"}
    assert loaded(COMMAND.format(arguments=[name, "--help"])) & HEAVY <= by_typer


def test_every_public_name_is_found_and_listed() -> None:
    assert set(streameval.__all__) <= set(dir(streameval))
    assert all(getattr(streameval, name).__name__ == name for name in streameval.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'streameval' has no attribute 'Evalautor'"):
        getattr(streameval, "Evalautor")  # noqa: B009 - the type checker knows that there is none
