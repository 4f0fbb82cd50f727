"""Test that no event is lost, however many batches are buffered."""

from __future__ import annotations

from streameval.ingest.stages import EventOrder
from support.arrivals import TOPIC, Arrival, arrivals_of, batch_of

LATENESS, IDLE = 5.0, 10.0
PLENTY = 1 << 30


def fresh(max_bytes: int = PLENTY, partitions: int = 0) -> EventOrder:
    ordering = EventOrder(TOPIC, max_lateness=LATENESS, idle_timeout=IDLE, max_bytes=max_bytes)
    ordering.expect([(TOPIC, partition) for partition in range(partitions)])
    return ordering


def steady(partition: int, count: int, every: float = 0.1, start: float = 0.0) -> list[Arrival]:
    return [Arrival(start + every * number, partition, number) for number in range(count)]


def test_no_event_is_lost_however_many_batches_are_buffered() -> None:
    ordering = fresh(partitions=2)
    arrivals = steady(0, 1200)
    for arrival in arrivals:
        assert len(ordering.take(batch_of([arrival]))) == 0
    assert len(ordering.held) == 1200
    assert [arrival[1:3] for arrival in arrivals_of(ordering.flush())] == [arrival[1:3] for arrival in arrivals]
