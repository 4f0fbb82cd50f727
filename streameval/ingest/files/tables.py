"""Logs that are tables: the rows of Parquet and CSV files as events."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from streameval.common.arrays import Array, Mask
from streameval.common.text import counted
from streameval.errors import InputError
from streameval.events import EventBatch, Fault, JsonDecoder, Table
from streameval.events.action_sets import Index
from streameval.events.diagnosis import explain, parse
from streameval.events.origin import Origin
from streameval.ingest.files.lines import check
from streameval.ingest.files.source import Advance, ColumnNames, read_lines

BATCH_ROWS = 2000
READ_AHEAD = 64 * 1024  # bytes of a Parquet column, so that memory does not depend on the size of the file

Row: TypeAlias = Mapping[str, Any] | Fault

IDENTIFIERS = ("event_id", "action", "unit")  # fields that are text in CSV
REQUIRED_IDENTIFIERS = ("event_id", "action")
ONLY_NUMBERS = ("timestamp", "propensity", "sampling_probability")  # never booleans
LISTS = {"actions", "propensities", "features"}

CellColumn: TypeAlias = Array | list[str | int | None] | None
"""Numbers, NaN for none; or identifiers; None where cells are neither."""


class TableField(NamedTuple):
    """A field of events, or the probability of a policy, and the column that holds it."""

    field: str
    column: str
    required: bool
    policy: str | None = None
    is_read: bool = True


def read_table(
    path: str, kind: str, columns: ColumnNames, decoder: JsonDecoder, advance: Advance
) -> Iterator[EventBatch]:
    """Decode the rows of a table, the first of which has the offset 1.

    Args:
        kind: `parquet`, or `csv` with a header, which may be compressed by gzip or zstd
        columns: the names of columns; a column without a name has that of its field
        advance: called with the bytes read so far and in all

    Raises:
        InputError: The file cannot be read, or lacks a required column.
    """
    wanted, first = _wanted(columns, decoder), 1
    for rows in _parquet_tables(path, wanted, advance) if kind == "parquet" else _csv_tables(path, wanted, advance):
        number = len(rows) if isinstance(rows, list) else len(rows.is_plain)
        origin = Origin.of(path, [(0, range(first, first + number))])
        yield decoder.decode_rows(rows, origin) if isinstance(rows, list) else decoder.decode_table(rows, origin)
        first += number


def _wanted(columns: ColumnNames, decoder: JsonDecoder) -> list[TableField]:
    """Return the columns to read. Those named in the configuration are required."""
    named = {field: column for field, column in columns if isinstance(column, str) and field != "reward"}
    wanted = [
        TableField(
            field,
            column,
            required=column != field or field in ("timestamp", "action"),
            is_read=field != "context" or decoder.scores is not None,
        )
        for field, column in named.items()
    ]
    wanted.append(TableField(decoder.reward_field, columns.reward or decoder.reward_field, True))
    wanted += [TableField(field, field, False) for field in decoder.scores or () if field not in named]
    policies = columns.policies
    return wanted + [
        TableField("policies", policies.get(policy, policy), policy in policies, policy)
        for policy in decoder.policies or ()
    ]


def _present(path: str, wanted: Sequence[TableField], names: Sequence[str]) -> list[TableField]:
    """Return the wanted columns that the table has; InputError if a required one is missing."""
    for each in wanted:
        if each.required and each.column not in names:
            raise InputError(
                f"{path} has no column '{each.column}' for {each.policy or each.field}; it has {', '.join(names)}",
                hint=_hint_for(names),
            )
        if names.count(each.column) > 1:
            raise InputError(f"{path} has two columns '{each.column}'", hint="rename or remove one of them")
    present = [each for each in wanted if each.column in names and each.is_read]
    if not {"propensity", "propensities"} & {each.field for each in present}:
        raise InputError(
            f"{path} has no column with the propensity; it has {', '.join(names)}",
            hint="name it in the configuration: `columns: {propensity: NAME}`",
        )
    return present


def _hint_for(names: Sequence[str]) -> str:
    """The reason why a header has none of the right names, as far as it shows."""
    first = names[0] if names else ""
    if first.startswith("{"):
        return "this is JSON: leave out --format, and name the file e.g. log.ndjson"
    if len(names) == 1 and any(separator in first for separator in ";\t|"):
        return "separate the columns by commas"
    if first.replace(".", "", 1).isdigit():
        return "write the names of the columns into the first line"
    return "set the names of columns under `columns` in the configuration"


def _event_maker(present: Sequence[TableField]) -> Callable[[Sequence[Any]], dict[str, Any]]:
    """Make events from the values of rows, in the order of `present` (policies last)."""
    fields = [each.field for each in present if each.policy is None]
    policies = [each.policy for each in present if each.policy is not None]

    def make(values: Sequence[Any]) -> dict[str, Any]:
        event = dict(zip(fields, values, strict=False))
        if policies:
            event["policies"] = dict(zip(policies, values[len(fields) :], strict=True))
        event["timestamp"] = _in_seconds(event["timestamp"])
        event.setdefault("event_id", "")  # equals no other one
        return event

    return make


def _plain_table(
    present: Sequence[TableField], columns: Sequence[CellColumn], is_whole: Mask, rows: Callable[[Index], list[Row]]
) -> Table | None:
    """The table of these columns, in the order of `present`; None where some hold neither numbers nor identifiers."""
    numbers: dict[str, Array] = {}
    policies: dict[str, Array] = {}
    identifiers: dict[str, list[str | int | None]] = {}
    is_plain = is_whole.copy()
    for each, column in zip(present, columns, strict=True):
        if isinstance(column, list) and each.field in IDENTIFIERS:
            identifiers[each.field] = column
            if each.field in REQUIRED_IDENTIFIERS and None in column:
                is_plain &= np.array([name is not None for name in column])
        elif isinstance(column, np.ndarray) and each.field not in (*IDENTIFIERS, *LISTS):
            if each.policy is None:
                numbers[each.field] = column
            else:
                policies[each.policy] = column
        else:
            return None
    return Table(numbers, policies, identifiers, is_plain, rows) if "propensity" in numbers else None


def _in_seconds(moment: Any) -> Any:
    """Text as seconds since 1970, in UTC without an offset. The decoder rejects other text."""
    try:
        found = datetime.fromisoformat(moment)
    except (TypeError, ValueError):
        return moment
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


# --- Parquet ---


def _parquet_tables(path: str, wanted: Sequence[TableField], advance: Advance) -> Iterator[Table | list[Row]]:
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
            present = _present(path, wanted, file.schema_arrow.names)
            names = list(dict.fromkeys(each.column for each in present))
            done = 0
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=names):
                rows = partial(_parquet_rows, batch, present)
                every, is_plain = np.arange(batch.num_rows), np.ones(batch.num_rows, dtype=bool)
                columns = [_parquet_column(batch.column(each.column), each) for each in present]
                yield _plain_table(present, columns, is_plain, rows) or rows(every)
                done += batch.num_rows
                advance(size * done // file.metadata.num_rows, size)
    except (OSError, ValueError, NotImplementedError) as error:  # the base classes of pyarrow's errors
        hint = "check that the file was written completely"
        raise InputError(f"{path} cannot be read as Parquet: {error}", hint=hint) from error


def _parquet_rows(batch: Any, present: Sequence[TableField], numbers: Index) -> list[Row]:
    """These rows as Python values."""
    make, part = _event_maker(present), batch.take(numbers)
    values = {each.column: _parquet_values(part.column(each.column)) for each in present}
    return [make(row) for row in zip(*(values[each.column] for each in present), strict=True)]


def _parquet_column(column: Any, field: TableField) -> CellColumn:
    """An Arrow array as a column of events. Booleans are numbers where they are rewards."""
    import pyarrow as pa

    column, types = _of_json(column), pa.types
    is_number = types.is_floating(column.type) or types.is_integer(column.type)
    is_text = types.is_string(column.type) or types.is_large_string(column.type)
    if field.field in IDENTIFIERS:
        return column.to_pylist() if is_text or types.is_integer(column.type) else None
    if field.field == "timestamp" and is_text:
        moments = map(_in_seconds, column.to_pylist())
        return np.array([moment if isinstance(moment, float) else math.nan for moment in moments])
    if types.is_boolean(column.type) and field.policy is None and field.field not in ONLY_NUMBERS:
        column, is_number = column.cast(pa.int8()), True
    return column.to_numpy(zero_copy_only=False).astype(np.float64) if is_number else None


def _parquet_values(column: Any) -> list[Any]:
    """An Arrow array as the values of JSON, NaN as None."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types, column = pa.types, _of_json(column)
    values: list[Any] = column.to_pylist()
    if types.is_floating(column.type):
        return [None if value != value else value for value in values] if pc.any(pc.is_nan(column)).as_py() else values
    if types.is_integer(column.type) or types.is_boolean(column.type) or types.is_string(column.type):
        return values
    return [_without_nan(msgspec.to_builtins(value, enc_hook=str)) for value in values]


