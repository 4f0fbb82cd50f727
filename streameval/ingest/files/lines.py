"""Read files line by line: decompress them, follow them through rotations, recognise them after a restart."""

from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import lzma
import os
import select
import stat
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import zstandard

from streameval.errors import InputError
from streameval.events.diagnosis import EXCERPT_BYTES as EXCERPT_BYTES
from streameval.events.diagnosis import MAX_MESSAGE_BYTES, cut
from streameval.events.frames import ARROW_FILE, ARROW_STREAM
from streameval.ingest.files.remote import RemoteFile, is_remote, open_remote, remote_size
from streameval.ingest.files.suffixes import TABLE_SUFFIXES

MAX_LINE_BYTES = MAX_MESSAGE_BYTES  # a longer line is cut before it is in memory as a whole
CHUNK_BYTES, COMPRESSED_CHUNK_BYTES, SMALL_CHUNK_BYTES = 128 * 1024, 1024, 64
"""Bytes read at once. The text of a compressed chunk is lost if the chunk is damaged. It may be thousands of times
larger: after much text, small chunks are read, which become at most two megabytes."""
MAX_READ_BYTES = 32 * 2**20  # of a file or of its text, after which lines are returned even if they are few

STDIN = "-"
TABLES = ("csv", "parquet", "arrow")
FOREIGN_FILES: Mapping[bytes, tuple[str, str]] = {
    **{
        b"\x80" + bytes([protocol]): ("a pickle file", "pandas.read_pickle(path).to_parquet(new)")
        for protocol in range(2, 6)
    },
    b"\x93NUMPY": ("an array of numpy", "pandas.DataFrame(numpy.load(path), columns=[...]).to_parquet(new)"),
    b"FEA1\0": ("a Feather file of version 1", "pandas.read_feather(path).to_parquet(new)"),
    **dict.fromkeys((ARROW_FILE, ARROW_STREAM), ("in Arrow", "add --format arrow, or name it .arrow")),
    b"SQLite format 3\0": ("a database of SQLite", "sqlite3 -header -csv FILE 'SELECT * FROM events' > new.csv"),
    b"\x89HDF": ("a file of HDF5", "pandas.read_hdf(path).to_parquet(new)"),
    b"Obj\1": ("a container file of Avro", "convert it to Parquet, or send its messages to a topic"),
    b"\xd0\xcf\x11\xe0": ("an old spreadsheet", "save it as CSV"),
}
"""The kind of a file that is not read, and how to convert it, by its first bytes."""
POLL_SECONDS = 0.1  # between looks at the end of a file that is followed
SAMPLE_BYTES = 4096  # at the start of a file, and before a position in it, that identify the file


def format_of_name(file: str) -> str | None:
    """Return the format of the table in a file, by its suffixes. Return None for other files."""
    suffixes = list(map(str.lower, Path(file.partition("?")[0] if is_remote(file) else file).suffixes))
    return next((written for suffix, written in TABLE_SUFFIXES.items() if suffix in suffixes), None)


def table_format(file: str) -> str | None:
    """Return the format of the table in a file, by its suffixes, else by its content. Return None for other files."""
    named = format_of_name(file)
    if named or not (is_remote(file) or os.path.isfile(file)):
        return named
    with _open(file) as stream:
        start = stream.read(6)
    if start.startswith((b"PAR1", ARROW_FILE, ARROW_STREAM)):
        return "parquet" if start.startswith(b"PAR1") else "arrow"
    with closing(TailedFile(file)) as text:
        line = b"".join(text.read(1, 0.0)).strip()
    is_table = line[:1] not in b"{[" and any(separator in line for separator in (b",", b";", b"\t"))
    return "csv" if is_table else None


