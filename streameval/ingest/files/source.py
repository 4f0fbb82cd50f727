"""Files of events, one a line: plain, gzip or zstd, standard input, and logs that still grow."""

from __future__ import annotations

import codecs
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

from streameval.errors import InputError
from streameval.events import DsjsonDecoder, EventBatch, JsonDecoder
from streameval.ingest.base import Offsets, PartitionStatus, Records, SourceOffsets, SourceStatus, TopicPartition
from streameval.ingest.data_loss import Gaps
from streameval.ingest.files.file_identity import BEGINNING, FileIdentity, find, from_text, to_text
from streameval.ingest.files.lines import bytes_of
from streameval.ingest.files.tail import TailedFile, check

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
    form = DsjsonDecoder if format == "dsjson" else JsonDecoder
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
    its last line until the newline has come (see `TailedFile` for rotation). From `bookmarks` on, a file is known again
    by what it holds (see `file_marks`). One that is another file now is read from its beginning, and its lines go on
    counting; what the old one held beyond the bookmark is lost, or, with `on_lost` `fail`, stops the source. Standard
    input and pipes cannot be known again, and are read from where they are.
    """

    def __init__(
        self,
        paths: AnyPath | Iterable[AnyPath],
        *,
        follow: bool = False,
        batch: int = 2000,
        bookmarks: SourceOffsets | None = None,
        on_lost: Literal["continue", "fail"] = "continue",
    ) -> None:
        given = [paths] if isinstance(paths, str | os.PathLike) else paths
        self._paths = [os.fspath(path) for path in given]
        sizes = [check(path) for path in self._paths]
        self.bytes_total = None if None in sizes else sum(size for size in sizes if size is not None)
        self._follow, self._batch = follow, batch
        known = [(bookmarks or {}).get(path, Offsets({})) for path in self._paths]
        self._marks = [from_text(bookmark.identity) for bookmark in known]
        self._positions = [next(iter(bookmark.positions.values()), 1) for bookmark in known]
        self._gaps = {path: Gaps(path, on_lost) for path in self._paths}
        self._bytes = self._lines_handed = self._skip = self._generation = 0
        self._place, self._bytes_before = 0, 0
        self._file: TailedFile | None = None
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
        gaps: Counter[str] = sum((gaps.kinds for gaps in self._gaps.values()), Counter())
        exhausted = self._place == len(self._paths)
        return SourceStatus(reached=True, exhausted=exhausted, partitions=partitions, gaps=gaps)

    def bookmarks(self) -> SourceOffsets:
        """The next line of each file that was begun, and the mark of its place."""
        if self._file is not None:
            self._marks[self._place] = self._file.mark(self._bytes, self._lines_handed)
        return {
            path: Offsets({place: position}, to_text(mark) if mark else None)
            for place, (path, position, mark) in enumerate(zip(self._paths, self._positions, self._marks, strict=True))
            if position > 1 or mark
        }

    def pause(self, places: Collection[TopicPartition]) -> None:
        """Files are read one after another: none is ahead of the one that is read."""

    def commit(self, bookmarks: SourceOffsets) -> None:
        """Nobody to tell."""

    def close(self) -> None:
        """Close the file that is open."""
        if self._file:
            self._file.close()

    def _open(self) -> TailedFile:
        path = self._paths[self._place]
        begin = self._known_again(path)
        self._bytes, self._lines_handed, self._generation = begin.bytes, begin.lines, 0
        self._skip = begin.lines if begin.compressed else 0
        last = self._place == len(self._paths) - 1
        return TailedFile(path, follow=self._follow and last, start=0 if begin.compressed else begin.bytes)

    def _known_again(self, path: str) -> FileIdentity:
        mark = self._marks[self._place]
        if mark is None:
            return BEGINNING
        kind, begin = find(path, mark)
        if kind:
            self._gaps[path].found(kind, 0, line=self._positions[self._place], goes_on_after_line=begin.lines)
        return begin

    def _next_file(self, file: TailedFile) -> None:
        if self._skip:
            self._gaps[file.path].found("cut", 0, line=self._positions[self._place], lines_missing=self._skip)
        self._marks[self._place] = file.mark(self._bytes, self._lines_handed)
        self._bytes_before += file.bytes_read
        file.close()
        self._file = None
        self._place += 1

    def _take(self, file: TailedFile, deadline: float) -> list[Records]:
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

    def _read(self, file: TailedFile, timeout: float) -> list[bytes]:
        try:
            lines = file.read(timeout, stay=bool(self._lines))
        except InputError as failure:
            self._failure = failure  # the lines before it come first
            return []
        if file.generation != self._generation:
            self._bytes, self._lines_handed, self._generation = 0, 0, file.generation
        if self._skip:
            skipped = min(self._skip, len(lines))
            self._skip, lines = self._skip - skipped, lines[skipped:]
        return lines

    def _numbered(self, lines: list[bytes]) -> list[Records]:
        first = self._positions[self._place]
        self._bytes += bytes_of(lines)
        if self._lines_handed == 0 and lines:
            lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
        self._positions[self._place] += len(lines)
        self._lines_handed += len(lines)
        numbers: Sequence[int] = range(first, first + len(lines))
        if not all(lines) or any(map(bytes.isspace, lines)):
            numbers = [number for number, line in zip(numbers, lines, strict=True) if line.strip()]
            lines = [line for line in lines if line.strip()]
        return [Records(self._paths[self._place], self._place, numbers, lines)] if lines else []

    def _lag(self, place: int) -> int | None:
        at_end = place < self._place or (place == self._place and self._file is not None and self._file.waiting)
        return len(self._lines) if at_end else None
