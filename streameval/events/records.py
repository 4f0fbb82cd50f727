"""Records of other formats: the fields of events have names of their own there, and may be inside other records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
from msgspec import structs

from streameval.common.arrays import floats
from streameval.common.text import counted
from streameval.events.action_sets import Index
from streameval.events.batch import EventBatch
from streameval.events.decoder import JsonDecoder, Table, fault_of_length
from streameval.events.diagnosis import DECODE_ERRORS, explain, parse, refusal
from streameval.events.origin import Origin
from streameval.events.tables import (
    IDENTIFIERS,
    LISTS,
    ActionColumns,
    CellColumn,
    ColumnNames,
    ListColumn,
    Row,
    TableField,
    TableLayout,
    in_seconds,
)
from streameval.events.validation import Fault

Record: TypeAlias = Mapping[str, Any]
ValueOf: TypeAlias = Callable[[Record], Any]
NUMBER_TYPES, NAME_TYPES = {int, float}, {int, str}
NO_LIST_FAULT = Fault("malformed", "")
ALWAYS_READ = ("event_id", "action", "timestamp")  # also where no record has one, so that none counts


CONVERSIONS: Mapping[type, Callable[[Any], Any]] = {
    datetime: lambda moment: (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp(),
    Decimal: float,
    UUID: str,
    bytes: bytes.decode,
}


class RecordDecoder(JsonDecoder):
    """Decodes messages that are records: mappings of names to values, some of which may be records.

    Args:
        record_of: the record of a message, or the `Fault` of one that has none
        columns: the name of the value of each field; `user.id` is the value `id` of the record `user`. By default the
            names of the fields; the probability of a policy is in the record `policies`, or has the name of the policy
        options: as of `JsonDecoder`

    >>> columns = {"propensity": "choice.p", "policies": {"new": "choice.p_new"}}
    >>> decoder = RecordDecoder(lambda message: parse(message.decode())[0], columns, policies=["new"])
    >>> message = b'{"event_id": 1, "timestamp": 0, "action": 7, "choice": {"p": 0.5, "p_new": 0.25}, "reward": 1}'
    >>> decoder.decode_batch([message, b"[]"]).probabilities
    array([[0.25]])
    """

    def __init__(
        self,
        record_of: Callable[[bytes], Any],
        columns: ColumnNames | Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        names = ColumnNames.of(columns)
        if names.event_id is None:
            names = names.model_copy(update={"event_id": "event_id"})
        self._record_of, self._layout = record_of, TableLayout.of_records(names, self)
        self._missing = {
            f"{each.field}: missing": f"{each.field}: missing: there is no value '{each.column}', its name in `columns`"
            for each in self._layout.fields
            if each.part is None and each.column != each.field
        }
        self._values_of = [self._value_of(each, each.part in names.policies) for each in self._layout.fields]

    def decode_batch(self, values: Iterable[bytes | None], origin: Origin | None = None) -> EventBatch:
        """Decode messages into columns, and reject those that are not events."""
        messages = list(values)
        table = self._table([self._values(message) for message in messages])
        places = origin or Origin.of("", [(0, range(len(messages)))])
        batch = self.decode_rows(table, places) if isinstance(table, list) else self.decode_table(table, places)
        rejected = [
            structs.replace(
                each,
                detail=self._missing.get(each.detail, each.detail),
                value=messages[each.place] or b"",
                origin=each.origin if origin else None,
            )
            for each in batch.rejected
        ]
        return replace(batch, origin=batch.origin if origin else None, rejected=tuple(rejected))

    def _value_of(self, field: TableField, is_named: bool) -> ValueOf:
        """The function that returns the value of a field of a record."""
        if field.field != "policies" or is_named:
            return _at(field.column)
        policy, by_name = field.part, _at(field.column)

        def of_policy(record: Record) -> Any:
            policies = record.get("policies")
            return policies.get(policy) if isinstance(policies, dict) else by_name(record)

        return of_policy

    def _values(self, message: bytes | None) -> Sequence[Any] | Fault:
        """The values of the fields of a message."""
        fault = fault_of_length(message)
        if fault is not None or message is None:
            return fault or NO_LIST_FAULT
        try:
            record = self._record_of(message)
            if isinstance(record, Fault):
                return record
            if not isinstance(record, dict):
                return Fault("malformed", f"expected a record, found {type(record).__name__}")
            return [plain(value_of(record)) for value_of in self._values_of]
        except (*DECODE_ERRORS, OverflowError) as error:
            return refusal(error)

    def _table(self, values: Sequence[Sequence[Any] | Fault]) -> Table | list[Row]:
        """The values of messages by columns, or row by row where a column has values of several types."""

        def rows(numbers: Index) -> list[Row]:
            some = [values[number] for number in numbers.tolist()]
            return [each if isinstance(each, Fault) else self._layout.event(each) for each in some]

        empty = [None] * len(self._layout.fields)
        is_whole = np.array([not isinstance(each, Fault) for each in values], dtype=bool)
        cells = zip(*(empty if isinstance(each, Fault) else each for each in values), strict=True)
        required = {*ALWAYS_READ, self.reward_field}
        given = [
            (field, column)
            for field, column in zip(self._layout.fields, cells, strict=False)
            if field.field in required or column.count(None) < len(column)
        ]
        layout = replace(self._layout, fields=[field for field, _ in given])
        columns = [_column(column, field.field) for field, column in given]
        return layout.table(columns, is_whole, rows, self._actions({field.field: column for field, column in given}))

    def _actions(self, cells: Mapping[str, Sequence[Any]]) -> ActionColumns | None:
        """The lists of actions; None without any, or where a logged action is neither text nor an integer."""
        logged, fixed = _column(cells.get("action", ()), "action"), self._layout.constants.get("actions")
        if not isinstance(logged, list) or (fixed is None and "actions" not in cells):
            return None
        lists = [fixed] * len(logged) if fixed else cells["actions"]
        return ActionColumns.of([_list_of(each, NAME_TYPES) for each in lists], logged)


class RowDecoder(RecordDecoder):
    """Decodes the rows of a CSV file, each of which is a JSON object: the text of each cell by the name of its column.

    >>> decoder = RowDecoder({"action": "banner"})
    >>> row = b'{"event_id": "1", "timestamp": "2026-01-01", "banner": "01", "propensity": "0.5", "reward": "1"}'
    >>> decoder.decode_batch([row]).propensity
    array([0.5])
    """

    def __init__(self, columns: ColumnNames | Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(_row, columns, **options)

    def _value_of(self, field: TableField, is_named: bool) -> ValueOf:
        value_of_cell = cell_identifier if field.field in IDENTIFIERS else cell_value

        def value_of(record: Record) -> Any:
            cell = record.get(field.column)
            try:
                return value_of_cell(cell.strip()) if isinstance(cell, str) else cell
            except DECODE_ERRORS as error:
                raise ValueError(f"{field.field}: {explain(error)}") from None

        return value_of


def _row(message: bytes) -> Any:
    row = parse(message.decode())[0]
    if isinstance(row, list):
        return Fault("malformed", f"{counted(len(row), 'cell')}, and the header has another number of columns")
    return row


def plain(value: Any) -> Any:
    """A value with a type of JSON: times as seconds since 1970, decimals as floats, UUIDs and bytes as text."""
    convert = CONVERSIONS.get(type(value))
    return value if convert is None else convert(value)


def _at(path: str) -> ValueOf:
    """The function that returns the value of a record at a path; None where there is none."""
    parts = path.split(".")

    def value_at(record: Record) -> Any:
        if path in record or len(parts) == 1:
            return record.get(path)
        value: Any = record
        for part in parts:
            value = value.get(part) if isinstance(value, dict) else None
        return value

    return value_at


def _column(values: Sequence[Any], field: str) -> CellColumn:
    """The values of a field as a column; None where their types need them to be read row by row."""
    if field == "timestamp":
        moments = [in_seconds(value) for value in values]
        return floats([value if type(value) in NUMBER_TYPES else math.nan for value in moments])
    kinds = {type(value) for value in values} - {type(None)}
    if field in IDENTIFIERS:
        return list(values) if kinds <= NAME_TYPES else None
    if kinds == {list} and field in ("propensities", "policies"):
        return ListColumn.of([_list_of(value, NUMBER_TYPES) for value in values], floats)
    if field in LISTS:
        return None
    return floats([math.nan if value is None else value for value in values]) if kinds <= NUMBER_TYPES else None


def _list_of(value: Any, kinds: set[type]) -> Any:
    """A list with values of these types, None for none; a `Fault` for another value, which is read with its row."""
    is_list = value is None or (isinstance(value, list) and {type(each) for each in value} <= kinds)
    return value if is_list else NO_LIST_FAULT


def cell_value(text: str) -> Any:
    """The value of a cell: lists and objects are JSON, others numbers if possible.

    Raises:
        ValueError: The JSON is malformed, or its bytes are not UTF-8.
    """
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        if text[0] in "[{":
            return parse(text)[0]
        return {"true": True, "false": False}.get(text.lower(), text) if text.isascii() else cell_identifier(text)
    if "_" in text:
        return text
    return None if math.isnan(number) else number


def cell_identifier(text: str) -> str | None:
    """The text of a cell, None for an empty one.

    Raises:
        ValueError: Its bytes are not UTF-8.
    """
    text.encode()
    return text or None
