"""Read files of events as a source: plain or compressed, standard input, and logs that still grow."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from pydantic import BeforeValidator, Field, model_validator

from streameval.errors import InputError, without_secrets
from streameval.events.records import RecordDecoder, RowDecoder
from streameval.events.tables import ColumnNames
from streameval.ingest.base import (
    JSON_FORMATS,
    BackfillStart,
    DataLoss,
    LogSettings,
    Offsets,
    OnLostOffsets,
    PartitionStatus,
    Records,
    Source,
    SourceOffsets,
    SourceStatus,
    WireFormat,
)
from streameval.ingest.files.csv_rows import CsvFile
from streameval.ingest.files.lines import START, FileIdentity, TailedFile, check, format_of_name, resume
from streameval.ingest.files.remote import expand, is_remote

AnyPath: TypeAlias = str | os.PathLike[str]
Advance: TypeAlias = Callable[[int, int | None], None]
"""Show progress. Arguments: bytes read as stored, and in total, None for a pipe."""


NO_TABLE = "expected NDJSON or CSV, and {} is {}; `streameval produce` sends its rows"


class FileSettings(LogSettings):
    """Configure files of events as the source."""

    ends_are_certain: ClassVar[bool] = True

    kind: Literal["file"] = "file"
    path: Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)] = Field(
        min_length=1,
        description="The files, read one after another; `-` is standard input. Also addresses such as "
        "s3://bucket/log/*.ndjson, with the extra `streameval[cloud]`.",
    )
    format: Literal["json", "dsjson", "csv"] = Field(
        "json", description=f"{JSON_FORMATS}, or csv, the default for files with `.csv` in their names."
    )
    multiline: bool = Field(
        default=False, description="Cells of CSV hold line breaks: rows that take several lines are not reported."
    )
    follow: bool = Field(default=False, description="Wait for more lines at the end of the last file.")
    on_lost_offsets: OnLostOffsets = Field(
        default="continue",
        description="If the file was replaced: count the gap and read the new file from its start, or stop.",
    )

    @model_validator(mode="before")
    @classmethod
    def _derive_format(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "format" in values or "path" not in values:
            return values
        names = [values["path"]] if isinstance(values["path"], str) else values["path"]
        are_csv = isinstance(names, list) and all(format_of_name(str(name)) == "csv" for name in names)
        return values | {"format": "csv"} if are_csv else values

    @model_validator(mode="after")
    def _check_paths(self) -> FileSettings:
        for index, path in enumerate(self.path):
            form = format_of_name(path)
            if form in ("parquet", "arrow"):
                raise ValueError(NO_TABLE.format(path, form.title()))
            if form == "csv" and self.format != "csv":
                raise ValueError(f"expected files of one format, and {path} is CSV")
            if self.follow and is_remote(path):
                raise ValueError(f"expected a local file to follow, and {path} is an address")
            if path in self.path[:index]:
                raise ValueError(f"expected each file once, and {path} is listed twice")
        return self

    @property
    def description(self) -> str:
        return without_secrets(f"file, {', '.join(self.path)}{', followed' if self.follow else ''}")

    @property
    def name(self) -> str:
        path = self.path[0].partition("?")[0] if is_remote(self.path[0]) else self.path[0]
        return Path(path).name.partition(".")[0].strip("-*") or self.kind

    def identity(self) -> dict[str, Any]:
        return {"kind": self.kind, "path": self.path, "format": self.format}

    @property
    def wire_format(self) -> WireFormat:
        return self.format

    def record_decoder(self, columns: ColumnNames) -> Callable[..., RecordDecoder] | None:
        return partial(RowDecoder, columns) if self.format == "csv" else None

    def open(self, offsets: SourceOffsets | None = None) -> Source:
        rows = CsvFile if self.format == "csv" else TailedFile
        files = expand(self.path)
        for file in files:
            form = format_of_name(file)
            if form in ("parquet", "arrow"):
                raise InputError(NO_TABLE.format(file, form.title()), hint="a log of tables is for `streameval replay`")
        return FileSource(
            files,
            follow=self.follow,
            offsets=offsets,
            loss_reaction=self.on_lost_offsets,
            opened=rows,
            multiline=self.multiline,
        )

    def backfill_start(self, text: str) -> BackfillStart:
        if "-" in self.path:
            raise InputError("standard input cannot be read a second time", hint="leave --backfill out, or name a file")
        return super().backfill_start(text)


def read_lines(
    paths: AnyPath | Iterable[AnyPath], *, batch: int = 2000, advance: Advance = lambda read, total: None
) -> Iterator[Sequence[bytes | None]]:
    """Read the lines of files in batches, without blank lines. For arguments and errors see `read_records`."""
    return (records.values for records in read_records(paths, batch=batch, advance=advance))


def read_records(
    paths: AnyPath | Iterable[AnyPath], *, batch: int = 2000, advance: Advance = lambda read, total: None
) -> Iterator[Records]:
    """Read the lines of files in batches, with their numbers and without blank lines.

    Args:
        paths: the files
        batch: maximum number of lines in a batch
        advance: called before each batch

    Raises:
        InputError: A file is missing or damaged. Raised after all lines before the damage.
    """
    source = FileSource(paths, batch=batch)
    try:
        while not source.status().exhausted:
            for records in source.poll(timeout=1.0):
                advance(source.bytes_read, source.bytes_total)
                yield records
    finally:
        source.close()


class FileSource(Source):
    """Read files one after another, as a source of messages.

    The topic of a message is the path of its file, the partition the index of the path, and the offset the number of
    the line. Lines count from 1. Blank lines are counted and left out.

    Args:
        paths: the files
        follow: whether to wait for more lines of the last file, and for the newline of its last line
        batch: maximum number of lines in a poll
        offsets: where to continue. A file is recognised by its content, see `FileIdentity`. If the path is another file
            now, it is read from its start, and line numbers continue. Pipes are read from where they are.
        loss_reaction: whether unread lines of a replaced file are counted as lost or stop the source
        opened: the reader of one file
        multiline: whether rows of several lines are expected, and not counted
    """

    def __init__(
        self,
        paths: AnyPath | Iterable[AnyPath],
        *,
        follow: bool = False,
        batch: int = 2000,
        offsets: SourceOffsets | None = None,
        loss_reaction: OnLostOffsets = "continue",
        opened: type[TailedFile] = TailedFile,
        multiline: bool = False,
    ) -> None:
        self._opened, self._multiline = opened, multiline
        self._spanning = 0  # in the files before the present one
        several = [paths] if isinstance(paths, str | os.PathLike) else paths
        self._paths = [os.fspath(path) for path in several]
        sizes = [check(path) for path in self._paths]
        self.bytes_total = None if None in sizes else sum(size for size in sizes if size is not None)
        self._follow, self._batch = follow, batch
        starts = [(offsets or {}).get(path, Offsets({})) for path in self._paths]
        self._identities = [
            msgspec.json.decode(start.identity, type=FileIdentity) if start.identity else None for start in starts
        ]
        self._positions = [next(iter(start.positions.values()), 1) for start in starts]
        self._losses = {path: DataLoss(path, loss_reaction) for path in self._paths}
        self._index = self._bytes_before = 0
        self._file: TailedFile | None = None

    @property
    def bytes_read(self) -> int:
        """Return the bytes read of the files as stored. `bytes_total` is the size of all, None if one is a pipe."""
        return self._bytes_before + (self._file.bytes_read if self._file else 0)

    def poll(self, timeout: float) -> list[Records]:
        """Return the next lines of one file.

        Raises:
            InputError: A file is missing or damaged. Raised after all lines before the damage have been returned.
        """
        deadline = time.monotonic() + timeout
        while self._index < len(self._paths):
            file = self._file = self._file or self._open()
            records = self._numbered(file.read(self._batch, max(0.0, deadline - time.monotonic())))
            if file.ended:
                self._next_file(file)
            if records or not file.ended:
                return records
        return []

    def status(self) -> SourceStatus:
        """Return line numbers as positions. The lag is known only at the end of a file."""
        partitions = tuple(
            PartitionStatus(path, index, position, 0 if self._is_at_end(index) else None)
            for index, (path, position) in enumerate(zip(self._paths, self._positions, strict=True))
        )
        gaps: Counter[str] = sum((loss.gaps for loss in self._losses.values()), Counter())
        exhausted = self._index == len(self._paths)
        spanning = 0 if self._multiline else self._spanning + (self._file.spanning if self._file else 0)
        return SourceStatus(reached=True, exhausted=exhausted, partitions=partitions, gaps=gaps, spanning_rows=spanning)

    def offsets(self) -> SourceOffsets:
        """Return the next line of each file that was opened, and the identity of the file."""
        if self._file is not None:
            self._identities[self._index] = self._file.identity()
        files = enumerate(zip(self._paths, self._positions, self._identities, strict=True))
        return {
            path: Offsets({index: position}, msgspec.json.encode(identity).decode() if identity else None)
            for index, (path, position, identity) in files
            if position > 1 or identity
        }

    def close(self) -> None:
        """Close the file that is open."""
        if self._file:
            self._file.close()

    def _open(self) -> TailedFile:
        path = self._paths[self._index]
        identity, start = self._identities[self._index], START
        if identity is not None:
            kind, start = resume(path, identity)
            if kind:
                line = self._positions[self._index]
                self._losses[path].record(kind, 0, line=line, resume_after_line=start.lines)
        is_last = self._index == len(self._paths) - 1
        return self._opened(path, follow=self._follow and is_last, start=start)

    def _next_file(self, file: TailedFile) -> None:
        if file.lines_to_skip:
            line = self._positions[self._index]
            self._losses[file.path].record("cut", 0, line=line, lines_missing=file.lines_to_skip)
        self._identities[self._index] = file.identity()
        self._bytes_before += file.bytes_read
        self._spanning += file.spanning
        file.close()
        self._file = None
        self._index += 1

    def _numbered(self, lines: list[bytes]) -> list[Records]:
        first = self._positions[self._index]
        self._positions[self._index] += len(lines)
        numbers: Sequence[int] = range(first, first + len(lines))
        if not all(lines) or any(map(bytes.isspace, lines)):
            numbers = [number for number, line in zip(numbers, lines, strict=True) if line.strip()]
            lines = [line for line in lines if line.strip()]
        return [Records(self._paths[self._index], self._index, numbers, lines)] if lines else []

    def _is_at_end(self, index: int) -> bool:
        return index < self._index or (index == self._index and self._file is not None and self._file.waiting)
