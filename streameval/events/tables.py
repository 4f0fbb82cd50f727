"""Tables: CSV and Parquet files, and frames of pandas, polars and others. Their rows become events.

Frames and Parquet files are Arrow tables in memory. Frames become Arrow tables by the PyCapsule interface of Arrow,
which copies no column of numbers; it is common to pandas, polars, DuckDB and others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Annotated, Any, NamedTuple, Self, TypeAlias

import msgspec
import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from streameval.common.arrays import Array, Mask
from streameval.errors import InputError
from streameval.events.action_sets import ActionSets, Features, Index, cumulative_offsets
from streameval.events.batch import EventBatch
from streameval.events.decoder import JsonDecoder, Table
from streameval.events.origin import Origin
from streameval.events.schema import Identifier
from streameval.events.validation import MAX_FEATURES, Fault, at_most_one

Row: TypeAlias = Mapping[str, Any] | Fault

IDENTIFIERS = ("event_id", "action", "unit", "logging_policy")  # fields that are text in CSV
REQUIRED_IDENTIFIERS = ("event_id", "action")
ONLY_NUMBERS = ("timestamp", "propensity", "sampling_probability")  # never booleans
LISTS = {"actions", "propensities", "features"}

NO_LIST, NOT_A_LIST = -1, -2  # in place of the size of a list: an empty cell, and a cell with something else


class ListColumn(NamedTuple):
    """The lists of n cells: their `sizes` [n], or `NO_LIST` or `NOT_A_LIST`; and all their `values`, end to end.

    The values are numbers, NaN for null; or the numbers of names, -1 for null; or lists themselves.
    """

    sizes: Index
    values: Any

    @classmethod
    def of(cls, lists: Sequence[Sequence[Any] | Fault | None], values: Callable[[list[Any]], Any]) -> ListColumn:
        """From lists as Python values; `values` makes a column of their values."""
        given = [() if each is None or isinstance(each, Fault) else each for each in lists]
        sizes = np.array(list(map(len, given)), dtype=np.int64)
        sizes[[row for row, each in enumerate(lists) if each is None]] = NO_LIST
        sizes[[row for row, each in enumerate(lists) if isinstance(each, Fault)]] = NOT_A_LIST
        return cls(sizes, values(list(chain.from_iterable(given))))

    @property
    def counts(self) -> Index:
        """The number of values of each cell, [n]."""
        return np.maximum(self.sizes, 0)

    @property
    def owner(self) -> Index:
        """The cell of each value."""
        return np.repeat(np.arange(len(self.sizes)), self.counts)

    def fits(self, sizes: Index) -> Mask:
        """Whether each cell is empty, or has a list of this size without null."""
        fits: Mask = (self.sizes == sizes) | (self.sizes == NO_LIST)
        values, owner = self.values, self.owner
        fits[owner[values.sizes < 0 if isinstance(values, ListColumn) else np.isnan(values)]] = False
        return fits

    def entries(self, sizes: Index) -> Array:
        """The numbers for all actions of lists of these sizes; NaN for those of a cell without a list that fits."""
        has_list, counts = self.sizes == sizes, np.maximum(sizes, 0)
        entries = np.full(counts.sum(), np.nan)
        entries[np.repeat(has_list, counts)] = self.values[has_list[self.owner]]
        return entries


class ActionColumns(NamedTuple):
    """The actions that n events choose from, and the logged ones, [n]; equal names have equal numbers.

    The number of a logged action is -2 where no list has it.
    """

    lists: ListColumn
    logged: Index

    @classmethod
    def of(cls, lists: Sequence[Sequence[Identifier] | Fault | None], logged: Sequence[Identifier | None]) -> Self:
        """From names as Python values."""
        numbers: dict[Identifier | None, int] = {}

        def numbered(names: list[Identifier]) -> Index:
            return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)

        return cls(ListColumn.of(lists, numbered), np.array([numbers.get(name, -2) for name in logged], dtype=np.int64))

    def positions(self) -> tuple[Index, Mask]:
        """The position of each logged action in its list, -1 if it is not there; and whether a list is a set."""
        sizes, codes = self.lists
        owner = self.lists.owner
        is_logged = codes == self.logged[owner]
        first = cumulative_offsets(self.lists.counts)[owner]
        index, is_set = np.full(len(sizes), -1), (sizes > 0) | (sizes == NO_LIST)
        index[owner[is_logged]] = (np.arange(len(codes)) - first)[is_logged]
        names = codes.max(initial=-1) + 2
        keys = np.sort(owner * names + codes + 1)
        is_set[keys[1:][keys[1:] == keys[:-1]] // names] = False  # one action twice
        is_set[owner[codes < 0]] = False
        return index, is_set


CellColumn: TypeAlias = Array | list[str | int | None] | ListColumn | None
"""Numbers, NaN for none; or identifiers; or lists of numbers or of features; None where cells are none of these."""


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
        if not decoder.estimated and not {"propensity", "propensities"} & fields:
            raise InputError(
                f"{path} has no column with the propensity; it has {', '.join(names)}",
                hint="name it in the configuration: `columns: {propensity: NAME}`; "
                "`propensity: {kind: estimated}` is for logs that lack it",
            )
        constants: dict[str, Any] = {"event_id": ""}  # equals no other one
        if isinstance(columns.actions, list):
            constants["actions"] = columns.actions
        is_timed = "timestamp" in fields
        return cls(present, constants if is_timed else constants | {"timestamp": 0.0}, is_timed)

    @classmethod
    def of_records(cls, columns: ColumnNames, decoder: JsonDecoder) -> TableLayout:
        """The layout of records, each of which may lack a field."""
        constants = {"actions": columns.actions} if isinstance(columns.actions, list) else {}
        return cls([each for each in _wanted(columns, decoder, True) if each.is_read], constants)

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

    def without_constants(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """An event of this layout without the identifier and the time that it has from no column."""
        given = {"actions", *(each.field for each in self.fields)}
        return {field: value for field, value in event.items() if field in given}

    def table(
        self,
        columns: Sequence[CellColumn],
        is_whole: Mask,
        rows: Callable[[Index], list[Row]],
        actions: ActionColumns | None = None,
    ) -> Table | list[Row]:
        """The table of these columns of fields; all rows as values where a column that is read is None.

        `actions`: those of the column `actions` or of its constant, without which other lists mean nothing.
        """
        every = np.arange(len(is_whole))
        numbers: dict[str, Array] = {} if self.is_timed else {"timestamp": np.zeros(len(every))}
        policies: dict[str, Array] = {}
        identifiers: dict[str, list[str | int | None]] = {}
        is_plain, sets = is_whole.copy(), None
        if actions is not None:
            sets, are_lists = self._sets(columns, actions)
            is_plain &= are_lists
        for each, column in zip(self.fields, columns, strict=True):
            if isinstance(column, list) and each.field in IDENTIFIERS:
                identifiers[each.field] = column
                if each.field in REQUIRED_IDENTIFIERS and None in column:
                    is_plain &= np.array([name is not None for name in column])
            elif sets is not None and (each.field == "actions" or isinstance(column, ListColumn)):
                if each.field == "policies":
                    policies[each.part or ""] = np.full(len(every), np.nan)
            elif isinstance(column, np.ndarray) and each.field not in (*IDENTIFIERS, *LISTS):
                by_name, name = (policies, each.part) if each.field == "policies" else (numbers, each.field)
                by_name[name or ""] = column
            else:
                return rows(every)
        has_columns = sets is not None or ("propensity" in numbers and "actions" not in self.constants)
        return Table(numbers, policies, identifiers, is_plain, rows, sets) if has_columns else rows(every)

    def _sets(self, columns: Sequence[CellColumn], actions: ActionColumns) -> tuple[ActionSets, Mask]:
        """The action sets in columns with lists, and the rows [rows] whose lists they hold."""
        by_field = {(each.field, each.part): column for each, column in zip(self.fields, columns, strict=True)}
        lists = {key: column for key, column in by_field.items() if isinstance(column, ListColumn)}
        sizes = actions.lists.sizes
        index, is_whole = actions.positions()
        for column in lists.values():
            is_whole &= column.fits(sizes)
        features = None
        if ("features", None) in lists:
            features, are_even = _features(lists.pop(("features", None)))
            is_whole &= are_even
        entries = {key: column.entries(sizes) for key, column in lists.items()}
        unknown = np.full(len(actions.lists.values), np.nan)
        policies = [entries.get(key, unknown) for key in by_field if key[0] == "policies"]
        sets = ActionSets(
            offsets=cumulative_offsets(actions.lists.counts),
            index=index,
            propensities=at_most_one(entries.get(("propensities", None), unknown.copy())),
            features=features,
            probabilities=np.array(policies).reshape(len(policies), len(unknown)).T,
        )
        return sets, is_whole

    def decoded(self, rows: Table | list[Row], decoder: JsonDecoder, path: str, first: int) -> EventBatch:
        """The events of consecutive rows; `path` and the number of the first row are their origin."""
        number = len(rows) if isinstance(rows, list) else len(rows.is_plain)
        origin = Origin.of(path, [(0, range(first, first + number))])
        batch = decoder.decode_rows(rows, origin) if isinstance(rows, list) else decoder.decode_table(rows, origin)
        return batch if self.is_timed else replace(batch, timestamp=np.full(len(batch), np.nan))


def _wanted(columns: ColumnNames, decoder: JsonDecoder, timed: bool) -> list[TableField]:
    """The columns to read. Those named in the configuration are required."""
    roots = list(dict.fromkeys(each.root for each in decoder.segments))
    always = (*roots, "timestamp", "action") if timed else (*roots, "action")
    given = {name: value for name, value in columns if name not in ("reward", "policies") and value is not None}
    sees_context = decoder.scores is not None or "context" in roots
    wanted = [
        TableField(name, column, column != name or name in always, is_read=name != "context" or sees_context)
        for name, column in given.items()
        if isinstance(column, str)
    ]
    if isinstance(columns.context, list):
        wanted += [TableField("context", column, True, column, sees_context) for column in columns.context]
    wanted.append(TableField(decoder.reward_field, columns.reward or decoder.reward_field, True))
    wanted += [TableField(each.field, each.field, True) for each in decoder.further]
    wanted += [TableField(name, name, True) for name in roots if name not in (*given, *(decoder.scores or ()))]
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

    columns = [_arrow_column(given[each.column], each) for each in layout.fields]
    is_whole = np.ones(table.num_rows, dtype=bool)
    return layout.table(columns, is_whole, rows, _arrow_actions(given, layout, table.num_rows))


def _arrow_column(column: Any, field: TableField) -> CellColumn:
    """An Arrow array with types of JSON as a column of events. Booleans are numbers where they are rewards."""
    import pyarrow as pa

    types = pa.types
    if _is_list(column.type):
        return _arrow_lists(column) if _is_of_numbers(field.field, column.type) else None
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


# --- Lists in Arrow ---


def _arrow_lists(lists: Any) -> ListColumn:
    """An Arrow array of lists, of numbers or of lists of these."""
    sizes, values = _sizes_and_values(lists)
    if _is_list(values.type):
        return ListColumn(sizes, _arrow_lists(values))
    return ListColumn(sizes, np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float64))


def _sizes_and_values(lists: Any) -> tuple[Index, Any]:
    """The sizes of the lists of an Arrow array, and their values as another one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lists = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
    sizes = pc.fill_null(pc.list_value_length(lists), NO_LIST).to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes, pc.list_flatten(lists)


