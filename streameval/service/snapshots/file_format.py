"""The file of a snapshot: one msgpack document, compressed, with its checksum at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import zstandard

from streameval.common.arrays import State
from streameval.errors import StateError

MAGIC = b"streameval snapshot"
FORMAT = b" 1\n"
CHECKSUM = 32
"""Bytes of the BLAKE2b at the end, over all before it."""
AT_ONCE = 1000
"""Small values that are encoded in one step: the interpreter can run nothing else meanwhile."""

_SCALARS = frozenset({int, float, str, bool, bytes, type(None)})
_LONG = 65536
_encode = msgspec.msgpack.Encoder().encode


class DamagedError(Exception):
    """A file that is not what was once written: cut off, or changed since."""


def write_document(file: BinaryIO, document: State, begun: Callable[[], None] = lambda: None) -> None:
    """Write a plain value; OSError where the file cannot take it. `begun` is called when a part of it is there.

    Meant for a thread beside the one that works: what takes long (compression, checksum, the disk) lets others run.
    """
    checksum, compressor = blake2b(digest_size=CHECKSUM), zstandard.ZstdCompressor(level=1).compressobj()

    def put(data: bytes) -> None:
        checksum.update(data)
        file.write(data)

    put(MAGIC + FORMAT)
    begun()
    for piece in pieces(document):
        if compressed := compressor.compress(piece):
            put(compressed)
    put(compressor.flush())
    file.write(checksum.digest())


def read_document(path: Path) -> State:
    """What `write_document` wrote. DamagedError for another content, StateError for a format of the future."""
    content = memoryview(path.read_bytes())
    if not content[: len(MAGIC)] == MAGIC:
        raise DamagedError("it does not begin as a snapshot does")
    body, checksum = content[:-CHECKSUM], content[-CHECKSUM:]
    if blake2b(body, digest_size=CHECKSUM).digest() != checksum:
        raise DamagedError("its checksum is not that of its content")
    if body[len(MAGIC) : len(MAGIC + FORMAT)] != FORMAT:
        raise StateError(f"{path} was written by a later version", hint="use that version, or another state.dir")
    document: State = msgspec.msgpack.decode(_decompressed(body[len(MAGIC + FORMAT) :]))
    return document


def _decompressed(data: memoryview) -> bytes:
    return zstandard.ZstdDecompressor().decompressobj().decompress(data)


def pieces(value: Any) -> Iterator[bytes | memoryview]:
    """A plain value as msgpack, in pieces of which none takes long to make.

    >>> value = {"a": [1, "two", {"b": b"three"}]}
    >>> b"".join(pieces(value)) == msgspec.msgpack.encode(value)
    True
    """
    if isinstance(value, dict):
        yield _header(len(value), 0x80, 0xDE)
        items = iter(value.items())
        while some := dict(islice(items, AT_ONCE)):
            if _small(some.values()):
                yield _without_header(some)
            else:
                for key, item in some.items():
                    yield _encode(key)
                    yield from pieces(item)
    elif isinstance(value, list | tuple):
        yield _header(len(value), 0x90, 0xDC)
        for first in range(0, len(value), AT_ONCE):
            part = value[first : first + AT_ONCE]
            if _small(part):
                yield _without_header(part)
            else:
                for item in part:
                    yield from pieces(item)
    elif isinstance(value, bytes | memoryview) and len(value) >= _LONG:
        yield b"\xc6" + len(value).to_bytes(4, "big")
        yield value
    else:
        yield _encode(value)


def _small(values: Any) -> bool:
    return _SCALARS.issuperset(map(type, values)) and not any(
        type(each) is bytes and len(each) > _LONG for each in values
    )


def _header(count: int, few: int, more: int) -> bytes:
    """How msgpack begins a mapping or a list of so many entries."""
    if count < 16:
        return bytes([few | count])
    return bytes([more]) + count.to_bytes(2, "big") if count < 65536 else bytes([more + 1]) + count.to_bytes(4, "big")


def _without_header(part: Any) -> bytes:
    return _encode(part)[1 if len(part) < 16 else 3 :]