class Members:
    """Decompress concatenated streams, as `cat a.gz b.gz` produces them.

    >>> import gzip
    >>> members = Members(lambda: zlib.decompressobj(31))
    >>> list(members.feed(gzip.compress(b"one ") + gzip.compress(b"two"))), members.newest.eof
    ([b'one ', b'two'], True)
    """

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start, self.newest = start, start()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the text of the next bytes, member by member.

        Raises:
            zlib.error, ZstdError, LZMAError, OSError: The data are damaged.
        """
        while data:
            if self.newest.eof:
                data = data.lstrip(b"\0")  # padding, as on tapes and block devices
                if not data:
                    return
                self.newest = self._start()
            yield self.newest.decompress(data)
            data = self.newest.unused_data


class Utf16:
    """Turn text in UTF-16 into UTF-8, as `Members` do with compressed text.

    >>> list(Utf16().feed("ä".encode("utf-16")))
    [b'\\xc3\\xa4']
    """

    def __init__(self) -> None:
        self._decoder, self.newest = codecs.getincrementaldecoder("utf-16")("surrogatepass"), self

    @property
    def eof(self) -> bool:
        """Return whether the text may end here."""
        return not self._decoder.getstate()[0]

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the text of the next bytes. Half a character becomes bytes that are not UTF-8."""
        yield self._decoder.decode(data).encode(errors="surrogatepass")