def _of_json(column: Any) -> Any:
    """An Arrow array with the types of JSON: times as seconds since 1970, decimals as floats, bytes as text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types = pa.types
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_date(column.type) or types.is_timestamp(column.type):
        microseconds = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        column = pc.divide(microseconds.cast(pa.float64(), safe=False), 1e6)
    elif types.is_decimal(column.type):
        column = column.cast(pa.float64())
    elif types.is_binary(column.type) or types.is_large_binary(column.type):
        column = column.cast(pa.string())
    return column


def _without_nan(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_without_nan, value))
    if isinstance(value, dict):
        return {name: _without_nan(item) for name, item in value.items()}
    return None if value != value else value


# --- CSV ---


def _csv_tables(path: str, wanted: Sequence[TableField], advance: Advance) -> Iterator[Table | list[Row]]:
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
    present = _present(path, wanted, header)
    cells_read = [
        (each.field, header.index(each.column), _csv_identifier if each.field in IDENTIFIERS else _csv_value)
        for each in present
    ]
    make, whole_lines = _event_maker(present), _csv_lines(lines, len(header))

    def rows_of(batch: Sequence[list[str] | Fault], numbers: Index) -> list[Row]:
        values = [_csv_values(batch[row], cells_read) for row in numbers.tolist()]
        return [each if isinstance(each, Fault) else make(each) for each in values]

    empty = [""] * len(header)
    while batch := list(islice(whole_lines, BATCH_ROWS)):
        rows, is_whole = partial(rows_of, batch), np.array([not isinstance(line, Fault) for line in batch])
        cells = list(zip(*(empty if isinstance(line, Fault) else line for line in batch), strict=True))
        columns = [_csv_column(cells[place], field) for field, place, _ in cells_read]
        yield _plain_table(present, columns, is_whole, rows) or rows(np.arange(len(batch)))


def _csv_column(cells: Sequence[str], field: str) -> CellColumn:
    """The cells of a column as numbers or identifiers; None where some are neither."""
    text = "".join(cells)
    try:
        text.encode()
        if field in IDENTIFIERS:
            return [cell.strip() or None for cell in cells]
        if field != "timestamp":
            return None if "_" in text else np.array([float(cell or "nan") for cell in cells])
        moments = [_in_seconds(_csv_value(cell.strip())) for cell in cells]
        return np.array([moment if isinstance(moment, float) else math.nan for moment in moments])
    except (ValueError, RecursionError):
        return None


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


def _csv_values(cells: list[str] | Fault, wanted: Sequence[tuple[str, int, Callable[[str], Any]]]) -> list[Any] | Fault:
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


def _csv_value(text: str) -> Any:
    """The value of a cell: lists and objects are JSON, others numbers if possible; ValueError: bad JSON or UTF-8."""
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        if text[0] in "[{":
            return parse(text)[0]
        return {"true": True, "false": False}.get(text.lower(), text) if text.isascii() else _csv_identifier(text)
    if "_" in text:
        return text
    return None if math.isnan(number) else number


def _csv_identifier(text: str) -> str | None:
    text.encode()  # ValueError where the bytes are not UTF-8
    return text or None
