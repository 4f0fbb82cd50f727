"""Decode Arrow tables: Parquet files, CSV files, and frames of pandas, polars and other libraries.

Frames become Arrow tables by the PyCapsule interface of Arrow, which copies no column of numbers. Valid rows are
decoded as arrays. All others are decoded one by one, like JSON, so that they have the same reasons of rejection.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from streameval.common.arrays import Array, Mask
from streameval.errors import InputError
from streameval.events.action_sets import (
    ActionNames,
    ActionSets,
    Features,
    Index,
    RawFields,
    cumulative_offsets,
    reconcile,
)
from streameval.events.arguments import is_series, number_hint, remedy_of
from streameval.events.batch import EventBatch, RewardBatch
from streameval.events.decoder import JsonDecoder, RewardDecoder
from streameval.events.further_rewards import FurtherRewards
from streameval.events.origin import Origin, fingerprints, name_fingerprints
from streameval.events.segments import SegmentColumns, SegmentField, values_at
from streameval.events.tables import (
    IDENTIFIERS,
    OTHER_FORMS,
    ColumnNames,
    Row,
    TableLayout,
    json_context,
    to_seconds,
    with_deferred_rows,
    without_nan,
)
from streameval.events.validation import MAX_FEATURES

NUMBERS = ("integer", "float")
KINDS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(IDENTIFIERS, ("text", "integer")),
    "timestamp": (*NUMBERS, "text"),
    "propensity": NUMBERS,
    "sampling_probability": NUMBERS,
    "policies": (*NUMBERS, "list of integer", "list of float"),
    "actions": ("list of text", "list of integer"),
    "propensities": ("list of integer", "list of float"),
    "features": ("list of list of integer", "list of list of float"),
}
"""Kinds of values that are read as arrays, by field. If a column has another kind, rows are decoded one by one."""
REWARD_KINDS = (*NUMBERS, "boolean")
SPARSE = (*OTHER_FORMS, "policies")
"""Fields with structs that have the fields of all events, and lack those that are null."""
REQUIRED = ("event_id", "timestamp", "action")
"""Fields that differ between a column of nulls and no column."""
NO_LIST = -1  # in place of the size of a list that is null

Column: TypeAlias = Any
"""An Arrow array; pyarrow has no type annotations."""
Fields: TypeAlias = Mapping[tuple[str, str | None], Column]
"""Arrays by field and entry."""


def from_frame(frame: Any, columns: ColumnNames, decoder: JsonDecoder) -> EventBatch:
    """Decode the rows of a frame.

    Raises:
        TypeError: It is not a frame.
        InputError: It cannot become an Arrow table, or a required column is missing.
    """
    table = table_of(frame)
    layout = TableLayout.from_names("the frame", table.column_names, columns, decoder, timed=False)
    arrays, rows = table_columns(table, layout)
    origin = Origin.from_parts("frame", [(0, range(table.num_rows))])
    return with_deferred_rows(decode_columns(arrays, rows, layout, decoder, origin), deferred_rows(table, layout))


def table_of(frame: Any) -> Any:
    """Return a frame as an Arrow table.

    Raises:
        TypeError: It is not a frame.
        InputError: It cannot become an Arrow table.
    """
    if is_series(frame) or not (hasattr(frame, "__arrow_c_stream__") or isinstance(frame, Mapping)):
        expected = "expected a frame of pandas or polars, or an Arrow table"
        raise TypeError(f"{expected}, found {type(frame).__name__}: {remedy_of(frame)}")
    try:
        return frame if isinstance(frame, pa.Table) else pa.table(frame)
    except (ValueError, TypeError, NotImplementedError) as error:  # the base classes of pyarrow's errors
        hint = "give each column its own name, and values of one type"
        scalars = [name for name, value in frame.items() if np.ndim(value) == 0] if isinstance(frame, Mapping) else []
        if scalars:
            hint = f"'{scalars[0]}' is one value, not a list with one per event; Evaluator.update_one takes one event"
        text = re.search(r"Could not convert '(.*?)' with type str", str(error))
        if text is not None:
            hint = number_hint(text[1]) or hint
        raise InputError(f"the frame cannot become an Arrow table: {error}", hint=hint) from error


def table_columns(table: Any, layout: TableLayout) -> tuple[list[Column], Callable[[Index], list[dict[str, Any]]]]:
    """Return one array per field of the layout, and a function that returns some rows as Python values."""
    columns = [json_array(table.column(field.column)) for field in layout.fields]
    return columns, partial(_python_rows, columns, layout)


def json_rows(table: Any, read: Container[str], indices: Index | None = None) -> list[dict[str, Any]]:
    """Return rows of a table as Python values by column, of types of JSON.

    Args:
        table: the columns
        read: the names of columns that are read. Others are left out if they have no values of JSON
        indices: the rows, None = all
    """
    values: dict[str, list[Any]] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            plain = json_array(column)
            values[name] = json_values(plain if indices is None else plain.take(pa.array(indices)), name in SPARSE)
        except Exception:  # each odd type of Arrow has its own
            if name in read:
                raise
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def deferred_rows(table: Any, layout: TableLayout) -> Callable[[Index], Sequence[Row]] | None:
    """Return a function that returns some rows with their raw fields, None if the layout has none."""
    deferred = layout.deferred
    if deferred is None:
        return None
    kept = table.select(deferred.columns)
    return lambda indices: table_columns(kept, deferred)[1](indices)


def _python_rows(columns: Sequence[Column], layout: TableLayout, indices: Index) -> list[dict[str, Any]]:
    sparse = [field.field in SPARSE for field in layout.fields]
    rows = pa.array(indices)
    values = [json_values(column.take(rows), is_sparse) for column, is_sparse in zip(columns, sparse, strict=True)]
    return [layout.event(row) for row in zip(*values, strict=True)]


def json_values(column: Column, is_sparse: bool = False) -> list[Any]:
    """Return the values of an array as Python values of JSON, with None for null and NaN.

    Args:
        column: the array
        is_sparse: whether structs lack their fields that are null

    >>> json_values(pa.array([[0.5, None], None, [math.nan]])), json_values(pa.array([{"a": 1}, {"a": None}]))
    ([[0.5, None], None, [None]], [{'a': 1}, {'a': None}])
    """
    kind, missing = column.type, column.is_null(nan_is_null=True)
    values: list[Any]
    if is_list(kind):
        ends = np.cumsum(np.maximum(sizes_of(column), 0)).tolist()
        items = json_values(column.flatten(), is_sparse)
        values = [items[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    elif pa.types.is_struct(kind) and len({field.name for field in kind}) == kind.num_fields > 0:
        names, parts = [field.name for field in kind], [json_values(part, is_sparse) for part in column.flatten()]
        values = [dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True)]
        if is_sparse:
            values = [{name: part for name, part in value.items() if part is not None} for value in values]
    elif pa.types.is_map(kind):
        values = [None if pairs is None else _plain(dict(pairs)) for pairs in column.to_pylist()]
    elif kind_of(kind) == "other":
        return list(map(_plain, column.to_pylist()))
    else:
        zero = "" if kind_of(kind) == "text" else 0
        values = column.fill_null(pa.scalar(zero).cast(kind)).to_numpy(zero_copy_only=False).tolist()
    for row in np.flatnonzero(missing.to_numpy(zero_copy_only=False)).tolist():
        values[row] = None
    return values


def _plain(value: Any) -> Any:
    """Convert a value to a type of JSON: NaN to null, bytes that are not UTF-8 to base64, all else to text."""
    return without_nan(msgspec.to_builtins(value, enc_hook=str))


def decode_columns(
    columns: Sequence[Column],
    rows: Callable[[Index], Sequence[Row]],
    layout: TableLayout,
    decoder: JsonDecoder,
    origin: Origin,
    probabilities: Array | None = None,
) -> EventBatch:
    """Decode columns, several times faster than `JsonDecoder.decode_rows` and with equal results.

    Args:
        columns: one array per field of the layout
        rows: return some rows as Python values. Called for rows that break a rule or have odd values
        layout: the fields of the columns
        decoder: the decoder of the events
        origin: topic, partition and offset of each row
        probabilities: [n, P] the numbers of the policies if they are in none of the columns, NaN = missing
    """
    all_rows = np.arange(len(origin.offset))
    fields = _arrays(columns, layout, decoder, len(all_rows)) if decoder.reads_columns else None
    if fields is None:
        return layout.decode_rows(rows(all_rows), decoder, origin)

    def build(whole: Fields, kept: Index) -> tuple[EventBatch, Mask]:
        numbers = None if probabilities is None else probabilities.T.take(kept, axis=1).T
        batch, is_valid = event_columns(whole, decoder, len(kept), numbers)
        if decoder.segments:
            batch = replace(batch, segments=segment_columns(whole, decoder, len(kept), layout.json_context))
        if decoder.scores is not None:
            batch = replace(batch, raw_fields=_raw_fields(columns, layout, decoder.scores, kept))
        return batch, is_valid

    def decode_others(others: Index) -> EventBatch:
        return layout.decode_rows(rows(others), decoder, origin.take(others))

    batch = decode_fields(fields, whole_rows(fields, len(all_rows)), build, decode_others, decoder, origin)
    return layout.without_placeholders(batch)


def decode_fields(
    fields: Fields,
    are_whole: Mask,
    build: Callable[[Fields, Index], tuple[EventBatch, Mask]],
    decode_others: Callable[[Index], EventBatch],
    decoder: JsonDecoder,
    origin: Origin,
) -> EventBatch:
    """Decode whole rows by columns, and all other rows one by one.

    Args:
        fields: arrays of all rows by field
        are_whole: whether each row can be a row of columns
        build: return the columns of whole rows, and which of them are valid. No rule is checked
        decode_others: decode some rows. Called for rows that are not whole, not valid or break a rule
        decoder: the decoder of the events
        origin: topic, partition and offset of each row
    """
    kept = np.flatnonzero(are_whole)
    if len(kept) < len(are_whole):
        fields = {key: column.take(pa.array(kept)) for key, column in fields.items()}
    batch, is_valid = build(fields, kept)
    if decoder.estimated:
        batch = batch.without_propensities()
    batch, are_clipped = decoder.clipped(batch)
    is_valid[list(decoder.faults(batch))] = False
    decoder.clipped_events += int(np.count_nonzero(are_clipped & is_valid))  # the other rows are clipped alone
    if not is_valid.all():
        batch, kept = batch.take(is_valid), kept[is_valid]
        fields = {key: column.filter(pa.array(is_valid)) for key, column in fields.items()}
    identity = None
    if decoder.identified:
        identity = fingerprints(_identifiers(fields, "event_id") or [""] * len(kept))
    batch = replace(batch.trimmed(), origin=replace(origin.take(kept), identity=identity))
    if decoder.named:
        batch = replace(batch, actions=_action_names(fields, len(kept)))
    if len(kept) == len(are_whole):
        return batch
    others = np.delete(np.arange(len(are_whole)), kept)
    rest = decode_others(others)
    rejected = [structs.replace(message, place=int(others[message.place])) for message in rest.rejected]
    accepted = np.delete(others, [message.place for message in rest.rejected])
    joined = EventBatch.concat([batch, replace(rest, rejected=())])
    return replace(joined.take(np.argsort(np.concatenate([kept, accepted]))), rejected=tuple(rejected))


def decode_rewards(
    table: Any, decoder: RewardDecoder, origin: Origin, probabilities: Array | None = None
) -> RewardBatch | None:
    """Decode rewards or probabilities that arrive separately from columns with the names of their fields.

    Args:
        table: the columns
        decoder: the decoder of such messages
        origin: topic, partition and offset of each row
        probabilities: [n, P] the numbers of the policies, NaN = missing, None = they are no column of numbers

    Returns:
        None if a row breaks a rule, or a column has values that are not read as arrays.
    """
    kinds = {**dict.fromkeys(("event_id", "reward_id"), KINDS["event_id"]), "timestamp": NUMBERS}
    kinds |= dict.fromkeys(decoder.fields, REWARD_KINDS)
    names = table.column_names
    columns = {name: json_array(table.column(name)) for name in kinds if names.count(name) == 1}
    is_known = decoder.policies is None or probabilities is not None
    if not is_known or len(set(names)) < len(names) or not {"event_id", "timestamp"} <= columns.keys():
        return None
    if columns["event_id"].null_count or any(
        kind_of(column.type) not in kinds[name] for name, column in columns.items()
    ):
        return None
    if probabilities is None:
        absent = np.full(table.num_rows, math.nan)
        values = [floats_of(columns[field]) if field in columns else absent for field in decoder.fields]
        probabilities = np.array(values).T.copy()
    times, (rewards, further) = floats_of(columns["timestamp"]), decoder.named(probabilities)
    if np.isnan(times).any() or decoder.faults(rewards, times, further):
        return None
    identity = fingerprints(columns["event_id"].to_pylist())
    has_ids = "reward_id" in columns and "reward_id" in decoder.form.__struct_fields__
    own = columns["reward_id"].to_pylist() if has_ids else []
    return RewardBatch(rewards, times, replace(origin, identity=identity), (), further, name_fingerprints(own))


def _arrays(columns: Sequence[Column], layout: TableLayout, decoder: JsonDecoder, count: int) -> Fields | None:
    """Return the arrays by field, None if they have kinds that need every row to be decoded alone."""
    if any(field.field in OTHER_FORMS for field in layout.fields):
        return None
    fields = {
        (field.field, field.entry): column
        for field, column in zip(layout.fields, columns, strict=True)
        if column.null_count < count or field.field in REQUIRED
    }
    if layout.actions is not None:
        try:
            is_text = ("action", None) in fields and kind_of(fields["action", None].type) == "text"
            fields["actions", None] = pa.array([layout.actions_like(is_text)] * count)
        except (ValueError, TypeError, OverflowError):  # text and integers, or an integer of more than 64 bits
            return None
    rewards = {decoder.reward_field, *(reward.field for reward in decoder.further)}
    kinds = {**KINDS, **dict.fromkeys(rewards, REWARD_KINDS)}
    if any(kind_of(column.type) not in kinds[field] for (field, _), column in fields.items() if field in kinds):
        return None
    if ("actions", None) in fields:
        listed, logged = fields["actions", None].type.value_type, fields["action", None].type
        return fields if listed == logged or kind_of(listed) == kind_of(logged) == "text" else None
    has_propensities = ("propensity", None) in fields or decoder.estimated
    return fields if has_propensities and not _lists(fields) else None


def whole_rows(fields: Fields, count: int) -> Mask:
    """Return which rows have an id, an action, and either no lists or complete lists of one size."""
    whole = np.ones(count, dtype=bool)
    for name in ("event_id", "action"):
        if (name, None) in fields:
            whole &= fields[name, None].is_valid().to_numpy(zero_copy_only=False)
    if ("actions", None) in fields:
        sizes = sizes_of(fields["actions", None])
        whole &= sizes > 0
        for lists in _lists(fields):
            whole &= sizes_of(lists) == sizes
            whole[incomplete_rows(lists)] = False
    return whole


def _lists(fields: Fields) -> list[Column]:
    """Return the columns with lists. Fields that only make segments may have values of any type."""
    return [column for (field, _), column in fields.items() if field in KINDS and is_list(column.type)]


def incomplete_rows(lists: Column) -> Index:
    """Return the rows of lists that have a null, a NaN, or lists of several sizes or of too many numbers."""
    values, owner = pc.list_flatten(lists), pc.list_parent_indices(lists).to_numpy()
    broken = pc.is_null(values, nan_is_null=True).to_numpy(zero_copy_only=False).copy()
    if is_list(values.type):
        sizes, widths = sizes_of(values), np.zeros(len(lists), dtype=np.int64)
        widths[owner] = sizes
        broken |= (sizes != widths[owner]) | (sizes > MAX_FEATURES)
        broken[incomplete_rows(values)] = True
    return np.asarray(owner[broken])


def event_columns(
    fields: Fields, decoder: JsonDecoder, count: int, probabilities: Array | None
) -> tuple[EventBatch, Mask]:
    """Return the columns of whole rows, and which rows have a time and lists without repeats. No rule is checked."""

    def numbers(field: str, entry: str | None = None, absent: float = math.nan) -> Array:
        column = fields.get((field, entry))
        return np.full(count, absent) if column is None or is_list(column.type) else floats_of(column)

    policies = decoder.policies or ()
    if probabilities is None:
        values = [numbers("policies", policy) for policy in policies]
        probabilities = np.array(values).reshape(len(policies), count).T
    sampling = numbers("sampling_probability", absent=1.0)
    batch = EventBatch(
        policies=policies,
        probabilities=probabilities,
        propensity=numbers("propensity"),
        reward=numbers(decoder.reward_field) if decoder.rewarded else np.full(count, math.nan),
        timestamp=numbers("timestamp", absent=0.0),
        sampling_probability=np.where(np.isnan(sampling), 1.0, sampling),
        unit=name_fingerprints(_identifiers(fields, "unit")),
        logging_policy=name_fingerprints(_identifiers(fields, "logging_policy")),
    )
    if decoder.further:
        further = [numbers(reward.field) for reward in decoder.further]
        names = tuple(reward.name for reward in decoder.further)
        batch = replace(batch, further=FurtherRewards(names, np.array(further).T.copy()))
    is_valid = ~np.isnan(batch.timestamp)
    if ("actions", None) in fields:
        sets, are_sets = _action_sets(fields, policies)
        is_valid &= are_sets
        reconcile(sets, batch.probabilities, sets.probabilities)
        reconcile(sets, batch.propensity, sets.propensities)
        batch = replace(batch, action_sets=sets)
    return batch, is_valid


def segment_columns(fields: Fields, decoder: JsonDecoder, count: int, has_json: bool) -> SegmentColumns:
    """Return the values of segments. Of texts with JSON, each different one is decoded once.

    Args:
        fields: arrays by field
        decoder: names the fields of segments
        count: the number of rows
        has_json: whether text of `context` is read as JSON if it is
    """

    def values(field: SegmentField) -> Iterable[Any]:
        keys, column = field.keys, fields.get((field.root, None))
        if keys and column is None:
            column = fields.get((field.root, keys.pop(0)))
        while keys and column is not None and pa.types.is_struct(column.type):
            name = keys.pop(0)
            column = pc.struct_field(column, name) if column.type.get_field_index(name) >= 0 else None
        if column is None:
            return [None] * count
        if kind_of(column.type) != "text":
            return values_at(json_values(column), keys)
        codes = column.dictionary_encode()
        read = json_context if has_json and field.root == "context" else lambda text: text
        found = [*values_at(map(read, codes.dictionary.to_pylist()), keys), None]
        return [found[code] for code in codes.indices.fill_null(-1).to_pylist()]

    columns = {field.name: values(field) for field in decoder.segments}
    return SegmentColumns.from_columns(columns, count)


def _raw_fields(columns: Sequence[Column], layout: TableLayout, scores: Sequence[str], rows: Index) -> RawFields:
    """Return the fields of some rows as Python values."""
    names = ("context", "actions", *scores)
    places = [place for place, field in enumerate(layout.fields) if field.field in (*names, "action")]
    part = replace(layout, fields=[layout.fields[place] for place in places])
    events = _python_rows([columns[place] for place in places], part, rows)
    return RawFields([{name: event.get(name) for name in names} for event in events])


def _action_sets(fields: Fields, policies: Sequence[str]) -> tuple[ActionSets, Mask]:
    """Return the action sets of rows with complete lists, and which rows list no action twice."""
    lists, logged = fields["actions", None], fields["action", None]
    sizes = sizes_of(lists)
    offsets, owner = cumulative_offsets(sizes), np.repeat(np.arange(len(sizes)), sizes)
    names = pc.list_flatten(lists).dictionary_encode()
    codes, radix = names.indices.to_numpy().astype(np.int64), len(names.dictionary) + 1
    chosen = pc.index_in(logged, value_set=names.dictionary.cast(logged.type)).fill_null(-1).to_numpy()
    index, is_logged = np.full(len(sizes), -1), codes == chosen[owner]
    index[owner[is_logged]] = (np.arange(len(codes)) - offsets[owner])[is_logged]
    keys, are_sets = np.sort(owner * radix + codes), np.ones(len(sizes), dtype=bool)
    are_sets[keys[1:][keys[1:] == keys[:-1]] // radix] = False  # one action twice

    def entries(field: str, entry: str | None = None) -> Array:
        column = fields.get((field, entry))
        has_lists = column is not None and is_list(column.type)
        return floats_of(pc.list_flatten(column)) if has_lists else np.full(len(codes), np.nan)

    features = None
    if ("features", None) in fields:
        tables = pc.list_flatten(fields["features", None])
        numbers = np.bincount(owner, sizes_of(tables), len(sizes)).astype(np.int64)
        features = Features(cumulative_offsets(numbers), floats_of(pc.list_flatten(tables)))
    probabilities = np.array([entries("policies", policy) for policy in policies])
    sets = ActionSets(
        offsets=offsets,
        index=index,
        propensities=entries("propensities"),
        features=features,
        probabilities=probabilities.reshape(len(policies), len(codes)).T,
    )
    return sets, are_sets


# --- Arrays ---


def _identifiers(fields: Fields, field: str) -> list[Any]:
    """Return the strings or integers of a field, None for null. Return no values if there is no such field."""
    return list(fields[field, None].to_pylist()) if (field, None) in fields else []


def _action_names(fields: Fields, count: int) -> ActionNames:
    """Return the names of the logged actions, each read once. Events of other forms have none."""
    if ("action", None) not in fields:
        return ActionNames.from_actions([None] * count)
    column = fields["action", None].dictionary_encode()
    names = ActionNames.from_actions(column.dictionary.to_pylist())
    return replace(names, chosen=names.chosen[column.indices.to_numpy()])


def floats_of(column: Column) -> Array:
    """Return a copy of numbers or times, NaN for null and for text that is not a time."""
    if kind_of(column.type) == "text":
        moments = map(to_seconds, column.to_pylist())
        return np.array([moment if isinstance(moment, float) else math.nan for moment in moments])
    return np.array(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))


def sizes_of(lists: Column) -> Index:
    """Return the size of each list, `NO_LIST` for null."""
    sizes = pc.list_value_length(lists).fill_null(NO_LIST)
    return np.asarray(sizes.to_numpy(zero_copy_only=False), dtype=np.int64)


def is_list(kind: Any) -> bool:
    """Return whether a type is a list of any size."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def kind_of(kind: Any) -> str:
    """Name a type as in `KINDS`."""
    if is_list(kind):
        return f"list of {kind_of(kind.value_type)}"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    names = {"integer": pa.types.is_integer, "float": pa.types.is_floating, "boolean": pa.types.is_boolean}
    return next((name for name, is_of in names.items() if is_of(kind)), "other")


