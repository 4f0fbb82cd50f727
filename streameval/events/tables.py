"""Tables: CSV and Parquet files, and frames of pandas, polars and others. Their rows become events.

Frames and Parquet files are Arrow tables in memory. Frames become Arrow tables by the PyCapsule interface of Arrow,
which copies no column of numbers; it is common to pandas, polars, DuckDB and others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from streameval.common.arrays import Array, Mask
from streameval.errors import InputError
from streameval.events.action_sets import ActionSets, Features, Index, cumulative_offsets
from streameval.events.batch import EventBatch
from streameval.events.decoder import JsonDecoder, Table
from streameval.events.origin import Origin
from streameval.events.validation import MAX_FEATURES, Fault, at_most_one

Row: TypeAlias = Mapping[str, Any] | Fault

IDENTIFIERS = ("event_id", "action", "unit", "logging_policy")  # fields that are text in CSV
REQUIRED_IDENTIFIERS = ("event_id", "action")
ONLY_NUMBERS = ("timestamp", "propensity", "sampling_probability")  # never booleans
LISTS = {"actions", "propensities", "features"}

CellColumn: TypeAlias = Array | list[str | int | None] | None
"""Numbers, NaN for none; or identifiers; None where cells are neither."""


def _by_their_names(value: object) -> object:
    return {name: name for name in value} if isinstance(value, list | tuple) else value


class ColumnNames(BaseModel):
    """Which column of a table (Parquet, CSV) holds which field. A column named like its field may be absent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    event_id: str | None = Field(default=None, description="The identifier of an event; it shows copies.")
    timestamp: str = Field(
        default="timestamp", description="The time of the decision: UTC if it has no zone, or seconds since 1970."
    )
    action: str = Field(default="action", description="The chosen action.")
    propensity: str = Field(default="propensity", description="The logging policy's probability of the action.")
    reward: str | None = Field(default=None, description="The reward; by default the column named like its field.")
    sampling_probability: str = Field(
        default="sampling_probability", description="The probability with which a downsampled log kept the event."
    )
    unit: str = Field(default="unit", description="The user or session that the event belongs to.")
    logging_policy: str = Field(default="logging_policy", description="The name of the policy that chose the action.")
    actions: str | Annotated[list[str | int], Field(min_length=1)] = Field(
        default="actions", description="The list of actions to choose from; or these actions, for all rows."
    )
    propensities: str = Field(default="propensities", description="The list of the logging policy's probabilities.")
    features: str = Field(default="features", description="The list of the features of each action.")
    context: str | Annotated[list[str], Field(min_length=1)] = Field(
        default="context", description="The features known at decision time: a column, or several by their names."
    )
    policies: Annotated[dict[str, str], BeforeValidator(_by_their_names)] = Field(
        default={}, description="By policy, the column of its probability or probabilities; by default its own name."
    )

    @classmethod
    def of(cls, columns: ColumnNames | Mapping[str, Any] | None, policies: Sequence[str] = ()) -> ColumnNames:
        """The names that a caller gives; `policies` are in the columns of their own names, unless `columns` has others.

        Raises:
            InputError: There is no such field, or a name is not text.
        """
        try:
            names = cls.model_validate(columns or {})
        except ValidationError as error:
            field = error.errors()[0]["loc"][0]
            problem = "expected the name of a column" if field in cls.model_fields else "events have no such field"
            hint = f"the fields are {', '.join(cls.model_fields)}"
            raise InputError(f"columns: {field}: {problem}", hint=hint) from None
        return names.model_copy(update={"policies": {name: name for name in policies} | names.policies})


class TableField(NamedTuple):
    """A field of events, or a part of one (the probability of a policy), and the column that holds it."""

    field: str
    column: str
    required: bool
    part: str | None = None
    is_read: bool = True


