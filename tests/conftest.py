"""What every run of the tests says first: which streameval it tests, and with what."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import pytest
from integration.which_broker import expected_broker

import streameval

CHECKOUT = Path(__file__).parents[1] / "streameval"
PACKAGE = Path(*streameval.__path__)


def pytest_report_header() -> str:
    kind = "this checkout" if PACKAGE == CHECKOUT else "installed"
    libraries = ", ".join(f"{name} {version(name)}" for name in ("numpy", "msgspec", "kafka-python"))
    return f"streameval {version('streameval')} ({kind}): {PACKAGE}\nwith: {libraries}\nkafka: {expected_broker()}"


def pytest_sessionstart() -> None:
    if os.environ.get("CI") and PACKAGE == CHECKOUT:
        raise pytest.UsageError(f"CI tests the built wheel, not {PACKAGE}: use `make test`")
