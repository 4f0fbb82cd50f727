"""Decode Arrow tables: Parquet files, CSV files, and frames of pandas, polars and other libraries.

Frames become Arrow tables by the PyCapsule interface of Arrow, which copies no column of numbers. Columns are decoded
as arrays. Rows with odd values are decoded one by one, like JSON, so that they have the same reasons of rejection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from streameval.common.arrays import Array, Mask
from streameval.errors import InputError
from streameval.events.action_sets import ActionNames, ActionSets, Features, Index, cumulative_offsets, reconcile
from streameval.events.batch import EventBatch
from streameval.events.decoder import JsonDecoder
from streameval.events.origin import Origin, fingerprints
from streameval.events.tables import IDENTIFIERS, ColumnNames, Row, TableField, TableLayout, to_seconds
from streameval.events.validation import MAX_FEATURES, at_most_one

NEVER_BOOLEAN = ("timestamp", "propensity", "sampling_probability", "policies")
LISTS = ("actions", "propensities", "features")
NO_LIST = -1  # in place of the size of a list that is null
NOT_LISTED = -2  # the code of a logged action that no list has

Column: TypeAlias = Any
"""An Arrow array; pyarrow has no type annotations."""
FieldKey: TypeAlias = tuple[str, str | None]


def from_frame(frame: Any, columns: ColumnNames, decoder: JsonDecoder) -> EventBatch:
    """Decode the rows of a frame.

    Raises:
        TypeError: It is not a frame.
        InputError: It cannot become an Arrow table, or a required column is missing.
    """
    if not hasattr(frame, "__arrow_c_stream__") and not isinstance(frame, Mapping):
        expected = "expected a frame of pandas or polars, or an Arrow table"
        raise TypeError(f"{expected}, found {type(frame).__name__}")
    try:
        table = pa.table(frame)
    except (ValueError, TypeError, NotImplementedError) as error:  # the base classes of pyarrow's errors
        hint = "give each column its own name, and values of one type"
        raise InputError(f"the frame cannot become an Arrow table: {error}", hint=hint) from error
    layout = TableLayout.of("the frame", table.column_names, columns, decoder, timed=False)
    arrays, rows = table_columns(table, layout)
    return decode_columns(arrays, rows, layout, decoder, Origin.of("frame", [(0, range(table.num_rows))]))


def table_columns(table: Any, layout: TableLayout) -> tuple[list[Column], Callable[[Index], list[Row]]]:
    """Return one array per field of the layout, and a function that returns some rows as Python values."""
    by_name = {name: _json_array(table.column(name)) for name in layout.columns}

    def rows(indices: Index) -> list[Row]:
        values = {name: _python_values(column.take(pa.array(indices))) for name, column in by_name.items()}
        return [layout.event(row) for row in zip(*(values[field.column] for field in layout.fields), strict=True)]

    return [by_name[field.column] for field in layout.fields], rows


def decode_columns(
    columns: Sequence[Column],
    rows: Callable[[Index], Sequence[Row]],
    layout: TableLayout,
    decoder: JsonDecoder,
    origin: Origin,
) -> EventBatch:
    """Decode columns, several times faster than `JsonDecoder.decode_rows` and with equal results.

    Args:
        columns: one array per field of the layout
        rows: return some rows as Python values. Called for rows that break a rule or have odd values
        layout: the fields of the columns
        decoder: the decoder of the events
        origin: topic, partition and offset of each row
    """
    count = len(origin.offset)
    table = _ColumnBatch.of(columns, layout, decoder, count) if decoder.reads_columns else None
    if table is None:
        return layout.decode_rows(rows(np.arange(count)), decoder, origin)
    return layout.without_placeholders(_decode_valid_rows(table, rows, layout, decoder, origin))


def _decode_valid_rows(
    table: _ColumnBatch,
    rows: Callable[[Index], Sequence[Row]],
    layout: TableLayout,
    decoder: JsonDecoder,
    origin: Origin,
) -> EventBatch:
    """Keep the rows that are valid events, and decode the others one by one."""
    batch, all_rows = table.batch, np.arange(len(table.batch))
    candidates = np.flatnonzero(table.is_plain & ~np.isnan(batch.reward) & ~np.isnan(batch.timestamp))
    batch = batch if len(candidates) == len(all_rows) else batch.take(candidates)
    valid = np.delete(np.arange(len(candidates)), list(batch.faults(decoder.reward_range)))
    kept, others = candidates[valid], np.delete(all_rows, candidates[valid])
    batch = batch.take(valid).trimmed()
    identity = None
    if decoder.identified:
        ids = table.identifiers.get("event_id", [""] * len(all_rows))
        identity = fingerprints([ids[row] for row in kept.tolist()])
    batch = replace(batch, origin=replace(origin.take(kept), identity=identity))
    if decoder.named:
        chosen = table.identifiers["action"]
        batch = replace(batch, actions=ActionNames.of([chosen[row] for row in kept.tolist()]))
    if not len(others):
        return batch
    rest = layout.decode_rows(rows(others), decoder, origin.take(others))
    rejected = [structs.replace(message, place=int(others[message.place])) for message in rest.rejected]
    accepted = np.delete(others, [message.place for message in rest.rejected])
    joined = EventBatch.concat([batch, replace(rest, rejected=())])
    return replace(joined.take(np.argsort(np.concatenate([kept, accepted]))), rejected=tuple(rejected))


class _ColumnBatch(NamedTuple):
    """Hold decoded columns that are not validated.

    Attributes:
        batch: the events
        identifiers: strings or integers by field, None for null
        is_plain: [n] whether the arrays hold the whole row
    """

    batch: EventBatch
    identifiers: Mapping[str, Sequence[Any]]
    is_plain: Mask

    @classmethod
    def of(
        cls, columns: Sequence[Column], layout: TableLayout, decoder: JsonDecoder, count: int
    ) -> _ColumnBatch | None:
        """Convert Arrow arrays. Return None if a column has a type that needs every row to be decoded alone."""
        arrays = _read_arrays(columns, layout)
        if arrays is None:
            return None
        identifiers, numbers, lists = arrays
        is_plain = np.ones(count, dtype=bool)
        for name in ("event_id", "action"):
            if None in identifiers.get(name, ()):
                is_plain &= np.array([value is not None for value in identifiers[name]])
        lists_actions = layout.actions is not None or any(field.field == "actions" for field in layout.fields)
        actions = _action_codes(columns, layout, count) if lists_actions else None
        if actions is None and (lists_actions or lists or ("propensity", None) not in numbers):
            return None
        unknown, policies = np.full(count, np.nan), decoder.policies or ()
        sampling = numbers.get(("sampling_probability", None))
        batch = EventBatch.unchecked(
            reward=numbers[decoder.reward_field, None],
            propensity=numbers.get(("propensity", None), unknown),
            timestamp=numbers.get(("timestamp", None), np.zeros(count)),
            policies={policy: numbers.get(("policies", policy), unknown) for policy in policies},
            sampling_probability=None if sampling is None else np.where(np.isnan(sampling), 1.0, sampling),
            unit=identifiers.get("unit"),
            logging_policy=identifiers.get("logging_policy"),
        )
        if actions is not None:
            sets, are_sets = _action_sets(*actions, lists, policies)
            is_plain &= are_sets
            reconcile(sets, batch.probabilities, sets.probabilities)
            reconcile(sets, batch.propensity, sets.propensities)
            batch = replace(batch, action_sets=sets)
        return cls(batch, identifiers, is_plain)


def _read_arrays(
    columns: Sequence[Column], layout: TableLayout
) -> tuple[dict[str, Sequence[Any]], dict[FieldKey, Array], dict[FieldKey, ListColumn]] | None:
    """Return identifiers, numbers, and lists except `actions`, None if a column has another type."""
    identifiers: dict[str, Sequence[Any]] = {}
    numbers: dict[FieldKey, Array] = {}
    lists: dict[FieldKey, ListColumn] = {}
    for field, column in zip(layout.fields, columns, strict=True):
        key = field.field, field.entry
        if field.field in IDENTIFIERS:
            if not (_is_text(column.type) or pa.types.is_integer(column.type)):
                return None
            identifiers[field.field] = column.to_pylist()
        elif field.field == "actions":
            if not _is_list(column.type):
                return None
        elif _is_list(column.type) and _holds_numbers(field.field, column.type):
            lists[key] = ListColumn.from_arrow(column)
        else:
            values = _number_column(column, field)
            if values is None:
                return None
            numbers[key] = values
    return identifiers, numbers, lists


def _number_column(column: Column, field: TableField) -> Array | None:
    """Return the numbers of a column, NaN for null. Booleans count as 0 and 1 if they are rewards."""
    kind = column.type
    if field.field in LISTS:
        return None
    if field.field == "timestamp" and _is_text(kind):
        moments = map(to_seconds, column.to_pylist())
        return np.array([moment if isinstance(moment, float) else math.nan for moment in moments])
    if pa.types.is_boolean(kind) and field.field not in NEVER_BOOLEAN:
        column = column.cast(pa.int8())
    elif not _is_number(kind):
        return None
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)


# --- Types ---


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _holds_numbers(field: str, kind: Any) -> bool:
    """Return whether a list type holds numbers, or lists of numbers if the field is `features`."""
    kind = kind.value_type
    if field == "features":
        return _is_list(kind) and _is_number(kind.value_type)
    return field in ("propensities", "policies") and _is_number(kind)


def _json_array(column: Any) -> Column:
    """Convert a column to a type of JSON: times to seconds since 1970, decimals to floats, bytes to text."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = _json_type(column.type)
    if kind != column.type:
        column = column.cast(kind)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        microseconds = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        return pc.divide(microseconds.cast(pa.float64(), safe=False), 1e6)
    return column.cast(pa.float64()) if pa.types.is_decimal(kind) else column


