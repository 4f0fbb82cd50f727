"""Bytes to lines and back: reads compressed data, bounds the memory of a line, and writes lines to files."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import zstandard

from streameval.errors import InputError

LONGEST_LINE = 64 * 2**20
"""Bytes. A longer line is cut to an excerpt and a remark, which no decoder accepts as an event."""
EXCERPT = 1024
PIECE = 1024
"""Compressed bytes fed at once. Their text may be a thousand times larger, and is lost if they are damaged."""

GZIP, ZSTD, ZSTD_SKIPPABLE = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18"
DAMAGE = (zlib.error, zstandard.ZstdError)


class Decompressor(Protocol):
    """A compressed stream, as zlib and zstandard provide it."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


class Members:
    """Decompresses concatenated streams, as `cat a.gz b.gz` produces them.

    >>> import gzip
    >>> members = Members(lambda: zlib.decompressobj(31))
    >>> list(members.feed(gzip.compress(b"one ") + gzip.compress(b"two"))), members.complete
    ([b'one ', b'two'], True)
    """

    def __init__(self, start: Callable[[], Decompressor]) -> None:
        self._start = start
        self._member = start()

    @property
    def complete(self) -> bool:
        """Whether the data may end here."""
        return self._member.eof

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The text of the next `data`, piece by piece; raises one of `DAMAGE` for damaged data."""
        for start in range(0, len(data), PIECE):
            yield from self._texts(data[start : start + PIECE])

    def _texts(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._member.eof:
                data = data.lstrip(b"\0")  # padding, as on tapes and block devices
                if not data:
                    return
                self._member = self._start()
            yield self._member.decompress(data)
            data = self._member.unused_data


def members_of(first_bytes: bytes) -> Members | None:
    """The decompressor for data that starts with these bytes; None for plain text."""
    if first_bytes.startswith(GZIP):
        return Members(lambda: zlib.decompressobj(31))
    if first_bytes.startswith((ZSTD, ZSTD_SKIPPABLE)):
        return Members(lambda: zstandard.ZstdDecompressor().decompressobj())
    return None


class CutLine(bytes):
    """An excerpt of a line that was too long; `size`: how many bytes the line had."""

    size: int


def bytes_of(lines: Sequence[bytes]) -> int:
    """How many bytes lines have in their file, with line ends.

    >>> bytes_of([b"one", b""])
    5
    """
    cut = 0
    if CutLine in set(map(type, lines)):
        cut = sum(line.size - len(line) for line in lines if isinstance(line, CutLine))
    return sum(map(len, lines)) + len(lines) + cut


class LineSplitter:
    r"""Splits chunks of text into lines.

    >>> splitter = LineSplitter()
    >>> splitter.feed(b"one\ntw"), splitter.feed(b"o\nthree"), splitter.rest()
    ([b'one'], [b'two'], b'three')
    """

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, text: bytes) -> list[bytes]:
        """The lines that end in `text`."""
        first, *others = text.split(b"\n")
        self._keep(first)
        if not others:
            return []
        lines = [self.rest(), *others[:-1]]
        if len(text) > self._longest:
            lines = [self._bounded(line, len(line)) for line in lines]
        self._keep(others[-1])
        return lines

    def rest(self) -> bytes:
        """Remove and return the line that has not ended yet."""
        line = self._bounded(b"".join(self._parts), self._size)
        self._parts, self._size = [], 0
        return line

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        self._parts.append(part)
        if self._size > self._longest:
            self._parts = [b"".join(self._parts)[:EXCERPT]]

    def _bounded(self, line: bytes, size: int) -> bytes:
        if size <= self._longest:
            return line
        cut = CutLine(line[:EXCERPT] + b"... (cut: a line of %d bytes)" % size)
        cut.size = size
        return cut


def write_lines(path: Path | None, lines: Iterable[bytes]) -> None:
    """Write each line with a line end; `.gz` compresses, None is standard output. InputError if writing fails."""
    try:
        with _opened(path) as stream:
            for line in lines:
                stream.write(line + b"\n")
    except OSError as error:
        if path is None:
            raise
        raise InputError(f"{path} cannot be written: {error.strerror}", hint="choose another path") from error


@contextmanager
def _opened(path: Path | None) -> Iterator[BinaryIO]:
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    elif path.suffix == ".gz":
        # without name and time, so that equal events make equal files
        with path.open("wb") as raw, gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as stream:
            yield cast(BinaryIO, stream)
    else:
        with path.open("wb") as plain:
            yield plain
