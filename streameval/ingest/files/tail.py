"""One file, line by line: opened, decompressed, waited for, and found again after its rotation."""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from typing import BinaryIO

from streameval.errors import InputError
from streameval.ingest.files.file_identity import FileIdentity, mark_in
from streameval.ingest.files.lines import DAMAGE, LineSplitter, Members, members_of

STDIN = "-"
CHUNK = 128 * 1024
LOOK_AGAIN = 0.1
"""Seconds between looks at the end of a file that is followed."""


class TailedFile:
    """Reads one file, or standard input for `-`, to its end; with `follow` a plain file is waited for at its end.

    A followed file may be rotated: when its name belongs to another file, the old one is read to its end, its last line
    counts even if it has no newline, and the new one is read from its beginning. When it becomes shorter than what was
    read (copied and truncated), it is read from its beginning, and a line that was not finished is dropped; if it grew
    past that point again before it was looked at, that cannot be seen. Line numbers go on counting through both, and
    `generation` counts the files that had the name. `start`: the byte to begin with, in text.
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
        self._begin(self._stream)
        if start:
            self._stream.seek(start)
            self._untouched = False

    def _begin(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._splitter = LineSplitter()
        self._members: Members | None = None
        self._damage: Exception | None = None
        self._untouched, self._replaced = True, False

    def read(self, timeout: float, *, stay: bool = False) -> list[bytes]:
        """The lines of the next piece; `[]` at the end, and when nothing has come within `timeout` seconds.

        With `stay`, a successor is left for later, so that lines of two files do not mix.

        InputError when the file cannot be read further. All lines before that have been returned then.
        """
        deadline = time.monotonic() + timeout
        while not self.ended:
            left = max(0.0, deadline - time.monotonic())
            try:
                lines = self._next_lines(left, stay)
            except DAMAGE as error:
                raise self._failure("is damaged", str(error)) from error
            except OSError as error:
                raise self._failure("cannot be read", error.strerror or str(error)) from error
            self.lines_read += len(lines)
            if lines or left == 0.0:
                return lines
        return []

    def mark(self, position: int, lines: int) -> FileIdentity | None:
        """The mark of a place in the file that is open now; None where it cannot be read again."""
        try:
            descriptor = self._stream.fileno()
        except OSError:
            return None
        return mark_in(descriptor, position, lines, compressed=self._members is not None)

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if self.path != STDIN:
            self._stream.close()

    def _next_lines(self, timeout: float, stay: bool) -> list[bytes]:
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
        return [] if stay else self._at_end_of_growing_file(timeout)

    def _lines_of(self, chunk: bytes) -> list[bytes]:
        if self._untouched:
            self._untouched = False
            self._members = members_of(chunk)
            if self._members and self._follow:
                raise InputError(f"{self.path} is compressed, and cannot be followed", hint="follow the log itself")
        lines = []
        try:
            for text in self._members.feed(chunk) if self._members else [chunk]:
                lines += self._splitter.feed(text)
        except DAMAGE as damage:
            self._damage = damage  # the lines before it come first
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

    def _at_end_of_growing_file(self, timeout: float) -> list[bytes]:
        now = _stat(self.path)
        if now is not None and self._replaced:
            return self._last_line() or self._begin_anew(_open(self.path))
        here = os.fstat(self._stream.fileno())
        if now is not None and not os.path.samestat(now, here):
            self._replaced = True  # a last look: it may have grown since
        elif here.st_size < self._stream.tell():
            self._stream.seek(0)
            self._begin_anew(self._stream)
        else:
            time.sleep(min(LOOK_AGAIN, timeout))
        return []

    def _begin_anew(self, stream: BinaryIO) -> list[bytes]:
        if stream is not self._stream:
            self._stream.close()
        self.generation += 1
        self._begin(stream)
        return []

    def _failure(self, what: str, detail: str) -> InputError:
        return InputError(
            f"{self.path} {what} after line {self.lines_read:,}: {detail}",
            hint="the events up to there are counted; copy the file again, or leave it out",
        )


def check(path: str) -> int | None:
    """Bytes of the file, None where they cannot be known (a pipe, standard input); InputError if it is of no use."""
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
    """The mode bits of an open file; None where a file object stands for it."""
    try:
        return os.fstat(stream.fileno()).st_mode
    except OSError:
        return None
