"""Run a minute of `make soak`, and half a minute of `make soak-engine`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from support.factories import crowding
from support.integration.broker import Broker, RealBroker
from support.integration.ci import skip_unless_ci
from tools.soak import FAULTS_OF_ENGINE, Soak, complaints, spark_engine

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(1800)]

RATE = 5_000
"""Events a second: a quarter of `make soak`, for other tests are at work on the same processors."""
GROWN = 12.0
"""MiB by which memory may grow, of 230: soon after a start, much is used for the first time."""


def test_a_minute_of_load_and_faults_loses_nothing_leaks_nothing_and_hides_nothing(
    stoppable_broker: Broker, tmp_path: Path
) -> None:
    soak = Soak(stoppable_broker, tmp_path / "soak", 60.0, RATE, fault_every=10.0, warm_up=12.0)
    before = crowding()
    results = soak.run()
    assert not complaints(results, GROWN, slower=max(before, crowding())), results
    assert set(results["faults"]) == {"garbage", "standstill", "reload", "kill", "outage"}


def test_an_engine_under_load_and_faults_loses_and_repeats_nothing(stoppable_broker: Broker, tmp_path: Path) -> None:
    """Memory is looked at for longer by `make soak-engine`: the start of executors is most of this run."""
    if find_spec("pyspark") is None:
        skip_unless_ci("pyspark is not installed (make .venv-test/spark)")
    if not isinstance(stoppable_broker, RealBroker):
        skip_unless_ci(f"needs a broker that executors can reach, which the {stoppable_broker.kind} is not")
    how = {"rate": None, "client": "confluent", "engine": spark_engine()}
    results = Soak(stoppable_broker, tmp_path / "soak", 30.0, fault_every=5.0, warm_up=3.0, **how).run()
    assert results["accepted"] == results["events"]
    assert sum(results["rejected"].values()) == results["garbage"] > 0
    assert set(results["faults"]) == set(FAULTS_OF_ENGINE[:5])
    assert results["runs"] == 3
