"""Runs a command as the entry point does, inside this process."""

from __future__ import annotations

import logging
import sys
from typing import NamedTuple
from unittest.mock import patch

import pytest
import structlog

from streameval import cli


class Outcome(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


def command(capfd: pytest.CaptureFixture[str], *arguments: str) -> Outcome:
    """Runs `streameval ARGUMENTS`; the logging that it configures does not outlive it."""
    root, configured = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    try:
        with patch.object(sys, "argv", ["streameval", *arguments]), pytest.raises(SystemExit) as left:
            cli.main()
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.configure(**configured)
    assert isinstance(left.value.code, int)
    return Outcome(left.value.code, *capfd.readouterr())
