"""Make a quick C compiler for tests that build the package."""

from __future__ import annotations

from pathlib import Path


def quick_compiler(directory: Path) -> str:
    """Write a compiler that does not optimise, which takes most of its time, and return its path."""
    path = directory / "quick-cc"
    path.write_text('#!/bin/sh\nexec cc "$@" -O0\n')
    path.chmod(0o755)
    return str(path)
