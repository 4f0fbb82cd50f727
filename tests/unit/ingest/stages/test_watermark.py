"""Test when clocks of partitions advance, and when they go back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streameval.ingest.stages.watermark import CONFIRMED_BY, PartitionClock, Watermarks
from support.arrivals import TOPIC, Arrival, batch_of
from support.strategies import examples

LATENESS = 5.0


def clocks_after(*times: float) -> Watermarks:
    clocks = Watermarks({TOPIC: 0.0}, LATENESS, idle_timeout=10.0)
    batch = batch_of([Arrival(time, 0, number) for number, time in enumerate(times)])
    assert batch.origin is not None
    clocks.advance(batch.origin, batch.timestamp)
    return clocks


@pytest.mark.parametrize(("ahead", "reached"), [(CONFIRMED_BY - 1, 100.0), (CONFIRMED_BY, 160.0)])
def test_a_clock_advances_with_ten_events_in_a_row(ahead: int, reached: float) -> None:
    assert clocks_after(*[100.0] * 20, *[160.0] * ahead).newest == reached


@pytest.mark.parametrize(("right", "reached"), [(CONFIRMED_BY - 1, 160.0), (CONFIRMED_BY, 100.0), (50, 100.0)])
def test_a_clock_goes_back_when_ten_events_in_a_row_are_far_behind_it(right: int, reached: float) -> None:
    assert clocks_after(*[100.0] * 20, *[160.0] * 12, *[100.0] * right).newest == reached


def test_late_events_among_others_do_not_set_a_clock_back() -> None:
    times = [0.0 if number % 3 else 160.0 for number in range(60)]
    assert clocks_after(*[160.0] * 20, *times).newest == 160.0


def clock_one_by_one(times: list[float]) -> float:
    """Return the time of a clock by its definition."""
    time = -np.inf
    for end in range(CONFIRMED_BY, len(times) + 1):
        window = times[end - CONFIRMED_BY : end]
        time = max(time, min(window))
        time = max(window) if max(window) < time - LATENESS else time
    return time


@given(st.lists(st.sampled_from([0.0, 1.0, 3.0, 40.0, 41.0, 90.0]), max_size=80), st.integers(1, 20))
@examples(100)
def test_a_clock_does_not_depend_on_how_its_events_are_read(times: list[float], size: int) -> None:
    clock = PartitionClock()
    for first in range(0, len(times), size):
        clock.advance(np.array(times[first : first + size]), LATENESS)
    assert clock.time == clock_one_by_one(times)