def _json_type(kind: Any) -> Any:
    """Return a type with text in place of bytes, and without dictionaries and views, which `take` does not support."""
    types = pa.types
    if types.is_dictionary(kind):
        return _json_type(kind.value_type)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_string_view(kind):
        return pa.large_string()
    if _is_list(kind):
        items = _json_type(kind.value_type)
        return kind if items == kind.value_type else pa.large_list(items)
    if types.is_struct(kind):
        return pa.struct([(field.name, _json_type(field.type)) for field in kind])
    return kind


def _python_values(column: Column) -> list[Any]:
    """Return the values of an array with types of JSON, None for null and for NaN."""
    values: list[Any] = column.to_pylist()
    if pa.types.is_floating(column.type):
        return [None if value != value else value for value in values]
    if _is_text(column.type) or pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        return values
    return [_without_nan(msgspec.to_builtins(value, enc_hook=str)) for value in values]


def _without_nan(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_without_nan, value))
    if isinstance(value, dict):
        return {name: _without_nan(item) for name, item in value.items()}
    return None if value != value else value


# --- Lists ---


class ListColumn(NamedTuple):
    """Hold the lists of n rows end to end.

    Attributes:
        sizes: [n] number of entries, `NO_LIST` for null
        values: the entries: numbers with NaN for null, codes with -1 for null, or lists
    """

    sizes: Index
    values: Any

    @classmethod
    def from_arrow(cls, column: Column) -> ListColumn:
        """Convert an array of lists of numbers, or of lists of lists."""
        sizes, values = _sizes_and_values(column)
        if _is_list(values.type):
            return cls(sizes, cls.from_arrow(values))
        return cls(sizes, np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float64))

    @property
    def counts(self) -> Index:
        """Return the number of entries of each row, [n], 0 for null."""
        return np.maximum(self.sizes, 0)

    @property
    def owner(self) -> Index:
        """Return the row of each entry, [entries]."""
        return np.repeat(np.arange(len(self.sizes)), self.counts)

    def fits(self, sizes: Index) -> Mask:
        """Return which rows are null, or have a list of this size without null."""
        fits: Mask = (self.sizes == sizes) | (self.sizes == NO_LIST)
        values = self.values
        fits[self.owner[values.sizes < 0 if isinstance(values, ListColumn) else np.isnan(values)]] = False
        return fits

    def entries(self, sizes: Index) -> Array:
        """Return the numbers of lists of these sizes, NaN for rows without a list of that size."""
        has_list, counts = self.sizes == sizes, np.maximum(sizes, 0)
        entries = np.full(counts.sum(), np.nan)
        entries[np.repeat(has_list, counts)] = self.values[has_list[self.owner]]
        return entries


