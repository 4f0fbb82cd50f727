"""Read CSV files row by row, as messages that are JSON objects: the text of each cell by the name of its column."""

from __future__ import annotations

import csv
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from streameval.errors import InputError
from streameval.ingest.files.lines import START, FileIdentity, TailedFile

NEXT_LINE_SECONDS = 1.0  # to wait for the next line of a row that has not ended


class CsvRow(NamedTuple):
    """Hold the cells of a row.

    Attributes:
        cells: the cells, or the one that the reader refused
        lines: number of lines of the row
        fault: why these are not the cells of a row, or empty
    """

    cells: list[str]
    lines: int
    fault: str = ""


def delimiter_of(header: bytes) -> str:
    """Return what separates the names of columns: a tab if there are no commas."""
    return "\t" if b"\t" in header and b"," not in header else ","


def next_row(lines: deque[bytes], refill: Callable[[], bool], delimiter: str = ",") -> CsvRow:
    """Take the next row from lines.

    A row takes several lines if a quote opens in one and closes in another, right before a separator. Any other quote
    that opens is a stray one, which spoils its own line only.

    Args:
        lines: at least one line
        refill: adds further lines, as the row may continue, and returns whether there are some
        delimiter: separates cells
    """
    first = _text(lines[0])
    reader = csv.reader(iter((first, "")), delimiter=delimiter)
    try:
        cells = next(reader)
    except csv.Error as error:
        lines.popleft()
        return CsvRow([first], 1, f"not CSV: {error}")
    if reader.line_num == 1:
        lines.popleft()
        return CsvRow(cells, 1)
    reader = csv.reader(_texts(lines, refill), strict=True, delimiter=delimiter)
    try:
        row = CsvRow(next(reader), reader.line_num)
    except csv.Error:
        row = CsvRow(cells, 1, "a quote is not closed")
    for _ in range(row.lines):
        lines.popleft()
    return row


def _texts(lines: deque[bytes], refill: Callable[[], bool]) -> Iterator[str]:
    """Yield lines and leave them where they are."""
    count = 0
    while count < len(lines) or refill():
        yield _text(lines[count])
        count += 1


def _text(line: bytes) -> str:
    return line.decode(errors="surrogateescape") + "\n"


class CsvFile(TailedFile):
    """Read the rows of a CSV file. Its first row has the names of the columns.

    Without a column `event_id`, the name of the file and the number of the line are the id of a row. Without a
    `timestamp`, rows of a file that is followed have the time of reading, and other rows have none. Rows then count
    once each, in their order.
    """

    _header: Sequence[str]
    _delimiter = ","

    def __init__(self, path: str, *, follow: bool = False, start: FileIdentity = START) -> None:
        super().__init__(path, follow=follow, start=start)
        self._happens_now = follow
        if start.lines:
            first = CsvFile(path)
            first.read(1, NEXT_LINE_SECONDS)
            first.close()
            self._header, self._delimiter = first._header, first._delimiter

    def read(self, most: int, timeout: float) -> list[bytes]:
        """Read as many messages as lines. Messages of the header, and of lines within a row, are empty.

        Raises:
            InputError: The file cannot be read further, or two columns have the same name.
        """
        header, number = self._header, self._lines
        lines = deque(super().read(most, timeout))
        if self._lines:  # 0: another file has replaced the file of these lines
            header, number = self._header, self._lines - len(lines)

        def refill() -> bool:
            more = super(CsvFile, self).read(1, NEXT_LINE_SECONDS)
            lines.extend(more)
            return bool(more)

        messages: list[bytes] = []
        while lines:
            if not header:
                self._delimiter = delimiter_of(lines[0])
            row = next_row(lines, refill, self._delimiter)
            self.spanning += row.lines > 1
            if header:
                messages.append(self._message(header, row, number + len(messages) + 1))
            else:
                header = self._header = self._names(row.cells)
                messages.append(b"")
            messages += [b""] * (row.lines - 1)
        return messages

    def _start(self, stream: BinaryIO) -> None:
        super()._start(stream)
        self._header = ()

    def _names(self, cells: list[str]) -> Sequence[str]:
        repeated = [name for index, name in enumerate(cells) if name in cells[:index]]
        if repeated:
            raise InputError(f"{self.path} has two columns '{repeated[0]}'", hint="rename or remove one of them")
        return cells

    def _message(self, header: Sequence[str], row: CsvRow, number: int) -> bytes:
        """Return the row as an object, as a list if it lacks a cell for each column, or as text if it is not one."""
        if not row.cells:
            return b""
        message: object = row.fault or row.cells
        if not row.fault and len(row.cells) == len(header):
            identity = {"event_id": f"{Path(self.path).name}:{number}"}
            moment = {"timestamp": str(time.time())} if self._happens_now else {}
            message = {**identity, **moment, **dict(zip(header, row.cells, strict=True))}
        try:
            return msgspec.json.encode(message)
        except UnicodeEncodeError:  # bytes that are not UTF-8; the decoder rejects them
            return json.dumps(message).encode()
