"""Dead letters in a file, one a line; when it is full it becomes `.1`, and the oldest goes."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from streameval.errors import InputError
from streameval.service.dead_letters.queue import DeadLetter, SinkError

_encoder = msgspec.json.Encoder()


class FileSink:
    """Appends letters as JSON to `path`, which together with `.1` to `.keep` never holds much more than the limit.

    A write that fails, as on a full disk, is taken back to the end of the last whole line, and tried again as a whole.
    A file that was moved away, deleted or emptied by others is begun anew.
    InputError when the file cannot be opened in the first place.
    """

    def __init__(self, path: Path, most_bytes: int, keep: int) -> None:
        self._path, self._most_bytes, self._keep = path, most_bytes, keep
        self._descriptor = -1
        try:
            self._open()
        except OSError as error:
            raise InputError(
                f"dead_letters.path: {path} cannot be written: {error.strerror}",
                hint="make its directory, and let this user write there",
            ) from error

    def write(self, letters: Sequence[DeadLetter]) -> int:
        """Append these letters; all or none of them."""
        lines = b"".join(_encoder.encode(as_json(letter)) + b"\n" for letter in letters)
        try:
            if self._descriptor < 0 or not self._is_in_place():
                self.close()
                self._open()
            if self._size and self._size + len(lines) > self._most_bytes:
                self._rotate()
            self._append(lines)
        except OSError as error:
            raise SinkError(f"{self._path}: {error.strerror or error}", letters) from error
        return len(letters)

    def give_up(self) -> None:
        """Nothing waits here for anybody else."""

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o640)
        self._size = os.fstat(self._descriptor).st_size
        if self._size and os.pread(self._descriptor, 1, self._size - 1) != b"\n":  # a crash in the middle of a line
            self._append(b"\n")

    def _is_in_place(self) -> bool:
        """Whether the open file still has its name: another program that rotates files may have moved or emptied it."""
        opened = os.fstat(self._descriptor)
        self._size = opened.st_size
        try:
            return os.path.samestat(opened, self._path.stat())
        except FileNotFoundError:
            return False

    def _append(self, lines: bytes) -> None:
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(lines)

    def _rotate(self) -> None:
        self.close()
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self._keep + 1))]
        for older, newer in zip(names[::-1], names[-2::-1], strict=False):
            if newer.exists():
                newer.replace(older)
        if not self._keep:
            self._path.unlink()
        self._open()


def as_json(letter: DeadLetter) -> dict[str, Any]:
    """A letter as it is written: its value as text, or in base64 where it is none.

    >>> as_json(DeadLetter("malformed", "not JSON", "clicks", 0, 7, None, b"\\xff", 1))["value_base64"]
    '/w=='
    """
    try:
        return letter.origin | {"value": letter.value.decode()}
    except UnicodeDecodeError:
        return letter.origin | {"value_base64": base64.b64encode(letter.value).decode()}
