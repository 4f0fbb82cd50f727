"""Read CSV files row by row, as messages that are JSON objects: the text of each cell by the name of its column."""

from __future__ import annotations

import csv
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from streameval.errors import InputError
from streameval.ingest.files.lines import START, FileIdentity, TailedFile

NEXT_LINE_SECONDS = 1.0  # to wait for the next line of a row that has not ended


def row_texts(lines: deque[bytes], refill: Callable[[], bool]) -> Iterator[str]:
    """Take lines one by one for a CSV reader.

    Args:
        lines: the lines
        refill: adds lines when all are taken, as a row may continue, and returns whether there is one
    """
    while refill():
        yield lines.popleft().decode(errors="surrogateescape") + "\n"


class CsvFile(TailedFile):
    """Read the rows of a CSV file. Its first row has the names of the columns.

    Without a column `event_id`, the name of the file and the number of the line are the id of a row. Without a
    `timestamp`, the time of reading is its time. Rows then count once each, in their order.
    """

    _header: Sequence[str]

    def __init__(self, path: str, *, follow: bool = False, start: FileIdentity = START) -> None:
        super().__init__(path, follow=follow, start=start)
        if start.lines:
            first = CsvFile(path)
            first.read(1, NEXT_LINE_SECONDS)
            first.close()
            self._header = first._header

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
            if not lines:
                lines.extend(super(CsvFile, self).read(1, NEXT_LINE_SECONDS))
            return bool(lines)

        rows = csv.reader(row_texts(lines, refill))
        messages: list[bytes] = []
        while lines:
            before = rows.line_num
            try:
                cells = next(rows)
            except csv.Error as error:
                cells = [str(error)]
            if header:
                messages.append(self._message(header, cells, number + before + 1))
            else:
                header = self._header = self._names(cells)
            messages += [b""] * (rows.line_num - len(messages))
        return messages

    def _start(self, stream: BinaryIO) -> None:
        super()._start(stream)
        self._header = ()

    def _names(self, cells: list[str]) -> Sequence[str]:
        repeated = [name for index, name in enumerate(cells) if name in cells[:index]]
        if repeated:
            raise InputError(f"{self.path} has two columns '{repeated[0]}'", hint="rename or remove one of them")
        return cells

    def _message(self, header: Sequence[str], cells: list[str], number: int) -> bytes:
        """Return the row as an object, or as a list if it lacks a cell for each column."""
        if not cells:
            return b""
        row: object = cells
        if len(cells) == len(header):
            defaults = {"event_id": f"{Path(self.path).name}:{number}", "timestamp": str(time.time())}
            row = defaults | dict(zip(header, cells, strict=True))
        try:
            return msgspec.json.encode(row)
        except UnicodeEncodeError:  # bytes that are not UTF-8; the decoder rejects them
            return json.dumps(row).encode()
