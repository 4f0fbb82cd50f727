"""Call programs of Debian packages and scripts of the examples."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def program(name: str, package: str) -> str:
    """Return the path of an installed program. If it is missing, skip the test, or fail it in CI."""
    path = shutil.which(name)
    if path is None:
        if os.environ.get("CI"):
            pytest.fail(f"CI runs every test, but {name} is missing (Debian package: {package})")
        pytest.skip(f"{name} is not installed (Debian package: {package})")
    return path


def output(*command: str, code: int = 0, seconds: float = 120.0) -> str:
    """Return the output of a program.

    Args:
        command: Program and arguments.
        code: Exit code that it must end with.
        seconds: Time limit.
    """
    ran = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds, check=False
    )
    assert ran.returncode == code, ran.stdout
    return ran.stdout


def script(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python script that imports the modules next to it, and return the result."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    return subprocess.run(
        [sys.executable, str(path), *arguments], env=environment, capture_output=True, text=True, check=False
    )
