"""Give tests an empty directory to run commands in."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from support.commands import Run, command


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command in an empty directory, without colours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    return partial(command, capfd)
