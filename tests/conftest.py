"""Print what is tested, choose the number of Hypothesis examples, and check that the threads of tests end."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Generator, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import streameval
from streameval.ope.core.kernel import compiled
from support.integration.which_broker import expected_broker
from support.paths import ROOT, TESTS

CHECKOUT = ROOT / "streameval"
PACKAGE = Path(*streameval.__path__)

# No deadline for an example: the time that it takes depends on how busy the machine is. The examples depend on the test
# alone, so that every run tries the same ones; `random` tries others.
settings.register_profile(
    "few", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], max_examples=20
)
settings.register_profile("quick", settings.get_profile("few"), max_examples=10)
settings.register_profile("every", settings.get_profile("few"), max_examples=50)
settings.register_profile("random", settings.get_profile("few"), max_examples=200, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "few"))

LONGEST = [
    TESTS / name
    for name in (
        "faults/test_schedules.py",
        "integration/test_kafka_source.py",
        "integration/test_kills.py",
        "integration/test_late_candidate.py",
        "integration/test_dashboards.py",
    )
]
"""Files that start first: at the end, a process would be busy with one while the others have nothing left to do."""

THREADS_END_WITHIN = 60.0
"""Seconds. Threads that take longer continue by themselves; a busy machine needs time to end a stopped thread."""
SHARED = "fsspecIO"
"""Prefix of the threads that talk to object stores, which the library starts once and keeps."""
POOL = "asyncio_"
"""Prefix of the threads of a server. They end with the server, which may serve all tests of a module."""


def pytest_report_header() -> str:
    kind = f"{'this checkout' if PACKAGE == CHECKOUT else 'installed'}, {'' if compiled() else 'not '}compiled"
    libraries = ", ".join(f"{name} {version(name)}" for name in ("numpy", "msgspec", "kafka-python"))
    return f"streameval {version('streameval')} ({kind}): {PACKAGE}\nwith: {libraries}\nkafka: {expected_broker()}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep garbage collections from walking over the collected tests, which stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest files first."""
    items.sort(key=lambda item: LONGEST.index(item.path) if item.path in LONGEST else len(LONGEST))


def pytest_sessionstart() -> None:
    """Refuse to test the checkout in CI."""
    if os.environ.get("CI") and PACKAGE == CHECKOUT:
        raise pytest.UsageError(f"CI tests the built wheel, not {PACKAGE}: use `make test`")


@pytest.fixture(autouse=True)
def no_thread_outlives_its_test() -> Iterator[None]:
    """Fail if a thread of the test still runs: it would log, draw random numbers or hold files during other tests."""
    before = set(threading.enumerate())
    yield
    require_end(before, allowed=POOL)


@pytest.fixture(autouse=True, scope="module")
def no_thread_outlives_its_module() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    require_end(before)


def require_end(before: set[threading.Thread], allowed: str = "") -> None:
    """Wait until all threads outside `before` and `allowed` have ended, and fail with their stacks if they do not."""

    def remaining() -> list[threading.Thread]:
        started = [thread for thread in threading.enumerate() if thread not in before]
        started = [thread for thread in started if not thread.name.startswith(SHARED)]
        return [thread for thread in started if not (allowed and thread.name.startswith(allowed))]

    deadline = time.monotonic() + THREADS_END_WITHIN
    while (threads := remaining()) and time.monotonic() < deadline:
        threads[0].join(0.1)
    if threads:
        frames = sys._current_frames()
        stacks = (traceback.format_stack(frames[thread.ident]) for thread in threads if thread.ident in frames)
        pytest.fail("\n".join([f"threads that do not end: {threads}", *("".join(stack) for stack in stacks)]))
