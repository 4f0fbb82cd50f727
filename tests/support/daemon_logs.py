"""Write logs as the daemon writes them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import structlog

from streameval.service.logging import configure_logging


@contextmanager
def daemon_logs(level: str = "info") -> Iterator[None]:
    """Send logs to stderr as JSON with the daemon's rate limit, and restore logging at the end."""
    root, kafka = logging.getLogger(), logging.getLogger("kafka")
    handlers, previous = root.handlers[:], root.level
    configure_logging(level, "json")
    try:
        yield
    finally:
        structlog.reset_defaults()
        root.handlers[:] = handlers
        root.setLevel(previous)
        kafka.setLevel(logging.NOTSET)


def written_logs(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    """Return the log entries on stderr since the last call."""
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]
