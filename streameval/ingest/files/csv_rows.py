"""CSV files row by row, as messages: each is a JSON object with the text of each cell by the name of its column."""

from __future__ import annotations

import csv
import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from streameval.errors import InputError
from streameval.ingest.files.lines import START, FileIdentity, TailedFile

NEXT_LINE = 1.0  # seconds to wait for the next line of a row that has not ended


class CsvFile(TailedFile):
    """Reads the rows of a CSV file, the first line of which has the names of the columns.

    Without a column `event_id`, the id of a row is its place in the file; without a `timestamp`, its time is that of
    its reading. So rows count in their order, each once.
    """

    _header: Sequence[str]

    def __init__(self, path: str, *, follow: bool = False, start: FileIdentity = START) -> None:
        super().__init__(path, follow=follow, start=start)
        if start.lines:
            first = CsvFile(path)
            first.read(1, NEXT_LINE)
            first.close()
            self._header = first._header

    def read(self, most: int, timeout: float) -> list[bytes]:
        """As many messages as lines; those of the header, and of lines within a row, are empty.

        Raises:
            InputError: The file cannot be read further, or two columns have the same name.
        """
        header, number = self._header, self._lines
        lines = deque(super().read(most, timeout))
        if self._lines:  # 0: another file has replaced the one of these lines
            header, number = self._header, self._lines - len(lines)
        rows = csv.reader(self._texts(lines))
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

    def _texts(self, lines: deque[bytes]) -> Iterator[str]:
        """These lines, and more as long as a row has not ended."""
        while True:
            if not lines:
                lines.extend(super().read(1, NEXT_LINE))
            if not lines:
                return
            yield lines.popleft().decode(errors="surrogateescape") + "\n"

    def _names(self, cells: list[str]) -> Sequence[str]:
        twice = [name for place, name in enumerate(cells) if name in cells[:place]]
        if twice:
            raise InputError(f"{self.path} has two columns '{twice[0]}'", hint="rename or remove one of them")
        return cells

    def _message(self, header: Sequence[str], cells: list[str], number: int) -> bytes:
        """The row as an object; as a list if it does not have a cell for each column."""
        if not cells:
            return b""
        row: object = cells
        if len(cells) == len(header):
            place = {"event_id": f"{Path(self.path).name}:{number}", "timestamp": str(time.time())}
            row = place | dict(zip(header, cells, strict=True))
        try:
            return msgspec.json.encode(row)
        except UnicodeEncodeError:  # bytes that are not UTF-8; the decoder rejects them
            return json.dumps(row).encode()
