"""A minute of `make soak`."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.factories import crowding
from support.integration.broker import Broker
from tools.soak import Soak, complaints

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

RATE = 5_000
"""Events a second: a quarter of `make soak`, for other tests are at work on the same processors."""
GROWN = 12.0
"""MiB by which memory may grow, of 230: soon after a start, much is used for the first time."""


def test_a_minute_of_load_and_faults_loses_nothing_leaks_nothing_and_hides_nothing(
    stoppable_broker: Broker, tmp_path: Path
) -> None:
    soak = Soak(stoppable_broker, tmp_path / "soak", 60.0, RATE, fault_every=10.0, warm_up=12.0)
    before = crowding()
    found = soak.run()
    assert not complaints(found, GROWN, slower=max(before, crowding())), found
    assert set(found["faults"]) == {"garbage", "standstill", "reload", "kill", "outage"}
