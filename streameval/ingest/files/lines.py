"""Files line by line: opened, decompressed, followed through rotations, recognised after a restart, and written."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import os
import select
import stat
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import zstandard

from streameval.errors import InputError

MAX_LINE_BYTES = 16 * 2**20  # a longer line is cut to an excerpt and a remark, which no decoder accepts as an event
EXCERPT = 1024
CHUNK, PIECE = 128 * 1024, 1024
"""Bytes read at once of a plain and of a compressed file. The text of a compressed piece may be a thousand times
larger, and is lost if the piece is damaged."""
MAX_READ_BYTES = 32 * 2**20  # bytes of a file after which lines are returned even if they are few

STDIN = "-"
TABLE_SUFFIXES = {".parquet": "parquet", ".csv": "csv"}  # .gz or .zst may follow if the table is text
LOOK_AGAIN = 0.1  # seconds between looks at the end of a file that is followed
SAMPLE = 4096  # bytes at the start of a file, and before a position in it, by which the file is recognised


def table_format(file: str) -> str | None:
    """The format of the table in a file, by its suffixes; None for other files."""
    return next((written for suffix, written in TABLE_SUFFIXES.items() if suffix in Path(file).suffixes), None)


class Members:
    """Decompresses concatenated streams, as `cat a.gz b.gz` produces them.

    >>> import gzip
    >>> members = Members(lambda: zlib.decompressobj(31))
    >>> list(members.feed(gzip.compress(b"one ") + gzip.compress(b"two"))), members.newest.eof
    ([b'one ', b'two'], True)
    """

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start, self.newest = start, start()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The text of the next `data`, member by member.

        Raises:
            zlib.error, ZstdError: The data are damaged.
        """
        while data:
            if self.newest.eof:
                data = data.lstrip(b"\0")  # padding, as on tapes and block devices
                if not data:
                    return
                self.newest = self._start()
            yield self.newest.decompress(data)
            data = self.newest.unused_data


