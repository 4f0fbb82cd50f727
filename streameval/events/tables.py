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
from streameval.events.action_sets import Index
from streameval.events.batch import EventBatch
from streameval.events.decoder import JsonDecoder, Table
from streameval.events.origin import Origin
from streameval.events.validation import Fault

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
        self, columns: Sequence[CellColumn], is_whole: Mask, rows: Callable[[Index], list[Row]]
    ) -> Table | list[Row]:
        """The table of these columns of fields; all rows as values where some hold neither numbers nor identifiers."""
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
            elif isinstance(column, np.ndarray) and each.field not in (*IDENTIFIERS, *LISTS):
                by_name, name = (policies, each.part) if each.field == "policies" else (numbers, each.field)
                by_name[name or ""] = column
            else:
                return rows(every)
        is_compact = "propensity" in numbers and "actions" not in self.constants
        return Table(numbers, policies, identifiers, is_plain, rows) if is_compact else rows(every)

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
    return layout.table(columns, np.ones(table.num_rows, dtype=bool), rows)


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
