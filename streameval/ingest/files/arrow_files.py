"""Read files in Arrow IPC: files, such as Feather, and streams, also several after each other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from streameval.errors import InputError
from streameval.events.arrow_messages import event_columns
from streameval.events.frames import ARROW_FILE
from streameval.ingest.files.lines import FOREIGN_FILES, STDIN, check
from streameval.ingest.files.remote import is_remote, open_remote
from streameval.ingest.files.source import Advance

OLD_FEATHER = b"FEA1"
"""First bytes of the first version of Feather, which is no Arrow."""

Position: TypeAlias = Callable[[], int]
Part: TypeAlias = tuple[Any, Iterator[Any], Position | None]
"""A schema, batches, and what returns the position in the file, if it has one."""


def arrow_tables(path: str, advance: Advance, batch_rows: int) -> Iterator[Any]:
    """Yield the rows of a file as tables, an empty one before the batches of each schema.

    Args:
        path: the file or address, `-` is a stream at standard input
        advance: called with the bytes read so far and in total
        batch_rows: maximum number of rows in a table

    Raises:
        InputError: The file cannot be read. Raised after all rows before the damage.
    """
    size, done, read = check(path), 0, 0
    try:
        with ExitStack() as opened:
            for schema, batches, position in _parts(path, size, opened):
                yield _columns(pa.Table.from_batches([], schema))
                for batch in batches:
                    batch.validate(full=True)
                    for start in range(0, batch.num_rows, batch_rows):
                        table = pa.Table.from_batches([batch.slice(start, batch_rows)], schema)
                        yield _columns(table)
                        done += table.num_rows
                    read += batch.nbytes
                    advance(position() if position else read, size)
    except MemoryError as error:
        hint = "events before that point were counted; write smaller batches"
        raise InputError(f"{path} does not fit in memory after row {done:,}: {error}", hint=hint) from error
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:  # the base classes of pyarrow's
        hint = "check that the file was written completely"
        raise InputError(f"{path} cannot be read as Arrow after row {done:,}: {error}", hint=hint) from error


def _columns(table: Any) -> Any:
    """Return the columns of events, without metadata and with each value of runs."""
    columns = event_columns(table).replace_schema_metadata(None)
    for place, field in enumerate(columns.schema):
        if pa.types.is_run_end_encoded(field.type):
            columns = columns.set_column(place, field.name, pc.run_end_decode(columns.column(place)))
    return columns


def _parts(path: str, size: int | None, opened: ExitStack) -> Iterator[Part]:
    """Yield the part of a file, or one for each stream in it."""
    if size is None and not is_remote(path):
        pipe: Any = sys.stdin.buffer if path == STDIN else opened.enter_context(open(path, "rb"))  # noqa: SIM115
        if pipe.peek(len(ARROW_FILE)).startswith(ARROW_FILE):
            raise InputError(f"{path} is a pipe, and an Arrow file is read from its end", hint="pipe an Arrow stream")
        source = pa.PythonFile(pipe, "r")
        yield from _streams(source, lambda: bool(pipe.peek(1)), None)
        return
    source = opened.enter_context(open_remote(path, read_ahead=False) if is_remote(path) else pa.memory_map(path))
    first = source.read(len(ARROW_FILE))
    source.seek(0)
    if first.startswith(OLD_FEATHER):
        kind, hint = FOREIGN_FILES[OLD_FEATHER + b"\0"]
        raise InputError(f"{path} is {kind}", hint=hint)
    if first == ARROW_FILE:
        file, end = pa.ipc.open_file(source), size or 0
        progress = iter(range(1, file.num_record_batches + 1))
        batches = map(file.get_batch, range(file.num_record_batches))
        yield file.schema, batches, lambda: end * next(progress) // file.num_record_batches
        return
    if is_remote(path):
        source = opened.enter_context(open_remote(path))
    yield from _streams(source, lambda: source.tell() < (size or 0), source.tell)


def _streams(source: Any, has_more: Callable[[], bool], position: Position | None) -> Iterator[Part]:
    """Yield the parts of streams after each other."""
    while True:
        stream = pa.ipc.open_stream(source)
        yield stream.schema, stream, position
        if not has_more():
            return
