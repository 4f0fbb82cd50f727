"""Test that no event is lost, however many batches are buffered."""

from __future__ import annotations

from support.arrivals import arrivals_of, batch_of, fresh, steady


def test_no_event_is_lost_however_many_batches_are_buffered() -> None:
    ordering = fresh(partitions=2)
    arrivals = steady(0, 1200)
    for arrival in arrivals:
        assert len(ordering.take(batch_of([arrival]))) == 0
    assert len(ordering.held) == 1200
    assert [arrival[1:3] for arrival in arrivals_of(ordering.flush())] == [arrival[1:3] for arrival in arrivals]
