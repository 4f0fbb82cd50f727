"""Read Parquet, Arrow and CSV files as events."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain, groupby, repeat
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from streameval.common.text import counted
from streameval.errors import InputError, missing_package
from streameval.events import EventBatch, Fault, JsonDecoder
from streameval.events.action_sets import Index
from streameval.events.diagnosis import DECODE_ERRORS, refusal
from streameval.events.origin import Origin
from streameval.events.records import read_cell
from streameval.events.tables import ColumnNames, Row, TableLayout, has_no_zone, with_deferred_rows
from streameval.ingest.files.csv_rows import CsvRow, delimiter_of, next_row
from streameval.ingest.files.lines import check
from streameval.ingest.files.remote import is_remote, open_remote, partition_values
from streameval.ingest.files.source import Advance, read_lines

BATCH_ROWS = 2000
MAX_ROW_VALUES, MAX_BATCH_VALUES = 2**21, 2**24  # of a list, and of all rows that are read together
READ_AHEAD_BYTES = 64 * 1024  # of a Parquet column, so that memory does not depend on the size of the file
REMOTE_READ_BYTES = 2 * 2**20  # of a column of a remote file, by one request

LayoutOf: TypeAlias = Callable[[Sequence[str]], TableLayout]
"""Return the layout of a table with these names of columns."""
ParseLines: TypeAlias = Callable[[Sequence[bytes], Sequence[str], TableLayout, str], list[Any] | None]
"""Return one Arrow array per field, or None if the lines must be read as rows."""
Cells: TypeAlias = list[str] | Fault
"""The cells of a row, one per column, or the reason why there are not so many."""


class TableChunk(NamedTuple):
    """Hold consecutive rows of a table.

    Attributes:
        layout: the fields of the table
        size: number of rows
        rows: return rows by index as Python values
        columns: one Arrow array per field, None if rows must be read one by one
        spanning: number of rows that take several lines
        deferred: return rows by index with their raw fields, None if the layout has none
    """

    layout: TableLayout
    size: int
    rows: Callable[[Index], Sequence[Row]]
    columns: Sequence[Any] | None = None
    spanning: int = 0
    deferred: Callable[[Index], Sequence[Row]] | None = None


def read_table(
    path: str,
    kind: str,
    columns: ColumnNames,
    decoder: JsonDecoder,
    advance: Advance,
    *,
    timed: bool = True,
    batch_rows: int = BATCH_ROWS,
    spans: Callable[[int], None] = lambda rows: None,
) -> Iterator[EventBatch]:
    """Decode the rows of a table. The first row has the offset 1.

    Args:
        path: the file
        kind: `parquet`, `arrow`, or `csv` with a header, which may be compressed
        columns: names of the columns of fields
        decoder: the decoder of the events
        advance: called with the bytes read so far and in total
        timed: whether rows must have a timestamp
        batch_rows: maximum number of rows in a batch
        spans: called with the number of rows in a batch that take several lines of CSV, if there are some

    Raises:
        InputError: The file cannot be read, or lacks a required column.
    """
    first, layout_of = 1, partial(_layout, path, kind, columns, decoder, timed)
    chunks = _read_chunks(path, kind, layout_of, advance, batch_rows, decoder.reads_columns)
    for layout, size, rows, arrays, spanning, deferred in chunks:
        if spanning:
            spans(spanning)
        origin = Origin.from_parts(path, [(0, range(first, first + size))])
        first += size
        if arrays is None:
            batch = layout.decode_rows(rows(np.arange(size)), decoder, origin)
        else:
            from streameval.events.arrow import decode_columns  # needs pyarrow, which has made the arrays

            batch = decode_columns(arrays, rows, layout, decoder, origin)
        yield with_deferred_rows(batch, deferred)


def read_rows(
    path: str, kind: str, columns: ColumnNames, decoder: JsonDecoder, advance: Advance
) -> Iterator[Sequence[Row]]:
    """Read the rows of a table as Python values by field, in batches.

    Rows have no `event_id` and no `timestamp` if the table lacks the column. For arguments and errors see `read_table`.
    """
    layout_of = partial(_layout, path, kind, columns, decoder, False)
    for chunk in _read_chunks(path, kind, layout_of, advance, BATCH_ROWS, by_columns=False):
        yield chunk.rows(np.arange(chunk.size))


def _layout(
    path: str, kind: str, columns: ColumnNames, decoder: JsonDecoder, timed: bool, names: Sequence[str]
) -> TableLayout:
    """Return the layout of a table. A batch of Arrow with a column `policies` may lack some of them, as JSON may."""
    if kind == "arrow" and "policies" in names:
        others = {policy: column for policy, column in columns.policies.items() if policy != column}
        columns = columns.model_copy(update={"policies": others})
    return TableLayout.from_names(path, names, columns, decoder, timed=timed, json_context=kind == "arrow")


def local_time(path: str, kind: str, column: str) -> str | None:
    """Return the first time of a table if it has no zone, else None. Call it for files that have been read.

    Args:
        path: the file
        kind: `parquet`, `arrow` or `csv`
        column: the name of the column with times
    """
    if check(path) is None:
        return None
    text = next(column_values(path, kind, column), None)
    return str(text) if text is not None and has_no_zone(str(text)) else None


def column_values(path: str, kind: str, column: str) -> Iterator[Any]:
    """Yield the values of a column as they stand in the file, none if the table lacks it.

    Args:
        path: the file
        kind: `parquet`, `arrow` or `csv`
        column: the name of the column
    """
    if kind == "parquet":
        with _parquet_file(path) as file:
            shared = partition_values(path)
            if column in shared and column not in file.schema_arrow.names:
                yield from repeat(shared[column], file.metadata.num_rows)
            names = [column] if column in file.schema_arrow.names else []
            for batch in file.iter_batches(BATCH_ROWS, columns=names) if names else ():
                with suppress(ValueError):  # nanoseconds need pandas
                    yield from (value.as_py() for value in batch.column(0))
        return
    if kind == "arrow":
        for table in _arrow_tables(path, lambda read, total: None, BATCH_ROWS):
            if column in table.column_names:
                with suppress(ValueError):
                    yield from table.column(column).to_pylist()
        return
    lines = (line for block in read_lines([path], batch=BATCH_ROWS) for line in block if line)
    header = next(lines, b"")
    texts = (line.decode(errors="replace") for line in chain([header], lines))
    with suppress(csv.Error):
        yield from (row.get(column) for row in csv.DictReader(texts, delimiter=delimiter_of(header)))


def _read_chunks(
    path: str, kind: str, layout_of: LayoutOf, advance: Advance, batch_rows: int, by_columns: bool
) -> Iterator[TableChunk]:
    if kind == "parquet":
        return _read_parquet(path, layout_of, advance, batch_rows)
    if kind == "arrow":
        return _read_arrow(path, layout_of, advance, batch_rows)
    return _read_csv(path, layout_of, advance, batch_rows, _arrow_parser() if by_columns else None)


def _read_parquet(path: str, layout_of: LayoutOf, advance: Advance, batch_rows: int) -> Iterator[TableChunk]:
    size = check(path)
    if size is None and not is_remote(path):
        raise InputError(f"{path} is a pipe, and Parquet is read from its end", hint="write it to a file first")
    done = 0
    try:
        with _parquet_file(path) as file:
            names = file.schema_arrow.names
            shared = {name: value for name, value in partition_values(path).items() if name not in names}
            layout = layout_of([*names, *shared])
            for chunk in _parquet_chunks(file, layout, batch_rows, shared):
                yield chunk
                done += chunk.size
                advance((size or 0) * done // file.metadata.num_rows, size)
    except MemoryError as error:  # of pyarrow's reader; metadata have the mean length of lists, not the largest
        hint = f"events before that point were counted; shorten lists of more than {MAX_ROW_VALUES:,} values"
        raise InputError(f"{path} does not fit in memory after row {done:,}: {error}", hint=hint) from error
    except (OSError, ValueError, NotImplementedError) as error:  # the base classes of pyarrow's errors
        hint = "check that the file was written completely"
        raise InputError(f"{path} cannot be read as Parquet: {error}", hint=hint) from error


@contextmanager
def _parquet_file(path: str) -> Iterator[Any]:
    """Open a Parquet file.

    Raises:
        InputError: pyarrow is not installed, or the file cannot be opened.
    """
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise missing_package("Parquet", "pyarrow", "columnar") from error
    with ExitStack() as opened:
        far = is_remote(path)
        source: Any = opened.enter_context(open_remote(path, read_ahead=False)) if far else path
        size = REMOTE_READ_BYTES if far else READ_AHEAD_BYTES
        yield opened.enter_context(pyarrow.parquet.ParquetFile(source, buffer_size=size, pre_buffer=False))


def _parquet_chunks(file: Any, layout: TableLayout, batch_rows: int, shared: Mapping[str, Any]) -> Iterator[TableChunk]:
    """Read the row groups of an open file, and reject the rows of groups with lists that would fill the memory.

    Parquet repeats equal values without storing them, so that a list of a gigabyte takes a few bytes of a file.

    Args:
        file: the open file
        layout: the fields that are read
        batch_rows: maximum number of rows in a chunk
        shared: values of columns that all rows share
    """
    import pyarrow  # has opened the file

    from streameval.events.arrow import deferred_rows, table_columns

    values = [_values_of_row(file.metadata.row_group(group), layout) for group in range(file.num_row_groups)]
    for is_heavy, some in groupby(range(len(values)), key=lambda group: values[group] > MAX_ROW_VALUES):
        groups = list(some)
        if is_heavy:
            for group in groups:
                problem = f"{values[group]:.0f} values in the lists of a row, more than the limit of {MAX_ROW_VALUES}"
                faults = [Fault("malformed", problem)] * file.metadata.row_group(group).num_rows
                yield TableChunk(layout, len(faults), lambda indices, faults=faults: faults[: len(indices)])  # type: ignore[misc]
            continue
        most = int(MAX_BATCH_VALUES // max(1.0, *(values[group] for group in groups)))
        for batch in file.iter_batches(batch_size=min(batch_rows, most), row_groups=groups, columns=layout.all_columns):
            for name in shared.keys() & set(layout.all_columns):
                batch = batch.append_column(name, pyarrow.array([shared[name]] * batch.num_rows))
            columns, rows = table_columns(batch, layout)
            yield TableChunk(layout, batch.num_rows, rows, columns, deferred=deferred_rows(batch, layout))


def _values_of_row(group: Any, layout: TableLayout) -> float:
    """Return the mean number of values of a row, in the column of a row group that has the most."""
    columns = [group.column(number) for number in range(group.num_columns)]
    wanted = tuple(f"{name}." for name in layout.all_columns)
    values = [column.num_values for column in columns if f"{column.path_in_schema}.".startswith(wanted)]
    return float(max(values, default=0) / max(1, group.num_rows))


def _arrow_tables(path: str, advance: Advance, batch_rows: int) -> Iterator[Any]:
    """Yield tables with the rows of an Arrow file, and with the columns in the names of its folders.

    Raises:
        InputError: pyarrow is not installed, or the file cannot be read.
    """
    try:
        import pyarrow

        from streameval.ingest.files.arrow_files import arrow_tables
    except ImportError as error:
        raise missing_package("Arrow", "pyarrow", "columnar") from error
    shared = partition_values(path)
    for table in arrow_tables(path, advance, batch_rows):
        for name in [name for name in shared if name not in table.column_names]:
            table = table.append_column(name, pyarrow.array([shared[name]] * table.num_rows))
        yield table


def _read_arrow(path: str, layout_of: LayoutOf, advance: Advance, batch_rows: int) -> Iterator[TableChunk]:
    """Read the batches of an Arrow file. Streams after each other may have different columns."""
    schema = layout = None
    for table in _arrow_tables(path, advance, batch_rows):
        from streameval.events.arrow import deferred_rows, table_columns

        if layout is None or table.schema != schema:
            schema, layout = table.schema, layout_of(table.column_names)
        if table.num_rows:
            columns, rows = table_columns(table, layout)
            yield TableChunk(layout, table.num_rows, rows, columns, deferred=deferred_rows(table, layout))


def _arrow_parser() -> ParseLines | None:
    try:
        from streameval.ingest.files.arrow_csv import parse_lines
    except ImportError:
        return None
    return parse_lines


def _read_csv(
    path: str, layout_of: LayoutOf, advance: Advance, batch_rows: int, parse_lines: ParseLines | None
) -> Iterator[TableChunk]:
    """Read the rows of a CSV file.

    Blocks of lines that pyarrow may cut into other rows than the standard library are left to the latter. It recovers
    from a quote that is never closed.

    Args:
        path: the file
        layout_of: return the layout of the table
        advance: called with the bytes read so far and in total
        batch_rows: maximum number of rows in a chunk
        parse_lines: the parser of pyarrow, if it is installed and its columns are wanted
    """
    blocks = read_lines([path], batch=batch_rows, advance=advance)
    lines = deque[bytes]()  # of the current block; the first one starts a row

    def refill() -> bool:
        more = [line or b"" for line in next(blocks, ())]
        lines.extend(more)
        return bool(more)

    if not refill():
        return
    delimiter = delimiter_of(lines[0])
    header, _, fault = next_row(lines, refill, delimiter)
    if fault:
        raise InputError(
            f"{path} cannot be read as CSV: {fault}", hint="the first line must have the names of the columns"
        )
    layout = layout_of(header)
    while lines or refill():
        block, spanning = list(lines), 0
        columns = None if parse_lines is None else parse_lines(block, header, layout, delimiter)
        if columns is None:
            some: list[Cells] = []
            while lines and len(some) < len(block):
                row = next_row(lines, refill, delimiter)
                spanning += row.lines > 1
                some.append(_checked(row, len(header)))
            size, rows = len(some), partial(_rows_of_cells, some, header)
        else:
            lines.clear()
            size, rows = len(block), partial(_rows_of_lines, block, header, delimiter)
        deferred = None if layout.deferred is None else partial(rows, layout.deferred)
        yield TableChunk(layout, size, partial(rows, layout), columns, spanning, deferred)


def _checked(row: CsvRow, width: int) -> Cells:
    """Return the cells of a row, or the reason why there is not one per column."""
    if row.fault.startswith("not CSV"):
        return Fault("malformed", row.fault)
    if len(row.cells) != width:
        also = f", and {row.fault}" if row.fault else ""
        return Fault("malformed", f"{counted(len(row.cells), 'cell')} for {counted(width, 'column')}{also}")
    return Fault("malformed", row.fault) if row.fault else row.cells


def _rows_of_lines(
    lines: Sequence[bytes], header: Sequence[str], delimiter: str, layout: TableLayout, indices: Index
) -> list[Row]:
    """Return rows by index, from lines that are one row each."""
    wanted = deque(lines[index] for index in indices.tolist())
    cells = [_checked(next_row(wanted, lambda: False, delimiter), len(header)) for _ in indices]
    return _rows_of_cells(cells, header, layout, np.arange(len(indices)))


def _rows_of_cells(cells: Sequence[Cells], header: Sequence[str], layout: TableLayout, indices: Index) -> list[Row]:
    """Return rows by index, from their cells."""
    wanted = [(field.field, header.index(field.column)) for field in layout.fields]

    def row(cells: Cells) -> Row:
        if isinstance(cells, Fault):
            return cells
        try:
            return layout.event(layout.json_values(read_cell(cells[column], field) for field, column in wanted))
        except DECODE_ERRORS as error:
            return refusal(error)

    return [row(cells[index]) for index in indices.tolist()]