@dataclass(frozen=True)
class TableLayout:
    """The fields of the events, in the order of the columns that are read, and those with the same value in all rows.

    `is_timed`: False if rows have no timestamp, so that it is 0 until they are decoded.
    """

    fields: Sequence[TableField]
    constants: Mapping[str, Any]
    is_timed: bool = True

    @classmethod
    def of(
        cls, path: str, names: Sequence[str], columns: ColumnNames, decoder: JsonDecoder, *, timed: bool = True
    ) -> TableLayout:
        """The layout of a table with these names of columns; `timed`: rows must have a timestamp.

        Raises:
            InputError: A required column is missing, or two columns have its name.
        """
        wanted = _wanted(columns, decoder, timed)
        for each in wanted:
            if each.required and each.column not in names:
                raise InputError(
                    f"{path} has no column '{each.column}' for {each.part or each.field}; it has {', '.join(names)}",
                    hint=_hint_for(names),
                )
            if names.count(each.column) > 1:
                raise InputError(f"{path} has two columns '{each.column}'", hint="rename or remove one of them")
        present = [each for each in wanted if each.column in names and each.is_read]
        fields = {each.field for each in present}
        if not {"propensity", "propensities"} & fields:
            raise InputError(
                f"{path} has no column with the propensity; it has {', '.join(names)}",
                hint="name it in the configuration: `columns: {propensity: NAME}`",
            )
        constants: dict[str, Any] = {"event_id": ""}  # equals no other one
        if isinstance(columns.actions, list):
            constants["actions"] = columns.actions
        is_timed = "timestamp" in fields
        return cls(present, constants if is_timed else constants | {"timestamp": 0.0}, is_timed)

    @property
    def columns(self) -> list[str]:
        """The names of the columns that are read, each once."""
        return list(dict.fromkeys(each.column for each in self.fields))

    def event(self, values: Sequence[Any]) -> dict[str, Any]:
        """The event of a row, from the values of its fields."""
        event: dict[str, Any] = {**self.constants}
        for each, value in zip(self.fields, values, strict=True):
            if each.part is None:
                event[each.field] = value
            else:
                event.setdefault(each.field, {})[each.part] = value
        event["timestamp"] = in_seconds(event["timestamp"])
        return event

    def table(
        self,
        columns: Sequence[CellColumn],
        is_whole: Mask,
        rows: Callable[[Index], list[Row]],
        sets: ActionSets | None = None,
    ) -> Table | list[Row]:
        """The table of these columns of fields; all rows as values where some hold neither numbers nor identifiers.

        `sets`: those of the columns with lists, which are in place of these columns.
        """
        every = np.arange(len(is_whole))
        numbers: dict[str, Array] = {} if self.is_timed else {"timestamp": np.zeros(len(every))}
        policies: dict[str, Array] = {}
        identifiers: dict[str, list[str | int | None]] = {}
        is_plain = is_whole.copy()
        for each, column in zip(self.fields, columns, strict=True):
            if isinstance(column, list) and each.field in IDENTIFIERS:
                identifiers[each.field] = column
                if each.field in REQUIRED_IDENTIFIERS and None in column:
                    is_plain &= np.array([name is not None for name in column])
            elif sets is not None and each.field in LISTS:
                continue
            elif isinstance(column, np.ndarray) and each.field not in (*IDENTIFIERS, *LISTS):
                by_name, name = (policies, each.part) if each.field == "policies" else (numbers, each.field)
                by_name[name or ""] = column
            else:
                return rows(every)
        has_columns = sets is not None or ("propensity" in numbers and "actions" not in self.constants)
        return Table(numbers, policies, identifiers, is_plain, rows, sets) if has_columns else rows(every)

    def decoded(self, rows: Table | list[Row], decoder: JsonDecoder, path: str, first: int) -> EventBatch:
        """The events of consecutive rows; `path` and the number of the first row are their origin."""
        number = len(rows) if isinstance(rows, list) else len(rows.is_plain)
        origin = Origin.of(path, [(0, range(first, first + number))])
        batch = decoder.decode_rows(rows, origin) if isinstance(rows, list) else decoder.decode_table(rows, origin)
        return batch if self.is_timed else replace(batch, timestamp=np.full(len(batch), np.nan))


