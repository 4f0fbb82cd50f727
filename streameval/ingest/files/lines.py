"""Files line by line: opened, decompressed, followed through rotations, recognised after a restart, and written."""

from __future__ import annotations

import gzip
import hashlib
import os
import select
import stat
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import msgspec
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


STDIN = "-"
CHUNK = 128 * 1024
LOOK_AGAIN = 0.1
"""Seconds between looks at the end of a file that is followed."""
SAMPLE = 4096
"""Bytes at the start of a file, and before a position in it, by which the file is recognised."""


class FileIdentity(msgspec.Struct, frozen=True):
    """A position in a file, and digests that recognise the file: names and inodes pass from one file to the next.

    `bytes` and `lines` are before the position; of a `compressed` file only the lines are known. `head` and `tail` are
    digests of the first and last of these bytes; of a compressed file, `bytes` are those that `head` covers.

    >>> FileIdentity.from_text(START.to_text()) == START
    True
    """

    bytes: int
    lines: int
    head: str
    tail: str = ""
    compressed: bool = False

    def to_text(self) -> str:
        """The identity as text, for `Offsets`."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_text(cls, text: str) -> FileIdentity:
        """The inverse of `to_text`."""
        return msgspec.json.decode(text, type=cls)


START = FileIdentity(0, 0, "")


def identify(descriptor: int, position: int, lines: int, *, compressed: bool) -> FileIdentity | None:
    """The identity of an open file at a position; None for a pipe, which cannot be read again."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        return None
    size = found.st_size
    if compressed:
        known = min(SAMPLE, size)
        return FileIdentity(known, lines, _digest(descriptor, 0, known), compressed=True)
    known = min(position, size) if size >= position - 1 else position  # the last line may lack its newline
    head = _digest(descriptor, 0, min(known, SAMPLE))
    return FileIdentity(known, lines, head, _digest(descriptor, max(0, known - SAMPLE), known))


