"""Clocks of partitions: when a new partition is treated like the others."""

from __future__ import annotations

import pytest

from streameval.ingest.stages.watermark import CONFIRMED_BY, Watermarks
from support.arrivals import TOPIC, Arrival, batch_of

LATENESS, PASSED = 5.0, 100.0


def events(*times: float) -> list[Arrival]:
    return [Arrival(time, 1, number) for number, time in enumerate(times)]


@pytest.mark.parametrize(("behind", "admitted"), [(0.5, True), (0.0, False), (-0.5, False)])
def test_a_new_partition_may_bring_older_events_until_it_reaches_where_the_others_were(
    behind: float, admitted: bool
) -> None:
    clocks = Watermarks({TOPIC: 0.0}, LATENESS, idle_timeout=10.0)
    clocks.expect([(TOPIC, 0), (TOPIC, 1)], passed=PASSED)
    reached = [PASSED + LATENESS - behind] * CONFIRMED_BY
    assert not clocks.on_time(batch_of(events(PASSED - 50.0, *reached)), PASSED).rejected
    later = clocks.on_time(batch_of(events(PASSED + 1.0)), PASSED + 2.0)
    assert len(later) == admitted
    assert [each.reason for each in later.rejected] == ["too_late"] * (not admitted)
