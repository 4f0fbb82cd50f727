"""Test that a message that is unpacked to more than the limit is cut, and takes no more memory than that."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections.abc import Iterable
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard
from kafka import TopicPartition
from kafka.codec import lz4, snappy, snappy_encode
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from kafka.record.util import calc_crc32c, encode_varint

from streameval.events import JsonDecoder
from streameval.ingest.kafka.kafka_python_internals import (
    Allowance,
    AllowanceSpentError,
    bound_messages,
)
from streameval.ingest.kafka.unpacking import unpacked

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
KEY = TopicPartition("decisions", 0)
LIMIT = 100_000


def batch(codec: int, *values: bytes | None, first: int = 0, magic: int = 2) -> bytes:
    """Return a batch as a producer writes it."""
    if magic < 2:
        builder: Any = LegacyRecordBatchBuilder(magic, codec, 10**6)
    else:
        builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 10**6)
    for number, value in enumerate(values):
        more = [[("h", b"1")]] if magic == 2 else []
        builder.append(number, 1_000 + number, b"key", value, *more)
    built = bytearray(builder.build())
    built[:8] = first.to_bytes(8, "big")
    return bytes(built)


def part(*batches: bytes, limit: int = LIMIT, check_crcs: bool = True) -> tuple[Any, Allowance]:
    """Return what a consumer unpacks the batches of a fetch with."""
    fetcher = SimpleNamespace(PartitionRecords=Fetcher.PartitionRecords)
    allowance = bound_messages(SimpleNamespace(_fetcher=fetcher), limit)
    return fetcher.PartitionRecords(0, KEY, MemoryRecords(b"".join(batches)), check_crcs=check_crcs), allowance


def taken(*batches: bytes) -> list[tuple[int, int, bytes | None]]:
    records, allowance = part(*batches)
    some: list[Any] = []
    while records:
        allowance.refill()
        try:
            some += records.take(1000)
        except AllowanceSpentError:
            continue
    return [(record.offset, record.timestamp, record.value) for record in some]


@pytest.mark.parametrize("codec", [0, GZIP, SNAPPY, LZ4, ZSTD])
def test_messages_of_every_codec_are_what_was_written(codec: int) -> None:
    values = [b"a" * number if number % 7 else None for number in range(300)]
    expected = [(number, 1_000 + number % 150, value) for number, value in enumerate(values)]
    read = taken(batch(codec, *values[:150]), batch(codec, *values[150:], first=150))
    assert read == expected


def test_records_that_cannot_be_read_stay_unreadable() -> None:
    """The library forgets an error in the middle of a fetch if it validates the position at that moment."""
    records, _ = part(batch(GZIP, b"one"), batch(GZIP, b"two", first=1)[:-1] + b"?")
    assert [record.value for record in records.take(10)] == [b"one"]
    for _ in range(3):
        with pytest.raises(CorruptRecordError):
            records.take(10)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [GZIP, SNAPPY])
def test_messages_of_old_formats_are_what_was_written(codec: int, magic: int) -> None:
    assert [value for _, _, value in taken(batch(codec, b"one", b"two", magic=magic))] == [b"one", b"two"]


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_message_that_is_unpacked_to_more_than_the_limit_is_cut_and_those_around_it_are_read(codec: int) -> None:
    read = taken(batch(codec, b"one", b"{" + b" " * 3 * LIMIT, b"two", b"x" * LIMIT))
    assert [offset for offset, _, _ in read] == [0, 1, 2, 3]
    assert [read[0][2], *[value for _, _, value in read[2:]]] == [b"one", b"two", b"x" * LIMIT]
    message = read[1][2]
    assert message is not None
    assert len(message) < 1100
    (rejected,) = JsonDecoder().decode_batch([message]).rejected
    assert rejected.reason == "malformed"
    assert rejected.detail.startswith("a message of 3000")


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [GZIP, SNAPPY])
def test_a_set_of_messages_of_an_old_format_is_unreadable_if_it_is_unpacked_to_more(codec: int, magic: int) -> None:
    with pytest.raises(CorruptRecordError, match="more than 100000 bytes"):
        taken(batch(codec, b" " * 3 * LIMIT, magic=magic))


def test_a_poll_returns_about_as_much_as_one_long_message() -> None:
    records, allowance = part(*(batch(ZSTD, *[b"x" * 40_000] * 2, first=2 * number) for number in range(5)))
    polls = []
    while records:
        allowance.refill()
        try:
            polls.append(len(records.take(1000)))
        except AllowanceSpentError:
            polls.append(0)
    assert [polled for polled in polls if polled] == [3, 3, 3, 1]


def test_a_block_of_snappy_that_claims_gigabytes_is_unreadable() -> None:
    with pytest.raises(CorruptRecordError, match="a block of 7 bytes cannot have 4294967295 bytes of text"):
        unpacked(SNAPPY, b"\xff\xff\xff\xff\x0f\x00x").read(1)


PIECE = b" " * 2**20


def compressed(codec: int, pieces: Iterable[bytes]) -> bytes:
    """Compress a stream that does not fit into memory."""
    if codec == SNAPPY:
        blocks = [snappy.compress(piece) for piece in pieces]
        return snappy_encode(b"")[:16] + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)
    if codec == LZ4:
        frame = lz4.LZ4FrameCompressor()
        return b"".join([frame.begin(), *map(frame.compress, pieces), frame.flush()])
    stream: Any = zlib.compressobj(wbits=31) if codec == GZIP else zstandard.ZstdCompressor().compressobj()
    return b"".join([*map(stream.compress, pieces), stream.flush()])


def long_batch(codec: int, megabytes: int) -> bytes:
    """Return a batch of one message of spaces."""
    value = bytearray()
    for number in (0, 0, 0, -1, megabytes * len(PIECE)):  # attributes, time, offset, no key, length of the value
        encode_varint(number, value.append)
    size = bytearray()
    encode_varint(len(value) + megabytes * len(PIECE) + 1, size.append)
    data = compressed(codec, chain([bytes(size + value)], repeat(PIECE, megabytes), [b"\0"]))
    header = bytearray(batch(0, b"")[: DefaultRecordBatch.HEADER_STRUCT.size])
    header[8:12] = (len(header) - 12 + len(data)).to_bytes(4, "big")
    header[21:23] = codec.to_bytes(2, "big")
    header[17:21] = calc_crc32c(header[21:] + data).to_bytes(4, "big")
    return bytes(header) + data


PROGRAM = """
import resource, sys
from unit.ingest.kafka.test_message_sizes import taken
batch = sys.stdin.buffer.read()
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 64 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
((offset, _, value),) = taken(batch)
print(offset, len(batch), value[-40:].decode())
"""


@pytest.mark.parametrize(
    ("codec", "megabytes", "most"), [(ZSTD, 400, 40), (GZIP, 200, 300), (LZ4, 200, 900), (SNAPPY, 100, 5_000)]
)
def test_a_message_of_hundreds_of_megabytes_is_cut_within_64_megabytes(codec: int, megabytes: int, most: int) -> None:
    data = long_batch(codec, megabytes)
    assert len(data) < most * 1024
    program = [sys.executable, "-c", PROGRAM]
    path = os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])
    ran = subprocess.run(program, input=data, capture_output=True, check=False, env={**os.environ, "PYTHONPATH": path})
    assert ran.stderr.decode() == ""
    assert ran.stdout.decode().startswith(f"0 {len(data)}  ")
    assert "(cut: a message of" in ran.stdout.decode()