def _sizes_and_values(lists: Column) -> tuple[Index, Column]:
    """Return the size of each list, and the entries of all lists as another array."""
    sizes = pc.fill_null(pc.list_value_length(lists), NO_LIST).to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes, pc.list_flatten(lists)


def _action_codes(columns: Sequence[Column], layout: TableLayout, count: int) -> tuple[ListColumn, Index] | None:
    """Return the listed and the logged actions as codes: equal names have equal codes.

    Return None if the names are neither all text nor all integers of one type.
    """
    by_field = {field.field: column for field, column in zip(layout.fields, columns, strict=True)}
    logged = by_field["action"]
    if layout.actions is not None:
        try:
            names = pa.array(layout.actions)
        except (ValueError, TypeError, OverflowError):  # text and integers, or an integer of more than 64 bits
            return None
        offsets = np.arange(count + 1, dtype=np.int32) * len(names)
        lists = pa.ListArray.from_arrays(offsets, names.take(pa.array(np.tile(np.arange(len(names)), count))))
    else:
        lists = by_field["actions"]
    kind = lists.type.value_type
    if not (_is_text(kind) and _is_text(logged.type)) and not (kind == logged.type and pa.types.is_integer(kind)):
        return None
    sizes, values = _sizes_and_values(lists)
    encoded = values.dictionary_encode()
    codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    chosen = pc.fill_null(pc.index_in(logged, value_set=encoded.dictionary.cast(logged.type)), NOT_LISTED)
    return ListColumn(sizes, codes), chosen.to_numpy(zero_copy_only=False).astype(np.int64)


