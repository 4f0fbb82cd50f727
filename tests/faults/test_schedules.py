"""Check that the daemon counts each event once through every schedule of faults.

A failure prints its seed and history. `make faults ARGS="--first SEED --schedules 1"` repeats it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from itertools import takewhile
from pathlib import Path

import pytest

from faults.defects import DEFECTS, FAULTS_AROUND
from faults.faults import FAULTS
from faults.simulator import Schedule, ViolationError
from support.paths import fast_directory

SCHEDULES = 1_000
FIRST_SCHEDULES = 100
"""Schedules of `make test`, which tries each kind of fault and each defect by further schedules."""
HUNDREDS = [
    pytest.param(first, marks=[pytest.mark.slow] * (first >= FIRST_SCHEDULES)) for first in range(0, SCHEDULES, 100)
]
MINUTES = 3
FIRST_OF_MANY, MANY = 200_000, 3_000
"""First seed and largest number of schedules in three minutes. `make faults` runs more."""


def run_schedules(seeds: Iterable[int], faults: Collection[str] | None = None) -> None:
    """Run one schedule after another.

    Raises:
        ViolationError: The daemon broke a promise.
    """
    for seed in seeds:
        with fast_directory() as directory:
            Schedule(seed, directory, faults).run()


@pytest.fixture(scope="module")
def deadline() -> float:
    """Return when three minutes of schedules end, including those that run by the hundred."""
    return time.monotonic() + 60.0 * MINUTES


@pytest.mark.parametrize("first", HUNDREDS)
@pytest.mark.usefixtures("deadline")
def test_each_event_counts_once_through_a_hundred_schedules(first: int) -> None:
    run_schedules(range(first, first + 100))


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_the_daemon_survives_one_kind_of_fault_again_and_again(fault: str) -> None:
    run_schedules(range(5), [fault])


def test_a_seed_gives_the_same_run_again(tmp_path: Path) -> None:
    runs = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        schedule = Schedule(7, tmp_path / name)
        schedule.run()
        runs.append((schedule.history, schedule.account, schedule.daemon.published.report))
    assert runs[0] == runs[1]
    assert runs[0][0], "the schedule has faults"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_each_event_counts_once_for_three_minutes(deadline: float) -> None:
    run_schedules(takewhile(lambda _: time.monotonic() < deadline, range(FIRST_OF_MANY, FIRST_OF_MANY + MANY)))


@pytest.mark.parametrize("defect", sorted(DEFECTS))
def test_schedules_find_each_defect_that_is_put_back(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    DEFECTS[defect](monkeypatch)
    with pytest.raises(ViolationError):
        run_schedules(range(SCHEDULES), FAULTS_AROUND.get(defect))
