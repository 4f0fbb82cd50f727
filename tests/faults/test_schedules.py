"""Check that the daemon counts each event once through every schedule of faults.

A failure prints its seed and history. `make faults ARGS="--first SEED --schedules 1"` repeats it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import pytest

from faults.defects import DEFECTS, FAULTS_AROUND
from faults.faults import FAULTS
from faults.simulator import Schedule, ViolationError
from support.paths import fast_directory

SCHEDULES, AT_ONCE = 500, 50
"""Of `make test-all`; `make faults` runs more. `make test` runs the first ones, each kind of fault, and each defect."""
FIRST_SCHEDULES = 100
"""Schedules that are enough to find each defect that is put back."""
STARTS = [pytest.param(first, marks=[pytest.mark.slow] * (first > 0)) for first in range(0, SCHEDULES, AT_ONCE)]


def run_schedules(seeds: Iterable[int], faults: Collection[str] | None = None) -> None:
    """Run one schedule after another.

    Raises:
        ViolationError: The daemon broke a promise.
    """
    for seed in seeds:
        with fast_directory() as directory:
            Schedule(seed, directory, faults).run()


@pytest.mark.parametrize("first", STARTS)
def test_each_event_counts_once_through_fifty_schedules(first: int) -> None:
    run_schedules(range(first, first + AT_ONCE))


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
@pytest.mark.parametrize("defect", sorted(DEFECTS))
def test_schedules_find_each_defect_that_is_put_back(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    DEFECTS[defect](monkeypatch)
    with pytest.raises(ViolationError):
        run_schedules(range(FIRST_SCHEDULES), FAULTS_AROUND.get(defect))
