"""Test when clocks of partitions advance, and when they go back."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from streameval.ingest.stages.watermark import CONFIRMED_BY, PartitionClock
from support.strategies import examples

LATENESS = 5.0


def clock_one_by_one(times: list[float]) -> float:
    """Return the time of a clock by its definition."""
    time = -np.inf
    for end in range(CONFIRMED_BY, len(times) + 1):
        window = times[end - CONFIRMED_BY : end]
        time = max(time, min(window))
        time = max(window) if max(window) < time - LATENESS else time
    return time


@given(st.lists(st.sampled_from([0.0, 1.0, 3.0, 40.0, 41.0, 90.0]), max_size=80), st.integers(1, 20))
@example([1.0] * 20 + [41.0] * (CONFIRMED_BY - 1), 3)
@example([1.0] * 20 + [41.0] * CONFIRMED_BY, 40)
@example([1.0] * 20 + [41.0] * 12 + [1.0] * (CONFIRMED_BY - 1), 40)
@example([1.0] * 20 + [41.0] * 12 + [1.0] * 50, 40)
@example([41.0] * 20 + [0.0, 0.0, 41.0] * 20, 40)
@examples(100)
def test_a_clock_does_not_depend_on_how_its_events_are_read(times: list[float], size: int) -> None:
    clock = PartitionClock()
    for first in range(0, len(times), size):
        clock.advance(np.array(times[first : first + size]), LATENESS)
    assert clock.time == clock_one_by_one(times)
