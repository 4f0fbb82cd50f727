"""A minute of `make soak`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from integration.broker import Broker
from soak import Soak, complaints

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_minute_of_load_and_faults_loses_nothing_leaks_nothing_and_hides_nothing(
    stoppable_broker: Broker, tmp_path: Path
) -> None:
    rate = 20_000 if (os.cpu_count() or 1) >= 2 else 5_000
    soak = Soak(stoppable_broker, tmp_path / "soak", 60.0, rate, fault_every=9.0, warm_up=6.0)
    found = soak.run()
    assert not complaints(found), found
    assert set(found["faults"]) == {"garbage", "standstill", "reload", "kill", "outage"}
