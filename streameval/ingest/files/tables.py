"""Logs that are tables: the rows of Parquet and CSV files as events."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import msgspec

from streameval.common.text import counted
from streameval.errors import InputError
from streameval.events import EventBatch, Fault, JsonDecoder
from streameval.events.diagnosis import explain, parse
from streameval.ingest.files.lines import check
from streameval.ingest.files.source import Advance, ColumnNames, read_lines

BATCH_ROWS = 2000
READ_AHEAD = 64 * 1024
"""Bytes of a Parquet column that are read ahead, so that memory does not depend on the size of the file."""

Row: TypeAlias = Mapping[str, Any] | Fault


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
    """Decode the rows of a table, which are numbered from 1 if no column identifies them.

    Args:
        kind: `parquet`, or `csv` with a header, which may be compressed by gzip or zstd
        columns: the names of columns; a column without a name has that of its field
        advance: called with the bytes read so far and in all

    Raises:
        InputError: the file cannot be read, or lacks a required column.
    """
    wanted = _wanted(columns, decoder)
    for rows in _parquet_rows(path, wanted, advance) if kind == "parquet" else _csv_rows(path, wanted, advance):
        yield decoder.decode_rows(rows)


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
                hint="set the names of columns under `columns` in the configuration",
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


def _rows(present: Sequence[TableField], columns: Sequence[Sequence[Any]], first: int) -> list[dict[str, Any]]:
    """The rows of columns, which are in the order of `present`, as fields of events. `first`: number of the first."""
    fields: dict[str, Sequence[Any]] = {}
    policies: dict[str, Sequence[Any]] = {}
    for each, values in zip(present, columns, strict=True):
        if each.policy is None:
            fields[each.field] = values
        else:
            policies[each.policy] = values
    if policies:
        cells = zip(*policies.values(), strict=True)
        fields["policies"] = [dict(zip(policies, row, strict=True)) for row in cells]
    timestamps = fields["timestamp"]
    fields["timestamp"] = [_seconds(moment) if isinstance(moment, str) else moment for moment in timestamps]
    fields.setdefault("event_id", range(first, first + len(timestamps)))
    return [dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True)]


def _seconds(text: str) -> float | str:
    """Text as seconds since 1970, in UTC without an offset. Other text is returned for the decoder to reject."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


# --- Parquet ---


def _parquet_rows(path: str, wanted: Sequence[TableField], advance: Advance) -> Iterator[list[Row]]:
    size = check(path)
    if size is None:
        raise InputError(f"{path} is a pipe, and Parquet is read from its end", hint="write it to a file first")
    with _input_errors(path), _open_parquet(path) as file:
        present = _present(path, wanted, file.schema_arrow.names)
        names = list(dict.fromkeys(each.column for each in present))
        done = 0
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=names):
            values = {name: _parquet_values(batch.column(name)) for name in names}
            yield list(_rows(present, [values[each.column] for each in present], done + 1))
            done += batch.num_rows
            advance(size * done // file.metadata.num_rows, size)


def _open_parquet(path: str) -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(
            "Parquet needs pyarrow, which is not installed", hint="pip install 'streameval[columnar]'"
        ) from error
    return pyarrow.parquet.ParquetFile(path, buffer_size=READ_AHEAD, pre_buffer=False)


@contextmanager
def _input_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, NotImplementedError) as error:  # the base classes of pyarrow's errors
        raise InputError(
            f"{path} cannot be read as Parquet: {error}", hint="check that the file was written completely"
        ) from error


def _parquet_values(column: Any) -> list[Any]:
    """Return an Arrow array as the values of JSON: times as seconds since 1970, decimals as floats, NaN as None."""
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
    values: list[Any] = column.to_pylist()
    if types.is_floating(column.type):
        return [None if value != value else value for value in values] if pc.any(pc.is_nan(column)).as_py() else values
    if types.is_integer(column.type) or types.is_boolean(column.type) or types.is_string(column.type):
        return values
    return [_without_nan(msgspec.to_builtins(value, enc_hook=str)) for value in values]


def _without_nan(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_without_nan, value))
    if isinstance(value, dict):
        return {name: _without_nan(item) for name, item in value.items()}
    return None if value != value else value


# --- CSV ---


def _csv_rows(path: str, wanted: Sequence[TableField], advance: Advance) -> Iterator[list[Row]]:
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
    places = [header.index(each.column) for each in present]
    done = 0
    while batch := list(islice(_lines(lines, len(header)), BATCH_ROWS)):
        complete = [cells for cells in batch if not isinstance(cells, Fault)]
        faults: dict[int, Fault] = {}
        columns = [
            _csv_column(each.field, [cells[place] for cells in complete], faults)
            for each, place in zip(present, places, strict=True)
        ]
        numbered = enumerate(_rows(present, columns, done + 1))
        rows = iter([faults.get(number, row) for number, row in numbered])
        yield [cells if isinstance(cells, Fault) else next(rows) for cells in batch]
        done += len(batch)


def _lines(lines: Iterator[list[str]], width: int) -> Iterator[list[str] | Fault]:
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


def _csv_column(field: str, cells: Sequence[str], faults: dict[int, Fault]) -> list[Any]:
    """Return the values of cells; adds the rows with unreadable ones to `faults`."""
    values = []
    for row, cell in enumerate(cells):
        try:
            values.append(_csv_value(field, cell.strip()))
        except (ValueError, RecursionError) as error:
            faults.setdefault(row, Fault("malformed", f"{field}: {explain(error)}"))
            values.append(None)
    return values


def _csv_value(field: str, text: str) -> Any:
    """Return the value of a cell: identifiers are text, lists and objects are JSON, all else are numbers if possible.

    Raises:
        ValueError: invalid JSON or UTF-8.
    """
    if not text:
        return None
    if not text.isascii():
        text.encode()
    if field in ("event_id", "action", "unit"):
        return text
    if text[0] in "[{":
        return parse(text)[0]
    try:
        number = float(text) if "_" not in text else None
    except ValueError:
        return {"true": True, "false": False}.get(text.lower(), text)
    if number is None:
        return text
    return None if math.isnan(number) else number