def _wanted(columns: ColumnNames, decoder: JsonDecoder, timed: bool) -> list[TableField]:
    """The columns to read. Those named in the configuration are required."""
    always = ("timestamp", "action") if timed else ("action",)
    given = {name: value for name, value in columns if name not in ("reward", "policies") and value is not None}
    sees_context = decoder.scores is not None
    wanted = [
        TableField(name, column, column != name or name in always, is_read=name != "context" or sees_context)
        for name, column in given.items()
        if isinstance(column, str)
    ]
    if isinstance(columns.context, list):
        wanted += [TableField("context", column, True, column, sees_context) for column in columns.context]
    wanted.append(TableField(decoder.reward_field, columns.reward or decoder.reward_field, True))
    wanted += [TableField(each.field, each.field, True) for each in decoder.further]
    wanted += [TableField(name, name, False) for name in decoder.scores or () if name not in given]
    policies = columns.policies
    return wanted + [
        TableField("policies", policies.get(policy, policy), policy in policies, policy)
        for policy in decoder.policies or ()
    ]


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


def in_seconds(moment: Any) -> Any:
    """Text as seconds since 1970, in UTC without an offset. The decoder rejects other text."""
    try:
        found = datetime.fromisoformat(moment)
    except (TypeError, ValueError):
        return moment
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


# --- Arrow ---


def from_frame(frame: Any, columns: ColumnNames, decoder: JsonDecoder, first: int = 0) -> EventBatch:
    """The events of the rows of a frame.

    Raises:
        TypeError: It is not a frame.
        InputError: It cannot become an Arrow table, or a required column is missing.
    """
    try:
        import pyarrow as pa
    except ImportError as error:
        hint = "pip install 'streameval[columnar]'"
        raise InputError("frames need pyarrow, which is not installed", hint=hint) from error
    if not hasattr(frame, "__arrow_c_stream__") and not isinstance(frame, Mapping):
        expected = "expected a frame of pandas or polars, or an Arrow table"
        raise TypeError(f"{expected}, found {type(frame).__name__}")
    try:
        table = pa.table(frame)
    except (ValueError, TypeError, NotImplementedError) as error:  # the base classes of pyarrow's errors
        hint = "give each column its own name, and values of one type"
        raise InputError(f"the frame cannot become an Arrow table: {error}", hint=hint) from error
    layout = TableLayout.of("the frame", table.column_names, columns, decoder, timed=False)
    return layout.decoded(arrow_rows(table, layout), decoder, "frame", first)


def arrow_rows(table: Any, layout: TableLayout) -> Table | list[Row]:
    """The rows of an Arrow table or record batch."""

    given = {name: _of_json(table.column(name)) for name in layout.columns}

    def rows(numbers: Index) -> list[Row]:
        values = {name: _arrow_values(column.take(numbers)) for name, column in given.items()}
        return [layout.event(row) for row in zip(*(values[each.column] for each in layout.fields), strict=True)]

    sets, is_whole = _arrow_sets(given, layout, table.num_rows)
    columns = [
        _arrow_column(given[each.column], each)
        if sets is None or not _is_list(given[each.column])
        else np.full(table.num_rows, np.nan)  # a list is not the probability of the logged action
        for each in layout.fields
    ]
    return layout.table(columns, is_whole, rows, sets)


def _arrow_column(column: Any, field: TableField) -> CellColumn:
    """An Arrow array with types of JSON as a column of events. Booleans are numbers where they are rewards."""
    import pyarrow as pa

    types = pa.types
    is_number = types.is_floating(column.type) or types.is_integer(column.type)
    is_text = types.is_string(column.type) or types.is_large_string(column.type)
    if field.field in IDENTIFIERS:
        return column.to_pylist() if is_text or types.is_integer(column.type) else None
    if field.field == "timestamp" and is_text:
        moments = map(in_seconds, column.to_pylist())
        return np.array([moment if isinstance(moment, float) else math.nan for moment in moments])
    if types.is_boolean(column.type) and field.field != "policies" and field.field not in ONLY_NUMBERS:
        column, is_number = column.cast(pa.int8()), True
    return column.to_numpy(zero_copy_only=False).astype(np.float64) if is_number else None


