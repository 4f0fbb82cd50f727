"""Test that partitions are merged in the order of time, whenever and however they are read."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streameval.events import EventBatch
from streameval.events.origin import Origin
from support.arrivals import (
    IDLE,
    LATENESS,
    TOPIC,
    Arrival,
    arrivals_of,
    batch_of,
    fresh,
    logs,
    readings,
    steady,
    through_a_file,
)
from support.strategies import examples


def read(polls: Sequence[Sequence[Arrival]], partitions: int, restarts: bool = False) -> tuple[list, list]:
    """Return released and rejected events after all polls and the end of the log."""
    ordering = fresh(partitions=partitions)
    passed, rejected = [], []
    for poll in polls:
        out = ordering.take(batch_of(poll))
        passed += arrivals_of(out)
        rejected += [rejection.origin[1:] for rejection in out.rejected]
        if restarts:
            state = through_a_file(ordering.state())
            ordering = fresh()
            ordering.restore(state)
    return passed + arrivals_of(ordering.flush()), rejected


@given(data=st.data(), partitions=logs())
@examples(80)
def test_events_leave_in_time_order_whatever_is_read_first(data: st.DataObject, partitions: list) -> None:
    passed, rejected = read(data.draw(readings(partitions)), len(partitions))
    assert passed == sorted(tuple(arrival[:3]) for log in partitions for arrival in log)
    assert not rejected


@given(data=st.data(), partitions=logs(most_late=30))
@examples(80)
def test_late_events_count_once(data: st.DataObject, partitions: list) -> None:
    passed, rejected = read(data.draw(readings(partitions)), len(partitions))
    assert sorted(passed) == sorted(tuple(arrival[:3]) for log in partitions for arrival in log)
    assert not rejected


@given(data=st.data(), partitions=logs(most=25, most_late=30))
@examples(40)
def test_a_restart_after_every_poll_changes_nothing(data: st.DataObject, partitions: list) -> None:
    polls = data.draw(readings(partitions))
    assert read(polls, len(partitions), restarts=True) == read(polls, len(partitions))


def test_a_state_copies_no_buffered_event() -> None:
    """Take no copies on the heap. Taken every half minute, they left holes: a daemon grew by 85 MiB an hour."""
    ordering, names, count = fresh(partitions=2), [f"candidate-{number}" for number in range(20)], 2000
    for first in range(0, 3 * count, count):
        batch = EventBatch.from_arrays(
            reward=np.zeros(count),
            propensity=np.full(count, 0.5),
            policies=dict.fromkeys(names, np.full(count, 0.25)),
            timestamp=np.arange(first, first + count) // 10,  # coarse times are sorted by offset, too
        )
        ordering.take(replace(batch, origin=Origin.from_parts(TOPIC, [(0, range(first, first + count))])))
    taken = []
    for _ in range(3):  # a thread of another test may allocate meanwhile, but hardly each time
        tracemalloc.start()
        try:
            state = ordering.state()
            taken.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
    assert ordering.nbytes > 1_000_000
    assert min(taken) < ordering.nbytes / 20
    assert through_a_file(state) is not None


@given(st.data())
@examples(25)
def test_reading_live_gives_what_catching_up_gives(data: st.DataObject) -> None:
    """Read every event up to ten seconds after it happened. Partitions fall silent, and their end is seen."""
    delays = [data.draw(st.floats(0.0, 10.0)) for _ in range(3)]
    silences = [data.draw(st.tuples(st.floats(0, 60), st.floats(0, 60)).map(sorted)) for _ in range(3)]
    partitions = [
        [arrival for arrival in steady(partition, 250, every=0.25) if not silent[0] <= arrival.timestamp <= silent[1]]
        for partition, silent in enumerate(silences)
    ]
    live, positions = fresh(partitions=3), [0, 0, 0]
    passed, rejected = [], 0
    for now in np.arange(0.0, 110.0, data.draw(st.floats(2.0, 20.0))):
        ends = [
            sum(arrival.timestamp + delay <= now for arrival in log)
            for log, delay in zip(partitions, delays, strict=True)
        ]
        ended = {(TOPIC, partition): float(now) for partition in range(3) if positions[partition] == ends[partition]}
        out = [live.take(ended=ended)]
        poll = [
            arrival for log, first, end in zip(partitions, positions, ends, strict=True) for arrival in log[first:end]
        ]
        out.append(live.take(batch_of(poll)))
        positions = ends
        passed += [arrival for batch in out for arrival in arrivals_of(batch)]
        rejected += sum(len(batch.rejected) for batch in out)
    assert rejected == 0
    assert passed + arrivals_of(live.flush()) == read([[arrival for log in partitions for arrival in log]], 3)[0]


def later(arrivals: Sequence[Arrival], offset: int) -> list[Arrival]:
    return [arrival._replace(offset=arrival.offset + offset) for arrival in arrivals]


def test_no_event_is_released_before_every_partition_has_passed_its_time() -> None:
    ordering = fresh(partitions=2)
    assert len(ordering.take(batch_of(steady(0, 500)))) == 0
    out = ordering.take(batch_of(steady(1, 300)))
    assert out.timestamp[-1] < ordering.watermark == pytest.approx(29.9 - 0.9 - LATENESS)
    assert len(ordering.held) == 800 - len(out)


def test_a_partition_at_its_end_delays_the_others_at_most_for_the_timeout() -> None:
    ordering = fresh(partitions=2)
    ordering.take(batch_of(steady(0, 1000)))
    assert len(ordering.take(ended={(TOPIC, 1): 1e9})) > 0
    assert ordering.watermark == pytest.approx(99.9 - 0.9 - IDLE - LATENESS)


def test_an_old_answer_does_not_make_a_partition_idle_during_a_pause() -> None:
    """See the end before a pause of an hour. Events written in the pause are on time when they are read."""
    ordering = fresh(partitions=2)
    ordering.take(batch_of([*steady(0, 100), *steady(1, 100)]))
    ordering.take(ended={(TOPIC, 1): 1e9})
    ordering.take(batch_of([Arrival(3600.0 + number, 0, 100 + number) for number in range(60)]))
    assert len(ordering.take(ended={(TOPIC, 1): 1e9})) == 0
    assert not ordering.take(batch_of([Arrival(1000.0 + number, 1, 100 + number) for number in range(60)])).rejected


@pytest.mark.parametrize("restarts", [False, True])
def test_events_of_a_new_partition_count_even_if_other_partitions_are_far_ahead(restarts: bool) -> None:
    """Find the partition 60 seconds after its first event, with all that was written to it meanwhile."""
    ordering = fresh(partitions=2)
    before = ordering.take(batch_of([*steady(0, 1000), *steady(1, 1000)]))
    ordering.expect([(TOPIC, partition) for partition in range(3)])
    if restarts:
        state = through_a_file(ordering.state())
        ordering = fresh()
        ordering.restore(state)
    new, out, first = steady(2, 600, start=40.0), [before], 0
    while first < 600:
        out.append(ordering.take(batch_of(new[first : first + 70])))
        first += 70
    out.append(ordering.flush())
    assert not [rejection for batch in out for rejection in batch.rejected]
    passed = [arrival for batch in out for arrival in arrivals_of(batch)]
    assert sorted(passed) == [tuple(arrival[:3]) for arrival in sorted([*steady(0, 1000), *steady(1, 1000), *new])]
    assert [arrival for arrival in passed if arrival[0] > before.timestamp[-1]] == sorted(
        arrival for arrival in passed if arrival[0] > before.timestamp[-1]
    )


def test_partitions_that_a_recreated_topic_lacks_are_not_waited_for() -> None:
    ordering = fresh(partitions=4)
    passed = len(ordering.take(batch_of([arrival for partition in range(4) for arrival in steady(partition, 100)])))
    ordering.expect([])
    ordering.expect([(TOPIC, 0), (TOPIC, 1)])
    passed += len(ordering.take(batch_of([*steady(0, 1000, start=20.0), *steady(1, 1000, start=20.0)])))
    assert ordering.watermark == pytest.approx(119.9 - 0.9 - LATENESS)
    assert passed + len(ordering.held) == 2400
    assert len(ordering.take(ended={(TOPIC, 0): 1e9, (TOPIC, 1): 1e9})) > 0
    assert len(ordering.held) == 0


def test_the_rest_of_a_quiet_topic_is_released_when_it_is_old_enough() -> None:
    ordering = fresh(partitions=2)
    both = [(TOPIC, 0), (TOPIC, 1)]
    assert len(ordering.take(batch_of(steady(0, 3, every=60.0)))) == 0
    assert len(ordering.take(ended=dict.fromkeys(both, 120.0 + LATENESS))) == 2
    assert len(ordering.take(ended={both[0]: 1e9})) == 0
    assert len(ordering.take(ended=dict.fromkeys(both, 120.1 + LATENESS + IDLE))) == 1
    assert len(ordering.held) == 0
    ordering.take(batch_of([Arrival(119.0, 1, 0), Arrival(121.0, 1, 1)]))
    assert len(ordering.take(ended=dict.fromkeys(both, 1e9))) == 2


def test_some_clocks_ahead_make_no_other_event_late() -> None:
    rng = np.random.default_rng(3)
    ahead = rng.random(5000) < 0.1
    times = np.arange(5000) / 10 + np.where(ahead, 3600.0, 0.0)
    out = fresh(partitions=1).take(batch_of([Arrival(time, 0, number) for number, time in enumerate(times.tolist())]))
    assert not out.rejected
    assert len(out) > 4300


def test_an_event_without_a_time_is_rejected() -> None:
    out = fresh(partitions=1).take(batch_of([Arrival(np.nan, 0, 0)]))
    assert [rejection.reason for rejection in out.rejected] == ["missing_field"]


def test_a_full_memory_stops_the_partitions_that_are_ahead() -> None:
    ordering = fresh(max_bytes=20_000, partitions=3)
    ordering.take(batch_of([*steady(0, 300), *steady(1, 30), *steady(2, 60)]))
    assert ordering.ahead() == {(TOPIC, 0), (TOPIC, 2)}
    ordering.take(batch_of(later(steady(1, 300, start=3.0), 30)))
    assert ordering.ahead() == {(TOPIC, 0), (TOPIC, 1)}
    ordering.take(batch_of([*later(steady(2, 300, start=6.0), 60), *later(steady(0, 300, start=30.0), 300)]))
    ordering.take(batch_of([*later(steady(1, 300, start=33.0), 330), *later(steady(2, 300, start=36.0), 360)]))
    assert ordering.ahead() == {(TOPIC, 1), (TOPIC, 2)}
    ordering.take(ended={(TOPIC, partition): 1e9 for partition in range(3)})
    assert ordering.ahead() == frozenset()


def test_a_partition_at_its_end_is_not_waited_for_when_memory_is_full() -> None:
    ordering = fresh(max_bytes=10_000, partitions=3)
    ordering.take(ended={(TOPIC, 2): 0.0})
    ordering.take(batch_of([*steady(0, 300), *steady(1, 100)]))
    assert ordering.ahead() == {(TOPIC, 0)}


def test_a_partition_just_read_to_its_end_is_not_waited_for_when_memory_is_full() -> None:
    """Let the other one continue, because otherwise each would wait for the other."""
    ordering = fresh(max_bytes=10_000, partitions=2)
    ordering.take(batch_of([*steady(0, 300), *steady(1, 250)]))
    assert ordering.ahead() == {(TOPIC, 0)}
    ordering.take(ended={(TOPIC, 1): 1e9})
    assert ordering.ahead() == frozenset()


def test_memory_is_bounded_even_if_a_partition_never_catches_up() -> None:
    """Pass on events beyond the limit early, and events behind those as they come."""
    most, ordering = 50_000, fresh(max_bytes=50_000, partitions=2)
    arrivals, passed, rejected = steady(0, 20_000), 0, 0
    for first in range(0, 20_000, 500):
        out = ordering.take(batch_of(arrivals[first : first + 500]))
        passed, rejected = passed + len(out), rejected + len(out.rejected)
        assert ordering.nbytes <= 2 * most
    assert passed == ordering.released_early > 15_000
    assert passed + len(ordering.held) == 20_000
    assert not rejected
    late = ordering.take(batch_of(steady(1, 100)))
    assert late.timestamp[-1] < ordering.watermark == pytest.approx(9.9 - 0.9 - LATENESS)
    assert ordering.buffered().late == 0, "no partition was ever known to be further"


def test_events_of_one_time_do_not_fill_the_memory() -> None:
    ordering = fresh(max_bytes=30_000, partitions=1)
    for number in range(50):
        out = ordering.take(batch_of([Arrival(7.0, 0, 500 * number + offset) for offset in range(500)]))
        assert ordering.nbytes <= 60_000
    assert isinstance(out, EventBatch)
    assert ordering.released_early > 0
