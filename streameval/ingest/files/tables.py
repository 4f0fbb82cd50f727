"""Logs that are tables: the rows of Parquet and CSV files as events."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import msgspec
import numpy as np

from streameval.common.arrays import floats
from streameval.common.text import counted
from streameval.errors import InputError
from streameval.events import EventBatch, Fault, JsonDecoder, Table
from streameval.events.action_sets import Index
from streameval.events.diagnosis import DECODE_ERRORS, explain, refusal
from streameval.events.records import cell_identifier, cell_value
from streameval.events.tables import (
    IDENTIFIERS,
    ActionColumns,
    CellColumn,
    ColumnNames,
    ListColumn,
    Row,
    TableLayout,
    arrow_rows,
    in_seconds,
)
from streameval.ingest.files.lines import check
from streameval.ingest.files.source import Advance, read_lines

BATCH_ROWS = 2000
READ_AHEAD = 64 * 1024  # bytes of a Parquet column, so that memory does not depend on the size of the file

NAMES, NUMBERS, FEATURES = (msgspec.json.Decoder(kind) for kind in (list[str], list[float], list[list[float]]))

LayoutOf = Callable[[Sequence[str]], TableLayout]
"""The layout of a table with these names of columns."""
Tables: TypeAlias = Iterator[tuple[TableLayout, Table | list[Row]]]


def read_table(
    path: str,
    kind: str,
    columns: ColumnNames,
    decoder: JsonDecoder,
    advance: Advance,
    *,
    timed: bool = True,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[EventBatch]:
    """Decode the rows of a table, the first of which has the offset 1.

    Args:
        kind: `parquet`, or `csv` with a header, which may be compressed by gzip or zstd
        columns: the names of columns; a column without a name has that of its field
        advance: called with the bytes read so far and in all
        timed: rows must have a timestamp
        batch_rows: most rows in a batch

    Raises:
        InputError: The file cannot be read, or lacks a required column.
    """
    first, layout_of = 1, partial(TableLayout.of, path, columns=columns, decoder=decoder, timed=timed)
    for layout, rows in _tables(path, kind, layout_of, advance, batch_rows):
        yield layout.decoded(rows, decoder, path, first)
        first += len(rows) if isinstance(rows, list) else len(rows.is_plain)


def read_rows(
    path: str, kind: str, columns: ColumnNames, decoder: JsonDecoder, advance: Advance, *, timed: bool = True
) -> Iterator[Sequence[Row]]:
    """The rows of a table as events in Python values by field, or faults; for arguments and errors see `read_table`.

    Without `timed`, rows have neither an `event_id` nor a `timestamp` where the table has no such column.
    """
    layout_of = partial(TableLayout.of, path, columns=columns, decoder=decoder, timed=timed)
    for layout, rows in _tables(path, kind, layout_of, advance, BATCH_ROWS):
        given = rows.rows(np.arange(len(rows.is_plain))) if isinstance(rows, Table) else rows
        if not timed:
            given = [row if isinstance(row, Fault) else layout.without_constants(row) for row in given]
        yield given


def _tables(path: str, kind: str, layout_of: LayoutOf, advance: Advance, batch_rows: int) -> Tables:
    return (_parquet_tables if kind == "parquet" else _csv_tables)(path, layout_of, advance, batch_rows)


# --- Parquet ---


def _parquet_tables(path: str, layout_of: LayoutOf, advance: Advance, batch_rows: int) -> Tables:
    size = check(path)
    if size is None:
        raise InputError(f"{path} is a pipe, and Parquet is read from its end", hint="write it to a file first")
    try:
        import pyarrow.parquet
    except ImportError as error:
        hint = "pip install 'streameval[columnar]'"
        raise InputError("Parquet needs pyarrow, which is not installed", hint=hint) from error
    try:
        with pyarrow.parquet.ParquetFile(path, buffer_size=READ_AHEAD, pre_buffer=False) as file:
            layout = layout_of(file.schema_arrow.names)
            done = 0
            for batch in file.iter_batches(batch_size=batch_rows, columns=layout.columns):
                yield layout, arrow_rows(batch, layout)
                done += batch.num_rows
                advance(size * done // file.metadata.num_rows, size)
    except (OSError, ValueError, NotImplementedError) as error:  # the base classes of pyarrow's errors
        hint = "check that the file was written completely"
        raise InputError(f"{path} cannot be read as Parquet: {error}", hint=hint) from error


# --- CSV ---


def _csv_tables(path: str, layout_of: LayoutOf, advance: Advance, batch_rows: int) -> Tables:
    batches = read_lines([path], advance=advance)
    text = ((line or b"").decode(errors="surrogateescape") + "\n" for batch in batches for line in batch)
    lines = csv.reader(text)
    try:
        header = next(lines)
    except StopIteration:
        return
    except csv.Error as error:
        raise InputError(
            f"{path} cannot be read as CSV: {error}", hint="the first line must have the names of the columns"
        ) from error
    layout, whole_lines = layout_of(header), _csv_lines(lines, len(header))
    cells_read = [
        (each.field, header.index(each.column), cell_identifier if each.field in IDENTIFIERS else cell_value)
        for each in layout.fields
    ]

    def rows_of(batch: Sequence[list[str] | Fault], numbers: Index) -> list[Row]:
        values = [_values(batch[row], cells_read) for row in numbers.tolist()]
        return [each if isinstance(each, Fault) else layout.event(each) for each in values]

    empty = [""] * len(header)
    while batch := list(islice(whole_lines, batch_rows)):
        rows, is_whole = partial(rows_of, batch), np.array([not isinstance(line, Fault) for line in batch])
        cells = list(zip(*(empty if isinstance(line, Fault) else line for line in batch), strict=True))
        columns = [_csv_column(cells[place], field) for field, place, _ in cells_read]
        actions = _csv_actions({field: cells[place] for field, place, _ in cells_read}, layout)
        yield layout, layout.table(columns, is_whole, rows, actions)


def _csv_column(cells: Sequence[str], field: str) -> CellColumn:
    """The cells of a column as numbers, identifiers or lists; None where some are none of these."""
    text = "".join(cells)
    if field == "features":
        return ListColumn.of(_csv_lists(cells, FEATURES), lambda rows: ListColumn.of(rows, floats))
    if field == "propensities" or (field == "policies" and "[" in text):
        return ListColumn.of(_csv_lists(cells, NUMBERS), floats)
    try:
        text.encode()
        if field in IDENTIFIERS:
            return [cell.strip() or None for cell in cells]
        if field != "timestamp":
            return None if "_" in text else np.array([float(cell or "nan") for cell in cells])
        moments = [in_seconds(cell_value(cell.strip())) for cell in cells]
        return np.array([moment if isinstance(moment, float) else math.nan for moment in moments])
    except (ValueError, RecursionError):
        return None


def _csv_actions(cells: Mapping[str, Sequence[str]], layout: TableLayout) -> ActionColumns | None:
    """The actions of a column, or the same ones for all rows; None without either, or with bytes that are not UTF-8."""
    logged, fixed = _csv_column(cells["action"], "action"), layout.constants.get("actions")
    if not isinstance(logged, list) or (fixed is None and "actions" not in cells):
        return None
    return ActionColumns.of([fixed] * len(logged) if fixed else _csv_lists(cells["actions"], NAMES), logged)


def _csv_lists(cells: Sequence[str], decoder: msgspec.json.Decoder[Any]) -> list[Any]:
    """The list in each cell, None for an empty one; a `Fault` for another value, which is read again with its row."""
    lists: list[Any] = []
    texts = iter(list(map(str.strip, cells)))
    while len(lists) < len(cells):
        try:
            lists.extend(decoder.decode(text) if text else None for text in texts)
        except DECODE_ERRORS as error:
            lists.append(refusal(error))
    return lists


def _csv_lines(lines: Iterator[list[str]], width: int) -> Iterator[list[str] | Fault]:
    """The lines with a cell for every column; a `Fault` for each other line."""
    while True:
        try:
            cells = next(lines)
        except StopIteration:
            return
        except csv.Error as error:
            yield Fault("malformed", f"not CSV: {error}")
            continue
        if len(cells) == width:
            yield cells
        else:
            yield Fault("malformed", f"{counted(len(cells), 'cell')} for {counted(width, 'column')}")


def _values(cells: list[str] | Fault, wanted: Sequence[tuple[str, int, Callable[[str], Any]]]) -> list[Any] | Fault:
    """The values of the wanted fields, each of which is in the cell at its place."""
    if isinstance(cells, Fault):
        return cells
    values = []
    for field, place, value_of in wanted:
        try:
            values.append(value_of(cells[place].strip()))
        except (ValueError, RecursionError) as error:
            return Fault("malformed", f"{field}: {explain(error)}")
    return values
