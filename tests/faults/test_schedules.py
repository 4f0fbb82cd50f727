"""The daemon counts each event once through every schedule of faults.

A failure prints its seed and history. `make faults ARGS="--first SEED --schedules 1"` repeats it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.simulator import FAULTS, Schedule
from support.paths import fast_directory

SCHEDULES = 1_000


@pytest.mark.parametrize("first", range(0, SCHEDULES, 100))
def test_each_event_counts_once_through_a_hundred_schedules(first: int) -> None:
    for seed in range(first, first + 100):
        with fast_directory() as directory:
            Schedule(seed, directory).run()


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_the_daemon_survives_one_kind_of_fault_again_and_again(fault: str) -> None:
    for seed in range(10):
        with fast_directory() as directory:
            Schedule(seed, directory, [fault]).run()


def test_a_seed_gives_the_same_run_again(tmp_path: Path) -> None:
    runs = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        schedule = Schedule(7, tmp_path / name)
        schedule.run()
        runs.append((schedule.history, schedule.account, schedule.daemon.published.report))
    assert runs[0] == runs[1]
    assert runs[0][0], "the schedule has faults"
