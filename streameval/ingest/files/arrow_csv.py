"""Parse lines of CSV by pyarrow, into one Arrow array per field of events."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from streameval.events.diagnosis import DECODE_ERRORS
from streameval.events.records import CellError, read_cell
from streameval.events.tables import IDENTIFIERS, TableLayout, to_seconds

LIST_TYPES: dict[str, tuple[Any, msgspec.json.Decoder[Any]]] = {
    "actions": (pa.list_(pa.string()), msgspec.json.Decoder(list[str])),
    "propensities": (pa.list_(pa.float64()), msgspec.json.Decoder(list[float])),
    "policies": (pa.list_(pa.float64()), msgspec.json.Decoder(list[float])),
    "features": (pa.list_(pa.list_(pa.float64())), msgspec.json.Decoder(list[list[float]])),
}


def parse_lines(lines: Sequence[bytes], header: Sequence[str], layout: TableLayout) -> list[Any] | None:
    """Return one array per field of the layout, with one entry per line.

    A line with another number of cells has nulls. Return None if the lines need a closer look: a row spans several
    lines or is not UTF-8, or a cell is not of the type of its field.
    """
    table = _split(lines, header, layout.columns)
    if table is None:
        return None
    columns = []
    for field in layout.fields:
        cells = pc.utf8_trim_whitespace(table.column(field.column).combine_chunks())
        try:
            columns.append(_parse_cells(pc.if_else(pc.equal(cells, ""), None, cells), field.field))
        except (pa.ArrowInvalid, CellError, *DECODE_ERRORS):
            return None
    return columns


def _split(lines: Sequence[bytes], header: Sequence[str], columns: Sequence[str]) -> Any:
    """Split lines into a table of text cells, None unless each line is one row."""
    # pyarrow ends rows at lone carriage returns too, and takes a byte order mark away
    text = b"\n".join(lines) + b"\n"
    if text.count(b"\r") != text.count(b"\r\n") or text.startswith(codecs.BOM_UTF8) or _is_open(lines[-1]):
        return None
    invalid: list[int] = []

    def skip(row: Any) -> str:
        invalid.append(row.number - 1)
        return "skip"

    try:
        table = pyarrow.csv.read_csv(
            pa.py_buffer(text),
            read_options=pyarrow.csv.ReadOptions(column_names=header, use_threads=False, block_size=len(text)),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip),
            # the type is fixed, as inference would lose the zeros of an identifier such as 007
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(columns, pa.string()), include_columns=columns, strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows + len(invalid) != len(lines):
        return None
    if not invalid:
        return table
    empty = b"," * (len(header) - 1)
    return _split([empty if index in invalid else line for index, line in enumerate(lines)], header, columns)


def _is_open(line: bytes) -> bool:
    """Return whether a row that starts in this line continues in the next one."""
    if b'"' not in line:
        return False
    rows = csv.reader([line.decode(errors="replace") + "\n", "\n"])
    try:
        next(rows)
    except csv.Error:
        return True
    return rows.line_num > 1


def _parse_cells(cells: Any, field: str) -> Any:
    """Parse text cells by the type of their field.

    Raises:
        ArrowInvalid, CellError, DECODE_ERRORS: A cell is not of this type.
    """
    if field in IDENTIFIERS:
        return cells
    is_list = field != "policies" or pc.any(pc.starts_with(cells, "[")).as_py()
    if field in LIST_TYPES and is_list:
        kind, decoder = LIST_TYPES[field]
        return pa.array([None if cell is None else decoder.decode(cell) for cell in cells.to_pylist()], kind)
    try:
        return cells.cast(pa.float64())
    except pa.ArrowInvalid:
        if field != "timestamp":
            return cells.cast(pa.bool_())
    moments = [None if cell is None else to_seconds(read_cell(cell, field)) for cell in cells.to_pylist()]
    return pa.array([moment if isinstance(moment, float) else None for moment in moments], pa.float64())
