"""Files of events, one a line: plain, gzip or zstd, standard input, and logs that still grow."""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

from streameval.errors import InputError
from streameval.events import DsjsonFormat, EventBatch, EventFormat
from streameval.sources import Bookmark, Bookmarks, PartitionStatus, Place, Records, SourceStatus
from streameval.sources.line_file import LineFile, check

MOST_BYTES = 32 * 2**20
"""Bytes of a file after which a batch is handed over even if it has few lines yet."""

AnyPath: TypeAlias = str | os.PathLike[str]


def read_events(
    paths: AnyPath | Iterable[AnyPath],
    *,
    policies: Sequence[str] | None = None,
    reward_field: str = "reward",
    reward_range: tuple[float, float] | None = None,
    batch_size: int = 2000,
    format: Literal["json", "dsjson"] = "json",
    scores: Sequence[str] | None = None,
) -> Iterator[EventBatch]:
    """The events of NDJSON files (plain, gzip or zstd; `-` is standard input), in batches of at most `batch_size`.

    `policies` become the columns of every batch; None = in each batch, all that its events name. Lines that are no
    events are in the `rejected` of their batch. `format`: how they are written; `dsjson` is Vowpal Wabbit's. `scores`:
    fields that policies in code read; with any, even none, these see contexts and the names of actions. InputError for
    a file that is missing, or damaged: after all before it.
    """
    form = DsjsonFormat if format == "dsjson" else EventFormat
    events = form(policies, reward_field, reward_range, scores)
    source = FileSource(paths, batch=batch_size)
    try:
        while not source.status().exhausted:
            for records in source.poll(timeout=1.0):
                yield events.decode_batch(records.values)
    finally:
        source.close()


class FileSource:
    """Files as a source, one after another. Topic: the path; partition: its place among the paths; offset: the line.

    Lines count from 1; blank ones are left out, but counted. With `follow`, the last file is waited for at its end, and
    its last line until the newline has come (see `LineFile` for rotation).
    """

    def __init__(
        self,
        paths: AnyPath | Iterable[AnyPath],
        *,
        follow: bool = False,
        batch: int = 2000,
        bookmarks: Bookmarks | None = None,
    ) -> None:
        given = [paths] if isinstance(paths, str | os.PathLike) else paths
        self._paths = [os.fspath(path) for path in given]
        sizes = [check(path) for path in self._paths]
        self.bytes_total = None if None in sizes else sum(size for size in sizes if size is not None)
        self._follow, self._batch = follow, batch
        self._positions = [1] * len(self._paths)
        self._place, self._bytes_before = 0, 0
        self._file: LineFile | None = None
        self._lines: list[bytes] = []
        self._failure: InputError | None = None

    @property
    def bytes_read(self) -> int:
        """Bytes read of the files as they are stored, of `bytes_total` (None where there is a pipe among them)."""
        return self._bytes_before + (self._file.bytes_read if self._file else 0)

    def poll(self, timeout: float) -> list[Records]:
        """The next lines of one file. InputError for a file that is missing or damaged, after all lines before it."""
        deadline = time.monotonic() + timeout
        while self._place < len(self._paths):
            file = self._file = self._file or self._open()
            records = self._take(file, deadline)
            idle = not records and not file.ended
            if file.ended and not self._lines:
                self._next_file(file)
            if records or idle:
                return records
        return []

    def status(self) -> SourceStatus:
        """Positions are line numbers; what still waits in a file is known only at its end."""
        partitions = tuple(
            PartitionStatus(path, place, position, self._lag(place))
            for place, (path, position) in enumerate(zip(self._paths, self._positions, strict=True))
        )
        return SourceStatus(reached=True, exhausted=self._place == len(self._paths), partitions=partitions)

    def bookmarks(self) -> Bookmarks:
        """The next line of each file."""
        numbered = enumerate(zip(self._paths, self._positions, strict=True))
        return {path: Bookmark({place: position}) for place, (path, position) in numbered}

    def pause(self, places: Collection[Place]) -> None:
        """Files are read one after another: none is ahead of the one that is read."""

    def commit(self, bookmarks: Bookmarks) -> None:
        """Nobody to tell."""

    def close(self) -> None:
        """Close the file that is open."""
        if self._file:
            self._file.close()

    def _open(self) -> LineFile:
        last = self._place == len(self._paths) - 1
        return LineFile(self._paths[self._place], follow=self._follow and last)

    def _next_file(self, file: LineFile) -> None:
        self._bytes_before += file.bytes_read
        file.close()
        self._file = None
        self._place += 1

    def _take(self, file: LineFile, deadline: float) -> list[Records]:
        most_bytes = file.bytes_read + MOST_BYTES
        while len(self._lines) < self._batch and not file.ended and not self._failure and file.bytes_read < most_bytes:
            lines = self._read(file, 0.0 if self._lines else max(0.0, deadline - time.monotonic()))
            if not lines:
                break
            self._lines += lines
        if self._failure and not self._lines:
            raise self._failure
        lines, self._lines = self._lines[: self._batch], self._lines[self._batch :]
        return self._numbered(lines)

    def _read(self, file: LineFile, timeout: float) -> list[bytes]:
        try:
            return file.read(timeout)
        except InputError as failure:
            self._failure = failure  # the lines before it come first
            return []

    def _numbered(self, lines: list[bytes]) -> list[Records]:
        first = self._positions[self._place]
        if first == 1 and lines:
            lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
        self._positions[self._place] += len(lines)
        numbers: Sequence[int] = range(first, first + len(lines))
        if not all(lines) or any(map(bytes.isspace, lines)):
            numbers = [number for number, line in zip(numbers, lines, strict=True) if line.strip()]
            lines = [line for line in lines if line.strip()]
        return [Records(self._paths[self._place], self._place, numbers, lines)] if lines else []

    def _lag(self, place: int) -> int | None:
        at_end = place < self._place or (place == self._place and self._file is not None and self._file.waiting)
        return len(self._lines) if at_end else None