def _arrow_actions(given: Mapping[str, Any], layout: TableLayout, rows: int) -> ActionColumns | None:
    """The actions of a column, or the same ones for all rows.

    None without either, or where the actions and the logged one are not all text or integers of one type.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = {each.field: given[each.column] for each in layout.fields}
    logged, lists, fixed = columns["action"], columns.get("actions"), layout.constants.get("actions")
    if fixed is not None:
        try:
            names = pa.array(fixed)
        except (ValueError, TypeError, OverflowError):  # text and integers, or an integer of more than 64 bits
            return None
        offsets = np.arange(rows + 1, dtype=np.int32) * len(fixed)
        lists = pa.ListArray.from_arrays(offsets, names.take(np.tile(np.arange(len(fixed)), rows)))
    if lists is None or not _is_list(lists.type):
        return None
    kinds = {lists.type.value_type, logged.type}
    is_text = kinds <= {pa.string(), pa.large_string()}
    if not is_text and not (len(kinds) == 1 and pa.types.is_integer(logged.type)):
        return None
    sizes, values = _sizes_and_values(lists)
    encoded = values.dictionary_encode()
    codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    wanted = pc.fill_null(pc.index_in(logged, value_set=encoded.dictionary.cast(logged.type)), -2)
    return ActionColumns(ListColumn(sizes, codes), wanted.to_numpy(zero_copy_only=False))


def _features(lists: ListColumn) -> tuple[Features, Mask]:
    """The features of the actions in lists of lists, and whether those of a row have one size and no null."""
    table: ListColumn = lists.values
    actions, widths = lists.owner, np.zeros(len(lists.sizes), dtype=np.int64)
    owner = actions[table.owner]
    widths[actions] = table.sizes
    are_even = widths <= MAX_FEATURES
    are_even[actions[table.sizes != widths[actions]]] = False
    are_even[owner[np.isnan(table.values)]] = False
    return Features(cumulative_offsets(np.bincount(owner, minlength=len(widths))), table.values), are_even


def _is_list(kind: Any) -> bool:
    """Whether an Arrow type is that of lists."""
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_of_numbers(field: str, kind: Any) -> bool:
    """Whether an Arrow type is that of lists of numbers, or of features, lists of those."""
    import pyarrow as pa

    kind = kind.value_type
    if field == "features":
        if not _is_list(kind):
            return False
        kind = kind.value_type
    is_number = pa.types.is_floating(kind) or pa.types.is_integer(kind)
    return bool(is_number) and field in ("propensities", "features", "policies")