def resume(path: str, known: FileIdentity) -> tuple[str | None, FileIdentity]:
    """The kind of gap in a file, one of `GAPS` or None, and where to continue in the file at this path.

    A file with the same head that ends before the position was truncated: continue at its end. A file with another
    head, or other bytes before the position, is another one: read it from its start.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        if size < known.bytes:
            same = size >= SAMPLE and _digest(descriptor, 0, SAMPLE) == known.head
            return ("cut", msgspec.structs.replace(known, bytes=size)) if same else ("replaced", START)
        same = _digest(descriptor, 0, min(known.bytes, SAMPLE)) == known.head
        if not known.compressed:
            same = same and _digest(descriptor, max(0, known.bytes - SAMPLE), known.bytes) == known.tail
        return (None, known) if same else ("replaced", START)
    finally:
        os.close(descriptor)


def _digest(descriptor: int, start: int, stop: int) -> str:
    sample = os.pread(descriptor, stop - start, start)
    return hashlib.blake2b(sample, digest_size=12).hexdigest()


class TailedFile:
    """Reads one file, or standard input for `-`, to its end; with `follow`, waits there for more lines of a plain file.

    Rotation: when the path belongs to another file, the old one is read to its end, including a last line without a
    newline, and the new one from its start. When the file is shorter than what was read (copied and truncated), it is
    read from its start, and an unfinished line is dropped; that it also grew past that point in the meantime cannot be
    seen. Line numbers continue through both, and `generation` counts the files. `start`: the first byte to read.
    """

    def __init__(self, path: str, *, follow: bool = False, start: int = 0) -> None:
        self.path = path
        self.lines_read, self.bytes_read = 0, start
        self.ended = self.waiting = False
        self._stream = _open(path)
        kind = _kind(self._stream)
        self._may_block = not (kind is None or stat.S_ISREG(kind))
        self._follow = follow and kind is not None and stat.S_ISREG(kind)
        self.generation = 0
        self._start(self._stream)
        if start:
            self._stream.seek(start)
            self._untouched = False

    def _start(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._splitter = LineSplitter()
        self._members: Members | None = None
        self._damage: Exception | None = None
        self._untouched, self._replaced = True, False

    def read(self, timeout: float, *, same_file: bool = False) -> list[bytes]:
        """The lines of the next chunk; `[]` at the end, and when nothing has come within `timeout` seconds.

        With `same_file`, a new file at the path is not opened yet, so that lines of two files do not mix. Raises
        InputError when the file cannot be read further, after all lines before that have been returned.
        """
        deadline = time.monotonic() + timeout
        while not self.ended:
            left = max(0.0, deadline - time.monotonic())
            try:
                lines = self._next_lines(left, same_file)
            except DAMAGE as error:
                raise self._failure("is damaged", str(error)) from error
            except OSError as error:
                raise self._failure("cannot be read", error.strerror or str(error)) from error
            self.lines_read += len(lines)
            if lines or left == 0.0:
                return lines
        return []

    def identity(self, position: int, lines: int) -> FileIdentity | None:
        """The identity of the open file at a position; None where it cannot be read again."""
        try:
            descriptor = self._stream.fileno()
        except OSError:
            return None
        return identify(descriptor, position, lines, compressed=self._members is not None)

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if self.path != STDIN:
            self._stream.close()

    def _next_lines(self, timeout: float, same_file: bool) -> list[bytes]:
        if self._damage:
            raise self._damage
        if self._may_block and not select.select([self._stream], [], [], timeout)[0]:
            self.waiting = True
            return []
        chunk = self._stream.read1(CHUNK)  # type: ignore[attr-defined]
        self.waiting = not chunk
        self.bytes_read += len(chunk)
        if chunk:
            return self._lines_of(chunk)
        if not self._follow:
            return self._finish()
        return [] if same_file else self._await_growth(timeout)

    def _lines_of(self, chunk: bytes) -> list[bytes]:
        if self._untouched:
            self._untouched = False
            self._members = members_of(chunk)
            if self._members and self._follow:
                raise InputError(f"{self.path} is compressed, and cannot be followed", hint="follow plain text")
        lines = []
        try:
            for text in self._members.feed(chunk) if self._members else [chunk]:
                lines += self._splitter.feed(text)
        except DAMAGE as damage:
            self._damage = damage  # raised after the lines before it
        return lines

    def _finish(self) -> list[bytes]:
        """The last line, if there is one without a newline."""
        if self._members and not self._members.complete:
            raise self._failure("is cut off", "the compressed data ends in the middle")
        self.ended = True
        return self._last_line()

    def _last_line(self) -> list[bytes]:
        last = self._splitter.rest()
        return [last] if last else []

    def _await_growth(self, timeout: float) -> list[bytes]:
        now = _stat(self.path)
        if now is not None and self._replaced:
            return self._last_line() or self._start_generation(_open(self.path))
        here = os.fstat(self._stream.fileno())
        if now is not None and not os.path.samestat(now, here):
            self._replaced = True  # a last look: it may have grown since
        elif here.st_size < self._stream.tell():
            self._stream.seek(0)
            self._start_generation(self._stream)
        else:
            time.sleep(min(LOOK_AGAIN, timeout))
        return []

    def _start_generation(self, stream: BinaryIO) -> list[bytes]:
        if stream is not self._stream:
            self._stream.close()
        self.generation += 1
        self._start(stream)
        return []

    def _failure(self, what: str, detail: str) -> InputError:
        return InputError(
            f"{self.path} {what} after line {self.lines_read:,}: {detail}",
            hint="the events up to there are counted; copy the file again, or leave it out",
        )


def check(path: str) -> int | None:
    """Size of the file in bytes, None if unknown (a pipe, standard input); InputError if it cannot be read."""
    if path == STDIN:
        return None
    found = _stat(path)
    if found is None:
        raise InputError(f"{path} does not exist", hint="check the name; relative names start in the working directory")
    if stat.S_ISDIR(found.st_mode):
        raise InputError(f"{path} is a directory", hint=f"name the files in it, for example {path.rstrip('/')}/*.gz")
    if not os.access(path, os.R_OK):
        raise InputError(f"{path} may not be read", hint="check the permissions of the file and its directories")
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _open(path: str) -> BinaryIO:
    try:
        return sys.stdin.buffer if path == STDIN else open(path, "rb")
    except OSError as error:
        raise InputError(f"{path} cannot be opened: {error.strerror}", hint="check its name and permissions") from error


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _kind(stream: BinaryIO) -> int | None:
    """The mode bits of an open file; None for an object without a descriptor."""
    try:
        return os.fstat(stream.fileno()).st_mode
    except OSError:
        return None


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
