"""Decode messages that hold many events, as Arrow IPC streams or files, among messages of one event each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from itertools import chain, groupby
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import ValidationError, convert, json, structs

from streameval.common.arrays import Array
from streameval.common.text import counted
from streameval.errors import InputError
from streameval.events.action_sets import Index
from streameval.events.arrow import decode_columns, decode_rewards, json_rows, table_columns
from streameval.events.arrow_forms import decode_form
from streameval.events.batch import EventBatch
from streameval.events.decoder import JsonDecoder, RewardDecoder
from streameval.events.frames import ARROW_FILE, ARROW_STREAM
from streameval.events.origin import Origin
from streameval.events.schema import Timestamp
from streameval.events.tables import IDENTIFIERS, OTHER_FORMS, ColumnNames, Row, TableLayout, json_context
from streameval.events.validation import rejection

__all__ = ["COUNT_KEY", "NAMES_KEY", "ArrowDecoder", "arrow_message", "event_columns", "is_arrow"]

COUNT_KEY, NAMES_KEY = b"streameval.events", b"streameval.policies"
"""Keys of the schema's metadata: the number of events, so that a damaged batch counts as them, and the policies of a
column `policies` with lists, as a JSON array."""
END = ARROW_STREAM + b"\0\0\0\0"
"""Last bytes of an Arrow IPC stream."""
FILE_HEADER = 8
"""Bytes before the stream in an Arrow IPC file."""
MESSAGE_HEADER, DICTIONARY_DATA, BATCH_COMPRESSION = 2, 1, 3
"""Places of fields in Arrow's Message.fbs: `Message.header`, `DictionaryBatch.data` and `RecordBatch.compression`."""
MAX_EVENTS, MAX_BYTES = 100_000, 2**28
"""Events of a message, bytes of its values, and bytes of the numbers that its events have for all policies. A few bytes
can stand for more than memory holds."""
MIN_BYTES_OF_EVENT, MAX_GROWTH = 8, 64
"""A message has that many bytes for each event, and its values take at most that many times its bytes."""
LISTED_FROM = 100
"""With at least so many policies, their numbers are written as lists. The names of a struct are read again with every
message, and a thousand of them take three times as long as all else."""
MAX_SCHEMAS = 100
"""Schemas with a layout that is remembered."""
MIXED: Mapping[str, frozenset[type]] = {
    **dict.fromkeys((*IDENTIFIERS, "reward_id"), frozenset()),
    "event_id": frozenset({str, int}),
    "timestamp": frozenset({str, int, float}),
    "propensity": frozenset({int, float}),
    "sampling_probability": frozenset({int, float}),
}
"""Types that a field may have in different events of one message, because the column has one of them for all."""

Message: TypeAlias = bytes | None


def is_arrow(message: Message) -> bool:
    """Tell whether a message holds Arrow batches."""
    return message is not None and message.startswith((ARROW_STREAM, ARROW_FILE))


class Part(NamedTuple):
    """Hold the events of consecutive messages.

    Attributes:
        messages: the index of each event's message
        rows: the index of each event in its message
        batch: the events that can be used, and all others, with `place` the index of an event
    """

    messages: Index
    rows: Index
    batch: Any