def decompressor_of(first_bytes: bytes) -> Members | Utf16 | None:
    """Return the decompressor for data that starts with these bytes, None for plain text in UTF-8."""
    if first_bytes.startswith(b"\x1f\x8b"):  # gzip
        return Members(lambda: zlib.decompressobj(31))
    if first_bytes.startswith((b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18")):  # zstd, and a frame that it skips
        return Members(lambda: zstandard.ZstdDecompressor().decompressobj())
    if first_bytes.startswith(b"BZh"):
        return Members(bz2.BZ2Decompressor)
    if first_bytes.startswith(b"\xfd7zXZ\0"):
        return Members(lzma.LZMADecompressor)
    return Utf16() if first_bytes.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else None


def newline_of(text: bytes | bytearray) -> bytes | None:
    """Return the end of the lines in the start of a file, None while it has none. Old programs end them with CR alone.

    >>> newline_of(b"a\\r\\nb"), newline_of(b"a\\rb"), newline_of(b"a\\r")
    (b'\\n', b'\\r', None)
    """
    return b"\n" if b"\n" in text else b"\r" if b"\r" in text[:-1] else None


class FileIdentity(msgspec.Struct, frozen=True):
    """Hold a position in a file, and digests that identify the file. Names and inodes pass from one file to the next.

    Attributes:
        bytes: number of bytes before the position, in a compressed file, number of bytes in the digest `head`
        lines: number of lines before the position
        head: digest of the first bytes
        tail: digest of the bytes before the position. Empty for a compressed file
        compressed: whether the file is compressed
    """

    bytes: int
    lines: int
    head: str
    tail: str = ""
    compressed: bool = False


START = FileIdentity(0, 0, "")


def resume(path: str, identity: FileIdentity) -> tuple[str | None, FileIdentity]:
    """Find where to continue in the file at a path.

    A file with the same head that ends before the position was truncated: continue at its end. A file with another
    head, or other bytes before the position, is another one: read it from its start.

    Returns:
        The kind of gap, one of `GAPS` or None, and the position.
    """
    with _open(path) as stream:
        size = _size(stream) or 0
        if size < identity.bytes:
            is_same = size >= SAMPLE_BYTES and _digest(stream, 0, SAMPLE_BYTES) == identity.head
            return ("cut", msgspec.structs.replace(identity, bytes=size)) if is_same else ("replaced", START)
        is_same = _digest(stream, 0, min(identity.bytes, SAMPLE_BYTES)) == identity.head
        if not identity.compressed:
            tail = _digest(stream, identity.bytes - SAMPLE_BYTES, identity.bytes)
            is_same = is_same and tail == identity.tail
        return (None, identity) if is_same else ("replaced", START)


def _size(stream: BinaryIO) -> int | None:
    """Return the size of an open file in bytes, None for a pipe."""
    if isinstance(stream, RemoteFile):
        return stream.size
    status = os.fstat(stream.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _sample(stream: BinaryIO, start: int, stop: int) -> bytes:
    """Read some bytes of an open file without a change of its position."""
    if isinstance(stream, RemoteFile):
        return stream.sample(start, stop)
    return os.pread(stream.fileno(), stop - start, start)


def _digest(stream: BinaryIO, start: int, stop: int) -> str:
    return hashlib.blake2b(_sample(stream, max(0, start), stop), digest_size=12).hexdigest()


class TailedFile:
    """Read one file, or standard input for `-`.

    When the path of a followed file belongs to another file, the old file is read to its end, including a last line
    without a newline, and the new one from its start. When the file is shorter than what was read (copied and
    truncated), it is read from its start, and an unfinished line is dropped. This is not seen if the file has grown
    past that point in the meantime.

    Args:
        path: the file
        follow: whether to wait at the end of a plain file for more lines
        start: the position of the first byte or line to read

    Attributes:
        spanning: rows so far that took several lines
    """

    spanning = 0
    _newline: bytes | None

    def __init__(self, path: str, *, follow: bool = False, start: FileIdentity = START) -> None:
        self.path = path
        self.ended = self.waiting = False
        self._failure: tuple[str, str] | None = None
        self._stream = _open(path)
        is_regular = _size(self._stream) is not None
        self._may_block, self._follow = not is_regular, follow and is_regular
        self._start(self._stream)
        self.bytes_read = 0
        self.lines_to_skip = start.lines if start.compressed else 0
        if start.bytes and not start.compressed:
            self._newline = newline_of(_sample(self._stream, 0, CHUNK_BYTES))
            self._stream.seek(start.bytes)
            self.bytes_read = self._bytes = start.bytes
            self._lines, self._is_untouched = start.lines, False

    def _start(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._bytes = self._lines = 0  # bytes read of this file, decompressed, and lines returned
        self._text = bytearray()  # read and not returned
        self._searched = 0  # bytes of it without the end of a line
        self._cut = 0  # bytes missing in `_text`, which is the start of a line that is too long
        self._members: Members | Utf16 | None = None
        self._newline = None
        self._is_untouched, self._is_replaced = True, False
        self._chunk_bytes = SMALL_CHUNK_BYTES  # the first bytes tell whether the file is compressed

    def read(self, most: int, timeout: float) -> list[bytes]:
        """Read up to `most` lines. Return none at the end, and when nothing has come within `timeout` seconds.

        Raises:
            InputError: The file cannot be read further. Raised after all lines before the damage have been returned.
        """
        deadline, last_byte = time.monotonic() + timeout, self.bytes_read + MAX_READ_BYTES
        lines = self._split(most)
        size = sum(map(len, lines))
        while len(lines) < most and not self.ended and self.bytes_read < last_byte and size < MAX_READ_BYTES:
            wait = 0.0 if lines else max(0.0, deadline - time.monotonic())
            if self._failure is None:
                self._read_on(wait)
            elif not lines:
                problem, detail = self._failure
                hint = "events before that point were counted; copy the file again or omit it"
                raise InputError(f"{self.path} {problem} after line {self._lines:,}: {detail}", hint=hint)
            else:
                break
            more = self._split(most - len(lines))
            lines, size = lines + more, size + sum(map(len, more))
            if self.waiting and (lines or wait == 0.0):
                break
        return lines

    def identity(self) -> FileIdentity | None:
        """Return the position after the lines returned so far. Return None for pipes, which cannot be read again."""
        stream, file_size = self._stream, _size(self._stream)
        if self.path == STDIN or file_size is None:
            return None
        lines = self._lines + self.lines_to_skip
        if self._members or lines > self._lines:
            size = min(SAMPLE_BYTES, file_size)
            return FileIdentity(size, lines, _digest(stream, 0, size), compressed=True)
        end = self._bytes - len(self._text) - self._cut
        head, tail = _digest(stream, 0, min(end, SAMPLE_BYTES)), _digest(stream, end - SAMPLE_BYTES, end)
        return FileIdentity(end, lines, head, tail)

    def close(self) -> None:
        """Close the file. Standard input stays open."""
        if self.path != STDIN:
            self._stream.close()

    def _read_on(self, timeout: float) -> None:
        """Read more text, if some comes within `timeout` seconds."""
        if self._may_block and not select.select([self._stream], [], [], timeout)[0]:
            self.waiting = True
            return
        try:
            chunk = self._stream.read1(self._chunk_bytes)  # type: ignore[attr-defined]
            self.waiting = not chunk
            self.bytes_read += len(chunk)
            if chunk:
                self._add(chunk)
            elif self._follow:
                self._await_growth(timeout)
            elif self._members and not self._members.newest.eof:
                self._failure = "is cut off", "its data end in the middle"
            else:
                self.ended = True
                self._text += (self._newline or b"\n") if self._text else b""
        except (zlib.error, zstandard.ZstdError, lzma.LZMAError) as error:
            self._failure = "is damaged", str(error)
        except OSError as error:
            self._failure = "cannot be read", error.strerror or str(error)

    def _add(self, chunk: bytes) -> None:
        if self._is_untouched:
            self._is_untouched = False
            self._members = decompressor_of(chunk)
            if self._members and self._follow:
                how = "in UTF-16" if isinstance(self._members, Utf16) else "compressed"
                raise InputError(f"{self.path} is {how}, and cannot be followed", hint="follow plain text in UTF-8")
            if chunk.startswith(b"PK\x03\x04"):
                hint = f"unpack it, or write `unzip -p {self.path} | ... -`; save a spreadsheet as CSV"
                if self.path.endswith(".npz"):
                    hint = "pandas.DataFrame(dict(numpy.load(path))).to_parquet(new)"
                raise InputError(f"{self.path} is a zip archive or a spreadsheet", hint=hint)
            for start, (kind, hint) in FOREIGN_FILES.items():
                if chunk.startswith(start):
                    raise InputError(f"{self.path} is {kind}, not JSON or CSV", hint=hint)
        before = self._bytes
        for text in self._members.feed(chunk) if self._members else [chunk]:
            self._text += text
            self._bytes += len(text)
        is_whole = self._bytes > SMALL_CHUNK_BYTES or len(chunk) < self._chunk_bytes
        if self._newline is None and is_whole and before < CHUNK_BYTES:  # the start of the file decides
            self._newline, self._searched = newline_of(self._text), 0
        is_much = self._bytes - before > CHUNK_BYTES
        self._chunk_bytes = (
            CHUNK_BYTES if not self._members else SMALL_CHUNK_BYTES if is_much else COMPRESSED_CHUNK_BYTES
        )

    def _split(self, most: int) -> list[bytes]:
        """Remove and return up to `most` lines that have ended, after skipping lines."""
        newline = self._newline or b"\n"
        if self._text.find(newline, self._searched) < 0:
            return self._cut_long()
        *parts, self._text = self._text.split(newline, self.lines_to_skip + most)
        sizes = [len(parts[0]) + self._cut, *map(len, parts[1:])]
        self._searched = self._cut = 0
        lines = [
            bytes(part) if size <= MAX_LINE_BYTES else cut(bytes(part[:EXCERPT_BYTES]), size, "line")
            for part, size in zip(parts, sizes, strict=True)
        ]
        if self._lines == 0:
            lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
        self._lines += len(lines)
        skipped = min(self.lines_to_skip, len(lines))
        self.lines_to_skip -= skipped
        return lines[skipped:]

    def _cut_long(self) -> list[bytes]:
        """Keep an excerpt of an unfinished line that is too long. Return no lines."""
        if len(self._text) > MAX_LINE_BYTES:
            self._cut += len(self._text) - EXCERPT_BYTES
            del self._text[EXCERPT_BYTES:]
        self._searched = len(self._text)
        return []

    def _await_growth(self, timeout: float) -> None:
        current, opened = _stat(self.path), os.fstat(self._stream.fileno())
        if current is not None and self._is_replaced:
            if self._text:
                self._text += self._newline or b"\n"
            else:
                self._stream.close()
                self._start(_open(self.path))
        elif current is not None and not os.path.samestat(current, opened):
            self._is_replaced = True  # a last look: it may have grown since
        elif opened.st_size < self._stream.tell():
            self._stream.seek(0)
            self._start(self._stream)
        else:
            time.sleep(min(POLL_SECONDS, timeout))


def check(path: str) -> int | None:
    """Return the size of a file in bytes, None for a pipe or standard input.

    Raises:
        InputError: The file cannot be read.
    """
    if path == STDIN:
        return None
    if is_remote(path):
        return remote_size(path)
    status = _stat(path)
    if status is None:
        raise InputError(f"{path} does not exist", hint="check the name; relative names start in the working directory")
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{path} is a directory", hint=f"name the files in it, for example {path.rstrip('/')}/*.gz")
    if not os.access(path, os.R_OK):
        raise InputError(f"no permission to read {path}", hint="check the permissions of the file and its directories")
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _open(path: str) -> BinaryIO:
    if is_remote(path):
        return open_remote(path)
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
    """Write lines, each with a line end.

    Args:
        path: the file, compressed if it ends in `.gz`, None for standard output
        lines: the lines

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
