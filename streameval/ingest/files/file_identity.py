"""How a file is known again in another life: by what it holds, since names and inodes go from one log to the next."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Any

import msgspec

SAMPLE = 4096
"""Bytes at the beginning, and before the place that was read to, by which a file is known again."""


class FileIdentity(msgspec.Struct, frozen=True):
    """A place in a file: `bytes` and `lines` of it lie before. In a `compressed` one, only the lines can be counted.

    `head` and `tail` stand for the first of those bytes and the last of them; in a compressed file, `bytes` are those
    whose head it is.
    """

    bytes: int
    lines: int
    head: str
    tail: str = ""
    compressed: bool = False


BEGINNING = FileIdentity(0, 0, "")


def mark_in(descriptor: int, position: int, lines: int, *, compressed: bool) -> FileIdentity | None:
    """The mark of a place in an open file; None where it cannot be read again (a pipe)."""
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


def find(path: str, mark: FileIdentity) -> tuple[str | None, FileIdentity]:
    """Where to go on in the file that has the name now, and what is wrong with it, one of `GAPS`, or None.

    A file that begins as the marked one did but ends before the place was cut: we go on at its end. One that begins
    otherwise, or holds something else before the place, is another one, and read from its beginning.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        if size < mark.bytes:
            same = _digest(descriptor, 0, min(size, SAMPLE)) == mark.head if size >= SAMPLE else False
            return ("cut", msgspec.structs.replace(mark, bytes=size)) if same else ("replaced", BEGINNING)
        same = _digest(descriptor, 0, min(mark.bytes, SAMPLE)) == mark.head
        if not mark.compressed:
            same = same and _digest(descriptor, max(0, mark.bytes - SAMPLE), mark.bytes) == mark.tail
        return (None, mark) if same else ("replaced", BEGINNING)
    finally:
        os.close(descriptor)


def to_text(mark: FileIdentity) -> str:
    """A mark as the identity of a bookmark."""
    return msgspec.json.encode(mark).decode()


def from_text(identity: str | None) -> FileIdentity | None:
    """The mark that gave this text; None for none.

    >>> from_text(to_text(BEGINNING)) == BEGINNING
    True
    """
    return None if identity is None else msgspec.json.decode(identity, type=FileIdentity)


def _digest(descriptor: int, start: int, stop: int) -> str:
    sample: Any = os.pread(descriptor, stop - start, start)
    return hashlib.blake2b(sample, digest_size=12).hexdigest()
