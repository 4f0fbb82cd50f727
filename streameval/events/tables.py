"""Map the columns of tables and the values of records to the fields of events."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

import msgspec
import numpy as np
from msgspec import structs
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from streameval.common.problems import did_you_mean
from streameval.errors import InputError
from streameval.events.action_sets import UNREADABLE, Index
from streameval.events.batch import EventBatch, RewardBatch
from streameval.events.decoder import JsonDecoder
from streameval.events.origin import Origin
from streameval.events.validation import Fault

Row: TypeAlias = Mapping[str, Any] | Fault
"""One event as Python values by field, or the reason why a row of a table is not an event."""

AnyBatch = TypeVar("AnyBatch", EventBatch, RewardBatch)

RAW_FIELDS = ("context", "actions", "action")  # a list of actions for all rows is text if the chosen actions are
OTHER_FORMS = ("ranking", "slots", "scored")
"""Columns of events with other forms than choices. Tables of files decode them like JSON."""
IDENTIFIERS = ("event_id", "action", "unit", "logging_policy")  # fields that are text in CSV


def _by_their_names(value: object) -> object:
    return {name: name for name in value} if isinstance(value, list | tuple) else value


class ColumnNames(BaseModel):
    """Name the column of a table (Parquet, Arrow, CSV), or the value in a JSON event, that holds each field.

    A dot steps into an object: `choice.p`, or to the object of this name in a list: `policies.new.p`. A table may lack
    a column that has the default name of an optional field.
    """

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
    def from_mapping(cls, columns: ColumnNames | Mapping[str, Any] | None, policies: Sequence[str] = ()) -> ColumnNames:
        """Validate the names that a caller gives.

        Args:
            columns: the column of each field
            policies: policies in columns of their own names, unless `columns` names others

        Raises:
            InputError: There is no such field, or a name is not text.
        """
        try:
            names = cls.model_validate(columns or {})
        except ValidationError as error:
            field = next(iter(error.errors()[0]["loc"]), None)
            if field is None:
                hint = 'write columns={"propensity": "p"}, the column of each field'
                raise InputError(f"columns: expected a mapping by field, found {columns!r}", hint=hint) from None
            problem = "expected the name of a column" if field in cls.model_fields else "events have no such field"
            hint = f"the fields are {', '.join(cls.model_fields)}"
            raise InputError(f"columns: {field}: {problem}", hint=hint) from None
        return names.model_copy(update={"policies": {name: name for name in policies} | names.policies})


class TableField(NamedTuple):
    """Map a field of events, or one entry of it, to a column.

    Attributes:
        field: name of the field
        column: name of the column
        is_required: whether a table must have the column
        entry: the entry of a field with several columns, such as the name of a policy
    """

    field: str
    column: str
    is_required: bool
    entry: str | None = None


@dataclass(frozen=True)
class TableLayout:
    """List the columns that are read from a table, and the values that all its rows share.

    Attributes:
        fields: one per column that is read. Two fields may share a column
        actions: the actions of every row, if the configuration lists them
        placeholders: values of required fields without a column. An empty `event_id` equals no other one.
        deferred: the layout of `raw_fields` that are read at their first use, if any
        json_context: whether text of `context` is read as JSON if it is, as columns of Arrow have it
    """

    fields: Sequence[TableField]
    actions: Sequence[str | int] | None
    placeholders: Mapping[str, Any]
    deferred: TableLayout | None = None
    json_context: bool = False

    @classmethod
    def from_names(
        cls,
        path: str,
        names: Sequence[str],
        columns: ColumnNames,
        decoder: JsonDecoder,
        *,
        timed: bool = True,
        json_context: bool = False,
    ) -> TableLayout:
        """Find the columns of a table.

        Args:
            path: name of the table, for errors
            names: the names of its columns
            columns: the column of each field
            decoder: the decoder of its events
            timed: whether rows must have a timestamp
            json_context: see the attribute

        Raises:
            InputError: A required column is missing, or two columns have its name.
        """
        wanted, counts = _wanted_fields(columns, decoder, timed), Counter(names)
        is_whole = not counts.keys().isdisjoint(OTHER_FORMS)
        if is_whole:
            wanted = _whole_fields(wanted, names, decoder)
        actions = _fixed_actions(columns)
        has_lists = actions is not None or columns.actions in counts  # others need no raw fields
        others = _wanted_fields(columns, decoder.deferred, timed) if has_lists and decoder.deferred else []
        others = [field for field in others if field.field in RAW_FIELDS]
        for field in (*wanted, *others):
            if field.is_required and field.column not in counts:
                raise InputError(
                    f"{path} has no column '{field.column}' for {field.entry or field.field}; "
                    f"it has {', '.join(names) or 'none'}",
                    hint=_hint_for(names, field.column),
                )
            if counts[field.column] > 1:
                raise InputError(f"{path} has two columns '{field.column}'", hint="rename or remove one of them")
        fields = [field for field in wanted if field.column in counts]
        present = {field.field for field in fields}
        if not decoder.estimated and not is_whole and not {"propensity", "propensities"} & present:
            raise InputError(
                f"{path} has no column with the propensity; it has {', '.join(names)}",
                hint="name it in the configuration: `columns: {propensity: NAME}`; "
                "`propensity: {kind: estimated}` is for logs that lack it",
            )
        placeholders = {"event_id": "", "timestamp": 0.0}
        absent = {name: value for name, value in placeholders.items() if name not in present}
        others = [field for field in others if field.column in counts]
        deferred = cls(others, actions, {}, None, json_context) if others else None
        return cls(fields, actions, absent, deferred, json_context)

    @classmethod
    def from_records(cls, columns: ColumnNames, decoder: JsonDecoder) -> TableLayout:
        """Return the layout of records. Any of them may lack a field."""
        return cls(_wanted_fields(columns, decoder, True), _fixed_actions(columns), {})

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are read, without repeats."""
        return list(dict.fromkeys(field.column for field in self.fields))

    @property
    def all_columns(self) -> list[str]:
        """Names of the columns that are read, also at the first use of raw fields, without repeats."""
        return list(dict.fromkeys([*self.columns, *(self.deferred.columns if self.deferred else ())]))

    def json_values(self, values: Iterable[Any]) -> list[Any]:
        """Convert one value per field to types of JSON, with null for NaN as a time and inside of lists and mappings.

        NaN of a policy stays, so that the event is rejected: with null, the probability would count as missing.
        """
        converted = zip(self.fields, map(plain, values), strict=True)
        return [
            without_nan(value)
            if field.field == "timestamp" or (isinstance(value, list | dict) and field.field != "policies")
            else value
            for field, value in converted
        ]

    def event(self, values: Iterable[Any]) -> dict[str, Any]:
        """Build the event of a row from one JSON value per field. Null means absent."""
        event: dict[str, Any] = {}
        for field, value in zip(self.fields, values, strict=True):
            if field.entry is not None:
                event.setdefault(field.field, {})[field.entry] = value
            elif value is not None:
                event[field.field] = value
        if self.actions is not None:
            event["actions"] = self.actions_like(isinstance(event.get("action"), str))
        if "timestamp" in event:
            event["timestamp"] = to_seconds(event["timestamp"])
        if self.json_context and "context" in event:
            event["context"] = json_context(event["context"])
        return event

    def actions_like(self, are_text: bool) -> list[str | int]:
        """Return the actions of every row. Numbers become text if the chosen actions are text, as in CSV."""
        return [str(action) if are_text else action for action in self.actions or ()]

    def decode_rows(self, rows: Sequence[Row], decoder: JsonDecoder, origin: Origin) -> EventBatch:
        """Decode rows one by one. Rows of a table without timestamps have the time NaN."""
        whole = [row if isinstance(row, Fault) else {**self.placeholders, **row} for row in rows]
        return self.without_placeholders(decoder.decode_rows(whole, origin))

    def without_placeholders(self, batch: EventBatch) -> EventBatch:
        """Replace the timestamps by NaN if the table has no column of timestamps."""
        is_timed = "timestamp" not in self.placeholders
        return batch if is_timed else replace(batch, timestamp=np.full(len(batch), np.nan))