def _arrow_values(column: Any) -> list[Any]:
    """An Arrow array with types of JSON as values, NaN as None."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types = pa.types
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

    types, plain = pa.types, _plain_type(column.type)
    if plain != column.type:
        column = column.cast(plain)
    if types.is_date(column.type) or types.is_timestamp(column.type):
        microseconds = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        column = pc.divide(microseconds.cast(pa.float64(), safe=False), 1e6)
    elif types.is_decimal(column.type):
        column = column.cast(pa.float64())
    return column


def _plain_type(kind: Any) -> Any:
    """The type with text in place of bytes, and without dictionaries and views, which have no rows to take."""
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_string_view(kind):
        return pa.large_string()
    if types.is_list(kind) or types.is_large_list(kind):
        items = _plain_type(kind.value_type)
        return kind if items == kind.value_type else pa.large_list(items)
    if types.is_struct(kind):
        return pa.struct([(part.name, _plain_type(part.type)) for part in kind])
    return kind


def _without_nan(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_without_nan, value))
    if isinstance(value, dict):
        return {name: _without_nan(item) for name, item in value.items()}
    return None if value != value else value


# --- Action sets in Arrow ---


class ListColumn(NamedTuple):
    """The lists of n cells: their `sizes` [n], -1 for a cell without one; all `values`; and the cell of each value."""

    sizes: Index
    values: Any
    owner: Index

    @classmethod
    def of(cls, lists: Any) -> ListColumn:
        """From an Arrow array of lists."""
        import pyarrow as pa
        import pyarrow.compute as pc

        lists = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
        sizes = pc.fill_null(pc.list_value_length(lists), -1).to_numpy(zero_copy_only=False).astype(np.int64)
        return cls(sizes, pc.list_flatten(lists), np.repeat(np.arange(len(sizes)), np.maximum(sizes, 0)))

    @property
    def numbers(self) -> Array:
        """The values as numbers, NaN for null."""
        return np.asarray(self.values.to_numpy(zero_copy_only=False), dtype=np.float64)

    def fits(self, sizes: Index) -> Mask:
        """Whether each cell has no list, or one of this size without null."""
        fits: Mask = (self.sizes == sizes) | (self.sizes < 0)
        if _is_list(self.values):
            fits[self.owner[ListColumn.of(self.values).sizes < 0]] = False
        else:
            fits[self.owner[np.isnan(self.numbers)]] = False
        return fits

    def entries(self, sizes: Index) -> Array:
        """The numbers for all actions of lists of these sizes; NaN for those of a cell without a list that fits."""
        has_list, counts = self.sizes == sizes, np.maximum(sizes, 0)
        entries = np.full(counts.sum(), np.nan)
        entries[np.repeat(has_list, counts)] = self.numbers[has_list[self.owner]]
        return entries


def _arrow_sets(given: Mapping[str, Any], layout: TableLayout, rows: int) -> tuple[ActionSets | None, Mask]:
    """The action sets in columns with lists, and the rows [rows] whose lists they hold; those of other rows are wrong.

    No sets where the columns do not name the actions, or have lists of other types.
    """
    columns = {(each.field, each.part): given[each.column] for each in layout.fields}
    lists = {key: column for key, column in columns.items() if _is_list(column)}
    names = _named_actions(lists.pop(("actions", None), None), columns["action", None], layout, rows)
    if names is None or not all(_is_of_numbers(field, column) for (field, _), column in lists.items()):
        return None, np.ones(rows, dtype=bool)
    actions, found = ListColumn.of(names), {key: ListColumn.of(column) for key, column in lists.items()}
    index, is_whole = _logged_positions(actions, columns["action", None])
    for column in found.values():
        is_whole &= column.fits(actions.sizes)
    features = None
    if ("features", None) in found:
        features, are_even = _features(found.pop(("features", None)))
        is_whole &= are_even
    entries = {key: column.entries(actions.sizes) for key, column in found.items()}
    unknown = np.full(len(actions.owner), np.nan)
    policies = [entries.get(key, unknown) for key in columns if key[0] == "policies"]
    sets = ActionSets(
        offsets=cumulative_offsets(np.maximum(actions.sizes, 0)),
        index=index,
        propensities=at_most_one(entries.get(("propensities", None), unknown.copy())),
        features=features,
        probabilities=np.array(policies).reshape(len(policies), len(unknown)).T,
    )
    return sets, is_whole


def _logged_positions(actions: ListColumn, logged: Any) -> tuple[Index, Mask]:
    """The position of each logged action in its list, -1 if it is not there; and whether the list, if any, is a set."""
    import pyarrow.compute as pc

    encoded = actions.values.dictionary_encode()
    names = encoded.dictionary.cast(logged.type)
    codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    wanted = pc.fill_null(pc.index_in(logged, value_set=names), -2).to_numpy(zero_copy_only=False)
    is_logged = codes == wanted[actions.owner]
    first = cumulative_offsets(np.maximum(actions.sizes, 0))[actions.owner]
    index, is_set = np.full(len(actions.sizes), -1), actions.sizes != 0
    index[actions.owner[is_logged]] = (np.arange(len(codes)) - first)[is_logged]
    keys = np.sort(actions.owner * (len(names) + 1) + codes + 1)
    is_set[keys[1:][keys[1:] == keys[:-1]] // (len(names) + 1)] = False  # one action twice
    is_set[actions.owner[codes < 0]] = False
    return index, is_set


def _features(lists: ListColumn) -> tuple[Features, Mask]:
    """The features of the actions in lists of lists, and whether those of a row have one size and no null."""
    table = ListColumn.of(lists.values)
    owner, widths = lists.owner[table.owner], np.zeros(len(lists.sizes), dtype=np.int64)
    widths[lists.owner] = table.sizes
    are_even = widths <= MAX_FEATURES
    are_even[lists.owner[table.sizes != widths[lists.owner]]] = False
    are_even[owner[np.isnan(table.numbers)]] = False
    return Features(cumulative_offsets(np.bincount(owner, minlength=len(widths))), table.numbers), are_even


def _named_actions(lists: Any, logged: Any, layout: TableLayout, rows: int) -> Any:
    """The lists of actions as an Arrow array: those of a column, or the same one for all rows.

    None without either, or where the actions and the logged one are not all text or integers of one type.
    """
    import pyarrow as pa

    fixed = layout.constants.get("actions")
    if fixed is not None:
        try:
            names = pa.array(fixed)
        except (ValueError, TypeError, OverflowError):  # text and integers, or an integer of more than 64 bits
            return None
        offsets = np.arange(rows + 1, dtype=np.int32) * len(fixed)
        lists = pa.ListArray.from_arrays(offsets, names.take(np.tile(np.arange(len(fixed)), rows)))
    if lists is None:
        return None
    kinds = {lists.type.value_type, logged.type}
    is_text = kinds <= {pa.string(), pa.large_string()}
    return lists if is_text or (len(kinds) == 1 and pa.types.is_integer(logged.type)) else None


def _is_list(column: Any) -> bool:
    """Whether an Arrow array has lists."""
    import pyarrow as pa

    return bool(pa.types.is_list(column.type) or pa.types.is_large_list(column.type))


def _is_of_numbers(field: str, lists: Any) -> bool:
    """Whether an Arrow array has lists of numbers, or of features, lists of those."""
    import pyarrow as pa

    kind = lists.type.value_type
    if field == "features":
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            return False
        kind = kind.value_type
    is_number = pa.types.is_floating(kind) or pa.types.is_integer(kind)
    return bool(is_number) and field in ("propensities", "features", "policies")
