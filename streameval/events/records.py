"""Decode records of other formats, such as Avro and the rows of CSV files, by the names of their values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import msgspec
import numpy as np

from streameval.common.text import counted
from streameval.events.batch import EventBatch
from streameval.events.decoder import JsonDecoder, fault_of_length
from streameval.events.diagnosis import DECODE_ERRORS, cut_fault, explain, parse, refusal, require_shallow
from streameval.events.origin import Origin
from streameval.events.schema import MAX_TIMESTAMP
from streameval.events.tables import IDENTIFIERS, ColumnNames, Row, TableField, TableLayout, value_at, with_names
from streameval.events.validation import Fault

Record: TypeAlias = Mapping[str, Any]

UNTIMED = -MAX_TIMESTAMP
"""Stands for a time that is not known while a row is decoded."""


class RecordDecoder(JsonDecoder):
    """Decode messages that are records: mappings of names to values, which may be records too.

    Args:
        record_of: return the record of a message, or the `Fault` of a message that has none
        columns: the name of the value of each field, `user.id` is the value `id` of the record `user`. By default the
            names of the fields. The probability of a policy is in the record `policies`, or has the name of the policy
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
        names = ColumnNames.from_mapping(columns)
        if names.event_id is None:
            names = names.model_copy(update={"event_id": "event_id"})
        self._record_of, self._layout = record_of, TableLayout.from_records(names, self)
        self._names = {field.field: field.column for field in self._layout.fields if not field.entry}

    def decode_batch(self, values: Iterable[bytes | None], origin: Origin | None = None) -> EventBatch:
        """Decode messages into columns, and reject those that are not events."""
        messages = list(values)
        batch = self.decode_rows([self._row(message) for message in messages], origin, messages)
        return with_names(batch, self._names)

    def _row(self, message: bytes | None) -> Row:
        fault = fault_of_length(message)
        if fault is not None or message is None:
            return fault or Fault("malformed", "")
        try:
            record = self._record_of(message)
            if isinstance(record, Fault):
                return cut_fault(message) or record
            if not isinstance(record, dict):
                return Fault("malformed", f"expected a record, found {type(record).__name__}")
            values = self._layout.json_values(self._value(record, field) for field in self._layout.fields)
            return self._layout.event(values)
        except (*DECODE_ERRORS, OverflowError) as error:
            return cut_fault(message) or refusal(error)

    def _value(self, record: Record, field: TableField) -> Any:
        """Return the value of a field. The probabilities of policies without a column of their own are together."""
        if field.field == "policies" and not field.is_required and isinstance(record.get("policies"), dict):
            return record["policies"].get(field.entry)
        return value_at(record, field.column)


class RowDecoder(RecordDecoder):
    """Decode the rows of a CSV file. Each is a JSON object with the text of each cell by the name of its column.

    Rows without a column `timestamp` have the time NaN, unless `columns` names another one.

    >>> decoder = RowDecoder({"action": "banner"})
    >>> row = b'{"event_id": "1", "timestamp": "2026-01-01", "banner": "01", "propensity": "0.5", "reward": "1"}'
    >>> decoder.decode_batch([row]).propensity
    array([0.5])
    """

    def __init__(self, columns: ColumnNames | Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(_row_of_cells, columns, **options)

    def decode_batch(self, values: Iterable[bytes | None], origin: Origin | None = None) -> EventBatch:
        batch = super().decode_batch(values, origin)
        return replace(batch, timestamp=np.where(batch.timestamp == UNTIMED, np.nan, batch.timestamp))

    def _value(self, record: Record, field: TableField) -> Any:
        if field.column == "timestamp" and "timestamp" not in record:
            return UNTIMED
        return read_cell(record.get(field.column, ""), field.field)


def read_cell(text: str, field: str) -> Any:
    """Return the value of a CSV cell for a field of events, None if it is empty or NaN.

    Identifiers stay text. Lists and objects are JSON. Other cells are numbers or truth values if possible.

    Raises:
        ValidationError: The JSON is malformed, or the bytes are not UTF-8. Names the field.

    >>> read_cell("007", "action"), read_cell("007", "reward"), read_cell("[1, 2]", "propensities")
    ('007', 7.0, [1, 2])
    """
    text = text.strip()
    try:
        if field in IDENTIFIERS or not text:
            text.encode()
            return text or None
        return _cell_value(text)
    except DECODE_ERRORS as error:
        raise msgspec.ValidationError(f"{explain(error)} - at `$.{field}`") from None


def _cell_value(text: str) -> Any:
    try:
        number = float(text)
    except ValueError:
        if text[0] in "[{":
            require_shallow(text.encode())
            return parse(text)[0]
        text.encode()
        return {"true": True, "false": False}.get(text.lower(), text) if text.isascii() else text
    if "_" in text:  # 1_000 is not a number outside of Python
        return text
    return None if math.isnan(number) else number


def _row_of_cells(message: bytes) -> Any:
    try:
        row = msgspec.json.decode(message)
    except DECODE_ERRORS:
        row = parse(message.decode())[0]
    if isinstance(row, str):
        return Fault("malformed", row)
    if isinstance(row, list):
        return Fault("malformed", f"{counted(len(row), 'cell')}, and the header has another number of columns")
    return row
