"""Test that no event is lost if writers send batches or cut their timestamps, and that lateness is seen."""

from __future__ import annotations

from itertools import pairwise

import pytest

from support.delayed_writers import LiveReading, Writers

SCENARIOS = {
    "flushes of 10 s, 1 s apart": Writers(flush=10.0, stagger=1.0),
    "flushes of 30 s, 4 s apart": Writers(flush=30.0, stagger=4.0),
    "flushes of 60 s, 2 s apart, an event a second": Writers(flush=60.0, stagger=2.0, rate=1.0),
    "flushes of 30 s by three hosts": Writers(flush=30.0, stagger=2.0, hosts=3),
    "times to a second, 100 events a second": Writers(coarseness=1.0, rate=100.0),
    "times to a minute": Writers(coarseness=60.0),
    "times to a day, an event a second": Writers(coarseness=86_400.0, rate=1.0),
    "1 partition": Writers(partitions=1),
    "4 partitions, 2 of them idle": Writers(partitions=4, idle=2),
    "64 partitions, 60 of them idle": Writers(partitions=64, idle=60),
    "64 partitions, flushes of 30 s, times to a minute": Writers(
        partitions=64, flush=30.0, stagger=1.0, coarseness=60.0
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_event_is_lost_and_few_are_out_of_order(name: str) -> None:
    writers = SCENARIOS[name]
    events = max(500, round(5 * writers.flush * writers.rate))
    reading = LiveReading(writers, events)
    assert reading.lost_share == 0.0
    assert len(reading.times) == events
    assert sum(later < earlier for earlier, later in pairwise(reading.times)) < 0.05 * events


@pytest.mark.parametrize(
    "writers",
    [
        Writers(flush=30.0, stagger=2.0, hosts=3),
        Writers(flush=60.0, stagger=4.0, hosts=2),
        Writers(flush=60.0, stagger=4.0),
    ],
)
def test_the_lateness_that_the_status_calls_sufficient_keeps_the_order(writers: Writers) -> None:
    configured = LiveReading(writers, events=1_000).buffered
    assert configured.late > 0.1 * 1_000
    reading = LiveReading(writers, events=1_000, max_lateness=configured.sufficient_lateness)
    assert sum(later < earlier for earlier, later in pairwise(reading.times)) < 0.01 * 1_000
    assert reading.buffered.late < 0.01 * 1_000


@pytest.mark.parametrize("window", ["1m", "10m"])
def test_decisions_that_come_late_keep_their_rewards(window: str) -> None:
    """Keep rewards that are in the log before their decisions until the decisions come."""
    writers = Writers(flush=30.0, stagger=4.0)
    reading = LiveReading(writers, events=1_000, rewards={"topic": "clicks", "window": window})
    assert len(reading.times) == 1_000
    assert sum(float(batch.reward.sum()) for batch in reading.batches) == 1_000.0


def test_lateness_shows_that_the_time_out_is_shorter_than_the_flushes() -> None:
    writers = Writers(flush=30.0, stagger=4.0)
    assert 1.0 < LiveReading(writers, events=1_000).lateness < 30.0
    patient = LiveReading(writers, events=1_000, idle_timeout=30.0)
    assert patient.times == sorted(patient.times)
    assert patient.lateness == 0.0