def with_deferred_rows(batch: EventBatch, rows: Callable[[Index], Sequence[Row]] | None) -> EventBatch:
    """Add raw fields that are read at their first use.

    Args:
        batch: the events and the rejected rows of consecutive rows
        rows: return rows by index, None = add no fields
    """
    if rows is None:
        return batch
    kept = np.delete(np.arange(len(batch) + len(batch.rejected)), [message.place for message in batch.rejected])
    return batch.with_deferred_fields(lambda: [_raw_values(row) for row in rows(kept)])


def _raw_values(row: Row) -> Mapping[str, Any]:
    return {UNREADABLE: row} if isinstance(row, Fault) else {name: row.get(name) for name in ("context", "actions")}


def _fixed_actions(columns: ColumnNames) -> Sequence[str | int] | None:
    return columns.actions if isinstance(columns.actions, list) else None


def _wanted_fields(columns: ColumnNames, decoder: JsonDecoder, timed: bool) -> list[TableField]:
    """List the columns to read. A column that the configuration names is required."""
    roots = list(dict.fromkeys(segment.root for segment in decoder.segments))
    required = (*roots, "timestamp", "action") if timed else (*roots, "action")
    unread = {"reward", "policies"}
    if decoder.scores is None and "context" not in roots:
        unread.add("context")
    named = {name: value for name, value in columns if name not in unread and value is not None}
    fields = [
        TableField(name, column, column != name or name in required)
        for name, column in named.items()
        if isinstance(column, str)
    ]
    if isinstance(named.get("context"), list):
        fields += [TableField("context", column, True, column) for column in columns.context]
    rewards = {decoder.reward_field: columns.reward or decoder.reward_field}
    rewards |= {reward.field: reward.field for reward in decoder.further}
    if decoder.rewarded:
        fields += [TableField(field, column, field not in decoder.unlogged) for field, column in rewards.items()]
    fields += [TableField(name, name, True) for name in roots if name not in (*named, *(decoder.scores or ()))]
    fields += [TableField(name, name, False) for name in decoder.scores or () if name not in named]
    policies = columns.policies
    return fields + [
        TableField("policies", policies.get(policy, policy), policy in policies, policy)
        for policy in decoder.policies or ()
    ]


