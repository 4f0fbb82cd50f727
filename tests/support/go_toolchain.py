"""Build programs that are only published as Go modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENVIRONMENT = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOTOOLCHAIN": "local", "GOWORK": "off"}
"""Variables that forbid a C compiler and any other Go than the installed one."""
QUICKLY = ["-gcflags=all=-N -l", "-ldflags=-s -w"]
"""Options for a quick build. A program that runs for milliseconds need not be optimised."""


def built(module: Path, directory: Path, package: str = ".") -> Path:
    """Build a program into the directory. Go's cache makes the next build quick.

    Args:
        module: Directory of a go.mod.
        directory: Directory for the program.
        package: Package of the program. The module contains or requires it.
    """
    made = directory / (module.name if package == "." else package.rpartition("/")[2])
    command = [toolchain(module), "-C", str(module), "build", *QUICKLY, "-o", str(made), package]
    outcome = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=ENVIRONMENT, timeout=900
    )
    assert outcome.returncode == 0, outcome.stdout
    return made


def toolchain(module: Path) -> str:
    """Return a `go` that is new enough for the module. If there is none, skip the test, or fail it in CI."""
    for program in (str(Path(sys.executable).with_name("go")), "go"):
        if understands(program, module):
            return program
    missing = "there is no Go that is new enough; `make test` takes one from requirements/go.lock"
    if os.environ.get("CI"):
        pytest.fail(f"CI runs every test, but {missing}")
    pytest.skip(missing)


def understands(go: str, module: Path) -> bool:
    """Return whether this Go is new enough for the module."""
    command = [go, "-C", str(module), "list", "-m"]
    try:
        return subprocess.run(command, capture_output=True, check=False, env=ENVIRONMENT, timeout=120).returncode == 0
    except FileNotFoundError:
        return False
