"""The header of each test run: the tested streameval and its libraries; and a check that tests end."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Generator, Iterator
from importlib.metadata import version
from itertools import chain, groupby
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
settings.register_profile("every", settings.get_profile("few"), max_examples=100)
settings.register_profile("random", settings.get_profile("few"), max_examples=200, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "few"))

SERVERS = [TESTS / name for name in ("integration", "deploy", "documents", "unit/ingest/kafka", "unit/service/http")]
"""Folders whose tests start brokers, browsers or other programs."""
LENGTHY = [
    TESTS / "unit" / name
    for name in (
        "cli/test_app.py",
        "cli/test_every_format.py",
        "cli/test_mistakes.py",
        "cli/test_plan.py",
        "cli/test_plots.py",
        "cli/test_plots_of_decisions.py",
        "events/test_fuzz.py",
        "ingest/test_background.py",
        "ingest/test_delayed_writers.py",
        "ingest/test_pipeline_reports.py",
        "ingest/test_simulated.py",
        "ope/core/test_event_time.py",
        "ope/core/test_lifts.py",
        "ope/core/test_mixture.py",
        "ope/core/test_variance.py",
        "ope/estimators/test_interpolated.py",
        "ope/evaluator/test_drift_detection.py",
        "ope/evaluator/test_dropping.py",
        "ope/evaluator/test_everything.py",
        "ope/evaluator/test_mixed_streams.py",
        "ope/promotion/test_clusters.py",
        "ope/reward_models",
        "ope/test_examination.py",
        "ope/test_power.py",
        "ope/test_slot_rewards.py",
        "service/status_page",
        "service/test_history.py",
        "service/test_logging.py",
        "service/test_process.py",
        "service/test_reload.py",
        "service/test_startup.py",
        "simulation",
    )
]
"""Files and folders that take half of the time of the unit tests."""
MARKED = {"servers": SERVERS, "lengthy": LENGTHY}
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
POOL = "asyncio_"
"""Threads that a server starts as it needs them, and ends with itself: where it serves a module, they stay for that."""


def pytest_report_header() -> str:
    kind = f"{'this checkout' if PACKAGE == CHECKOUT else 'installed'}, {'' if compiled() else 'not '}compiled"
    libraries = ", ".join(f"{name} {version(name)}" for name in ("numpy", "msgspec", "kafka-python"))
    return f"streameval {version('streameval')} ({kind}): {PACKAGE}\nwith: {libraries}\nkafka: {expected_broker()}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Modules whose tests `-m "not ..."` leaves out are not even imported."""
    left_out = [places for marker, places in MARKED.items() if f"not {marker}" in config.option.markexpr]
    return any(map(collection_path.is_relative_to, chain.from_iterable(left_out))) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collected tests stay to the end: garbage collections would walk over them in vain, now and during each test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for path, tests in groupby(items, key=lambda item: item.path):
        markers = [marker for marker, places in MARKED.items() if any(map(path.is_relative_to, places))]
        for item in tests:
            for marker in markers:
                item.add_marker(marker)
    items.sort(key=lambda item: LONGEST.index(item.path) if item.path in LONGEST else len(LONGEST))


def pytest_sessionstart() -> None:
    if missing := [place for place in (*SERVERS, *LENGTHY, *LONGEST) if not place.exists()]:
        raise pytest.UsageError(f"there are no tests at {', '.join(map(str, missing))}: correct {__file__}")
    if os.environ.get("CI") and PACKAGE == CHECKOUT:
        raise pytest.UsageError(f"CI tests the built wheel, not {PACKAGE}: use `make test`")


@pytest.fixture(autouse=True)
def no_thread_outlives_its_test() -> Iterator[None]:
    """Left over, it would log, draw random numbers or hold files while another test looks at those."""
    before = set(threading.enumerate())
    yield
    require_end(before, allowed=POOL)


@pytest.fixture(autouse=True, scope="module")
def no_thread_outlives_its_module() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    require_end(before)


def require_end(before: set[threading.Thread], allowed: str = "") -> None:
    """Wait until all threads have ended that were not there `before`; fails with what they do."""

    def left() -> list[threading.Thread]:
        started = [thread for thread in threading.enumerate() if thread not in before]
        return [thread for thread in started if not (allowed and thread.name.startswith(allowed))]

    deadline = time.monotonic() + THREADS_END_WITHIN
    while (threads := left()) and time.monotonic() < deadline:
        threads[0].join(0.1)
    if threads:
        frames = sys._current_frames()
        places = (traceback.format_stack(frames[thread.ident]) for thread in threads if thread.ident in frames)
        pytest.fail("\n".join([f"threads that do not end: {threads}", *("".join(place) for place in places)]))