class ArrowDecoder:
    """Decode Arrow batches of events by columns, and all other messages by another decoder.

    A row that is not an event is rejected alone, as a message of JSON. A message that cannot be read is rejected with
    all its events, `malformed`.

    Args:
        decoder: decodes messages of one event
        columns: the column of each field, `user.id` is the field `id` of the struct `user`
    """

    def __init__(self, decoder: Any, columns: ColumnNames) -> None:
        self.decoder = decoder
        names = {} if columns.event_id else {"event_id": "event_id"}
        self._columns = columns.model_copy(update=names)
        self._layouts: dict[Any, TableLayout | None] = {}
        self._known: tuple[Any, _Schema] | None = None

    def __getattr__(self, name: str) -> Any:
        """Return what decoders of single events have, such as `policies`."""
        return getattr(self.decoder, name)

    @property
    def identified(self) -> bool:
        """Tell whether events with an origin have the fingerprint of their id."""
        return bool(self.decoder.identified)

    @identified.setter
    def identified(self, identified: bool) -> None:
        self.decoder.identified = identified

    def most_events(self, messages: Sequence[Message], enough: int) -> list[int]:
        """Return how many events each message holds at most, roughly if all hold no more than `enough`."""
        bounds = [1 + len(message or b"") // MIN_BYTES_OF_EVENT for message in messages]
        if sum(bounds) <= enough:
            return bounds
        return [
            min(bound, _promised_events(message)) if message and is_arrow(message) else 1
            for message, bound in zip(messages, bounds, strict=True)
        ]

    def decode_batch(self, values: Iterable[Message], origin: Origin | None = None) -> Any:
        """Decode messages into columns. The rows of an Arrow message share its offset."""
        messages = list(values)
        if not any(map(is_arrow, messages)):
            return self.decoder.decode_batch(messages, origin)
        places = origin or Origin.from_parts("", [(0, range(len(messages)))])
        batches, rejected = [], []
        for part in self._parts(messages, places):
            batches.append(replace(part.batch, rejected=()))
            for message in part.batch.rejected:
                index, row = int(part.messages[message.place]), int(part.rows[message.place])
                detail = f"event {row + 1} of its message: {message.detail}" if row >= 0 else message.detail
                rejected.append(structs.replace(message, place=index, detail=detail, origin=places.position(index)))
        kind = type(batches[0])
        batch = kind.concat(batches) if issubclass(kind, EventBatch) else kind.joined(batches, list(map(len, batches)))
        return replace(batch, rejected=tuple(rejected), **({"origin": None} if origin is None else {}))

    def _parts(self, messages: Sequence[Message], origin: Origin) -> Iterator[Part]:
        start = 0
        for are_arrow, group in groupby(messages, key=is_arrow):
            values = list(group)
            indices = np.arange(start, start + len(values))
            start += len(values)
            if are_arrow:
                yield from self._tables(values, indices, origin)
            else:
                yield Part(indices, np.full(len(indices), -1), self.decoder.decode_batch(values, origin.take(indices)))

    def _tables(self, values: Sequence[Message], indices: Index, origin: Origin) -> Iterator[Part]:
        """Decode Arrow messages. Messages with equal schemas are decoded together."""
        policies = len(self.decoder.policies or ())
        read = [_read(value or b"", self._known_schema, policies) for value in values]
        pairs = zip(indices.tolist(), read, strict=True)
        for _, group in groupby(pairs, key=lambda pair: (pair[1].schema, pair[1].names)):
            numbers, contents = zip(*group, strict=True)
            yield from self._decode_equal(numbers, contents, origin)

    def _decode_equal(self, numbers: Sequence[int], contents: Sequence[_Content], origin: Origin) -> Iterator[Part]:
        """Decode messages with equal schemas, each alone if that fails, so that one cannot harm the others.

        Args:
            numbers: the index of each message
            contents: what was read of each message
            origin: the places of all messages
        """
        sizes = [content.events for content in contents]
        owner = np.repeat(numbers, sizes)
        if contents[0].schema is None:
            problems = np.repeat([content.problem for content in contents], sizes).tolist()
            yield self._refused(owner, problems, origin.topic)
            return
        rows = np.concatenate([np.arange(size) for size in sizes])
        try:
            table = pa.concat_tables([content.table for content in contents])
            places = replace(origin.take(owner), row=rows)
            part = Part(owner, rows, self._decode_table(table, contents[0].names, places))
        except Exception as error:  # noqa: BLE001 - each odd type of Arrow has its own
            if len(contents) > 1:
                for number, content in zip(numbers, contents, strict=True):
                    yield from self._decode_equal([number], [content], origin)
                return
            part = self._refused(owner, [_problem(error)] * sizes[0], origin.topic)
        yield part

    def _known_schema(self, schema: Any) -> _Schema:
        """Return what is read of messages with a schema, as the same object as the last one if it is equal.

        Raises:
            TypeError: A column that is read has a type without values of JSON.
        """
        if self._known is None or not schema.equals(self._known[0]):
            self._known = schema, self._new_schema(schema)
        return self._known[1]

    def _new_schema(self, schema: Any) -> _Schema:
        """Return what `_known_schema` remembers."""
        kept: list[int] = []
        fields, expanding = [], []
        for place, field in enumerate(schema):
            try:
                may_expand = _may_expand(field.type, field.name)
            except TypeError:
                if field.name in self._read_names():
                    raise
                continue
            expanding += [len(kept)] if may_expand else []
            kept.append(place)
            fields.append(field)
        if not kept:
            raise TypeError("it has no column with values of JSON")
        return _Schema(pa.schema(fields), expanding, None if len(kept) == len(schema) else kept)

    def _read_names(self) -> set[str]:
        """Return the names that columns with fields of events may have."""
        names = [value for _, value in self._columns if value is not None]
        paths = chain.from_iterable(
            [value] if isinstance(value, str) else value.values() if isinstance(value, dict) else map(str, value)
            for value in (*names, self.decoder.form.__struct_encode_fields__, self.decoder.policies or ())
        )
        return {name for path in paths for name in (path, path.partition(".")[0])}

    def _refused(self, owner: Index, problems: Sequence[str], topic: str) -> Part:
        """Reject all events of messages that cannot be read."""
        empty = self.decoder.decode_batch([], Origin.from_parts(topic, []))
        rejected = [rejection("malformed", problem, b"", event) for event, problem in enumerate(problems)]
        return Part(owner, np.full(len(owner), -1), replace(empty, rejected=tuple(rejected)))

    def _decode_table(self, table: Any, names: Sequence[str], origin: Origin) -> Any:
        """Decode a table by columns if that is possible, else each row like a message of JSON.

        Args:
            table: the events
            names: the names of policies in lists
            origin: their places
        """
        decoder = self.decoder
        if type(decoder) is RewardDecoder:  # another one has other names
            cells = None if decoder.policies is None else _probabilities(table, names, decoder.policies)
            found = decode_rewards(table, decoder, origin, cells)
            return decoder.decode_batch(self._json_rows(table, names), origin) if found is None else found
        if not {*OTHER_FORMS}.isdisjoint(table.column_names):

            def decode_others(others: Index) -> EventBatch:
                batch: EventBatch = decoder.decode_batch(self._json_rows(table, names, others), origin.take(others))
                return batch

            events = decode_form(table, decoder, decode_others, origin)
            return decoder.decode_batch(self._json_rows(table, names), origin) if events is None else events
        if not (isinstance(decoder, JsonDecoder) and decoder.reads_columns):
            return decoder.decode_batch(self._json_rows(table, names), origin)
        probabilities = None if self._columns.policies else _probabilities(table, names, decoder.policies or ())
        used = _with_named_policies(table, names) if probabilities is None else table.drop_columns("policies")
        layout = self._layout(used)
        if layout is None:
            return decoder.decode_batch(self._json_rows(table, names), origin)

        def rows(indices: Index) -> Sequence[Row]:
            whole = _with_named_policies(table, names)
            _, values = table_columns(self._flat(whole), self._layout(whole) or layout)
            return values(indices)

        arrays, _ = table_columns(self._flat(used), layout)
        batch = decode_columns(arrays, rows, layout, decoder, origin, probabilities)
        if not batch.rejected:
            return batch
        values = self._json_rows(table, names, np.array([message.place for message in batch.rejected]))
        rejected = [
            structs.replace(message, value=value) for message, value in zip(batch.rejected, values, strict=True)
        ]
        return replace(batch, rejected=tuple(rejected))

    def _json_rows(self, table: Any, names: Sequence[str], indices: Index | None = None) -> list[bytes]:
        """Return rows as events of JSON. Null means absent."""
        rows = json_rows(_with_named_policies(table, names), self._read_names(), indices)
        for row in rows:
            row["context"] = json_context(row.get("context"))
        return [json.encode({name: value for name, value in row.items() if value is not None}) for row in rows]

    def _layout(self, table: Any) -> TableLayout | None:
        """Return the layout of a table, None if its rows lack a field."""
        if table.schema not in self._layouts:
            self._layouts = self._layouts if len(self._layouts) < MAX_SCHEMAS else {}
            self._layouts[table.schema] = self._new_layout(table)
        return self._layouts[table.schema]

    def _flat(self, table: Any) -> Any:
        """Replace structs by their fields, named with a dot. Structs with segments remain, too."""
        flat = _flat(table)
        for name in {segment.root for segment in self.decoder.segments}.intersection(table.column_names):
            flat = flat if name in flat.column_names else flat.append_column(name, table.column(name))
        return flat

    def _new_layout(self, table: Any) -> TableLayout | None:
        """Return what `_layout` remembers. Maps, lists of policies and structs for values are decoded like JSON."""
        names, policies = dict.fromkeys(self._flat(table.slice(0, 0)).column_names), dict(self._columns.policies)
        for policy in self.decoder.policies or ():
            if f"policies.{policy}" in names:
                policies.setdefault(policy, f"policies.{policy}")
        columns = self._columns.model_copy(update={"policies": policies})
        wanted = TableLayout.from_records(self._columns, self.decoder).fields
        values = {field.column for field in wanted if field.entry is None}.intersection(table.column_names)
        if "policies" in names or columns.event_id not in names or not values <= names.keys():
            return None
        with suppress(InputError):  # rows name what they lack
            return TableLayout.from_names("the message", list(names), columns, self.decoder, json_context=True)
        return None


class _Schema(NamedTuple):
    """Hold what is read of messages with one schema.

    Attributes:
        schema: the columns that are read
        expanding: places of columns among them that may expand
        kept: their places in the message, None = it has no others. A dead letter of a row lacks the others, which have
            no values of JSON
    """

    schema: Any
    expanding: Sequence[int]
    kept: Sequence[int] | None


class _Content(NamedTuple):
    """Hold the table of a message and the names of policies in lists, or how many events are lost and why.

    Messages with equal schemas and names are decoded together.
    """

    events: int
    problem: str = ""
    schema: Any = None
    names: tuple[str, ...] = ()
    table: Any = None


def _read(message: bytes, known_schema: Callable[[Any], _Schema], policies: int) -> _Content:
    """Read an Arrow message, and check that its values lie inside of it and fit in memory.

    Args:
        message: a stream or file
        known_schema: return what is read of messages with a schema
        policies: how many policies have a number in each event
    """
    events, begin = 1, FILE_HEADER if message.startswith(ARROW_FILE) else 0  # a file holds a stream
    try:
        source = pa.BufferReader(pa.py_buffer(message))
        source.seek(begin)
        batches = pa.ipc.open_stream(source)
        schema, start = batches.schema, source.tell()
        promised = (schema.metadata or {}).get(COUNT_KEY)
        events = max(1, min(int(promised or 1), MAX_EVENTS, len(message) // MIN_BYTES_OF_EVENT))
        known = known_schema(schema)
        source.seek(start)
        _refuse_compressed(pa.ipc.MessageReader.open_stream(source))
        source.seek(start if known.kept is None else begin)
        if known.kept is not None:
            batches = pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(included_fields=known.kept))
        checked = _checked(batches, known.expanding, len(message), policies)
        table = pa.Table.from_batches(checked, batches.schema)
        if promised and table.num_rows != int(promised):
            raise ValueError(f"it has {table.num_rows} of {counted(int(promised), 'event')}")
        end = ARROW_FILE if message.startswith(ARROW_FILE) else END
        if not message.endswith(end) or (end == END and source.tell() < len(message)):
            raise ValueError("it does not end after its last batch")
        names = _names_of_policies(schema)
        return _Content(table.num_rows, "", known.schema, names, table.replace_schema_metadata(None))
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError, MemoryError) as error:  # also of pyarrow
        return _Content(events, _problem(error))


def _promised_events(message: bytes) -> int:
    """Return how many events a message promises. One with others is refused. Without a promise, it may hold any."""
    source = pa.BufferReader(pa.py_buffer(message))
    source.seek(FILE_HEADER if message.startswith(ARROW_FILE) else 0)
    with suppress(OSError, ValueError, pa.ArrowException):  # it is damaged, and refused as well
        promised = (pa.ipc.open_stream(source).schema.metadata or {}).get(COUNT_KEY)
        return max(1, int(promised or MAX_EVENTS))
    return 1


def _problem(error: Exception) -> str:
    return f"expected a batch of Arrow: {error or type(error).__name__}".splitlines()[0]


def _refuse_compressed(messages: Iterable[Any]) -> None:
    """Check that no batch is compressed, as its size would be known only after it is unpacked.

    Args:
        messages: messages of Arrow IPC. Their metadata are tables of Flatbuffers: a table begins with the distance to
            the offsets of its fields, and a field that is missing has the offset 0

    Raises:
        ValueError: A batch is compressed.
    """
    for message in messages:
        metadata = memoryview(message.metadata)
        batch = _table_at(metadata, _field(metadata, _table_at(metadata, 0), MESSAGE_HEADER))
        if message.type == "dictionary":
            batch = _table_at(metadata, _field(metadata, batch, DICTIONARY_DATA))
        if message.type != "schema" and _field(metadata, batch, BATCH_COMPRESSION):
            raise ValueError("its buffers are compressed: write them plain, and let Kafka compress the message")


def _field(metadata: memoryview, table: int, place: int) -> int:
    """Return the position of a field of a table, 0 if it is missing."""
    offsets = table - int.from_bytes(metadata[table : table + 4], "little", signed=True)
    size = int.from_bytes(metadata[offsets : offsets + 2], "little")
    own = offsets + 4 + 2 * place
    offset = int.from_bytes(metadata[own : own + 2], "little") if own < offsets + size else 0
    return table + offset if offset else 0


def _table_at(metadata: memoryview, position: int) -> int:
    """Return the position of the table that a value refers to."""
    return position + int.from_bytes(metadata[position : position + 4], "little")


def _checked(batches: Iterable[Any], expanding: Sequence[int], length: int, policies: int) -> Iterator[Any]:
    """Yield batches with values that lie inside of their message and fit in memory.

    Args:
        batches: the batches of a message
        expanding: its columns that may expand
        length: its bytes
        policies: how many policies have a number in each event

    Raises:
        ValueError: A batch is damaged, or too large.
    """
    events, size = 0, 0.0
    max_events, max_bytes = min(MAX_EVENTS, length // MIN_BYTES_OF_EVENT), min(MAX_BYTES, MAX_GROWTH * length)
    for batch in batches:
        batch.validate(full=True)
        events += batch.num_rows
        for place, column in enumerate(batch.columns):
            size += _expanded_bytes(column) if place in expanding else column.nbytes
        if events > max_events or size > max_bytes:
            raise ValueError(f"it has more than {max_events:,} events or {max_bytes:,} bytes of values")
        if 8 * events * policies > MAX_BYTES:
            raise ValueError(f"its {events:,} events are too many for {policies:,} policies: send fewer")
        yield batch


def _may_expand(kind: Any, name: str) -> bool:
    """Return whether values of a type may take more memory than their message, because it stores equal ones once.

    Raises:
        TypeError: The type has no values of JSON.
    """
    types = pa.types
    if types.is_dictionary(kind):
        if _is_text(kind.value_type) or types.is_primitive(kind.value_type):
            return True
    elif types.is_null(kind) or types.is_boolean(kind) or _is_view(kind):
        return True
    elif types.is_struct(kind) or types.is_map(kind) or _is_list(kind):  # views of lists may share values
        fields = map(kind.field, range(kind.num_fields))
        parts = [_may_expand(field.type, f"{name}.{field.name}") for field in fields]  # names may be damaged
        return any(parts) or not parts
    elif types.is_primitive(kind) or types.is_decimal(kind) or _is_text(kind):
        return False
    raise TypeError(f"the column {name} has the type {kind}, which has no values of JSON: write text, numbers or lists")


def _expanded_bytes(column: Any) -> float:
    """Return how many bytes the values of a column take at most if each is stored, and as Python values."""
    kind, types, count = column.type, pa.types, len(column)
    if types.is_dictionary(kind):
        values = column.dictionary
        if not _is_text(kind.value_type) or count * values.nbytes < MAX_BYTES // 100:
            return 8.0 * count
        lengths = pc.binary_length(values.cast(pa.large_string()) if _is_view(kind.value_type) else values)
        return float(pc.sum(pc.cast(lengths.take(column.indices), pa.float64())).as_py() or 0.0)
    if _is_view(kind):
        lengths = np.frombuffer(column.buffers()[1] or b"", dtype=np.int32).reshape(-1, 4)[:, 0]
        return float(lengths[column.offset : column.offset + count].sum(dtype=float))
    if types.is_struct(kind):
        return 8.0 * count + sum(map(_expanded_bytes, column.flatten()))
    if types.is_nested(kind):
        return 8.0 * count + _expanded_bytes(column.flatten())
    return max(16.0 * count, float(column.nbytes))


def _is_list(kind: Any) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_view(kind: Any) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _is_text(kind: Any) -> bool:
    types = pa.types
    are = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return _is_view(kind) or any(is_kind(kind) for is_kind in are)


def _names_of_policies(schema: Any) -> tuple[str, ...]:
    """Return the names of policies that are lists, in the metadata of a schema.

    Raises:
        ValueError: There are no names, or lists of another size.
    """
    place = schema.get_field_index("policies")
    kind = schema.types[place] if place >= 0 else None
    if kind is None or not pa.types.is_fixed_size_list(kind):
        return ()
    names = json.decode((schema.metadata or {}).get(NAMES_KEY, b"[]"), type=tuple[str, ...])
    if not len(set(names)) == len(names) == kind.list_size:
        found = f"{counted(len(names), 'name')}, {len(set(names))} of them different"
        raise ValueError(f"the metadata {NAMES_KEY.decode()} has {found}, for {kind.list_size} policies")
    return names


def _with_named_policies(table: Any, names: Sequence[str]) -> Any:
    """Make a struct of a column `policies` with lists."""
    if not names:
        return table
    place = table.schema.get_field_index("policies")
    lists = table.column(place).combine_chunks()
    columns = [pc.list_element(lists, position) for position in range(len(names))]
    return table.set_column(place, "policies", pa.StructArray.from_arrays(columns, names))


def _probabilities(table: Any, names: Sequence[str], policies: Sequence[str]) -> Array | None:
    """Return the numbers of these policies [n, P], NaN if they are missing, None if they are not all numbers."""
    place = table.schema.get_field_index("policies")
    column = None if place < 0 else table.column(place).combine_chunks()
    if column is None or column.null_count:
        return None
    if names:
        cells = column.flatten()
        if not pa.types.is_floating(cells.type):
            return None
        numbers = cells.to_numpy(zero_copy_only=False).reshape(len(column), len(names))
        place_of = {name: position for position, name in enumerate(names)}
        columns = [numbers[:, place_of[policy]] if policy in place_of else math.nan for policy in policies]
    elif pa.types.is_struct(column.type):
        fields = {field.name: field.type for field in column.type}
        if not all(pa.types.is_floating(fields[policy]) for policy in policies if policy in fields):
            return None
        columns = [
            column.field(policy).to_numpy(zero_copy_only=False) if policy in fields else math.nan for policy in policies
        ]
    else:
        return None
    found = np.empty((len(policies), len(column)))
    for row, values in zip(found, columns, strict=True):
        row[:] = values
    return found.T


def _flat(table: Any) -> Any:
    """Replace structs by their fields, named with a dot."""
    while any(map(pa.types.is_struct, table.schema.types)):
        table = table.flatten()
    return table


# --- Writing ---


def arrow_message(events: Sequence[Mapping[str, Any]]) -> bytes:
    """Return events as one message, an Arrow IPC stream. `ArrowDecoder` reads them as it reads them from JSON.

    Args:
        events: the events by field, with values of JSON

    Raises:
        ValueError: A field has values of several types, which are no column.

    >>> event = {"event_id": "e-1", "timestamp": 0, "action": "a", "propensity": 0.5, "reward": 1}
    >>> message = arrow_message([event, {**event, "event_id": "e-2", "policies": {"new": 0.25}}])
    >>> ArrowDecoder(JsonDecoder(["new"]), ColumnNames()).decode_batch([message]).probabilities.ravel()
    array([ nan, 0.25])
    """
    names = list(dict.fromkeys(chain.from_iterable(events)))
    try:
        columns = [_written(name, [event.get(name) for event in events]) for name in names]
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise ValueError(f"the events are no table: {error}") from error
    metadata = {COUNT_KEY: str(len(events)).encode()}
    place = names.index("policies") if "policies" in names else -1
    if place >= 0 and _is_listed(columns[place]):
        metadata[NAMES_KEY] = json.encode([field.name for field in columns[place].type])
        columns[place] = _listed(columns[place])
    schema = pa.schema([(name, column.type) for name, column in zip(names, columns, strict=True)], metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))
    return bytes(sink.getvalue())


def _written(name: str, values: Sequence[Any]) -> Any:
    """Return the column of a field. Texts that repeat are stored once, and numbers are floats."""
    present = [value for value in values if value is not None]
    if name == "context":
        return pa.array([None if value is None else json.encode(value).decode() for value in values], pa.string())
    if name == "policies":
        return _written_policies(values, present)
    kinds = set(map(type, present))
    if (len(kinds) > 1 or bool in kinds) and kinds - MIXED.get(name, kinds):
        raise TypeError(f"{name} has values of the types {', '.join(sorted(kind.__name__ for kind in kinds))}")
    if name in IDENTIFIERS and str in kinds:
        texts = pa.array([None if value is None else str(value) for value in values], pa.string())
        return texts if name == "event_id" else texts.dictionary_encode()
    if name == "timestamp" and not all(map(_is_number, present)):
        return _written_times(values)
    if name == "reward" and len(kinds) > 1:  # it may be true
        values = [float(value) if isinstance(value, bool) else value for value in values]
    are_numbers = name not in (*IDENTIFIERS, "reward_id") and all(map(_is_number, values))
    return _plain_array(name, values, pa.float64() if are_numbers else None)


def _written_times(values: Sequence[Any]) -> Any:
    """Return the column of `timestamp`, with the times that JSON has. A text without a zone is none."""
    try:
        times = convert(values, list[Timestamp | None])
    except ValidationError as error:
        raise TypeError(f"timestamp has a value that is no time in JSON: {error}") from error
    return pa.array([time.timestamp() if isinstance(time, datetime) else time for time in times], pa.float64())


def _written_policies(values: Sequence[Any], present: Sequence[Any]) -> Any:
    """Return the column of `policies`. A boolean is no probability, and counts as missing like in JSON.

    Args:
        values: the value of each event
        present: all values but None
    """
    if not all(isinstance(cells, Mapping) for cells in present):
        raise TypeError("policies has a value that is no mapping")
    if bool in set(map(type, chain.from_iterable(cells.values() for cells in present))):
        values = [
            cells and {policy: None if isinstance(cell, bool) else cell for policy, cell in cells.items()}
            for cells in values
        ]
        present = [cells for cells in values if cells is not None]
    if not all(_is_number(cell) for cells in present for cell in cells.values()):
        return _plain_array("policies", values)
    policies = sorted({policy for cells in present for policy in cells})
    return pa.array(values, pa.struct([(policy, pa.float64()) for policy in policies]))


def _plain_array(name: str, values: Sequence[Any], kind: Any = None) -> Any:
    """Return a column, unless Arrow would turn booleans into numbers."""
    column = pa.array(values, kind)
    if _may_hide_booleans(column) and _has_booleans_among_numbers(values):
        raise TypeError(f"{name} has booleans among numbers")
    return column


def _may_hide_booleans(column: Any) -> bool:
    """Return whether a column has floats, also in lists and structs, that are 0 or 1, as booleans become.

    Arrow refuses booleans among integers. Types of Python values take far longer to look at.
    """
    if pa.types.is_nested(column.type):
        parts = column.flatten() if pa.types.is_struct(column.type) else [column.flatten()]
        return any(map(_may_hide_booleans, parts))
    if not pa.types.is_floating(column.type):
        return False
    numbers = column.to_numpy(zero_copy_only=False)
    return bool(((numbers == 0) | (numbers == 1)).any())


def _has_booleans_among_numbers(values: Iterable[Any]) -> bool:
    """Return whether values, also in lists and by name in mappings, are both booleans and numbers in one column."""
    some = list(values)
    kinds = set(map(type, some))
    mappings = [value for value in some if type(value) is dict] if dict in kinds else []
    parts = [[value[name] for value in mappings if name in value] for name in set(chain.from_iterable(mappings))]
    if list in kinds:
        parts.append(list(chain.from_iterable(value for value in some if type(value) is list)))
    return (bool in kinds and bool(kinds & {int, float})) or any(map(_has_booleans_among_numbers, parts))


def _is_listed(policies: Any) -> bool:
    """Return whether a column is a struct of many numbers in all events."""
    kind = policies.type
    are_numbers = pa.types.is_struct(kind) and all(pa.types.is_floating(field.type) for field in kind)
    return bool(are_numbers and kind.num_fields >= LISTED_FROM and not policies.null_count)


def _listed(policies: Any) -> Any:
    """Return lists of the numbers in a struct, NaN for null."""
    numbers = np.column_stack([column.to_numpy(zero_copy_only=False) for column in policies.flatten()])
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers.ravel()), policies.type.num_fields)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


# --- Files ---


def event_columns(table: Any) -> Any:
    """Add the values in structs of a table as columns, `user.id` for the field `id` of `user`, and each policy's.

    Raises:
        ValueError: Policies are lists without their names.
    """
    named = _with_named_policies(table, _names_of_policies(table.schema))
    flat = _flat(named.select([field.name for field in named.schema if pa.types.is_struct(field.type)]))
    for path, column in zip(flat.column_names, flat.columns, strict=True):
        for name in (path, path.removeprefix("policies.")):
            if name not in named.column_names:
                named = named.append_column(name, column)
    return named