def members_of(first_bytes: bytes) -> Members | None:
    """The decompressor for data that starts with these bytes; None for plain text."""
    if first_bytes.startswith(b"\x1f\x8b"):  # gzip
        return Members(lambda: zlib.decompressobj(31))
    if first_bytes.startswith((b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18")):  # zstd, and a frame that it skips
        return Members(lambda: zstandard.ZstdDecompressor().decompressobj())
    return None


class FileIdentity(msgspec.Struct, frozen=True):
    """A position in a file, and digests that recognise the file: names and inodes pass from one file to the next.

    `bytes` and `lines` are before the position; of a `compressed` file only the lines are known. `head` and `tail` are
    digests of the first and last of these bytes; of a compressed file, `bytes` are those that `head` covers.
    """

    bytes: int
    lines: int
    head: str
    tail: str = ""
    compressed: bool = False


START = FileIdentity(0, 0, "")


def resume(path: str, known: FileIdentity) -> tuple[str | None, FileIdentity]:
    """The kind of gap in a file, one of `GAPS` or None, and where to continue in the file at this path.

    A file with the same head that ends before the position was truncated: continue at its end. A file with another
    head, or other bytes before the position, is another one: read it from its start.
    """
    with _open(path) as stream:
        descriptor = stream.fileno()
        size = os.fstat(descriptor).st_size
        if size < known.bytes:
            same = size >= SAMPLE and _digest(descriptor, 0, SAMPLE) == known.head
            return ("cut", msgspec.structs.replace(known, bytes=size)) if same else ("replaced", START)
        same = _digest(descriptor, 0, min(known.bytes, SAMPLE)) == known.head
        if not known.compressed:
            same = same and _digest(descriptor, known.bytes - SAMPLE, known.bytes) == known.tail
        return (None, known) if same else ("replaced", START)


def _digest(descriptor: int, start: int, stop: int) -> str:
    start = max(0, start)
    return hashlib.blake2b(os.pread(descriptor, stop - start, start), digest_size=12).hexdigest()


class TailedFile:
    """Reads one file, or standard input for `-`, to its end; with `follow`, waits there for more lines of a plain file.

    Rotation: when the path belongs to another file, the old one is read to its end, including a last line without a
    newline, and the new one from its start. When the file is shorter than what was read (copied and truncated), it is
    read from its start, and an unfinished line is dropped; that it also grew past that point in the meantime cannot be
    seen. `start`: the position after the lines that are not to be read.
    """

    def __init__(self, path: str, *, follow: bool = False, start: FileIdentity = START) -> None:
        self.path = path
        self.ended = self.waiting = False
        self._failure: tuple[str, str] | None = None
        self._stream = _open(path)
        is_regular = stat.S_ISREG(os.fstat(self._stream.fileno()).st_mode)
        self._may_block, self._follow = not is_regular, follow and is_regular
        self._start(self._stream)
        self.bytes_read = 0
        self.lines_to_skip = start.lines if start.compressed else 0
        if start.bytes and not start.compressed:
            self._stream.seek(start.bytes)
            self.bytes_read = self._bytes = start.bytes
            self._lines, self._is_untouched = start.lines, False

    def _start(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._bytes = self._lines = 0  # read of this file, decompressed; returned of this file
        self._text = b""  # read and not returned
        self._cut = 0  # bytes missing in `_text`, the start of a line that is too long
        self._members: Members | None = None
        self._is_untouched, self._is_replaced = True, False

    def read(self, most: int, timeout: float) -> list[bytes]:
        """Up to `most` of the next lines; `[]` at the end, and when nothing has come within `timeout` seconds.

        Raises:
            InputError: The file cannot be read further; raised after all lines before that have been returned.
        """
        deadline, last_byte = time.monotonic() + timeout, self.bytes_read + MAX_READ_BYTES
        lines = self._split(most)
        while len(lines) < most and not self.ended and self.bytes_read < last_byte:
            left = 0.0 if lines else max(0.0, deadline - time.monotonic())
            if self._failure is None:
                self._read_on(left)
            elif not lines:
                what, detail = self._failure
                hint = "events before that point were counted; copy the file again or omit it"
                raise InputError(f"{self.path} {what} after line {self._lines:,}: {detail}", hint=hint)
            else:
                break
            lines += self._split(most - len(lines))
            if self.waiting and (lines or left == 0.0):
                break
        return lines

    def identity(self) -> FileIdentity | None:
        """The position after the lines returned so far; None for standard input and pipes: these are not read again."""
        descriptor = self._stream.fileno()
        found = os.fstat(descriptor)
        if self.path == STDIN or not stat.S_ISREG(found.st_mode):
            return None
        lines = self._lines + self.lines_to_skip
        if self._members or lines > self._lines:
            known = min(SAMPLE, found.st_size)
            return FileIdentity(known, lines, _digest(descriptor, 0, known), compressed=True)
        known = self._bytes - len(self._text) - self._cut
        head, tail = _digest(descriptor, 0, min(known, SAMPLE)), _digest(descriptor, known - SAMPLE, known)
        return FileIdentity(known, lines, head, tail)

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if self.path != STDIN:
            self._stream.close()

    def _read_on(self, timeout: float) -> None:
        """Read the next text, if there is some within `timeout` seconds."""
        if self._may_block and not select.select([self._stream], [], [], timeout)[0]:
            self.waiting = True
            return
        try:
            chunk = self._stream.read1(PIECE if self._members else CHUNK)  # type: ignore[attr-defined]
            self.waiting = not chunk
            self.bytes_read += len(chunk)
            if chunk:
                self._add(chunk)
            elif self._follow:
                self._await_growth(timeout)
            elif self._members and not self._members.newest.eof:
                self._failure = "is cut off", "the compressed data ends in the middle"
            else:
                self.ended = True
                self._text += b"\n" if self._text else b""
        except (zlib.error, zstandard.ZstdError) as error:
            self._failure = "is damaged", str(error)
        except OSError as error:
            self._failure = "cannot be read", error.strerror or str(error)

    def _add(self, chunk: bytes) -> None:
        if self._is_untouched:
            self._is_untouched = False
            self._members = members_of(chunk)
            if self._members and self._follow:
                raise InputError(f"{self.path} is compressed, and cannot be followed", hint="follow plain text")
        for text in self._members.feed(chunk) if self._members else [chunk]:
            self._text += text
            self._bytes += len(text)

    def _split(self, most: int) -> list[bytes]:
        """Remove and return up to `most` lines that have ended, without those to skip."""
        *lines, self._text = self._text.split(b"\n", self.lines_to_skip + most)
        if lines:
            if self._cut:
                size = len(lines[0]) + self._cut
                lines[0], self._cut = lines[0][:EXCERPT] + b"... (cut: a line of %d bytes)" % size, 0
            if self._lines == 0:
                lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
            self._lines += len(lines)
        if len(self._text) > MAX_LINE_BYTES and b"\n" not in self._text:
            self._cut += len(self._text) - EXCERPT
            self._text = self._text[:EXCERPT]
        skipped = min(self.lines_to_skip, len(lines))
        self.lines_to_skip -= skipped
        return lines[skipped:]

    def _await_growth(self, timeout: float) -> None:
        now, here = _stat(self.path), os.fstat(self._stream.fileno())
        if now is not None and self._is_replaced:
            if self._text:
                self._text += b"\n"
            else:
                self._stream.close()
                self._start(_open(self.path))
        elif now is not None and not os.path.samestat(now, here):
            self._is_replaced = True  # a last look: it may have grown since
        elif here.st_size < self._stream.tell():
            self._stream.seek(0)
            self._start(self._stream)
        else:
            time.sleep(min(LOOK_AGAIN, timeout))


def check(path: str) -> int | None:
    """Size of the file in bytes, None if unknown (a pipe, standard input).

    Raises:
        InputError: The file cannot be read.
    """
    if path == STDIN:
        return None
    found = _stat(path)
    if found is None:
        raise InputError(f"{path} does not exist", hint="check the name; relative names start in the working directory")
    if stat.S_ISDIR(found.st_mode):
        raise InputError(f"{path} is a directory", hint=f"name the files in it, for example {path.rstrip('/')}/*.gz")
    if not os.access(path, os.R_OK):
        raise InputError(f"no permission to read {path}", hint="check the permissions of the file and its directories")
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


def write_lines(path: Path | None, lines: Iterable[bytes]) -> None:
    """Write each line with a line end; `.gz` compresses, None is standard output.

    Raises:
        InputError: Writing fails.
    """
    try:
        with ExitStack() as files:
            stream = sys.stdout.buffer if path is None else files.enter_context(path.open("wb"))
            if path is not None and path.suffix == ".gz":
                # without name and time, so that equal events make equal files
                compressed = gzip.GzipFile(filename="", fileobj=stream, mode="wb", mtime=0)
                stream = cast(BinaryIO, files.enter_context(compressed))
            for line in lines:
                stream.write(line + b"\n")
            stream.flush()
    except OSError as error:
        if path is None:
            raise
        raise InputError(f"{path} cannot be written: {error.strerror}", hint="choose another path") from error
