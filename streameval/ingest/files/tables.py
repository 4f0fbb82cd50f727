"""Logs that are tables: rows of Parquet and CSV files, written anew as the JSON of events, and judged as such."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from streameval.common.text import counted
from streameval.errors import InputError
from streameval.events import Rejected
from streameval.ingest.files.source import FileSource
from streameval.ingest.files.tail import check
from streameval.ingest.settings import ColumnNames

ROWS = 2000
"""Rows handed out at once."""
BUFFER = 64 * 1024
"""Bytes of a Parquet column read ahead, in place of all of it: memory does not depend on how large a file is."""
INFINITE = {math.inf: msgspec.Raw(b"Infinity"), -math.inf: msgspec.Raw(b"-Infinity")}
"""No JSON, so that the decoder looks twice and names the reason."""

Advance = Callable[[int, int | None], None]


class Table(NamedTuple):
    """Some rows of a table as the JSON of events, and those that cannot be told so."""

    messages: list[bytes]
    rejected: tuple[Rejected, ...]


class Mapped(NamedTuple):
    """The column that holds a field of events, or what `policy` says, and whether a table must have it."""

    field: str
    column: str
    needed: bool
    policy: str | None = None


def mapping(columns: ColumnNames, reward_field: str, policies: Sequence[str], scores: Sequence[str]) -> list[Mapped]:
    """Which column holds what. Columns that are named must be there; those that have their field's name may lack."""
    plain = {field: column for field, column in columns if isinstance(column, str) and field != "reward"}
    mapped = [
        Mapped(field, column, column != field or field in ("timestamp", "action")) for field, column in plain.items()
    ]
    mapped.append(Mapped(reward_field, columns.reward or reward_field, True))
    mapped += [Mapped(field, field, False) for field in scores if field not in plain]
    given = columns.policies
    return mapped + [Mapped("policies", given.get(policy, policy), policy in given, policy) for policy in policies]


