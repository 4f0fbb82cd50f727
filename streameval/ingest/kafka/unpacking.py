"""Unpack the codecs of Kafka as they are read, so that a few kilobytes never fill the memory."""

from __future__ import annotations

import gzip
import io
import struct
from typing import Any, cast

import zstandard
from kafka import codec
from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.util import decode_varint

__all__ = ["read_varint", "skip", "unpacked"]

SKIPPED_BYTES = 2**16
"""Bytes that are skipped at once."""
SNAPPY_RATIO = 32
"""More than snappy can compress: a copy of 64 bytes takes 3."""


def unpacked(number: int, data: bytes) -> Any:
    """Return a stream that unpacks data as it is read.

    Args:
        number: The codec's number in Kafka's format. The library imports the packages of codecs.
        data: The compressed data.
    """
    if number == DefaultRecordBatch.CODEC_GZIP:
        return gzip.GzipFile(fileobj=io.BytesIO(data))
    if number == DefaultRecordBatch.CODEC_LZ4:
        return codec.lz4.LZ4FrameFile(io.BytesIO(data))
    if number == DefaultRecordBatch.CODEC_ZSTD:
        reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True)
        return io.BufferedReader(cast(io.RawIOBase, reader), SKIPPED_BYTES)
    return io.BufferedReader(_SnappyBlocks(data))


class _SnappyBlocks(io.RawIOBase):
    """Unpack blocks of snappy, which Java writes with a header of 16 bytes, or one block without a header."""

    def __init__(self, data: bytes) -> None:
        is_framed = data.startswith(b"\x82SNAPPY\0")
        self._data, self._position, self._is_framed = data, 16 if is_framed else 0, is_framed
        self._block = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not self._block and self._position < len(self._data):
            self._block = memoryview(self._next_block())
        size = min(len(target), len(self._block))
        target[:size], self._block = self._block[:size], self._block[size:]
        return size

    def _next_block(self) -> bytes:
        stop = len(self._data)
        if self._is_framed:
            (size,) = struct.unpack_from(">i", self._data, self._position)
            self._position += 4
            stop = self._position + size
        block, self._position = self._data[self._position : stop], max(stop, self._position)
        length, shift = 0, 0
        for byte in block[:5]:  # the length of the text, which is taken from the memory before it is unpacked
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        if length > SNAPPY_RATIO * len(block):
            raise CorruptRecordError(f"a block of {len(block)} bytes cannot have {length} bytes of text")
        text: bytes = codec.snappy.decompress(block)
        return text


def read_varint(stream: Any) -> int:
    """Read an integer of variable length, as the lengths of records are.

    Raises:
        CorruptRecordError: The stream ends before.
    """
    digits = bytearray()
    while not digits or digits[-1] > 127:
        byte = stream.read(1)
        if not byte or len(digits) > 9:
            raise CorruptRecordError("a batch ends before its last record")
        digits += byte
    value, _ = decode_varint(digits, 0)
    return int(value)


def skip(stream: Any, size: int) -> int:
    """Skip bytes of a stream. Return how many there were."""
    left = size
    while left and (chunk := stream.read(min(left, SKIPPED_BYTES))):
        left -= len(chunk)
    return size - left
