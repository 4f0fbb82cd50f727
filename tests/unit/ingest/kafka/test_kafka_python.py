"""Batches of Kafka's format, unpacked by streameval and by kafka-python."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from streameval.ingest.kafka.kafka_python import FetchedBatch, FetchedMessage, FetchedMessages

PLACE = TopicPartition("events", 0)
SOME = [(1_700_000_000_000, b"key", b"first", []), (1_700_000_000_007, None, None, []), (5, b"", b"x" * 9000, [])]

Written = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
written = st.tuples(
    st.integers(0, 2**45),
    st.none() | st.binary(max_size=200),
    st.none() | st.binary(max_size=300),
    st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2),
)


def batch_of(messages: list[Written], first: int = 0, compression: int = 0, gap: int = 0) -> bytearray:
    """A batch with `gap` offsets left out after each message, as in a compacted topic."""
    builder = MemoryRecordsBuilder(2, compression, 1 << 20, offset=first)
    for timestamp, key, value, headers in messages:
        builder.append(timestamp, key, value, headers)
        builder.skip(gap)
    builder.close()
    return bytearray(builder.buffer())


def stamped_by_broker(batch: bytearray) -> bytearray:
    batch[DefaultRecordBatch.ATTRIBUTES_OFFSET + 1] |= DefaultRecordBatch.TIMESTAMP_TYPE_MASK
    return batch


def by_library(data: bytes) -> list[FetchedMessage]:
    return [(each.offset, each.value, each.timestamp) for batch in MemoryRecords(data) for each in batch]


class Fetch:
    """A fetch of some batches from an offset on, and the messages skipped in it."""

    def __init__(self, data: bytes, start: int = 0) -> None:
        self.skipped: list[tuple[int, int | None, str]] = []
        records = MemoryRecords(bytes(data))

        def batches() -> Iterator[Any]:
            for batch in records:
                yield FetchedBatch(batch, lambda: self.part.next_fetch_offset, self.skip)

        one = batches()
        following = SimpleNamespace(next_batch=lambda: next(one, None))
        self.part = FetchedMessages(start, PLACE, following, check_crcs=False)

    def skip(self, end: int, count: int | None, reason: str) -> None:
        self.skipped.append((end, count, reason))
        self.part.next_fetch_offset = end

    def takes(self, most: int) -> Iterator[tuple[list[FetchedMessage], int]]:
        """The messages of each call, and the offset to be fetched after it."""
        while self.part:
            yield self.part.take(most), self.part.next_fetch_offset


@given(st.lists(st.lists(written, min_size=1, max_size=8), min_size=1, max_size=4), st.integers(1, 9), st.data())
def test_messages_are_those_that_the_library_reads(
    batches: list[list[Written]], most: int, data: st.DataObject
) -> None:
    encoded, first = b"", 10
    for messages in batches:
        gap = data.draw(st.integers(0, 2))
        batch = batch_of(messages, first, data.draw(st.integers(0, 4)), gap)
        encoded += stamped_by_broker(batch) if data.draw(st.booleans()) else batch
        first += len(messages) * (gap + 1)
    start = data.draw(st.integers(0, first))
    expected = [message for message in by_library(encoded) if message[0] >= start]
    fetch = Fetch(encoded, start)
    found: list[FetchedMessage] = []
    for messages, position in fetch.takes(most):
        found += messages
        assert len(messages) <= most
        assert messages == [] or position > messages[-1][0]
        assert position <= next((message[0] for message in expected[len(found) :]), first)
    assert found == expected
    assert fetch.skipped == []


@pytest.mark.parametrize(
    ("place", "wrong"),
    [(0, 0x7E), (0, 0xFF), (4, 0x60), (8, 0x40)],
    ids=["longer record", "number without end", "longer key", "longer value"],
)
@pytest.mark.parametrize("message", [0, 7, 19])
def test_a_damaged_batch_is_read_as_far_as_the_library_reads_it(message: int, place: int, wrong: int) -> None:
    count, size = 20, 15
    damaged = batch_of([(0, b"key", b"value", [])] * count)
    records = DefaultRecordBatch.HEADER_STRUCT.size
    assert len(damaged) == records + count * size
    damaged[records + message * size + place] = wrong
    expected, reason = [], ""
    try:
        for each in next(MemoryRecords(bytes(damaged))):
            expected.append((each.offset, each.value, each.timestamp))
    except Exception as error:  # noqa: BLE001 - whatever the library raises
        reason = f"{type(error).__name__}: {error}"
    fetch = Fetch(bytes(damaged))
    assert [each for messages, _ in fetch.takes(7) for each in messages] == expected
    assert fetch.skipped == ([(count, count, reason)] if reason else [])


def test_batches_of_the_old_format_are_read() -> None:
    builder = MemoryRecordsBuilder(1, 1, 1 << 20, offset=3)
    for timestamp, key, value, _ in SOME:
        builder.append(timestamp, key, value)
    builder.close()
    encoded = bytes(builder.buffer())
    (messages, position), *rest = Fetch(encoded, 3).takes(5)
    assert messages == by_library(encoded)
    assert [message[1] for message in messages] == [b"first", None, b"x" * 9000]
    assert rest == []
    assert position == messages[-1][0] + 1


def test_forgotten_messages_are_not_returned() -> None:
    part = Fetch(batch_of(SOME)).part
    assert part.take(1) == [(0, b"first", 1_700_000_000_000)]
    assert part
    part.drain()
    assert not part


@pytest.mark.parametrize("most", [1, 2, 3])
def test_an_error_behind_messages_comes_after_them(most: int) -> None:
    whole = batch_of(SOME)
    part = Fetch(bytes(whole) + bytes(8) + (4).to_bytes(4, "big") + bytes(4)).part
    found = [message for _ in range(-(-3 // most)) for message in part.take(most)]
    assert [message[0] for message in found] == [0, 1, 2]
    with pytest.raises(Exception, match="Record size is less"):
        part.take(most)