def _action_sets(
    actions: ListColumn, logged: Index, lists: Mapping[FieldKey, ListColumn], policies: Sequence[str]
) -> tuple[ActionSets, Mask]:
    """Build the action sets, and return which rows [n] have lists that fit together."""
    index, is_whole = _logged_index(actions, logged)
    for column in lists.values():
        is_whole &= column.fits(actions.sizes)
    features = None
    if ("features", None) in lists:
        features, are_even = _features(lists["features", None])
        is_whole &= are_even
    unknown = np.full(len(actions.values), np.nan)

    def entries(field: str, entry: str | None) -> Array:
        column = lists.get((field, entry))
        return unknown.copy() if column is None else column.entries(actions.sizes)

    probabilities = np.array([entries("policies", policy) for policy in policies])
    sets = ActionSets(
        offsets=cumulative_offsets(actions.counts),
        index=index,
        propensities=at_most_one(entries("propensities", None)),
        features=features,
        probabilities=probabilities.reshape(len(policies), len(unknown)).T,
    )
    return sets, is_whole


def _logged_index(actions: ListColumn, logged: Index) -> tuple[Index, Mask]:
    """Return the index of each logged action in its list, -1 if it is absent, and which lists are sets of actions."""
    sizes, codes = actions
    owner = actions.owner
    is_logged = codes == logged[owner]
    first = cumulative_offsets(actions.counts)[owner]
    index, is_set = np.full(len(sizes), -1), (sizes > 0) | (sizes == NO_LIST)
    index[owner[is_logged]] = (np.arange(len(codes)) - first)[is_logged]
    radix = codes.max(initial=-1) + 2
    keys = np.sort(owner * radix + codes + 1)
    is_set[keys[1:][keys[1:] == keys[:-1]] // radix] = False  # one action twice
    is_set[owner[codes < 0]] = False
    return index, is_set


def _features(lists: ListColumn) -> tuple[Features, Mask]:
    """Return the features of all actions, and which rows have features of one length without null."""
    table: ListColumn = lists.values
    actions, widths = lists.owner, np.zeros(len(lists.sizes), dtype=np.int64)
    owner = actions[table.owner]
    widths[actions] = table.sizes
    are_even = widths <= MAX_FEATURES
    are_even[actions[table.sizes != widths[actions]]] = False
    are_even[owner[np.isnan(table.values)]] = False
    return Features(cumulative_offsets(np.bincount(owner, minlength=len(widths))), table.values), are_even
