"""Run a command as the entry point does, inside this process."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable
from functools import cache
from typing import NamedTuple
from unittest.mock import patch

import pytest
import structlog
import typer.main

from streameval.cli import app as cli

built = cache(typer.main.get_command)
"""Build the commands once, because this takes longer than most of them."""


class Outcome(NamedTuple):
    """Hold the result of a command.

    Attributes:
        code: Exit code.
        out: What it wrote to stdout.
        err: What it wrote to stderr.
    """

    code: int
    out: str
    err: str


def command(capfd: pytest.CaptureFixture[str], *arguments: str) -> Outcome:
    """Run `streameval ARGUMENTS`, and undo its changes to logging and the process."""
    root, configured = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    collections, interval = gc.get_threshold(), sys.getswitchinterval()
    try:
        with (
            patch.object(sys, "argv", ["streameval", *arguments]),
            patch.object(typer.main, "get_command", built),
            pytest.raises(SystemExit) as left,
        ):
            cli.main()
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.configure(**configured)
        gc.set_threshold(*collections)
        gc.unfreeze()
        sys.setswitchinterval(interval)
    assert isinstance(left.value.code, int)
    return Outcome(left.value.code, *capfd.readouterr())


Run = Callable[..., Outcome]