def read_parquet(path: str, wanted: Sequence[Mapped], advance: Advance) -> Iterator[Table]:
    """The rows of a Parquet file; InputError when it is none, or lacks a column."""
    size = check(path)
    if size is None:
        raise InputError(f"{path} is a pipe, and Parquet is read from its end", hint="write it to a file first")
    with _failing_as_input(path), _parquet(path) as file:
        present = _chosen(path, wanted, file.schema_arrow.names)
        names = list(dict.fromkeys(each.column for each in present))
        done = 0
        for batch in file.iter_batches(batch_size=ROWS, columns=names):
            yield _written(present, {name: _values(batch.column(name)) for name in names}, done)
            done += batch.num_rows
            advance(size * done // file.metadata.num_rows, size)


def read_csv(path: str, wanted: Sequence[Mapped], advance: Advance) -> Iterator[Table]:
    """The rows of a CSV file with a header, plain, gzip or zstd; InputError when it lacks a column."""
    rows = csv.reader(_text(path, advance))
    try:
        header = next(rows)
    except StopIteration:
        return
    except csv.Error as error:
        raise InputError(
            f"{path} cannot be read as CSV: {error}", hint="its first line must name its columns"
        ) from error
    present = _chosen(path, wanted, header)
    places = [(each.field, each.column, header.index(each.column)) for each in present]
    done = 0
    for cells, rejected in _aligned(rows, len(header)):
        columns = {column: [_value(field, row[place]) for row in cells] for field, column, place in places}
        table = _written(present, columns, done)
        yield table._replace(rejected=(*rejected, *table.rejected))
        done += len(cells) + len(rejected)


def _chosen(path: str, wanted: Sequence[Mapped], names: Sequence[str]) -> list[Mapped]:
    """Those of the wanted columns that are there, each once; InputError when one that is needed is not."""
    for each in wanted:
        if each.needed and each.column not in names:
            raise InputError(
                f"{path} has no column '{each.column}' for {each.policy or each.field}; it has {', '.join(names)}",
                hint="`columns` in the configuration says which column holds what",
            )
        if names.count(each.column) > 1:
            raise InputError(f"{path} has two columns '{each.column}'", hint="rename or remove one of them")
    present = [each for each in wanted if each.column in names]
    if not {"propensity", "propensities"} & {each.field for each in present}:
        raise InputError(
            f"{path} has no column with the propensity; it has {', '.join(names)}",
            hint="columns: {propensity: NAME} in the configuration names it",
        )
    return present


def _written(present: Sequence[Mapped], columns: Mapping[str, Sequence[Any]], done: int) -> Table:
    """Rows as events, which are numbered where no column has their identifiers."""
    fields: dict[str, Any] = {each.field: columns[each.column] for each in present if each.policy is None}
    policies = {each.policy: columns[each.column] for each in present if each.policy is not None}
    if policies:
        fields["policies"] = [dict(zip(policies, cells, strict=True)) for cells in zip(*policies.values(), strict=True)]
    fields["timestamp"] = list(map(_seconds, fields["timestamp"]))
    fields.setdefault("event_id", range(done + 1, done + 1 + len(fields["timestamp"])))
    messages, rejected = [], []
    for cells in zip(*fields.values(), strict=True):
        try:
            messages.append(msgspec.json.encode(dict(zip(fields, cells, strict=True)), enc_hook=str))
        except UnicodeEncodeError:
            rejected.append(Rejected("malformed", "not UTF-8", repr(cells).encode()))
    return Table(messages, tuple(rejected))


def _seconds(moment: Any) -> Any:
    """Text as seconds since 1970, UTC where it has no offset; all else as it is, for the decoder to judge."""
    if not isinstance(moment, str):
        return moment
    try:
        told = datetime.fromisoformat(moment)
    except ValueError:
        return moment
    return (told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()


# --- Parquet ---


def _parquet(path: str) -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(
            "Parquet needs pyarrow, which is not installed", hint="pip install 'streameval[columnar]'"
        ) from error
    return pyarrow.parquet.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False)


@contextmanager
def _failing_as_input(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, NotImplementedError) as error:  # what pyarrow's errors are
        raise InputError(f"{path} cannot be read as Parquet: {error}", hint="was it written to its end?") from error


def _values(column: Any) -> list[Any]:
    """An Arrow array as values that JSON knows: times as seconds since 1970, decimals as floats, bytes as text."""
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
    return list(map(_marked, values)) if _has_infinity(column) else values


def _has_infinity(column: Any) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    while isinstance(column, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        column = column.flatten()
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_inf(column)).as_py())


def _marked(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_marked, value))
    return INFINITE.get(value, value) if isinstance(value, float) else value


# --- CSV ---


def _text(path: str, advance: Advance) -> Iterator[str]:
    source = FileSource([path])
    try:
        while not source.status().exhausted:
            for records in source.poll(1.0):
                for line in records.values:
                    yield (line or b"").decode(errors="surrogateescape") + "\n"
            advance(source.bytes_read, source.bytes_total)
    finally:
        source.close()


def _aligned(rows: Iterator[list[str]], width: int) -> Iterator[tuple[list[list[str]], list[Rejected]]]:
    """Rows with a cell for every column, many at a time, and those with more or less of them."""
    cells: list[list[str]] = []
    rejected: list[Rejected] = []
    while True:
        try:
            row = next(rows)
        except StopIteration:
            yield cells, rejected
            return
        except csv.Error as error:
            rejected.append(Rejected("malformed", f"not CSV: {error}", b""))
            continue
        if len(row) == width:
            cells.append(row)
        else:
            message = ",".join(row).encode(errors="surrogateescape")
            detail = f"{counted(len(row), 'cell')} for {counted(width, 'column')}"
            rejected.append(Rejected("malformed", detail, message))
        if len(cells) + len(rejected) >= ROWS:
            yield cells, rejected
            cells, rejected = [], []


def _value(field: str, text: str) -> Any:
    """What a cell says: identifiers are text, lists and objects are JSON, all else are numbers if they can be."""
    text = text.strip()
    if not text:
        return None
    if field in ("event_id", "action", "unit"):
        return text
    if text[0] in "[{":
        return msgspec.Raw(text.encode(errors="surrogateescape"))
    try:
        number = float(text) if "_" not in text else None
    except ValueError:
        return {"true": True, "false": False}.get(text.lower(), text)
    if number is None:
        return text
    return None if math.isnan(number) else INFINITE.get(number, number)
