"""Programs of modules below tests/ that Go builds: what its authors give in that language alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENVIRONMENT = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOTOOLCHAIN": "local", "GOWORK": "off"}
"""Neither with a C compiler nor with another Go than the one that is there."""
QUICKLY = ["-gcflags=all=-N -l", "-ldflags=-s -w"]
"""Nothing is optimised that runs for milliseconds."""


def built(module: Path, directory: Path) -> Path:
    """The module's program, made in the directory; its parts stay in Go's cache, for the next time."""
    made = directory / module.name
    command = [toolchain(module), "-C", str(module), "build", *QUICKLY, "-o", str(made), "."]
    outcome = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=ENVIRONMENT, timeout=900
    )
    assert outcome.returncode == 0, outcome.stdout
    return made


def toolchain(module: Path) -> str:
    """A `go` that is new enough for the module; without one the test is left out, in CI it fails."""
    for each in (str(Path(sys.executable).with_name("go")), "go"):
        if understands(each, module):
            return each
    missing = "there is no Go that is new enough; `make test` takes one from requirements/go.lock"
    if os.environ.get("CI"):
        pytest.fail(f"CI runs every test, but {missing}")
    pytest.skip(missing)


def understands(go: str, module: Path) -> bool:
    """Whether this Go reads the module, which names the oldest that builds it."""
    command = [go, "-C", str(module), "list", "-m"]
    try:
        return subprocess.run(command, capture_output=True, check=False, env=ENVIRONMENT, timeout=120).returncode == 0
    except FileNotFoundError:
        return False
