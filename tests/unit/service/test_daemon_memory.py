"""Check that the loop keeps no memory of events that it has passed on."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator

import pytest

from streameval.config.model import Config
from streameval.ingest import pipeline
from streameval.ingest.base import PartitionStatus, Records, SourceStatus
from streameval.service.daemon import Daemon
from streameval.service.startup import start_fresh
from support.factories import ListSource
from support.messages import message

PER_POLL, POLLS, RATE = 1000, 6, 1000
"""Events per poll, polls per third of the run, and events per second of their timestamps."""
GROWTH = 60_000
"""Bytes: 10 per event of the last third."""
SETTINGS = {
    "source": {"kind": "kafka", "topic": "t", "max_lateness": "1s"},
    "policies": {"candidates": ["challenger"]},
    "estimators": ["ips"],
    "averages": ["cumulative", "decay"],
    "drift": None,
}


class TwoPartitions(ListSource):
    """Alternate between two partitions, so that events are ordered by time."""

    def status(self) -> SourceStatus:
        return SourceStatus(True, self.ended, tuple(PartitionStatus("t", number, 0, 0, None) for number in range(2)))


def poll(first: int) -> list[Records]:
    numbers = range(first, first + PER_POLL)
    events = [message(number, timestamp=number / RATE, policies={"challenger": 0.25}) for number in numbers]
    return [Records("t", half, numbers[half::2], events[half::2]) for half in range(2)]


@pytest.mark.slow
def test_twice_as_many_events_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "WATCHED_IDS", PER_POLL)
    start, sizes = start_fresh(Config.model_validate(SETTINGS)), []

    def note_size() -> None:
        start.evaluator.fold_pending()  # how many events are pending depends on the speed of the machine
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])

    def polls() -> Iterator[list[Records]]:
        for number in range(3 * POLLS):
            if number == POLLS:
                tracemalloc.start()  # slow, and imports come first
            if number and number % POLLS == 0:
                note_size()
            yield poll(number * PER_POLL)
        note_size()

    source = TwoPartitions(polls())
    daemon = Daemon(source, start.pipeline, start.evaluator, publish_interval=3600.0, stop_when_exhausted=True)
    try:
        daemon.run()
    finally:
        tracemalloc.stop()
    assert daemon.published.accepted > 2 * POLLS * PER_POLL
    assert sizes[2] - sizes[1] < GROWTH, sizes