def json_array(column: Any) -> Column:
    """Convert a column to a type of JSON: times to seconds since 1970, decimals to floats, bytes to text."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    with suppress(pa.ArrowInvalid):  # bytes that are not UTF-8
        kind = column.type
        for json_type in (_json_type(kind, pa.dictionary), _json_type(kind)):  # a cast may damage fields of nulls
            column = column if column.type == json_type else column.cast(json_type)
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        if column.type == pa.timestamp("ns", getattr(column.type, "tz", None)):  # rounded, as msgspec rounds text
            rounded = (column.cast(pa.int64()).fill_null(0).to_numpy() + 500) // 1000
            microseconds = pa.array(rounded, mask=column.is_null().to_numpy(zero_copy_only=False))
        else:
            microseconds = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        return pc.divide(microseconds.cast(pa.float64(), safe=False), 1e6)
    return column


def _json_type(kind: Any, dictionary: Callable[[Any, Any], Any] = lambda indices, values: values) -> Any:
    """Return a type with text in place of bytes, floats of decimals, and without views, which `take` does not support.

    Lists of a fixed size become lists of any size.

    Args:
        kind: the type of a column
        dictionary: return what to do with a dictionary, from the types of indices and values. By default the values.
            Arrow cannot cast a dictionary of views to values in one step
    """
    types, json_type = pa.types, partial(_json_type, dictionary=dictionary)
    if types.is_dictionary(kind):
        return dictionary(kind.index_type, json_type(kind.value_type))
    if types.is_decimal(kind):
        return pa.float64()
    if types.is_map(kind):
        return pa.map_(pa.string(), json_type(kind.item_type))
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_string_view(kind):
        return pa.large_string()
    if types.is_fixed_size_list(kind):
        return pa.large_list(json_type(kind.value_type))
    if is_list(kind):
        items = json_type(kind.value_type)
        return kind if items == kind.value_type else pa.large_list(items)
    if types.is_struct(kind):
        return pa.struct([(field.name, json_type(field.type)) for field in kind])
    return kind