def _whole_fields(wanted: Sequence[TableField], names: Sequence[str], decoder: JsonDecoder) -> list[TableField]:
    """List the columns to read of a table with slates, pages or scored events: all fields that such an event may have.

    Args:
        wanted: the columns to read of single actions. Only their times stay required
        names: the names of the columns
        decoder: the decoder of the events
    """
    fields = [field for field in wanted if field.column in names or field.field == "timestamp"]
    others = {*names}.intersection(decoder.form.__struct_encode_fields__) - {field.field for field in fields}
    return fields + [TableField(name, name, False) for name in names if name in others - {"context"}]


def _hint_for(names: Sequence[str], wanted: str) -> str:
    """Guess why a header lacks the right names."""
    first = names[0] if names else ""
    if first.startswith("{"):
        return "this is JSON: leave out --format, and name the file e.g. log.ndjson"
    if len(names) == 1 and any(separator in first for separator in ";\t|"):
        return "separate the columns by commas"
    if first.replace(".", "", 1).isdigit():
        return "write the names of the columns into the first line"
    meant, remedy = did_you_mean(wanted, names), "set the names of columns under `columns` in the configuration"
    return f"{meant} Or {remedy}" if meant else remedy


CONVERSIONS: Mapping[type, Callable[[Any], Any]] = {
    datetime: lambda moment: (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp(),
    Decimal: float,
    UUID: str,
    bytes: bytes.decode,
    **dict.fromkeys((list, dict, date, time, timedelta), lambda value: msgspec.to_builtins(value, enc_hook=str)),
}


def plain(value: Any) -> Any:
    """Convert a value to a type of JSON: times to seconds since 1970, decimals to floats, UUIDs and bytes to text.

    Dates, times of a day, durations, and all of these inside lists and mappings become text.
    """
    convert = CONVERSIONS.get(type(value))
    return value if convert is None else convert(value)


def json_context(value: Any) -> Any:
    """Return the value of text that is JSON, and other values unchanged."""
    if isinstance(value, str):
        with suppress(msgspec.DecodeError, RecursionError):
            return msgspec.json.decode(value)
    return value


HALF_MICROSECOND = re.compile(r"[.,]\d{6}[5-9]")
"""Digits after the sixth one, which `datetime` leaves out, if they are half a microsecond or more."""


def without_nan(value: Any) -> Any:
    """Replace NaN by None, also inside lists and mappings."""
    if isinstance(value, list):
        return list(map(without_nan, value))
    if isinstance(value, dict):
        return {name: without_nan(entry) for name, entry in value.items()}
    return None if value != value else value


def has_no_zone(text: str) -> bool:
    """Return whether a text is a date or time that `to_seconds` takes as UTC, because it names no zone.

    >>> has_no_zone("2026-01-31 12:00"), has_no_zone("2026-01-31T12:00:00Z"), has_no_zone("1600000000")
    (True, False, False)
    """
    try:
        return "-" in text and datetime.fromisoformat(text).tzinfo is None
    except ValueError:
        return False


def to_seconds(moment: Any) -> Any:
    """Convert ISO 8601 text to seconds since 1970, in UTC without an offset. Return other values unchanged.

    Nanoseconds are rounded to microseconds, as in JSON.

    >>> to_seconds("1970-01-02"), to_seconds("1970-01-01T00:00:00.1234567Z"), to_seconds("yesterday")
    (86400.0, 0.123457, 'yesterday')
    """
    if not isinstance(moment, str):
        return moment
    try:
        parsed = datetime.fromisoformat(moment)
        if HALF_MICROSECOND.search(moment):
            parsed += timedelta(microseconds=1)
    except (ValueError, OverflowError):
        return moment
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def value_at(record: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path of a record, such as `choice.p`, or None if there is none.

    In a list, a step leads to the first object that has the name as one of its values.

    >>> value_at({"policies": [{"id": "old", "p": 0.5}, {"id": "new", "p": 0.25}]}, "policies.new.p")
    0.25
    """
    if path in record or "." not in path:
        return record.get(path)
    value: Any = record
    for name in path.split("."):
        if isinstance(value, list):
            value = next((item for item in value if isinstance(item, dict) and name in item.values()), None)
        else:
            value = value.get(name) if isinstance(value, dict) else None
    return value


def with_names(batch: AnyBatch, names: Mapping[str, str]) -> AnyBatch:
    """Add the names of missing fields in the log to the details of rejected messages.

    Args:
        batch: events or rewards, and rejected messages
        names: the name of each field
    """
    others = {field: name for field, name in names.items() if name != field}
    if not others or not batch.rejected:
        return batch

    def detail(text: str) -> str:
        field, _, problem = text.partition(": ")
        is_missing = field in others and problem.startswith("missing")
        return f"{text}: there is no value '{others[field]}', its name in `columns`" if is_missing else text

    return replace(
        batch, rejected=tuple(structs.replace(message, detail=detail(message.detail)) for message in batch.rejected)
    )
