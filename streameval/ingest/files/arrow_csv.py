"""Parse lines of CSV by pyarrow, into one Arrow array per field of events."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from streameval.events.diagnosis import DECODE_ERRORS
from streameval.events.records import read_cell
from streameval.events.tables import IDENTIFIERS, TableLayout, to_seconds

LIST_TYPES: dict[str, tuple[Any, msgspec.json.Decoder[Any]]] = {
    "actions": (pa.list_(pa.string()), msgspec.json.Decoder(list[str])),
    "propensities": (pa.list_(pa.float64()), msgspec.json.Decoder(list[float])),
    "policies": (pa.list_(pa.float64()), msgspec.json.Decoder(list[float])),
    "features": (pa.list_(pa.list_(pa.float64())), msgspec.json.Decoder(list[list[float]])),
}


def parse_lines(lines: Sequence[bytes], header: Sequence[str], layout: TableLayout, delimiter: str) -> list[Any] | None:
    """Return one array per field of the layout, with one entry per line.

    Return None if the lines need a closer look: a row spans several lines, lacks a cell or is not UTF-8, or a cell is
    not of the type of its field.
    """
    text = b"\n".join(lines) + b"\n"
    # pyarrow ends rows at lone carriage returns too, and takes a byte order mark away
    if text.count(b"\r") != text.count(b"\r\n") or text.startswith(codecs.BOM_UTF8):
        return None
    text += delimiter.encode() * (len(header) - 1) + b"\n"  # one more row, unless the row before has not ended
    try:
        table = pyarrow.csv.read_csv(
            pa.py_buffer(text),
            read_options=pyarrow.csv.ReadOptions(column_names=header, use_threads=False, block_size=len(text)),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=delimiter, newlines_in_values=True, ignore_empty_lines=False
            ),
            # the type is fixed, as inference would lose the zeros of an identifier such as 007
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(layout.columns, pa.string()),
                include_columns=layout.columns,
                strings_can_be_null=False,
            ),
        )
        if table.num_rows != len(lines) + 1:
            return None
        cells = {name: _trimmed(table.column(name)) for name in layout.columns}
        return [_parse_cells(cells[field.column], field.field) for field in layout.fields]
    except (pa.ArrowInvalid, *DECODE_ERRORS):
        return None


def _trimmed(column: Any) -> Any:
    """Return all cells but the last one without white space around them, null if they are empty."""
    cells = pc.utf8_trim_whitespace(column.combine_chunks()[:-1])
    return pc.if_else(pc.equal(cells, ""), None, cells)


def _parse_cells(cells: Any, field: str) -> Any:
    """Parse text cells by the type of their field.

    Raises:
        ArrowInvalid, DECODE_ERRORS: A cell is not of this type.
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
            return _values(cells, field)
    moments = [None if cell is None else to_seconds(read_cell(cell, field)) for cell in cells.to_pylist()]
    return pa.array([moment if isinstance(moment, float) else None for moment in moments], pa.float64())


def _values(cells: Any, field: str) -> Any:
    """Return text or truth values, if all cells are of one of them.

    Raises:
        ArrowInvalid, DECODE_ERRORS: They are not.
    """
    kinds = {type(read_cell(cell, field)) for cell in cells.unique().drop_null().to_pylist()}
    if kinds not in ({str}, {bool}):
        raise pa.ArrowInvalid(f"{field} has values of several types")
    return cells if kinds == {str} else cells.cast(pa.bool_())
